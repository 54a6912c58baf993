package coord_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// A retry after a lost reply made a second node in ZooKeeper's own recipes, and
// the first blocked everybody.
func TestALostCreateReplyLeavesExactlyOneChild(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		prime(w.t, m)
		w.Link("a").DropNextReply()
		h := mustLock(w.t, m)
		if names := w.children("/l"); len(names) != 1 {
			w.t.Errorf("children %v, want one", names)
		}
		mustRelease(w.t, h)
		w.empty("/l")
	})
}

func TestALostCreateRequestLeavesExactlyOneChild(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		prime(w.t, m)
		w.Link("a").DropNextRequest()
		h := mustLock(w.t, m)
		if names := w.children("/l"); len(names) != 1 {
			w.t.Errorf("children %v, want one", names)
		}
		mustRelease(w.t, h)
		w.empty("/l")
	})
}

// A server can drop the connection for one request each time, such as one over its
// own limit. That is not repeated without a pause.
func TestARequestThatNeverGetsAnAnswerIsRepeatedWithPauses(t *testing.T) {
	onMemory(t, func(w *world) {
		var sent atomic.Int32
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if creates(c) {
				sent.Add(1)
				return backend.ErrUncertain
			}
			return nil
		}}), "/l", nil)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := m.Lock(ctx)
		wantErr(w.t, err, context.DeadlineExceeded)
		if n := sent.Load(); n < 5 || n > 50 {
			w.t.Errorf("sent %d times in ten seconds", n)
		}
	})
}

// Curator-45, Curator-79 and go-zookeeper left a node behind in a live session.
func TestACallerWhoGivesUpAfterALostReplyLeavesNoNode(t *testing.T) {
	onEach(t, func(w *world) {
		var after nth
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{After: after.after}), "/l", nil)
		prime(w.t, m)
		ctx, cancel := context.WithCancel(context.Background())
		after.arm(1, creates, func(ctx context.Context, c backendtest.Call, err error) error {
			if err != nil {
				w.t.Errorf("create: %v", err)
			}
			cancel()
			return backend.Uncertain(ctx.Err())
		})
		_, err := m.Lock(ctx)
		wantErr(w.t, err, context.Canceled)
		w.empty("/l")
		mustRelease(w.t, mustLock(w.t, coord.NewMutex(w.open("b", nil), "/l", nil)))
	})
}

// Curator-498: the node that the GUID finds belongs to the session that dies.
func TestANodeOfALostSessionIsNotAdopted(t *testing.T) {
	onEach(t, func(w *world) {
		var after nth
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{After: after.after}), "/l", nil)
		prime(w.t, m)
		var dead int64
		after.arm(1, creates, func(_ context.Context, c backendtest.Call, err error) error {
			dead = c.Session.ID()
			w.Link("a").Expire(dead)
			return backend.ErrUncertain
		})
		h := mustLock(w.t, m)
		if h.Session() == dead {
			w.t.Errorf("the hold stands on the dead session")
		}
		if err := h.Verify(context.Background()); err != nil {
			w.t.Error(err)
		}
		if names := w.children("/l"); len(names) != 1 {
			w.t.Errorf("children %v, want one", names)
		}
		mustRelease(w.t, h)
	})
}

// A follower that lags does not show the node that was made. Sync comes before
// the list.
func TestALaggingReplicaDoesNotHideTheNodeThatWasMade(t *testing.T) {
	onEach(t, func(w *world) {
		var stale atomic.Bool
		var after nth
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				if c.Op == "sync" {
					stale.Store(false)
				}
				return nil
			},
			After: after.after,
			Names: func(_ backendtest.Call, names []string) []string {
				if stale.Load() {
					return nil
				}
				return names
			},
		}), "/l", nil)
		prime(w.t, m)
		after.arm(1, creates, func(context.Context, backendtest.Call, error) error {
			stale.Store(true)
			return backend.ErrUncertain
		})
		h := mustLock(w.t, m)
		if names := w.children("/l"); len(names) != 1 {
			w.t.Errorf("children %v, want one", names)
		}
		mustRelease(w.t, h)
	})
}

