package coord_test

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

func TestLockAllAcquiresAllOrNone(t *testing.T) {
	onEach(t, func(w *world) {
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
func TestLockAllReleasesItsLocksWhenOneCannotBeAcquired(t *testing.T) {
	onEach(t, func(w *world) {
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

func TestLockAllIsLostWhenOneIsLost(t *testing.T) {
	onEach(t, func(w *world) {
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

func TestLockAllEndsWhenAPartIsLostWhileItWaits(t *testing.T) {
	onEach(t, func(w *world) {
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

func TestTwoCallersOfLockAllNeverWaitForEachOther(t *testing.T) {
	onEach(t, func(w *world) {
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

func TestLockAllRefusesBadInput(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		m, rw := coord.NewMutex(c, "/x", nil), coord.NewRWMutex(c, "/rw", nil)
		for name, lockers := range map[string][]coord.Locker{
			"nothing":           nil,
			"one path twice":    {m, coord.NewMutex(c, "/x", nil)},
			"both sides":        {rw, rw.RLocker()},
			"one lock wrapped":  {m, wrapped{m}},
			"a nil one wrapped": {m, wrapped{(*coord.Mutex)(nil)}},
			"nil":               {nil},
			"no mutex":          {(*coord.Mutex)(nil)},
			"no writer":         {m, (*coord.RWMutex)(nil)},
			"no reader":         {(*coord.RWMutex)(nil).RLocker(), m},
			"no permits":        {(*coord.Semaphore)(nil).Locker(1)},
		} {
			if _, err := coord.LockAll(context.Background(), lockers...); !errors.Is(err, coord.ErrInvalid) {
				w.T.Errorf("%s: %v", name, err)
			}
		}
		_, err := coord.LockAll(context.Background(), m, coord.NewMutex(c, "bad", nil))
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
		if left := w.Children("/x"); len(left) != 0 {
			w.T.Errorf("left behind: %v", left)
		}
	})
}

// A wrapper without a Locker is a programming error: LockAll panics before it acquires a lock.
func TestLockAllPanicsForAWrapperAroundNothing(t *testing.T) {
	for name, nothing := range map[string]coord.Locker{"nothing embedded": wrapped{}, "a nil wrapper": (*wrapped)(nil)} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				m := coord.NewMutex(w.Open("a", nil), "/a", nil)
				func() {
					defer func() {
						if recover() == nil {
							w.T.Error("no panic")
						}
					}()
					coord.LockAll(context.Background(), m, nothing)
				}()
				h, err := m.TryLock(context.Background())
				coordtest.MustRelease(w.T, must(w.T, h, err))
			})
		})
	}
}

// wrapped is a Locker of another package.
type wrapped struct{ coord.Locker }

// Permits are acquired together with locks, in the order of the paths.
func TestLockAllTakesPermits(t *testing.T) {
	onEach(t, func(w *world) {
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
func TestLockAllDistinguishesServices(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
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

func TestASetEndsWithTheFirstOfItsHoldsAndKeepsTheReason(t *testing.T) {
	onEach(t, func(w *world) {
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

// A process that was paused learns of the loss from its first call of Err or Done.
func TestASetComparesTheLeasesWithTheClock(t *testing.T) {
	for name, ended := range map[string]func(*coord.HoldSet) bool{
		"Err": func(s *coord.HoldSet) bool { return s.Err() != nil },
		"Done": func(s *coord.HoldSet) bool {
			select {
			case <-s.Done():
				return true
			default:
				return false
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				set := w.two(w.Open("a", nil), w.Open("b", nil))
				w.Link("b").Partition()
				for start := time.Now(); !ended(set); time.Sleep(time.Millisecond) {
					if time.Since(start) > w.Timeout {
						w.T.Fatal("no loss is reported before the service ends the session")
					}
				}
				if err := set.Err(); err == nil || !ended(set) {
					w.T.Errorf("%v, and Done: %v", err, ended(set))
				}
				w.Link("b").Heal()
				coordtest.WantErr(w.T, set.Release(), coord.ErrLost, coord.ErrSessionLost)
				w.Empty("/x")
			})
		})
	}
}

func TestASetEndsWhenOneOfItsHoldsIsReleasedAlone(t *testing.T) {
	onEach(t, func(w *world) {
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
func TestLockAllReturnsWhenItsContextEndsWithoutContact(t *testing.T) {
	onEach(t, func(w *world) {
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
