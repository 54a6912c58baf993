package coord_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

// group is the group at /g for a client over the link called name.
func (w *world) group(name string, hooks *backendtest.Hooks) *coord.Group[string] {
	w.t.Helper()
	return textGroup(w.open(name, hooks), false)
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

func TestMembersJoinAreFoundAndLeave(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		a, b := w.group("a", nil), w.group("b", nil)
		list, err := a.Members(ctx)
		if err != nil || len(list) != 0 {
			w.t.Errorf("before anybody has joined: %v, %v", list, err)
		}
		_, err = a.Member(ctx, "x")
		wantErr(w.t, err, coord.ErrNotFound)
		watch := w.watch(ctx, b)
		if m := watch.next(); len(m.List)+len(m.Joined)+len(m.Left) != 0 || m.Err != nil {
			w.t.Errorf("first element %+v, want nobody", m)
		}
		// Not in the order of the ids.
		y := mustJoin(w.t, b, "y", "10.0.0.2")
		x := mustJoin(w.t, a, "x", "10.0.0.1")
		watch.until("x=10.0.0.1 y=10.0.0.2")
		w.eventually("both are listed", func() bool {
			list, err = a.Members(ctx)
			if err != nil {
				w.t.Fatal(err)
			}
			return brief(list) == "x=10.0.0.1 y=10.0.0.2"
		})
		m, err := a.Member(ctx, "x")
		if err != nil || m.Value != "10.0.0.1" || m.ID != "x" || m.Err != nil {
			w.t.Errorf("look-up: %+v, %v", m, err)
		}
		if m != list[0] {
			w.t.Errorf("looked up %+v, listed %+v", m, list[0])
		}
		s := w.session("x")
		if err := s.Sync(ctx, m.Path); err != nil {
			w.t.Fatal(err)
		}
		stat, err := s.Exists(ctx, m.Path, nil)
		if err != nil || m.Token != stat.Czxid || m.Session != stat.EphemeralOwner || !m.Since.Equal(time.UnixMilli(stat.Ctime)) {
			w.t.Errorf("%+v, its node has %+v, %v", m, stat, err)
		}
		name := m.Path[strings.LastIndexByte(m.Path, '/')+1:]
		if !strings.HasPrefix(m.Path, w.path("/g/_c_")) || !strings.Contains(name, "-member-x-0") {
			w.t.Errorf("node %s", m.Path)
		}

		if err := x.SetValue(ctx, "10.0.0.9"); err != nil {
			w.t.Error(err)
		}
		all := watch.until("x=10.0.0.9 y=10.0.0.2")
		if m := all[len(all)-1]; len(m.Joined)+len(m.Left) != 0 {
			w.t.Errorf("a change of a value: joined %v, left %v", m.Joined, m.Left)
		}
		if x.ID() != "x" || x.Err() != nil {
			w.t.Errorf("%q, %v", x.ID(), x.Err())
		}
		mustLeave(w.t, x)
		mustLeave(w.t, x)
		<-x.Done()
		wantErr(w.t, x.Err(), coord.ErrReleased)
		wantErr(w.t, x.SetValue(ctx, "late"), coord.ErrReleased)
		all = watch.until("y=10.0.0.2")
		if m := all[len(all)-1]; brief(m.Left) != "x=10.0.0.9" || len(m.Joined) != 0 {
			w.t.Errorf("left %v, joined %v", m.Left, m.Joined)
		}
		mustLeave(w.t, y)
		watch.until("")
		// The same id again is another incarnation.
		again := mustJoin(w.t, a, "x", "new")
		watch.until("x=new")
		if watch.last.List[0].Token <= m.Token {
			w.t.Errorf("token %d after %d", watch.last.List[0].Token, m.Token)
		}
		mustLeave(w.t, again)
		watch.until("")
		cancel()
		if last := watch.closed(); last.Err != nil {
			w.t.Errorf("after the end of ctx: %v", last.Err)
		}
		w.empty("/g")
	})
}

