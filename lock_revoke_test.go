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
)

// revoking starts a Revoke and returns its result when it comes.
func revoking(f func(context.Context, *coord.RevokeOptions) error, o *coord.RevokeOptions) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f(context.Background(), o) }()
	return done
}

func TestAHolderThatIsAskedConsentsByRelease(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.open("a", nil), "/l", &coord.MutexOptions{Data: []byte("mine")})
		h := mustLock(w.t, m)
		other := coord.NewMutex(w.open("b", nil), "/l", nil)
		if _, ok := h.Revocation(); ok {
			w.t.Error("asked before anybody asked")
		}
		done := revoking(other.Revoke, &coord.RevokeOptions{By: "node-b", Reason: "maintenance"})
		<-h.Revoked()
		r, ok := h.Revocation()
		if !ok || r.By != "node-b" || r.Reason != "maintenance" || r.Force || r.At.IsZero() {
			w.t.Errorf("revocation %+v, %v", r, ok)
		}
		if h.Err() != nil {
			w.t.Error("asking ended the hold")
		}
		if list, err := m.Contenders(context.Background()); err != nil || len(list) != 1 || string(list[0].Data) != "mine" {
			w.t.Errorf("the holder's own data is lost: %+v, %v", list, err)
		}
		select {
		case err := <-done:
			w.t.Fatalf("Revoke returned %v before the release", err)
		default:
		}
		mustRelease(w.t, h)
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		// The request was bound to that holder.
		next := mustLock(w.t, m)
		time.Sleep(50 * time.Millisecond)
		if _, ok := next.Revocation(); ok {
			w.t.Error("the request reached the successor")
		}
		mustRelease(w.t, next)
	})
}

func TestAWaiterThatWasAskedLearnsOfItWhenItIsGranted(t *testing.T) {
	onEach(t, func(w *world) {
		first := mustLock(w.t, coord.NewMutex(w.open("a", nil), "/l", nil))
		m := coord.NewMutex(w.open("b", nil), "/l", nil)
		waiter := w.waiting(context.Background(), m)
		list, err := m.Contenders(context.Background())
		if err != nil || len(list) != 2 {
			w.t.Fatal(list, err)
		}
		if _, err := w.session("x").Commit(context.Background(), backend.SetData(list[1].Path, []byte("unlock"), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, first)
		h := waiter.hold()
		<-h.Revoked()
		mustRelease(w.t, h)
	})
}

// The request can come when the node is made, and before it is watched.
func TestAWaiterThatWasAskedBeforeItWatchedLearnsOfIt(t *testing.T) {
	onEach(t, func(w *world) {
		first := mustLock(w.t, coord.NewMutex(w.open("a", nil), "/l", nil))
		var before nth
		m := coord.NewMutex(w.open("b", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			return before.after(ctx, c, nil)
		}}), "/l", nil)
		before.arm(1, w.armed, func(context.Context, backendtest.Call, error) error {
			for _, name := range w.children("/l") {
				if path := w.path("/l/" + name); path != first.Path() {
					_, err := w.session("x").Commit(context.Background(), backend.SetData(path, []byte("unlock"), backend.AnyVersion))
					return err
				}
			}
			return errors.New("no waiter")
		})
		waiter := w.waiting(context.Background(), m)
		mustRelease(w.t, first)
		h := waiter.hold()
		<-h.Revoked()
		mustRelease(w.t, h)
	})
}

func TestForceTakesTheLockAway(t *testing.T) {
	onEach(t, func(w *world) {
		w.resource("/r")
		h := mustLock(w.t, coord.NewMutex(w.open("a", nil), "/l", nil))
		m := coord.NewMutex(w.open("b", nil), "/l", nil)
		waiter := w.waiting(context.Background(), m)
		start := time.Now()
		if err := m.Revoke(context.Background(), &coord.RevokeOptions{By: "ops", Reason: "stuck", ForceAfter: 200 * time.Millisecond}); err != nil {
			w.t.Fatal(err)
		}
		if d := time.Since(start); d < 200*time.Millisecond {
			w.t.Errorf("forced after %v", d)
		}
		<-h.Done()
		wantErr(w.t, h.Err(), coord.ErrLost, coord.ErrRevoked)
		if !strings.Contains(h.Err().Error(), "ops") || !strings.Contains(h.Err().Error(), "stuck") {
			w.t.Errorf("%v does not say who and why", h.Err())
		}
		wantErr(w.t, w.guarded(h, "/r", "late"), coord.ErrNotFound)
		next := waiter.hold()
		if next.Token() <= h.Token() {
			w.t.Errorf("token %d after %d", next.Token(), h.Token())
		}
		if _, ok := next.Revocation(); ok {
			w.t.Error("the request reached the successor")
		}
		wantErr(w.t, h.Release(), coord.ErrRevoked)
		mustRelease(w.t, next)
		w.empty("/l")
	})
}

