package recipetest

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

// lineRevokeTests are tests of Revoke on each service.
type lineRevokeTests struct{ Services }

func (on lineRevokeTests) AHolderThatIsAskedConsentsByRelease(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on lineRevokeTests) AWaiterThatWasAskedLearnsOfItWhenItIsGranted(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on lineRevokeTests) AWaiterThatWasAskedBeforeItWatchedLearnsOfIt(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on lineRevokeTests) ForceTakesTheLockAway(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on lineRevokeTests) ForceNeverHitsASuccessor(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on lineRevokeTests) ForceMeetsDataThatChangedMeanwhile(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on lineRevokeTests) RequestsOfOtherLibrariesAreUnderstood(t *testing.T) {
	for _, literal := range []string{"unlock", "__REVOKE__"} {
		t.Run(literal, func(t *testing.T) {
			on.each(t, func(w *world) {
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

func (on lineRevokeTests) OtherDataIsNoRequest(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on lineRevokeTests) OfAFreeLockReturnsAtOnce(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on lineRevokeTests) OnReadersAsksAllOfThem(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on lineRevokeTests) FollowsAWriterThatDowngrades(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on lineRevokeTests) SurvivesALostSession(t *testing.T) {
	on.each(t, func(w *world) {
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
