package coord_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// revoking starts a Revoke and returns the channel of its result.
func revoking(f func(context.Context, *coord.RevokeOptions) error, o *coord.RevokeOptions) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f(context.Background(), o) }()
	return done
}

func TestAHolderThatIsAskedConsentsByRelease(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", &coord.MutexOptions{Data: []byte("mine")})
		h := coordtest.MustLock(w.T, m)
		other := coord.NewMutex(w.Open("b", nil), "/l", nil)
		if _, ok := h.Revocation(); ok {
			w.T.Error("a revocation before any request")
		}
		done := revoking(other.Revoke, &coord.RevokeOptions{By: "node-b", Reason: "maintenance"})
		<-h.Revoked()
		r, ok := h.Revocation()
		if !ok || r.By != "node-b" || r.Reason != "maintenance" || r.Force || r.At.IsZero() {
			w.T.Errorf("revocation %+v, %v", r, ok)
		}
		if h.Err() != nil {
			w.T.Error("asking ended the hold")
		}
		if list, err := m.Contenders(context.Background()); err != nil || len(list) != 1 || string(list[0].Data) != "mine" {
			w.T.Errorf("the holder's own data is lost: %+v, %v", list, err)
		}
		select {
		case err := <-done:
			w.T.Fatalf("Revoke returned %v before the release", err)
		default:
		}
		coordtest.MustRelease(w.T, h)
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		// The request was bound to that holder.
		next := coordtest.MustLock(w.T, m)
		time.Sleep(50 * time.Millisecond)
		if _, ok := next.Revocation(); ok {
			w.T.Error("the request reached the successor")
		}
		coordtest.MustRelease(w.T, next)
	})
}

func TestAWaiterThatWasAskedLearnsOfItWhenItIsGranted(t *testing.T) {
	onEach(t, func(w *world) {
		first := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l", nil))
		m := coord.NewMutex(w.Open("b", nil), "/l", nil)
		waiter := w.Waiting(context.Background(), m)
		list, err := m.Contenders(context.Background())
		if err != nil || len(list) != 2 {
			w.T.Fatal(list, err)
		}
		if _, err := w.Session("x").Commit(context.Background(), backend.SetData(list[1].Path, []byte("unlock"), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, first)
		h := waiter.Hold()
		<-h.Revoked()
		coordtest.MustRelease(w.T, h)
	})
}

// The request can arrive after the node is created and before it is watched.
func TestAWaiterThatWasAskedBeforeItWatchedLearnsOfIt(t *testing.T) {
	onEach(t, func(w *world) {
		first := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l", nil))
		var before coordtest.Nth
		m := coord.NewMutex(w.Open("b", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			return before.After(ctx, c, nil)
		}}), "/l", nil)
		before.Arm(1, w.armed, func(context.Context, backendtest.Call, error) error {
			for _, name := range w.Children("/l") {
				if path := w.Path("/l/" + name); path != first.Path() {
					_, err := w.Session("x").Commit(context.Background(), backend.SetData(path, []byte("unlock"), backend.AnyVersion))
					return err
				}
			}
			return errors.New("no waiter")
		})
		waiter := w.Waiting(context.Background(), m)
		coordtest.MustRelease(w.T, first)
		h := waiter.Hold()
		<-h.Revoked()
		coordtest.MustRelease(w.T, h)
	})
}

func TestForceTakesTheLockAway(t *testing.T) {
	onEach(t, func(w *world) {
		w.resource("/r")
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l", nil))
		m := coord.NewMutex(w.Open("b", nil), "/l", nil)
		waiter := w.Waiting(context.Background(), m)
		force := 200 * time.Millisecond
		if !w.Fake {
			force = 3 * time.Second // on a busy machine the holder has read the request by then
		}
		start := time.Now()
		if err := m.Revoke(context.Background(), &coord.RevokeOptions{By: "ops", Reason: "stuck", ForceAfter: force}); err != nil {
			w.T.Fatal(err)
		}
		if d := time.Since(start); d < force {
			w.T.Errorf("forced after %v", d)
		}
		<-h.Done()
		coordtest.WantErr(w.T, h.Err(), coord.ErrLost, coord.ErrRevoked)
		if !strings.Contains(h.Err().Error(), "ops") || !strings.Contains(h.Err().Error(), "stuck") {
			w.T.Errorf("%v does not name the requester and the reason", h.Err())
		}
		coordtest.WantErr(w.T, w.guarded(h, "/r", "late"), coord.ErrNotFound)
		next := waiter.Hold()
		if next.Token() <= h.Token() {
			w.T.Errorf("token %d after %d", next.Token(), h.Token())
		}
		if _, ok := next.Revocation(); ok {
			w.T.Error("the request reached the successor")
		}
		coordtest.WantErr(w.T, h.Release(), coord.ErrRevoked)
		coordtest.MustRelease(w.T, next)
		w.Empty("/l")
	})
}