// What was written to the holder's node meanwhile is looked at again; a successor
// is never hit.
func TestForceNeverHitsASuccessor(t *testing.T) {
	onEach(t, func(w *world) {
		var before nth
		h := mustLock(w.t, coord.NewMutex(w.open("a", nil), "/l", nil))
		m := coord.NewMutex(w.open("b", &backendtest.Hooks{Before: before.before}), "/l", nil)
		waiter := w.waiting(context.Background(), coord.NewMutex(w.open("c", nil), "/l", nil))
		before.arm(1, deletes, func(context.Context, backendtest.Call, error) error {
			mustRelease(w.t, h) // just before the force
			waiter.hold()
			return nil
		})
		if err := m.Revoke(context.Background(), &coord.RevokeOptions{ForceAfter: 50 * time.Millisecond}); err != nil {
			w.t.Fatal(err)
		}
		next := waiter.hold()
		if err := next.Verify(context.Background()); err != nil {
			w.t.Errorf("the successor: %v", err)
		}
		mustRelease(w.t, next)
	})
}

func TestForceMeetsDataThatChangedMeanwhile(t *testing.T) {
	onEach(t, func(w *world) {
		var before nth
		h := mustLock(w.t, coord.NewMutex(w.open("a", nil), "/l", nil))
		m := coord.NewMutex(w.open("b", &backendtest.Hooks{Before: before.before}), "/l", nil)
		before.arm(1, deletes, func(ctx context.Context, c backendtest.Call, _ error) error {
			_, err := c.Session.Commit(ctx, backend.SetData(h.Path(), []byte("other"), backend.AnyVersion))
			return err
		})
		if err := m.Revoke(context.Background(), &coord.RevokeOptions{ForceAfter: 50 * time.Millisecond}); err != nil {
			w.t.Fatal(err)
		}
		<-h.Done()
		wantErr(w.t, h.Err(), coord.ErrLost, coord.ErrDeleted)
		w.empty("/l")
	})
}

// The recipe's literal and Curator's marker.
func TestRequestsOfOthersAreUnderstood(t *testing.T) {
	for _, literal := range []string{"unlock", "__REVOKE__"} {
		t.Run(literal, func(t *testing.T) {
			onEach(t, func(w *world) {
				h := mustLock(w.t, coord.NewMutex(w.open("a", nil), "/l", nil))
				if _, err := w.session("x").Commit(context.Background(), backend.SetData(h.Path(), []byte(literal), backend.AnyVersion)); err != nil {
					w.t.Fatal(err)
				}
				<-h.Revoked()
				if r, ok := h.Revocation(); !ok || r.By != "" || r.Force {
					w.t.Errorf("revocation %+v, %v", r, ok)
				}
				mustRelease(w.t, h)
			})
		})
	}
}

func TestOtherDataIsNoRequest(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		h := mustLock(w.t, m)
		s := w.session("x")
		for _, data := range []string{"", "hello", `{"coord-revoke":`, `{"coord-revoke":null}`, `{"coord-revoke":7}`} {
			if _, err := s.Commit(context.Background(), backend.SetData(h.Path(), []byte(data), backend.AnyVersion)); err != nil {
				w.t.Fatal(err)
			}
		}
		// What comes last is understood, so all before has been read, or skipped.
		if _, err := s.Commit(context.Background(), backend.SetData(h.Path(), []byte("unlock"), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		<-h.Revoked()
		mustRelease(w.t, h)
	})
}

func TestRevokeOfAFreeLockReturnsAtOnce(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.open("a", nil)
		m := coord.NewMutex(c, "/l", nil)
		if err := m.Revoke(context.Background(), nil); err != nil { // not even a directory
			w.t.Error(err)
		}
		prime(w.t, m)
		if err := m.Revoke(context.Background(), nil); err != nil {
			w.t.Error(err)
		}
		wantErr(w.t, m.Revoke(context.Background(), &coord.RevokeOptions{ForceAfter: -1}), coord.ErrInvalid)
		wantErr(w.t, m.Revoke(context.Background(), &coord.RevokeOptions{By: "\xff"}), coord.ErrInvalid)
		wantErr(w.t, coord.NewMutex(c, "", nil).Revoke(context.Background(), nil), coord.ErrBadPath)
		_, err := coord.NewMutex(c, "/l", &coord.MutexOptions{Data: []byte("unlock")}).Lock(context.Background())
		wantErr(w.t, err, coord.ErrInvalid)
		_, err = coord.NewRWMutex(c, "/rw", &coord.RWMutexOptions{Data: []byte("__REVOKE__")}).RLock(context.Background())
		wantErr(w.t, err, coord.ErrInvalid)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		wantErr(w.t, m.Revoke(ctx, nil), context.Canceled)
	})
}

