package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// group returns the group at /g for a client over the link called name.
func (w *world) group(name string, hooks *backendtest.Hooks) *coord.Group[string] {
	w.T.Helper()
	return textGroup(w.Open(name, hooks), false)
}

func textGroup(c *coord.Client, replace bool) *coord.Group[string] {
	return coord.NewGroup(c, "/g", &coord.GroupOptions[string]{Codec: coord.Text(), TakeOver: replace})
}

func mustJoin(t *testing.T, g *coord.Group[string], id, value string) *coord.Membership[string] {
	t.Helper()
	m, err := g.Join(context.Background(), id, value)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func mustLeave(t *testing.T, m *coord.Membership[string]) {
	t.Helper()
	if err := m.Leave(); err != nil {
		t.Error(err)
	}
}

// brief is a list as "id=value …".
func brief(list []coord.Member[string]) string {
	var s []string
	for _, m := range list {
		s = append(s, m.ID+"="+m.Value)
	}
	return strings.Join(s, " ")
}

// groupTests are tests of Group on each service.
type groupTests struct{ Services }

func (on groupTests) MembersJoinAreFoundAndLeave(t *testing.T) {
	on.all(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		a, b := w.group("a", nil), w.group("b", nil)
		list, err := a.Members(ctx)
		if err != nil || len(list) != 0 {
			w.T.Errorf("before the first join: %v, %v", list, err)
		}
		_, err = a.Member(ctx, "x")
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		watch := w.watch(ctx, b)
		if m := watch.next(); len(m.Members)+len(m.Joined)+len(m.Left) != 0 || m.Err != nil {
			w.T.Errorf("first element %+v, want no members", m)
		}
		// They do not join in the order of their ids.
		y := mustJoin(w.T, b, "y", "10.0.0.2")
		x := mustJoin(w.T, a, "x", "10.0.0.1")
		watch.until("x=10.0.0.1 y=10.0.0.2")
		w.Eventually("both are listed", func() bool {
			list, err = a.Members(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			return brief(list) == "x=10.0.0.1 y=10.0.0.2"
		})
		m, err := a.Member(ctx, "x")
		if err != nil || m.Value != "10.0.0.1" || m.ID != "x" || m.Err != nil {
			w.T.Errorf("look-up: %+v, %v", m, err)
		}
		if m != list[0] {
			w.T.Errorf("looked up %+v, listed %+v", m, list[0])
		}
		s := w.Session("x")
		if err := s.Sync(ctx, m.Path); err != nil {
			w.T.Fatal(err)
		}
		stat, err := s.Exists(ctx, m.Path, nil)
		if err != nil || m.Token != stat.Czxid || m.Session != stat.EphemeralOwner || !m.Since.Equal(time.UnixMilli(stat.Ctime)) {
			w.T.Errorf("%+v, its node has %+v, %v", m, stat, err)
		}
		name := m.Path[strings.LastIndexByte(m.Path, '/')+1:]
		if !strings.HasPrefix(m.Path, w.Path("/g/_c_")) || !strings.Contains(name, "-member-x-0") {
			w.T.Errorf("node %s", m.Path)
		}

		if err := x.SetValue(ctx, "10.0.0.9"); err != nil {
			w.T.Error(err)
		}
		all := watch.until("x=10.0.0.9 y=10.0.0.2")
		if m := all[len(all)-1]; len(m.Joined)+len(m.Left) != 0 {
			w.T.Errorf("a change of a value: joined %v, left %v", m.Joined, m.Left)
		}
		if x.ID() != "x" || x.Err() != nil {
			w.T.Errorf("%q, %v", x.ID(), x.Err())
		}
		mustLeave(w.T, x)
		mustLeave(w.T, x)
		<-x.Done()
		coordtest.WantErr(w.T, x.Err(), coord.ErrReleased)
		coordtest.WantErr(w.T, x.SetValue(ctx, "late"), coord.ErrReleased)
		all = watch.until("y=10.0.0.2")
		if m := all[len(all)-1]; brief(m.Left) != "x=10.0.0.9" || len(m.Joined) != 0 {
			w.T.Errorf("left %v, joined %v", m.Left, m.Joined)
		}
		mustLeave(w.T, y)
		watch.until("")
		// The same id again is another incarnation.
		again := mustJoin(w.T, a, "x", "new")
		watch.until("x=new")
		if watch.Last.Members[0].Token <= m.Token {
			w.T.Errorf("token %d after %d", watch.Last.Members[0].Token, m.Token)
		}
		mustLeave(w.T, again)
		watch.until("")
		cancel()
		if last := watch.closed(); last.Err != nil {
			w.T.Errorf("after the end of ctx: %v", last.Err)
		}
		w.Empty("/g")
	})
}

func (on groupTests) AnyIDIsParsedBackExactly(t *testing.T) {
	on.each(t, func(w *world) {
		ids := []string{
			"a", "a-b", "-", "--", "a-", "-a", "0", "0000000001", "-0000000001", "a-0000000001", "a--2147483647", "2147483647",
			"member-", "-member-", "x-member-y", "_c_", "_c_00000000-0000-8000-8000-000000000000-member-a-0000000000",
			".", "..", " ", "host:8080", "ü", "日本", "a b", `"`, "%00", strings.Repeat("i", 200),
		}
		g := w.group("a", nil)
		for _, id := range ids {
			m := mustJoin(w.T, g, id, id)
			if m.ID() != id {
				w.T.Errorf("%q became %q", id, m.ID())
			}
			if got, err := g.Member(context.Background(), id); err != nil || got.ID != id || got.Value != id {
				w.T.Errorf("look-up of %q: %+v, %v", id, got, err)
			}
		}
		slices.Sort(ids)
		list, err := g.Members(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		var got []string
		for _, m := range list {
			got = append(got, m.ID)
		}
		if !slices.Equal(got, ids) {
			w.T.Errorf("listed %q\nwant   %q", got, ids)
		}
	})
}

// Foreign nodes are not read, and a value that cannot be decoded does not hide its member.
func (on groupTests) ForeignChildrenAreIgnoredAndUnknownValuesListed(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		type instance struct{ Port int }
		g := coord.NewGroup[instance](w.Open("a", nil), "/g", nil)
		m, err := g.Join(ctx, "a", instance{80})
		if err != nil {
			w.T.Fatal(err)
		}
		watch := g.Watch(ctx)
		if e := <-watch; len(e.Members) != 1 {
			w.T.Fatalf("%+v", e)
		}
		s := w.Session("x")
		const guid = "_c_00000000-0000-8000-8000-000000000000-"
		for _, name := range []string{
			"README", "_c_", "_c_s1", "x-99999999999", "-1", "lock-0000000000", guid + "lock-0000000001", guid + "member-", guid + "member-0000000001",
			guid + "member--0000000001", guid + "member-b-000000001", guid + "member-b--000000001", guid + "member-b-x000000001", guid + "member-b-99999999999999999999",
			guid + "member-b-00000000001", "member-b-0000000001", "_c_0000000000000000000000000000000000-member-b-0000000001",
			"_c_z0000000-0000-8000-8000-000000000000-member-b-0000000001",
		} {
			if _, err := s.Commit(ctx, backend.Create(w.Path("/g/"+name), []byte("x"), backend.Persistent)); err != nil {
				w.T.Fatalf("%s: %v", name, err)
			}
		}
		// A member of another client, whose value is not JSON.
		raw := coord.NewGroup(w.Open("b", nil), "/g", &coord.GroupOptions[string]{Codec: coord.Text()})
		other, err := raw.Join(ctx, "z", "{not json")
		if err != nil {
			w.T.Fatal(err)
		}
		var e coord.GroupUpdate[instance]
		for len(e.Members) != 2 {
			e = <-watch
		}
		if a := e.Members[0]; a.ID != "a" || a.Value.Port != 80 || a.Err != nil {
			w.T.Errorf("%+v", a)
		}
		if z := e.Members[1]; z.ID != "z" || z.Value != (instance{}) || !errors.Is(z.Err, coord.ErrDecode) {
			w.T.Errorf("%+v", z)
		}
		list, err := g.Wait(ctx, 2)
		if err != nil || len(list) != 2 {
			w.T.Errorf("%v, %v", list, err)
		}
		got, err := g.Member(ctx, "z")
		if err != nil || !errors.Is(got.Err, coord.ErrDecode) || got.Token == 0 {
			w.T.Errorf("%+v, %v", got, err)
		}
		// An id that only foreign nodes seem to have is free.
		b, err := g.Join(ctx, "b", instance{81})
		if err != nil {
			w.T.Fatal(err)
		}
		if err := other.SetValue(ctx, `{"Port":82}`); err != nil {
			w.T.Fatal(err)
		}
		for len(e.Members) != 3 || e.Members[2].Err != nil {
			e = <-watch
		}
		if e.Members[2].Value.Port != 82 {
			w.T.Errorf("%+v", e.Members[2])
		}
		for _, leave := range []func() error{m.Leave, b.Leave, other.Leave} {
			if err := leave(); err != nil {
				w.T.Error(err)
			}
		}
	})
}