func TestAnyIDIsParsedBackExactly(t *testing.T) {
	onEach(t, func(w *world) {
		ids := []string{
			"a", "a-b", "-", "--", "a-", "-a", "0", "0000000001", "-0000000001", "a-0000000001", "a--2147483647", "2147483647",
			"member-", "-member-", "x-member-y", "_c_", "_c_00000000-0000-8000-8000-000000000000-member-a-0000000000",
			".", "..", " ", "host:8080", "ü", "日本", "a b", `"`, "%00", strings.Repeat("i", 200),
		}
		g := w.group("a", nil)
		for _, id := range ids {
			m := mustJoin(w.t, g, id, id)
			if m.ID() != id {
				w.t.Errorf("%q became %q", id, m.ID())
			}
			if got, err := g.Member(context.Background(), id); err != nil || got.ID != id || got.Value != id {
				w.t.Errorf("look-up of %q: %+v, %v", id, got, err)
			}
		}
		slices.Sort(ids)
		list, err := g.Members(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		var got []string
		for _, m := range list {
			got = append(got, m.ID)
		}
		if !slices.Equal(got, ids) {
			w.t.Errorf("listed %q\nwant   %q", got, ids)
		}
	})
}

func TestBadIDsPathsAndValuesAreRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		st := memory.New(nil)
		c := open(t, st, nil)
		g := textGroup(c, false)
		for id, want := range map[string]error{
			"": coord.ErrInvalid, strings.Repeat("i", 201): coord.ErrInvalid, "/": coord.ErrBadPath, "a/b": coord.ErrBadPath,
			"a\x00": coord.ErrBadPath, "a\nb": coord.ErrBadPath, "\u202e": coord.ErrBadPath, "\u200b": coord.ErrBadPath,
			"\xff": coord.ErrBadPath, "\ue000": coord.ErrBadPath, "😀": coord.ErrBadPath,
		} {
			_, err := g.Join(ctx, id, "")
			wantErr(t, err, want)
			_, err = g.Member(ctx, id)
			wantErr(t, err, want)
		}
		if left := children(t, st, "/"); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		_, err := g.Join(ctx, "a", strings.Repeat("v", backend.MaxRequest))
		wantErr(t, err, coord.ErrTooLarge)
		bad := coord.NewGroup[string](c, "no slash", nil)
		for op, call := range map[string]func() error{
			"join":    func() error { _, err := bad.Join(ctx, "a", ""); return err },
			"members": func() error { _, err := bad.Members(ctx); return err },
			"member":  func() error { _, err := bad.Member(ctx, "a"); return err },
			"wait":    func() error { _, err := bad.Wait(ctx, 1); return err },
			"watch":   func() error { return (<-bad.Watch(ctx)).Err },
			"picker":  func() error { _, err := bad.Picker(ctx, coord.PickRoundRobin); return err },
		} {
			err := call()
			var e *backend.Error
			if !errors.Is(err, coord.ErrBadPath) || !errors.As(err, &e) || e.Op != op || e.Path != "no slash" {
				t.Errorf("%s: %v", op, err)
			}
		}
		_, err = g.Picker(ctx, 17)
		wantErr(t, err, coord.ErrInvalid)
		m := mustJoin(t, g, "a", "good")
		wantErr(t, m.SetValue(ctx, strings.Repeat("v", backend.MaxRequest)), coord.ErrTooLarge)
		_, err = coord.NewGroup[func()](c, "/g", nil).Join(ctx, "f", nil)
		wantErr(t, err, coord.ErrInvalid)
		if got, err := g.Member(ctx, "a"); err != nil || got.Value != "good" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// What does not belong to the recipe is not looked at, and a value of another
// program does not hide its member.
func TestForeignChildrenAreIgnoredAndUnknownValuesListed(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		type instance struct{ Port int }
		g := coord.NewGroup[instance](w.open("a", nil), "/g", nil)
		m, err := g.Join(ctx, "a", instance{80})
		if err != nil {
			w.t.Fatal(err)
		}
		watch := g.Watch(ctx)
		if e := <-watch; len(e.List) != 1 {
			w.t.Fatalf("%+v", e)
		}
		s := w.session("x")
		const guid = "_c_00000000-0000-8000-8000-000000000000-"
		for _, name := range []string{
			"README", "_c_", "_c_s1", "x-99999999999", "-1", "lock-0000000000", guid + "lock-0000000001", guid + "member-", guid + "member-0000000001",
			guid + "member--0000000001", guid + "member-b-000000001", guid + "member-b--000000001", guid + "member-b-x000000001", guid + "member-b-9999999999",
			guid + "member-b-2147483647", "member-b-0000000001", "_c_0000000000000000000000000000000000-member-b-0000000001",
			"_c_z0000000-0000-8000-8000-000000000000-member-b-0000000001",
		} {
			if _, err := s.Commit(ctx, backend.Create(w.path("/g/"+name), []byte("x"), backend.Persistent)); err != nil {
				w.t.Fatalf("%s: %v", name, err)
			}
		}
		// Another client's member with other bytes.
		raw := coord.NewGroup(w.open("b", nil), "/g", &coord.GroupOptions[string]{Codec: coord.Text()})
		other, err := raw.Join(ctx, "z", "{not json")
		if err != nil {
			w.t.Fatal(err)
		}
		var e coord.GroupUpdate[instance]
		for len(e.List) != 2 {
			e = <-watch
		}
		if a := e.List[0]; a.ID != "a" || a.Value.Port != 80 || a.Err != nil {
			w.t.Errorf("%+v", a)
		}
		if z := e.List[1]; z.ID != "z" || z.Value != (instance{}) || !errors.Is(z.Err, coord.ErrDecode) {
			w.t.Errorf("%+v", z)
		}
		list, err := g.Wait(ctx, 2)
		if err != nil || len(list) != 2 {
			w.t.Errorf("%v, %v", list, err)
		}
		got, err := g.Member(ctx, "z")
		if err != nil || !errors.Is(got.Err, coord.ErrDecode) || got.Token == 0 {
			w.t.Errorf("%+v, %v", got, err)
		}
		// Who has an id that nobody but foreign nodes seem to have, gets it.
		b, err := g.Join(ctx, "b", instance{81})
		if err != nil {
			w.t.Fatal(err)
		}
		if err := other.SetValue(ctx, `{"Port":82}`); err != nil {
			w.t.Fatal(err)
		}
		for len(e.List) != 3 || e.List[2].Err != nil {
			e = <-watch
		}
		if e.List[2].Value.Port != 82 {
			w.t.Errorf("%+v", e.List[2])
		}
		for _, leave := range []func() error{m.Leave, b.Leave, other.Leave} {
			if err := leave(); err != nil {
				w.t.Error(err)
			}
		}
	})
}

