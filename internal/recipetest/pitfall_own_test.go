package recipetest

import (
	"context"
	"path"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A hold whose node cannot be read for a while is watched nevertheless.
func TestMutex_ARefusedWatchIsArmedLater(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/l", nil)
		coordtest.Prime(w.T, m)
		gets := func(c backendtest.Call) bool { return c.Op == "get" }
		refused := make(chan struct{})
		before.Arm(1, gets, func(context.Context, backendtest.Call, error) error {
			close(refused)
			return backend.ErrDenied
		})
		h := coordtest.MustLock(w.T, m)
		<-refused
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-h.Done()
		coordtest.WantErr(w.T, h.Err(), coord.ErrLost, coord.ErrDeleted)
	})
}

// Timers stop in suspend and fire late after a pause: the first look at the hold reports the
// loss.
func TestMutex_ALateTimerDoesNotHideALoss(t *testing.T) {
	onMemory(t, func(w *world) {
		late := &lateBackend{Backend: w.Link("a")}
		c := coordtest.Open(w.T, late, nil)
		m := coord.NewMutex(c, "/l", nil)
		h := coordtest.MustLock(w.T, m)
		ctx := h.Context(context.Background())
		late.over.Store(true)
		select {
		case <-h.Done():
		default:
			w.T.Error("Done is open after the lease has passed")
		}
		coordtest.WantErr(w.T, h.Err(), coord.ErrLost, coord.ErrSessionLost)
		coordtest.WantErr(w.T, h.Release(), coord.ErrLost)
		<-ctx.Done()
		if h.Context(context.Background()).Err() == nil {
			w.T.Error("the context of a lost hold is not done")
		}
		late.over.Store(false)
	})
}

// So does a context that is made of the hold before anything else has looked at it.
func TestMutex_AContextIsNotMadeOfALateLoss(t *testing.T) {
	onMemory(t, func(w *world) {
		late := &lateBackend{Backend: w.Link("a")}
		h := coordtest.MustLock(w.T, coord.NewMutex(coordtest.Open(w.T, late, nil), "/l", nil))
		late.over.Store(true)
		ctx := h.Context(context.Background())
		late.over.Store(false)
		coordtest.WantErr(w.T, context.Cause(ctx), coord.ErrLost, coord.ErrSessionLost)
		coordtest.WantErr(w.T, h.Release(), coord.ErrLost)
	})
}

// lateBackend has sessions whose lease can have passed although nothing has
// fired yet, as after a pause of the process.
type lateBackend struct {
	backend.Backend
	over atomic.Bool
}

func (b *lateBackend) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	return &lateSession{s, b}, err
}

type lateSession struct {
	backend.Session
	b *lateBackend
}

func (s *lateSession) Err() error {
	if s.b.over.Load() {
		return backend.ErrSessionLost
	}
	return s.Session.Err()
}

// A server that lags behind shows a waiter a queue without its node. The waiter must not create
// another one: it would leave a node that blocks all contenders behind it, the waiter included.
func TestMutex_AListWithoutTheOwnNodeCausesNoSecondNode(t *testing.T) {
	onMemory(t, func(w *world) {
		holder := coordtest.MustLock(w.T, coord.NewMutex(w.Open("holder", nil), "/l", nil))
		var lists atomic.Int32
		c := w.Open("a", &backendtest.Hooks{Names: func(c backendtest.Call, names []string) []string {
			if c.Path == "/l" && lists.Add(1) == 1 {
				return slices.DeleteFunc(names, func(name string) bool { return name != path.Base(holder.Path()) })
			}
			return names
		}})
		waiter := w.Waiting(context.Background(), coord.NewMutex(c, "/l", nil))
		if names := w.Children("/l"); len(names) != 2 || lists.Load() < 2 {
			w.T.Errorf("one waiter behind the holder, and there are %q after %d lists", names, lists.Load())
		}
		coordtest.MustRelease(w.T, holder)
		coordtest.MustRelease(w.T, waiter.Hold())
		w.Empty("/l")
	})
}