func (on groupTests) CloseEndsMembershipsWatchesAndPickers(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		g := textGroup(c, false)
		m := mustJoin(w.T, g, "x", "1")
		watch := w.watch(ctx, g)
		watch.next()
		p, err := g.Picker(ctx, coord.PickRandom)
		if err != nil {
			w.T.Fatal(err)
		}
		waiting := make(chan error)
		go func() {
			_, err := g.Wait(ctx, 2)
			waiting <- err
		}()
		w.Settle()
		c.Close()
		<-m.Done()
		coordtest.WantErr(w.T, m.Err(), coord.ErrClosed)
		coordtest.WantErr(w.T, m.Leave(), coord.ErrClosed)
		coordtest.WantErr(w.T, m.SetValue(ctx, "2"), coord.ErrClosed)
		coordtest.WantErr(w.T, watch.closed().Err, coord.ErrClosed)
		coordtest.WantErr(w.T, <-waiting, coord.ErrClosed)
		_, err = p.Next(ctx)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		if _, ok := p.TryNext(); ok {
			w.T.Error("picked from a closed client")
		}
		_, err = g.Join(ctx, "y", "1")
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		_, err = g.Members(ctx)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		_, err = g.Picker(ctx, coord.PickRandom)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		coordtest.WantErr(w.T, (<-g.Watch(ctx)).Err, coord.ErrClosed)
		w.Empty("/g")
	})
}