// The holder releases just before the forced deletion, which must not hit the successor.
func TestForceNeverHitsASuccessor(t *testing.T) {
	onEach(t, func(w *world) {
		var before coordtest.Nth
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l", nil))
		m := coord.NewMutex(w.Open("b", &backendtest.Hooks{Before: before.Before}), "/l", nil)
		waiter := w.Waiting(context.Background(), coord.NewMutex(w.Open("c", nil), "/l", nil))
		before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			coordtest.MustRelease(w.T, h) // just before the force
			waiter.Hold()
			return nil
		})
		if err := m.Revoke(context.Background(), &coord.RevokeOptions{ForceAfter: 50 * time.Millisecond}); err != nil {
			w.T.Fatal(err)
		}
		next := waiter.Hold()
		if err := next.Verify(context.Background()); err != nil {
			w.T.Errorf("the successor: %v", err)
		}
		coordtest.MustRelease(w.T, next)
	})
}

func TestForceMeetsDataThatChangedMeanwhile(t *testing.T) {
	onEach(t, func(w *world) {
		var before coordtest.Nth
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l", nil))
		m := coord.NewMutex(w.Open("b", &backendtest.Hooks{Before: before.Before}), "/l", nil)
		before.Arm(1, coordtest.Deletes, func(ctx context.Context, c backendtest.Call, _ error) error {
			_, err := c.Session.Commit(ctx, backend.SetData(h.Path(), []byte("other"), backend.AnyVersion))
			return err
		})
		if err := m.Revoke(context.Background(), &coord.RevokeOptions{ForceAfter: 50 * time.Millisecond}); err != nil {
			w.T.Fatal(err)
		}
		<-h.Done()
		coordtest.WantErr(w.T, h.Err(), coord.ErrLost, coord.ErrDeleted)
		w.Empty("/l")
	})
}

// The request texts of ZooKeeper's recipe and of Curator.
func TestRequestsOfOtherLibrariesAreUnderstood(t *testing.T) {
	for _, literal := range []string{"unlock", "__REVOKE__"} {
		t.Run(literal, func(t *testing.T) {
			onEach(t, func(w *world) {
				h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l", nil))
				if _, err := w.Session("x").Commit(context.Background(), backend.SetData(h.Path(), []byte(literal), backend.AnyVersion)); err != nil {
					w.T.Fatal(err)
				}
				<-h.Revoked()
				if r, ok := h.Revocation(); !ok || r.By != "" || r.Force {
					w.T.Errorf("revocation %+v, %v", r, ok)
				}
				coordtest.MustRelease(w.T, h)
			})
		})
	}
}

