package recipetest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// If the removal of its node gets no reply, a call that gives up returns after a second. The
// next call of the same client waits for the removal, and meets no node of the first.
func TestGiveUp_TheNextCallIsOrderedBehindTheRemoval(t *testing.T) {
	for _, x := range waits {
		next := x.try
		if next == nil {
			next = x.call
		}
		t.Run(x.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				answer := make(chan struct{})
				var before coordtest.Nth
				var made []string // after the call that was given up
				c := w.Open("a", &backendtest.Hooks{
					Before: before.Before,
					After: func(_ context.Context, c backendtest.Call, err error) error {
						if coordtest.Creates(c) && before.Idle() {
							made = append(made, c.Path)
						}
						return err
					},
				})
				held := context.WithValue(context.Background(), asWriter{}, true)
				h, err := x.call(w.Open("b", nil))(held)
				if err != nil {
					w.T.Fatal(err)
				}
				before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
					<-answer
					return nil
				})
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				defer cancel()
				start := time.Now()
				_, err = x.call(c)(ctx)
				coordtest.WantErr(w.T, err, context.DeadlineExceeded)
				if d := time.Since(start); d != 1050*time.Millisecond {
					w.T.Errorf("the call took %v, want a second for the removal", d)
				}
				coordtest.MustRelease(w.T, h)

				// The next call is bounded by its own ctx,
				ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
				defer cancel()
				_, err = next(c)(ctx)
				coordtest.WantErr(w.T, err, context.DeadlineExceeded)
				// and waits for nothing else.
				made = nil
				time.AfterFunc(time.Minute, func() { close(answer) })
				start = time.Now()
				h, err = next(c)(context.Background())
				if err != nil {
					w.T.Fatal(err)
				}
				if d := time.Since(start); d != time.Minute {
					w.T.Errorf("the next call took %v, want a minute", d)
				}
				if len(made) != 1 {
					w.T.Errorf("made %v", made)
				}
				coordtest.MustRelease(w.T, h)
				w.Empty(x.dir)
			})
		})
	}
}

// Without contact a call that gives up returns at once. Its node is removed as soon as there is
// contact again, before the client's next call creates one.
func TestGiveUp_WithoutContactAWaitIsGivenUpAtOnce(t *testing.T) {
	for _, x := range waits {
		t.Run(x.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				held := context.WithValue(context.Background(), asWriter{}, true)
				h, err := x.call(w.Open("b", nil))(held)
				if err != nil {
					w.T.Fatal(err)
				}
				c := w.Open("a", nil)
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				time.AfterFunc(500*time.Millisecond, w.Link("a").Partition)
				start := time.Now()
				_, err = x.call(c)(ctx)
				coordtest.WantErr(w.T, err, context.DeadlineExceeded)
				if d := time.Since(start); d != time.Second {
					w.T.Errorf("it took %v", d)
				}
				coordtest.MustRelease(w.T, h)
				if n := len(w.Children(x.dir)); n != 1 {
					w.T.Errorf("%d nodes, want the one that could not be removed", n)
				}
				time.AfterFunc(500*time.Millisecond, w.Link("a").Heal)
				next := x.try
				if next == nil {
					next = x.call
				}
				if h, err = next(c)(context.Background()); err != nil {
					w.T.Fatal(err)
				}
				coordtest.MustRelease(w.T, h)
				w.Empty(x.dir)
			})
		})
	}
}

// A removal that the service refuses delays no call: a try returns ErrLocked, because of the
// node that cannot be removed.
func TestGiveUp_ARefusedRemovalDelaysNoCall(t *testing.T) {
	for _, x := range waits {
		if x.try == nil {
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var refused atomic.Bool
				refused.Store(true)
				held := context.WithValue(context.Background(), asWriter{}, true)
				h, err := x.call(w.Open("b", nil))(held)
				if err != nil {
					w.T.Fatal(err)
				}
				c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					if refused.Load() && coordtest.Deletes(c) {
						return backend.ErrDenied
					}
					return nil
				}})
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				defer cancel()
				start := time.Now()
				_, err = x.call(c)(ctx)
				coordtest.WantErr(w.T, err, context.DeadlineExceeded)
				coordtest.MustRelease(w.T, h)
				_, err = x.try(c)(context.Background())
				coordtest.WantErr(w.T, err, coord.ErrLocked)
				if d := time.Since(start); d != 50*time.Millisecond {
					w.T.Errorf("both calls took %v, want no wait but the first ctx's", d)
				}
				refused.Store(false)
				w.Empty(x.dir)
			})
		})
	}
}

