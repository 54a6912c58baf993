package recipetest

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
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestMutex_ALockIsHeldByOneAndTokensGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		const clients, callers, rounds = 4, 3, 20
		var mu sync.Mutex
		holders, token, grants := 0, int64(0), 0
		var wg sync.WaitGroup
		for i := range clients {
			c := coordtest.Open(t, st.Link(fmt.Sprint(i)), nil)
			for range callers {
				wg.Go(func() {
					m := coord.NewMutex(c, "/locks/a", nil)
					for range rounds {
						h := coordtest.MustLock(t, m)
						mu.Lock()
						holders++
						grants++
						if holders != 1 {
							t.Errorf("%d holders", holders)
						}
						if h.Token() <= token {
							t.Errorf("token %d after %d", h.Token(), token)
						}
						token = h.Token()
						mu.Unlock()
						time.Sleep(time.Millisecond)
						mu.Lock()
						holders--
						mu.Unlock()
						coordtest.MustRelease(t, h)
					}
				})
			}
		}
		wg.Wait()
		if grants != clients*callers*rounds {
			t.Errorf("%d grants", grants)
		}
		if left := coordtest.Children(t, st, "/locks/a"); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

func TestMutex_WaitersAreGrantedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		first := coordtest.MustLock(t, coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil))
		var mu sync.Mutex
		var got []int
		var wg sync.WaitGroup
		for i := range 10 {
			m := coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil)
			wg.Go(func() {
				h := coordtest.MustLock(t, m)
				mu.Lock()
				got = append(got, i)
				mu.Unlock()
				coordtest.MustRelease(t, h)
			})
			synctest.Wait() // it has joined the queue before the next one starts
		}
		coordtest.MustRelease(t, first)
		wg.Wait()
		if want := "[0 1 2 3 4 5 6 7 8 9]"; fmt.Sprint(got) != want {
			t.Errorf("order %v, want %v", got, want)
		}
	})
}

func TestMutex_TryLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		a := coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil)
		b := coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil)
		h, err := a.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for name, m := range map[string]*coord.Mutex{"the same client": a, "another client": b} {
			if _, err := m.TryLock(t.Context()); !errors.Is(err, coord.ErrLocked) {
				t.Errorf("%s: %v, want ErrLocked", name, err)
			}
		}
		if n := len(coordtest.Children(t, st, "/l")); n != 1 {
			t.Errorf("%d nodes, want the holder's", n)
		}
		coordtest.MustRelease(t, h)
		h, err = b.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		coordtest.MustRelease(t, h)
	})
}

func TestMutex_Do(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		link := st.Link("a")
		m := coord.NewMutex(coordtest.Open(t, link, nil), "/l", nil)
		failed := errors.New("failed")
		if err := m.Do(t.Context(), func(context.Context, *coord.Hold) error { return failed }); err != failed && !errors.Is(err, failed) {
			t.Errorf("got %v, want the error of the function", err)
		}
		err := m.Do(t.Context(), func(ctx context.Context, h *coord.Hold) error {
			link.Expire(h.Session())
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, coord.ErrLost) || !errors.Is(cause, coord.ErrSessionLost) {
				t.Errorf("cause %v", cause)
			}
			return nil
		})
		if !errors.Is(err, coord.ErrLost) {
			t.Errorf("got %v, want the loss", err)
		}
		func() {
			defer func() { recover() }()
			m.Do(t.Context(), func(context.Context, *coord.Hold) error { panic("under the lock") })
		}()
		synctest.Wait()
		if left := coordtest.Children(t, st, "/l"); len(left) != 0 {
			t.Errorf("left behind by a panic: %v", left)
		}
	})
}

