package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math"
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

func TestQueue_ALostClaimReplyIsResolved(t *testing.T) {
	for name, fault := range map[string]func(backendtest.Link){
		"request lost": backendtest.Link.DropNextRequest,
		"reply lost":   backendtest.Link.DropNextReply,
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x coordtest.Nth
				l := w.Link("a")
				q := w.hookedQueue("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
					return x.Before(ctx, c)
				}}, nil)
				mustPut(w.T, q, 1, 2)
				x.Arm(1, claims, func(context.Context, backendtest.Call, error) error { fault(l); return nil })
				it := mustTake(w.T, q, 1)
				if it.Attempt != 1 {
					w.T.Errorf("attempt %d", it.Attempt)
				}
				mustAck(w.T, mustTake(w.T, q, 2))
				mustAck(w.T, it)
				w.drained(&q.Consumer)
			})
		})
	}
}

func TestQueue_ManyNacksKeepNameAndId(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		bucket := "/q/items/" + w.Children("/q/items")[0]
		before := w.Children(bucket)[0]
		var id string
		for n := 1; n <= 50; n++ {
			it := mustTake(w.T, q, 1)
			if it.Attempt != n || id != "" && it.ID != id {
				w.T.Fatalf("attempt %d of %s, want %d of %s", it.Attempt, it.ID, n, id)
			}
			id = it.ID
			if err := it.Nack(time.Duration(n%2) * time.Millisecond); err != nil {
				w.T.Fatal(err)
			}
			names := w.Children(bucket)
			if len(names) > 3 || !slices.Contains(names, before) {
				w.T.Fatalf("the bucket holds %v, the item was %s", names, before)
			}
		}
		mustAck(w.T, mustTake(w.T, q, 1))
		w.drained(&q.Consumer)
	})
}

// The reply to an Ack, Nack or Release is lost, and the next consumer claims the item. The look
// at the outcome, or the repetition, must not end that claim.
func TestQueue_ARetriedNackDoesNotTouchTheNextClaim(t *testing.T) {
	for _, name := range []string{"ack", "nack", "release"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x coordtest.Nth
				a, b := w.hookedQueue("a", &backendtest.Hooks{After: x.After}, nil), w.queue("b", nil)
				mustPut(w.T, a, 1, 1)
				it := mustTake(w.T, a, 1)
				var next *coord.Item[int]
				x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
					var err error
					next, err = b.TryTake(context.Background())
					if name == "ack" {
						coordtest.WantErr(w.T, err, coord.ErrEmpty)
					} else if err != nil {
						w.T.Error(err)
					}
					return backend.ErrUncertain
				})
				var err error
				switch name {
				case "ack":
					err = it.Ack()
				case "nack":
					err = it.Nack(0)
				case "release":
					err = it.Release()
				}
				if err != nil {
					w.T.Error(err)
				}
				if next != nil {
					if err := next.Verify(context.Background()); err != nil {
						w.T.Error(err)
					}
					mustAck(w.T, next)
				}
				w.drained(&b.Consumer)
			})
		})
	}
}

// An item that another program has deleted while it was claimed does not come back as a dead
// letter.
func TestQueue_AnItemThatWasDeletedIsNoDeadLetter(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1})
		mustPut(w.T, q, 1, 1)
		it := mustTake(w.T, q, 1)
		for _, n := range w.Children("/q/items/b-0-0") {
			if strings.HasPrefix(n, "i-") {
				w.commit(backend.Delete(w.Path("/q/items/b-0-0/"+n), backend.AnyVersion))
			}
		}
		if err := it.Nack(0); err != nil {
			w.T.Fatal(err)
		}
		if l := letters(w.T, &q.Consumer); len(l) != 0 {
			w.T.Errorf("dead letters: %+v", l)
		}
		w.drained(&q.Consumer)
	})
}

