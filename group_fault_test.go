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
	"github.com/go-coord/coord/internal/coordtest"
)

// awaitPhase waits until the client is in the phase want.
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

// In other libraries a retry after a lost reply created a second node.
func TestALostReplyOfAJoinLeavesExactlyOneNode(t *testing.T) {
	onEach(t, func(w *world) {
		g := w.group("a", nil)
		mustLeave(w.T, mustJoin(w.T, g, "x", "0")) // the directory is known
		for name, drop := range map[string]func(){"reply": w.Link("a").DropNextReply, "request": w.Link("a").DropNextRequest} {
			drop()
			m := mustJoin(w.T, g, "x", name)
			if names := w.Children("/g"); len(names) != 1 {
				w.T.Errorf("lost %s: children %v, want one", name, names)
			}
			if got, err := g.Member(context.Background(), "x"); err != nil || got.Value != name {
				w.T.Errorf("lost %s: %+v, %v", name, got, err)
			}
			drop()
			mustLeave(w.T, m)
			if names := w.Children("/g"); len(names) != 0 {
				w.T.Errorf("lost %s of a leave: children %v", name, names)
			}
		}
	})
}

// A join that is given up leaves no node, at whichever request it was.
func TestAJoinThatIsGivenUpLeavesNoNode(t *testing.T) {
	onEach(t, func(w *world) {
		a := w.group("a", nil)
		for _, replace := range []bool{false, true} {
			for what, match := range map[string]func(backendtest.Call) bool{
				"create":  coordtest.Creates,
				"list":    func(c backendtest.Call) bool { return c.Op == "children" },
				"removal": coordtest.Deletes, // of its own node, or with replace of the other's
			} {
				m := mustJoin(w.T, a, "x", "a")
				ctx, cancel := context.WithCancel(context.Background())
				var after coordtest.Nth // a client for each case: a clean-up of the one before must not meet its fault
				c := w.Open(fmt.Sprint("b", replace, what), &backendtest.Hooks{After: after.After})
				after.Arm(1, match, func(ctx context.Context, c backendtest.Call, _ error) error {
					cancel()
					if c.Op == "commit" {
						return backend.Uncertain(ctx.Err())
					}
					return ctx.Err()
				})
				_, err := textGroup(c, replace).Join(ctx, "x", "b")
				coordtest.WantErr(w.T, err, context.Canceled)
				// The first membership is intact, or has ended if it was being taken over.
				w.Eventually("nothing is left of the join after "+what, func() bool {
					list, err := a.Members(context.Background())
					if err != nil {
						w.T.Fatal(err)
					}
					n := len(w.Children("/g"))
					return m.Err() == nil && n == 1 && brief(list) == "x=a" || m.Err() != nil && replace && what == "removal" && n == 0
				})
				m.Leave()
				w.Empty("/g")
			}
		}
	})
}

// All watches report the death of a process in time.
func TestAMemberThatIsCutOffOrDiesIsGoneInTime(t *testing.T) {
	onAll(t, func(w *world) {
		ctx := context.Background()
		watch := w.watch(ctx, w.group("reader", nil))
		mustJoin(w.T, w.group("stays", nil), "s", "1")
		m := mustJoin(w.T, w.group("a", nil), "x", "1")
		watch.until("s=1 x=1")
		start := time.Now()
		w.Link("a").Partition()
		watch.until("s=1")
		d := time.Since(start)
		if w.Fake && d > w.Timeout+2*time.Second {
			w.T.Errorf("gone after %v, the timeout is %v", d, w.Timeout)
		}
		w.T.Logf("figure: a member that was cut off was gone after %v, timeout %v", d.Round(time.Millisecond), w.Timeout)
		if m.Err() != nil {
			w.T.Errorf("the membership has ended: %v", m.Err())
		}
		w.Link("a").Heal()
		watch.until("s=1 x=1") // joined again
		old := watch.Last.Members[1]
		start = time.Now()
		w.Link("a").Expire(old.Session)
		if now, _ := watch.another(old); now.Session == old.Session {
			w.T.Errorf("%+v, before %+v", now, old)
		}
		if d := time.Since(start); w.Fake && d > w.Timeout+2*time.Second {
			w.T.Errorf("back after %v", d)
		}
	})
}