func (on groupTests) ALostReplyOfSetValueDoesNotUndoALaterOne(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		var before, after coordtest.Nth
		g := textGroup(w.Open("a", &backendtest.Hooks{Before: before.Before, After: after.After}), false)
		m := mustJoin(w.T, g, "x", "0")
		sets := func(c backendtest.Call) bool {
			return c.Op == "commit" && len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpSetData
		}
		value := func() string {
			w.T.Helper()
			got, err := g.Member(ctx, "x")
			if err != nil {
				w.T.Fatal(err)
			}
			return got.Value
		}
		after.Arm(1, sets, coordtest.Lose)
		if err := m.SetValue(ctx, "1"); err != nil || value() != "1" {
			w.T.Errorf("after a lost reply: %v, %s", err, value())
		}
		before.Arm(1, sets, coordtest.Lose)
		if err := m.SetValue(ctx, "2"); err != nil || value() != "2" {
			w.T.Errorf("after a lost request: %v, %s", err, value())
		}
		// A call is given up with an unknown outcome; the next call is ordered behind it.
		short, cancel := context.WithCancel(ctx)
		var synced atomic.Bool
		after.Arm(1, sets, func(ctx context.Context, _ backendtest.Call, _ error) error {
			cancel()
			before.Arm(1, func(c backendtest.Call) bool { return c.Op == "sync" }, func(context.Context, backendtest.Call, error) error {
				synced.Store(true)
				return nil
			})
			return backend.Uncertain(ctx.Err())
		})
		coordtest.WantErr(w.T, m.SetValue(short, "3"), context.Canceled, coord.ErrUncertain)
		if err := m.SetValue(ctx, "4"); err != nil || value() != "4" || !synced.Load() {
			w.T.Errorf("%v, %s, ordered behind: %v", err, value(), synced.Load())
		}
		mustLeave(w.T, m)
	})
}