func TestCloseEndsMembershipsWatchesAndPickers(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		c := w.open("a", nil)
		g := textGroup(c, false)
		m := mustJoin(w.t, g, "x", "1")
		watch := w.watch(ctx, g)
		watch.next()
		p, err := g.Picker(ctx, coord.PickRandom)
		if err != nil {
			w.t.Fatal(err)
		}
		waiting := make(chan error)
		go func() {
			_, err := g.Wait(ctx, 2)
			waiting <- err
		}()
		w.settle()
		c.Close()
		<-m.Done()
		wantErr(w.t, m.Err(), coord.ErrClosed)
		wantErr(w.t, m.Leave(), coord.ErrClosed)
		wantErr(w.t, m.SetValue(ctx, "2"), coord.ErrClosed)
		wantErr(w.t, watch.closed().Err, coord.ErrClosed)
		wantErr(w.t, <-waiting, coord.ErrClosed)
		_, err = p.Next(ctx)
		wantErr(w.t, err, coord.ErrClosed)
		if _, ok := p.TryNext(); ok {
			w.t.Error("picked from a closed client")
		}
		_, err = g.Join(ctx, "y", "1")
		wantErr(w.t, err, coord.ErrClosed)
		_, err = g.Members(ctx)
		wantErr(w.t, err, coord.ErrClosed)
		_, err = g.Picker(ctx, coord.PickRandom)
		wantErr(w.t, err, coord.ErrClosed)
		wantErr(w.t, (<-g.Watch(ctx)).Err, coord.ErrClosed)
		w.empty("/g")
	})
}

