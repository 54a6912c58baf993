package coord_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// Each of these would wait for itself: the hold whose context it comes with ends the
// wait when it ends.
func TestALockUnderItsOwnHoldIsRefused(t *testing.T) {
	type lock = func(context.Context, *coord.Client) (*coord.Hold, error)
	mutex := func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		return coord.NewMutex(c, "/l", nil).Lock(ctx)
	}
	write := func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		return coord.NewRWMutex(c, "/l", nil).Lock(ctx)
	}
	read := func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		return coord.NewRWMutex(c, "/l", nil).RLock(ctx)
	}
	permits := func(n int) lock {
		return func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
			return coord.NewSemaphore(c, "/l", 3, nil).Acquire(ctx, n)
		}
	}
	campaign := func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		term, err := coord.NewElection(c, "/l", nil).Campaign(ctx)
		if err != nil {
			return nil, err
		}
		return term.Hold, nil
	}
	all := func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		set, err := coord.LockAll(ctx, coord.NewMutex(c, "/k", nil), coord.NewMutex(c, "/l", nil))
		if err != nil {
			return nil, err
		}
		return set.Holds()[1], nil
	}
	for name, x := range map[string]struct {
		outer, inner lock
		want         error
	}{
		"a mutex":                    {mutex, mutex, coord.ErrHeld},
		"a mutex among several":      {mutex, all, coord.ErrHeld},
		"a mutex of several":         {all, mutex, coord.ErrHeld},
		"a writer asks to write":     {write, write, coord.ErrHeld},
		"a writer asks to read":      {write, read, coord.ErrHeld},
		"a reader asks to write":     {read, write, coord.ErrUpgrade},
		"a reader asks to read":      {read, read, nil},
		"permits that never fit":     {permits(2), permits(2), coord.ErrHeld},
		"permits that fit":           {permits(2), permits(1), nil},
		"a leader campaigns":         {campaign, campaign, coord.ErrHeld},
		"a leader that is no reader": {campaign, read, nil},
	} {
		if name == "a leader that is no reader" {
			x.inner = func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
				return coord.NewRWMutex(c, "/other", nil).RLock(ctx)
			}
		}
		for _, inner := range []string{"a", "b"} {
			t.Run(name+", client "+inner, func(t *testing.T) {
				onEach(t, func(w *world) {
					a := w.open("a", nil)
					other := a
					if inner != "a" {
						other = w.open(inner, nil)
					}
					outer, err := x.outer(context.Background(), a)
					if err != nil {
						w.t.Fatal(err)
					}
					ctx, cancel := context.WithTimeout(outer.Context(context.Background()), 20*time.Second)
					defer cancel()
					start := time.Now()
					h, err := x.inner(ctx, other)
					if !errors.Is(err, x.want) || (err == nil) != (x.want == nil) {
						w.t.Errorf("after %v: %v, want %v", time.Since(start), err, x.want)
					}
					if h != nil {
						mustRelease(w.t, h)
					}
					mayBeReleased(w.t, outer)
					if h, err = x.inner(context.Background(), other); err != nil {
						w.t.Fatalf("when the hold was released: %v", err)
					}
					mustRelease(w.t, h)
				})
			})
		}
	}
}

// A context of a hold that has ended, and one of a hold on another lock, say nothing.
func TestALockUnderAnotherHoldIsNotRefused(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.open("a", nil)
		m := coord.NewMutex(c, "/l", nil)
		h := mustLock(w.t, m)
		ctx := context.WithoutCancel(h.Context(context.Background()))
		mustRelease(w.t, h)
		again, err := m.Lock(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		if _, err := m.TryLock(again.Context(ctx)); !errors.Is(err, coord.ErrLocked) {
			w.t.Errorf("TryLock: %v, want ErrLocked", err)
		}
		if err := coord.NewMutex(c, "/l2", nil).Do(again.Context(ctx), func(context.Context, *coord.Hold) error { return nil }); err != nil {
			w.t.Error(err)
		}
		mustRelease(w.t, again)
	})
}

