package coord_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// awaitPhase waits until the client's state is of that phase.
func awaitPhase(t *testing.T, c *coord.Client, want coord.Phase) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for st := range c.WatchState(ctx) {
		if st.Phase == want {
			return
		}
	}
	t.Fatalf("the client was never %v", want)
}

// A retry after a lost reply made a second node elsewhere.
func TestALostReplyOfAJoinLeavesExactlyOneNode(t *testing.T) {
	onEach(t, func(w *world) {
		g := w.group("a", nil)
		mustLeave(w.t, mustJoin(w.t, g, "x", "0")) // the directory is known
		for name, drop := range map[string]func(){"reply": w.Link("a").DropNextReply, "request": w.Link("a").DropNextRequest} {
			drop()
			m := mustJoin(w.t, g, "x", name)
			if names := w.children("/g"); len(names) != 1 {
				w.t.Errorf("lost %s: children %v, want one", name, names)
			}
			if got, err := g.Member(context.Background(), "x"); err != nil || got.Value != name {
				w.t.Errorf("lost %s: %+v, %v", name, got, err)
			}
			drop()
			mustLeave(w.t, m)
			if names := w.children("/g"); len(names) != 0 {
				w.t.Errorf("lost %s of a leave: children %v", name, names)
			}
		}
	})
}

// Who gives up leaves nothing, wherever his join was.
func TestAJoinThatIsGivenUpLeavesNoNode(t *testing.T) {
	onEach(t, func(w *world) {
		var after nth
		a := w.group("a", nil)
		c := w.open("b", &backendtest.Hooks{After: after.after})
		for _, replace := range []bool{false, true} {
			for what, match := range map[string]func(backendtest.Call) bool{
				"create":  creates,
				"list":    func(c backendtest.Call) bool { return c.Op == "children" },
				"removal": deletes, // of its own node, or with replace of the other's
			} {
				m := mustJoin(w.t, a, "x", "a")
				ctx, cancel := context.WithCancel(context.Background())
				after.arm(1, match, func(ctx context.Context, c backendtest.Call, _ error) error {
					cancel()
					if c.Op == "commit" {
						return backend.Uncertain(ctx.Err())
					}
					return ctx.Err()
				})
				_, err := textGroup(c, replace).Join(ctx, "x", "b")
				wantErr(w.t, err, context.Canceled)
				// The first one stands, or where it was taken over it may have ended.
				w.eventually("nothing is left of the join after "+what, func() bool {
					list, err := a.Members(context.Background())
					if err != nil {
						w.t.Fatal(err)
					}
					n := len(w.children("/g"))
					return m.Err() == nil && n == 1 && brief(list) == "x=a" || m.Err() != nil && replace && what == "removal" && n == 0
				})
				m.Leave()
				w.empty("/g")
			}
		}
	})
}

// The death of a process is told to all in time.
func TestAMemberThatIsCutOffOrDiesIsGoneInTime(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		watch := w.watch(ctx, w.group("reader", nil))
		mustJoin(w.t, w.group("stays", nil), "s", "1")
		m := mustJoin(w.t, w.group("a", nil), "x", "1")
		watch.until("s=1 x=1")
		start := time.Now()
		w.Link("a").Partition()
		watch.until("s=1")
		d := time.Since(start)
		if d > w.timeout+2*time.Second {
			w.t.Errorf("gone after %v, the timeout is %v", d, w.timeout)
		}
		w.t.Logf("figure: a member that was cut off was gone after %v, timeout %v", d.Round(time.Millisecond), w.timeout)
		if m.Err() != nil {
			w.t.Errorf("the membership has ended: %v", m.Err())
		}
		w.Link("a").Heal()
		watch.until("s=1 x=1") // joined again
		old := watch.last.List[1]
		start = time.Now()
		w.Link("a").Expire(old.Session)
		if now, _ := watch.another(old); now.Session == old.Session {
			w.t.Errorf("%+v, before %+v", now, old)
		}
		if d := time.Since(start); d > w.timeout+2*time.Second {
			w.t.Errorf("back after %v", d)
		}
	})
}

