package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// Each request of a Redrive is lost, or its reply, or the session ends there: each item is in
// one of the two queues, once, and another Redrive moves the rest.
func TestQueue_ALostRequestOfARedriveIsResolved(t *testing.T) {
	for _, fault := range []string{"request", "reply", "expiry"} {
		t.Run(fault, func(t *testing.T) {
			onMemory(t, func(w *world) {
				for n := 1; redrivenOnce(w, fault, n); n++ {
					if n > 40 {
						w.T.Fatal("no end")
					}
				}
			})
		})
	}
}

// redrivenOnce redrives with a fault at the n-th request and reports whether there was one.
func redrivenOnce(w *world, fault string, n int) (hit bool) {
	ctx := context.Background()
	var x coordtest.Nth
	hooks := &backendtest.Hooks{Before: x.Before}
	if fault == "reply" {
		hooks = &backendtest.Hooks{After: x.After}
	}
	name := fmt.Sprint("r", n, fault)
	o := &coord.QueueOptions[int]{MaxAttempts: 1}
	q := w.queue(fmt.Sprint("a", n, fault), o)
	r := w.hookedQueue(name, hooks, o)
	const items = 20
	ids := w.bury(q, 1, items)
	dead := w.deadQueue(fmt.Sprint("d", n, fault))
	if err := mustTake(w.T, dead, 1).Release(); err != nil { // one of them has a state
		w.T.Fatal(err)
	}
	if err := mustTake(w.T, dead, 1).Nack(0); err != nil {
		w.T.Fatal(err)
	}
	x.Arm(n, func(backendtest.Call) bool { return true }, func(_ context.Context, c backendtest.Call, _ error) error {
		if hit = true; c.Op == "commit" && fault != "expiry" {
			return backend.ErrUncertain
		}
		w.Link(name).Expire(c.Session.ID())
		return nil
	})
	moved := 0
	for range 3 {
		m, err := r.Redrive(ctx)
		moved += m
		if err == nil {
			break
		}
		coordtest.WantErr(w.T, err, coord.ErrUncertain)
	}
	if moved > items || !hit && moved != items {
		w.T.Errorf("request %d: %d moved", n, moved)
	}
	if d, l := mustLen(w.T, &dead.Consumer), mustLen(w.T, &q.Consumer); d != 0 || l != items {
		w.T.Fatalf("request %d: %d dead, %d alive", n, d, l)
	}
	for i, id := range ids {
		it := mustTake(w.T, q, i+1)
		if it.ID != id || it.Attempt != 1 {
			w.T.Errorf("request %d: %+v, want %s", n, it, id)
		}
		mustAck(w.T, it)
	}
	if left := w.reasons(); len(left) != 0 {
		w.T.Errorf("request %d: left %v", n, left)
	}
	w.drained(&q.Consumer)
	return hit
}

// An item is claimed from the dead letters after Redrive, or Remove, has listed it.
func TestQueue_AClaimedDeadLetterIsLeftAlone(t *testing.T) {
	for _, taken := range []bool{false, true} {
		for name, call := range map[string]func(q *coord.Queue[int], id string) error{
			"redrive all": func(q *coord.Queue[int], _ string) error {
				n, err := q.Redrive(context.Background())
				if n != 0 || err != nil {
					return fmt.Errorf("%d moved, %w", n, err)
				}
				return coord.ErrLocked
			},
			"redrive": func(q *coord.Queue[int], id string) error { _, err := q.Redrive(context.Background(), id); return err },
			"remove":  func(q *coord.Queue[int], id string) error { return q.Remove(context.Background(), id) },
		} {
			t.Run(fmt.Sprint(name, taken), func(t *testing.T) {
				onMemory(t, func(w *world) {
					var x coordtest.Nth
					o := &coord.QueueOptions[int]{MaxAttempts: 1}
					q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, o)
					id := w.bury(q, 1, 1)[0]
					dead := w.deadQueue("d")
					if taken {
						if err := mustTake(w.T, dead, 1).Nack(0); err != nil {
							w.T.Fatal(err)
						}
					}
					var it *coord.Item[int]
					x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
						it = mustTake(w.T, dead, 1)
						return nil
					})
					coordtest.WantErr(w.T, call(q, id), coord.ErrLocked)
					if it == nil {
						w.T.Fatal("nothing was deleted")
					}
					if err := it.Verify(context.Background()); err != nil {
						w.T.Error(err)
					}
					if n := mustLen(w.T, &q.Consumer); n != 0 {
						w.T.Errorf("%d items in the queue", n)
					}
					mustAck(w.T, it)
				})
			})
		}
	}
}