func TestABlipIsInvisibleAndCreatesNoNode(t *testing.T) {
	onAll(t, func(w *world) {
		ctx := context.Background()
		watch := w.watch(ctx, w.group("reader", nil))
		c := w.Open("a", nil)
		m := mustJoin(w.T, textGroup(c, false), "x", "1")
		watch.until("x=1")
		before := watch.Last.Members[0]
		names := w.Children("/g")
		for _, name := range []string{"a", "reader", "a", "reader"} {
			w.Link(name).Partition()
			w.Settle()
			w.Link(name).Heal()
			w.Settle()
		}
		// A write after the blips, which the reader receives.
		if err := m.SetValue(ctx, "2"); err != nil {
			w.T.Fatal(err)
		}
		for _, e := range watch.until("x=2") {
			if len(e.Joined)+len(e.Left) != 0 {
				w.T.Errorf("joined %v, left %v", e.Joined, e.Left)
			}
		}
		if got := watch.Last.Members[0]; got.Token != before.Token || got.Session != before.Session {
			w.T.Errorf("%+v, before %+v", got, before)
		}
		if after := w.Children("/g"); !slices.Equal(names, after) {
			w.T.Errorf("children %v, before %v", after, names)
		}
	})
}

// The client has lost its session, but the service still keeps it. The member is not refused
// because of its own old node, and no reader sees it twice or not at all.
func TestAMemberJoinsAgainWhileItsOldNodeStillExists(t *testing.T) {
	t.Parallel()
	for _, replace := range []bool{false, true} {
		t.Run(fmt.Sprint("replace ", replace), func(t *testing.T) {
			onAll(t, func(w *world) {
				ctx := context.Background()
				watch := w.watch(ctx, w.group("reader", nil))
				c := w.Open("a", nil)
				m := mustJoin(w.T, textGroup(c, replace), "x", "1")
				watch.until("x=1")
				old := watch.Last.Members[0]
				w.Link("a").Partition()
				awaitPhase(w.T, c, coord.PhaseLost)
				stood := len(w.Children("/g")) == 1
				healed := time.Now()
				w.Link("a").Heal()
				got, vacant := watch.another(old)
				d := time.Since(healed)
				if got.Value != "1" || got.Session == old.Session || m.Err() != nil {
					w.T.Errorf("%+v, before %+v, %v", got, old, m.Err())
				}
				if w.Fake && (!stood || vacant || d > 500*time.Millisecond) {
					w.T.Errorf("the old node stood: %v; a gap: %v; reported after %v", stood, vacant, d)
				}
				w.T.Logf("figure: the old node stood: %v; a gap: %v; reported %v after the contact", stood, vacant, d.Round(time.Millisecond))
				if names := w.Children("/g"); len(names) != 1 {
					w.T.Errorf("children %v, want one", names)
				}
				mustLeave(w.T, m)
				w.Empty("/g")
			})
		})
	}
}

// A Leave without a session removes the node of the lost session as soon as contact returns.
func TestALeaveWithoutASessionRemovesTheOldNode(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		m := mustJoin(w.T, textGroup(c, false), "x", "1")
		w.Link("a").Partition()
		awaitPhase(w.T, c, coord.PhaseLost)
		w.Settle()
		start := time.Now()
		mustLeave(w.T, m)
		if d := time.Since(start); d != 0 {
			w.T.Errorf("Leave took %v", d)
		}
		if names := w.Children("/g"); len(names) != 1 {
			w.T.Fatalf("children %v: the service had ended the session", names)
		}
		w.Link("a").Heal()
		w.Settle()
		if names := w.Children("/g"); len(names) != 0 {
			w.T.Errorf("left behind %v", names)
		}
	})
}