func TestABlipShowsToNobodyAndMakesNoNode(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		watch := w.watch(ctx, w.group("reader", nil))
		c := w.open("a", nil)
		m := mustJoin(w.t, textGroup(c, false), "x", "1")
		watch.until("x=1")
		before := watch.last.List[0]
		names := w.children("/g")
		for _, name := range []string{"a", "reader", "a", "reader"} {
			w.Link(name).Partition()
			w.settle()
			w.Link(name).Heal()
			w.settle()
		}
		// A write that both have got through after that.
		if err := m.SetValue(ctx, "2"); err != nil {
			w.t.Fatal(err)
		}
		for _, e := range watch.until("x=2") {
			if len(e.Joined)+len(e.Left) != 0 {
				w.t.Errorf("joined %v, left %v", e.Joined, e.Left)
			}
		}
		if got := watch.last.List[0]; got.Token != before.Token || got.Session != before.Session {
			w.t.Errorf("%+v, before %+v", got, before)
		}
		if after := w.children("/g"); !slices.Equal(names, after) {
			w.t.Errorf("children %v, before %v", after, names)
		}
	})
}

// The client has given its session up, and the service has not yet: the member is
// not refused by its own dead node, and nobody sees it twice or not at all.
func TestAMemberJoinsAgainWhileItsOldNodeStillStands(t *testing.T) {
	for _, replace := range []bool{false, true} {
		t.Run(fmt.Sprint("replace ", replace), func(t *testing.T) {
			onEach(t, func(w *world) {
				ctx := context.Background()
				watch := w.watch(ctx, w.group("reader", nil))
				c := w.open("a", nil)
				m := mustJoin(w.t, textGroup(c, replace), "x", "1")
				watch.until("x=1")
				old := watch.last.List[0]
				w.Link("a").Partition()
				awaitPhase(w.t, c, coord.PhaseLost)
				stood := len(w.children("/g")) == 1
				healed := time.Now()
				w.Link("a").Heal()
				got, vacant := watch.another(old)
				d := time.Since(healed)
				if got.Value != "1" || got.Session == old.Session || m.Err() != nil {
					w.t.Errorf("%+v, before %+v, %v", got, old, m.Err())
				}
				if w.fake && (!stood || vacant || d > 500*time.Millisecond) {
					w.t.Errorf("the old node stood: %v; a moment with nobody: %v; told after %v", stood, vacant, d)
				}
				w.t.Logf("figure: the old node stood: %v; a moment with nobody: %v; told %v after the contact", stood, vacant, d.Round(time.Millisecond))
				if names := w.children("/g"); len(names) != 1 {
					w.t.Errorf("children %v, want one", names)
				}
				mustLeave(w.t, m)
				w.empty("/g")
			})
		})
	}
}

// Who leaves while he has no session leaves no dead node to the readers, once he
// has contact.
func TestALeaveWithoutASessionTakesTheOldNodeAway(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", nil)
		m := mustJoin(w.t, textGroup(c, false), "x", "1")
		w.Link("a").Partition()
		awaitPhase(w.t, c, coord.PhaseLost)
		w.settle()
		start := time.Now()
		mustLeave(w.t, m)
		if d := time.Since(start); d != 0 {
			w.t.Errorf("Leave took %v", d)
		}
		if names := w.children("/g"); len(names) != 1 {
			w.t.Fatalf("children %v: the service had ended the session", names)
		}
		w.Link("a").Heal()
		w.settle()
		if names := w.children("/g"); len(names) != 0 {
			w.t.Errorf("left behind %v", names)
		}
	})
}

