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
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// After a producer has seen room, another one fills the queue before its put.
func TestQueue_APutDoesNotOverfillAQueueThatFillsUpMeanwhile(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var x coordtest.Nth
		o := &coord.QueueOptions[int]{MaxLen: 3, FailWhenFull: true}
		a, b := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, o), w.queue("b", o)
		mustPut(w.T, b, 1, 1)
		mustPut(w.T, a, 2, 2)
		x.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
			mustPut(w.T, b, 3, 3)
			return nil
		})
		_, err := a.Put(ctx, 4)
		coordtest.WantErr(w.T, err, coord.ErrFull)
		if n := mustLen(w.T, &a.Consumer); n != 3 {
			w.T.Errorf("%d items, limit 3", n)
		}
	})
}

// The move to the dead letters is one commit, whatever is lost on the way: the
// item is in one of the two queues, never in both.
func TestQueue_ALostMoveToTheDeadLettersIsResolved(t *testing.T) {
	for _, kind := range []string{"request", "reply"} {
		t.Run(kind, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x coordtest.Nth
				hooks := &backendtest.Hooks{Before: x.Before}
				if kind == "reply" {
					hooks = &backendtest.Hooks{After: x.After}
				}
				q := w.hookedQueue("a", hooks, &coord.QueueOptions[int]{MaxAttempts: 1})
				mustPut(w.T, q, 1, 5)
				dead := coord.NewQueue[int](w.Open("d", nil), "/q/dead", nil)
				hits := 0
				for n := 1; n <= 5; n++ {
					x.Arm(1, func(c backendtest.Call) bool {
						return coordtest.Commits(c, backend.OpDelete) && strings.HasPrefix(c.Ops[len(c.Ops)-2].Path, "/q/dead/")
					}, func(context.Context, backendtest.Call, error) error { hits++; return backend.ErrUncertain })
					if err := mustTake(w.T, q, n).Nack(0); err != nil {
						w.T.Error(err)
					}
					if d, l := mustLen(w.T, &dead.Consumer), mustLen(w.T, &q.Consumer); d != n || l != 5-n {
						w.T.Errorf("%d dead, %d alive after %d", d, l, n)
					}
				}
				if hits != 5 {
					w.T.Errorf("%d moves were lost, want 5", hits)
				}
				w.drained(&q.Consumer)
			})
		})
	}
}

func TestQueue_DeadLettersAmongTheNodesOfTheQueueAreRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		for path, wrong := range map[string]bool{
			"/q": true, "/q/items": true, "/q/items/x": true, "/q/waiters": true, "/q/waiters/x": true, "/q/keys": true, "/q/keys/00": true,
			"/q/dead": false, "/q/items2": false, "/other": false,
		} {
			q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{DeadLetterPath: path})
			_, err := q.Put(context.Background(), 1)
			if errors.Is(err, coord.ErrInvalid) != wrong || (err == nil) == wrong {
				w.T.Errorf("dead letters at %s: %v", path, err)
			}
		}
		q := coord.NewQueue(c, "/q/items", &coord.QueueOptions[int]{DeadLetterPath: "/q"})
		_, err := q.Put(context.Background(), 1)
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
	})
}

func TestQueue_TheHighestBucketNumberIsALimit(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		if _, err := w.Session("x").Commit(ctx, backend.Create(w.Path(fmt.Sprint("/q/items/b-0-", int64(1)<<53)), nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		p := w.queue("b", nil)
		mustPut(w.T, p, 2, 7) // as many as one bucket takes
		_, err := p.Put(ctx, 8)
		coordtest.WantErr(w.T, err, coord.ErrLimit)
		for n := 1; n <= 7; n++ {
			mustAck(w.T, mustTake(w.T, q, n))
		}
	})
}

// refuse returns hooks that deny the calls that match, while on is set.
func refuse(on *atomic.Bool, match func(backendtest.Call) bool) *backendtest.Hooks {
	return &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
		if on.Load() && match(c) {
			return &backend.Error{Op: c.Op, Path: c.Path, Index: -1, Err: backend.ErrDenied}
		}
		return nil
	}}
}

func TestQueue_ARefusedClaimIsReported(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var on atomic.Bool
		q := w.hookedQueue("a", refuse(&on, claims), nil)
		mustPut(w.T, q, 1, 1)
		on.Store(true)
		_, err := q.Take(ctx)
		coordtest.WantErr(w.T, err, coord.ErrDenied)
		for it, err := range q.All(ctx) {
			if it != nil {
				w.T.Error("an item")
			}
			coordtest.WantErr(w.T, err, coord.ErrDenied)
		}
		if it, ok := <-q.Items(ctx); ok {
			w.T.Errorf("an item: %v", it)
		}
		on.Store(false)
		mustAck(w.T, mustTake(w.T, q, 1))
		w.drained(&q.Consumer)
	})
}

