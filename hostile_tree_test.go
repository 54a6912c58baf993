package coord_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// raze deletes the node at path and all below it, in no hurry to be thorough.
func raze(ctx context.Context, s backend.Session, path string) {
	names, _, err := s.Children(ctx, path, nil)
	if err != nil {
		return
	}
	for _, name := range names {
		raze(ctx, s, path+"/"+name)
	}
	s.Commit(ctx, backend.Delete(path, backend.AnyVersion))
}

// razed deletes all, for sure.
func (w *world) razed(path string) {
	w.t.Helper()
	s := w.session("razer")
	w.eventually(path+" is gone", func() bool {
		raze(context.Background(), s, w.path(path))
		_, err := s.Exists(context.Background(), w.path(path), nil)
		return errors.Is(err, backend.ErrNotFound)
	})
}

// ephemerals are the paths of the nodes below path that belong to a session.
func (w *world) ephemerals(s backend.Session, path string) (found []string) {
	names, _, err := s.Children(context.Background(), path, nil)
	if err != nil {
		return nil
	}
	for _, name := range names {
		at := path + "/" + name
		if stat, err := s.Exists(context.Background(), at, nil); err == nil && stat.EphemeralOwner > 0 {
			found = append(found, at)
		}
		found = append(found, w.ephemerals(s, at)...)
	}
	return found
}

// typed reports whether an error is one of the manual's.
func typed(err error) bool {
	return slices.ContainsFunc([]error{
		coord.ErrLost, coord.ErrReleased, coord.ErrDeleted, coord.ErrRevoked, coord.ErrLocked, coord.ErrEmpty, coord.ErrConflict, coord.ErrInDoubt,
		coord.ErrNotFound, coord.ErrUncertain, coord.ErrDenied, coord.ErrLimit, coord.ErrDuplicate, coord.ErrInvalid, coord.ErrDecode,
		coord.ErrSessionLost, backend.ErrNotEmpty, context.DeadlineExceeded,
	}, func(target error) bool { return errors.Is(err, target) })
}

// Somebody deletes the directories, and all that is in them, again and again while
// they are used. No call hangs, spins or panics, and when it is over all works.
func TestDirectoriesThatAreDeletedInUse(t *testing.T) {
	t.Parallel()
	for _, y := range fullUses() {
		t.Run(y.recipe, func(t *testing.T) {
			onEach(t, func(w *world) {
				var calls atomic.Int64
				x := &useRun{w: w, a: w.counting("a", &calls), b: w.counting("b", &calls), path: "/r", payload: "v"}
				stop, stopped := make(chan struct{}), make(chan struct{})
				vandal := w.session("vandal")
				if w.fake {
					for _, name := range []string{"a", "b", "vandal"} { // or nothing comes between two steps
						w.Link(name).(interface{ SetLatency(time.Duration) }).SetLatency(time.Millisecond)
					}
				}
				go func() {
					defer close(stopped)
					for pause := 1; ; pause = pause%7 + 1 {
						raze(context.Background(), vandal, w.path("/r"))
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(pause) * 3 * time.Millisecond):
						}
					}
				}()
				runs, failed := 0, 0
				for start := time.Now(); time.Since(start) < time.Second; runs++ {
					time.Sleep(2 * time.Millisecond) // fake time goes on only then
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					calls.Store(0)
					err := y.run(ctx, x)
					cancel()
					if err != nil {
						failed++
						if !typed(err) && !strings.Contains(err.Error(), "waits") && !untyped(err) {
							w.t.Errorf("%v", err)
						}
					}
					if n := calls.Load(); n > 4000 {
						w.t.Errorf("%d requests in a run of at most a second", n)
					}
				}
				close(stop)
				<-stopped
				w.razed("/r")
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				defer cancel()
				if err := y.run(ctx, x); err != nil {
					w.t.Errorf("afterwards: %v", err)
				}
				s := w.session("observer2")
				w.eventually("nothing is left of a session", func() bool {
					s.Sync(context.Background(), "/")
					return len(w.ephemerals(s, w.path("/r"))) == 0
				})
				w.t.Logf("figure: %s: %d runs against a vandal, %d failed with an error of the manual", y.recipe, runs, failed)
			})
		})
	}
}

// untyped are the words of the uses themselves, about what they did not find.
func untyped(err error) bool {
	return slices.ContainsFunc([]string{"members, ", "items left", "leader of another kind", "peek: ", "took ", "aborted by", "two have it"}, func(s string) bool {
		return strings.Contains(err.Error(), s)
	})
}

// The permissions are taken away at each step of each recipe, and come back later. Who
// is refused says so, asks no more than now and then, and leaves nothing behind.
func TestPermissionsThatAreTakenAwayAtEachStep(t *testing.T) {
	t.Parallel()
	for _, y := range fullUses() {
		t.Run(y.recipe, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var at, seen atomic.Int64 // refused from this call on, 0: never
				hooks := &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					n := seen.Add(1)
					if from := at.Load(); from == 0 || n < from || !strings.HasPrefix(c.Path, "/r") {
						return nil
					}
					return &backend.Error{Op: c.Op, Path: c.Path, Index: 0, Err: backend.ErrDenied}
				}}
				x := &useRun{w: w, a: w.open("a", hooks), b: w.open("b", hooks), path: "/r", payload: "v"}
				s := w.session("observer2")
				steps, told := 0, 0
				for n := int64(1); ; n++ {
					at.Store(0)
					w.razed("/r")
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
					seen.Store(0)
					at.Store(n)
					err := y.run(ctx, x)
					during := seen.Load()
					cancel()
					if during < n {
						break // the run is shorter
					}
					steps++
					switch {
					case errors.Is(err, coord.ErrDenied):
						told++
					case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, coord.ErrUncertain), errors.Is(err, coord.ErrLocked):
					default:
						w.t.Errorf("step %d: %v", n, err)
					}
					if during > n+400 {
						w.t.Errorf("step %d: %d requests that were refused", n, during-n)
					}
					seen.Store(n)
					time.Sleep(time.Minute) // of fake time
					if after := seen.Load() - n; after > 1000 {
						w.t.Errorf("step %d: %d requests within the minute after the call had failed", n, after)
					}
					at.Store(0)
					time.Sleep(30 * time.Second) // the pauses have grown
					if left := w.ephemerals(s, "/r"); len(left) > 0 {
						w.t.Fatalf("step %d: left behind: %v; the run said %v", n, left, err)
					}
					if n > 300 {
						w.t.Fatal("the run does not end")
					}
				}
				at.Store(0)
				w.razed("/r")
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				if err := y.run(ctx, x); err != nil {
					w.t.Errorf("afterwards: %v", err)
				}
				w.t.Logf("figure: %s: refused from each of %d steps on, %d told of it", y.recipe, steps, told)
				if told == 0 {
					w.t.Error("nobody was told")
				}
			})
		})
	}
}