// Leave also removes a node that a rejoin was creating when Leave was called.
func TestALeaveDuringARejoinLeavesNoNode(t *testing.T) {
	onEach(t, func(w *world) {
		var after coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: after.After})
		m := mustJoin(w.T, coord.NewGroup[string](c, "/g", nil), "x", "1")
		made := make(chan struct{})
		after.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			close(made)
			return backend.ErrUncertain // applied
		})
		outsider := w.Session("outsider")
		node := w.Path("/g/" + w.Children("/g")[0])
		if _, err := outsider.Commit(context.Background(), backend.Delete(node, backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-made
		left := make(chan error, 1)
		go func() { left <- m.Leave() }()
		<-m.Done()
		w.Settle()
		select {
		case err := <-left:
			w.T.Errorf("Leave returned %v, and %v still exist", err, w.Children("/g"))
			left <- err
		default:
		}
		w.Link("a").Heal()
		if err := <-left; err != nil {
			w.T.Error(err)
		}
		if names := w.Children("/g"); len(names) > 0 {
			w.T.Errorf("after Leave: %v", names)
		}
	})
}

func TestALeaveWithoutContactReturnsWithTheSession(t *testing.T) {
	onEach(t, func(w *world) {
		m := mustJoin(w.T, w.group("a", nil), "x", "1")
		w.Link("a").Partition()
		start := time.Now()
		m.Leave()
		if d := time.Since(start); w.Fake && d > w.Timeout+2*time.Second {
			w.T.Errorf("Leave took %v", d)
		}
		coordtest.WantErr(w.T, m.Err(), coord.ErrReleased)
		w.Empty("/g")
		w.Link("a").Heal()
	})
}

// In other libraries a member whose own node had vanished waited forever.
func TestAMemberWhoseNodeIsDeletedMakesANewOne(t *testing.T) {
	onAll(t, func(w *world) {
		ctx := context.Background()
		watch := w.watch(ctx, w.group("reader", nil))
		m := mustJoin(w.T, w.group("a", nil), "x", "1")
		s := w.Session("x")
		watch.until("x=1")
		for _, directory := range []bool{false, true} {
			old := watch.Last.Members[0]
			ops := []backend.Op{backend.Delete(old.Path, backend.AnyVersion)}
			if directory {
				ops = append(ops, backend.Delete(w.Path("/g"), backend.AnyVersion))
			}
			if _, err := s.Commit(ctx, ops...); err != nil {
				w.T.Fatal(err)
			}
			if got, _ := watch.another(old); got.Value != "1" || got.Token < old.Token || m.Err() != nil {
				w.T.Errorf("%+v, before %+v, %v", got, old, m.Err())
			}
			if err := m.SetValue(ctx, "2"); err != nil {
				w.T.Fatal(err)
			}
			watch.until("x=2")
			if err := m.SetValue(ctx, "1"); err != nil {
				w.T.Fatal(err)
			}
			watch.until("x=1")
		}
		mustLeave(w.T, m)
		w.Empty("/g")
	})
}

// In other libraries user code ran on the event thread, where it could not call the client.
func TestACodecMayUseTheClient(t *testing.T) {
	onAll(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		other := coord.NewGroup(c, "/other", &coord.GroupOptions[string]{Codec: coord.Text()})
		mustJoin(w.T, other, "o", "1")
		codec := coord.Text()
		codec.Decode = func(data []byte) (string, error) {
			list, err := other.Members(ctx)
			return string(data) + "/" + brief(list), err
		}
		g := coord.NewGroup(c, "/g", &coord.GroupOptions[string]{Codec: codec})
		watch := w.watch(ctx, g)
		m := mustJoin(w.T, g, "x", "1")
		watch.until("x=1/o=1")
		if err := m.SetValue(ctx, "2"); err != nil {
			w.T.Fatal(err)
		}
		watch.until("x=2/o=1")
	})
}

func TestAMembershipEndsWhenTheServiceRefuses(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		g := textGroup(w.Open("a", &backendtest.Hooks{Before: before.Before}), false)
		m := mustJoin(w.T, g, "x", "1")
		first, _ := g.Member(ctx, "x")
		before.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
		w.Link("a").Expire(first.Session)
		<-m.Done()
		coordtest.WantErr(w.T, m.Err(), coord.ErrDenied)
		coordtest.WantErr(w.T, m.Leave(), coord.ErrDenied)
	})
}

