package recipetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// lockTests are tests of LockAll on each service.
type lockTests struct{ Services }

func (on lockTests) AcquiresAllOrNone(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		w.resource("/r")
		c := w.Open("a", nil)
		x, y, rw := coord.NewMutex(c, "/x", nil), coord.NewMutex(c, "/y", nil), coord.NewRWMutex(c, "/rw", nil)
		set, err := coord.LockAll(ctx, y, rw.RLocker(), x)
		if err != nil {
			w.T.Fatal(err)
		}
		holds := set.Holds()
		if len(holds) != 3 || holds[0].Token() != 0 || holds[1].Token() == 0 || holds[2].Token() == 0 {
			w.T.Fatalf("%d holds", len(holds))
		}
		for i, dir := range []string{"/rw", "/x", "/y"} {
			if !strings.HasPrefix(holds[i].Path(), w.Path(dir)+"/") {
				w.T.Errorf("hold %d is at %s, want the order of the paths", i, holds[i].Path())
			}
		}
		other := w.Open("b", nil)
		for _, l := range []coord.Locker{coord.NewMutex(other, "/x", nil), coord.NewMutex(other, "/y", nil), coord.NewRWMutex(other, "/rw", nil)} {
			_, err := l.TryLock(ctx)
			coordtest.WantErr(w.T, err, coord.ErrLocked)
		}
		write := func() error {
			_, err := w.Session("guarded").Commit(ctx, append(set.Guard().Ops(), backend.SetData(w.Path("/r"), nil, backend.AnyVersion))...)
			return err
		}
		if err := write(); err != nil {
			w.T.Error(err)
		}
		if err := set.Verify(ctx); err != nil {
			w.T.Error(err)
		}
		inside := set.Context(ctx)
		if err := set.Release(); err != nil {
			w.T.Error(err)
		}
		<-set.Done()
		<-inside.Done()
		coordtest.WantErr(w.T, set.Err(), coord.ErrReleased)
		coordtest.WantErr(w.T, context.Cause(inside), coord.ErrReleased)
		coordtest.WantErr(w.T, write(), coord.ErrNotFound)
		for _, p := range []string{"/x", "/y", "/rw"} {
			w.Empty(p)
		}
	})
}

// Curator's InterProcessMultiLock continues after a failure and applies the timeout to each
// lock.
func (on lockTests) ReleasesItsLocksWhenOneCannotBeAcquired(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		taken := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/b", nil))
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := coord.LockAll(ctx, coord.NewMutex(c, "/c", nil), coord.NewMutex(c, "/b", nil), coord.NewMutex(c, "/a", nil))
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		if d := time.Since(start); w.Fake && d > 5*time.Second {
			w.T.Errorf("took %v, want one deadline for all", d)
		}
		w.Empty("/a")
		w.Empty("/c")
		coordtest.MustRelease(w.T, taken)
		w.Empty("/b")
	})
}

func (on lockTests) IsLostWhenOneIsLost(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		set, err := coord.LockAll(context.Background(), coord.NewMutex(c, "/x", nil), coord.NewMutex(c, "/y", nil))
		if err != nil {
			w.T.Fatal(err)
		}
		ctx := set.Context(context.Background())
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(set.Holds()[1].Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-set.Done()
		<-ctx.Done()
		coordtest.WantErr(w.T, set.Err(), coord.ErrLost, coord.ErrDeleted)
		coordtest.WantErr(w.T, set.Release(), coord.ErrLost, coord.ErrDeleted)
		w.Empty("/x") // the other lock was released
	})
}

func (on lockTests) EndsWhenAPartIsLostWhileItWaits(t *testing.T) {
	on.each(t, func(w *world) {
		taken := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/b", nil))
		c := w.Open("a", nil)
		a := coord.NewMutex(c, "/a", nil)
		done := make(chan error, 1)
		n := w.Waits.Load()
		go func() {
			_, err := coord.LockAll(context.Background(), a, coord.NewMutex(c, "/b", nil))
			done <- err
		}()
		w.Eventually("LockAll waits for the second", func() bool { return w.Waits.Load() > n })
		list, err := a.Contenders(context.Background())
		if err != nil || len(list) != 1 {
			w.T.Fatal(list, err)
		}
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(list[0].Path, backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, <-done, coord.ErrLost, coord.ErrDeleted)
		w.Eventually("the wait is given up", func() bool { return len(w.Children("/b")) == 1 })
		coordtest.MustRelease(w.T, taken)
	})
}

func (on lockTests) TwoCallersOfLockAllNeverWaitForEachOther(t *testing.T) {
	on.each(t, func(w *world) {
		var wg sync.WaitGroup
		for i, name := range []string{"a", "b", "c"} {
			c := w.Open(name, nil)
			x, y, z := coord.NewMutex(c, "/x", nil), coord.NewMutex(c, "/y", nil), coord.NewRWMutex(c, "/z", nil)
			orders := [][]coord.Locker{{x, y, z}, {z, y, x}, {y, z, x}}
			wg.Go(func() {
				for range 10 {
					set, err := coord.LockAll(context.Background(), orders[i]...)
					if err != nil {
						w.T.Error(err)
						return
					}
					if err := set.Release(); err != nil {
						w.T.Error(err)
					}
				}
			})
		}
		wg.Wait()
		w.Empty("/x")
	})
}

// wrapped is a Locker of another package.
type wrapped struct{ coord.Locker }

