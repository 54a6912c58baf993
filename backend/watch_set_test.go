package backend_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/go-coord/coord/backend"
)

func TestASetReturnsItsWatchesInTheOrderInWhichTheyFired(t *testing.T) {
	s := backend.NewWatchSet()
	a, b, c := s.New(), s.New(), s.New()
	if a.Fired() != nil {
		t.Error("a watch of a set has a channel of its own")
	}
	if s.Len() != 3 {
		t.Errorf("%d watches, want 3", s.Len())
	}
	select {
	case <-s.Ready():
		t.Fatal("ready before any watch has fired")
	default:
	}
	b.Fire(backend.Deleted)
	a.Fire(backend.LookAgain)
	b.Fire(backend.LookAgain) // the first counts
	<-s.Ready()
	if got := s.Take(); !slices.Equal(got, []*backend.Watch{b, a}) {
		t.Errorf("fired %v, want %v", got, []*backend.Watch{b, a})
	}
	if b.Kind() != backend.Deleted || a.Kind() != backend.LookAgain {
		t.Errorf("kinds %v, %v", b.Kind(), a.Kind())
	}
	if got := s.Take(); len(got) != 0 || s.Len() != 1 {
		t.Errorf("taken twice: %v; %d left", got, s.Len())
	}
	c.Fire(backend.LookAgain)
	s.Take()
	select {
	case <-s.Ready():
		t.Error("ready after Take returned all watches")
	default:
	}
}

func TestAStoppedSetIsSilentAndDisarmsItsWatches(t *testing.T) {
	s := backend.NewWatchSet()
	a, b := s.New(), s.New()
	var disarmed []*backend.Watch
	for _, w := range []*backend.Watch{a, b} {
		if !w.Arm(func(w *backend.Watch) { disarmed = append(disarmed, w) }) {
			t.Fatal("not armed")
		}
	}
	a.Stop()
	if s.Len() != 1 {
		t.Errorf("%d watches, want 1", s.Len())
	}
	s.Stop()
	s.Stop()
	if !slices.Equal(disarmed, []*backend.Watch{a, b}) {
		t.Errorf("disarmed %v", disarmed)
	}
	a.Fire(backend.Deleted)
	b.Fire(backend.Deleted)
	late := s.New()
	if late.Arm(nil) {
		t.Error("a watch of a stopped set was armed")
	}
	late.Fire(backend.Deleted)
	if got := s.Take(); len(got) != 0 {
		t.Errorf("fired after Stop: %v", got)
	}
}

func TestNoFiringOfASetIsLost(t *testing.T) {
	const n = 1000
	s := backend.NewWatchSet()
	var wg sync.WaitGroup
	for range n {
		w := s.New()
		wg.Go(func() { w.Fire(backend.LookAgain) })
	}
	for got := 0; got < n; {
		<-s.Ready()
		got += len(s.Take())
	}
	wg.Wait()
	if s.Len() != 0 {
		t.Errorf("%d watches left", s.Len())
	}
}