// One member that may not be read does not hide the others.
func TestAMemberThatMayNotBeReadIsListedWithItsError(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx := context.Background()
		a := w.group("a", nil)
		mustJoin(w.T, a, "open", "1")
		m := mustJoin(w.T, a, "secret", "1")
		secret, _ := a.Member(ctx, "secret")
		g := w.group("b", denies(func(path string) bool { return path == secret.Path }))
		watch := w.watch(ctx, g)
		e := watch.next()
		if brief(e.Members) != "open=1 secret=" || e.Err != nil {
			w.T.Fatalf("%+v", e)
		}
		got := e.Members[1]
		coordtest.WantErr(w.T, got.Err, coord.ErrDenied)
		if got.Token != secret.Token || got.Session != secret.Session {
			w.T.Errorf("%+v, want %+v", got, secret)
		}
		mustLeave(w.T, m)
		watch.until("open=1")
	})
}

// foreignName lists one more child, with a name that CheckPath refuses, as another program
// could create it.
func foreignName(kind string, on *atomic.Bool) *backendtest.Hooks {
	return &backendtest.Hooks{Names: func(c backendtest.Call, names []string) []string {
		if on.Load() && (strings.HasSuffix(c.Path, "/g") || strings.HasSuffix(c.Path, "/e")) {
			return append(names, "_c_00000000-0000-4000-8000-000000000000-"+kind)
		}
		return names
	}}
}

func TestAForeignNameDoesNotBlindAGroup(t *testing.T) {
	onMemories(t, func(w *world) {
		var on atomic.Bool
		on.Store(true)
		g := w.group("reader", foreignName("member-a\u00adb-0000000000", &on))
		mustJoin(w.T, w.group("a", nil), "x", "1")
		list, err := g.Members(context.Background())
		if err != nil || brief(list) != "x=1" {
			w.T.Errorf("Members: %v, %v", list, err)
		}
		e := next(w.T, g.Watch(context.Background()))
		if e.Err != nil {
			w.T.Errorf("Watch ended: %v", e.Err)
		}
	})
}

// After a reconnection every node is read again. Changes that this finds must be reported.
func TestAMemberThatBecomesReadableIsReported(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx := context.Background()
		mustJoin(w.T, w.group("a", nil), "x", "1")
		var denied atomic.Bool
		denied.Store(true)
		g := w.group("b", denies(func(path string) bool { return strings.Contains(path, "-x-") && denied.Load() }))
		p, err := g.Picker(ctx, coord.PickRoundRobin)
		if err != nil {
			w.T.Fatal(err)
		}
		watch := w.watch(ctx, g)
		if e := watch.next(); !errors.Is(e.Members[0].Err, coord.ErrDenied) {
			w.T.Fatalf("%+v", e)
		}
		denied.Store(false)
		w.Link("b").Partition()
		w.Link("b").Heal()
		time.Sleep(time.Second)
		w.Settle()
		list, err := g.Members(ctx)
		if err != nil || list[0].Err != nil {
			w.T.Fatalf("%v %v", list, err)
		}
		select {
		case e := <-watch.ch:
			w.T.Logf("reported: %+v", e)
		default:
			w.T.Error("every node was read again after the reconnection, and the watch reported nothing")
		}
		if _, ok := p.TryNext(); !ok {
			w.T.Error("the picker never picks it")
		}
	})
}

// The node of a Join that was given up cannot be removed at once. The next Join of the same id is
// not refused because of it.
func TestAJoinIsNotRefusedByItsOwnEarlierAttempt(t *testing.T) {
	onMemory(t, func(w *world) {
		var before, removal coordtest.Nth
		g := w.group("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			if err := before.Before(ctx, c); err != nil {
				return err
			}
			return removal.Before(ctx, c)
		}})
		mustJoin(w.T, g, "other", "1")
		ctx, cancel := context.WithCancel(context.Background())
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "children" && c.Path == "/g" }, func(ctx context.Context, c backendtest.Call, _ error) error {
			cancel()
			return ctx.Err()
		})
		removal.Arm(1, removes, func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
		_, err := g.Join(ctx, "x", "1")
		coordtest.WantErr(w.T, err, context.Canceled)
		if names := w.nodesOf("x"); len(names) != 1 {
			w.T.Fatalf("%v, want the node that could not be removed", names)
		}
		if _, err := g.Join(context.Background(), "x", "2"); err != nil {
			w.T.Errorf("the second Join: %v; no other member has ever joined as x", err)
		}
		if names := w.nodesOf("x"); len(names) != 1 {
			w.T.Errorf("%v, want the node of the second Join", names)
		}
	})
}