func TestQueue_ARefusedReadGivesTheItemBack(t *testing.T) {
	onMemories(t, func(w *world) {
		var on atomic.Bool
		reads := func(c backendtest.Call) bool { return c.Op == "get" || c.Op == "read" }
		q := w.hookedQueue("a", refuse(&on, reads), &coord.QueueOptions[int]{Prefetch: 2})
		mustPut(w.T, q, 1, 2)
		on.Store(true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, err := range q.All(ctx) {
			coordtest.WantErr(w.T, err, coord.ErrDenied)
		}
		if ctx.Err() != nil {
			w.T.Error("the loop goes on after a read that is refused")
		}
		on.Store(false)
		for n := 1; n <= 2; n++ {
			it := mustTake(w.T, q, n)
			if it.Attempt != 1 {
				w.T.Errorf("attempt %d", it.Attempt)
			}
			mustAck(w.T, it)
		}
		w.drained(&q.Consumer)
	})
}

func TestQueue_ARefusedAckIsRetriedInTheBackground(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var on atomic.Bool
		q := w.hookedQueue("a", refuse(&on, coordtest.Deletes), nil)
		other := w.queue("b", nil)
		mustPut(w.T, q, 1, 2)
		first, second := mustTake(w.T, q, 1), mustTake(w.T, q, 2)
		on.Store(true)
		coordtest.WantErr(w.T, first.Ack(), coord.ErrDenied)
		coordtest.WantErr(w.T, second.Release(), coord.ErrDenied)
		_, err := other.TryTake(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		on.Store(false)
		time.Sleep(5 * time.Second) // of fake time, for the pauses between retries
		mustAck(w.T, mustTake(w.T, other, 2))
		w.drained(&other.Consumer)
	})
}

func TestQueue_ARefusedPopGivesTheItemBack(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var on atomic.Bool
		q := w.hookedQueue("a", refuse(&on, coordtest.Deletes), nil)
		mustPut(w.T, q, 1, 1)
		on.Store(true)
		_, err := q.Pop(ctx)
		on.Store(false)
		coordtest.WantErr(w.T, err, coord.ErrDenied)
		time.Sleep(10 * time.Second) // of fake time, for the pauses between retries
		if errors.Is(err, coord.ErrUncertain) {
			w.T.Error(err)
		}
		it := mustTake(w.T, q, 1)
		if it.Attempt != 1 {
			w.T.Errorf("attempt %d", it.Attempt)
		}
		mustAck(w.T, it)
		w.drained(&q.Consumer)
	})
}

func TestQueue_AnItemThatCannotBeBuriedDoesNotBlockTheOthers(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var on atomic.Bool
		on.Store(true)
		o := &coord.QueueOptions[int]{MaxAttempts: 1}
		var calls atomic.Int64
		hooks := refuse(&on, func(c backendtest.Call) bool {
			calls.Add(1)
			return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return strings.Contains(op.Path, "/dead") })
		})
		a, b := w.queue("a", o), w.hookedQueue("b", hooks, o)
		mustPut(w.T, a, 1, 3)
		mustTake(w.T, a, 1)
		w.Link("a").Expire(claimant(w))
		w.Settle()
		for n := 2; n <= 3; n++ {
			mustAck(w.T, mustTake(w.T, b, n))
		}
		// The move is retried now and then, and succeeds in the end.
		calls.Store(0)
		short, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		_, err := b.Take(short)
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		if n := calls.Load(); n < 60 || n > 2_000 {
			w.T.Errorf("%d requests in an hour", n)
		}
		on.Store(false)
		time.Sleep(2 * time.Minute)
		_, err = b.TryTake(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		dead := coord.NewQueue[int](w.Open("d", nil), "/q/dead", nil)
		mustAck(w.T, mustTake(w.T, dead, 1))
		w.drained(&b.Consumer)
	})
}

// claimant returns the session that has claimed an item of the first bucket.
func claimant(w *world) int64 {
	s := w.Session("z")
	for _, n := range w.Children("/q/items/b-0-0") {
		if strings.HasPrefix(n, "m-") {
			st, err := s.Exists(context.Background(), w.Path("/q/items/b-0-0/"+n), nil)
			if err != nil {
				w.T.Fatal(err)
			}
			return st.EphemeralOwner
		}
	}
	w.T.Fatal("no mark")
	return 0
}

