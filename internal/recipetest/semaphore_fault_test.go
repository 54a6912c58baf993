package recipetest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A semaphore's holders cannot be revoked, so its Data must not read as a request for that.
func TestSemaphore_DataOfASemaphoreThatReadsAsARequestIsRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		for _, data := range []string{"unlock", "__REVOKE__", `{"coord-revoke":{"at":1}}`} {
			s := coord.NewSemaphore(c, "/s", 2, &coord.SemaphoreOptions{Data: []byte(data)})
			for _, take := range []func(context.Context, int) (*coord.Hold, error){s.Acquire, s.TryAcquire} {
				h, err := take(context.Background(), 1)
				coordtest.WantErr(w.T, err, coord.ErrInvalid)
				if err == nil {
					coordtest.MustRelease(w.T, h)
				}
			}
		}
	})
}

// The first SetLimit creates the limit's node. It does so once as well.
func TestSemaphore_TheFirstLimitIsSetOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after coordtest.Nth
		a := coord.NewSemaphore(w.Open("a", &backendtest.Hooks{After: after.After}), "/s", 2, nil)
		b := coord.NewSemaphore(w.Open("b", nil), "/s", 2, nil)
		if _, err := w.Session("x").Commit(ctx, backend.Create(w.Path("/s"), nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		makes := func(c backendtest.Call) bool {
			return c.Path == w.Path("/s/limit") && coordtest.Commits(c, backend.OpCreate)
		}
		// The reply is lost, and another client changes the limit before the outcome is
		// determined.
		lost := false
		after.Arm(1, makes, func(_ context.Context, _ backendtest.Call, err error) error {
			if err != nil {
				return err
			}
			lost = true
			if err := b.SetLimit(ctx, 7); err != nil {
				w.T.Error(err)
			}
			return backend.ErrUncertain
		})
		if err := a.SetLimit(ctx, 5); err != nil {
			w.T.Fatal(err)
		}
		if n, err := a.Limit(ctx); err != nil || n != 7 || !lost {
			w.T.Errorf("limit %d, %v, reply lost: %v; want the later limit", n, err, lost)
		}
	})
}

// The replies to two calls arrive in the reverse order of their changes.
func TestSemaphore_ASemaphoreExpectsTheLaterOfTwoLimitsThatItSet(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after coordtest.Nth
		s := coord.NewSemaphore(w.Open("a", &backendtest.Hooks{After: after.After}), "/s", 2, nil)
		coordtest.MustRelease(w.T, acquire(w.T, s, 1))
		after.Arm(1, func(c backendtest.Call) bool {
			return coordtest.Commits(c, backend.OpSetData) && c.Path == w.Path("/s/limit")
		},
			func(_ context.Context, _ backendtest.Call, err error) error {
				if err := s.SetLimit(ctx, 7); err != nil {
					w.T.Error(err)
				}
				return err
			})
		if err := s.SetLimit(ctx, 5); err != nil {
			w.T.Fatal(err)
		}
		if n, err := s.Limit(ctx); err != nil || n != 7 {
			w.T.Errorf("limit %d, %v", n, err)
		}
		coordtest.MustRelease(w.T, acquire(w.T, s, 7))
	})
}

// A waiter that waits through a change of the limit is granted under the new limit. Its
// semaphore expects the old one nevertheless.
func TestSemaphore_AGrantUnderAnotherLimitLeavesTheExpectedOne(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h := acquire(w.T, b, 3)
		waiter := w.awaiting(a, 1)
		if err := b.SetLimit(ctx, 4); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, waiter.Hold())
		coordtest.MustRelease(w.T, h)
		for range 2 {
			_, err := a.Acquire(ctx, 1)
			coordtest.WantErr(w.T, err, coord.ErrLimit)
		}
	})
}

// The read of a directory is denied while the directory is missing, so the client takes it for
// one that is there and makes no part of a recipe in it. It asks at intervals until its
// context ends.
func TestSemaphore_AMissingDirectoryThatMayNotBeReadIsAskedForAtIntervals(t *testing.T) {
	for name, use := range map[string]func(ctx context.Context, c *coord.Client) error{
		"semaphore": func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewSemaphore(c, "/s", 2, nil).Acquire(ctx, 1)
			return err
		},
		"limit": func(ctx context.Context, c *coord.Client) error {
			return coord.NewSemaphore(c, "/s", 2, nil).SetLimit(ctx, 3)
		},
		"queue": func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewQueue[string](c, "/s", nil).Put(ctx, "item")
			return err
		},
	} {
		onMemory(t, func(w *world) {
			const most = 500
			ctx, cancel := context.WithTimeout(w.T.Context(), time.Minute)
			defer cancel()
			var calls atomic.Int32
			c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, call backendtest.Call) error {
				if calls.Add(1) > most {
					cancel()
				}
				if call.Op == "get" && call.Path == "/s" {
					return backend.ErrDenied
				}
				return nil
			}})
			if err := use(ctx, c); !errors.Is(err, context.DeadlineExceeded) || calls.Load() > most {
				w.T.Errorf("%s: %v after %d calls", name, err, calls.Load())
			}
		})
	}
}
