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

// holdTests are tests of Hold on each service.
type holdTests struct{ Services }

// Each of these calls would wait for itself, until the hold whose context it has ends.
func (on holdTests) ALockUnderItsOwnHoldIsRefused(t *testing.T) {
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
				on.each(t, func(w *world) {
					a := w.Open("a", nil)
					other := a
					if inner != "a" {
						other = w.Open(inner, nil)
					}
					outer, err := x.outer(context.Background(), a)
					if err != nil {
						w.T.Fatal(err)
					}
					ctx, cancel := context.WithTimeout(outer.Context(context.Background()), coordtest.Limit)
					defer cancel()
					start := time.Now()
					h, err := x.inner(ctx, other)
					if !errors.Is(err, x.want) || (err == nil) != (x.want == nil) {
						w.T.Errorf("after %v: %v, want %v", time.Since(start), err, x.want)
					}
					if h != nil {
						coordtest.MustRelease(w.T, h)
					}
					mayBeReleased(w.T, outer)
					if h, err = x.inner(context.Background(), other); err != nil {
						w.T.Fatalf("after the release of the hold: %v", err)
					}
					coordtest.MustRelease(w.T, h)
				})
			})
		}
	}
}

// The context of a hold that has ended, and that of a hold on another lock, cause no refusal.
func (on holdTests) ALockUnderAnotherHoldIsNotRefused(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		m := coord.NewMutex(c, "/l", nil)
		h := coordtest.MustLock(w.T, m)
		ctx := context.WithoutCancel(h.Context(context.Background()))
		coordtest.MustRelease(w.T, h)
		again, err := m.Lock(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		if _, err := m.TryLock(again.Context(ctx)); !errors.Is(err, coord.ErrLocked) {
			w.T.Errorf("TryLock: %v, want ErrLocked", err)
		}
		if err := coord.NewMutex(c, "/l2", nil).Do(again.Context(ctx), func(context.Context, *coord.Hold) error { return nil }); err != nil {
			w.T.Error(err)
		}
		coordtest.MustRelease(w.T, again)
	})
}

// A call that queues in its process behind a waiter for its own hold has no node, so the queue
// of contenders would not show it that it waits for itself.
func (on holdTests) ALockBehindOthersUnderTheHoldOfAnotherClientIsRefused(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := coord.NewMutex(w.Open("a", nil), "/l", nil), coord.NewMutex(w.Open("b", nil), "/l", nil)
		h := coordtest.MustLock(w.T, a)
		next := w.Waiting(context.Background(), b)
		ctx, cancel := context.WithTimeout(h.Context(context.Background()), coordtest.Limit)
		defer cancel()
		_, err := b.Lock(ctx)
		coordtest.WantErr(w.T, err, coord.ErrHeld)
		mayBeReleased(w.T, h)
		coordtest.MustRelease(w.T, next.Hold())
	})
}

// A call whose context outlives its hold can wait for the next one.
func (on holdTests) ALockUnderAContextThatOutlivesItsHoldWaits(t *testing.T) {
	on.each(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		next := w.Waiting(context.WithoutCancel(h.Context(context.Background())), m)
		mayBeReleased(w.T, h)
		coordtest.MustRelease(w.T, next.Hold())

		s := coord.NewSemaphore(w.Open("b", nil), "/s", 1, nil)
		h, err := s.Acquire(context.Background(), 1)
		if err != nil {
			w.T.Fatal(err)
		}
		n := w.Waits.Load()
		granted := make(chan *coord.Hold)
		go func() {
			h, err := s.Acquire(context.WithoutCancel(h.Context(context.Background())), 1)
			if err != nil {
				w.T.Error(err)
			}
			granted <- h
		}()
		w.Eventually("the Acquire waits", func() bool { return w.Waits.Load() > n })
		mayBeReleased(w.T, h)
		if h := <-granted; h != nil {
			coordtest.MustRelease(w.T, h)
		}
	})
}

