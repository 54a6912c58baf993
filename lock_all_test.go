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
)

func TestLockAllHasAllOrNone(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		w.resource("/r")
		c := w.open("a", nil)
		x, y, rw := coord.NewMutex(c, "/x", nil), coord.NewMutex(c, "/y", nil), coord.NewRWMutex(c, "/rw", nil)
		set, err := coord.LockAll(ctx, y, rw.RLocker(), x)
		if err != nil {
			w.t.Fatal(err)
		}
		if holds := set.Holds(); len(holds) != 3 || holds[0].Token() != 0 || holds[1].Token() == 0 || holds[1].Token() >= holds[2].Token() {
			w.t.Errorf("not taken in the order of the paths: %v", holds)
		}
		other := w.open("b", nil)
		for _, l := range []coord.Locker{coord.NewMutex(other, "/x", nil), coord.NewMutex(other, "/y", nil), coord.NewRWMutex(other, "/rw", nil)} {
			_, err := l.TryLock(ctx)
			wantErr(w.t, err, coord.ErrLocked)
		}
		write := func() error {
			_, err := w.session("guarded").Commit(ctx, append(set.Guard().Ops(), backend.SetData(w.path("/r"), nil, backend.AnyVersion))...)
			return err
		}
		if err := write(); err != nil {
			w.t.Error(err)
		}
		if err := set.Verify(ctx); err != nil {
			w.t.Error(err)
		}
		inside := set.Context(ctx)
		if err := set.Release(); err != nil {
			w.t.Error(err)
		}
		<-set.Done()
		<-inside.Done()
		wantErr(w.t, set.Err(), coord.ErrReleased)
		wantErr(w.t, context.Cause(inside), coord.ErrReleased)
		wantErr(w.t, write(), coord.ErrNotFound)
		for _, p := range []string{"/x", "/y", "/rw"} {
			w.empty(p)
		}
	})
}

// Curator's InterProcessMultiLock goes on after a failure and counts the timeout
// for each lock.
func TestLockAllGivesBackWhatItHasWhenOneCannotBeHad(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.open("a", nil)
		taken := mustLock(w.t, coord.NewMutex(w.open("b", nil), "/b", nil))
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := coord.LockAll(ctx, coord.NewMutex(c, "/c", nil), coord.NewMutex(c, "/b", nil), coord.NewMutex(c, "/a", nil))
		wantErr(w.t, err, context.DeadlineExceeded)
		if d := time.Since(start); d > 5*time.Second {
			w.t.Errorf("took %v: one deadline for all", d)
		}
		w.empty("/a")
		w.empty("/c")
		mustRelease(w.t, taken)
		w.empty("/b")
	})
}

func TestLockAllIsLostWhenOneIsLost(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.open("a", nil)
		set, err := coord.LockAll(context.Background(), coord.NewMutex(c, "/x", nil), coord.NewMutex(c, "/y", nil))
		if err != nil {
			w.t.Fatal(err)
		}
		ctx := set.Context(context.Background())
		if _, err := w.session("x").Commit(context.Background(), backend.Delete(set.Holds()[1].Path(), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		<-set.Done()
		<-ctx.Done()
		wantErr(w.t, set.Err(), coord.ErrLost, coord.ErrDeleted)
		wantErr(w.t, set.Release(), coord.ErrLost, coord.ErrDeleted)
		w.empty("/x") // the other was given back
	})
}