// A call that queues in its process behind a waiter for that very hold would not learn
// in line that it waits for itself.
func TestALockBehindOthersUnderTheHoldOfAnotherClientIsRefused(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := coord.NewMutex(w.open("a", nil), "/l", nil), coord.NewMutex(w.open("b", nil), "/l", nil)
		h := mustLock(w.t, a)
		next := w.waiting(context.Background(), b)
		ctx, cancel := context.WithTimeout(h.Context(context.Background()), 20*time.Second)
		defer cancel()
		_, err := b.Lock(ctx)
		wantErr(w.t, err, coord.ErrHeld)
		mayBeReleased(w.t, h)
		mustRelease(w.t, next.hold())
	})
}

// What goes on after its hold can wait for the next one.
func TestALockUnderAContextThatOutlivesItsHoldWaits(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		h := mustLock(w.t, m)
		next := w.waiting(context.WithoutCancel(h.Context(context.Background())), m)
		mayBeReleased(w.t, h)
		mustRelease(w.t, next.hold())

		s := coord.NewSemaphore(w.open("b", nil), "/s", 1, nil)
		h, err := s.Acquire(context.Background(), 1)
		if err != nil {
			w.t.Fatal(err)
		}
		n := w.waits.Load()
		granted := make(chan *coord.Hold)
		go func() {
			h, err := s.Acquire(context.WithoutCancel(h.Context(context.Background())), 1)
			if err != nil {
				w.t.Error(err)
			}
			granted <- h
		}()
		w.eventually("the Acquire waits", func() bool { return w.waits.Load() > n })
		mayBeReleased(w.t, h)
		if h := <-granted; h != nil {
			mustRelease(w.t, h)
		}
	})
}

// A reader that has the lock, a writer that waits for it, and then a call with the
// reader's ctx: to wait behind that writer would be to wait for itself.
func TestAReaderBehindAWriterThatWaitsForItIsRefused(t *testing.T) {
	for _, outer := range []string{"a reader", "a writer that became a reader"} {
		for _, inner := range []string{"a", "b"} {
			t.Run(outer+", client "+inner, func(t *testing.T) {
				onEach(t, func(w *world) {
					a := w.open("a", nil)
					other := a
					if inner != "a" {
						other = w.open(inner, nil)
					}
					rw := coord.NewRWMutex(a, "/l", nil)
					h, err := rw.RLock(context.Background())
					if outer != "a reader" {
						mustRelease(w.t, must(w.t, h, err))
						if h, err = rw.Lock(context.Background()); err == nil {
							err = rw.Downgrade(context.Background(), h)
						}
					}
					h = must(w.t, h, err)
					writer := w.writing(coord.NewRWMutex(w.open("w", nil), "/l", nil))
					before := w.children("/l")
					ctx, cancel := context.WithTimeout(h.Context(context.Background()), 20*time.Second)
					defer cancel()
					rw = coord.NewRWMutex(other, "/l", nil)
					_, err = rw.RLock(ctx)
					wantErr(w.t, err, coord.ErrHeld)
					_, err = rw.TryRLock(ctx)
					wantErr(w.t, err, coord.ErrLocked)
					_, err = coord.LockAll(ctx, rw.RLocker())
					wantErr(w.t, err, coord.ErrHeld)
					if after := w.children("/l"); len(after) != len(before) {
						w.t.Errorf("what was refused has left %q of %q", after, before)
					}
					mustRelease(w.t, h)
					mustRelease(w.t, writer.hold())
					h, err = rw.RLock(context.Background())
					mustRelease(w.t, must(w.t, h, err))
				})
			})
		}
	}
}

// The hold is on its reader's node already, and does not know that yet.
func TestAReaderBehindAWriterThatWaitsForADowngradeIsRefused(t *testing.T) {
	onEach(t, func(w *world) {
		var after nth
		rw := coord.NewRWMutex(w.open("a", &backendtest.Hooks{After: after.after}), "/l", nil)
		h, err := rw.Lock(context.Background())
		h = must(w.t, h, err)
		m := move(rw, h, &after)
		writer := w.writing(coord.NewRWMutex(w.open("w", nil), "/l", nil))
		ctx, cancel := context.WithTimeout(h.Context(context.Background()), 20*time.Second)
		defer cancel()
		rw = coord.NewRWMutex(w.open("b", nil), "/l", nil)
		_, err = rw.RLock(ctx)
		wantErr(w.t, err, coord.ErrHeld)
		_, err = rw.Lock(ctx)
		wantErr(w.t, err, coord.ErrUpgrade)
		close(m.let)
		if err := <-m.done; err != nil {
			w.t.Error(err)
		}
		mustRelease(w.t, h)
		mustRelease(w.t, writer.hold())
	})
}

