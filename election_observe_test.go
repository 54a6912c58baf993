package coord_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// watchCounter is a backend that knows the watches that were given to it.
type watchCounter struct {
	backend.Backend
	mu      sync.Mutex
	watches []*backend.Watch
}

func (b *watchCounter) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	return countedSession{s, b}, nil
}

type countedSession struct {
	backend.Session
	b *watchCounter
}

func (b *watchCounter) add(w *backend.Watch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w != nil {
		b.watches = append(b.watches, w)
	}
}

func (s countedSession) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	s.b.add(w)
	return s.Session.Get(ctx, path, w)
}

func (s countedSession) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	s.b.add(w)
	return s.Session.Exists(ctx, path, w)
}

func (s countedSession) Children(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
	s.b.add(w)
	return s.Session.Children(ctx, path, w)
}

// standing counts the watches that could still fire, and fires them.
func (b *watchCounter) standing() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.watches {
		if w.Kind() != 0 {
			continue
		}
		if w.Fire(backend.LookAgain); w.Kind() != 0 {
			n++ // it was not stopped
		}
	}
	b.watches = nil
	return n
}

// However much is announced and whoever leads, Observe keeps no more than two
// watches: on the leader's node and on its announcement, or on the directory.
func TestObserveKeepsTwoWatches(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		counter := &watchCounter{Backend: w.Link("observer")}
		seen := coord.NewElection(open(w.t, counter, &coord.Options{Namespace: w.path("")}), "/e", nil).Observe(ctx)
		until := func(cond func(coord.Leader) bool) {
			w.t.Helper()
			for {
				l := next(w.t, seen)
				if l.Err != nil {
					w.t.Fatal(l.Err)
				}
				if cond(l) {
					return
				}
			}
		}
		count := func(when string) {
			w.t.Helper()
			w.settle()
			if n := counter.standing(); n > 2 {
				w.t.Errorf("%d watches stand %s", n, when)
			}
		}
		until(coord.Leader.Vacant)
		e := coord.NewElection(w.open("a", nil), "/e", &coord.ElectionOptions{ID: "a"})
		for range 3 {
			term, err := e.Campaign(ctx)
			if err != nil {
				w.t.Fatal(err)
			}
			for i := range 30 {
				text := fmt.Sprint(i)
				if err := term.Announce(ctx, []byte(text)); err != nil {
					w.t.Fatal(err)
				}
				until(func(l coord.Leader) bool { return l.Ready && string(l.Announcement) == text })
			}
			count("after announcements")
			mustRelease(w.t, term.Hold)
			until(coord.Leader.Vacant)
		}
		// Leaders that announce nothing.
		for range 10 {
			term, err := e.Campaign(ctx)
			if err != nil {
				w.t.Fatal(err)
			}
			until(func(l coord.Leader) bool { return !l.Vacant() })
			mustRelease(w.t, term.Hold)
			until(coord.Leader.Vacant)
		}
		count("after changes of the leader")
	})
}
