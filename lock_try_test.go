package coord_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

// What is tried by many and held by nobody is had by one of them before each has
// tried a few times, again and again. (Tries that stand in each other's way kept a free
// lock from 48 pollers for as long as they polled.)
func TestALockThatIsOnlyTriedIsHadBySomebody(t *testing.T) {
	const pollers, grants, rounds = 48, 100, 6
	type try = func(context.Context) (*coord.Hold, error)
	for name, of := range map[string]func(c *coord.Client, i int) try{
		"mutex":   func(c *coord.Client, _ int) try { return coord.NewMutex(c, "/l", nil).TryLock },
		"writers": func(c *coord.Client, _ int) try { return coord.NewRWMutex(c, "/l", nil).TryLock },
		"readers and writers": func(c *coord.Client, i int) try {
			if rw := coord.NewRWMutex(c, "/l", nil); i%2 == 0 {
				return rw.TryLock
			} else {
				return rw.TryRLock
			}
		},
		"permits of different weights": func(c *coord.Client, i int) try {
			s := coord.NewSemaphore(c, "/l", 4, nil)
			return func(ctx context.Context) (*coord.Hold, error) { return s.TryAcquire(ctx, 1+i%4) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New(nil)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				var tries, granted atomic.Int32 // since the latest grant, or since it was given back
				var most int32
				var mu sync.Mutex // one at a time looks at the counts
				var all sync.WaitGroup
				for i := range pollers {
					link := st.Link(fmt.Sprint("poller ", i))
					lock := of(open(t, link, nil), i)
					link.SetLatency(time.Duration(8+i%5) * time.Millisecond)
					all.Go(func() {
						for ctx.Err() == nil {
							h, err := lock(ctx)
							mu.Lock()
							if n := tries.Add(1); n > pollers*rounds {
								t.Errorf("nobody has it after %d tries", n)
								cancel()
							}
							if err == nil {
								most = max(most, tries.Swap(0))
								if granted.Add(1) == grants {
									cancel()
								}
							}
							mu.Unlock()
							switch {
							case err == nil:
								if err := h.Release(); err != nil {
									t.Error(err)
								}
							case !errors.Is(err, coord.ErrLocked) && ctx.Err() == nil:
								t.Error(err)
								cancel()
							}
							if t.Failed() {
								return
							}
						}
					})
				}
				all.Wait()
				t.Logf("%d grants, at most %d tries of %d pollers for one", granted.Load(), most, pollers)
			})
		})
	}
}

// A client that looks first makes no node while the lock is held, and one whose latest
// try won does not look: a lock that nobody else wants costs one request.
func TestATryCostsWhatItMust(t *testing.T) {
	onMemory(t, func(w *world) {
		var calls, writes atomic.Int32
		c := w.open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			calls.Add(1)
			if c.Op == "commit" {
				writes.Add(1)
			}
			return nil
		}})
		sem := coord.NewSemaphore(c, "/s", 1, nil)
		for name, x := range map[string]struct {
			try    func(context.Context) (*coord.Hold, error)
			hold   func(context.Context) (*coord.Hold, error)
			failed int32 // requests of a try that finds it taken
		}{
			"mutex":  {coord.NewMutex(c, "/l", nil).TryLock, coord.NewMutex(w.open("b", nil), "/l", nil).Lock, 2},
			"reader": {coord.NewRWMutex(c, "/rw", nil).TryRLock, coord.NewRWMutex(w.open("b", nil), "/rw", nil).Lock, 2},
			"permit": {func(ctx context.Context) (*coord.Hold, error) { return sem.TryAcquire(ctx, 1) }, func(ctx context.Context) (*coord.Hold, error) {
				return coord.NewSemaphore(w.open("b", nil), "/s", 1, nil).Acquire(ctx, 1)
			}, 3},
		} {
			ctx := context.Background()
			count := func(want, wantWrites int32, wantErr error) {
				w.t.Helper()
				calls.Store(0)
				writes.Store(0)
				h, err := x.try(ctx)
				if !errors.Is(err, wantErr) {
					w.t.Fatal(name, err)
				}
				if n, m := calls.Load(), writes.Load(); n != want || m != wantWrites {
					w.t.Errorf("%s: %d requests, %d writes, want %d, %d", name, n, m, want, wantWrites)
				}
				if err == nil {
					mustRelease(w.t, h)
				}
			}
			// The first one also makes the directory.
			h, err := x.try(ctx)
			if err != nil {
				w.t.Fatal(err)
			}
			mustRelease(w.t, h)
			count(1, 1, nil)
			h, err = x.hold(ctx)
			if err != nil {
				w.t.Fatal(err)
			}
			if _, err := x.try(ctx); !errors.Is(err, coord.ErrLocked) { // made its node at once
				w.t.Error(name, err)
			}
			count(x.failed, 0, coord.ErrLocked)
			count(x.failed, 0, coord.ErrLocked)
			mustRelease(w.t, h)
			count(x.failed+1, 1, nil) // looks, and makes its node
			count(1, 1, nil)
		}
	})
}