// Curator-205, Curator-462, kazoo 429 and 732: the clean-up failed, or was
// cancelled with its caller.
func TestACleanUpThatFailsIsTriedAgain(t *testing.T) {
	for name, failure := range map[string]error{
		"request lost": backend.ErrUncertain,
		"refused":      backend.ErrDenied,
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				holder := mustLock(w.t, coord.NewMutex(w.open("holder", nil), "/l", nil))
				var before nth
				m := coord.NewMutex(w.open("a", &backendtest.Hooks{Before: before.before}), "/l", nil)
				ctx, cancel := context.WithCancel(context.Background())
				waiter := w.lock(ctx, m)
				w.eventually("the waiter stands in line", func() bool { return len(w.children("/l")) == 2 })
				failed := make(chan struct{})
				before.arm(1, deletes, func(context.Context, backendtest.Call, error) error {
					close(failed)
					return failure
				})
				cancel()
				<-waiter.done
				wantErr(w.t, waiter.err, context.Canceled)
				<-failed
				w.eventually("only the holder is left", func() bool { return len(w.children("/l")) == 1 })
				mustRelease(w.t, holder)
				w.empty("/l")
			})
		})
	}
}

// Curator-486, Curator-678: the release failed and the local state was
// forgotten.
func TestAReleaseThatMeetsAFaultReleases(t *testing.T) {
	for name, fault := range map[string]func(backendtest.Link){
		"request lost": backendtest.Link.DropNextRequest,
		"reply lost":   backendtest.Link.DropNextReply,
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				m := coord.NewMutex(w.open("a", nil), "/l", nil)
				prime(w.t, m)
				for range 3 {
					h := mustLock(w.t, m)
					fault(w.Link("a"))
					mayBeReleased(w.t, h)
				}
				w.empty("/l")
				mustRelease(w.t, mustLock(w.t, coord.NewMutex(w.open("b", nil), "/l", nil)))
			})
		})
	}
}

// etcd 22082: a retried unlock deleted a newer lock of the same name.
func TestARetriedReleaseDoesNotTouchALaterHold(t *testing.T) {
	onEach(t, func(w *world) {
		var after nth
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{After: after.after}), "/l", nil)
		old := mustLock(w.t, m)
		held, let := make(chan struct{}), make(chan struct{})
		after.arm(1, deletes, func(context.Context, backendtest.Call, error) error {
			close(held)
			<-let
			return backend.ErrUncertain // applied, and the reply lost
		})
		released := make(chan error)
		go func() { released <- old.Release() }()
		<-held
		// The lock is free, and another client takes it before the old holder
		// tries to release once more.
		next := mustLock(w.t, coord.NewMutex(w.open("b", nil), "/l", nil))
		close(let)
		wantErr(w.t, <-released, coord.ErrUncertain) // of two attempts
		wantErr(w.t, old.Release(), coord.ErrUncertain)
		if err := next.Verify(context.Background()); err != nil {
			w.t.Errorf("the later hold: %v", err)
		}
		mustRelease(w.t, next)
		w.empty("/l")
	})
}

// Curator-3, Curator-18, Curator-297: closed while a create is under way.
func TestCloseDuringACreateLeavesNoNode(t *testing.T) {
	for _, name := range []string{"request held", "reply held"} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				var x nth
				hooks := &backendtest.Hooks{Before: x.before}
				if name == "reply held" {
					hooks = &backendtest.Hooks{After: x.after}
				}
				c := w.open("a", hooks)
				m := coord.NewMutex(c, "/l", nil)
				prime(w.t, m)
				held, let := make(chan struct{}), make(chan struct{})
				x.arm(1, creates, func(_ context.Context, _ backendtest.Call, err error) error {
					close(held)
					<-let
					return err
				})
				waiter := w.lock(context.Background(), m)
				<-held
				if err := c.Close(); err != nil {
					w.t.Error(err)
				}
				close(let)
				<-waiter.done
				wantErr(w.t, waiter.err, coord.ErrClosed)
				w.empty("/l")
			})
		})
	}
}