// With another ctx a reader waits behind the writer, as any other does.
func TestAReaderBehindAWriterWaits(t *testing.T) {
	onEach(t, func(w *world) {
		rw := coord.NewRWMutex(w.open("a", nil), "/l", nil)
		h, err := rw.RLock(context.Background())
		h = must(w.t, h, err)
		writer := w.writing(coord.NewRWMutex(w.open("w", nil), "/l", nil))
		n := w.waits.Load()
		reader := make(chan error, 1)
		go func() {
			reader <- rw.RLocker().Do(context.Background(), func(context.Context, *coord.Hold) error { return nil })
		}()
		w.eventually("the reader waits", func() bool { return w.waits.Load() > n })
		mustRelease(w.t, h)
		mustRelease(w.t, writer.hold())
		if err := <-reader; err != nil {
			w.t.Error(err)
		}
	})
}

// A holder of permits, a request that does not fit beside them, and then a call with the
// holder's ctx: to wait behind that request would be to wait for itself.
func TestAnAcquireBehindARequestThatWaitsForItsHoldIsRefused(t *testing.T) {
	for _, inner := range []string{"a", "b"} {
		for _, adopt := range []bool{false, true} {
			t.Run(fmt.Sprintf("client %s, adopts %v", inner, adopt), func(t *testing.T) {
				onEach(t, func(w *world) {
					ctx := context.Background()
					a, large, small := w.open("a", nil), w.semaphore("x", 3), w.semaphore("y", 3)
					other := a
					if inner != "a" {
						other = w.open(inner, nil)
					}
					h := acquire(w.t, coord.NewSemaphore(a, "/s", 3, nil), 2)
					next := w.awaiting(large, 2)
					last := w.awaiting(small, 1)
					before := w.children("/s/requests")
					s := coord.NewSemaphore(other, "/s", 3, &coord.SemaphoreOptions{AdoptLimit: adopt})
					under, cancel := context.WithTimeout(h.Context(ctx), 20*time.Second)
					defer cancel()
					_, err := s.Acquire(under, 1)
					wantErr(w.t, err, coord.ErrHeld)
					_, err = s.TryAcquire(under, 1)
					wantErr(w.t, err, coord.ErrLocked)
					_, err = coord.LockAll(under, s.Locker(1))
					wantErr(w.t, err, coord.ErrHeld)
					if after := w.children("/s/requests"); len(after) != len(before) {
						w.t.Errorf("what was refused has left %q of %q", after, before)
					}
					mustRelease(w.t, h)
					mustRelease(w.t, next.hold())
					mustRelease(w.t, last.hold())
					// Alone with its hold it fits, or not.
					h = acquire(w.t, s, 2)
					under, cancel = context.WithTimeout(h.Context(ctx), 20*time.Second)
					defer cancel()
					_, err = s.Acquire(under, 2)
					wantErr(w.t, err, coord.ErrHeld)
					fits, err := s.Acquire(under, 1)
					mustRelease(w.t, must(w.t, fits, err))
					mustRelease(w.t, h)
					w.empty("/s/requests")
				})
			})
		}
	}
}

// A request between that fits beside the own permits waits for others, as the call does.
func TestAnAcquireBehindARequestThatFitsBesideItsHoldWaits(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h, others := acquire(w.t, a, 1), acquire(w.t, b, 2)
		next := w.awaiting(w.semaphore("x", 3), 1)
		under := w.side(func(ctx context.Context) (*coord.Hold, error) { return a.Acquire(h.Context(ctx), 1) })
		mustRelease(w.t, others)
		mustRelease(w.t, next.hold())
		mustRelease(w.t, under.hold())
		mustRelease(w.t, h)
	})
}