func TestLockAllEndsWhenAPartIsLostWhileItWaits(t *testing.T) {
	onEach(t, func(w *world) {
		taken := mustLock(w.t, coord.NewMutex(w.open("b", nil), "/b", nil))
		c := w.open("a", nil)
		a := coord.NewMutex(c, "/a", nil)
		done := make(chan error, 1)
		n := w.waits.Load()
		go func() {
			_, err := coord.LockAll(context.Background(), a, coord.NewMutex(c, "/b", nil))
			done <- err
		}()
		w.eventually("LockAll waits for the second", func() bool { return w.waits.Load() > n })
		list, err := a.Contenders(context.Background())
		if err != nil || len(list) != 1 {
			w.t.Fatal(list, err)
		}
		if _, err := w.session("x").Commit(context.Background(), backend.Delete(list[0].Path, backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		wantErr(w.t, <-done, coord.ErrLost, coord.ErrDeleted)
		w.eventually("the wait is given up", func() bool { return len(w.children("/b")) == 1 })
		mustRelease(w.t, taken)
	})
}

func TestTwoCallersOfLockAllNeverWaitForEachOther(t *testing.T) {
	onEach(t, func(w *world) {
		var wg sync.WaitGroup
		for i, name := range []string{"a", "b", "c"} {
			c := w.open(name, nil)
			x, y, z := coord.NewMutex(c, "/x", nil), coord.NewMutex(c, "/y", nil), coord.NewRWMutex(c, "/z", nil)
			orders := [][]coord.Locker{{x, y, z}, {z, y, x}, {y, z, x}}
			wg.Go(func() {
				for range 10 {
					set, err := coord.LockAll(context.Background(), orders[i]...)
					if err != nil {
						w.t.Error(err)
						return
					}
					if err := set.Release(); err != nil {
						w.t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		w.empty("/x")
	})
}

func TestLockAllRefusesWhatMakesNoSense(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", nil)
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
				w.t.Errorf("%s: %v", name, err)
			}
		}
		_, err := coord.LockAll(context.Background(), m, coord.NewMutex(c, "bad", nil))
		wantErr(w.t, err, coord.ErrBadPath)
		if left := w.children("/x"); len(left) != 0 {
			w.t.Errorf("left behind: %v", left)
		}
	})
}

// A wrapper that was never given a Locker is a mistake in the program. It shows before
// anything is locked.
func TestLockAllPanicsForAWrapperAroundNothing(t *testing.T) {
	for name, nothing := range map[string]coord.Locker{"nothing embedded": wrapped{}, "a nil wrapper": (*wrapped)(nil)} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				m := coord.NewMutex(w.open("a", nil), "/a", nil)
				func() {
					defer func() {
						if recover() == nil {
							w.t.Error("no panic")
						}
					}()
					coord.LockAll(context.Background(), m, nothing)
				}()
				h, err := m.TryLock(context.Background())
				mustRelease(w.t, must(w.t, h, err))
			})
		})
	}
}

// wrapped is a Locker of another package.
type wrapped struct{ coord.Locker }

// Permits are had together with locks, in the order of the paths.
func TestLockAllTakesPermits(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		c := w.open("a", nil)
		sem := coord.NewSemaphore(c, "/b", 3, nil)
		set, err := coord.LockAll(ctx, wrapped{coord.NewMutex(c, "/c", nil)}, sem.Locker(2), coord.NewMutex(c, "/a", nil))
		if err != nil {
			w.t.Fatal(err)
		}
		if h := set.Holds()[1]; !strings.Contains(h.Path(), "permit-2-") {
			w.t.Errorf("the second hold stands on %s", h.Path())
		}
		_, err = sem.Locker(2).TryLock(ctx)
		wantErr(w.t, err, coord.ErrLocked)
		if err := sem.Locker(1).Do(ctx, func(context.Context, *coord.Hold) error { return nil }); err != nil {
			w.t.Error(err)
		}
		if err := set.Release(); err != nil {
			w.t.Error(err)
		}
	})
}

// Equal paths on two services are two locks, and on one service one.
func TestLockAllTellsServicesApart(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		a, b := w.open("a", nil), w.open("b", nil)
		elsewhere := open(w.t, memory.New(nil), &coord.Options{Namespace: w.path("")})
		set, err := coord.LockAll(ctx, coord.NewMutex(a, "/x", nil), coord.NewMutex(elsewhere, "/x", nil))
		if err != nil {
			w.t.Fatal(err)
		}
		if err := set.Verify(ctx); err != nil {
			w.t.Error(err)
		}
		if err := set.Release(); err != nil {
			w.t.Error(err)
		}
		_, err = coord.LockAll(ctx, coord.NewMutex(a, "/x", nil), coord.NewMutex(b, "/x", nil))
		wantErr(w.t, err, coord.ErrHeld)
		w.empty("/x")
	})
}

