package coord_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord"
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