// The node that was made while Leave was called is Leave's to remove, too.
func TestALeaveDuringARejoinLeavesNoNode(t *testing.T) {
	onEach(t, func(w *world) {
		var after nth
		c := w.open("a", &backendtest.Hooks{After: after.after})
		m := mustJoin(w.t, coord.NewGroup[string](c, "/g", nil), "x", "1")
		made := make(chan struct{})
		after.arm(1, creates, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			close(made)
			return backend.ErrUncertain // applied
		})
		outsider := w.session("outsider")
		node := w.path("/g/" + w.children("/g")[0])
		if _, err := outsider.Commit(context.Background(), backend.Delete(node, backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		<-made
		left := make(chan error, 1)
		go func() { left <- m.Leave() }()
		<-m.Done()
		w.settle()
		select {
		case err := <-left:
			w.t.Errorf("Leave returned %v, and %v stands", err, w.children("/g"))
			left <- err
		default:
		}
		w.Link("a").Heal()
		if err := <-left; err != nil {
			w.t.Error(err)
		}
		if names := w.children("/g"); len(names) > 0 {
			w.t.Errorf("after Leave: %v", names)
		}
	})
}

func TestALeaveWithoutContactReturnsWithTheSession(t *testing.T) {
	onEach(t, func(w *world) {
		m := mustJoin(w.t, w.group("a", nil), "x", "1")
		w.Link("a").Partition()
		start := time.Now()
		m.Leave()
		if d := time.Since(start); d > w.timeout+2*time.Second {
			w.t.Errorf("Leave took %v", d)
		}
		wantErr(w.t, m.Err(), coord.ErrReleased)
		w.empty("/g")
		w.Link("a").Heal()
	})
}

// A member whose own node had vanished waited for ever elsewhere.
func TestAMemberWhoseNodeIsDeletedMakesANewOne(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		watch := w.watch(ctx, w.group("reader", nil))
		m := mustJoin(w.t, w.group("a", nil), "x", "1")
		s := w.session("x")
		watch.until("x=1")
		for _, directory := range []bool{false, true} {
			old := watch.last.List[0]
			ops := []backend.Op{backend.Delete(old.Path, backend.AnyVersion)}
			if directory {
				ops = append(ops, backend.Delete(w.path("/g"), backend.AnyVersion))
			}
			if _, err := s.Commit(ctx, ops...); err != nil {
				w.t.Fatal(err)
			}
			if got, _ := watch.another(old); got.Value != "1" || got.Token < old.Token || m.Err() != nil {
				w.t.Errorf("%+v, before %+v, %v", got, old, m.Err())
			}
			if err := m.SetValue(ctx, "2"); err != nil {
				w.t.Fatal(err)
			}
			watch.until("x=2")
			if err := m.SetValue(ctx, "1"); err != nil {
				w.t.Fatal(err)
			}
			watch.until("x=1")
		}
		mustLeave(w.t, m)
		w.empty("/g")
	})
}

// User code ran on the event thread elsewhere, where it could not call back.
func TestACodecMayUseTheClient(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		c := w.open("a", nil)
		other := coord.NewGroup(c, "/other", &coord.GroupOptions[string]{Codec: coord.Text()})
		mustJoin(w.t, other, "o", "1")
		codec := coord.Text()
		codec.Decode = func(data []byte) (string, error) {
			list, err := other.Members(ctx)
			return string(data) + "/" + brief(list), err
		}
		g := coord.NewGroup(c, "/g", &coord.GroupOptions[string]{Codec: codec})
		watch := w.watch(ctx, g)
		m := mustJoin(w.t, g, "x", "1")
		watch.until("x=1/o=1")
		if err := m.SetValue(ctx, "2"); err != nil {
			w.t.Fatal(err)
		}
		watch.until("x=2/o=1")
	})
}

func TestAMembershipEndsWhenTheServiceRefuses(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before nth
		g := textGroup(w.open("a", &backendtest.Hooks{Before: before.before}), false)
		m := mustJoin(w.t, g, "x", "1")
		first, _ := g.Member(ctx, "x")
		before.arm(1, creates, func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
		w.Link("a").Expire(first.Session)
		<-m.Done()
		wantErr(w.t, m.Err(), coord.ErrDenied)
		wantErr(w.t, m.Leave(), coord.ErrDenied)
	})
}

