package recipetest

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestRevoke_AHolderWithMuchDataCanBeRevoked(t *testing.T) {
	onMemory(t, func(w *world) {
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l", &coord.MutexOptions{Data: make([]byte, 900<<10)}))
		if err := coord.NewMutex(w.Open("b", nil), "/l", nil).Revoke(context.Background(), &coord.RevokeOptions{ForceAfter: time.Second}); err != nil {
			w.T.Fatal(err)
		}
		<-h.Done()
		coordtest.WantErr(w.T, h.Err(), coord.ErrRevoked)
	})
}

// A lock below the directory of another lock is a separate lock.
func TestRevoke_ALockBelowAnotherIsNotMistakenForIt(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		outer, inner := coord.NewRWMutex(c, "/a", nil), coord.NewRWMutex(c, "/a/b", nil)
		err := inner.RLocker().Do(context.Background(), func(ctx context.Context, _ *coord.Hold) error {
			h, err := outer.TryLock(ctx)
			coordtest.MustRelease(w.T, must(w.T, h, err))
			return nil
		})
		if err != nil {
			w.T.Fatal(err)
		}
		h, err := inner.Lock(context.Background())
		h = must(w.T, h, err)
		coordtest.WantErr(w.T, outer.Downgrade(context.Background(), h), coord.ErrInvalid)
		coordtest.MustRelease(w.T, h)
	})
}

// Revoke cannot list the holders, so it has asked no holder, and returns the error.
func TestRevoke_ReturnsAFailureToListTheHolders(t *testing.T) {
	onMemory(t, func(w *world) {
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l", nil))
		m := coord.NewMutex(w.Open("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "children" {
				return backend.ErrDenied
			}
			return nil
		}}), "/l", nil)
		coordtest.WantErr(w.T, m.Revoke(context.Background(), nil), coord.ErrDenied)
		coordtest.MustRelease(w.T, h)
	})
}

// ForceAfter runs once for all holders, from the moment when the last of them was asked.
func TestRevoke_TheTimeToConsentBeginsWhenAllHaveBeenAsked(t *testing.T) {
	onMemory(t, func(w *world) {
		const force, slow = 10 * time.Second, time.Minute
		var before coordtest.Nth
		holds := w.readers(3)
		rw := coord.NewRWMutex(w.Open("b", &backendtest.Hooks{Before: before.Before}), "/rw", nil)
		sets := func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpSetData) && len(c.Ops) == 1 }
		before.Arm(3, sets, func(context.Context, backendtest.Call, error) error {
			time.Sleep(slow) // of fake time: the request to the last holder is slow
			return nil
		})
		start := time.Now()
		done := revoking(rw.Revoke, &coord.RevokeOptions{By: "b", ForceAfter: force})
		<-holds[0].Revoked()
		time.Sleep(slow + force - time.Since(start) - time.Millisecond)
		w.Settle()
		for i, h := range holds {
			if err := h.Err(); err != nil {
				w.T.Errorf("holder %d was forced early: %v", i, err)
			}
		}
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		if d := time.Since(start); d != slow+force {
			w.T.Errorf("all forced after %v, want %v", d, slow+force)
		}
		for _, h := range holds {
			<-h.Done()
			coordtest.WantErr(w.T, h.Err(), coord.ErrLost, coord.ErrRevoked)
		}
		w.Empty("/rw")
	})
}

func TestRevoke_AHolderThatConsentsInTimeIsNotForced(t *testing.T) {
	onMemory(t, func(w *world) {
		const force = 10 * time.Second
		holds := w.readers(3)
		start := time.Now()
		done := revoking(coord.NewRWMutex(w.Open("b", nil), "/rw", nil).Revoke, &coord.RevokeOptions{ForceAfter: force})
		time.Sleep(force / 2)
		coordtest.MustRelease(w.T, holds[1]) // not the first that Revoke waits for
		time.Sleep(force / 4)
		coordtest.MustRelease(w.T, holds[0])
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		if d := time.Since(start); d != force {
			w.T.Errorf("the last one was forced after %v, want %v: one time for all", d, force)
		}
		coordtest.WantErr(w.T, holds[0].Err(), coord.ErrReleased)
		coordtest.WantErr(w.T, holds[1].Err(), coord.ErrReleased)
		<-holds[2].Done()
		coordtest.WantErr(w.T, holds[2].Err(), coord.ErrRevoked)

		// When all have consented, Revoke does not wait for the rest of the time.
		holds = w.readers(2)
		start = time.Now()
		done = revoking(coord.NewRWMutex(w.Open("c", nil), "/rw", nil).Revoke, &coord.RevokeOptions{ForceAfter: force})
		time.Sleep(force / 2)
		for _, h := range holds {
			coordtest.MustRelease(w.T, h)
		}
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		if d := time.Since(start); d != force/2 {
			w.T.Errorf("returned after %v, want %v", d, force/2)
		}
		w.Empty("/rw")
	})
}

// ForceAfter neither restarts with a new session of the caller nor ends with a lost one.
func TestRevoke_TheTimeToConsentContinuesThroughALostSession(t *testing.T) {
	onMemory(t, func(w *world) {
		const force = 10 * time.Second
		holds := w.readers(1)
		c := w.Open("b", nil)
		start := time.Now()
		done := revoking(coord.NewRWMutex(c, "/rw", nil).Revoke, &coord.RevokeOptions{ForceAfter: force})
		for range 3 {
			time.Sleep(force / 4)
			s, err := c.Session(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			w.Link("b").Expire(s.ID())
		}
		if err := holds[0].Err(); err != nil {
			w.T.Error(err)
		}
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		if d := time.Since(start); d < force || d > force+force/8 {
			w.T.Errorf("forced after %v, want %v", d, force)
		}
		<-holds[0].Done()
		coordtest.WantErr(w.T, holds[0].Err(), coord.ErrRevoked)
	})
}
