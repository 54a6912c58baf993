package recipetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// queueFaultTests are tests of Queue on each service.
type queueFaultTests struct{ Services }

func (on queueFaultTests) TheDeathOfAConsumerLosesNoItem(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.queue("a", nil), w.queue("b", nil)
		mustPut(w.T, a, 1, 2)
		it := mustTake(w.T, a, 1)
		second := mustTake(w.T, b, 2)
		w.Link("a").Expire(it.Session())
		<-it.Done()
		again := mustTake(w.T, b, 1)
		if again.Attempt != 2 || again.ID != it.ID || again.Token() <= it.Token() {
			w.T.Errorf("%+v after %+v", again, it)
		}
		mustAck(w.T, again)
		mustAck(w.T, second)
		w.drained(&b.Consumer)
	})
}

func (on queueFaultTests) AnAckAfterExpiryDoesNotTouchTheNextClaim(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.queue("a", nil), w.queue("b", nil)
		mustPut(w.T, a, 1, 1)
		for name, end := range map[string]func(*coord.Item[int]) error{
			"ack":     (*coord.Item[int]).Ack,
			"nack":    func(it *coord.Item[int]) error { return it.Nack(time.Hour) },
			"release": func(it *coord.Item[int]) error { return it.Release() },
		} {
			it := mustTake(w.T, a, 1)
			guard := it.Guard()
			w.Link("a").Expire(it.Session())
			<-it.Done()
			next := mustTake(w.T, b, 1)
			coordtest.WantErr(w.T, end(it), coord.ErrLost)
			if _, err := w.Session("x").Commit(context.Background(), guard.Ops()...); !errors.Is(err, coord.ErrNotFound) {
				w.T.Errorf("%s: the old guard: %v", name, err)
			}
			if err := next.Verify(context.Background()); err != nil {
				w.T.Errorf("%s: the next claim: %v", name, err)
			}
			if err := next.Release(); err != nil {
				w.T.Error(name, err)
			}
		}
		mustAck(w.T, mustTake(w.T, b, 1))
		w.drained(&b.Consumer)
	})
}

// claims reports whether a call is a commit that claims an item.
func claims(c backendtest.Call) bool {
	return slices.ContainsFunc(c.Ops, func(op backend.Op) bool {
		return op.Kind == backend.OpCreate && op.Mode == backend.Ephemeral && strings.Contains(op.Path, "/m-")
	})
}

func (on queueFaultTests) ADeadConsumersItemComesBackWithoutAPut(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.queue("a", nil), w.queue("b", nil)
		mustPut(w.T, a, 1, 1)
		it := mustTake(w.T, a, 1)
		x := w.takeWaits(context.Background(), b)
		y := w.takeWaits(context.Background(), w.queue("c", nil))
		w.Link("a").Expire(it.Session())
		// One of the two gets the item, and then the other.
		var again *coord.Item[int]
		select {
		case <-x.done:
			again = x.item(1)
		case <-y.done:
			again = y.item(1)
			x, y = y, x
		case <-time.After(coordtest.Limit):
			w.T.Fatal("it never came back")
		}
		if err := again.Nack(0); err != nil {
			w.T.Fatal(err)
		}
		again = y.item(1)
		if again.Attempt != 3 {
			w.T.Errorf("attempt %d, want 3", again.Attempt)
		}
		mustAck(w.T, again)
		w.drained(&b.Consumer)
	})
}

func (on queueFaultTests) ALostPutReplyMakesOneItem(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(backendtest.Link){
		"request lost": backendtest.Link.DropNextRequest,
		"reply lost":   backendtest.Link.DropNextReply,
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				q := w.queue("a", nil)
				for n := 1; n <= 20; n++ {
					fault(w.Link("a"))
					mustPut(w.T, q, n, n)
				}
				if n, err := q.Len(context.Background()); n != 20 || err != nil {
					w.T.Errorf("%d items, %v, want 20", n, err)
				}
				for n := 1; n <= 20; n++ {
					mustAck(w.T, mustTake(w.T, q, n))
				}
				w.drained(&q.Consumer)
			})
		})
	}
}

func (on queueFaultTests) AQueueContinuesAfterALongPartition(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.queue("a", nil), w.queue("b", nil)
		x := w.takeWaits(context.Background(), a)
		w.Link("a").Partition()
		mustPut(w.T, b, 1, 1)
		time.Sleep(2 * w.Timeout) // the passing of time is what is tested
		w.Link("a").Heal()
		mustAck(w.T, x.item(1))
		w.drained(&b.Consumer)
	})
}