func TestOtherDataIsNoRequest(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		s := w.Session("x")
		for _, data := range []string{"", "hello", `{"coord-revoke":`, `{"coord-revoke":null}`, `{"coord-revoke":7}`} {
			if _, err := s.Commit(context.Background(), backend.SetData(h.Path(), []byte(data), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		}
		// The last write is recognized, so all earlier writes have been read or skipped.
		if _, err := s.Commit(context.Background(), backend.SetData(h.Path(), []byte("unlock"), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-h.Revoked()
		coordtest.MustRelease(w.T, h)
	})
}

func TestRevokeOfAFreeLockReturnsAtOnce(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.Open("a", nil)
		m := coord.NewMutex(c, "/l", nil)
		if err := m.Revoke(context.Background(), nil); err != nil { // not even a directory
			w.T.Error(err)
		}
		coordtest.Prime(w.T, m)
		if err := m.Revoke(context.Background(), nil); err != nil {
			w.T.Error(err)
		}
		coordtest.WantErr(w.T, m.Revoke(context.Background(), &coord.RevokeOptions{ForceAfter: -1}), coord.ErrInvalid)
		coordtest.WantErr(w.T, m.Revoke(context.Background(), &coord.RevokeOptions{By: "\xff"}), coord.ErrInvalid)
		coordtest.WantErr(w.T, coord.NewMutex(c, "", nil).Revoke(context.Background(), nil), coord.ErrBadPath)
		_, err := coord.NewMutex(c, "/l", &coord.MutexOptions{Data: []byte("unlock")}).Lock(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		_, err = coord.NewRWMutex(c, "/rw", &coord.RWMutexOptions{Data: []byte("__REVOKE__")}).RLock(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		coordtest.WantErr(w.T, m.Revoke(ctx, nil), context.Canceled)
	})
}

func TestRevokeOnReadersAsksAllOfThem(t *testing.T) {
	onEach(t, func(w *world) {
		rw := func(name string) *coord.RWMutex { return coord.NewRWMutex(w.Open(name, nil), "/rw", nil) }
		h, err := rw("a").RLock(context.Background())
		r1 := must(w.T, h, err)
		h, err = rw("b").RLock(context.Background())
		r2 := must(w.T, h, err)
		writer := w.side(rw("c").Lock)
		behind := w.side(rw("d").RLock)
		done := revoking(rw("e").Revoke, &coord.RevokeOptions{By: "e"})
		<-r1.Revoked()
		<-r2.Revoked()
		coordtest.MustRelease(w.T, r2)
		coordtest.MustRelease(w.T, r1)
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		wh := writer.Hold()
		if _, ok := wh.Revocation(); ok {
			w.T.Error("the waiting writer was asked too")
		}
		coordtest.MustRelease(w.T, wh)
		coordtest.MustRelease(w.T, behind.Hold())
		w.Empty("/rw")
	})
}

// A downgrade does not escape a request.
func TestRevokeFollowsAWriterThatDowngrades(t *testing.T) {
	onEach(t, func(w *world) {
		a := coord.NewRWMutex(w.Open("a", nil), "/rw", nil)
		h, err := a.Lock(context.Background())
		h = must(w.T, h, err)
		done := revoking(coord.NewRWMutex(w.Open("b", nil), "/rw", nil).Revoke, &coord.RevokeOptions{By: "b", ForceAfter: 5 * time.Second})
		<-h.Revoked()
		if err := a.Downgrade(context.Background(), h); err != nil {
			w.T.Fatal(err)
		}
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		<-h.Done()
		coordtest.WantErr(w.T, h.Err(), coord.ErrLost, coord.ErrRevoked)
		w.Empty("/rw")
	})
}

func TestAHolderWithMuchDataCanBeRevoked(t *testing.T) {
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
func TestALockBelowAnotherIsNotMistakenForIt(t *testing.T) {
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

func TestRevokeSurvivesALostSession(t *testing.T) {
	onEach(t, func(w *world) {
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l", nil))
		c := w.Open("b", nil)
		done := revoking(coord.NewMutex(c, "/l", nil).Revoke, nil)
		<-h.Revoked()
		s, err := c.Session(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		w.Link("b").Expire(s.ID())
		<-s.Done()
		coordtest.MustRelease(w.T, h)
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			w.T.Error(err)
		}
	})
}

// Revoke cannot list the holders, so it has asked no holder, and returns the error.
func TestRevokeReturnsAFailureToListTheHolders(t *testing.T) {
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

// readers returns n read holds of the lock at /rw, each of a client of its own.
func (w *world) readers(n int) []*coord.Hold {
	w.T.Helper()
	var holds []*coord.Hold
	for i := range n {
		h, err := coord.NewRWMutex(w.Open(fmt.Sprint("reader", i), nil), "/rw", nil).RLock(context.Background())
		holds = append(holds, must(w.T, h, err))
	}
	return holds
}

// ForceAfter runs once for all holders, from the moment when the last of them was asked.
func TestTheTimeToConsentBeginsWhenAllHaveBeenAsked(t *testing.T) {
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

func TestAHolderThatConsentsInTimeIsNotForced(t *testing.T) {
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
func TestTheTimeToConsentContinuesThroughALostSession(t *testing.T) {
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