func TestALostReplyOfSetDataDoesNotUndoALaterOne(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		var before, after nth
		g := textGroup(w.open("a", &backendtest.Hooks{Before: before.before, After: after.after}), false)
		m := mustJoin(w.t, g, "x", "0")
		sets := func(c backendtest.Call) bool {
			return c.Op == "commit" && len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpSetData
		}
		value := func() string {
			w.t.Helper()
			got, err := g.Member(ctx, "x")
			if err != nil {
				w.t.Fatal(err)
			}
			return got.Value
		}
		after.arm(1, sets, lose)
		if err := m.SetValue(ctx, "1"); err != nil || value() != "1" {
			w.t.Errorf("after a lost reply: %v, %s", err, value())
		}
		before.arm(1, sets, lose)
		if err := m.SetValue(ctx, "2"); err != nil || value() != "2" {
			w.t.Errorf("after a lost request: %v, %s", err, value())
		}
		// Given up with an unknown outcome; the next one is ordered behind it.
		short, cancel := context.WithCancel(ctx)
		var synced atomic.Bool
		after.arm(1, sets, func(ctx context.Context, _ backendtest.Call, _ error) error {
			cancel()
			before.arm(1, func(c backendtest.Call) bool { return c.Op == "sync" }, func(context.Context, backendtest.Call, error) error {
				synced.Store(true)
				return nil
			})
			return backend.Uncertain(ctx.Err())
		})
		wantErr(w.t, m.SetValue(short, "3"), context.Canceled, coord.ErrUncertain)
		if err := m.SetValue(ctx, "4"); err != nil || value() != "4" || !synced.Load() {
			w.t.Errorf("%v, %s, ordered behind: %v", err, value(), synced.Load())
		}
		mustLeave(w.t, m)
	})
}

// The session is lost while a value is written: the next incarnation has it.
func TestAValueThatWasSetWhileTheSessionWasLostIsKept(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		var after nth
		g := textGroup(w.open("a", &backendtest.Hooks{After: after.after}), false)
		m := mustJoin(w.t, g, "x", "0")
		watch := w.watch(ctx, w.group("b", nil))
		watch.until("x=0")
		after.arm(1, func(c backendtest.Call) bool { return commits(c, backend.OpSetData) }, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			return backend.Uncertain(backend.ErrSessionLost)
		})
		if err := m.SetValue(ctx, "1"); err != nil {
			w.t.Fatal(err)
		}
		w.Link("a").Partition()
		set := make(chan error)
		go func() { set <- m.SetValue(ctx, "2") }()
		watch.until("")
		w.Link("a").Heal()
		if err := <-set; err != nil {
			w.t.Fatal(err)
		}
		all := watch.until("x=2")
		if e := all[len(all)-1]; len(e.List) != 1 {
			w.t.Errorf("%+v", e)
		}
		mustLeave(w.t, m)
		w.empty("/g")
	})
}

// A value that the service refused is not remembered.
func TestAValueThatWasRefusedIsNotKept(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before nth
		g := textGroup(w.open("a", &backendtest.Hooks{Before: before.before}), false)
		m := mustJoin(w.t, g, "x", "good")
		before.arm(1, func(c backendtest.Call) bool { return commits(c, backend.OpSetData) }, func(context.Context, backendtest.Call, error) error {
			return backend.ErrDenied
		})
		err := m.SetValue(ctx, "refused")
		wantErr(w.t, err, coord.ErrDenied)
		if errors.Is(err, coord.ErrUncertain) {
			w.t.Errorf("%v: a refusal is certain", err)
		}
		first, _ := g.Member(ctx, "x")
		w.Link("a").Expire(first.Session)
		w.settle()
		if got, err := g.Member(ctx, "x"); err != nil || got.Value != "good" || got.Token == first.Token {
			w.t.Errorf("%+v, %v", got, err)
		}
	})
}

