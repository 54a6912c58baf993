package recipetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/trace"
)

// guarded writes under a hold's guard, over a session of its own.
func (w *world) guarded(h *coord.Hold, path string, data string) error {
	w.T.Helper()
	s := w.Session("guarded")
	ops := append(h.Guard().Ops(), backend.SetData(w.Path(path), []byte(data), backend.AnyVersion))
	_, err := s.Commit(context.Background(), ops...)
	return err
}

// resource makes a plain node to write to.
func (w *world) resource(path string) {
	w.T.Helper()
	_, err := w.Session("guarded").Commit(context.Background(), backend.Create(w.Path(path), nil, backend.Persistent))
	if err != nil {
		w.T.Fatal(err)
	}
}

// pitfallOwnTests are tests of Mutex on each service.
type pitfallOwnTests struct{ Services }

// Curator-206, Curator-604; kazoo's is_acquired stays true after expiry.
func (on pitfallOwnTests) AHoldEndsWithItsSessionAndItsGuardFails(t *testing.T) {
	on.each(t, func(w *world) {
		w.resource("/r")
		a := coord.NewMutex(w.Open("a", nil), "/l", nil)
		h := coordtest.MustLock(w.T, a)
		if err := w.guarded(h, "/r", "while held"); err != nil {
			w.T.Fatalf("guarded write under a live hold: %v", err)
		}
		w.Link("a").Expire(h.Session())
		<-h.Done()
		coordtest.WantErr(w.T, h.Err(), coord.ErrLost)
		coordtest.WantErr(w.T, w.guarded(h, "/r", "late"), coord.ErrNotFound)
		next := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/l", nil))
		if next.Token() <= h.Token() {
			w.T.Errorf("token %d after %d", next.Token(), h.Token())
		}
		coordtest.WantErr(w.T, w.guarded(h, "/r", "late"), coord.ErrNotFound)
		if err := w.guarded(next, "/r", "next"); err != nil {
			w.T.Error(err)
		}
		coordtest.MustRelease(w.T, next)
	})
}

// A guarded write is refused in each way in which a hold can end.
func (on pitfallOwnTests) AGuardFailsHoweverTheHoldEnded(t *testing.T) {
	ends := map[string]func(w *world, h *coord.Hold){
		"released": func(w *world, h *coord.Hold) { coordtest.MustRelease(w.T, h) },
		"deleted by an outsider": func(w *world, h *coord.Hold) {
			if _, err := w.Session("x").Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		},
		"session expired": func(w *world, h *coord.Hold) { w.Link("a").Expire(h.Session()) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				w.resource("/r")
				m := coord.NewMutex(w.Open("a", nil), "/l", nil)
				h := coordtest.MustLock(w.T, m)
				end(w, h)
				coordtest.WantErr(w.T, w.guarded(h, "/r", "late"), coord.ErrNotFound)
				next := coordtest.MustLock(w.T, m)
				coordtest.WantErr(w.T, w.guarded(h, "/r", "late"), coord.ErrNotFound)
				coordtest.MustRelease(w.T, next)
			})
		})
	}
	t.Run("handed over inside the process", func(t *testing.T) {
		on.each(t, func(w *world) {
			w.resource("/r")
			m := coord.NewMutex(w.Open("a", nil), "/l", nil)
			h := coordtest.MustLock(w.T, m)
			waiter := w.Waiting(context.Background(), m)
			coordtest.MustRelease(w.T, h)
			next := waiter.Hold()
			coordtest.WantErr(w.T, w.guarded(h, "/r", "late"), coord.ErrNotFound)
			if err := w.guarded(next, "/r", "next"); err != nil {
				w.T.Error(err)
			}
			coordtest.MustRelease(w.T, next)
		})
	})
}

// Curator-620, -653, -696: there were two leaders, because the node of the old session was
// first in the queue after the reconnection.
func (on pitfallOwnTests) TheNodeOfALostSessionIsNotTakenForTheClientsOwn(t *testing.T) {
	on.each(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		w.Link("a").Partition()
		<-h.Done() // by the lease, before the service ends the session
		w.Link("a").Heal()
		waiter := w.Lock(context.Background(), m)
		next := waiter.Hold()
		if next.Session() == h.Session() || next.Token() <= h.Token() {
			w.T.Errorf("session %x token %d after session %x token %d", next.Session(), next.Token(), h.Session(), h.Token())
		}
		// The service removes the old node before the lock is granted again.
		if _, err := w.Session("x").Exists(context.Background(), h.Path(), nil); !errors.Is(err, coord.ErrNotFound) {
			w.T.Errorf("the old node still exists: %v", err)
		}
		coordtest.MustRelease(w.T, next)
	})
}

