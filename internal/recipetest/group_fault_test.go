package recipetest

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A Leave without a session removes the node of the lost session as soon as contact returns.
func TestGroup_ALeaveWithoutASessionRemovesTheOldNode(t *testing.T) {
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

func TestGroup_AMembershipEndsWhenTheServiceRefuses(t *testing.T) {
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
func TestGroup_AMemberThatMayNotBeReadIsListedWithItsError(t *testing.T) {
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

func TestGroup_AForeignNameDoesNotBlindAGroup(t *testing.T) {
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
func TestGroup_AMemberThatBecomesReadableIsReported(t *testing.T) {
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
func TestGroup_AJoinIsNotRefusedByItsOwnEarlierAttempt(t *testing.T) {
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
func TestGroup_AfterLeaveTheIDIsFree(t *testing.T) {
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
func TestGroup_RememberedNodesOfLostSessionsAreBounded(t *testing.T) {
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
func TestGroup_ALeaveLeavesNoNodeOfTwoSessionsAgo(t *testing.T) {
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