// A creation that the first look did not find, and that is applied after it, is removed: the
// second look finds it. (By the contract none is applied after a Sync. A server was seen to
// apply one that its caller had given up.)
func TestGiveUp_ACreationThatIsAppliedAfterTheLookIsRemoved(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		late := make(chan []backend.Op, 1)
		lists := 0
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{
			Before: before.Before,
			Names: func(c backendtest.Call, names []string) []string {
				if c.Path != "/r" {
					return names
				}
				select {
				case ops := <-late: // right after the state that this list shows
					lists++
					if _, err := c.Session.Commit(context.Background(), ops...); err != nil {
						w.T.Error(err)
					}
				default:
				}
				return names
			},
		}), "/r", nil)
		coordtest.Prime(w.T, m)
		ctx, cancel := context.WithCancel(context.Background())
		before.Arm(1, coordtest.Creates, func(_ context.Context, c backendtest.Call, _ error) error {
			late <- slices.Clone(c.Ops)
			cancel()
			return backend.Uncertain(context.Canceled)
		})
		_, err := m.Lock(ctx)
		coordtest.WantErr(w.T, err, context.Canceled)
		if lists != 1 {
			w.T.Fatal("the creation did not come")
		}
		if names := w.Children("/r"); len(names) != 0 {
			w.T.Errorf("the node is left: %v", names)
		}
	})
}

// The removal of an entrant's node is refused or gets no reply for long, or contact is lost, or
// the session. The next Enter of the client waits for the removal, and does not count the old
// node.
func TestGiveUp_AnEntrantNeverCountsItsOwnAbandonedNode(t *testing.T) {
	for _, name := range []string{"no answer", "refused", "no contact", "session lost"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				free := make(chan struct{})
				c := w.Open("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
					if !coordtest.Deletes(c) {
						return nil
					}
					select {
					case <-free:
					default:
						if name == "refused" {
							return backend.ErrDenied
						}
						if name == "no answer" {
							<-free
						}
					}
					return nil
				}})
				d := coord.NewDoubleBarrier(c, "/b", 2, nil)
				switch name {
				case "no contact":
					time.AfterFunc(20*time.Millisecond, w.Link("a").Partition)
				case "session lost":
					// Lost for the client, and not yet for the service.
					time.AfterFunc(20*time.Millisecond, func() {
						w.Link("a").Partition()
						time.Sleep(w.Timeout - 10*time.Millisecond)
						w.Link("a").Heal()
					})
				}
				wait := 50 * time.Millisecond
				if name == "session lost" {
					wait = w.Timeout - 100*time.Millisecond
				}
				ctx, cancel := context.WithTimeout(context.Background(), wait)
				defer cancel()
				_, err := d.Enter(ctx)
				coordtest.WantErr(w.T, err, context.DeadlineExceeded)
				if n := len(w.Children("/b/members")); n != 1 {
					w.T.Fatalf("%d nodes, want the abandoned one", n)
				}
				if name == "no contact" {
					w.Link("a").Heal()
				}
				ctx, cancel = context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				e, err := d.Enter(ctx)
				if !errors.Is(err, context.DeadlineExceeded) {
					w.T.Errorf("one member has passed for two: %v, %v", e, err)
				}
				close(free)
				w.Empty("/b/members")
			})
		})
	}
}

// Contact breaks at a request of Enter, which gives up before the client has lost the session; and
// the client loses it before the service ends it. The next Enter does not count what the first has
// left, whether or not that call has heard of it.
func TestGiveUp_AnEntrantNeverCountsWhatItLeftWithoutContact(t *testing.T) {
	enter := func(w *world, d *coord.DoubleBarrier, wait time.Duration) {
		w.T.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		e, err := d.Enter(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			w.T.Errorf("one member has passed for two: %v, %v", e, err)
		}
	}
	try := func(w *world, anew, reply bool, n int) (struck bool) {
		var fault coordtest.Nth
		hooks := backendtest.Hooks{Before: fault.Before}
		if reply {
			hooks = backendtest.Hooks{After: fault.After}
		}
		c := w.Open("a", &hooks)
		d := coord.NewDoubleBarrier(c, "/b", 2, nil)
		if anew {
			// The client remembers the directory, which is deleted and made again.
			enter(w, d, 50*time.Millisecond)
			for _, p := range []string{"/b/members", "/b"} {
				_, err := w.Session("other").Commit(context.Background(), backend.Delete(w.Path(p), backend.AnyVersion))
				w.must(err)
			}
			enter(w, coord.NewDoubleBarrier(w.Open("b", nil), "/b", 2, nil), 50*time.Millisecond)
		}
		fault.Arm(n, func(backendtest.Call) bool { return true }, func(_ context.Context, c backendtest.Call, err error) error {
			w.Link("a").Partition()
			if reply && c.Op == "commit" {
				return backend.ErrUncertain
			}
			return err
		})
		enter(w, d, 50*time.Millisecond)
		if !fault.Idle() {
			return false // Enter made fewer requests
		}
		awaitPhase(w.T, c, coord.PhaseLost)
		w.Link("a").Heal()
		enter(w, d, 500*time.Millisecond)
		if names := w.Children("/b/members"); len(names) != 0 {
			w.T.Errorf("left before the service ends the lost session: %v", names)
		}
		return true
	}
	for _, anew := range []bool{false, true} {
		for _, reply := range []bool{false, true} {
			struck := 0
			for n := range 20 {
				onMemory(t, func(w *world) {
					if try(w, anew, reply, n+1) {
						struck++
					}
					if w.T.Failed() {
						w.T.Logf("made anew: %t, reply lost: %t, request %d", anew, reply, n+1)
					}
				})
			}
			if struck < 5 || struck == 20 {
				t.Errorf("%d requests struck", struck)
			}
		}
	}
}

