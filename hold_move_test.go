package coord_test

import (
	"context"
	"errors"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// moving is a downgrade whose reply is held back.
type moving struct {
	let  chan struct{} // close it to let the reply go
	done chan error
}

// move starts a downgrade of h and returns when it was applied.
func move(rw *coord.RWMutex, h *coord.Hold, after *nth) moving {
	m := moving{make(chan struct{}), make(chan error, 1)}
	applied := make(chan struct{})
	after.arm(1, creates, func(_ context.Context, _ backendtest.Call, err error) error {
		close(applied)
		<-m.let
		return err
	})
	go func() { m.done <- rw.Downgrade(context.Background(), h) }()
	<-applied
	return m
}

// A hold that moves to another node stands on neither of them for sure until the
// downgrade has its reply.
func TestVerifyDuringADowngradeIsBoundedByItsContext(t *testing.T) {
	for _, name := range []string{"that was under way", "that begins meanwhile"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var before, after nth
				rw := coord.NewRWMutex(w.open("a", &backendtest.Hooks{Before: before.before, After: after.after}), "/rw", nil)
				h, err := rw.Lock(context.Background())
				h = must(w.t, h, err)
				verifying := func(ctx context.Context) <-chan error {
					done := make(chan error, 1)
					go func() { done <- h.Verify(ctx) }()
					return done
				}
				ctx, cancel := context.WithCancelCause(context.Background())
				var m moving
				var given, patient <-chan error
				if name == "that was under way" {
					m = move(rw, h, &after)
					given, patient = verifying(ctx), verifying(context.Background())
				} else {
					asks := w.stop(&before, func(c backendtest.Call) bool { return c.Op == "exists" })
					given = verifying(ctx)
					<-asks.reached
					m = move(rw, h, &after)
					close(asks.open) // the writer's node is gone
					patient = verifying(context.Background())
				}
				w.settle() // both wait for the reply
				reason := errors.New("no time")
				cancel(reason)
				w.settle()
				select {
				case err := <-given:
					wantErr(w.t, err, context.Canceled, reason)
				default:
					w.t.Error("Verify did not return when its ctx ended")
				}
				select {
				case err := <-patient:
					w.t.Errorf("Verify returned %v before anybody knew", err)
				default:
				}
				close(m.let)
				if err := <-m.done; err != nil {
					w.t.Error(err)
				}
				if err := <-patient; err != nil {
					w.t.Error(err)
				}
				if err := h.Err(); err != nil {
					w.t.Error(err)
				}
				mustRelease(w.t, h)
				w.empty("/rw")
			})
		})
	}
}

// The node that Verify has asked for went with a downgrade, and the new one with
// somebody else.
func TestVerifyAsksForTheNodeThatTheHoldHasMovedTo(t *testing.T) {
	onMemory(t, func(w *world) {
		var before nth
		rw := coord.NewRWMutex(w.open("a", &backendtest.Hooks{Before: before.before}), "/rw", nil)
		h, err := rw.Lock(context.Background())
		h = must(w.t, h, err)
		before.arm(1, func(c backendtest.Call) bool { return c.Op == "exists" }, func(context.Context, backendtest.Call, error) error {
			if err := rw.Downgrade(context.Background(), h); err != nil {
				w.t.Error(err)
			}
			_, err := w.session("x").Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion))
			return err
		})
		wantErr(w.t, h.Verify(context.Background()), coord.ErrLost, coord.ErrDeleted)
	})
}

func TestADowngradeThatLosesItsSessionSaysThatTheHoldIsLost(t *testing.T) {
	onMemory(t, func(w *world) {
		var before nth
		rw := coord.NewRWMutex(w.open("a", &backendtest.Hooks{Before: before.before}), "/rw", nil)
		h, err := rw.Lock(context.Background())
		h = must(w.t, h, err)
		before.arm(1, creates, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Expire(h.Session())
			return nil
		})
		wantErr(w.t, rw.Downgrade(context.Background(), h), coord.ErrLost, coord.ErrSessionLost)
		w.empty("/rw")
	})
}

// A term that never stood is a hold without a session, and its context is one like
// any other.
func TestALockUnderTheContextOfATermThatNeverStood(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", nil)
		term := <-coord.NewElection(c, "no path", nil).Leadership(context.Background())
		wantErr(w.t, term.Err(), coord.ErrBadPath)
		ctx := term.Context(context.Background())
		rw := coord.NewRWMutex(c, "/rw", nil)
		_, err := rw.Lock(ctx)
		wantErr(w.t, err, context.Canceled, coord.ErrBadPath)
		h, err := rw.Lock(context.WithoutCancel(ctx)) // to clean up, say
		mustRelease(w.t, must(w.t, h, err))
	})
}
