package recipetest

import (
	"context"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// side starts an acquisition of any kind that is expected to wait, and returns when it waits.
func (w *world) side(lock func(context.Context) (*coord.Hold, error)) *coordtest.Locking {
	w.T.Helper()
	n := w.Waits.Load()
	l := &coordtest.Locking{W: w.World, Done: make(chan struct{})}
	go func() {
		defer close(l.Done)
		l.H, l.Err = lock(context.Background())
	}()
	w.Eventually("the Lock waits", func() bool { return w.Waits.Load() > n })
	return l
}

func must(t *testing.T, h *coord.Hold, err error) *coord.Hold {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// rwmutexTests are tests of RWMutex on each service.
type rwmutexTests struct{ Services }

func (on rwmutexTests) ReadersShareAndWritersExclude(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a := coord.NewRWMutex(w.Open("a", nil), "/rw", nil)
		b := coord.NewRWMutex(w.Open("b", nil), "/rw", nil)
		h, err := a.RLock(ctx)
		r1 := must(w.T, h, err)
		h, err = b.RLock(ctx)
		r2 := must(w.T, h, err)
		if r1.Token() != 0 || r2.Token() != 0 {
			w.T.Errorf("readers have tokens %d, %d", r1.Token(), r2.Token())
		}
		_, err = b.TryLock(ctx)
		coordtest.WantErr(w.T, err, coord.ErrLocked)
		h, err = a.RLocker().TryLock(ctx)
		coordtest.MustRelease(w.T, must(w.T, h, err))
		writer := w.side(b.Lock)
		_, err = a.TryRLock(ctx)
		coordtest.WantErr(w.T, err, coord.ErrLocked) // a reader does not pass a waiting writer
		late := w.side(a.RLock)
		coordtest.MustRelease(w.T, r1)
		writer.Pending()
		coordtest.MustRelease(w.T, r2)
		wh := writer.Hold()
		late.Pending()
		if wh.Token() == 0 {
			w.T.Error("the writer has no token")
		}
		_, err = a.TryRLock(ctx)
		coordtest.WantErr(w.T, err, coord.ErrLocked)
		coordtest.MustRelease(w.T, wh)
		coordtest.MustRelease(w.T, late.Hold())
		w.Empty("/rw")
	})
}

// kazoo 649: a reader waited for a later writer, which waited for that reader.
func (on rwmutexTests) WritersAndReadersDrainInTurn(t *testing.T) {
	on.each(t, func(w *world) {
		rw := func(name string) *coord.RWMutex { return coord.NewRWMutex(w.Open(name, nil), "/rw", nil) }
		h, err := rw("w1").Lock(context.Background())
		w1 := must(w.T, h, err)
		r1 := w.side(rw("r1").RLock)
		r2 := w.side(rw("r2").RLock)
		w2 := w.side(rw("w2").Lock)
		r3 := w.side(rw("r3").RLock)
		coordtest.MustRelease(w.T, w1)
		h1, h2 := r1.Hold(), r2.Hold() // both are granted at once
		w2.Pending()
		r3.Pending()
		coordtest.MustRelease(w.T, h2)
		coordtest.MustRelease(w.T, h1)
		wh := w2.Hold()
		r3.Pending()
		if wh.Token() <= w1.Token() {
			w.T.Errorf("writer's token %d after %d", wh.Token(), w1.Token())
		}
		coordtest.MustRelease(w.T, wh)
		coordtest.MustRelease(w.T, r3.Hold())
		w.Empty("/rw")
	})
}

// A writer that gives up must not delay the readers behind it.
func (on rwmutexTests) ReadersAreGrantedWhenTheWriterAheadGivesUp(t *testing.T) {
	on.each(t, func(w *world) {
		a := coord.NewRWMutex(w.Open("a", nil), "/rw", nil)
		h, err := a.RLock(context.Background())
		reader := must(w.T, h, err)
		ctx, cancel := context.WithCancel(context.Background())
		b := coord.NewRWMutex(w.Open("b", nil), "/rw", nil)
		writer := w.side(func(context.Context) (*coord.Hold, error) { return b.Lock(ctx) })
		behind := w.side(coord.NewRWMutex(w.Open("c", nil), "/rw", nil).RLock)
		cancel()
		<-writer.Done
		coordtest.WantErr(w.T, writer.Err, context.Canceled)
		coordtest.MustRelease(w.T, behind.Hold())
		coordtest.MustRelease(w.T, reader)
		w.Empty("/rw")
	})
}