// The session is lost while a value is written: the next incarnation has the new value.
func (on groupTests) AValueThatWasSetWhileTheSessionWasLostIsKept(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		var after coordtest.Nth
		g := textGroup(w.Open("a", &backendtest.Hooks{After: after.After}), false)
		m := mustJoin(w.T, g, "x", "0")
		watch := w.watch(ctx, w.group("b", nil))
		watch.until("x=0")
		after.Arm(1, func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpSetData) }, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			return backend.Uncertain(backend.ErrSessionLost)
		})
		if err := m.SetValue(ctx, "1"); err != nil {
			w.T.Fatal(err)
		}
		w.Link("a").Partition()
		set := make(chan error)
		go func() { set <- m.SetValue(ctx, "2") }()
		watch.until("")
		w.Link("a").Heal()
		if err := <-set; err != nil {
			w.T.Fatal(err)
		}
		all := watch.until("x=2")
		if e := all[len(all)-1]; len(e.Members) != 1 {
			w.T.Errorf("%+v", e)
		}
		mustLeave(w.T, m)
		w.Empty("/g")
	})
}

// The membership ends while a value is being written. The write whose reply was lost may
// have been seen, so its outcome is uncertain. The write that found no node was not
// applied.
func (on groupTests) AValueInDoubtOfAMembershipThatEndsIsUncertain(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		for _, lost := range []bool{true, false} {
			var before, after coordtest.Nth
			g := textGroup(w.Open(fmt.Sprint("a", lost), &backendtest.Hooks{Before: before.Before, After: after.After}), false)
			m := mustJoin(w.T, g, "x", "0")
			hook := &before
			if lost {
				hook = &after
			}
			hook.Arm(1, func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpSetData) }, func(context.Context, backendtest.Call, error) error {
				mustLeave(w.T, m)
				if lost {
					return backend.ErrUncertain
				}
				return nil
			})
			err := m.SetValue(ctx, "1")
			coordtest.WantErr(w.T, err, coord.ErrReleased)
			if errors.Is(err, coord.ErrUncertain) != lost {
				w.T.Errorf("with a lost reply %v: %v", lost, err)
			}
		}
	})
}

func (on groupTests) SetValueIsLastingAndInOrder(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		g := textGroup(c, false)
		m := mustJoin(w.T, g, "x", "0")
		watch := w.watch(ctx, w.group("b", nil))
		watch.next()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if err := m.SetValue(ctx, fmt.Sprint("c", i)); err != nil {
					w.T.Error(err)
				}
			})
		}
		wg.Wait()
		if err := m.SetValue(ctx, "last"); err != nil {
			w.T.Fatal(err)
		}
		watch.until("x=last")
		for range 2 {
			from := watch.Last.Members[0]
			w.Link("a").Expire(from.Session)
			if got, _ := watch.another(from); got.Value != "last" || got.Token < from.Token || got.Session == from.Session {
				w.T.Errorf("%+v, before %+v", got, from)
			}
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		coordtest.WantErr(w.T, m.SetValue(ended, "never"), context.Canceled)
		if got, err := g.Member(ctx, "x"); err != nil || got.Value != "last" {
			w.T.Errorf("%+v, %v", got, err)
		}
		mustLeave(w.T, m)
		w.Empty("/g")
	})
}

func (on groupTests) LeaveAndSetValueMayRunAtOnce(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		g := w.group("a", nil)
		for i := range 10 {
			m := mustJoin(w.T, g, "x", "0")
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if err := m.SetValue(ctx, "1"); err != nil && !errors.Is(err, coord.ErrReleased) {
						w.T.Error(err)
					}
				})
				wg.Go(func() {
					if err := m.Leave(); err != nil {
						w.T.Error(err)
					}
					<-m.Done()
					coordtest.WantErr(w.T, m.Err(), coord.ErrReleased)
				})
			}
			wg.Wait()
			if names := w.Children("/g"); len(names) != 0 {
				w.T.Errorf("round %d: left behind %v", i, names)
			}
		}
	})
}
