package coord_test

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
)

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
		awaitPhase(w.t, c, coord.Lost)
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