// two locks /x and /y by two clients.
func (w *world) two(a, b *coord.Client) *coord.HoldSet {
	w.t.Helper()
	set, err := coord.LockAll(context.Background(), coord.NewMutex(a, "/x", nil), coord.NewMutex(b, "/y", nil))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := set.Err(); err != nil {
		w.t.Fatalf("a set that stands: %v", err)
	}
	return set
}

func TestASetEndsWithTheFirstOfItsHoldsAndKeepsTheReason(t *testing.T) {
	onEach(t, func(w *world) {
		set := w.two(w.open("a", nil), w.open("b", nil))
		ctx := set.Context(context.Background())
		x, y := set.Holds()[0], set.Holds()[1]
		w.Link("b").Expire(y.Session())
		<-set.Done()
		first := set.Err()
		wantErr(w.t, first, coord.ErrLost)
		if x.Err() != nil {
			w.t.Errorf("the other hold: %v", x.Err())
		}
		if _, err := w.session("x").Commit(context.Background(), backend.Delete(x.Path(), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		<-x.Done()
		if err := set.Err(); err != first || err != y.Err() {
			w.t.Errorf("%v, want the first reason, %v", err, first)
		}
		<-ctx.Done()
		if cause := context.Cause(ctx); cause != first {
			w.t.Errorf("cause %v, want %v", cause, first)
		}
		wantErr(w.t, set.Verify(context.Background()), coord.ErrLost)
		err := set.Release() // tells of both
		if !errors.Is(err, x.Err()) || !errors.Is(err, y.Err()) {
			w.t.Errorf("released: %v", err)
		}
	})
}

// A process that was paused learns of the loss from its first question.
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
				set := w.two(w.open("a", nil), w.open("b", nil))
				w.Link("b").Partition()
				for start := time.Now(); !ended(set); time.Sleep(time.Millisecond) {
					if time.Since(start) > w.timeout {
						w.t.Fatal("not told before the service ends the session")
					}
				}
				if err := set.Err(); err == nil || !ended(set) {
					w.t.Errorf("%v, and Done: %v", err, ended(set))
				}
				w.Link("b").Heal()
				wantErr(w.t, set.Release(), coord.ErrLost, coord.ErrSessionLost)
				w.empty("/x")
			})
		})
	}
}

func TestASetEndsWhenOneOfItsHoldsIsReleasedAlone(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.open("a", nil)
		set := w.two(c, c)
		mustRelease(w.t, set.Holds()[0])
		<-set.Done()
		wantErr(w.t, set.Err(), coord.ErrReleased)
		if len(w.children("/y")) != 1 {
			w.t.Error("the other was released too")
		}
		if err := set.Release(); err != nil {
			w.t.Error(err)
		}
		w.empty("/x")
		w.empty("/y")
	})
}

// What was acquired cannot be given back while contact is broken; the caller does
// not wait for that.
func TestLockAllReturnsWhenItsContextEndsWithoutContact(t *testing.T) {
	onEach(t, func(w *world) {
		taken := mustLock(w.t, coord.NewMutex(w.open("b", nil), "/b", nil))
		c := w.open("a", nil)
		ctx, cancel := context.WithCancel(context.Background())
		n := w.waits.Load()
		done := make(chan error, 1)
		go func() {
			_, err := coord.LockAll(ctx, coord.NewMutex(c, "/a", nil), coord.NewMutex(c, "/b", nil))
			done <- err
		}()
		w.eventually("LockAll waits for the second", func() bool { return w.waits.Load() > n })
		w.Link("a").Partition()
		start := time.Now()
		cancel()
		wantErr(w.t, <-done, context.Canceled)
		// It would last until the session is lost, two thirds of the timeout.
		if d := time.Since(start); d > w.timeout/3 {
			w.t.Errorf("returned %v after its ctx had ended", d)
		}
		w.Link("a").Heal()
		w.empty("/a")
		w.eventually("the wait is given up", func() bool { return len(w.children("/b")) == 1 })
		mustRelease(w.t, taken)
	})
}
