package recipetest

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// blockingContext is a user's own Context whose methods block.
type blockingContext struct {
	context.Context
	b *Blocker
}

func (c blockingContext) Done() <-chan struct{} {
	c.b.wait()
	return make(chan struct{})
}

func (c blockingContext) Value(key any) any {
	c.b.wait()
	return c.Context.Value(key)
}

// The context package calls the parent of a context that is cancelled. If that is a user's own
// Context and blocks, all holds and their contexts end nevertheless, waiters of the client continue,
// and the client opens its next session. Close waits for such a call for a second.
func TestTrace_AContextThatBlocksDelaysNoOtherHold(t *testing.T) {
	for name, lost := range map[string]bool{"the session is lost": true, "the nodes are deleted": false} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				b := newBlocker()
				defer b.let()
				bg := context.Background()
				c, outsider := w.Open("a", nil), w.Session("outsider")
				type held struct {
					h    *coord.Hold
					done <-chan struct{}
					ctxs []context.Context
					next *coordtest.Locking // of the same client
				}
				var list []held
				for i := range 20 {
					m := coord.NewMutex(c, fmt.Sprintf("/l%d", i), nil)
					h := coordtest.MustLock(w.T, m)
					ctx, cancel := context.WithCancel(bg)
					defer cancel()
					list = append(list, held{h, h.Done(), []context.Context{h.Context(blockingContext{ctx, b}), h.Context(ctx)}, w.Waiting(bg, m)})
				}
				session := list[0].h.Session()
				b.stop()
				other := coord.NewMutex(w.Open("b", nil), "/l7", nil)
				if lost {
					w.Link("a").Partition()
					coordtest.MustRelease(w.T, coordtest.MustLock(w.T, other))
				} else {
					for _, x := range list {
						if _, err := outsider.Commit(bg, backend.Delete(x.h.Path(), backend.AnyVersion)); err != nil {
							w.T.Fatal(err)
						}
						w.Eventually("the hold ends", func() bool { return x.h.Err() != nil })
					}
					w.Settle()
				}
				for i, x := range list {
					select {
					case <-x.done:
					default:
						w.T.Errorf("hold %d has not ended", i)
					}
					for _, ctx := range x.ctxs {
						if ctx.Err() == nil {
							w.T.Errorf("a context of hold %d has not ended", i)
						} else {
							coordtest.WantErr(w.T, context.Cause(ctx), coord.ErrLost)
						}
					}
				}
				w.Link("a").Heal()
				for _, x := range list {
					h := x.next.Hold()
					if (h.Session() != session) != lost {
						w.T.Errorf("the next hold has the session %x, the first one %x", h.Session(), session)
					}
					coordtest.MustRelease(w.T, h)
				}
				start := time.Now()
				c.Close()
				if took := time.Since(start); took != time.Second {
					w.T.Errorf("Close took %v, want a second", took)
				}
			})
		})
	}
}

// Close waits until earlier events and messages are delivered, but for a Logger and a Trace
// that block no longer than a second together. Those that are not delivered by then never are.
func TestTrace_CloseWaitsForTheLoggerAndTraceForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow, told int
		st := memory.New(nil)
		c := coordtest.Open(t, st.Link("a"), &coord.Options{Trace: func(context.Context, trace.Event) {
			time.Sleep(100 * time.Millisecond)
			slow++
		}})
		start := time.Now()
		c.Close()
		if took := time.Since(start); slow != 2 || took != 200*time.Millisecond {
			t.Errorf("reported %d changes of state in %v, want 2 in 200ms", slow, took)
		}

		b := newBlocker()
		b.stop()
		c = coordtest.Open(t, st.Link("a"), &coord.Options{Logger: slog.New(b), Trace: func(context.Context, trace.Event) {
			told++
			b.wait()
		}})
		link := st.Link("a")
		link.Expire(coordtest.MustLock(t, coord.NewMutex(c, "/l", nil)).Session())
		time.Sleep(time.Second)
		start = time.Now()
		c.Close()
		if took := time.Since(start); took != time.Second {
			t.Errorf("Close took %v, want a second", took)
		}
		b.let()
		synctest.Wait()
		if told != 1 {
			t.Errorf("Trace was called %d times, want 1: it blocked until after Close", told)
		}
	})
}

