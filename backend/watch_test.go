package backend_test

import (
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
			t.Fatalf("Fired says %v, Kind says %q", fired(w), w.Kind())
		}
		if fired(w) == (disarmed == 1) || disarmed > 1 {
			t.Fatalf("fired %v, disarmed %d times", fired(w), disarmed)
		}
	}
}