// A reader has the lock, a writer waits for it, and then a call comes with the reader's ctx:
// behind that writer it would wait for itself.
func (on holdTests) AReaderBehindAWriterThatWaitsForItIsRefused(t *testing.T) {
	for _, outer := range []string{"a reader", "a writer that became a reader"} {
		for _, inner := range []string{"a", "b"} {
			t.Run(outer+", client "+inner, func(t *testing.T) {
				on.each(t, func(w *world) {
					a := w.Open("a", nil)
					other := a
					if inner != "a" {
						other = w.Open(inner, nil)
					}
					rw := coord.NewRWMutex(a, "/l", nil)
					h, err := rw.RLock(context.Background())
					if outer != "a reader" {
						coordtest.MustRelease(w.T, must(w.T, h, err))
						if h, err = rw.Lock(context.Background()); err == nil {
							err = rw.Downgrade(context.Background(), h)
						}
					}
					h = must(w.T, h, err)
					writer := w.writing(coord.NewRWMutex(w.Open("w", nil), "/l", nil))
					before := w.Children("/l")
					ctx, cancel := context.WithTimeout(h.Context(context.Background()), coordtest.Limit)
					defer cancel()
					rw = coord.NewRWMutex(other, "/l", nil)
					_, err = rw.RLock(ctx)
					coordtest.WantErr(w.T, err, coord.ErrHeld)
					_, err = rw.TryRLock(ctx)
					coordtest.WantErr(w.T, err, coord.ErrLocked)
					_, err = coord.LockAll(ctx, rw.RLocker())
					coordtest.WantErr(w.T, err, coord.ErrHeld)
					if after := w.Children("/l"); len(after) != len(before) {
						w.T.Errorf("the refused calls have left %q, before %q", after, before)
					}
					coordtest.MustRelease(w.T, h)
					coordtest.MustRelease(w.T, writer.Hold())
					h, err = rw.RLock(context.Background())
					coordtest.MustRelease(w.T, must(w.T, h, err))
				})
			})
		}
	}
}

// The hold has moved to its reader's node already, and its client does not know that yet.
func (on holdTests) AReaderBehindAWriterThatWaitsForADowngradeIsRefused(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		rw := coord.NewRWMutex(w.Open("a", &backendtest.Hooks{After: after.After}), "/l", nil)
		h, err := rw.Lock(context.Background())
		h = must(w.T, h, err)
		m := move(rw, h, &after)
		writer := w.writing(coord.NewRWMutex(w.Open("w", nil), "/l", nil))
		ctx, cancel := context.WithTimeout(h.Context(context.Background()), coordtest.Limit)
		defer cancel()
		rw = coord.NewRWMutex(w.Open("b", nil), "/l", nil)
		_, err = rw.RLock(ctx)
		coordtest.WantErr(w.T, err, coord.ErrHeld)
		_, err = rw.Lock(ctx)
		coordtest.WantErr(w.T, err, coord.ErrUpgrade)
		close(m.let)
		if err := <-m.done; err != nil {
			w.T.Error(err)
		}
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, writer.Hold())
	})
}

// With another ctx a reader waits behind the writer, as any other does.
func (on holdTests) AReaderBehindAWriterWaits(t *testing.T) {
	on.each(t, func(w *world) {
		rw := coord.NewRWMutex(w.Open("a", nil), "/l", nil)
		h, err := rw.RLock(context.Background())
		h = must(w.T, h, err)
		writer := w.writing(coord.NewRWMutex(w.Open("w", nil), "/l", nil))
		n := w.Waits.Load()
		reader := make(chan error, 1)
		go func() {
			reader <- rw.RLocker().Do(context.Background(), func(context.Context, *coord.Hold) error { return nil })
		}()
		w.Eventually("the reader waits", func() bool { return w.Waits.Load() > n })
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, writer.Hold())
		if err := <-reader; err != nil {
			w.T.Error(err)
		}
	})
}

// A client holds permits, a request does not fit beside them, and then a call comes with the
// holder's ctx: behind that request it would wait for itself.
func (on holdTests) AnAcquireBehindARequestThatWaitsForItsHoldIsRefused(t *testing.T) {
	for _, inner := range []string{"a", "b"} {
		for _, adopt := range []bool{false, true} {
			t.Run(fmt.Sprintf("client %s, adopts %v", inner, adopt), func(t *testing.T) {
				on.each(t, func(w *world) {
					ctx := context.Background()
					a, large, small := w.Open("a", nil), w.semaphore("x", 3), w.semaphore("y", 3)
					other := a
					if inner != "a" {
						other = w.Open(inner, nil)
					}
					h := acquire(w.T, coord.NewSemaphore(a, "/s", 3, nil), 2)
					next := w.awaiting(large, 2)
					last := w.awaiting(small, 1)
					before := w.Children("/s/requests")
					s := coord.NewSemaphore(other, "/s", 3, &coord.SemaphoreOptions{AdoptLimit: adopt})
					under, cancel := context.WithTimeout(h.Context(ctx), coordtest.Limit)
					defer cancel()
					_, err := s.Acquire(under, 1)
					coordtest.WantErr(w.T, err, coord.ErrHeld)
					_, err = s.TryAcquire(under, 1)
					coordtest.WantErr(w.T, err, coord.ErrLocked)
					_, err = coord.LockAll(under, s.Locker(1))
					coordtest.WantErr(w.T, err, coord.ErrHeld)
					if after := w.Children("/s/requests"); len(after) != len(before) {
						w.T.Errorf("the refused calls have left %q, before %q", after, before)
					}
					coordtest.MustRelease(w.T, h)
					coordtest.MustRelease(w.T, next.Hold())
					coordtest.MustRelease(w.T, last.Hold())
					// Without other requests it fits beside its hold, or not.
					h = acquire(w.T, s, 2)
					under, cancel = context.WithTimeout(h.Context(ctx), coordtest.Limit)
					defer cancel()
					_, err = s.Acquire(under, 2)
					coordtest.WantErr(w.T, err, coord.ErrHeld)
					fits, err := s.Acquire(under, 1)
					coordtest.MustRelease(w.T, must(w.T, fits, err))
					coordtest.MustRelease(w.T, h)
					w.Empty("/s/requests")
				})
			})
		}
	}
}

