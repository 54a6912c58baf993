package coord_test

import (
	"context"
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
)

// itemNames are the names of the items in a bucket.
func itemNames(w *world, bucket string) (items []string) {
	for _, n := range w.children(bucket) {
		if strings.HasPrefix(n, "i-") {
			items = append(items, n)
		}
	}
	slices.Sort(items)
	return items
}

func TestAnAckOfAnItemWithANodeBelowItIsRefused(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", nil)
		mustPut(w.t, q, 1, 1)
		it := mustTake(w.t, q, 1)
		item := "/q/items/b-0-0/" + itemNames(w, "/q/items/b-0-0")[0]
		if _, err := w.session("x").Commit(ctx, backend.Create(w.path(item+"/note"), nil, backend.Persistent)); err != nil {
			w.t.Fatal(err)
		}
		err := it.Ack()
		again, err2 := q.TryTake(ctx)
		wantErr(w.t, err, backend.ErrNotEmpty)
		if err2 == nil {
			w.t.Errorf("the item came again: %v attempt %d", again.Value, again.Attempt)
		}
	})
}

func TestADeadLetterWithANodeBelowItIsRefused(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1})
		mustPut(w.t, q, 1, 1)
		it := mustTake(w.t, q, 1)
		item := "/q/items/b-0-0/" + itemNames(w, "/q/items/b-0-0")[0]
		if _, err := w.session("x").Commit(ctx, backend.Create(w.path(item+"/note"), nil, backend.Persistent)); err != nil {
			w.t.Fatal(err)
		}
		err := it.Nack(0)
		again, err2 := q.TryTake(ctx)
		wantErr(w.t, err, backend.ErrNotEmpty)
		if err2 == nil {
			w.t.Errorf("the item came again: attempt %d", again.Attempt)
		}
	})
}

func TestAnItemWhoseStateIsGoneIsBuriedAllTheSame(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1})
		mustPut(w.t, q, 1, 1)
		it := mustTake(w.t, q, 1)
		for _, n := range w.children("/q/items/b-0-0") {
			if strings.HasPrefix(n, "s-") {
				if _, err := w.session("x").Commit(ctx, backend.Delete(w.path("/q/items/b-0-0/"+n), backend.AnyVersion)); err != nil {
					w.t.Fatal(err)
				}
			}
		}
		if err := it.Nack(0); err != nil {
			w.t.Fatal(err)
		}
		n := mustLen(w.t, &q.Consumer)
		dead := coord.NewQueue[int](w.open("d", nil), "/q/dead", nil)
		d, err := dead.Len(ctx)
		if n != 0 || d != 1 || err != nil {
			w.t.Errorf("%d in the queue and %d dead letters, %v", n, d, err)
		}
	})
}

func TestTwoItemsOfOneIDMakeNoStorm(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var calls atomic.Int64
		q := w.hookedQueue("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { calls.Add(1); return nil }}, nil)
		w.Link("a").(interface{ SetLatency(time.Duration) }).SetLatency(time.Millisecond)
		mustPut(w.t, q, 1, 1)
		name := itemNames(w, "/q/items/b-0-0")[0]
		twin := name[:len(name)-10] + "0000000009"
		if _, err := w.session("x").Commit(context.Background(), backend.Create(w.path("/q/items/b-0-0/"+twin), []byte("1"), backend.Persistent)); err != nil {
			w.t.Fatal(err)
		}
		it, err := q.Take(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		before := calls.Load()
		_, err = q.Take(ctx)
		wantErr(w.t, err, context.DeadlineExceeded)
		if calls.Load()-before > 100 {
			w.t.Errorf("%d requests in 10 s", calls.Load()-before)
		}
		mustAck(w.t, it)
		mustAck(w.t, mustTake(w.t, q, 1)) // the twin
	})
}

func TestABucketNumberBeyondAllIsIgnored(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var calls atomic.Int64
		hooks := &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { calls.Add(1); return nil }}
		mustPut(w.t, w.queue("a", nil), 0, 0)
		s := w.session("x")
		if _, err := s.Commit(ctx, backend.Create(w.path(fmt.Sprintf("/q/items/b-0-%d", math.MaxInt64)), nil, backend.Persistent)); err != nil {
			w.t.Fatal(err)
		}
		q := w.hookedQueue("b", hooks, nil)
		w.Link("b").(interface{ SetLatency(time.Duration) }).SetLatency(time.Millisecond)
		put := 1
		for n := 1; n < 20; n++ {
			if _, err := q.Put(ctx, n); err != nil {
				w.t.Logf("put %d: %v after %d requests", n, err, calls.Load())
				break
			}
			put++
		}
		n, err := q.Len(context.Background())
		if n != put {
			w.t.Errorf("%d put without an error, Len %d %v: %v", put, n, err, w.children("/q/items"))
		}
		if calls.Load() > 200 {
			w.t.Errorf("%d requests", calls.Load())
		}
	})
}

func TestForeignWaitersDoNotBlockTheFront(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", nil)
		y := w.takeWaits(ctx, q)
		s := w.session("x")
		for _, n := range []string{"my-take-0000000000", "my-take--000000002", "mis-take--000000003"} {
			if _, err := s.Commit(ctx, backend.Create(w.path("/q/waiters/"+n), nil, backend.Persistent)); err != nil {
				w.t.Fatal(err)
			}
		}
		mustPut(w.t, q, 1, 1)
		mustAck(w.t, y.item(1))
		x := w.takeWaits(ctx, q)
		mustPut(w.t, q, 2, 2)
		select {
		case <-x.done:
		case <-time.After(time.Minute):
			w.t.Error("a minute, and the item was not taken")
			s.Commit(ctx, backend.Delete(w.path("/q/waiters/mis-take--000000003"), -1), backend.Delete(w.path("/q/waiters/my-take-0000000000"), -1), backend.Delete(w.path("/q/waiters/my-take--000000002"), -1))
			<-x.done
		}
	})
}