// Permits that were had without a wait, under a higher limit, look like a request that
// waits.
func TestAnAcquireBehindPermitsOfAnEarlierLimitWaits(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := w.semaphore("a", 4), w.semaphore("b", 4)
		h, others := acquire(w.t, a, 2), acquire(w.t, b, 2)
		if err := a.SetLimit(context.Background(), 3); err != nil {
			w.t.Fatal(err)
		}
		under := w.side(func(ctx context.Context) (*coord.Hold, error) { return a.Acquire(h.Context(ctx), 1) })
		mustRelease(w.t, others)
		mustRelease(w.t, under.hold())
		mustRelease(w.t, h)
	})
}

// A try says the same each time, whether it looks before it makes its node or not.
func TestATryToWriteUnderAReadHoldIsAnUpgrade(t *testing.T) {
	for _, inner := range []string{"a", "b"} {
		t.Run("client "+inner, func(t *testing.T) {
			onEach(t, func(w *world) {
				a := w.open("a", nil)
				other := a
				if inner != "a" {
					other = w.open(inner, nil)
				}
				try := coord.NewRWMutex(other, "/l", nil).TryLock
				for range 2 { // the second time after a try that has won
					outer, err := coord.NewRWMutex(a, "/l", nil).RLock(context.Background())
					outer = must(w.t, outer, err)
					ctx := outer.Context(context.Background())
					for range 3 {
						_, err := try(ctx)
						wantErr(w.t, err, coord.ErrUpgrade)
					}
					_, err = try(context.Background())
					wantErr(w.t, err, coord.ErrLocked)
					mustRelease(w.t, outer)
					h, err := try(context.Background())
					mustRelease(w.t, must(w.t, h, err))
					h, err = try(context.Background())
					mustRelease(w.t, must(w.t, h, err))
				}
			})
		})
	}
}

// writing starts a Lock and returns when it waits.
func (w *world) writing(rw *coord.RWMutex) *locking {
	w.t.Helper()
	n := w.waits.Load()
	l := &locking{w: w, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.h, l.err = rw.Lock(context.Background())
	}()
	w.eventually("the writer waits", func() bool { return w.waits.Load() > n })
	return l
}

// moving is a downgrade whose reply is held back.
type moving struct {
	let  chan struct{} // close it to let the reply go
	done chan error
}

// move starts a downgrade of h and returns when it was applied.
func move(rw *coord.RWMutex, h *coord.Hold, after *nth) moving {
	m := moving{make(chan struct{}), make(chan error, 1)}
	applied := make(chan struct{})
	after.arm(1, creates, func(_ context.Context, _ backendtest.Call, err error) error {
		close(applied)
		<-m.let
		return err
	})
	go func() { m.done <- rw.Downgrade(context.Background(), h) }()
	<-applied
	return m
}

// A hold that moves to another node stands on neither of them for sure until the
// downgrade has its reply.
func TestVerifyDuringADowngradeIsBoundedByItsContext(t *testing.T) {
	for _, name := range []string{"that was under way", "that begins meanwhile"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var before, after nth
				rw := coord.NewRWMutex(w.open("a", &backendtest.Hooks{Before: before.before, After: after.after}), "/rw", nil)
				h, err := rw.Lock(context.Background())
				h = must(w.t, h, err)
				verifying := func(ctx context.Context) <-chan error {
					done := make(chan error, 1)
					go func() { done <- h.Verify(ctx) }()
					return done
				}
				ctx, cancel := context.WithCancelCause(context.Background())
				var m moving
				var given, patient <-chan error
				if name == "that was under way" {
					m = move(rw, h, &after)
					given, patient = verifying(ctx), verifying(context.Background())
				} else {
					asks := w.stop(&before, func(c backendtest.Call) bool { return c.Op == "exists" })
					given = verifying(ctx)
					<-asks.reached
					m = move(rw, h, &after)
					close(asks.open) // the writer's node is gone
					patient = verifying(context.Background())
				}
				w.settle() // both wait for the reply
				reason := errors.New("no time")
				cancel(reason)
				w.settle()
				select {
				case err := <-given:
					wantErr(w.t, err, context.Canceled, reason)
				default:
					w.t.Error("Verify did not return when its ctx ended")
				}
				select {
				case err := <-patient:
					w.t.Errorf("Verify returned %v before anybody knew", err)
				default:
				}
				close(m.let)
				if err := <-m.done; err != nil {
					w.t.Error(err)
				}
				if err := <-patient; err != nil {
					w.t.Error(err)
				}
				if err := h.Err(); err != nil {
					w.t.Error(err)
				}
				mustRelease(w.t, h)
				w.empty("/rw")
			})
		})
	}
}

