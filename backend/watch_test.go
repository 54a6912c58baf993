package backend_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/go-coord/coord/backend"
)

func fired(w *backend.Watch) bool {
	select {
	case <-w.Fired():
		return true
	default:
		return false
	}
}

func TestAWatchFiresOnceAndKeepsItsKind(t *testing.T) {
	w := backend.NewWatch()
	if fired(w) || w.Kind() != 0 {
		t.Fatal("a new watch has fired")
	}
	disarmed := 0
	if !w.Arm(func(*backend.Watch) { disarmed++ }) {
		t.Fatal("a new watch cannot be armed")
	}
	w.Fire(backend.Deleted)
	w.Fire(backend.LookAgain)
	if !fired(w) || w.Kind() != backend.Deleted {
		t.Fatalf("fired %v with %q", fired(w), w.Kind())
	}
	if w.Arm(nil) {
		t.Fatal("a watch that has fired was armed")
	}
	w.Stop()
	if disarmed != 0 || w.Kind() != backend.Deleted {
		t.Fatalf("Stop after the event disarmed %d times and left %q", disarmed, w.Kind())
	}
}

func TestAStoppedWatchDoesNotFire(t *testing.T) {
	w := backend.NewWatch()
	var got []*backend.Watch
	w.Arm(func(w *backend.Watch) {
		w.Stop() // without a deadlock
		w.Kind()
		got = append(got, w)
	})
	w.Stop()
	w.Stop()
	w.Fire(backend.Deleted)
	if fired(w) || w.Kind() != 0 {
		t.Fatalf("a stopped watch has fired with %q", w.Kind())
	}
	if len(got) != 1 || got[0] != w {
		t.Fatalf("disarmed %d times", len(got))
	}
	if w.Arm(nil) {
		t.Fatal("a stopped watch was armed")
	}
}

func TestAWatchMayHaveNothingToDisarm(t *testing.T) {
	w := backend.NewWatch()
	if !w.Arm(nil) {
		t.Fatal("not armed")
	}
	w.Stop()
	backend.NewWatch().Stop()
}

func TestAWatchIsStoppedOrFiredWhicheverComesFirst(t *testing.T) {
	for range 500 {
		w := backend.NewWatch()
		var mu sync.Mutex
		disarmed := 0
		w.Arm(func(*backend.Watch) {
			mu.Lock()
			defer mu.Unlock()
			disarmed++
		})
		var group sync.WaitGroup
		group.Go(w.Stop)
		group.Go(w.Stop)
		group.Go(func() { w.Fire(backend.LookAgain) })
		group.Go(func() { w.Fire(backend.Deleted) })
		group.Wait()
		if fired(w) != (w.Kind() != 0) {
			t.Fatalf("Fired returns %v, Kind returns %q", fired(w), w.Kind())
		}
		if fired(w) == (disarmed == 1) || disarmed > 1 {
			t.Fatalf("fired %v, disarmed %d times", fired(w), disarmed)
		}
	}
}

func TestTargetsAreChecked(t *testing.T) {
	w := backend.NewWatch()
	long := "/" + strings.Repeat("x", backend.MaxRequest/2-5) // two of them just fit
	for name, test := range map[string]struct {
		targets []backend.Target
		err     error
		path    string
	}{
		"one":             {[]backend.Target{{Path: "/a", Watch: w}}, nil, ""},
		"two":             {[]backend.Target{{Path: "/", Watch: w}, {Path: "/a/b", Children: true, Watch: w}}, nil, ""},
		"as much as fits": {[]backend.Target{{Path: long, Watch: w}, {Path: long, Watch: w}}, nil, ""},
		"none":            {nil, backend.ErrInvalid, ""},
		"no watch":        {[]backend.Target{{Path: "/a", Watch: w}, {Path: "/b"}}, backend.ErrInvalid, "/b"},
		"a bad path":      {[]backend.Target{{Path: "/a", Watch: w}, {Path: "b", Watch: w}}, backend.ErrBadPath, "b"},
		"bad all over":    {[]backend.Target{{Path: "/a/", Children: true}}, backend.ErrBadPath, "/a/"},
		"too much":        {[]backend.Target{{Path: long, Watch: w}, {Path: long + "x", Watch: w}, {Path: "bad"}}, backend.ErrTooLarge, long + "x"},
	} {
		err := backend.CheckTargets(test.targets)
		if !errors.Is(err, test.err) {
			t.Errorf("%s: %v, want %v", name, err, test.err)
		}
		var e *backend.Error
		if test.err != nil && (!errors.As(err, &e) || e.Op != "arm" || e.Path != test.path || e.Index != 0) {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// A caller that needs no watch holds a nil one.
func TestANilWatchIsNoWatch(t *testing.T) {
	var w *backend.Watch
	if w.Fired() != nil || w.Kind() != 0 {
		t.Error("a nil watch has fired, or can")
	}
	w.Stop()
	var s *backend.WatchSet
	if s.New() != nil || s.Ready() != nil || s.Take() != nil {
		t.Error("a nil set makes watches, or reports some")
	}
	s.Stop()
}