// Unless the member has come anew with it meanwhile: then the refusal is of the old node.
func TestAValueThatWasRefusedAndCameWithTheNextNodeIsUncertain(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before nth
		g := textGroup(w.open("a", &backendtest.Hooks{Before: before.before}), false)
		m := mustJoin(w.t, g, "x", "old")
		first, err := g.Member(ctx, "x")
		w.must(err)
		before.arm(1, func(c backendtest.Call) bool { return commits(c, backend.OpSetData) && c.Path == first.Path }, func(context.Context, backendtest.Call, error) error {
			w.commit(backend.Delete(first.Path, backend.AnyVersion))
			w.eventually("the member has come anew", func() bool {
				next, err := g.Member(ctx, "x")
				return err == nil && next.Token != first.Token
			})
			return backend.ErrDenied
		})
		err = m.SetValue(ctx, "new")
		wantErr(w.t, err, coord.ErrDenied, coord.ErrUncertain)
		if next, err := g.Member(ctx, "x"); err != nil || next.Value != "new" {
			w.t.Errorf("%+v, %v", next, err)
		}
		mustLeave(w.t, m)
	})
}

func TestSetDataIsLastingAndInOrder(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		c := w.open("a", nil)
		g := textGroup(c, false)
		m := mustJoin(w.t, g, "x", "0")
		watch := w.watch(ctx, w.group("b", nil))
		watch.next()
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if err := m.SetValue(ctx, fmt.Sprint("c", i)); err != nil {
					w.t.Error(err)
				}
			})
		}
		wg.Wait()
		if err := m.SetValue(ctx, "last"); err != nil {
			w.t.Fatal(err)
		}
		watch.until("x=last")
		for range 2 {
			from := watch.last.List[0]
			w.Link("a").Expire(from.Session)
			if got, _ := watch.another(from); got.Value != "last" || got.Token < from.Token || got.Session == from.Session {
				w.t.Errorf("%+v, before %+v", got, from)
			}
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		wantErr(w.t, m.SetValue(ended, "never"), context.Canceled)
		if got, err := g.Member(ctx, "x"); err != nil || got.Value != "last" {
			w.t.Errorf("%+v, %v", got, err)
		}
		mustLeave(w.t, m)
		w.empty("/g")
	})
}

func TestLeaveAndSetDataMayComeAtOnce(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		g := w.group("a", nil)
		for i := range 10 {
			m := mustJoin(w.t, g, "x", "0")
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if err := m.SetValue(ctx, "1"); err != nil && !errors.Is(err, coord.ErrReleased) {
						w.t.Error(err)
					}
				})
				wg.Go(func() {
					if err := m.Leave(); err != nil {
						w.t.Error(err)
					}
					<-m.Done()
					wantErr(w.t, m.Err(), coord.ErrReleased)
				})
			}
			wg.Wait()
			if names := w.children("/g"); len(names) != 0 {
				w.t.Errorf("round %d: left behind %v", i, names)
			}
		}
	})
}

// The codec refuses a value. The member keeps the one that it has.
func TestAValueThatCannotBeEncodedIsRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		g := coord.NewGroup[any](w.open("a", nil), "/g", nil)
		m, err := g.Join(ctx, "x", "good")
		if err != nil {
			w.t.Fatal(err)
		}
		wantErr(w.t, m.SetValue(ctx, func() {}), coord.ErrInvalid)
		if got, err := g.Member(ctx, "x"); err != nil || got.Value != "good" {
			w.t.Errorf("%+v, %v", got, err)
		}
		if err := m.Leave(); err != nil {
			w.t.Error(err)
		}
	})
}

// The node is deleted just before it is written, and the service refuses the next
// one, which ends the membership: SetValue says so.
func TestAValueOfAMembershipThatEndsMeanwhileIsRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		s := w.session("x")
		var m *coord.Membership[string]
		var node atomic.Pointer[string]
		g := textGroup(w.open("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			path := node.Load()
			switch {
			case path == nil:
			case creates(c):
				return backend.ErrDenied
			case commits(c, backend.OpSetData) && c.Ops[0].Path == *path:
				if _, err := s.Commit(ctx, backend.Delete(*path, backend.AnyVersion)); err != nil {
					w.t.Error(err)
				}
			}
			return nil
		}}), false)
		m = mustJoin(w.t, g, "x", "0")
		got, err := g.Member(ctx, "x")
		if err != nil {
			w.t.Fatal(err)
		}
		node.Store(&got.Path)
		wantErr(w.t, m.SetValue(ctx, "1"), coord.ErrDenied)
		<-m.Done()
		wantErr(w.t, m.Err(), coord.ErrDenied)
	})
}