// The node that Verify has asked for went with a downgrade, and the new one with
// somebody else.
func TestVerifyAsksForTheNodeThatTheHoldHasMovedTo(t *testing.T) {
	onMemory(t, func(w *world) {
		var before nth
		rw := coord.NewRWMutex(w.open("a", &backendtest.Hooks{Before: before.before}), "/rw", nil)
		h, err := rw.Lock(context.Background())
		h = must(w.t, h, err)
		before.arm(1, func(c backendtest.Call) bool { return c.Op == "exists" }, func(context.Context, backendtest.Call, error) error {
			if err := rw.Downgrade(context.Background(), h); err != nil {
				w.t.Error(err)
			}
			_, err := w.session("x").Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion))
			return err
		})
		wantErr(w.t, h.Verify(context.Background()), coord.ErrLost, coord.ErrDeleted)
	})
}

func TestADowngradeThatLosesItsSessionSaysThatTheHoldIsLost(t *testing.T) {
	onMemory(t, func(w *world) {
		var before nth
		rw := coord.NewRWMutex(w.open("a", &backendtest.Hooks{Before: before.before}), "/rw", nil)
		h, err := rw.Lock(context.Background())
		h = must(w.t, h, err)
		before.arm(1, creates, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Expire(h.Session())
			return nil
		})
		wantErr(w.t, rw.Downgrade(context.Background(), h), coord.ErrLost, coord.ErrSessionLost)
		w.empty("/rw")
	})
}

// A term that never stood is a hold without a session, and its context is one like
// any other.
func TestALockUnderTheContextOfATermThatNeverStood(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", nil)
		term := <-coord.NewElection(c, "no path", nil).Leadership(context.Background())
		wantErr(w.t, term.Err(), coord.ErrBadPath)
		ctx := term.Context(context.Background())
		rw := coord.NewRWMutex(c, "/rw", nil)
		_, err := rw.Lock(ctx)
		wantErr(w.t, err, context.Canceled, coord.ErrBadPath)
		h, err := rw.Lock(context.WithoutCancel(ctx)) // to clean up, say
		mustRelease(w.t, must(w.t, h, err))
	})
}

// releasing are the ways to get a hold, by the recipe.
var releasing = map[string]func(ctx context.Context, c *coord.Client) (*coord.Hold, error){
	"a mutex": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		return coord.NewMutex(c, "/mutex", nil).Lock(ctx)
	},
	"a writer": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		return coord.NewRWMutex(c, "/rw", nil).Lock(ctx)
	},
	"a reader": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		return coord.NewRWMutex(c, "/rw", nil).RLock(ctx)
	},
	"a writer that became a reader": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		rw := coord.NewRWMutex(c, "/rw", nil)
		h, err := rw.Lock(ctx)
		if err == nil {
			err = rw.Downgrade(ctx, h)
		}
		return h, err
	},
	"permits": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		return coord.NewSemaphore(c, "/sem", 3, nil).Acquire(ctx, 2)
	},
	"a term": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		t, err := coord.NewElection(c, "/election", nil).Campaign(ctx)
		if err != nil {
			return nil, err
		}
		return t.Hold, nil
	},
	"a term that was announced": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		t, err := coord.NewElection(c, "/election", nil).Campaign(ctx)
		if err != nil {
			return nil, err
		}
		return t.Hold, t.Announce(ctx, nil)
	},
	"an entry": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		e, err := coord.NewDoubleBarrier(c, "/double", 1, nil).Enter(ctx)
		if err != nil {
			return nil, err
		}
		return e.Hold, nil
	},
	"an item": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		q := coord.NewQueue[string](c, "/queue", nil)
		if _, err := q.Put(ctx, "x"); err != nil {
			return nil, err
		}
		it, err := q.Take(ctx)
		if err != nil {
			return nil, err
		}
		return it.Hold, nil
	},
}