// A request ahead that fits beside the caller's own permits waits for others, as the call does.
func (on holdTests) AnAcquireBehindARequestThatFitsBesideItsHoldWaits(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h, others := acquire(w.T, a, 1), acquire(w.T, b, 2)
		next := w.awaiting(w.semaphore("x", 3), 1)
		under := w.side(func(ctx context.Context) (*coord.Hold, error) { return a.Acquire(h.Context(ctx), 1) })
		coordtest.MustRelease(w.T, others)
		coordtest.MustRelease(w.T, next.Hold())
		coordtest.MustRelease(w.T, under.Hold())
		coordtest.MustRelease(w.T, h)
	})
}

// Permits that were granted at once, under a higher limit, look like a request that waits.
func (on holdTests) AnAcquireBehindPermitsOfAnEarlierLimitWaits(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.semaphore("a", 4), w.semaphore("b", 4)
		h, others := acquire(w.T, a, 2), acquire(w.T, b, 2)
		if err := a.SetLimit(context.Background(), 3); err != nil {
			w.T.Fatal(err)
		}
		under := w.side(func(ctx context.Context) (*coord.Hold, error) { return a.Acquire(h.Context(ctx), 1) })
		coordtest.MustRelease(w.T, others)
		coordtest.MustRelease(w.T, under.Hold())
		coordtest.MustRelease(w.T, h)
	})
}

// A try returns the same error each time, whether it looks before it creates its node or not.
func (on holdTests) ATryToWriteUnderAReadHoldIsAnUpgrade(t *testing.T) {
	for _, inner := range []string{"a", "b"} {
		t.Run("client "+inner, func(t *testing.T) {
			on.each(t, func(w *world) {
				a := w.Open("a", nil)
				other := a
				if inner != "a" {
					other = w.Open(inner, nil)
				}
				try := coord.NewRWMutex(other, "/l", nil).TryLock
				for range 2 { // the second time after a try that has succeeded
					outer, err := coord.NewRWMutex(a, "/l", nil).RLock(context.Background())
					outer = must(w.T, outer, err)
					ctx := outer.Context(context.Background())
					for range 3 {
						_, err := try(ctx)
						coordtest.WantErr(w.T, err, coord.ErrUpgrade)
					}
					_, err = try(context.Background())
					coordtest.WantErr(w.T, err, coord.ErrLocked)
					coordtest.MustRelease(w.T, outer)
					h, err := try(context.Background())
					coordtest.MustRelease(w.T, must(w.T, h, err))
					h, err = try(context.Background())
					coordtest.MustRelease(w.T, must(w.T, h, err))
				}
			})
		})
	}
}

// writing starts a Lock and returns when it waits.
func (w *world) writing(rw *coord.RWMutex) *coordtest.Locking {
	w.T.Helper()
	n := w.Waits.Load()
	l := &coordtest.Locking{W: w.World, Done: make(chan struct{})}
	go func() {
		defer close(l.Done)
		l.H, l.Err = rw.Lock(context.Background())
	}()
	w.Eventually("the writer waits", func() bool { return w.Waits.Load() > n })
	return l
}

// moving is a downgrade whose reply is held back.
type moving struct {
	let  chan struct{} // close it to let the reply go
	done chan error
}

// move starts a downgrade of h and returns when it was applied.
func move(rw *coord.RWMutex, h *coord.Hold, after *coordtest.Nth) moving {
	m := moving{make(chan struct{}), make(chan error, 1)}
	applied := make(chan struct{})
	after.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
		close(applied)
		<-m.let
		return err
	})
	go func() { m.done <- rw.Downgrade(context.Background(), h) }()
	<-applied
	return m
}

// releasing has the ways to get a hold, by recipe.
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

