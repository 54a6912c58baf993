package coord_test

import (
	"cmp"
	"context"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// Inside one client, with nobody outside, a cycle costs one request.
func TestALocalHandOverCostsOneRequest(t *testing.T) {
	onEach(t, func(w *world) {
		var calls atomic.Int32
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
			calls.Add(1)
			return nil
		}}), "/l", nil)
		h := mustLock(w.t, m)
		for range 5 {
			next := w.waiting(context.Background(), m)
			before := calls.Load()
			mustRelease(w.t, h)
			last := h
			h = next.hold()
			// On a slow machine the watch on the old node can come in between.
			if n := calls.Load() - before; n != 1 && w.fake {
				w.t.Errorf("%d requests, want 1", n)
			}
			if h.Token() <= last.Token() {
				w.t.Errorf("token %d after %d", h.Token(), last.Token())
			}
			if err := h.Verify(context.Background()); err != nil {
				w.t.Error(err)
			}
		}
		mustRelease(w.t, h)
		w.empty("/l")
	})
}

// A caller whose ctx ends while a node is made for it passes the turn on.
func TestATurnThatNobodyTakesIsPassedOn(t *testing.T) {
	for _, name := range []string{"to the next", "to nobody", "with its outcome unknown"} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				var after nth
				m := coord.NewMutex(w.open("a", &backendtest.Hooks{After: after.after}), "/l", nil)
				h := mustLock(w.t, m)
				ctx, cancel := context.WithCancel(context.Background())
				gone := w.waiting(ctx, m)
				var next *locking
				if name != "to nobody" {
					next = w.waiting(context.Background(), m)
				}
				after.arm(1, creates, func(_ context.Context, _ backendtest.Call, err error) error {
					cancel()
					<-gone.done
					if name == "with its outcome unknown" {
						return backend.ErrUncertain
					}
					return err
				})
				mayBeReleased(w.t, h)
				wantErr(w.t, gone.err, context.Canceled)
				if next != nil {
					mustRelease(w.t, next.hold())
				}
				w.empty("/l")
				mustRelease(w.t, mustLock(w.t, m))
			})
		})
	}
}

// A hand-over whose outcome is unknown, and whose session is lost meanwhile: the
// node that was made belongs to a session that still stands on the service, and
// the next caller must not take it for its own.
func TestANodeMadeInALostSessionIsNotTakenOver(t *testing.T) {
	onEach(t, func(w *world) {
		var after nth
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{After: after.after}), "/l", nil)
		h := mustLock(w.t, m)
		waiter := w.waiting(context.Background(), m)
		after.arm(1, creates, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			return backend.ErrUncertain
		})
		released := make(chan error)
		go func() { released <- h.Release() }()
		wantErr(w.t, <-released, coord.ErrLost, coord.ErrUncertain) // with the session
		w.Link("a").Heal()
		next := waiter.hold()
		if next.Session() == h.Session() {
			w.t.Error("the hold stands on the lost session")
		}
		if err := next.Verify(context.Background()); err != nil {
			w.t.Error(err)
		}
		stat, err := w.session("x").Exists(context.Background(), next.Path(), nil)
		if err != nil || stat.EphemeralOwner != next.Session() {
			w.t.Errorf("the node belongs to %x, the hold to %x, %v", stat.EphemeralOwner, next.Session(), err)
		}
		mustRelease(w.t, next)
		w.empty("/l")
	})
}

// Callers of one client that lose their session all go on.
func TestLocalWaitersGoOnAfterALoss(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		h := mustLock(w.t, m)
		var waiters []*locking
		for range 3 {
			waiters = append(waiters, w.waiting(context.Background(), m))
		}
		w.Link("a").Expire(h.Session())
		<-h.Done()
		for _, l := range waiters {
			next := l.hold()
			if next.Token() <= h.Token() {
				w.t.Errorf("token %d after %d", next.Token(), h.Token())
			}
			h = next
			mustRelease(w.t, h)
		}
		w.empty("/l")
	})
}

// The node of the next caller was made, nobody knows, and the session is lost
// here while the service still has it: the caller finds the node, which is not
// his any more.
func TestANodeThatALostSessionMadeForTheNextCallerIsNotAdopted(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.t
		var after nth
		c := w.open("a", &backendtest.Hooks{After: after.after})
		m := coord.NewMutex(c, "/l", nil)
		h := mustLock(t, m)
		next := w.waiting(context.Background(), m)
		after.arm(1, creates, func(_ context.Context, _ backendtest.Call, err error) error {
			w.Link("a").Partition()
			return backend.ErrUncertain // as long as the lease lasts, the release tries again
		})
		released := make(chan error)
		go func() { released <- h.Release() }()
		awaitPhase(t, c, coord.Lost)
		w.Link("a").Heal()
		<-released
		hold := next.hold()
		if hold.Session() == h.Session() {
			t.Errorf("granted on the session that was lost")
		}
		stat, err := w.session("x").Exists(t.Context(), hold.Path(), nil)
		if err != nil || stat.EphemeralOwner != hold.Session() {
			t.Errorf("the node of the hold is of session %x, the hold of %x, %v", stat.EphemeralOwner, hold.Session(), err)
		}
		mustRelease(t, hold)
	})
}

// A caller whose ctx ends, while an earlier call's node is still being removed, does not
// leave the node that may have been made for it.
func TestANodeThatMayHaveBeenMadeIsRemovedWithItsCaller(t *testing.T) {
	onEach(t, func(w *world) {
		var look, remove, after nth
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{
			Before: func(ctx context.Context, c backendtest.Call) error {
				return cmp.Or(look.before(ctx, c), remove.before(ctx, c))
			},
			After: after.after,
		}), "/l", nil)
		h := mustLock(w.t, m)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		next := w.waiting(ctx, m)
		after.arm(1, creates, lose) // the hand-over
		look.arm(1, func(c backendtest.Call) bool { return c.Op == "sync" }, func(context.Context, backendtest.Call, error) error {
			<-ctx.Done()
			return nil
		})
		// Then the deletion is refused: as part of a hand-over, and alone. In the
		// background it is held until the caller has given up.
		ofHold := func(c backendtest.Call) bool { return deletes(c) && c.Path == h.Path() }
		remove.arm(2, ofHold, func(context.Context, backendtest.Call, error) error {
			remove.arm(1, ofHold, func(context.Context, backendtest.Call, error) error {
				remove.arm(1, ofHold, func(context.Context, backendtest.Call, error) error {
					cancel()
					<-next.done
					return nil
				})
				return backend.ErrDenied
			})
			return backend.ErrDenied
		})
		wantErr(w.t, h.Release(), coord.ErrDenied)
		<-next.done
		wantErr(w.t, next.err, context.Canceled)
		w.empty("/l")
	})
}