// The item at which the codec panics has used an attempt, the others none.
func TestQueue_ACodecThatPanicsLeavesNothingClaimed(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		bad := true
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{Prefetch: 3, Codec: coord.Codec[int]{Encode: func(int) ([]byte, error) { return nil, nil }, Decode: func([]byte) (int, error) {
			if bad {
				panic("bad")
			}
			return 1, nil
		}}})
		mustPut(w.T, q, 1, 3)
		func() {
			defer func() {
				if recover() == nil {
					w.T.Error("no panic")
				}
			}()
			for range q.All(ctx) {
				w.T.Error("an item")
			}
		}()
		bad = false
		for i := range 3 {
			want := 1
			if i == 0 {
				want = 2
			}
			if it, err := q.TryTake(ctx); err != nil || it.Attempt != want {
				w.T.Errorf("item %d is still claimed, or has another attempt than %d: %v, %v", i, want, it, err)
			}
		}
	})
}

func TestQueue_AnItemAtWhichACodecPanicsDoesNotStayTheFirst(t *testing.T) {
	onMemory(t, func(w *world) {
		codec := coord.JSON[int]()
		decode := codec.Decode
		codec.Decode = func(data []byte) (int, error) {
			v, err := decode(data)
			if v == 1 {
				panic("bad")
			}
			return v, err
		}
		q := w.queue("a", &coord.QueueOptions[int]{Codec: codec, MaxAttempts: 2})
		mustPut(w.T, q, 1, 2)
		panics := 0
		for panics < 5 {
			bad := false
			func() {
				defer func() { bad = recover() != nil }()
				mustAck(w.T, mustTake(w.T, q, 2))
			}()
			if !bad {
				break
			}
			panics++
		}
		if panics != 2 {
			w.T.Errorf("%d panics, want one for each attempt", panics)
		}
		mustAck(w.T, mustTake(w.T, coord.NewQueue[int](w.Open("d", nil), "/q/dead", nil), 1))
		w.drained(&q.Consumer)
	})
}

func TestQueue_APopEndsWithItsContext(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		var x coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil)
		mustPut(w.T, q, 1, 1)
		x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			return nil
		})
		start := time.Now()
		_, err := q.Pop(ctx)
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		if d := time.Since(start); d > 500*time.Millisecond {
			w.T.Errorf("Pop with a context of 100 ms returned after %v: %v", d, err)
		}
		w.Link("a").Heal()
		// The request was lost, so the item is there.
		it := mustTake(w.T, q, 1)
		mustAck(w.T, it)
		w.drained(&q.Consumer)
	})
}

func TestQueue_ATakeOfAnUndecodableItemEndsWithItsContext(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		var x coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil)
		p := coord.NewQueue(w.Open("b", nil), "/q", &coord.QueueOptions[string]{Codec: coord.Text()})
		if _, err := p.Put(ctx, "no number"); err != nil {
			w.T.Fatal(err)
		}
		x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			return nil
		})
		start := time.Now()
		_, err := q.Take(ctx)
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		if d := time.Since(start); d > 500*time.Millisecond {
			w.T.Errorf("Take with a context of 100 ms returned after %v: %v", d, err)
		}
		w.Link("a").Heal()
		dead := coord.NewQueue(w.Open("d", nil), "/q/dead", &coord.QueueOptions[string]{Codec: coord.Text()})
		if v, err := dead.Pop(context.Background()); v != "no number" || err != nil {
			w.T.Errorf("dead letter %q, %v", v, err)
		}
		w.drained(&q.Consumer)
	})
}

// A service may take a few operations in one commit only. What a queue writes together
// then takes more commits, and nothing is refused.
func TestQueue_BatchesAreSplitByTheLimitsOfTheService(t *testing.T) {
	for name, limits := range map[string]backend.Limits{
		"operations": {Ops: 21},
		"conditions": {Checks: 4},
		"bytes":      {Bytes: 8000},
		"all":        {Ops: 12, Checks: 2, Bytes: 4000},
		"all, limit": {Ops: 12, Checks: 2, Bytes: 4000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				var mu sync.Mutex
				largest, most := 0, 0
				if strings.HasSuffix(name, "limit") {
					most = 100
				}
				hooks := backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					mu.Lock()
					defer mu.Unlock()
					largest = max(largest, len(c.Ops))
					return nil
				}}
				c := coordtest.Open(t, backendtest.Intercept(memory.New(&memory.Options{Limits: limits}), hooks), nil)
				q := coord.NewQueue(c, "/q", &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: 100, MaxLen: most})
				vs := make([]string, 100)
				for i := range vs {
					vs[i] = fmt.Sprint(i)
				}
				if ids, err := q.PutAll(ctx, vs...); err != nil || len(ids) != len(vs) {
					t.Fatal(len(ids), err)
				}
				var items []*coord.Item[string]
				for it, err := range q.All(ctx) {
					if err != nil || it.Value != vs[len(items)] {
						t.Fatal(it, err)
					}
					if items = append(items, it); len(items) == len(vs) {
						break
					}
				}
				if err := q.AckAll(items...); err != nil {
					t.Fatal(err)
				}
				if _, err := q.PutAll(ctx, vs...); err != nil {
					t.Fatal(err)
				}
				if n, err := q.Purge(ctx); n != len(vs) || err != nil {
					t.Fatalf("purged %d, %v", n, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if largest < 4 || limits.Ops > 0 && largest > limits.Ops {
					t.Errorf("a commit of %d operations", largest)
				}
			})
		})
	}
}

