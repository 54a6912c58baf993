package recipetest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// pitfallCreateTests are tests of Mutex on each service.
type pitfallCreateTests struct{ Services }

// In ZooKeeper's own recipes a retry after a lost reply created a second node, and the first
// blocked all contenders.
func (on pitfallCreateTests) ALostCreateReplyLeavesExactlyOneChild(t *testing.T) {
	on.each(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		coordtest.Prime(w.T, m)
		w.Link("a").DropNextReply()
		h := coordtest.MustLock(w.T, m)
		if names := w.Children("/l"); len(names) != 1 {
			w.T.Errorf("children %v, want one", names)
		}
		coordtest.MustRelease(w.T, h)
		w.Empty("/l")
	})
}

func (on pitfallCreateTests) ALostCreateRequestLeavesExactlyOneChild(t *testing.T) {
	on.each(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		coordtest.Prime(w.T, m)
		w.Link("a").DropNextRequest()
		h := coordtest.MustLock(w.T, m)
		if names := w.Children("/l"); len(names) != 1 {
			w.T.Errorf("children %v, want one", names)
		}
		coordtest.MustRelease(w.T, h)
		w.Empty("/l")
	})
}

// Curator-45, Curator-79 and go-zookeeper left a node behind in a live session.
func (on pitfallCreateTests) ACallerThatGivesUpAfterALostReplyLeavesNoNode(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{After: after.After}), "/l", nil)
		coordtest.Prime(w.T, m)
		ctx, cancel := context.WithCancel(context.Background())
		after.Arm(1, coordtest.Creates, func(ctx context.Context, c backendtest.Call, err error) error {
			if err != nil {
				w.T.Errorf("create: %v", err)
			}
			cancel()
			return backend.Uncertain(ctx.Err())
		})
		_, err := m.Lock(ctx)
		coordtest.WantErr(w.T, err, context.Canceled)
		w.Empty("/l")
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/l", nil)))
	})
}

// Curator-498: the node that the GUID finds belongs to the session that dies.
func (on pitfallCreateTests) ANodeOfALostSessionIsNotAdopted(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{After: after.After}), "/l", nil)
		coordtest.Prime(w.T, m)
		var dead int64
		after.Arm(1, coordtest.Creates, func(_ context.Context, c backendtest.Call, err error) error {
			dead = c.Session.ID()
			w.Link("a").Expire(dead)
			return backend.ErrUncertain
		})
		h := coordtest.MustLock(w.T, m)
		if h.Session() == dead {
			w.T.Errorf("the hold belongs to the dead session")
		}
		if err := h.Verify(context.Background()); err != nil {
			w.T.Error(err)
		}
		if names := w.Children("/l"); len(names) != 1 {
			w.T.Errorf("children %v, want one", names)
		}
		coordtest.MustRelease(w.T, h)
	})
}

// A follower that lags does not show the created node, so a Sync comes before the list.
func (on pitfallCreateTests) ALaggingReplicaDoesNotHideTheNodeThatWasMade(t *testing.T) {
	on.each(t, func(w *world) {
		var stale atomic.Bool
		var after coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				if c.Op == "sync" {
					stale.Store(false)
				}
				return nil
			},
			After: after.After,
			Names: func(_ backendtest.Call, names []string) []string {
				if stale.Load() {
					return nil
				}
				return names
			},
		}), "/l", nil)
		coordtest.Prime(w.T, m)
		after.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
			stale.Store(true)
			return backend.ErrUncertain
		})
		h := coordtest.MustLock(w.T, m)
		if names := w.Children("/l"); len(names) != 1 {
			w.T.Errorf("children %v, want one", names)
		}
		coordtest.MustRelease(w.T, h)
	})
}

// Curator-205, Curator-462, kazoo 429 and 732: the clean-up failed, or was cancelled with its
// caller.
func (on pitfallCreateTests) ACleanUpThatFailsIsTriedAgain(t *testing.T) {
	for name, failure := range map[string]error{
		"request lost": backend.ErrUncertain,
		"refused":      backend.ErrDenied,
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				holder := coordtest.MustLock(w.T, coord.NewMutex(w.Open("holder", nil), "/l", nil))
				var before coordtest.Nth
				m := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/l", nil)
				ctx, cancel := context.WithCancel(context.Background())
				waiter := w.Lock(ctx, m)
				w.Eventually("the waiter is in the queue", func() bool { return len(w.Children("/l")) == 2 })
				failed := make(chan struct{})
				before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
					close(failed)
					return failure
				})
				cancel()
				<-waiter.Done
				coordtest.WantErr(w.T, waiter.Err, context.Canceled)
				<-failed
				w.Eventually("only the holder is left", func() bool { return len(w.Children("/l")) == 1 })
				coordtest.MustRelease(w.T, holder)
				w.Empty("/l")
			})
		})
	}
}

// Curator-486, Curator-678: the release failed and the local state was
// forgotten.
func (on pitfallCreateTests) AReleaseThatMeetsAFaultReleases(t *testing.T) {
	for name, fault := range map[string]func(backendtest.Link){
		"request lost": backendtest.Link.DropNextRequest,
		"reply lost":   backendtest.Link.DropNextReply,
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				m := coord.NewMutex(w.Open("a", nil), "/l", nil)
				coordtest.Prime(w.T, m)
				for range 3 {
					h := coordtest.MustLock(w.T, m)
					fault(w.Link("a"))
					mayBeReleased(w.T, h)
				}
				w.Empty("/l")
				coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/l", nil)))
			})
		})
	}
}

