package coord_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

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
