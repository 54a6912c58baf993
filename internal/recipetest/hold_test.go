package recipetest

import (
	"context"
	"errors"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// While a hold moves to another node, it is uncertain which of the two it has, until the
// downgrade has its reply.
func TestHold_VerifyDuringADowngradeIsBoundedByItsContext(t *testing.T) {
	for _, name := range []string{"that was under way", "that begins meanwhile"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var before, after coordtest.Nth
				rw := coord.NewRWMutex(w.Open("a", &backendtest.Hooks{Before: before.Before, After: after.After}), "/rw", nil)
				h, err := rw.Lock(context.Background())
				h = must(w.T, h, err)
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
				w.Settle() // both wait for the reply
				reason := errors.New("no time")
				cancel(reason)
				w.Settle()
				select {
				case err := <-given:
					coordtest.WantErr(w.T, err, context.Canceled, reason)
				default:
					w.T.Error("Verify did not return when its ctx ended")
				}
				select {
				case err := <-patient:
					w.T.Errorf("Verify returned %v before the outcome was known", err)
				default:
				}
				close(m.let)
				if err := <-m.done; err != nil {
					w.T.Error(err)
				}
				if err := <-patient; err != nil {
					w.T.Error(err)
				}
				if err := h.Err(); err != nil {
					w.T.Error(err)
				}
				coordtest.MustRelease(w.T, h)
				w.Empty("/rw")
			})
		})
	}
}

// The node that Verify asks for is removed by a downgrade, and the new one by an outsider.
func TestHold_VerifyAsksForTheNodeThatTheHoldHasMovedTo(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		rw := coord.NewRWMutex(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/rw", nil)
		h, err := rw.Lock(context.Background())
		h = must(w.T, h, err)
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "exists" }, func(context.Context, backendtest.Call, error) error {
			if err := rw.Downgrade(context.Background(), h); err != nil {
				w.T.Error(err)
			}
			_, err := w.Session("x").Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion))
			return err
		})
		coordtest.WantErr(w.T, h.Verify(context.Background()), coord.ErrLost, coord.ErrDeleted)
	})
}

func TestHold_ADowngradeThatLosesItsSessionReportsALostHold(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		rw := coord.NewRWMutex(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/rw", nil)
		h, err := rw.Lock(context.Background())
		h = must(w.T, h, err)
		before.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Expire(h.Session())
			return nil
		})
		coordtest.WantErr(w.T, rw.Downgrade(context.Background(), h), coord.ErrLost, coord.ErrSessionLost)
		w.Empty("/rw")
	})
}

// A term that reports a failure is a hold without a session. Its context is one like any other.
func TestHold_ALockUnderTheContextOfAFailedTerm(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		term := <-coord.NewElection(c, "no path", nil).Leadership(context.Background())
		coordtest.WantErr(w.T, term.Err(), coord.ErrBadPath)
		coordtest.WantErr(w.T, term.Announce(context.Background(), nil), coord.ErrBadPath)
		ctx := term.Context(context.Background())
		rw := coord.NewRWMutex(c, "/rw", nil)
		_, err := rw.Lock(ctx)
		coordtest.WantErr(w.T, err, context.Canceled, coord.ErrBadPath)
		h, err := rw.Lock(context.WithoutCancel(ctx)) // to clean up, say
		coordtest.MustRelease(w.T, must(w.T, h, err))
	})
}