// One call waits while another of the same client begins, loses contact and gives up. After the
// reconnection the first does not count the node that the second has left.
func TestGiveUp_AnEntrantThatWaitsDoesNotCountAnAbandonedNode(t *testing.T) {
	onMemory(t, func(w *world) {
		var after coordtest.Nth
		free := make(chan struct{})
		c := w.Open("a", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				if coordtest.Deletes(c) {
					<-free
				}
				return nil
			},
			After: after.After,
		})
		d := coord.NewDoubleBarrier(c, "/b", 2, nil)
		first := w.enter(context.Background(), d)
		w.stand(d, coord.DoubleBarrierState{Waiting: 1})
		after.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			return backend.ErrUncertain
		})
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, err := d.Enter(ctx)
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		if n := len(w.Children("/b/members")); n != 2 {
			w.T.Fatalf("%d nodes, want one that waits and the abandoned one", n)
		}
		w.Link("a").Heal()
		w.Settle()
		first.pending("the other has given up")
		close(free)
		w.Eventually("the abandoned node is removed", func() bool { return len(w.Children("/b/members")) == 1 })
		first.pending("it is alone")
		second := w.enter(context.Background(), coord.NewDoubleBarrier(w.Open("b", nil), "/b", 2, nil))
		w.must(first.entry().Release())
		w.must(second.entry().Release())
	})
}

// Close waits for an answer for a bounded time, and not at all without contact.
func TestGiveUp_CloseDoesNotWaitForever(t *testing.T) {
	onMemory(t, func(w *world) {
		x := holdDelete(time.Hour)
		c := w.Open("a", x.hooks())
		giveUpAtBarrier(w, c)
		start := time.Now()
		c.Close()
		if d := time.Since(start); d != 2*time.Second {
			w.T.Errorf("Close took %v, want two seconds", d)
		}
		coordtest.WantErr(w.T, <-x.result, coord.ErrClosed)
	})
	t.Run("without contact", func(t *testing.T) {
		onMemory(t, func(w *world) {
			x := holdDelete(time.Hour)
			c := w.Open("a", x.hooks())
			giveUpAtBarrier(w, c)
			w.Link("a").Partition()
			start := time.Now()
			c.Close()
			if d := time.Since(start); d != 0 {
				w.T.Errorf("Close waited for %v", d)
			}
			w.Link("a").Heal()
		})
	})
	t.Run("contact is lost meanwhile", func(t *testing.T) {
		onMemory(t, func(w *world) {
			x := holdDelete(time.Hour)
			c := w.Open("a", x.hooks())
			giveUpAtBarrier(w, c)
			start := time.Now()
			time.AfterFunc(time.Second, w.Link("a").Partition)
			c.Close()
			if d := time.Since(start); d != time.Second {
				w.T.Errorf("Close took %v, want one second", d)
			}
			w.Link("a").Heal()
		})
	})
	t.Run("refused", func(t *testing.T) {
		onMemory(t, func(w *world) {
			c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
				if coordtest.Deletes(c) {
					return backend.ErrDenied
				}
				return nil
			}})
			giveUpAtBarrier(w, c)
			time.Sleep(10 * time.Second) // in the middle of a long pause between attempts
			start := time.Now()
			c.Close()
			if d := time.Since(start); d != 0 {
				w.T.Errorf("Close waited for %v for what was refused", d)
			}
		})
	})
}

// While Close waits, new calls fail. Waiters end with ErrClosed.
func TestGiveUp_CallsFailWhileCloseWaits(t *testing.T) {
	onMemory(t, func(w *world) {
		x := holdDelete(1500 * time.Millisecond)
		c := w.Open("a", x.hooks())
		coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/l", nil))
		waiter := w.Waiting(context.Background(), coord.NewMutex(c, "/l", nil))
		h := coordtest.MustLock(w.T, coord.NewMutex(c, "/m", nil))
		giveUpAtBarrier(w, c)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			c.Close()
		}()
		w.Settle()
		_, err := coord.NewMutex(c, "/l2", nil).TryLock(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		_, err = coord.NewSemaphore(c, "/s", 1, nil).TryAcquire(context.Background(), 1)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		if err := h.Err(); err != nil {
			w.T.Error("a hold ended before its session:", err)
		}
		select {
		case <-closed:
			w.T.Error("Close did not wait")
		default:
		}
		<-closed
		<-waiter.Done
		coordtest.WantErr(w.T, waiter.Err, coord.ErrClosed)
		if err := h.Err(); !errors.Is(err, coord.ErrLost) || !errors.Is(err, coord.ErrClosed) {
			w.T.Error("the hold ended with", err)
		}
	})
}