func TestMutex_AHoldEndsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		link := st.Link("a")
		c := coordtest.Open(t, link, nil)
		m := coord.NewMutex(c, "/l", nil)

		h := coordtest.MustLock(t, m)
		if h.Err() != nil {
			t.Fatal(h.Err())
		}
		ctx := h.Context(t.Context())
		coordtest.MustRelease(t, h)
		coordtest.MustRelease(t, h) // idempotent
		<-h.Done()
		if !errors.Is(h.Err(), coord.ErrReleased) || errors.Is(h.Err(), coord.ErrLost) {
			t.Errorf("released: %v", h.Err())
		}
		if !errors.Is(context.Cause(ctx), coord.ErrReleased) {
			t.Errorf("context: %v", context.Cause(ctx))
		}
		if c := h.Context(t.Context()); c.Err() == nil {
			t.Error("the context of an ended hold is not done")
		}

		h = coordtest.MustLock(t, m)
		link.Expire(h.Session())
		<-h.Done()
		if err := h.Release(); !errors.Is(err, coord.ErrLost) || !errors.Is(err, coord.ErrSessionLost) {
			t.Errorf("released after a loss: %v", err)
		}
	})
}

func TestMutex_ContendersAreListedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		var first *coord.Mutex
		for i := range 3 {
			m := coord.NewMutex(coordtest.Open(t, st, nil), "/l", &coord.MutexOptions{Data: fmt.Append(nil, "node-", i)})
			if first == nil {
				first = m
			}
			wg.Go(func() {
				if h, err := m.Lock(ctx); err == nil {
					<-ctx.Done()
					h.Release()
				}
			})
			synctest.Wait()
		}
		list, err := first.Contenders(t.Context())
		if err != nil || len(list) != 3 {
			t.Fatal(list, err)
		}
		for i, c := range list {
			if string(c.Data) != fmt.Sprint("node-", i) || c.Session == 0 || c.Since.IsZero() || i > 0 && c.Token <= list[i-1].Token {
				t.Errorf("contender %d: %+v", i, c)
			}
		}
		cancel()
		wg.Wait()
		synctest.Wait()
		if list, err := first.Contenders(t.Context()); err != nil || len(list) != 0 {
			t.Error(list, err)
		}
	})
}