func TestQueue_TwoItemsWithOneIDCauseNoStorm(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var calls atomic.Int64
		q := w.hookedQueue("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { calls.Add(1); return nil }}, nil)
		w.Link("a").(interface{ SetLatency(time.Duration) }).SetLatency(time.Millisecond)
		mustPut(w.T, q, 1, 1)
		name := itemNames(w, "/q/items/b-0-0")[0]
		twin := name[:len(name)-10] + "0000000009"
		if _, err := w.Session("x").Commit(context.Background(), backend.Create(w.Path("/q/items/b-0-0/"+twin), []byte("1"), backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		it, err := q.Take(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		before := calls.Load()
		_, err = q.Take(ctx)
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		if calls.Load()-before > 100 {
			w.T.Errorf("%d requests in 10 s", calls.Load()-before)
		}
		mustAck(w.T, it)
		mustAck(w.T, mustTake(w.T, q, 1)) // the twin
	})
}

func TestQueue_ABucketNumberOutOfRangeIsIgnored(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var calls atomic.Int64
		hooks := &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { calls.Add(1); return nil }}
		mustPut(w.T, w.queue("a", nil), 0, 0)
		s := w.Session("x")
		if _, err := s.Commit(ctx, backend.Create(w.Path(fmt.Sprintf("/q/items/b-0-%d", math.MaxInt64)), nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		q := w.hookedQueue("b", hooks, nil)
		w.Link("b").(interface{ SetLatency(time.Duration) }).SetLatency(time.Millisecond)
		put := 1
		for n := 1; n < 20; n++ {
			if _, err := q.Put(ctx, n); err != nil {
				w.T.Logf("put %d: %v after %d requests", n, err, calls.Load())
				break
			}
			put++
		}
		n, err := q.Len(context.Background())
		if n != put {
			w.T.Errorf("%d put without an error, Len %d %v: %v", put, n, err, w.Children("/q/items"))
		}
		if calls.Load() > 200 {
			w.T.Errorf("%d requests", calls.Load())
		}
	})
}

func TestQueue_ForeignWaitersDoNotBlockTheFront(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", nil)
		y := w.takeWaits(ctx, q)
		s := w.Session("x")
		for _, n := range []string{"my-take-0000000000", "my-take--000000002", "mis-take--000000003"} {
			if _, err := s.Commit(ctx, backend.Create(w.Path("/q/waiters/"+n), nil, backend.Persistent)); err != nil {
				w.T.Fatal(err)
			}
		}
		mustPut(w.T, q, 1, 1)
		mustAck(w.T, y.item(1))
		x := w.takeWaits(ctx, q)
		mustPut(w.T, q, 2, 2)
		select {
		case <-x.done:
		case <-time.After(time.Minute):
			w.T.Error("a minute, and the item was not taken")
			s.Commit(ctx, backend.Delete(w.Path("/q/waiters/mis-take--000000003"), -1), backend.Delete(w.Path("/q/waiters/my-take-0000000000"), -1), backend.Delete(w.Path("/q/waiters/my-take--000000002"), -1))
			<-x.done
		}
	})
}

func TestQueue_APutOfUnknownOutcomeReturnsItsID(t *testing.T) {
	for _, name := range []string{"request lost", "reply lost"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x, y coordtest.Nth // before and after
				q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before, After: y.After}, nil)
				mustPut(w.T, q, 1, 1)
				mustAck(w.T, mustTake(w.T, q, 1))
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				creates := func(c backendtest.Call) bool {
					return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return strings.Contains(op.Path, "/i-") })
				}
				z := &x
				if name == "reply lost" {
					z = &y
				}
				z.Arm(1, creates, func(context.Context, backendtest.Call, error) error {
					cancel()
					return backend.Uncertain(ctx.Err())
				})
				id, err := q.Put(ctx, 2)
				coordtest.WantErr(w.T, err, coord.ErrUncertain)
				if id == "" {
					w.T.Fatal("no id")
				}
				if it, err := q.TryTake(context.Background()); err == nil && it.ID != id {
					w.T.Errorf("id %q, the item has %q", id, it.ID)
				} else if (err == nil) != (name == "reply lost") {
					w.T.Error(err)
				}
				if id, err = q.Put(ctx, 3); id != "" || err == nil {
					w.T.Errorf("id %q, %v: nothing was put", id, err)
				}
			})
		})
	}
}

