package coord_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// readers are n holds of the lock at /rw, each of a client of its own.
func (w *world) readers(n int) []*coord.Hold {
	w.t.Helper()
	var holds []*coord.Hold
	for i := range n {
		h, err := coord.NewRWMutex(w.open(fmt.Sprint("reader", i), nil), "/rw", nil).RLock(context.Background())
		holds = append(holds, must(w.t, h, err))
	}
	return holds
}

// Force counts once for all of the holders, from when the last of them was asked.
func TestTheTimeToConsentBeginsWhenAllHaveBeenAsked(t *testing.T) {
	onMemory(t, func(w *world) {
		const force, slow = 10 * time.Second, time.Minute
		var before nth
		holds := w.readers(3)
		rw := coord.NewRWMutex(w.open("b", &backendtest.Hooks{Before: before.before}), "/rw", nil)
		sets := func(c backendtest.Call) bool { return commits(c, backend.OpSetData) && len(c.Ops) == 1 }
		before.arm(3, sets, func(context.Context, backendtest.Call, error) error {
			time.Sleep(slow) // of fake time: the last one is hard to reach
			return nil
		})
		start := time.Now()
		done := revoking(rw.Revoke, &coord.RevokeOptions{By: "b", Force: force})
		<-holds[0].Revoked()
		time.Sleep(slow + force - time.Since(start) - time.Millisecond)
		w.settle()
		for i, h := range holds {
			if err := h.Err(); err != nil {
				w.t.Errorf("holder %d was not given the time: %v", i, err)
			}
		}
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		if d := time.Since(start); d != slow+force {
			w.t.Errorf("all forced after %v, want %v", d, slow+force)
		}
		for _, h := range holds {
			<-h.Done()
			wantErr(w.t, h.Err(), coord.ErrLost, coord.ErrRevoked)
		}
		w.empty("/rw")
	})
}

func TestWhoConsentsInTimeIsNotForced(t *testing.T) {
	onMemory(t, func(w *world) {
		const force = 10 * time.Second
		holds := w.readers(3)
		start := time.Now()
		done := revoking(coord.NewRWMutex(w.open("b", nil), "/rw", nil).Revoke, &coord.RevokeOptions{Force: force})
		time.Sleep(force / 2)
		mustRelease(w.t, holds[1]) // not the first that Revoke waits for
		time.Sleep(force / 4)
		mustRelease(w.t, holds[0])
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		if d := time.Since(start); d != force {
			w.t.Errorf("the last one was forced after %v, want %v: one time for all", d, force)
		}
		wantErr(w.t, holds[0].Err(), coord.ErrReleased)
		wantErr(w.t, holds[1].Err(), coord.ErrReleased)
		<-holds[2].Done()
		wantErr(w.t, holds[2].Err(), coord.ErrRevoked)

		// When all have consented nobody waits for the rest of the time.
		holds = w.readers(2)
		start = time.Now()
		done = revoking(coord.NewRWMutex(w.open("c", nil), "/rw", nil).Revoke, &coord.RevokeOptions{Force: force})
		time.Sleep(force / 2)
		for _, h := range holds {
			mustRelease(w.t, h)
		}
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		if d := time.Since(start); d != force/2 {
			w.t.Errorf("returned after %v, want %v", d, force/2)
		}
		w.empty("/rw")
	})
}

// The clock of Force does not begin anew with a session, nor is the time over
// because of one.
func TestTheTimeToConsentGoesOnThroughALostSession(t *testing.T) {
	onMemory(t, func(w *world) {
		const force = 10 * time.Second
		holds := w.readers(1)
		c := w.open("b", nil)
		start := time.Now()
		done := revoking(coord.NewRWMutex(c, "/rw", nil).Revoke, &coord.RevokeOptions{Force: force})
		for range 3 {
			time.Sleep(force / 4)
			s, err := c.Session(context.Background())
			if err != nil {
				w.t.Fatal(err)
			}
			w.Link("b").Expire(s.ID())
		}
		if err := holds[0].Err(); err != nil {
			w.t.Error(err)
		}
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		if d := time.Since(start); d < force || d > force+force/8 {
			w.t.Errorf("forced after %v, want %v", d, force)
		}
		<-holds[0].Done()
		wantErr(w.t, holds[0].Err(), coord.ErrRevoked)
	})
}
