package recipetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A lost reply or a late attempt must not undo a later announcement.
func TestElection_AnAnnouncementSurvivesLostRepliesAndOutsiders(t *testing.T) {
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
func TestElection_AnAnnouncementInDoubtIsUncertain(t *testing.T) {
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
func TestElection_AnAnnouncementThatWasGivenUpIsNotMadeLater(t *testing.T) {
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