// Items of different priorities that died in another order go to the buckets of their own.
func TestQueue_ItemsOfOneRedriveKeepTheirPriorities(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewPriorityQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
		for i, p := range []int64{5, -3, 0} {
			if _, err := q.Put(ctx, p, i); err != nil {
				w.T.Fatal(err)
			}
			if err := mustTake(w.T, q, i).Nack(0); err != nil {
				w.T.Fatal(err)
			}
		}
		if n, err := q.Redrive(ctx); n != 3 || err != nil {
			w.T.Fatal(n, err)
		}
		for _, v := range []int{1, 2, 0} {
			mustAck(w.T, mustTake(w.T, q, v))
		}
		w.drained(&q.Consumer)
	})
}

// An item that vanishes while it is moved together with others stops none of these.
func TestQueue_ARedriveGoesOnWithoutAnItemThatVanishes(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, &coord.QueueOptions[int]{MaxAttempts: 1})
		ids := w.bury(q, 1, 5)
		x.Arm(1, coordtest.Deletes, func(_ context.Context, c backendtest.Call, _ error) error {
			for _, op := range c.Ops {
				if op.Kind == backend.OpDelete && strings.Contains(op.Path, "/i-"+ids[2]) {
					w.commit(backend.Delete(op.Path, backend.AnyVersion))
				}
			}
			return nil
		})
		if n, err := q.Redrive(context.Background()); n != 4 || err != nil || !x.Idle() {
			w.T.Errorf("%d moved, %v", n, err)
		}
		for _, v := range []int{1, 2, 4, 5} {
			mustAck(w.T, mustTake(w.T, q, v))
		}
	})
}

// A dead letter that is claimed while it is moved into a queue with MaxLen is left alone.
func TestQueue_ARedriveIntoALimitedQueueLeavesClaimedItemsAlone(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		var left atomic.Int64
		left.Store(math.MaxInt64)
		hooks := &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			if left.Add(-1) < 0 {
				return backend.ErrDenied // it would not end
			}
			return x.Before(ctx, c)
		}}
		q := w.hookedQueue("a", hooks, &coord.QueueOptions[int]{MaxAttempts: 1, MaxLen: 9})
		w.bury(q, 1, 3)
		dead := w.deadQueue("d")
		var claimed *coord.Item[int]
		x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			claimed = mustTake(w.T, dead, 1)
			return nil
		})
		left.Store(100)
		if n, err := q.Redrive(context.Background()); n != 2 || err != nil {
			w.T.Errorf("%d moved, %v", n, err)
		}
		left.Store(math.MaxInt64)
		mustAck(w.T, claimed)
		mustAck(w.T, mustTake(w.T, q, 2))
		mustAck(w.T, mustTake(w.T, q, 3))
		w.drained(&q.Consumer)
	})
}

// Another client puts between the count and the commit of a Redrive into a queue with MaxLen. The
// refusal of the count is not taken for one of the dead letter.
func TestQueue_ARedriveIntoALimitedQueueOutlivesAPut(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		o := &coord.QueueOptions[int]{MaxAttempts: 1, MaxLen: 9}
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, o)
		w.bury(q, 1, 3)
		other := w.queue("b", o)
		x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			mustPut(w.T, other, 9, 9)
			return nil
		})
		if n, err := q.Redrive(context.Background()); n != 3 || err != nil || !x.Idle() {
			w.T.Errorf("%d moved, %v, want 3", n, err)
		}
		w.wantCounted(4)
		for _, v := range []int{9, 1, 2, 3} {
			mustAck(w.T, mustTake(w.T, q, v))
		}
		w.drained(&q.Consumer)
	})
}

