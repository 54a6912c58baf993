package coord_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
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

// Whatever is announced and however often the leader changes, WatchLeader keeps no more than
// two watches: on the leader's node and on its announcement, or on the directory.
func TestObserveKeepsTwoWatches(t *testing.T) {
	onEach(t, func(w *world) {
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

func TestAnAnnouncementIsSeenAndEndsWithTheTerm(t *testing.T) {
	onEach(t, func(w *world) {
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

// A lost reply or a late attempt must not undo a later announcement.
func TestAnAnnouncementSurvivesLostRepliesAndOutsiders(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		var x coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: x.After})
		e := coord.NewElection(c, "/e", &coord.ElectionOptions{ID: "a"})
		term := mustLead(t, e)
		announced := func(want string) {
			t.Helper()
			l, err := e.Leader(t.Context())
			if err != nil || !l.Ready || string(l.Announcement) != want || l.ID != "a" {
				t.Errorf("%+v, %v, want %q", l, err, want)
			}
			if list, err := e.Contenders(t.Context()); err != nil || len(list) != 1 || string(list[0].Announcement) != want {
				t.Errorf("contenders %+v, %v, want %q", list, err, want)
			}
		}
		commit := func(c backendtest.Call) bool { return c.Op == "commit" }
		ready := strings.Replace(term.Path(), "-latch-", "-ready-", 1)
		outside := func(op backend.Op) func(ctx context.Context, _ backendtest.Call, err error) error {
			return func(ctx context.Context, _ backendtest.Call, err error) error {
				if _, err := w.Session("x").Commit(ctx, op); err != nil {
					t.Error(err)
				}
				return err
			}
		}
		x.Arm(1, commit, coordtest.Lose)
		if err := term.Announce(t.Context(), []byte("one")); err != nil {
			t.Fatal(err)
		}
		announced("one")
		x.Arm(1, commit, coordtest.Lose)
		if err := term.Announce(t.Context(), []byte("two")); err != nil {
			t.Fatal(err)
		}
		announced("two")
		// An outsider changes or deletes the announcement after it was read.
		get := func(c backendtest.Call) bool { return c.Op == "get" && c.Path == ready }
		x.Arm(1, get, outside(backend.SetData(ready, []byte("x"), backend.AnyVersion)))
		if err := term.Announce(t.Context(), []byte("three")); err != nil {
			t.Fatal(err)
		}
		announced("three")
		x.Arm(1, get, outside(backend.Delete(ready, backend.AnyVersion)))
		if err := term.Announce(t.Context(), []byte("four")); err != nil {
			t.Fatal(err)
		}
		announced("four")
		// Without the leader's node there is no announcement, and none is created.
		x.Arm(1, get, outside(backend.Delete(term.Path(), backend.AnyVersion)))
		coordtest.WantErr(t, term.Announce(t.Context(), nil), coord.ErrLost, coord.ErrDeleted)
		coordtest.WantErr(t, term.Announce(t.Context(), nil), coord.ErrLost, coord.ErrDeleted)
		w.Empty("/e")

		term = mustLead(t, e)
		if err := term.Announce(t.Context(), []byte("five")); err != nil {
			t.Fatal(err)
		}
		announced("five")
		x.Arm(1, coordtest.Deletes, coordtest.Lose)
		mayBeReleased(t, term.Hold)
		w.Empty("/e")
	})
}

// The reply to an announcement is lost, and ctx ends, or the service refuses, before the
// outcome is known.
func TestAnAnnouncementInDoubtIsUncertain(t *testing.T) {
	for _, next := range []string{"get", "sync", "commit"} {
		for _, end := range []error{context.Canceled, coord.ErrDenied} {
			t.Run(fmt.Sprint(next, ", ", end), func(t *testing.T) {
				onMemory(t, func(w *world) {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					var before, after coordtest.Nth
					term := mustLead(w.T, coord.NewElection(w.Open("a", &backendtest.Hooks{Before: before.Before, After: after.After}), "/e", nil))
					after.Arm(1, does(backend.OpCreate, "-ready-"), func(_ context.Context, c backendtest.Call, _ error) error {
						before.Arm(1, func(c backendtest.Call) bool { return c.Op == next }, func(ctx context.Context, _ backendtest.Call, _ error) error {
							if end == context.Canceled {
								cancel()
							}
							return end
						})
						if next == "sync" { // another call has written meanwhile
							after.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" }, func(context.Context, backendtest.Call, error) error {
								_, err := c.Session.Commit(context.Background(), backend.SetData(c.Ops[1].Path, nil, backend.AnyVersion))
								return err
							})
						}
						return backend.ErrUncertain
					})
					coordtest.WantErr(w.T, term.Announce(ctx, []byte("x")), coord.ErrUncertain, end)
					if !before.Idle() || !after.Idle() {
						w.T.Error("what was to happen has not happened")
					}
					if l, err := coord.NewElection(w.Open("b", nil), "/e", nil).Leader(context.Background()); err != nil || !l.Ready {
						w.T.Errorf("the announcement is not visible: %v, %v", l, err)
					}
				})
			})
		}
	}
}

// A late write of a call that was given up does not undo a later announcement.
func TestAnAnnouncementThatWasGivenUpIsNotMadeLater(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		e := coord.NewElection(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/e", nil)
		term := mustLead(w.T, e)
		var late func()
		for i, kind := range []backend.OpKind{backend.OpCreate, backend.OpSetData} {
			ctx, cancel := context.WithCancel(context.Background())
			before.Arm(1, does(kind, "-ready-"), func(_ context.Context, c backendtest.Call, _ error) error {
				ops := slices.Clone(c.Ops)
				late = func() { c.Session.Commit(context.Background(), ops...) }
				cancel()
				return backend.Uncertain(context.Canceled)
			})
			coordtest.WantErr(w.T, term.Announce(ctx, []byte("given up")), context.Canceled)
			want := []string{"first", "second"}[i]
			w.must(term.Announce(context.Background(), []byte(want)))
			late()
			if l, err := e.Leader(context.Background()); err != nil || string(l.Announcement) != want {
				w.T.Errorf("%+v, %v, want %q", l, err, want)
			}
		}
		w.must(term.Release())
	})
}

// An announcement is removed with its leader's node, however the term ends.
func TestAnAnnouncementIsRemovedWithTheLeader(t *testing.T) {
	onEach(t, func(w *world) {
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

// The leader announces between the list that does not name its announcement and the look for it. The
// observer reads the announcement, and reports the leader.
func TestElection_AnAnnouncementComesAfterTheList(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		term := mustLead(w.T, coord.NewElection(w.Open("a", nil), "/e", &coord.ElectionOptions{ID: "a"}))
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "exists" && strings.Contains(c.Path, "-ready-") },
			func(ctx context.Context, _ backendtest.Call, err error) error {
				w.must(term.Announce(ctx, []byte("up")))
				return err
			})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		seen := coord.NewElection(w.Open("b", &backendtest.Hooks{Before: before.Before}), "/e", nil).WatchLeader(ctx)
		if l := next(w.T, seen); l.Err != nil || l.ID != "a" || !l.Ready || string(l.Announcement) != "up" {
			w.T.Errorf("%+v", l)
		}
		if !before.Idle() {
			w.T.Error("the announcement was not looked for")
		}
		coordtest.MustRelease(w.T, term.Hold)
	})
}