// After Leave has returned nil the id is free, for the same client too.
func TestAfterLeaveTheIDIsFree(t *testing.T) {
	onMemory(t, func(w *world) {
		refused := 0
		for range 20 {
			g := w.group("a", nil)
			m := mustJoin(w.T, g, "x", "1")
			w.Link("a").Partition()
			time.Sleep(w.Timeout*2/3 + 100*time.Millisecond) // lost for the client, not yet for the service
			if err := m.Leave(); err != nil {
				w.T.Fatal(err)
			}
			w.Link("a").Heal()
			m, err := g.Join(context.Background(), "x", "2")
			if errors.Is(err, coord.ErrDuplicate) {
				refused++
			}
			if m != nil {
				mustLeave(w.T, m)
			}
			time.Sleep(time.Minute)
		}
		if refused > 0 {
			w.T.Errorf("%d of 20 Joins after a Leave that returned nil: ErrDuplicate", refused)
		}
	})
}

// If each attempt to join again loses its session, the number of nodes to remember and to
// remove stays bounded.
func TestRememberedNodesOfLostSessionsAreBounded(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var flap atomic.Bool
		var n, lists atomic.Int32
		c := w.Open("a", &backendtest.Hooks{
			Before: func(_ context.Context, k backendtest.Call) error {
				if k.Op == "children" && strings.HasSuffix(k.Path, "/g") {
					lists.Add(1)
				}
				return nil
			},
			After: func(_ context.Context, k backendtest.Call, err error) error {
				if flap.Load() && coordtest.Creates(k) {
					n.Add(1)
					w.Link("a").Expire(k.Session.ID())
					return backend.Uncertain(backend.ErrSessionLost)
				}
				return err
			}})
		g := textGroup(c, false)
		m := mustJoin(w.T, g, "x", "1")
		first, _ := g.Member(ctx, "x")
		flap.Store(true)
		w.Link("a").Expire(first.Session)
		time.Sleep(10 * time.Minute)
		w.Link("a").Partition()
		time.Sleep(time.Minute) // the session is lost, and there is no next one
		lists.Store(0)
		if err := m.Leave(); err != nil {
			w.T.Error(err)
		}
		flap.Store(false)
		w.Link("a").Heal()
		time.Sleep(time.Minute)
		w.Settle()
		if n.Load() < 100 || lists.Load() > 20 {
			w.T.Errorf("after %d lost sessions one Leave cost %d lists", n.Load(), lists.Load())
		}
	})
}

// The session over which the node of a lost session is removed is lost as well.
func TestALeaveLeavesNoNodeOfTwoSessionsAgo(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		var ghost atomic.Value
		var removed atomic.Bool
		c := w.Open("a", &backendtest.Hooks{Before: before.Before, After: func(_ context.Context, c backendtest.Call, err error) error {
			if path, _ := ghost.Load().(string); err == nil && coordtest.Deletes(c) && c.Ops[0].Path == path {
				removed.Store(true)
			}
			return err
		}})
		m := mustJoin(w.T, textGroup(c, false), "x", "1")
		w.Link("a").Partition()
		awaitPhase(w.T, c, coord.PhaseLost)
		if err := m.Leave(); err != nil {
			w.T.Error(err)
		}
		stands := w.Children("/g")
		if len(stands) != 1 {
			w.T.Fatalf("%v, want the node of the lost session", stands)
		}
		ghost.Store(w.Path("/g/" + stands[0]))
		before.Arm(1, coordtest.Deletes, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			<-c.Session.Done()
			return nil
		})
		w.Link("a").Heal()
		w.Empty("/g")
		if !removed.Load() {
			w.T.Error("the node stood until the service ended its session")
		}
	})
}
