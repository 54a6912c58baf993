package recipetest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// watchCounter is a backend that records the watches that it receives.
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

func (s countedSession) Arm(ctx context.Context, since int64, targets ...backend.Target) error {
	for _, t := range targets {
		s.b.add(t.Watch)
	}
	return s.Session.Arm(ctx, since, targets...)
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

// electionObserveTests are tests of Election on each service.
type electionObserveTests struct{ Services }

// Whatever is announced and however often the leader changes, WatchLeader keeps no more than
// two watches: on the leader's node and on its announcement, or on the directory.
func (on electionObserveTests) ObserveKeepsTwoWatches(t *testing.T) {
	on.each(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		counter := &watchCounter{Backend: w.Link("observer")}
		seen := coord.NewElection(coordtest.Open(w.T, counter, &coord.Options{Namespace: w.Path("")}), "/e", nil).WatchLeader(ctx)
		until := func(cond func(coord.Leader) bool) {
			w.T.Helper()
			for {
				l := next(w.T, seen)
				if l.Err != nil {
					w.T.Fatal(l.Err)
				}
				if cond(l) {
					return
				}
			}
		}
		count := func(when string) {
			w.T.Helper()
			w.Settle()
			if n := counter.standing(); n > 2 {
				w.T.Errorf("%d watches are armed %s", n, when)
			}
		}
		until(coord.Leader.Vacant)
		e := coord.NewElection(w.Open("a", nil), "/e", &coord.ElectionOptions{ID: "a"})
		for range 3 {
			term, err := e.Campaign(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			for i := range 30 {
				text := fmt.Sprint(i)
				if err := term.Announce(ctx, []byte(text)); err != nil {
					w.T.Fatal(err)
				}
				until(func(l coord.Leader) bool { return l.Ready && string(l.Announcement) == text })
			}
			count("after announcements")
			coordtest.MustRelease(w.T, term.Hold)
			until(coord.Leader.Vacant)
		}
		// Leaders that announce nothing.
		for range 10 {
			term, err := e.Campaign(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			until(func(l coord.Leader) bool { return !l.Vacant() })
			coordtest.MustRelease(w.T, term.Hold)
			until(coord.Leader.Vacant)
		}
		count("after changes of the leader")
	})
}

func (on electionObserveTests) AnAnnouncementIsSeenAndEndsWithTheTerm(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		a, b := w.candidate("a", nil), w.candidate("b", nil)
		seen := b.WatchLeader(ctx)
		if l := next(t, seen); !l.Vacant() || l.Err != nil {
			t.Errorf("first %v, want a vacancy", l)
		}
		term := mustLead(t, a)
		if l := next(t, seen); l.ID != "a" || l.Token != term.Token() || l.Ready {
			t.Errorf("after the election %v", l)
		}
		for _, data := range []string{"loaded", "", "serving"} {
			if err := term.Announce(ctx, []byte(data)); err != nil {
				t.Fatal(err)
			}
			if l := next(t, seen); !l.Ready || string(l.Announcement) != data || l.ID != "a" || l.Token != term.Token() {
				t.Errorf("after the announcement of %q: %+v", data, l)
			}
		}
		if err := term.Release(); err != nil {
			t.Error(err)
		}
		if l := next(t, seen); !l.Vacant() {
			t.Errorf("after the resignation %v", l)
		}
		coordtest.WantErr(t, term.Announce(ctx, nil), coord.ErrReleased)
		cancel()
		if rest := closed(t, seen); len(rest) != 0 {
			t.Errorf("after the end: %v", rest)
		}
	})
}

// An announcement is removed with its leader's node, however the term ends.
func (on electionObserveTests) AnAnnouncementIsRemovedWithTheLeader(t *testing.T) {
	on.each(t, func(w *world) {
		t := w.T
		a := w.candidate("a", nil)
		for name, end := range map[string]func(term *coord.Term){
			"released": func(term *coord.Term) { term.Release() },
			"expired":  func(term *coord.Term) { w.Link("a").Expire(term.Session()) },
			"deleted": func(term *coord.Term) {
				if _, err := w.Session("x").Commit(context.Background(), backend.Delete(term.Path(), backend.AnyVersion)); err != nil {
					t.Error(err)
				}
			},
			"released after an outsider took the announcement": func(term *coord.Term) {
				ready := strings.Replace(term.Path(), "-latch-", "-ready-", 1)
				if _, err := w.Session("x").Commit(context.Background(), backend.Delete(ready, backend.AnyVersion)); err != nil {
					t.Error(err)
				}
				term.Release()
			},
		} {
			term := mustLead(t, a)
			if err := term.Announce(t.Context(), []byte(name)); err != nil {
				t.Fatal(err)
			}
			end(term)
			<-term.Done()
			w.Empty("/e")
		}
	})
}