// ZooKeeper's own WriteLock prefixes with the session id, and etcd 11364: two
// locks of one session took each other's node for theirs.
func TestTwoCallersOfOneSessionNeverShareANode(t *testing.T) {
	onEach(t, func(w *world) {
		var after nth
		c := w.open("a", &backendtest.Hooks{After: after.after})
		first, second := coord.NewMutex(c, "/l", nil), coord.NewMutex(c, "/l", nil)
		prime(w.t, first)
		after.arm(1, creates, lose)
		h := mustLock(w.t, first)
		if _, err := second.TryLock(context.Background()); !errors.Is(err, coord.ErrLocked) {
			w.t.Errorf("TryLock: %v, want ErrLocked", err)
		}
		waiter := w.waiting(context.Background(), second)
		after.arm(1, creates, lose) // the hand-over
		wantErr(w.t, h.Release(), coord.ErrUncertain)
		h2 := waiter.hold()
		if h2.Path() == h.Path() || h2.Token() <= h.Token() {
			w.t.Errorf("second hold %s token %d after %s token %d", h2.Path(), h2.Token(), h.Path(), h.Token())
		}
		mustRelease(w.t, h2)
		w.empty("/l")
	})
}

// What a call makes before its own write is no part of its outcome, whatever is known of it.
func TestOnlyTheOwnWriteOfACallIsUncertain(t *testing.T) {
	for name, x := range map[string]struct {
		own string // below the path
		run func(ctx context.Context, c *coord.Client, path string) error
	}{
		"Barrier.Set": {"", func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewBarrier(c, path, nil).Set(ctx)
		}},
		"Barrier.Set with Ephemeral": {"", func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewBarrier(c, path, &coord.BarrierOptions{Ephemeral: true}).Set(ctx)
		}},
		"Value.Set": {"", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewValue[string](c, path, nil).Set(ctx, "x")
			return err
		}},
		"Counter.Add": {"", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewCounter(c, path).Add(ctx, 1)
			return err
		}},
		"Semaphore.SetLimit": {"/limit", func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewSemaphore(c, path, 1, nil).SetLimit(ctx, 2)
		}},
		"Queue.Put": {"/items/", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewQueue[string](c, path, nil).Put(ctx, "x")
			return err
		}},
	} {
		for _, what := range []string{"the context", "the session"} {
			t.Run(name+", "+what+" ends", func(t *testing.T) {
				for n, more := 1, true; more; n++ {
					onMemory(t, func(w *world) {
						ctx, cancel := context.WithCancel(context.Background())
						defer cancel()
						const path = "/above/further/x"
						var mu sync.Mutex
						seen, own := 0, false
						c := w.open("a", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
							if c.Op != "commit" || err != nil {
								return err
							}
							mu.Lock()
							defer mu.Unlock()
							if seen++; seen != n {
								return nil
							}
							own = slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return strings.HasPrefix(op.Path, w.path(path)+x.own) })
							if what == "the context" {
								cancel()
								return backend.ErrUncertain
							}
							w.Link("a").Expire(c.Session.ID())
							<-c.Session.Done()
							return backend.Uncertain(c.Session.Err())
						}})
						err := x.run(ctx, c, path)
						mu.Lock()
						defer mu.Unlock()
						more = seen >= n
						var want error
						if more && what == "the context" {
							want = context.Canceled
						}
						// An ephemeral barrier goes with its session, and is set anew.
						uncertain := own && (what == "the context" || name != "Barrier.Set with Ephemeral")
						if uncertain {
							want = coord.ErrUncertain
						}
						if !errors.Is(err, want) || errors.Is(err, coord.ErrUncertain) != uncertain {
							w.t.Errorf("the reply to commit %d is lost, its own: %v: %v, want %v", n, own, err, want)
						}
					})
				}
			})
		}
	}
}