// Whatever the outcome, the item is removed, or it is no longer claimed. The cause of the
// context matches errors of sessions, which must change nothing.
func TestQueue_APopOfUnknownOutcomeLeavesNothingClaimed(t *testing.T) {
	for _, name := range []string{"request lost", "reply lost", "request lost, read ahead", "reply lost, read ahead"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x, y coordtest.Nth // before and after
				q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before, After: y.After}, nil)
				if strings.Contains(name, "ahead") { // it does without a claim once it has taken an item
					mustPut(w.T, q, 1, 1)
					mustAck(w.T, mustTake(w.T, q, 1))
				}
				mustPut(w.T, q, 2, 2)
				cause := fmt.Errorf("%w: %w: %w", coord.ErrLost, coord.ErrReleased, coord.ErrSessionLost)
				ctx, cancel := context.WithCancelCause(context.Background())
				z := &x
				if strings.HasPrefix(name, "reply lost") {
					z = &y
				}
				z.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
					cancel(cause)
					return backend.Uncertain(backend.ContextError(ctx))
				})
				_, err := q.Pop(ctx)
				coordtest.WantErr(w.T, err, coord.ErrUncertain, context.Canceled, cause)
				it, err := q.TryTake(context.Background())
				if strings.HasPrefix(name, "reply lost") {
					coordtest.WantErr(w.T, err, coord.ErrEmpty)
				} else if err != nil {
					w.T.Error(err)
				} else {
					mustAck(w.T, it)
				}
				w.drained(&q.Consumer)
			})
		})
	}
}

func TestQueue_AnAttemptIsNeverNegative(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		if err := mustTake(w.T, q, 1).Nack(0); err != nil {
			w.T.Fatal(err)
		}
		for _, data := range []string{fmt.Sprint(math.MaxInt64), "-5", "99999999999999999999", ""} {
			for _, n := range w.Children("/q/items/b-0-0") {
				if !strings.HasPrefix(n, "s-") {
					continue
				}
				op := backend.SetData(w.Path("/q/items/b-0-0/"+n), []byte(data), backend.AnyVersion)
				if _, err := w.Session("x").Commit(context.Background(), op); err != nil {
					w.T.Fatal(err)
				}
			}
			it := mustTake(w.T, q, 1)
			if it.Attempt < 2 {
				w.T.Errorf("%q: attempt %d", data, it.Attempt)
			}
			if err := it.Nack(0); err != nil {
				w.T.Fatal(err)
			}
		}
	})
}

// The reply to a claim is lost, and an outsider deletes the node that proves its commit: the
// client cannot determine whether the item is claimed. The item does not stay claimed, and the client's
// next call waits for that.
func TestQueue_AClaimThatCannotBeResolvedIsTakenBack(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before, after coordtest.Nth
		a := w.hookedQueue("a", &backendtest.Hooks{Before: before.Before, After: after.After}, nil)
		mustPut(w.T, a, 1, 3)
		claims := func(c backendtest.Call) bool {
			return slices.ContainsFunc(c.Ops, func(op backend.Op) bool {
				return op.Kind == backend.OpCreate && op.Mode == backend.Ephemeral && strings.HasPrefix(op.Path, w.Path("/q/items/"))
			})
		}
		outsider := w.Session("x")
		after.Arm(1, claims, func(_ context.Context, c backendtest.Call, err error) error {
			receipt := c.Ops[len(c.Ops)-1].Path
			if _, derr := outsider.Commit(ctx, backend.Delete(receipt, backend.AnyVersion)); err != nil || derr != nil {
				w.T.Error(err, derr)
			}
			return backend.ErrUncertain
		})
		removal := w.stop(&before, func(c backendtest.Call) bool {
			return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return op.Kind == backend.OpDelete && strings.Contains(op.Path, "/m-") })
		})
		_, err := a.TryTake(ctx)
		coordtest.WantErr(w.T, err, coord.ErrUncertain)
		<-removal.reached
		next := w.take(ctx, a)
		w.Settle()
		close(removal.open)
		<-next.done
		if next.err != nil || next.it.Value != 1 {
			w.T.Fatalf("took %+v, %v before the item whose claim was being removed", next.it, next.err)
		}
		mustAck(w.T, next.it)
		mustAck(w.T, mustTake(w.T, a, 2))
		b := w.hookedQueue("b", nil, nil)
		mustAck(w.T, mustTake(w.T, b, 3))
		w.drained(&b.Consumer)
	})
}

