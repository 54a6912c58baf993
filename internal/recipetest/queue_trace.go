package recipetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// queueTraceTests are tests of the trace contexts of items, on each service.
type queueTraceTests struct{ Services }

type traceKey struct{}

// traced returns a context of a producer, and its traceparent.
func traced(n int) (ctx context.Context, traceparent string) {
	traceparent = fmt.Sprintf("00-0af7651916cd43dd8448eb211c80319c-%016x-01", n+1)
	return context.WithValue(context.Background(), traceKey{}, traceparent), traceparent
}

func traceParent(ctx context.Context) string {
	text, _ := ctx.Value(traceKey{}).(string)
	if text == "panic" {
		panic(text)
	}
	return text
}

// traces returns the nodes with trace contexts of a queue.
func (w *world) traces(queue string) (nodes []string) {
	for _, dir := range []string{queue + "/items", queue + "/dead/items"} {
		for _, b := range w.Children(dir) {
			for _, n := range w.Children(dir + "/" + b) {
				if strings.HasPrefix(n, "t-") {
					nodes = append(nodes, dir+"/"+b+"/"+n)
				}
			}
		}
	}
	return nodes
}

// The consumer of an item gets the traceparent of its producer, whatever the way of the put, also after a Redrive. A consumer
// without the option does too. The node goes with the item.
func (on queueTraceTests) AnItemHasTheTraceContextOfItsProducer(t *testing.T) {
	on.all(t, func(w *world) {
		c := w.Open("a", nil)
		o := &coord.QueueOptions[int]{MaxAttempts: 2, TraceParent: traceParent}
		q, p, d := coord.NewQueue(c, "/q", o), coord.NewPriorityQueue(c, "/p", o), coord.NewDelayQueue(c, "/d", o)
		other := w.Open("b", nil)
		plain := &coord.QueueOptions[int]{MaxAttempts: 2}
		due := time.Now().Add(-time.Hour)
		commit := func(ctx context.Context, op coord.TxnOp) error {
			_, err := coord.NewTxn(c).Add(op).Commit(ctx)
			return err
		}
		for path, x := range map[string]struct {
			consumer *coord.Consumer[int]
			put      func(ctx context.Context) error
			op       coord.TxnOp
		}{
			"/q": {&coord.NewQueue(other, "/q", plain).Consumer, func(ctx context.Context) error { _, err := q.Put(ctx, 1); return err }, q.PutOp(1)},
			"/p": {&coord.NewPriorityQueue(other, "/p", plain).Consumer, func(ctx context.Context) error { _, _, err := p.PutOnce(ctx, -3, "x", 1); return err }, p.PutOp(4, 1)},
			"/d": {&coord.NewDelayQueue(other, "/d", plain).Consumer, func(ctx context.Context) error { _, err := d.Put(ctx, due, 1); return err }, d.PutOp(due, 1)},
		} {
			for n, put := range []func(context.Context) error{x.put, func(ctx context.Context) error { return commit(ctx, x.op) }} {
				ctx, want := traced(n)
				if err := put(ctx); err != nil {
					w.T.Fatal(err)
				}
				for range 2 {
					for range 2 {
						it := mustTake(w.T, x.consumer, 1)
						if it.TraceParent != want {
							w.T.Errorf("%s: %q, want %q", path, it.TraceParent, want)
						}
						if err := it.Nack(0); err != nil {
							w.T.Fatal(err)
						}
					}
					if left := w.traces(path); len(left) != 0 {
						w.T.Errorf("left %v", left)
					}
					if n, err := x.consumer.Redrive(context.Background()); n != 1 || err != nil {
						w.T.Fatal(n, err)
					}
				}
				mustAck(w.T, mustTake(w.T, x.consumer, 1))
				if left := w.traces(path); len(left) != 0 {
					w.T.Errorf("left %v", left)
				}
			}
			for _, text := range []string{"", "panic", "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-a/b-c-01"} {
				ctx := context.WithValue(context.Background(), traceKey{}, text)
				for _, put := range []func(context.Context) error{x.put, func(ctx context.Context) error { return commit(ctx, x.op) }} {
					if err := put(ctx); err != nil {
						w.T.Fatalf("%q: %v", text, err)
					}
					it := mustTake(w.T, x.consumer, 1)
					if it.TraceParent != "" {
						w.T.Errorf("%q has become %q", text, it.TraceParent)
					}
					mustAck(w.T, it)
				}
			}
		}
	})
}

// Each item of a PutAll has the trace context, in whatever bucket it is. Items with trace contexts are claimed and acknowledged
// many at a time.
func (on queueTraceTests) EachItemOfAPutAllHasTheTraceContext(t *testing.T) {
	on.each(t, func(w *world) {
		ctx, want := traced(7)
		q := coord.NewQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{TraceParent: traceParent, Prefetch: 100})
		vs := make([]int, 700)
		for i := range vs {
			vs[i] = i
		}
		if ids, err := q.PutAll(ctx, vs...); len(ids) != len(vs) || err != nil {
			w.T.Fatal(len(ids), err)
		}
		var items []*coord.Item[int]
		for it, err := range q.All(context.Background()) {
			if err != nil {
				w.T.Fatal(err)
			}
			if it.TraceParent != want || it.Value != len(items) {
				w.T.Errorf("item %d of %d has %q", it.Value, len(items), it.TraceParent)
			}
			if items = append(items, it); len(items) == 500 {
				break
			}
		}
		if err := q.AckAll(items...); err != nil {
			w.T.Fatal(err)
		}
		for n := 500; n < 600; n++ {
			if v, err := q.Pop(context.Background()); v != n || err != nil {
				w.T.Error(v, err)
			}
		}
		if n, err := q.Purge(context.Background()); n != 100 || err != nil {
			w.T.Error(n, err)
		}
		if left := w.traces("/q"); len(left) != 0 {
			w.T.Errorf("left %d: %v", len(left), left[0])
		}
		w.drained(&q.Consumer)
	})
}

// A trace context adds no request to the life of an item.
func (on queueTraceTests) ATraceContextCostsNoRequest(t *testing.T) {
	on.each(t, func(w *world) {
		var costs [2]int
		for i, name := range []string{"plain", "traced"} {
			var r callCount
			q := coord.NewQueue(w.Open(name, r.hooks()), "/q", &coord.QueueOptions[int]{TraceParent: traceParent})
			mustPut(w.T, q, 0, 0)
			mustAck(w.T, mustTake(w.T, q, 0))
			r.reset()
			ctx, _ := traced(1)
			if i == 0 {
				ctx = context.Background()
			}
			if _, err := q.Put(ctx, 1); err != nil {
				w.T.Fatal(err)
			}
			if n := len(w.traces("/q")); n != i {
				w.T.Errorf("%d nodes with trace contexts, want %d", n, i)
			}
			it := mustTake(w.T, q, 1)
			mustAck(w.T, it)
			costs[i] = r.reset()
			w.drained(&q.Consumer)
		}
		if costs[0] != costs[1] && w.Fake {
			w.T.Errorf("%d requests without a trace context, %d with", costs[0], costs[1])
		}
	})
}