func (on queueFaultTests) AQueueContinuesWhenItsNodesAreRemoved(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, b := w.queue("a", nil), w.queue("b", nil)
		mustPut(w.T, a, 1, 1)
		mustAck(w.T, mustTake(w.T, b, 1))
		s := w.Session("outsider")
		for n := 2; n <= 4; n++ {
			x := w.takeWaits(ctx, b)
			// The nodes of the empty queue are removed, with those of the waiter or without.
			buckets, _, err := s.Children(ctx, w.Path("/q/items"), nil)
			if err != nil || len(buckets) != 1 {
				w.T.Fatal(buckets, err)
			}
			ops := []backend.Op{backend.Delete(w.Path("/q/items/"+buckets[0]), backend.AnyVersion), backend.Delete(w.Path("/q/items"), backend.AnyVersion)}
			if n%2 == 0 {
				for _, name := range w.Children("/q/waiters") {
					ops = append(ops, backend.Delete(w.Path("/q/waiters/"+name), backend.AnyVersion))
				}
				ops = append(ops, backend.Delete(w.Path("/q/waiters"), backend.AnyVersion), backend.Delete(w.Path("/q"), backend.AnyVersion))
			}
			if _, err := s.Commit(ctx, ops...); err != nil {
				w.T.Fatal(err)
			}
			mustPut(w.T, a, n, n)
			mustAck(w.T, x.item(n))
		}
		w.drained(&b.Consumer)
	})
}

func (on queueFaultTests) AQueueDoesNotTakeFromOneWithALongerName(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		short, other := coord.NewQueue[int](c, "/jobs", nil), coord.NewQueue[int](c, "/jobs2", nil)
		mustPut(w.T, other, 1, 1)
		mustPut(w.T, short, 2, 2)
		mustAck(w.T, mustTake(w.T, short, 2))
		_, err := short.TryTake(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		if n, err := short.Purge(ctx); n != 0 || err != nil {
			w.T.Error(n, err)
		}
		mustAck(w.T, mustTake(w.T, other, 1))
	})
}

// itemNames returns the names of the items in a bucket.
func itemNames(w *world, bucket string) (items []string) {
	for _, n := range w.Children(bucket) {
		if strings.HasPrefix(n, "i-") {
			items = append(items, n)
		}
	}
	slices.Sort(items)
	return items
}

func (on queueFaultTests) AnAckOfAnItemWithANodeBelowItIsRefused(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		it := mustTake(w.T, q, 1)
		item := "/q/items/b-0-0/" + itemNames(w, "/q/items/b-0-0")[0]
		if _, err := w.Session("x").Commit(ctx, backend.Create(w.Path(item+"/note"), nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		err := it.Ack()
		again, err2 := q.TryTake(ctx)
		coordtest.WantErr(w.T, err, backend.ErrNotEmpty)
		if err2 == nil {
			w.T.Errorf("the item came again: %v attempt %d", again.Value, again.Attempt)
		}
	})
}

func (on queueFaultTests) ADeadLetterWithANodeBelowItIsRefused(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1})
		mustPut(w.T, q, 1, 1)
		it := mustTake(w.T, q, 1)
		item := "/q/items/b-0-0/" + itemNames(w, "/q/items/b-0-0")[0]
		if _, err := w.Session("x").Commit(ctx, backend.Create(w.Path(item+"/note"), nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		err := it.Nack(0)
		again, err2 := q.TryTake(ctx)
		coordtest.WantErr(w.T, err, backend.ErrNotEmpty)
		if err2 == nil {
			w.T.Errorf("the item came again: attempt %d", again.Attempt)
		}
	})
}

func (on queueFaultTests) AnItemWithoutItsStateStillBecomesADeadLetter(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1})
		mustPut(w.T, q, 1, 1)
		it := mustTake(w.T, q, 1)
		for _, n := range w.Children("/q/items/b-0-0") {
			if strings.HasPrefix(n, "s-") {
				if _, err := w.Session("x").Commit(ctx, backend.Delete(w.Path("/q/items/b-0-0/"+n), backend.AnyVersion)); err != nil {
					w.T.Fatal(err)
				}
			}
		}
		if err := it.Nack(0); err != nil {
			w.T.Fatal(err)
		}
		n := mustLen(w.T, &q.Consumer)
		dead := coord.NewQueue[int](w.Open("d", nil), "/q/dead", nil)
		d, err := dead.Len(ctx)
		if n != 0 || d != 1 || err != nil {
			w.T.Errorf("%d in the queue and %d dead letters, %v", n, d, err)
		}
	})
}
