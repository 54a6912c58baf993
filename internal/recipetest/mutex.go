package recipetest

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
)

// mayBeReleased releases a hold, and accepts that the outcome is uncertain, but no loss.
func mayBeReleased(t *testing.T, h *coord.Hold) {
	t.Helper()
	if err := h.Release(); err != nil && (!errors.Is(err, coord.ErrUncertain) || errors.Is(err, coord.ErrLost)) {
		t.Fatal(err)
	}
}

// mutexTests are tests of Mutex on each service.
type mutexTests struct{ Services }

func (on mutexTests) TryLockReturnsWhenItsContextEnds(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{After: after.After}), "/l", nil)
		// After a successful try the next one creates its node without looking first.
		h, err := m.TryLock(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, h)
		holder := coordtest.MustLock(w.T, coord.NewMutex(w.Open("holder", nil), "/l", nil))
		after.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
			w.Link("a").Partition()
			return err
		})
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err = m.TryLock(ctx)
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		if d := time.Since(start); w.Fake && d > time.Second {
			w.T.Errorf("took %v", d)
		}
		w.Link("a").Heal()
		w.Eventually("only the holder is left", func() bool { return len(w.Children("/l")) == 1 })
		coordtest.MustRelease(w.T, holder)
	})
}

// A hand-over between callers of one client costs one request if no other client contends.
func (on mutexTests) ALocalHandOverCostsOneRequest(t *testing.T) {
	on.each(t, func(w *world) {
		var calls atomic.Int32
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
			calls.Add(1)
			return nil
		}}), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		for range 5 {
			next := w.Waiting(context.Background(), m)
			before := calls.Load()
			coordtest.MustRelease(w.T, h)
			last := h
			h = next.Hold()
			// On a slow machine the watch on the old node can come in between.
			if n := calls.Load() - before; n != 1 && w.Fake {
				w.T.Errorf("%d requests, want 1", n)
			}
			if h.Token() <= last.Token() {
				w.T.Errorf("token %d after %d", h.Token(), last.Token())
			}
			if err := h.Verify(context.Background()); err != nil {
				w.T.Error(err)
			}
		}
		coordtest.MustRelease(w.T, h)
		w.Empty("/l")
	})
}

// If the ctx of a caller ends while the node for it is being created, the lock passes to the
// next caller.
func (on mutexTests) TheTurnOfACallerThatGaveUpIsPassedOn(t *testing.T) {
	for _, name := range []string{"to the next", "with no next caller", "with its outcome unknown"} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				var after coordtest.Nth
				m := coord.NewMutex(w.Open("a", &backendtest.Hooks{After: after.After}), "/l", nil)
				h := coordtest.MustLock(w.T, m)
				ctx, cancel := context.WithCancel(context.Background())
				gone := w.Waiting(ctx, m)
				var next *coordtest.Locking
				if name != "with no next caller" {
					next = w.Waiting(context.Background(), m)
				}
				after.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
					cancel()
					<-gone.Done
					if name == "with its outcome unknown" {
						return backend.ErrUncertain
					}
					return err
				})
				mayBeReleased(w.T, h)
				coordtest.WantErr(w.T, gone.Err, context.Canceled)
				if next != nil {
					coordtest.MustRelease(w.T, next.Hold())
				}
				w.Empty("/l")
				coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
			})
		})
	}
}

// The outcome of a hand-over is unknown, and the client loses its session meanwhile. The
// created node belongs to a session that still exists at the service, and the next caller must
// not adopt it.
func (on mutexTests) ANodeMadeInALostSessionIsNotTakenOver(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{After: after.After}), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		waiter := w.Waiting(context.Background(), m)
		after.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			return backend.ErrUncertain
		})
		released := make(chan error)
		go func() { released <- h.Release() }()
		coordtest.WantErr(w.T, <-released, coord.ErrLost, coord.ErrUncertain) // with the session
		w.Link("a").Heal()
		next := waiter.Hold()
		if next.Session() == h.Session() {
			w.T.Error("the hold belongs to the lost session")
		}
		if err := next.Verify(context.Background()); err != nil {
			w.T.Error(err)
		}
		stat, err := w.Session("x").Exists(context.Background(), next.Path(), nil)
		if err != nil || stat.EphemeralOwner != next.Session() {
			w.T.Errorf("the node belongs to %x, the hold to %x, %v", stat.EphemeralOwner, next.Session(), err)
		}
		coordtest.MustRelease(w.T, next)
		w.Empty("/l")
	})
}

// When a client loses its session, all of its waiting callers still acquire the lock.
func (on mutexTests) LocalWaitersGoOnAfterALoss(t *testing.T) {
	on.each(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		var waiters []*coordtest.Locking
		for range 3 {
			waiters = append(waiters, w.Waiting(context.Background(), m))
		}
		w.Link("a").Expire(h.Session())
		<-h.Done()
		for _, l := range waiters {
			next := l.Hold()
			if next.Token() <= h.Token() {
				w.T.Errorf("token %d after %d", next.Token(), h.Token())
			}
			h = next
			coordtest.MustRelease(w.T, h)
		}
		w.Empty("/l")
	})
}

