package recipetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestLockAll_RefusesBadInput(t *testing.T) {
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
func TestLockAll_PanicsForAWrapperAroundNothing(t *testing.T) {
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

// A process that was paused learns of the loss from its first call of Err or Done.
func TestLockAll_ASetComparesTheLeasesWithTheClock(t *testing.T) {
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