// Permits are acquired together with locks, in the order of the paths.
func (on lockTests) TakesPermits(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		sem := coord.NewSemaphore(c, "/b", 3, nil)
		set, err := coord.LockAll(ctx, wrapped{coord.NewMutex(c, "/c", nil)}, sem.Locker(2), coord.NewMutex(c, "/a", nil))
		if err != nil {
			w.T.Fatal(err)
		}
		if h := set.Holds()[1]; !strings.Contains(h.Path(), "permit-2-") {
			w.T.Errorf("the node of the second hold is %s", h.Path())
		}
		_, err = sem.Locker(2).TryLock(ctx)
		coordtest.WantErr(w.T, err, coord.ErrLocked)
		if err := sem.Locker(1).Do(ctx, func(context.Context, *coord.Hold) error { return nil }); err != nil {
			w.T.Error(err)
		}
		if err := set.Release(); err != nil {
			w.T.Error(err)
		}
	})
}

// Equal paths on two services are two locks; on one service they are one lock.
func (on lockTests) DistinguishesServices(t *testing.T) {
	on.each(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), coordtest.Limit)
		defer cancel()
		a, b := w.Open("a", nil), w.Open("b", nil)
		elsewhere := coordtest.Open(w.T, memory.New(nil), &coord.Options{Namespace: w.Path("")})
		set, err := coord.LockAll(ctx, coord.NewMutex(a, "/x", nil), coord.NewMutex(elsewhere, "/x", nil))
		if err != nil {
			w.T.Fatal(err)
		}
		if err := set.Verify(ctx); err != nil {
			w.T.Error(err)
		}
		if err := set.Release(); err != nil {
			w.T.Error(err)
		}
		_, err = coord.LockAll(ctx, coord.NewMutex(a, "/x", nil), coord.NewMutex(b, "/x", nil))
		coordtest.WantErr(w.T, err, coord.ErrHeld)
		w.Empty("/x")
	})
}

// two acquires /x through a and /y through b, as one set.
func (w *world) two(a, b *coord.Client) *coord.HoldSet {
	w.T.Helper()
	set, err := coord.LockAll(context.Background(), coord.NewMutex(a, "/x", nil), coord.NewMutex(b, "/y", nil))
	if err != nil {
		w.T.Fatal(err)
	}
	if err := set.Err(); err != nil {
		w.T.Fatalf("a new set has ended: %v", err)
	}
	return set
}

func (on lockTests) ASetEndsWithTheFirstOfItsHoldsAndKeepsTheReason(t *testing.T) {
	on.each(t, func(w *world) {
		set := w.two(w.Open("a", nil), w.Open("b", nil))
		ctx := set.Context(context.Background())
		x, y := set.Holds()[0], set.Holds()[1]
		w.Link("b").Expire(y.Session())
		<-set.Done()
		first := set.Err()
		coordtest.WantErr(w.T, first, coord.ErrLost)
		if x.Err() != nil {
			w.T.Errorf("the other hold: %v", x.Err())
		}
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(x.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-x.Done()
		if err := set.Err(); err != first || err != y.Err() {
			w.T.Errorf("%v, want the first reason, %v", err, first)
		}
		<-ctx.Done()
		if cause := context.Cause(ctx); cause != first {
			w.T.Errorf("cause %v, want %v", cause, first)
		}
		coordtest.WantErr(w.T, set.Verify(context.Background()), coord.ErrLost)
		err := set.Release() // reports both
		if !errors.Is(err, x.Err()) || !errors.Is(err, y.Err()) {
			w.T.Errorf("released: %v", err)
		}
	})
}

func (on lockTests) ASetEndsWhenOneOfItsHoldsIsReleasedAlone(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		set := w.two(c, c)
		coordtest.MustRelease(w.T, set.Holds()[0])
		<-set.Done()
		coordtest.WantErr(w.T, set.Err(), coord.ErrReleased)
		if len(w.Children("/y")) != 1 {
			w.T.Error("the other hold was released too")
		}
		if err := set.Release(); err != nil {
			w.T.Error(err)
		}
		w.Empty("/x")
		w.Empty("/y")
	})
}

// While contact is broken, locks that were acquired cannot be released. The caller does not
// wait for their release.
func (on lockTests) ReturnsWhenItsContextEndsWithoutContact(t *testing.T) {
	on.each(t, func(w *world) {
		taken := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/b", nil))
		c := w.Open("a", nil)
		s, err := c.Session(context.Background())
		w.must(err)
		ctx, cancel := context.WithCancel(context.Background())
		n := w.Waits.Load()
		done := make(chan error, 1)
		go func() {
			_, err := coord.LockAll(ctx, coord.NewMutex(c, "/a", nil), coord.NewMutex(c, "/b", nil))
			done <- err
		}()
		w.Eventually("LockAll waits for the second", func() bool { return w.Waits.Load() > n })
		w.Link("a").Partition()
		start := time.Now()
		cancel()
		coordtest.WantErr(w.T, <-done, context.Canceled)
		if d := time.Since(start); w.Fake && d > w.Timeout/3 {
			w.T.Errorf("returned %v after its ctx had ended", d)
		}
		if s.Err() != nil {
			w.T.Error("it returned only when the session was lost")
		}
		w.Link("a").Heal()
		w.Empty("/a")
		w.Eventually("the wait is given up", func() bool { return len(w.Children("/b")) == 1 })
		coordtest.MustRelease(w.T, taken)
	})
}