// script does all that there is to do with a queue once, and checks that all goes
// as if there were no faults.
func script(w *world, q *coord.Queue[int]) {
	ctx := context.Background()
	mustPut(w.T, q, 1, 7) // into two buckets
	if _, err := q.PutAll(ctx, 8, 9, 10); err != nil {
		w.T.Error(err)
	}
	mustAck(w.T, mustTake(w.T, q, 1))
	it := mustTake(w.T, q, 2)
	if err := it.Nack(0); err != nil {
		w.T.Error(err)
	}
	it = mustTake(w.T, q, 2)
	if it.Attempt != 2 {
		w.T.Errorf("attempt %d, want 2", it.Attempt)
	}
	if err := it.Nack(time.Millisecond); err != nil {
		w.T.Error(err)
	}
	third := mustTake(w.T, q, 3)
	time.Sleep(10 * time.Millisecond)
	it = mustTake(w.T, q, 2)
	if it.Attempt != 3 {
		w.T.Errorf("attempt %d, want 3", it.Attempt)
	}
	if err := third.Release(); err != nil {
		w.T.Error(err)
	}
	mustAck(w.T, it)
	third = mustTake(w.T, q, 3)
	if third.Attempt != 1 {
		w.T.Errorf("attempt %d, want 1", third.Attempt)
	}
	mustAck(w.T, third)
	for n := 4; n <= 10; n++ {
		if v, err := q.Pop(ctx); v != n || err != nil {
			w.T.Errorf("Pop: %d, %v, want %d", v, err, n)
		}
	}
	done := make(chan struct{})
	n := w.Waits.Load()
	go func() {
		defer close(done)
		mustAck(w.T, mustTake(w.T, q, 11))
	}()
	w.Eventually("the Take waits", func() bool { return w.Waits.Load() > n })
	mustPut(w.T, q, 11, 11)
	<-done
	mustPut(w.T, q, 12, 12)
	if n, err := q.Purge(ctx); n != 1 || err != nil {
		w.T.Errorf("Purge: %d, %v", n, err)
	}
	w.drained(&q.Consumer)
}

func TestQueue_EveryLostMessageOfAQueueIsFoundOut(t *testing.T) {
	for _, kind := range []string{"request", "reply"} {
		t.Run(kind, func(t *testing.T) {
			steps := 0
			for n, hit := 1, true; hit && !t.Failed(); n++ {
				hit = false
				onMemory(t, func(w *world) {
					var x coordtest.Nth
					hooks := &backendtest.Hooks{Before: x.Before}
					if kind == "reply" {
						hooks = &backendtest.Hooks{After: x.After}
					}
					q := w.hookedQueue("a", hooks, nil)
					x.Arm(n, func(c backendtest.Call) bool { return c.Op == "commit" }, func(_ context.Context, c backendtest.Call, err error) error {
						if err != nil {
							return err // it was refused, and nothing was lost
						}
						hit = true
						steps++
						return backend.ErrUncertain
					})
					script(w, q)
					if !hit {
						// Either the script has fewer commits, or the n-th was refused.
						hit = x.Idle()
					}
				})
			}
			t.Logf("figure: %d commits of a script whose %s was lost", steps, kind)
			if steps < 30 {
				t.Error("this tested too little")
			}
		})
	}
}