// What a Redrive says of the items that it has not moved is what it has found in its last pass.
func TestQueue_ARedriveForgetsWhatItHasSeenBefore(t *testing.T) {
	t.Run("some", func(t *testing.T) {
		onMemory(t, func(w *world) {
			var x coordtest.Nth
			q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, &coord.QueueOptions[int]{MaxAttempts: 1})
			ids := w.bury(q, 1, 2)
			dead := w.deadQueue("d")
			claimed := mustTake(w.T, dead, 1)
			x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
				// The one that is claimed goes, and the other one changes.
				mustAck(w.T, claimed)
				return mustTake(w.T, dead, 2).Nack(0)
			})
			n, err := q.Redrive(context.Background(), ids...)
			if coordtest.WantErr(w.T, err, coord.ErrNotFound); n != 1 || errors.Is(err, coord.ErrLocked) || !x.Idle() {
				w.T.Errorf("%d moved, %v; want one, and that the other is not there", n, err)
			}
			mustAck(w.T, mustTake(w.T, q, 2))
			w.drained(&q.Consumer)
		})
	})
	t.Run("all", func(t *testing.T) {
		onMemory(t, func(w *world) {
			ctx := context.Background()
			var x coordtest.Nth
			q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, &coord.QueueOptions[int]{MaxAttempts: 1})
			*coordtest.Inside(&q.Consumer).DeadBucketSize = 1
			ids := w.bury(q, 1, 2)
			foreign := w.Path("/q/dead/items/b-0-0/" + itemNames(w, "/q/dead/items/b-0-0")[0] + "/foreign")
			w.commit(backend.Create(foreign, nil, backend.Persistent))
			// Redrive lists the last bucket at its begin, and again after the first one.
			x.Arm(2, func(c backendtest.Call) bool { return c.Op == "children" && c.Path == w.Path("/q/dead/items/b-0-1") }, func(_ context.Context, c backendtest.Call, _ error) error {
				// The item that could not be moved goes, and so does the session.
				w.commit(backend.Delete(foreign, backend.AnyVersion))
				w.must(w.queue("b", nil).Remove(ctx, ids[0]))
				w.Link("a").Expire(c.Session.ID())
				return nil
			})
			if n, err := q.Redrive(ctx); n != 1 || err != nil || !x.Idle() {
				w.T.Errorf("%d moved, %v; want the one that is there", n, err)
			}
			mustAck(w.T, mustTake(w.T, q, 2))
			w.drained(&q.Consumer)
		})
	})
}

// A Remove counts what it deletes in a queue with MaxLen, and not what it deletes in its dead
// letters.
func TestQueue_ARemoveIsCounted(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		o := full(3)
		o.MaxAttempts = 1
		q := w.queue("a", o)
		dead := w.bury(q, 1, 1)
		id, err := q.Put(ctx, 2)
		w.must(err)
		mustPut(w.T, q, 3, 4)
		wantFull(w.T, q)
		w.must(q.Remove(ctx, dead[0]))
		w.wantCounted(3)
		wantFull(w.T, q)
		w.must(q.Remove(ctx, id))
		w.wantCounted(2)
		mustPut(w.T, q, 5, 5)
		wantFull(w.T, q)
	})
}