func onEachHold(t *testing.T, f func(w *world, hold func(*coord.Client) *coord.Hold)) {
	for name, get := range releasing {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				f(w, func(c *coord.Client) *coord.Hold {
					w.t.Helper()
					h, err := get(context.Background(), c)
					if err != nil {
						w.t.Fatal(err)
					}
					return h
				})
			})
		})
	}
}

// The holder is not told yet when it releases.
func TestReleaseLearnsThatTheNodeWasDeleted(t *testing.T) {
	t.Parallel()
	onEachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		outsider := w.session("outsider")
		h := hold(w.open("a", nil))
		if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		err := h.Release()
		wantErr(w.t, err, coord.ErrLost, coord.ErrDeleted)
		if again := h.Release(); !errors.Is(again, coord.ErrLost) {
			w.t.Errorf("a second Release: %v, the first one: %v", again, err)
		}
	})
}

func TestReleaseLearnsThatTheSessionIsOver(t *testing.T) {
	t.Parallel()
	onEachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		h := hold(w.open("a", nil))
		w.Link("a").Expire(h.Session())
		wantErr(w.t, h.Release(), coord.ErrLost)
	})
}

// Nobody confirms the release before the session is over.
func TestReleaseInAPartitionAsLongAsTheSessionIsNoSuccess(t *testing.T) {
	t.Parallel()
	onEachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		h := hold(w.open("a", nil))
		w.Link("a").Partition()
		defer w.Link("a").Heal()
		wantErr(w.t, h.Release(), coord.ErrLost, coord.ErrSessionLost)
	})
}

// Which of the two removed the node cannot be known: an attempt of the holder's whose
// reply was lost, or an outsider.
func TestReleaseWithALostReplyIsUncertainWhenTheNodeIsGone(t *testing.T) {
	for name, outside := range map[string]bool{"the attempt": false, "an outsider": true} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				outsider := w.session("outsider")
				var x nth
				hooks := &backendtest.Hooks{After: x.after}
				if outside {
					hooks = &backendtest.Hooks{Before: x.before}
				}
				m := coord.NewMutex(w.open("a", hooks), "/l", nil)
				h := mustLock(w.t, m)
				remove := func() {
					if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
						w.t.Error(err)
					}
				}
				x.arm(1, deletes, func(_ context.Context, _ backendtest.Call, err error) error {
					if outside {
						remove() // and the attempt is lost on its way there
					}
					return backend.ErrUncertain
				})
				err := h.Release()
				wantErr(w.t, err, coord.ErrUncertain)
				if errors.Is(err, coord.ErrLost) {
					w.t.Errorf("claims to know: %v", err)
				}
				w.empty("/l")
			})
		})
	}
}

// The attempt whose reply was lost was not applied, and the next one removes the node.
func TestReleaseIsTriedAgainAfterALostRequest(t *testing.T) {
	t.Parallel()
	onEachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		h := hold(w.open("a", nil))
		w.Link("a").DropNextRequest()
		if err := h.Release(); err != nil {
			w.t.Error(err)
		}
	})
}

// The next caller of the same client is served all the same.
func TestAHandOverLearnsThatTheNodeWasDeleted(t *testing.T) {
	onEach(t, func(w *world) {
		outsider := w.session("outsider")
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		h := mustLock(w.t, m)
		next := w.waiting(context.Background(), m)
		if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		wantErr(w.t, h.Release(), coord.ErrLost, coord.ErrDeleted)
		mustRelease(w.t, next.hold())
		w.empty("/l")
	})
}

func TestDoLearnsThatTheNodeWasDeleted(t *testing.T) {
	onEach(t, func(w *world) {
		outsider := w.session("outsider")
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		prime(w.t, m)
		other := coord.NewMutex(w.open("b", nil), "/l", nil)
		var second *coord.Hold
		err := m.Do(context.Background(), func(_ context.Context, h *coord.Hold) error {
			if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
				return err
			}
			second = mustLock(w.t, other)
			return nil
		})
		wantErr(w.t, err, coord.ErrLost, coord.ErrDeleted)
		mustRelease(w.t, second)
	})
}
