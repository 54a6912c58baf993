package queue

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// claimed returns a claim on an item of a queue on memory, and the crew whose handler has just begun with it.
func claimed(t *testing.T, places int) (*Claim, *crew) {
	t.Helper()
	c, err := core.Open(t.Context(), memory.New(nil).Link(""), core.Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	q := New(c, "/q", layout.KindQueue, Config[any]{})
	if _, err := q.PutValue(t.Context(), 0, 0, PutOptions{}, func() ([]byte, error) { return []byte("1"), nil }); err != nil {
		t.Fatal(err)
	}
	cl, err := NewTaker(q, func(cl *Claim, _ []byte) (*Claim, error) { return cl, nil }).Take(t.Context(), "take", false)
	if err != nil {
		t.Fatal(err)
	}
	x := &crew{
		ctx: t.Context(), q: q, in: &intake{q: q, done: t.Context().Done(), over: make(chan struct{})}, places: make(chan struct{}, places),
		busy: make(map[*Claim]bool), hung: make(map[*Claim]bool),
	}
	for range places {
		x.places <- struct{}{}
	}
	if !x.enter(cl) {
		t.Fatal("the handler does not begin")
	}
	return cl, x
}

// The timer of a handler fires as the handler returns with a lost claim. The handler has freed its place already.
func TestWork_ATimerThatFiresAfterItsHandlerFreesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl, x := claimed(t, 2)
		cl.hold.Lose(errs.ErrClaimTimeout)
		x.leave(cl)
		x.vacate(cl)
		x.hang(cl)
		if n := len(x.places); n != 1 || len(x.hung) > 0 {
			t.Errorf("%d handlers have a place, want 1; %d hang, want 0", n, len(x.hung))
		}
	})
}

// When the drain is over, Work ends the claims of handlers that run, and not the claim whose Ack is under way.
func TestWork_DrainEndsOnlyClaimsOfHandlersThatRun(t *testing.T) {
	for name, returned := range map[string]bool{"runs": false, "has returned": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl, x := claimed(t, 1)
				if returned {
					x.leave(cl)
				}
				var ended []*Claim
				n := x.disband(func(cl *Claim) { ended = append(ended, cl) })
				if n != len(ended) || (n == 1) == returned || len(x.busy) != n {
					t.Errorf("%d claims ended, %d in number, of a handler that %s; %d are left", len(ended), n, name, len(x.busy))
				}
				if x.enter(cl) {
					t.Error("another handler begins")
				}
			})
		})
	}
}

// A new goroutine for each item would have to grow its stack each time.
func TestWork_OneHandlerAfterTheOtherRunsOnOneGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := core.Open(t.Context(), memory.New(nil).Link(""), core.Config{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		q := New(c, "/q", layout.KindQueue, Config[any]{})
		const items = 20
		for range items {
			if _, err := q.PutValue(t.Context(), 0, 0, PutOptions{}, func() ([]byte, error) { return []byte("1"), nil }); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ran := make(map[string]int) // by the name of the goroutine
		handled := 0
		err = NewTaker(q, func(cl *Claim, _ []byte) (*Claim, error) { return cl, nil }).Work(ctx, 1, func(context.Context, *Claim) error {
			stack := make([]byte, 64)
			name, _, _ := bytes.Cut(stack[:runtime.Stack(stack, false)], []byte("["))
			ran[string(name)]++
			if handled++; handled == items {
				cancel()
			}
			return nil
		})
		if err != nil || len(ran) != 1 || handled != items {
			t.Errorf("Work: %v, %d items on the goroutines %v, want %d on one", err, handled, ran, items)
		}
	})
}