// If many clients only poll a free lock, one of them acquires it before each has tried a few
// times, again and again. (Tries that blocked each other once kept a free lock from 48 pollers
// for as long as they polled.)
func TestMutex_ALockThatIsOnlyPolledIsAcquired(t *testing.T) {
	const pollers, grants, rounds = 48, 100, 6
	type try = func(context.Context) (*coord.Hold, error)
	for name, of := range map[string]func(c *coord.Client, i int) try{
		"mutex": func(c *coord.Client, _ int) try { return coord.NewMutex(c, "/l", nil).TryLock },
		"kept mutex": func(c *coord.Client, _ int) try {
			return coord.NewMutex(c, "/l", &coord.MutexOptions{Keep: time.Second}).TryLock
		},
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
				var mu sync.Mutex // guards the check of the counts
				var all sync.WaitGroup
				for i := range pollers {
					link := st.Link(fmt.Sprint("poller ", i))
					lock := of(coordtest.Open(t, link, nil), i)
					// No two in step: the first of pollers in step meets no node of the others.
					link.SetLatency(8*time.Millisecond + time.Duration(i)*83*time.Microsecond)
					all.Go(func() {
						for ctx.Err() == nil {
							h, err := lock(ctx)
							mu.Lock()
							if n := tries.Add(1); n > pollers*rounds {
								t.Errorf("no poller has acquired it after %d tries", n)
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

// A try that reads the queue first creates no node while the lock is held. A client whose
// latest try succeeded does not read first: an uncontended try costs one request.
func TestMutex_WhatATryCosts(t *testing.T) {
	onMemory(t, func(w *world) {
		var calls, writes atomic.Int32
		c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
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
			more   int32 // of the first such try: the mutex reads whether the other client may keep it
		}{
			"mutex":  {coord.NewMutex(c, "/l", nil).TryLock, coord.NewMutex(w.Open("b", nil), "/l", nil).Lock, 2, 1},
			"reader": {coord.NewRWMutex(c, "/rw", nil).TryRLock, coord.NewRWMutex(w.Open("b", nil), "/rw", nil).Lock, 2, 0},
			"permit": {func(ctx context.Context) (*coord.Hold, error) { return sem.TryAcquire(ctx, 1) }, func(ctx context.Context) (*coord.Hold, error) {
				return coord.NewSemaphore(w.Open("b", nil), "/s", 1, nil).Acquire(ctx, 1)
			}, 3, 0},
		} {
			ctx := context.Background()
			count := func(want, wantWrites int32, wantErr error) {
				w.T.Helper()
				calls.Store(0)
				writes.Store(0)
				h, err := x.try(ctx)
				if !errors.Is(err, wantErr) {
					w.T.Fatal(name, err)
				}
				if n, m := calls.Load(), writes.Load(); n != want || m != wantWrites {
					w.T.Errorf("%s: %d requests, %d writes, want %d, %d", name, n, m, want, wantWrites)
				}
				if err == nil {
					coordtest.MustRelease(w.T, h)
				}
			}
			// The first one also makes the directory.
			h, err := x.try(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			coordtest.MustRelease(w.T, h)
			count(1, 1, nil)
			h, err = x.hold(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			if _, err := x.try(ctx); !errors.Is(err, coord.ErrLocked) { // creates its node without looking first
				w.T.Error(name, err)
			}
			count(x.failed+x.more, 0, coord.ErrLocked)
			count(x.failed, 0, coord.ErrLocked)
			coordtest.MustRelease(w.T, h)
			count(x.failed+1, 1, nil) // reads the queue, then creates its node
			count(1, 1, nil)
		}
	})
}

// The node for the next caller was created, but the reply is lost. Then the client loses the
// session while the service still keeps it, so the caller finds a node that is no longer its
// own.
func TestMutex_ANodeThatALostSessionMadeForTheNextCallerIsNotAdopted(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		var after coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: after.After})
		m := coord.NewMutex(c, "/l", nil)
		h := coordtest.MustLock(t, m)
		next := w.Waiting(context.Background(), m)
		after.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
			w.Link("a").Partition()
			return backend.ErrUncertain // the release retries until the lease ends
		})
		released := make(chan error)
		go func() { released <- h.Release() }()
		awaitPhase(t, c, coord.PhaseLost)
		w.Link("a").Heal()
		<-released
		hold := next.Hold()
		if hold.Session() == h.Session() {
			t.Errorf("granted on the session that was lost")
		}
		stat, err := w.Session("x").Exists(t.Context(), hold.Path(), nil)
		if err != nil || stat.EphemeralOwner != hold.Session() {
			t.Errorf("the node of the hold is of session %x, the hold of %x, %v", stat.EphemeralOwner, hold.Session(), err)
		}
		coordtest.MustRelease(t, hold)
	})
}

func TestMutex_AnIDThatIsNotUTF8IsRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		c, ctx := w.Open("a", nil), context.Background()
		for name, l := range map[string]coord.Locker{
			"mutex":     coord.NewMutex(c, "/m", &coord.MutexOptions{ID: "\xff"}),
			"rwmutex":   coord.NewRWMutex(c, "/rw", &coord.RWMutexOptions{ID: "\xff"}),
			"semaphore": coord.NewSemaphore(c, "/s", 1, &coord.SemaphoreOptions{ID: "\xff"}).Locker(1),
		} {
			if _, err := l.Lock(ctx); !errors.Is(err, coord.ErrInvalid) {
				w.T.Errorf("%s: Lock: %v", name, err)
			}
			if _, err := l.TryLock(ctx); !errors.Is(err, coord.ErrInvalid) {
				w.T.Errorf("%s: TryLock: %v", name, err)
			}
		}
	})
}