func (on Services) eachHold(t *testing.T, f func(w *world, hold func(*coord.Client) *coord.Hold)) {
	for name, get := range releasing {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				f(w, func(c *coord.Client) *coord.Hold {
					w.T.Helper()
					h, err := get(context.Background(), c)
					if err != nil {
						w.T.Fatal(err)
					}
					return h
				})
			})
		})
	}
}

// The holder has not learned of the deletion yet when it releases.
func (on holdTests) ReleaseLearnsThatTheNodeWasDeleted(t *testing.T) {
	t.Parallel()
	on.eachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		outsider := w.Session("outsider")
		h := hold(w.Open("a", nil))
		if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		err := h.Release()
		coordtest.WantErr(w.T, err, coord.ErrLost, coord.ErrDeleted)
		if again := h.Release(); !errors.Is(again, coord.ErrLost) {
			w.T.Errorf("a second Release: %v, the first one: %v", again, err)
		}
	})
}

func (on holdTests) ReleaseLearnsThatTheSessionIsOver(t *testing.T) {
	t.Parallel()
	on.eachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		h := hold(w.Open("a", nil))
		w.Link("a").Expire(h.Session())
		coordtest.WantErr(w.T, h.Release(), coord.ErrLost)
	})
}

// The service confirms no release before the session has ended.
func (on holdTests) ReleaseInAPartitionThatOutlivesTheSessionIsNoSuccess(t *testing.T) {
	t.Parallel()
	on.eachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		h := hold(w.Open("a", nil))
		w.Link("a").Partition()
		defer w.Link("a").Heal()
		err := h.Release()
		coordtest.WantErr(w.T, err, coord.ErrLost, coord.ErrSessionLost)
		// The text names the hold, and not the request by which the loss was detected.
		if text := err.Error(); !strings.HasPrefix(text, "coord: hold "+h.Path()+": lost: ") || strings.Contains(text, "delete") || strings.Contains(text, "commit") {
			w.T.Error(text)
		}
	})
}

// It cannot be determined what removed the node: an attempt of the holder whose reply was lost,
// or an outsider.
func (on holdTests) ReleaseWithALostReplyIsUncertainWhenTheNodeIsGone(t *testing.T) {
	for name, outside := range map[string]bool{"the attempt": false, "an outsider": true} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				outsider := w.Session("outsider")
				var x coordtest.Nth
				hooks := &backendtest.Hooks{After: x.After}
				if outside {
					hooks = &backendtest.Hooks{Before: x.Before}
				}
				m := coord.NewMutex(w.Open("a", hooks), "/l", nil)
				h := coordtest.MustLock(w.T, m)
				remove := func() {
					if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
						w.T.Error(err)
					}
				}
				x.Arm(1, coordtest.Deletes, func(_ context.Context, _ backendtest.Call, err error) error {
					if outside {
						remove() // and the attempt is lost on its way there
					}
					return backend.ErrUncertain
				})
				err := h.Release()
				coordtest.WantErr(w.T, err, coord.ErrUncertain)
				if errors.Is(err, coord.ErrLost) {
					w.T.Errorf("a definite loss: %v", err)
				}
				w.Empty("/l")
			})
		})
	}
}

// The first attempt is lost and not applied, and the next one removes the node.
func (on holdTests) ReleaseIsTriedAgainAfterALostRequest(t *testing.T) {
	t.Parallel()
	on.eachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		h := hold(w.Open("a", nil))
		w.Link("a").DropNextRequest()
		if err := h.Release(); err != nil {
			w.T.Error(err)
		}
	})
}

// The next caller of the same client is granted nevertheless.
func (on holdTests) AHandOverLearnsThatTheNodeWasDeleted(t *testing.T) {
	on.each(t, func(w *world) {
		outsider := w.Session("outsider")
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		next := w.Waiting(context.Background(), m)
		if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, h.Release(), coord.ErrLost, coord.ErrDeleted)
		coordtest.MustRelease(w.T, next.Hold())
		w.Empty("/l")
	})
}

func (on holdTests) DoLearnsThatTheNodeWasDeleted(t *testing.T) {
	on.each(t, func(w *world) {
		outsider := w.Session("outsider")
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		coordtest.Prime(w.T, m)
		other := coord.NewMutex(w.Open("b", nil), "/l", nil)
		var second *coord.Hold
		err := m.Do(context.Background(), func(_ context.Context, h *coord.Hold) error {
			if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
				return err
			}
			second = coordtest.MustLock(w.T, other)
			return nil
		})
		coordtest.WantErr(w.T, err, coord.ErrLost, coord.ErrDeleted)
		coordtest.MustRelease(w.T, second)
	})
}