// etcd 22082: a retried unlock deleted a newer lock of the same name.
func (on pitfallCreateTests) ARetriedReleaseDoesNotTouchALaterHold(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{After: after.After}), "/l", nil)
		old := coordtest.MustLock(w.T, m)
		held, let := make(chan struct{}), make(chan struct{})
		after.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			close(held)
			<-let
			return backend.ErrUncertain // applied, and the reply lost
		})
		released := make(chan error)
		go func() { released <- old.Release() }()
		<-held
		// The lock is free, and another client takes it before the old holder
		// tries to release once more.
		next := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/l", nil))
		close(let)
		coordtest.WantErr(w.T, <-released, coord.ErrUncertain) // after two attempts
		coordtest.WantErr(w.T, old.Release(), coord.ErrUncertain)
		if err := next.Verify(context.Background()); err != nil {
			w.T.Errorf("the later hold: %v", err)
		}
		coordtest.MustRelease(w.T, next)
		w.Empty("/l")
	})
}

// Curator-3, Curator-18, Curator-297: closed while a create is under way.
func (on pitfallCreateTests) CloseDuringACreateLeavesNoNode(t *testing.T) {
	for _, name := range []string{"request held", "reply held"} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				var x coordtest.Nth
				hooks := &backendtest.Hooks{Before: x.Before}
				if name == "reply held" {
					hooks = &backendtest.Hooks{After: x.After}
				}
				c := w.Open("a", hooks)
				m := coord.NewMutex(c, "/l", nil)
				coordtest.Prime(w.T, m)
				held, let := make(chan struct{}), make(chan struct{})
				x.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
					close(held)
					<-let
					return err
				})
				waiter := w.Lock(context.Background(), m)
				<-held
				if err := c.Close(); err != nil {
					w.T.Error(err)
				}
				close(let)
				<-waiter.Done
				coordtest.WantErr(w.T, waiter.Err, coord.ErrClosed)
				w.Empty("/l")
			})
		})
	}
}

// ZooKeeper's own WriteLock, which prefixes nodes with the session id, and etcd 11364: two
// locks of one session took each other's node for their own.
func (on pitfallCreateTests) TwoCallersOfOneSessionNeverShareANode(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: after.After})
		first, second := coord.NewMutex(c, "/l", nil), coord.NewMutex(c, "/l", nil)
		coordtest.Prime(w.T, first)
		after.Arm(1, coordtest.Creates, coordtest.Lose)
		h := coordtest.MustLock(w.T, first)
		if _, err := second.TryLock(context.Background()); !errors.Is(err, coord.ErrLocked) {
			w.T.Errorf("TryLock: %v, want ErrLocked", err)
		}
		waiter := w.Waiting(context.Background(), second)
		after.Arm(1, coordtest.Creates, coordtest.Lose) // the hand-over
		coordtest.WantErr(w.T, h.Release(), coord.ErrUncertain)
		h2 := waiter.Hold()
		if h2.Path() == h.Path() || h2.Token() <= h.Token() {
			w.T.Errorf("second hold %s token %d after %s token %d", h2.Path(), h2.Token(), h.Path(), h.Token())
		}
		coordtest.MustRelease(w.T, h2)
		w.Empty("/l")
	})
}

// Found during the design: the fast create rewrites the data of the directory, and would erase
// what others stored there.
func (on pitfallCreateTests) ADirectoryWithDataKeepsIt(t *testing.T) {
	on.each(t, func(w *world) {
		s := w.Session("x")
		w.Used("/l")
		if _, err := s.Commit(context.Background(), backend.SetData(w.Path("/l"), []byte("foreign"), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		if !w.countsChildren("/l") {
			// Nothing but a child shows that the node is a directory and not a Value.
			_, err := m.Lock(context.Background())
			wantKind(w.T, err, w.Path("/l"), "mutex", "value")
			w.commit(backend.Create(w.Path("/l/note"), nil, backend.Persistent))
		}
		first := coordtest.MustLock(w.T, m)
		local := w.Waiting(context.Background(), m)
		outside := w.Waiting(context.Background(), coord.NewMutex(w.Open("b", nil), "/l", nil))
		coordtest.MustRelease(w.T, first)
		second := outside.Hold()
		coordtest.MustRelease(w.T, second)
		third := local.Hold()
		if !(first.Token() > 0 && first.Token() < second.Token() && second.Token() < third.Token()) {
			w.T.Errorf("tokens %d, %d, %d", first.Token(), second.Token(), third.Token())
		}
		coordtest.MustRelease(w.T, third)
		data, _, err := s.Get(context.Background(), w.Path("/l"), nil)
		if err != nil || string(data) != "foreign" {
			w.T.Errorf("the directory's data is %q, %v", data, err)
		}
	})
}

// The directory is reaped, and an outsider creates a value in its place.
func (on pitfallCreateTests) ADirectoryThatWasCreatedAgainWithDataKeepsIt(t *testing.T) {
	on.each(t, func(w *world) {
		var before coordtest.Nth
		s := w.Session("x")
		ctx := context.Background()
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/l", nil)
		coordtest.Prime(w.T, m)
		if _, err := s.Commit(ctx, backend.Delete(w.Path("/l"), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		directory := func(c backendtest.Call) bool { return coordtest.Creates(c) && c.Ops[0].Path == w.Path("/l") }
		before.Arm(1, directory, func(context.Context, backendtest.Call, error) error {
			_, err := s.Commit(ctx, backend.Create(w.Path("/l"), []byte("foreign"), backend.Persistent))
			return err
		})
		_, err := m.Lock(ctx)
		wantKind(w.T, err, w.Path("/l"), "mutex", "value")
		data, _, err := s.Get(ctx, w.Path("/l"), nil)
		if err != nil || string(data) != "foreign" {
			w.T.Errorf("the directory's data is %q, %v", data, err)
		}
	})
}