// The session of the one client expires at each of its commits, before or after
// it is applied.
func TestQueue_AnExpiryAtEachStepOfAQueueLosesNothing(t *testing.T) {
	for _, kind := range []string{"before", "after"} {
		t.Run(kind, func(t *testing.T) {
			steps, again := 0, 0
			for n, hit := 1, true; hit && !t.Failed(); n++ {
				hit = false
				onMemory(t, func(w *world) {
					var x coordtest.Nth
					hooks := &backendtest.Hooks{Before: x.Before}
					if kind == "after" {
						hooks = &backendtest.Hooks{After: x.After}
					}
					q := w.hookedQueue("a", hooks, nil)
					x.Arm(n, func(c backendtest.Call) bool { return c.Op == "commit" }, func(_ context.Context, c backendtest.Call, err error) error {
						hit = true
						steps++
						w.Link("a").Expire(c.Session.ID())
						if kind == "before" {
							return nil // the commit fails by itself
						}
						return backend.Uncertain(backend.ErrSessionLost)
					})
					l := coordtest.NewLedger()
					ctx := context.Background()
					for n := 1; n <= 8; n++ {
						_, err := q.Put(ctx, n)
						l.Did(n, err)
					}
					for {
						it, err := q.TryTake(ctx)
						if errors.Is(err, coord.ErrEmpty) {
							break
						}
						if err != nil {
							w.T.Fatal(err)
						}
						l.Took(it)
						if it.Attempt == 1 && it.Value%3 == 0 {
							err = it.Nack(0)
						} else if err = it.Ack(); true {
							l.Ended(it, err)
						}
						if it.Attempt > 1 {
							again++
						}
						if err != nil {
							coordtest.WantErr(w.T, err, coord.ErrLost)
						}
					}
					for _, wrong := range l.Check() {
						w.T.Error(n, wrong)
					}
					w.drained(&q.Consumer)
				})
			}
			t.Logf("figure: expiry %s %d commits of a queue, %d items came again", kind, steps, again)
			if steps < 20 || again == 0 {
				t.Error("this tested too little")
			}
		})
	}
}

// The cause of the context is the error of another call, of unknown outcome. That of this call is
// known: nothing was put.
func TestQueue_APutBeforeWhichItsContextHasEndedIsNotUncertain(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(fmt.Errorf("another call: %w", coord.ErrUncertain))
		q := w.queue("a", nil)
		d := coord.NewDelayQueue[int](w.Open("d", nil), "/q", nil)
		for name, put := range map[string]func() (string, error){
			"Queue":         func() (string, error) { return q.Put(ctx, 1) },
			"PriorityQueue": func() (string, error) { return w.priorityQueue("p", nil).Put(ctx, 1, 1) },
			"DelayQueue":    func() (string, error) { return d.Put(ctx, time.Now(), 1) },
			"PutAfter":      func() (string, error) { return d.PutAfter(ctx, time.Minute, 1) },
		} {
			id, err := put()
			coordtest.WantErr(w.T, err, context.Canceled, coord.ErrUncertain)
			if id != "" {
				w.T.Errorf("%s: id %q", name, id)
			}
		}
		if names := w.Children("/"); len(names) > 0 {
			w.T.Errorf("%v are left", names)
		}
	})
}

// The error of a codec is that of another call, of unknown outcome. Nothing was put.
func TestQueue_APutWhoseCodecFailsIsNotUncertain(t *testing.T) {
	onMemory(t, func(w *world) {
		q := coord.NewQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{Codec: coord.Codec[int]{
			Encode: func(int) ([]byte, error) { return nil, fmt.Errorf("store: %w", coord.ErrUncertain) },
			Decode: func([]byte) (int, error) { return 0, nil },
		}})
		id, err := q.Put(context.Background(), 1)
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		if id != "" {
			w.T.Errorf("id %q", id)
		}
	})
}
