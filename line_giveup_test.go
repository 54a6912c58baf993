package coord_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// The try has looked, and its ctx ends before its node exists.
func TestMutex_TryThatWasCutShortAsksTheKeeperAgain(t *testing.T) {
	onMemory(t, func(w *world) {
		idle(w, coord.NewMutex(w.Open("a", nil), "/l", keeps("")))
		var before coordtest.Nth
		m := coord.NewMutex(w.Open("b", &backendtest.Hooks{Before: before.Before}), "/l", nil)
		ctx, cancel := context.WithCancel(w.T.Context())
		defer cancel()
		before.Arm(1, func(c backendtest.Call) bool {
			return c.Op == "commit" && c.Ops[0].Mode == backend.EphemeralSequential
		}, func(context.Context, backendtest.Call, error) error {
			cancel()
			return context.Canceled
		})
		if _, err := m.TryLock(ctx); !errors.Is(err, context.Canceled) {
			w.T.Fatalf("the first try: %v", err)
		}
		if _, err := m.TryLock(w.T.Context()); !errors.Is(err, coord.ErrLocked) {
			w.T.Fatalf("the try that asks: %v", err)
		}
		w.Settle()
		h, err := m.TryLock(w.T.Context())
		if err != nil {
			w.T.Fatalf("the keeper was not asked: %v", err)
		}
		coordtest.MustRelease(w.T, h)
	})
}

func TestMutex_IdleKeptLocksAreBounded(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		const most = 4096
		lock := func(i int) {
			h := coordtest.MustLock(w.T, coord.NewMutex(c, fmt.Sprintf("/l/%d", i), keeps("")))
			coordtest.MustRelease(w.T, h)
		}
		kept := func(i int) bool { return len(w.Children(fmt.Sprintf("/l/%d", i))) > 0 }
		for i := range most {
			lock(i)
			w.Settle()
		}
		lock(0) // now 1 has been idle for the longest time
		w.Settle()
		if !kept(1) {
			w.T.Error("a lock within the bound is not kept")
		}
		for i := range 3 {
			lock(most + i)
			w.Settle()
		}
		for i := range most + 3 {
			if want := i == 0 || i > 3; kept(i) != want {
				w.T.Errorf("lock %d is kept: %v, want %v", i, !want, want)
			}
		}
	})
}

// Whatever ends LockAll, its client can take each free lock with one try afterwards.
func TestLockAll_LeavesNoHoldBehind(t *testing.T) {
	errRefused := errors.New("refused")
	for _, rw := range []bool{false, true} {
		for _, end := range []string{"ctx", "refusal", "kind", "ctx without contact"} {
			onMemory(t, func(w *world) {
				a, b := w.Open("a", nil), w.Open("b", nil)
				locker := func(c *coord.Client, path string) coord.Locker {
					if rw {
						return coord.NewRWMutex(c, path, nil)
					}
					return coord.NewMutex(c, path, nil)
				}
				link := w.Link("a")
				l1, l2 := locker(a, "/l1"), locker(a, "/l2")
				ctx, cancel := context.WithTimeout(w.T.Context(), 3*time.Second)
				defer cancel()
				want := context.DeadlineExceeded
				switch end {
				case "kind":
					want = coord.ErrKind
					term, err := coord.NewElection(b, "/l2", nil).Campaign(ctx)
					if err != nil {
						w.T.Fatal(err)
					}
					defer term.Release()
				case "refusal":
					want = errRefused
					l2 = refuses{l2, errRefused}
				default:
					h, err := locker(b, "/l2").Lock(ctx)
					if err != nil {
						w.T.Fatal(err)
					}
					defer h.Release()
				}
				w.Service.(coordtest.MemoryService).Store.Link("a").SetLatency(10 * time.Millisecond)
				if end == "ctx without contact" {
					time.AfterFunc(2500*time.Millisecond, link.Partition)
				}
				_, err := coord.LockAll(ctx, l2, l1)
				if !errors.Is(err, want) {
					w.T.Fatalf("%s: %v, want %v", end, err, want)
				}
				if left := w.Children("/l1"); end != "ctx without contact" && len(left) > 0 {
					w.T.Errorf("rw %v, %s: LockAll has returned, and there is %q", rw, end, left)
				}
				link.Heal()
				h, err := l1.TryLock(w.T.Context())
				if err != nil {
					w.T.Fatalf("rw %v, %s: the client meets its own hold: %v", rw, end, err)
				}
				coordtest.MustRelease(w.T, h)
			})
		}
	}
}

// refuses is a Locker of another package whose Lock fails.
type refuses struct {
	coord.Locker
	err error
}

func (r refuses) Lock(context.Context) (*coord.Hold, error) { return nil, r.err }