// If the ctx of a caller ends while the node of the earlier hold is still being removed, the
// node that may have been created for the caller is removed too.
func (on mutexTests) ANodeThatMayHaveBeenMadeIsRemovedWithItsCaller(t *testing.T) {
	on.each(t, func(w *world) {
		var look, remove, after coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{
			Before: func(ctx context.Context, c backendtest.Call) error {
				return cmp.Or(look.Before(ctx, c), remove.Before(ctx, c))
			},
			After: after.After,
		}), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		next := w.Waiting(ctx, m)
		after.Arm(1, coordtest.Creates, coordtest.Lose) // the hand-over
		look.Arm(1, func(c backendtest.Call) bool { return c.Op == "sync" }, func(context.Context, backendtest.Call, error) error {
			<-ctx.Done()
			return nil
		})
		// Then the deletion is denied twice: as part of a hand-over, and alone. The third
		// attempt, in the background, is held until the caller has given up.
		ofHold := func(c backendtest.Call) bool { return coordtest.Deletes(c) && c.Path == h.Path() }
		remove.Arm(2, ofHold, func(context.Context, backendtest.Call, error) error {
			remove.Arm(1, ofHold, func(context.Context, backendtest.Call, error) error {
				remove.Arm(1, ofHold, func(context.Context, backendtest.Call, error) error {
					cancel()
					<-next.Done
					return nil
				})
				return backend.ErrDenied
			})
			return backend.ErrDenied
		})
		coordtest.WantErr(w.T, h.Release(), coord.ErrDenied)
		<-next.Done
		coordtest.WantErr(w.T, next.Err, context.Canceled)
		w.Empty("/l")
	})
}

// Contenders and Inspect show the ID of every lock beside its Data, also while a request to
// release the lock is stored in the node.
func (on mutexTests) ContendersShowTheirID(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		for _, data := range []string{"", "more", `{"coord-contender":{"id":"another"}}`, "unlock"} {
			m := coord.NewMutex(c, "/m", &coord.MutexOptions{ID: "worker-7", Data: []byte(data)})
			rw := coord.NewRWMutex(c, "/rw", &coord.RWMutexOptions{ID: "worker-7", Data: []byte(data)})
			s := coord.NewSemaphore(c, "/s", 1, &coord.SemaphoreOptions{ID: "worker-7", Data: []byte(data)})
			for path, l := range map[string]coord.Locker{"/m": m, "/rw": rw, "/s": s.Locker(1)} {
				h, err := l.Lock(ctx)
				if err != nil {
					w.T.Fatal(path, err)
				}
				var asked <-chan error
				if path == "/m" {
					asked = revoking(m.Revoke, nil)
					<-h.Revoked()
				}
				in, err := inspect.Path(ctx, c, path, nil)
				if err != nil {
					w.T.Fatal(path, err)
				}
				var id, inspected string
				var own []byte
				switch path {
				case "/m":
					list, err := m.Contenders(ctx)
					if err != nil || len(list) != 1 {
						w.T.Fatal(list, err)
					}
					id, own, inspected = list[0].ID, list[0].Data, in.Mutex.Contenders[0].ID
				case "/rw":
					list, err := rw.Contenders(ctx)
					if err != nil || len(list) != 1 {
						w.T.Fatal(list, err)
					}
					id, own, inspected = list[0].ID, list[0].Data, in.RWMutex.Contenders[0].ID
				case "/s":
					list, err := s.Contenders(ctx)
					if err != nil || len(list) != 1 {
						w.T.Fatal(list, err)
					}
					id, own, inspected = list[0].ID, list[0].Data, in.Semaphore.Requests[0].ID
				}
				if id != "worker-7" || string(own) != data || inspected != "worker-7" {
					w.T.Errorf("%s: Contenders %q with %q, Inspect %q, want worker-7 with %q", path, id, own, inspected, data)
				}
				if !strings.Contains(in.String(), `"worker-7"`) {
					w.T.Errorf("%s: Inspect does not print the ID:\n%s", path, in)
				}
				if err := h.Release(); err != nil {
					w.T.Error(path, err)
				}
				if asked != nil {
					if err := <-asked; err != nil {
						w.T.Error(path, err)
					}
				}
			}
		}
	})
}

// Without an ID, Data is stored as it is, so that earlier versions and other libraries can read
// it.
func (on mutexTests) DataWithoutAnIDIsStoredAsItIs(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		for _, data := range []string{"", "plain", `{"coord-contender":{"id":"forged"}}`} {
			m := coord.NewMutex(c, "/m", &coord.MutexOptions{Data: []byte(data)})
			h := coordtest.MustLock(w.T, m)
			list, err := m.Contenders(ctx)
			if err != nil || len(list) != 1 || list[0].ID != "" || string(list[0].Data) != data {
				w.T.Errorf("%q: %+v, %v", data, list, err)
			}
			if !strings.HasPrefix(data, "{") {
				raw, _, err := w.Session("x").Get(ctx, h.Path(), nil)
				if err != nil || string(raw) != data {
					w.T.Errorf("%q is stored as %q, %v", data, raw, err)
				}
			}
			h.Release()
		}
	})
}