// Events that a slow Trace misses are counted, and the count takes their place.
func TestTrace_EventsThatAreDroppedAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		let := make(chan struct{})
		var granted, released, states, dropped int
		c := coordtest.Open(t, memory.New(nil).Link("a"), &coord.Options{Trace: func(_ context.Context, e trace.Event) {
			<-let
			switch e := e.(type) {
			case trace.HoldGranted:
				granted++
			case trace.HoldReleased:
				released++
			case trace.StateChanged:
				states++
			case trace.EventsDropped:
				dropped += e.Events
				if e.About() != (trace.Subject{}) {
					t.Errorf("%+v", e)
				}
			}
		}})
		m := coord.NewMutex(c, "/l", nil)
		const turns = 10_000
		for range turns {
			coordtest.MustRelease(t, coordtest.MustLock(t, m))
		}
		close(let)
		synctest.Wait()
		if dropped == 0 || states != 1 || granted+released+dropped != 2*turns {
			t.Errorf("%d granted, %d released, %d states and %d dropped, want %d and a state", granted, released, states, dropped, 2*turns)
		}
		// Afterwards nothing is missed.
		before := dropped
		coordtest.MustRelease(t, coordtest.MustLock(t, m))
		c.Close()
		if dropped != before || granted+released+dropped != 2*turns+2 || states != 2 {
			t.Errorf("%d granted, %d released, %d states and %d dropped at the end", granted, released, states, dropped)
		}
	})
}

// traceCycles are operations that users of the recipes repeat.
var traceCycles = []struct {
	name string
	make func(t testing.TB, ctx context.Context, c *coord.Client) func() error
}{
	{"mutex", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		m := coord.NewMutex(c, "/mutex", nil)
		return func() error {
			h, err := m.Lock(ctx)
			if err != nil {
				return err
			}
			return h.Release()
		}
	}},
	{"reader", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		m := coord.NewRWMutex(c, "/rw", nil)
		return func() error {
			h, err := m.RLock(ctx)
			if err != nil {
				return err
			}
			return h.Release()
		}
	}},
	{"semaphore", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		s := coord.NewSemaphore(c, "/semaphore", 3, nil)
		return func() error {
			h, err := s.Acquire(ctx, 2)
			if err != nil {
				return err
			}
			return h.Release()
		}
	}},
	{"election", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		e := coord.NewElection(c, "/election", nil)
		return func() error {
			t, err := e.Campaign(ctx)
			if err != nil {
				return err
			}
			return t.Release()
		}
	}},
	{"double barrier", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		d := coord.NewDoubleBarrier(c, "/double", 1, nil)
		return func() error {
			e, err := d.Enter(ctx)
			if err != nil {
				return err
			}
			return e.Leave(ctx)
		}
	}},
	{"barrier", func(t testing.TB, ctx context.Context, c *coord.Client) func() error {
		b := coord.NewBarrier(c, "/barrier", nil)
		return func() error { return b.Wait(ctx) }
	}},
	{"queue", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		q := coord.NewQueue[int](c, "/queue", nil)
		return func() error {
			if _, err := q.Put(ctx, 1); err != nil {
				return err
			}
			it, err := q.Take(ctx)
			if err != nil {
				return err
			}
			return it.Ack()
		}
	}},
	{"member", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		g := coord.NewGroup[int](c, "/group", nil)
		return func() error {
			m, err := g.Join(ctx, "a", 1)
			if err != nil {
				return err
			}
			return m.Leave()
		}
	}},
}

// TestSpan_WithoutTraceItCostsNothing of internal/tracing shows that a Span costs nothing without Trace. This
// test counts the allocations of whole cycles, and compares those of a mutex with the documented number.
func TestTrace_WithoutTraceAMutexKeepsItsAllocations(t *testing.T) {
	const promised = 10 // a cycle of a mutex on memory
	measure := func(c *coord.Client, i int) float64 {
		cycle := traceCycles[i].make(t, t.Context(), c)
		return testing.AllocsPerRun(300, func() {
			if err := cycle(); err != nil {
				t.Fatal(err)
			}
		})
	}
	plain := coordtest.Open(t, memory.New(nil), nil)
	var told atomic.Int64
	traced := coordtest.Open(t, memory.New(nil), &coord.Options{Trace: func(context.Context, trace.Event) { told.Add(1) }})
	for i, cy := range traceCycles {
		without := measure(plain, i)
		for n := 0; n < 20 && cy.name == "mutex" && without > promised; n++ {
			// Allocations of other goroutines count too; a slow machine has more of them.
			without = min(without, measure(plain, i))
		}
		before := told.Load()
		t.Logf("figure: a cycle of a %s: %v allocations, traced %v", cy.name, without, measure(traced, i))
		if cy.name == "mutex" && without > promised && !coordtest.Race { // which allocates too
			t.Errorf("%s: %v allocations a cycle without Trace, want %v at most", cy.name, without, promised)
		}
		if cy.name == "barrier" {
			continue // no events
		}
		for n := 0; n < 5000 && told.Load()-before < 600; n++ {
			time.Sleep(time.Millisecond) // until the events have arrived
		}
		if told.Load()-before < 600 {
			t.Errorf("%s: Trace received %d events", cy.name, told.Load()-before)
		}
	}
}