func TestQueue_ATransactionOverTheLimitsOfTheServiceIsRefused(t *testing.T) {
	onLimits := memory.New(&memory.Options{Limits: backend.Limits{Ops: 3}})
	c := coordtest.Open(t, onLimits, nil)
	create := func(n int) error {
		x := coord.NewTxn(c)
		for i := range n {
			x.Create(fmt.Sprintf("/n%d-%d", n, i), nil, backend.Persistent)
		}
		_, err := x.Commit(t.Context())
		return err
	}
	if err := create(2); err != nil { // one more proves the outcome
		t.Fatal(err)
	}
	for n := 3; n < 6; n++ {
		if err := create(n); !errors.Is(err, coord.ErrTooLarge) || errors.Is(err, coord.ErrUncertain) {
			t.Errorf("%d operations: %v", n, err)
		}
	}
}

// What one commit of the service cannot hold is refused before anything is sent.
func TestQueue_WhatTheServiceCannotHoldIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		var sent atomic.Int32
		quiet := func() {
			synctest.Wait()
			sent.Store(0)
		}
		st := memory.New(&memory.Options{Limits: backend.Limits{Ops: 40, Checks: 12, Bytes: 20_000}})
		c := coordtest.Open(t, backendtest.Intercept(st, backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
			sent.Add(1)
			return nil
		}}), nil)
		text := &coord.QueueOptions[string]{Codec: coord.Text()}
		fits, large := strings.Repeat("d", 14_000), strings.Repeat("d", 20_000)
		v := coord.NewValue(c, "/v", &coord.ValueOptions[string]{Codec: coord.Text()})
		m, err := coord.NewGroup(c, "/g", &coord.GroupOptions[string]{Codec: coord.Text()}).Join(ctx, "a", "")
		if err != nil {
			t.Fatal(err)
		}
		q := coord.NewQueue(c, "/q", text)
		for _, x := range []struct {
			op   string
			call func(data string) error
		}{
			{"set", func(data string) error { _, err := v.Set(ctx, data); return err }},
			{"set", func(data string) error { return m.SetValue(ctx, data) }},
			{"put", func(data string) error { _, err := q.Put(ctx, data); return err }},
			{"put", func(data string) error { _, err := coord.NewTxn(c).Add(q.PutOp(data)).Commit(ctx); return err }},
		} {
			quiet()
			err := x.call(large)
			var e *backend.Error
			if !errors.Is(err, coord.ErrTooLarge) || !errors.As(err, &e) || e.Op != x.op || sent.Load() != 0 {
				t.Errorf("%s: %v, after %d requests", x.op, err, sent.Load())
			}
			if err := x.call(fits); err != nil {
				t.Errorf("%s of less: %v", x.op, err)
			}
		}
		quiet()
		if _, err := coord.NewDoubleBarrier(c, "/d", 13, nil).Enter(ctx); !errors.Is(err, coord.ErrTooLarge) || sent.Load() != 0 {
			t.Errorf("13 members: %v, after %d requests", err, sent.Load())
		}
		var sites []string
		for i := range 13 {
			sites = append(sites, fmt.Sprint("site", i))
		}
		co := coord.NewCoordinator(c, "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
		if _, err := co.Propose(ctx, coord.Proposal[string]{ID: "a", Sites: sites}); !errors.Is(err, coord.ErrTooLarge) || sent.Load() != 0 {
			t.Errorf("13 sites: %v, after %d requests", err, sent.Load())
		}
		var group sync.WaitGroup
		for range 12 {
			group.Go(func() {
				e, err := coord.NewDoubleBarrier(coordtest.Open(t, st, nil), "/d", 12, nil).Enter(ctx)
				if err == nil {
					err = e.Leave(ctx)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	})
}

// A producer reads the counts after a Sync before it says that the queue is full: its server can
// lag behind.
func TestQueue_AQueueIsFullOnlyAfterASync(t *testing.T) {
	onMemory(t, func(w *world) {
		var syncs atomic.Int64
		q := w.hookedQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "sync" {
				syncs.Add(1)
			}
			return nil
		}}, full(2))
		mustPut(w.T, q, 1, 2)
		for range 3 {
			before := syncs.Load()
			wantFull(w.T, q)
			if syncs.Load() == before {
				w.T.Error("there was no Sync")
			}
		}
	})
}