// The items that die again while a Redrive runs, some of them in the last bucket that it lists,
// are not moved by the same call.
func TestQueue_ARedriveEnds(t *testing.T) {
	for _, how := range []string{"one session", "two sessions"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				o := &coord.QueueOptions[int]{MaxAttempts: 1}
				var moves int
				worker := w.queue("b", o)
				q := w.hookedQueue("a", &backendtest.Hooks{After: func(ctx context.Context, c backendtest.Call, err error) error {
					if coordtest.Commits(c, backend.OpDelete) && strings.HasPrefix(c.Ops[0].Path, "/q/dead/items/") && strings.Contains(c.Ops[0].Path, "/i-") && err == nil {
						for moves++; moves < 50; {
							it, err := worker.TryTake(ctx)
							if err != nil {
								break
							}
							if err := it.Nack(0); err != nil {
								w.T.Error(err)
							}
						}
						if moves == 1 && how == "two sessions" {
							w.Link("a").Expire(c.Session.ID())
						}
					}
					return err
				}}, o)
				*coordtest.Inside(&worker.Consumer).DeadBucketSize = 6
				*coordtest.Inside(&q.Consumer).DeadBucketSize = 6
				w.bury(worker, 1, 20)
				if n, err := q.Redrive(ctx); n != 20 || err != nil || moves == 0 || moves >= 50 {
					w.T.Errorf("%d moved in %d commits, %v", n, moves, err)
				}
				if n := mustLen(w.T, &w.deadQueue("d").Consumer); n != 20 {
					w.T.Errorf("%d dead letters", n)
				}
			})
		})
	}
}

// Each request of a Remove is lost, or its reply: the item is removed, and only that one.
func TestQueue_ALostRequestOfARemoveIsResolved(t *testing.T) {
	for _, fault := range []string{"request", "reply"} {
		t.Run(fault, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				a := w.queue("a", nil)
				hit := true
				for n := 1; hit; n++ {
					hit = false
					var x coordtest.Nth
					hooks := &backendtest.Hooks{Before: x.Before}
					if fault == "reply" {
						hooks = &backendtest.Hooks{After: x.After}
					}
					name := fmt.Sprint("b", n)
					q := w.hookedQueue(name, hooks, nil)
					mustPut(w.T, a, 1, 1)
					if err := mustTake(w.T, a, 1).Nack(0); err != nil {
						w.T.Fatal(err)
					}
					id, err := a.Put(ctx, 2)
					if err != nil {
						w.T.Fatal(err)
					}
					x.Arm(n, func(backendtest.Call) bool { return true }, func(_ context.Context, c backendtest.Call, _ error) error {
						if hit = true; c.Op == "commit" {
							return backend.ErrUncertain
						}
						w.Link(name).Expire(c.Session.ID())
						return nil
					})
					if err := q.Remove(ctx, id); err != nil {
						w.T.Errorf("request %d: %v", n, err)
					}
					mustAck(w.T, mustTake(w.T, a, 1))
					w.drained(&a.Consumer)
				}
			})
		})
	}
}

// The item is moved to the dead letters, or back, between the two lists.
func TestQueue_ARemoveFindsAnItemThatMoves(t *testing.T) {
	for _, way := range []string{"dies", "comes back"} {
		t.Run(way, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				o := &coord.QueueOptions[int]{MaxAttempts: 1}
				var x coordtest.Nth
				a, q := w.queue("a", o), w.hookedQueue("b", &backendtest.Hooks{Before: x.Before}, o)
				id := ""
				lists := func(c backendtest.Call) bool { return c.Op == "children" && c.Path == "/q/dead/items" }
				if way == "dies" {
					var err error
					if id, err = a.Put(ctx, 1); err != nil {
						w.T.Fatal(err)
					}
					lists = func(c backendtest.Call) bool { return c.Op == "commit" && strings.Contains(c.Ops[0].Path, "/i-") }
				} else {
					id = w.bury(a, 1, 1)[0]
				}
				x.Arm(1, lists, func(context.Context, backendtest.Call, error) error {
					if way == "dies" {
						if err := mustTake(w.T, a, 1).Nack(0); err != nil {
							w.T.Error(err)
						}
					} else if n, err := a.Redrive(ctx); n != 1 || err != nil {
						w.T.Error(n, err)
					}
					return nil
				})
				if err := q.Remove(ctx, id); err != nil || !x.Idle() {
					w.T.Error(err, x.Idle())
				}
				if n := mustLen(w.T, &a.Consumer) + len(letters(w.T, &a.Consumer)); n != 0 {
					w.T.Errorf("%d items left", n)
				}
			})
		})
	}
}
