package recipetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A server can drop the connection for one request each time, such as one over its own limit.
// Such a request is not repeated without pauses.
func TestMutex_ARequestThatNeverGetsAnAnswerIsRepeatedWithPauses(t *testing.T) {
	onMemory(t, func(w *world) {
		var sent atomic.Int32
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if coordtest.Creates(c) {
				sent.Add(1)
				return backend.ErrUncertain
			}
			return nil
		}}), "/l", nil)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := m.Lock(ctx)
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		if n := sent.Load(); n < 5 || n > 50 {
			w.T.Errorf("sent %d times in ten seconds", n)
		}
	})
}

// Nodes that a call creates before its own write are no part of its outcome, even if it is
// unknown whether they were created.
func TestMutex_OnlyTheOwnWriteOfACallIsUncertain(t *testing.T) {
	for name, x := range map[string]struct {
		own string // below the path
		run func(ctx context.Context, c *coord.Client, path string) error
	}{
		"Barrier.Set": {"", func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewBarrier(c, path, nil).Set(ctx)
		}},
		"Barrier.Set with Ephemeral": {"", func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewBarrier(c, path, &coord.BarrierOptions{Ephemeral: true}).Set(ctx)
		}},
		"Value.Set": {"", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewValue[string](c, path, nil).Set(ctx, "x")
			return err
		}},
		"Counter.Add": {"", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewCounter(c, path).Add(ctx, 1)
			return err
		}},
		"Semaphore.SetLimit": {"/limit", func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewSemaphore(c, path, 1, nil).SetLimit(ctx, 2)
		}},
		"Queue.Put": {"/items/", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewQueue[string](c, path, nil).Put(ctx, "x")
			return err
		}},
	} {
		for _, what := range []string{"the context", "the session"} {
			t.Run(name+", "+what+" ends", func(t *testing.T) {
				for n, more := 1, true; more; n++ {
					onMemory(t, func(w *world) {
						ctx, cancel := context.WithCancel(context.Background())
						defer cancel()
						const path = "/above/further/x"
						var mu sync.Mutex
						seen, own := 0, false
						c := w.Open("a", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
							if c.Op != "commit" || err != nil {
								return err
							}
							mu.Lock()
							defer mu.Unlock()
							if seen++; seen != n {
								return nil
							}
							own = slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return strings.HasPrefix(op.Path, w.Path(path)+x.own) })
							if what == "the context" {
								cancel()
								return backend.ErrUncertain
							}
							w.Link("a").Expire(c.Session.ID())
							<-c.Session.Done()
							return backend.Uncertain(c.Session.Err())
						}})
						err := x.run(ctx, c, path)
						mu.Lock()
						defer mu.Unlock()
						more = seen >= n
						var want error
						if more && what == "the context" {
							want = context.Canceled
						}
						// An ephemeral barrier ends with its session, and is set again.
						uncertain := own && (what == "the context" || name != "Barrier.Set with Ephemeral")
						if uncertain {
							want = coord.ErrUncertain
						}
						if !errors.Is(err, want) || errors.Is(err, coord.ErrUncertain) != uncertain {
							w.T.Errorf("the reply to commit %d is lost, its own: %v: %v, want %v", n, own, err, want)
						}
					})
				}
			})
		}
	}
}

// A client that may create children but not write the directory's data uses the longer way,
// after one refusal.
func TestMutex_ADirectoryThatMayNotBeWrittenIsUsedTheLongWay(t *testing.T) {
	onMemory(t, func(w *world) {
		var refused atomic.Int32
		c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			for i, op := range c.Ops {
				if (op.Kind == backend.OpSetData || op.Kind == backend.OpCarry) && op.Path == "/l" {
					refused.Add(1)
					return &backend.Error{Op: "set", Path: op.Path, Index: i, Err: backend.ErrDenied}
				}
			}
			return nil
		}})
		m := coord.NewMutex(c, "/l", nil)
		var last int64
		for range 3 {
			h := coordtest.MustLock(w.T, m)
			local := w.Waiting(context.Background(), m)
			if h.Token() <= last {
				w.T.Errorf("token %d after %d", h.Token(), last)
			}
			coordtest.MustRelease(w.T, h)
			next := local.Hold()
			if next.Token() <= h.Token() {
				w.T.Errorf("token %d after %d", next.Token(), h.Token())
			}
			last = next.Token()
			coordtest.MustRelease(w.T, next)
		}
		w.Empty("/l")
		if n := refused.Load(); n != 1 {
			w.T.Errorf("refused %d times, want once: it is remembered", n)
		}
	})
}

// A client without any permission gets the error, and leaves nothing.
func TestMutex_ADeniedCallFailsAtOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "commit" {
				return &backend.Error{Op: c.Ops[0].Kind.String(), Path: c.Path, Err: backend.ErrDenied}
			}
			return nil
		}})
		_, err := coord.NewMutex(c, "/l", nil).Lock(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrDenied)
		_, err = coord.NewMutex(c, "/l", nil).TryLock(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrDenied)
	})
}

// A release that the service refuses returns the error, and is retried.
func TestMutex_ARefusedReleaseIsReportedAndTriedAgain(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
		err := h.Release()
		coordtest.WantErr(w.T, err, coord.ErrDenied)
		coordtest.WantErr(w.T, h.Err(), coord.ErrReleased)
		w.Empty("/l")
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
	})
}