// Curator-276, -621: a downgrade admitted a waiting writer.
func (on rwmutexTests) AWaitingWriterStaysOutThroughADowngrade(t *testing.T) {
	for _, lost := range []string{"nothing", "the request", "the reply"} {
		t.Run("lost: "+lost, func(t *testing.T) {
			on.each(t, func(w *world) {
				ctx := context.Background()
				w.resource("/r")
				a := coord.NewRWMutex(w.Open("a", nil), "/rw", nil)
				h, err := a.Lock(ctx)
				h = must(w.T, h, err)
				token, path, guard := h.Token(), h.Path(), h.Guard()
				writer := w.side(coord.NewRWMutex(w.Open("b", nil), "/rw", nil).Lock)
				reader := w.side(coord.NewRWMutex(w.Open("c", nil), "/rw", nil).RLock)
				switch lost {
				case "the request":
					w.Link("a").DropNextRequest()
				case "the reply":
					w.Link("a").DropNextReply()
				}
				if err := a.Downgrade(ctx, h); err != nil {
					w.T.Fatal(err)
				}
				if h.Err() != nil || h.Token() != token || h.Path() == path {
					w.T.Errorf("after the downgrade: %v, token %d of %d, path %s", h.Err(), h.Token(), token, h.Path())
				}
				if err := h.Verify(ctx); err != nil {
					w.T.Error(err)
				}
				// The guard of the write hold fails, the guard of the read hold succeeds.
				_, err = w.Session("x").Commit(ctx, append(guard.Ops(), backend.SetData(w.Path("/r"), nil, backend.AnyVersion))...)
				coordtest.WantErr(w.T, err, coord.ErrNotFound)
				if err := w.guarded(h, "/r", "reader"); err != nil {
					w.T.Error(err)
				}
				w.Settle()
				writer.Pending()
				reader.Pending() // behind the writer
				if n := len(w.Children("/rw")); n != 3 {
					w.T.Errorf("%d nodes, want 3", n)
				}
				coordtest.WantErr(w.T, a.Downgrade(ctx, h), coord.ErrInvalid)
				coordtest.MustRelease(w.T, h)
				wh := writer.Hold()
				if wh.Token() <= token {
					w.T.Errorf("token %d after %d", wh.Token(), token)
				}
				coordtest.MustRelease(w.T, wh)
				coordtest.MustRelease(w.T, reader.Hold())
				w.Empty("/rw")
			})
		})
	}
}

func (on rwmutexTests) ADowngradeGrantsTheReadersRightBehind(t *testing.T) {
	on.each(t, func(w *world) {
		a := coord.NewRWMutex(w.Open("a", nil), "/rw", nil)
		h, err := a.Lock(context.Background())
		h = must(w.T, h, err)
		r1 := w.side(coord.NewRWMutex(w.Open("b", nil), "/rw", nil).RLock)
		r2 := w.side(coord.NewRWMutex(w.Open("c", nil), "/rw", nil).RLock)
		if err := a.Downgrade(context.Background(), h); err != nil {
			w.T.Fatal(err)
		}
		h1, h2 := r1.Hold(), r2.Hold()
		for _, h := range []*coord.Hold{h, h1, h2} {
			if err := h.Verify(context.Background()); err != nil {
				w.T.Error(err)
			}
			coordtest.MustRelease(w.T, h)
		}
		w.Empty("/rw")
	})
}

// The reply to a downgrade is lost, and then the service refuses the user until it is asked for the
// third time. The writer becomes a reader all the same, and leaves nothing behind.
func (on rwmutexTests) ADowngradeSurvivesARefusalOfTheUser(t *testing.T) {
	on.each(t, func(w *world) {
		var lose, refuse coordtest.Nth
		rw := coord.NewRWMutex(w.Open("a", &backendtest.Hooks{Before: refuse.Before, After: lose.After}), "/l", nil)
		h := coordtest.MustLock(w.T, rw)
		refusal := &backend.NoContactError{Err: backend.ErrDenied}
		lose.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
			refuse.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
				refuse.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error { return refusal })
				return refusal
			})
			return backend.ErrUncertain
		})
		w.must(rw.Downgrade(context.Background(), h))
		if !refuse.Idle() {
			w.T.Error("the user was not refused twice")
		}
		w.must(h.Err())
		coordtest.MustRelease(w.T, h)
		w.Empty("/l")
	})
}