func TestRevokeOnReadersAsksAllOfThem(t *testing.T) {
	onEach(t, func(w *world) {
		rw := func(name string) *coord.RWMutex { return coord.NewRWMutex(w.open(name, nil), "/rw", nil) }
		h, err := rw("a").RLock(context.Background())
		r1 := must(w.t, h, err)
		h, err = rw("b").RLock(context.Background())
		r2 := must(w.t, h, err)
		writer := w.side(rw("c").Lock)
		behind := w.side(rw("d").RLock)
		done := revoking(rw("e").Revoke, &coord.RevokeOptions{By: "e"})
		<-r1.Revoked()
		<-r2.Revoked()
		mustRelease(w.t, r2)
		mustRelease(w.t, r1)
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		wh := writer.hold()
		if _, ok := wh.Revocation(); ok {
			w.t.Error("the waiting writer was asked too")
		}
		mustRelease(w.t, wh)
		mustRelease(w.t, behind.hold())
		w.empty("/rw")
	})
}

// A downgrade does not escape a request.
func TestRevokeFollowsAWriterThatDowngrades(t *testing.T) {
	onEach(t, func(w *world) {
		a := coord.NewRWMutex(w.open("a", nil), "/rw", nil)
		h, err := a.Lock(context.Background())
		h = must(w.t, h, err)
		done := revoking(coord.NewRWMutex(w.open("b", nil), "/rw", nil).Revoke, &coord.RevokeOptions{By: "b", ForceAfter: time.Second})
		<-h.Revoked()
		if err := a.Downgrade(context.Background(), h); err != nil {
			w.t.Fatal(err)
		}
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		<-h.Done()
		wantErr(w.t, h.Err(), coord.ErrLost, coord.ErrRevoked)
		w.empty("/rw")
	})
}

func TestAHolderWithMuchDataCanBeRevoked(t *testing.T) {
	onMemory(t, func(w *world) {
		h := mustLock(w.t, coord.NewMutex(w.open("a", nil), "/l", &coord.MutexOptions{Data: make([]byte, 900<<10)}))
		if err := coord.NewMutex(w.open("b", nil), "/l", nil).Revoke(context.Background(), &coord.RevokeOptions{ForceAfter: time.Second}); err != nil {
			w.t.Fatal(err)
		}
		<-h.Done()
		wantErr(w.t, h.Err(), coord.ErrRevoked)
	})
}

// A lock below the directory of another is another lock.
func TestALockBelowAnotherIsNotMistakenForIt(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", nil)
		outer, inner := coord.NewRWMutex(c, "/a", nil), coord.NewRWMutex(c, "/a/b", nil)
		err := inner.RLocker().Do(context.Background(), func(ctx context.Context, _ *coord.Hold) error {
			h, err := outer.TryLock(ctx)
			mustRelease(w.t, must(w.t, h, err))
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
		h, err := inner.Lock(context.Background())
		h = must(w.t, h, err)
		wantErr(w.t, outer.Downgrade(context.Background(), h), coord.ErrInvalid)
		mustRelease(w.t, h)
	})
}

func TestRevokeSurvivesALostSession(t *testing.T) {
	onEach(t, func(w *world) {
		h := mustLock(w.t, coord.NewMutex(w.open("a", nil), "/l", nil))
		c := w.open("b", nil)
		done := revoking(coord.NewMutex(c, "/l", nil).Revoke, nil)
		<-h.Revoked()
		s, err := c.Session(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		w.Link("b").Expire(s.ID())
		<-s.Done()
		mustRelease(w.t, h)
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
	})
}

// Revoke cannot list the holders, and so has asked nobody.
func TestRevokeSaysThatItFoundNoHolders(t *testing.T) {
	onMemory(t, func(w *world) {
		h := mustLock(w.t, coord.NewMutex(w.open("a", nil), "/l", nil))
		m := coord.NewMutex(w.open("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "children" {
				return backend.ErrDenied
			}
			return nil
		}}), "/l", nil)
		wantErr(w.t, m.Revoke(context.Background(), nil), coord.ErrDenied)
		mustRelease(w.t, h)
	})
}

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

// ForceAfter counts once for all of the holders, from when the last of them was asked.
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
		done := revoking(rw.Revoke, &coord.RevokeOptions{By: "b", ForceAfter: force})
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
		done := revoking(coord.NewRWMutex(w.open("b", nil), "/rw", nil).Revoke, &coord.RevokeOptions{ForceAfter: force})
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
		done = revoking(coord.NewRWMutex(w.open("c", nil), "/rw", nil).Revoke, &coord.RevokeOptions{ForceAfter: force})
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

// The clock of ForceAfter does not begin anew with a session, nor is the time over
// because of one.
func TestTheTimeToConsentGoesOnThroughALostSession(t *testing.T) {
	onMemory(t, func(w *world) {
		const force = 10 * time.Second
		holds := w.readers(1)
		c := w.open("b", nil)
		start := time.Now()
		done := revoking(coord.NewRWMutex(c, "/rw", nil).Revoke, &coord.RevokeOptions{ForceAfter: force})
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