// One member that may not be read does not hide the others.
func TestAMemberThatMayNotBeReadIsListedWithItsError(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		a := w.group("a", nil)
		mustJoin(w.t, a, "open", "1")
		m := mustJoin(w.t, a, "secret", "1")
		secret, _ := a.Member(ctx, "secret")
		g := w.group("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "get" && c.Path == secret.Path {
				return backend.ErrDenied
			}
			return nil
		}})
		watch := w.watch(ctx, g)
		e := watch.next()
		if brief(e.List) != "open=1 secret=" || e.Err != nil {
			w.t.Fatalf("%+v", e)
		}
		got := e.List[1]
		wantErr(w.t, got.Err, coord.ErrDenied)
		if got.Token != secret.Token || got.Session != secret.Session {
			w.t.Errorf("%+v, want %+v", got, secret)
		}
		mustLeave(w.t, m)
		watch.until("open=1")
	})
}

// One child with a name that CheckPath refuses, made by another program.
func foreignName(kind string, on *atomic.Bool) *backendtest.Hooks {
	return &backendtest.Hooks{Names: func(c backendtest.Call, names []string) []string {
		if on.Load() && (strings.HasSuffix(c.Path, "/g") || strings.HasSuffix(c.Path, "/e")) {
			return append(names, "_c_00000000-0000-4000-8000-000000000000-"+kind)
		}
		return names
	}}
}

func TestAForeignNameDoesNotBlindAGroup(t *testing.T) {
	onMemory(t, func(w *world) {
		var on atomic.Bool
		on.Store(true)
		g := w.group("reader", foreignName("member-a\u00adb-0000000000", &on))
		mustJoin(w.t, w.group("a", nil), "x", "1")
		list, err := g.Members(context.Background())
		if err != nil || brief(list) != "x=1" {
			w.t.Errorf("Members: %v, %v", list, err)
		}
		e := next(w.t, g.Watch(context.Background()))
		if e.Err != nil {
			w.t.Errorf("Watch ended: %v", e.Err)
		}
	})
}

// A reconnection reads everything anew; what it finds must be told.
func TestAMemberThatBecomesReadableIsTold(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		mustJoin(w.t, w.group("a", nil), "x", "1")
		var denied atomic.Bool
		denied.Store(true)
		g := w.group("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "get" && strings.Contains(c.Path, "-x-") && denied.Load() {
				return backend.ErrDenied
			}
			return nil
		}})
		p, err := g.Picker(ctx, coord.PickRoundRobin)
		if err != nil {
			w.t.Fatal(err)
		}
		watch := w.watch(ctx, g)
		if e := watch.next(); !errors.Is(e.List[0].Err, coord.ErrDenied) {
			w.t.Fatalf("%+v", e)
		}
		denied.Store(false)
		w.Link("b").Partition()
		w.Link("b").Heal()
		time.Sleep(time.Second)
		w.settle()
		list, err := g.Members(ctx)
		if err != nil || list[0].Err != nil {
			w.t.Fatalf("%v %v", list, err)
		}
		select {
		case e := <-watch.ch:
			w.t.Logf("told: %+v", e)
		default:
			w.t.Error("every node was read again after the reconnection, and the watch told nothing")
		}
		if _, ok := p.TryNext(); !ok {
			w.t.Error("the picker never picks it")
		}
	})
}

// A Join that was given up leaves nothing behind; the next Join of the same id is not refused by it.
func TestAJoinIsNotRefusedByItsOwnEarlierAttempt(t *testing.T) {
	onMemory(t, func(w *world) {
		var before, slow nth
		g := w.group("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			if err := before.before(ctx, c); err != nil {
				return err
			}
			return slow.before(ctx, c)
		}})
		mustJoin(w.t, g, "other", "1")
		ctx, cancel := context.WithCancel(context.Background())
		before.arm(1, func(c backendtest.Call) bool { return c.Op == "children" && c.Path == "/g" }, func(ctx context.Context, c backendtest.Call, _ error) error {
			cancel()
			return ctx.Err()
		})
		let := make(chan struct{})
		slow.arm(1, deletes, func(context.Context, backendtest.Call, error) error { <-let; return nil }) // the removal in the background is slow
		_, err := g.Join(ctx, "x", "1")
		wantErr(w.t, err, context.Canceled)
		w.settle()
		m, err := g.Join(context.Background(), "x", "2")
		if err != nil {
			w.t.Errorf("the second Join: %v; nobody else has ever joined as x", err)
		}
		close(let)
		_ = m
	})
}