// etcd 19597 and 16221: a waiter whose own node was deleted waited forever.
func (on pitfallOwnTests) AWaiterWhoseNodeIsDeletedTakesANewPlace(t *testing.T) {
	on.each(t, func(w *world) {
		holder := coordtest.MustLock(w.T, coord.NewMutex(w.Open("holder", nil), "/l", nil))
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		waiter := w.Lock(context.Background(), m)
		var list []coord.Contender
		w.Eventually("the waiter is in the queue", func() bool {
			list, _ = m.Contenders(context.Background())
			return len(list) == 2
		})
		first := list[1].Path
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(first, backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		w.Eventually("the waiter is in the queue again", func() bool {
			list, _ = m.Contenders(context.Background())
			return len(list) == 2 && list[1].Path != first
		})
		waiter.Pending()
		coordtest.MustRelease(w.T, holder)
		coordtest.MustRelease(w.T, waiter.Hold())
		w.Empty("/l")
	})
}

func (on pitfallOwnTests) VerifyDetectsALossThatIsNotReportedYet(t *testing.T) {
	on.each(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		if err := h.Verify(context.Background()); err != nil {
			w.T.Error(err)
		}
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, h.Verify(context.Background()), coord.ErrLost, coord.ErrDeleted)
		<-h.Done()
	})
}

func (on pitfallOwnTests) AHoldWhoseNodeIsDeletedEnds(t *testing.T) {
	on.each(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		ctx := h.Context(context.Background())
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-ctx.Done()
		coordtest.WantErr(w.T, context.Cause(ctx), coord.ErrLost, coord.ErrDeleted)
		coordtest.WantErr(w.T, h.Release(), coord.ErrLost, coord.ErrDeleted)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
	})
}

// Curator-247, -405, -460, -561; consul closed its channel on any error.
func (on pitfallOwnTests) ABlipLosesNothing(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		states := c.WatchState(ctx)
		if st := <-states; st.Phase != coord.PhaseConnected {
			w.T.Fatalf("state %+v", st)
		}
		m := coord.NewMutex(c, "/l", nil)
		h := coordtest.MustLock(w.T, m)
		w.Link("a").Partition()
		for st := range states {
			if st.Phase == coord.PhaseSuspended {
				break
			}
		}
		w.Link("a").Heal()
		for st := range states {
			if st.Phase == coord.PhaseLost {
				w.T.Fatalf("state %+v", st)
			}
			if st.Phase == coord.PhaseConnected {
				break
			}
		}
		if err := h.Verify(context.Background()); err != nil {
			w.T.Errorf("after a blip: %v", err)
		}
		coordtest.MustRelease(w.T, h)
	})
}

func (on pitfallOwnTests) APartitionedHoldEndsBeforeAnotherIsGranted(t *testing.T) {
	on.each(t, func(w *world) {
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l", nil))
		waiter := w.Lock(context.Background(), coord.NewMutex(w.Open("b", nil), "/l", nil))
		w.Eventually("the waiter is in the queue", func() bool { return len(w.Children("/l")) == 2 })
		done := make(chan time.Time, 1)
		go func() {
			<-h.Done()
			done <- time.Now()
		}()
		p := pace.Start(w.T, nil)
		w.Link("a").Partition()
		next := waiter.Hold()
		granted := time.Now()
		p.Judge((<-done).Sub(granted), -1, "the end of the hold after the next grant")
		p.Stop()
		coordtest.WantErr(w.T, h.Err(), coord.ErrLost, coord.ErrSessionLost)
		if next.Token() <= h.Token() {
			w.T.Errorf("token %d after %d", next.Token(), h.Token())
		}
		coordtest.MustRelease(w.T, next)
	})
}