// The hold's own watch must follow the hold to its new node.
func (on rwmutexTests) ADowngradedHoldEndsWhenItsNewNodeIsDeleted(t *testing.T) {
	on.each(t, func(w *world) {
		a := coord.NewRWMutex(w.Open("a", nil), "/rw", nil)
		first, err := a.Lock(context.Background())
		first = must(w.T, first, err)
		second := w.side(coord.NewRWMutex(w.Open("b", nil), "/rw", nil).Lock)
		coordtest.MustRelease(w.T, first)
		h := second.Hold() // has its watch armed
		b := coord.NewRWMutex(w.Open("b2", nil), "/rw", nil)
		coordtest.WantErr(w.T, b.Downgrade(context.Background(), h), coord.ErrInvalid) // another client's
		same := coord.NewRWMutex(w.Open("b3", nil), "/other", nil)
		coordtest.WantErr(w.T, same.Downgrade(context.Background(), h), coord.ErrInvalid)
		coordtest.WantErr(w.T, same.Downgrade(context.Background(), nil), coord.ErrInvalid)
		coordtest.MustRelease(w.T, h)

		h, err = a.Lock(context.Background())
		h = must(w.T, h, err)
		if err := a.Downgrade(context.Background(), h); err != nil {
			w.T.Fatal(err)
		}
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-h.Done()
		coordtest.WantErr(w.T, h.Err(), coord.ErrLost, coord.ErrDeleted)
	})
}

func (on rwmutexTests) ADowngradeOfALostHoldReportsTheLoss(t *testing.T) {
	on.each(t, func(w *world) {
		a := coord.NewRWMutex(w.Open("a", nil), "/rw", nil)
		h, err := a.Lock(context.Background())
		h = must(w.T, h, err)
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, a.Downgrade(context.Background(), h), coord.ErrLost, coord.ErrDeleted)
		h, err = a.Lock(context.Background())
		h = must(w.T, h, err)
		w.Link("a").Expire(h.Session())
		<-h.Done()
		coordtest.WantErr(w.T, a.Downgrade(context.Background(), h), coord.ErrLost)
	})
}

func (on rwmutexTests) ADowngradeContinuesAfterItsCallerGivesUp(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		a := coord.NewRWMutex(w.Open("a", &backendtest.Hooks{After: after.After}), "/rw", nil)
		h, err := a.Lock(context.Background())
		h = must(w.T, h, err)
		ctx, cancel := context.WithCancel(context.Background())
		let := make(chan struct{})
		after.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
			cancel()
			<-let
			return err
		})
		coordtest.WantErr(w.T, a.Downgrade(ctx, h), context.Canceled, coord.ErrUncertain)
		released := make(chan error)
		go func() { released <- h.Release() }() // waits for the downgrade under way
		w.Settle()
		close(let)
		if err := <-released; err != nil {
			w.T.Error(err)
		}
		w.Empty("/rw")
	})
}

func (on rwmutexTests) AReaderCannotBecomeTheWriter(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		rw := coord.NewRWMutex(c, "/rw", nil)
		other := coord.NewMutex(c, "/m", nil)
		err := rw.RLocker().Do(context.Background(), func(ctx context.Context, _ *coord.Hold) error {
			_, err := rw.TryLock(ctx)
			coordtest.WantErr(w.T, err, coord.ErrUpgrade)
			return other.Do(ctx, func(ctx context.Context, _ *coord.Hold) error {
				_, err := rw.Lock(ctx) // within another hold too
				coordtest.WantErr(w.T, err, coord.ErrUpgrade)
				h, err := rw.RLock(ctx)
				coordtest.MustRelease(w.T, must(w.T, h, err))
				return nil
			})
		})
		if err != nil {
			w.T.Fatal(err)
		}
		if err := rw.Do(context.Background(), func(context.Context, *coord.Hold) error { return nil }); err != nil {
			w.T.Fatal(err)
		}
		w.Empty("/rw")
	})
}

func (on rwmutexTests) TheTokensOfContendersAreThoseOfTheHolds(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		rw := coord.NewRWMutex(w.Open("a", nil), "/rw", nil)
		token := func() int64 {
			list, err := rw.Contenders(ctx)
			if err != nil || len(list) != 1 {
				w.T.Fatal(list, err)
			}
			return list[0].Token
		}
		for name, lock := range map[string]func(context.Context) (*coord.Hold, error){"writer": rw.Lock, "reader": rw.RLock} {
			h, err := lock(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			if got := token(); got != h.Token() {
				w.T.Errorf("%s: %d, and its hold says %d", name, got, h.Token())
			}
			coordtest.MustRelease(w.T, h)
		}
		h := coordtest.MustLock(w.T, rw)
		if err := rw.Downgrade(ctx, h); err != nil {
			w.T.Fatal(err)
		}
		if got := token(); got != 0 {
			w.T.Errorf("a reader that was the writer: %d", got)
		}
		coordtest.MustRelease(w.T, h)
	})
}