// After Leave has returned nil the id is free, for the same client too.
func TestAfterLeaveTheIDIsFree(t *testing.T) {
	onMemory(t, func(w *world) {
		refused := 0
		for range 20 {
			g := w.group("a", nil)
			m := mustJoin(w.t, g, "x", "1")
			w.Link("a").Partition()
			time.Sleep(w.timeout*2/3 + 100*time.Millisecond) // lost here, not yet on the service
			if err := m.Leave(); err != nil {
				w.t.Fatal(err)
			}
			w.Link("a").Heal()
			m, err := g.Join(context.Background(), "x", "2")
			if errors.Is(err, coord.ErrDuplicate) {
				refused++
			}
			if m != nil {
				mustLeave(w.t, m)
			}
			time.Sleep(time.Minute)
		}
		if refused > 0 {
			w.t.Errorf("%d of 20 Joins after a Leave that returned nil: ErrDuplicate", refused)
		}
	})
}

// Sessions that are lost in each attempt to join again leave no more to remember,
// and no more to remove, than a bounded number.
func TestTracesOfLostSessionsAreBounded(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var flap atomic.Bool
		var n, lists atomic.Int32
		c := w.open("a", &backendtest.Hooks{
			Before: func(_ context.Context, k backendtest.Call) error {
				if k.Op == "children" && strings.HasSuffix(k.Path, "/g") {
					lists.Add(1)
				}
				return nil
			},
			After: func(_ context.Context, k backendtest.Call, err error) error {
				if flap.Load() && creates(k) {
					n.Add(1)
					w.Link("a").Expire(k.Session.ID())
					return backend.Uncertain(backend.ErrSessionLost)
				}
				return err
			}})
		g := textGroup(c, false)
		m := mustJoin(w.t, g, "x", "1")
		first, _ := g.Member(ctx, "x")
		flap.Store(true)
		w.Link("a").Expire(first.Session)
		time.Sleep(10 * time.Minute)
		w.Link("a").Partition()
		time.Sleep(time.Minute) // the session is lost, and there is no next one
		lists.Store(0)
		if err := m.Leave(); err != nil {
			w.t.Error(err)
		}
		flap.Store(false)
		w.Link("a").Heal()
		time.Sleep(time.Minute)
		w.settle()
		if n.Load() < 100 || lists.Load() > 20 {
			w.t.Errorf("after %d lost sessions one Leave cost %d lists", n.Load(), lists.Load())
		}
	})
}

// The session over which the node of a lost one is removed is lost as well.
func TestALeaveLeavesNoNodeOfTwoSessionsAgo(t *testing.T) {
	onMemory(t, func(w *world) {
		var before nth
		var ghost atomic.Value
		var removed atomic.Bool
		c := w.open("a", &backendtest.Hooks{Before: before.before, After: func(_ context.Context, c backendtest.Call, err error) error {
			if path, _ := ghost.Load().(string); err == nil && deletes(c) && c.Ops[0].Path == path {
				removed.Store(true)
			}
			return err
		}})
		m := mustJoin(w.t, textGroup(c, false), "x", "1")
		w.Link("a").Partition()
		awaitPhase(w.t, c, coord.PhaseLost)
		if err := m.Leave(); err != nil {
			w.t.Error(err)
		}
		stands := w.children("/g")
		if len(stands) != 1 {
			w.t.Fatalf("%v, want the node of the lost session", stands)
		}
		ghost.Store(w.path("/g/" + stands[0]))
		before.arm(1, deletes, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			<-c.Session.Done()
			return nil
		})
		w.Link("a").Heal()
		w.empty("/g")
		if !removed.Load() {
			w.t.Error("the node stood until the service ended its session")
		}
	})
}