// Curator-16, -54, -73, -518, -671: an interruption hit the wrong term.
func (on pitfallOwnTests) CancelledWaitsDoNotTouchTheNextHold(t *testing.T) {
	on.each(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		holder := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/l", nil))
		for range 2 {
			ctx, cancel := context.WithCancelCause(context.Background())
			waiter := w.Lock(ctx, m)
			w.Eventually("the waiter is in the queue", func() bool { return len(w.Children("/l")) >= 2 })
			reason := errors.New("interrupted")
			cancel(reason)
			<-waiter.Done
			coordtest.WantErr(w.T, waiter.Err, context.Canceled, reason)
		}
		ctx, cancel := context.WithCancel(context.Background())
		waiter := w.Lock(ctx, m)
		coordtest.MustRelease(w.T, holder)
		h := waiter.Hold()
		cancel() // bounds the wait only
		if err := h.Verify(context.Background()); err != nil {
			w.T.Error(err)
		}
		coordtest.MustRelease(w.T, h)
		w.Empty("/l")
	})
}

// Found during the design: a token taken at a local hand-over could exceed that of a waiter of
// another client, and a fence would refuse the rightful next holder.
func (on pitfallOwnTests) AWaiterOfAnotherClientGetsAHigherTokenThanTheHolderBefore(t *testing.T) {
	on.each(t, func(w *world) {
		a := coord.NewMutex(w.Open("a", nil), "/l", nil)
		first := coordtest.MustLock(w.T, a)
		outside := w.Waiting(context.Background(), coord.NewMutex(w.Open("b", nil), "/l", nil))
		local := w.Waiting(context.Background(), a)
		coordtest.MustRelease(w.T, first)
		second := outside.Hold()
		local.Pending()
		if second.Token() <= first.Token() {
			w.T.Errorf("token %d after %d", second.Token(), first.Token())
		}
		coordtest.MustRelease(w.T, second)
		third := local.Hold()
		if third.Token() <= second.Token() {
			w.T.Errorf("token %d after %d", third.Token(), second.Token())
		}
		coordtest.MustRelease(w.T, third)
	})
}

// Found during the design: after a local loss the old connection came back and kept the old
// session alive, and the client queued behind itself forever.
func (on pitfallOwnTests) AClientDoesNotQueueBehindItsOwnLostSession(t *testing.T) {
	on.each(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		for range 2 {
			h := coordtest.MustLock(w.T, m)
			w.Link("a").Partition()
			<-h.Done()
			w.Link("a").Heal()
			p := pace.Start(w.T, nil)
			next := coordtest.MustLock(w.T, m)
			p.Within(2*w.Timeout, "the next grant")
			coordtest.MustRelease(w.T, next)
		}
	})
}

// A session lost while waiting does not end the wait.
func (on pitfallOwnTests) AWaiterThatLosesItsSessionContinuesToWait(t *testing.T) {
	on.each(t, func(w *world) {
		holder := coordtest.MustLock(w.T, coord.NewMutex(w.Open("holder", nil), "/l", nil))
		var mu sync.Mutex
		var requeued int
		c := coordtest.Open(w.T, w.Link("a"), &coord.Options{
			Namespace: w.Path(""),
			Trace: func(_ context.Context, e trace.Event) {
				if _, ok := e.(trace.WaiterRequeued); ok {
					mu.Lock()
					requeued++
					mu.Unlock()
				}
			},
		})
		m := coord.NewMutex(c, "/l", nil)
		waiter := w.Lock(context.Background(), m)
		for range 3 {
			var list []coord.Contender
			w.Eventually("the waiter is in the queue", func() bool {
				list, _ = m.Contenders(context.Background())
				return len(list) == 2
			})
			old := list[1]
			w.Link("a").Expire(old.Session)
			w.Eventually("the waiter is in the queue with another session", func() bool {
				list, _ = m.Contenders(context.Background())
				return len(list) == 2 && list[1].Session != old.Session
			})
		}
		waiter.Pending()
		coordtest.MustRelease(w.T, holder)
		h := waiter.Hold()
		if h.Token() <= holder.Token() {
			w.T.Errorf("token %d after %d", h.Token(), holder.Token())
		}
		mu.Lock()
		defer mu.Unlock()
		if requeued < 3 {
			w.T.Errorf("the trace reported %d new places, want 3", requeued)
		}
		coordtest.MustRelease(w.T, h)
	})
}
