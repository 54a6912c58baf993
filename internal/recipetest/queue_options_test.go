package recipetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// An item with options costs no further request: its node shares the commit of the put and of the Ack, and is read
// beside the item. An item that was taken before costs one read more, which is sent beside that of its state.
func TestQueue_OptionsCostNoRequest(t *testing.T) {
	onMemory(t, func(w *world) {
		var r callCount
		q := w.hookedQueue("a", r.hooks(), &coord.QueueOptions[int]{MaxAttempts: 9})
		mustPut(w.T, q, 0, 0) // the directories
		mustAck(w.T, mustTake(w.T, q, 0))
		var costs [2][5]int
		for i, o := range []*coord.PutOptions{nil, {MaxAttempts: 3}} {
			r.reset()
			if _, err := q.PutWith(context.Background(), 1, o); err != nil {
				w.T.Fatal(err)
			}
			costs[i][0] = r.reset()
			it := mustTake(w.T, q, 1)
			costs[i][1] = r.reset()
			if err := it.Nack(0); err != nil {
				w.T.Fatal(err)
			}
			costs[i][2] = r.reset()
			it = mustTake(w.T, q, 1)
			costs[i][3] = r.reset()
			mustAck(w.T, it)
			costs[i][4] = r.reset()
		}
		want := costs[0]
		want[3]++
		if costs[1] != want {
			w.T.Errorf("%v requests with options, %v without, want %v", costs[1], costs[0], want)
		}
	})
}

// Each request of the life of an item is lost, or its reply, or the session ends there: the item keeps its options as
// long as it is there, and no node is left behind.
func TestQueue_OptionsSurviveAFaultAtEachRequest(t *testing.T) {
	faultAtEachRequest(t, livedOnce)
}

// faultAtEachRequest calls live with each fault at the first request, the second, and so on, until live reports that there was none.
func faultAtEachRequest(t *testing.T, live func(w *world, fault string, n int) (hit bool)) {
	for _, fault := range []string{"request", "reply", "expiry"} {
		t.Run(fault, func(t *testing.T) {
			onMemory(t, func(w *world) {
				n := 1
				for ; live(w, fault, n); n++ {
					if n > 400 {
						w.T.Fatal("no end")
					}
				}
				if n < 10 {
					w.T.Errorf("only %d requests met the fault", n-1)
				}
			})
		})
	}
}

// faultyQueue returns a queue on a client of its own, whose n-th request meets the fault, which sets hit.
func faultyQueue(w *world, fault string, n int, o *coord.QueueOptions[int], hit *bool) *coord.Queue[int] {
	var x coordtest.Nth
	hooks := &backendtest.Hooks{Before: x.Before}
	if fault == "reply" {
		hooks = &backendtest.Hooks{After: x.After}
	}
	name := fmt.Sprint("client", n, fault)
	x.Arm(n, func(backendtest.Call) bool { return true }, func(_ context.Context, c backendtest.Call, _ error) error {
		if *hit = true; c.Op == "commit" && fault != "expiry" {
			return backend.ErrUncertain
		}
		w.Link(name).Expire(c.Session.ID())
		return nil
	})
	return w.hookedQueue(name, hooks, o)
}

// livedOnce puts an item, buries it, redrives and acknowledges it, with a fault at the n-th request, and reports
// whether there was one. A call whose outcome is unknown is repeated.
func livedOnce(w *world, fault string, n int) (hit bool) {
	ctx := context.Background()
	q := faultyQueue(w, fault, n, &coord.QueueOptions[int]{MaxAttempts: 1}, &hit)
	const most = 3
	id, err := q.PutWith(ctx, 1, &coord.PutOptions{MaxAttempts: most})
	if err != nil {
		coordtest.WantErr(w.T, err, coord.ErrUncertain)
		if len(w.options()) == 0 {
			id, err = q.PutWith(ctx, 1, &coord.PutOptions{MaxAttempts: most})
		}
		if id == "" {
			w.T.Fatal(err)
		}
	}
	failing := func() {
		last := 0
		for tries := 0; len(letters(w.T, &q.Consumer)) == 0; tries++ {
			if tries > 3*most {
				w.T.Fatalf("request %d: the item is no dead letter after %d tries", n, tries)
			}
			it, err := q.TryTake(ctx)
			if err != nil {
				continue // the session was lost, or the item was moved
			}
			if it.ID != id || it.Attempt <= last || it.Attempt > most {
				w.T.Fatalf("request %d: attempt %d of %s after %d, want %s", n, it.Attempt, it.ID, last, id)
			}
			last = it.Attempt
			it.Nack(0) // if the claim is lost, the attempt counts too
		}
		if d := letters(w.T, &q.Consumer); len(d) != 1 || d[0].Attempts != most {
			w.T.Fatalf("request %d: %+v", n, d)
		}
		if left := w.options(); len(left) != 0 {
			w.T.Errorf("request %d: left %v", n, left)
		}
	}
	failing()
	for range 3 {
		if len(letters(w.T, &q.Consumer)) > 0 {
			q.Redrive(ctx, id) // again, if the outcome was unknown and it was not applied
		}
	}
	if left := w.options(); len(left) != 1 || !strings.HasSuffix(left[0], "/o-"+id) {
		w.T.Fatalf("request %d: %v after the Redrive", n, left)
	}
	failing()
	if err := q.Remove(ctx, id); err != nil && len(letters(w.T, &q.Consumer)) > 0 {
		if err := q.Remove(ctx, id); err != nil {
			w.T.Fatalf("request %d: %v", n, err)
		}
	}
	mustPutWith(w.T, q, 1, most)
	for mustLen(w.T, &q.Consumer) > 0 {
		if it, err := q.TryTake(ctx); err == nil {
			it.Ack() // again, if the session was lost
		}
	}
	if left := w.options(); len(left) != 0 {
		w.T.Errorf("request %d: left %v", n, left)
	}
	w.drained(&q.Consumer)
	return hit
}

// The death of the consumer costs no item with options an attempt that it does not know of: with others, an item is
// neither claimed before it nor behind it.
func TestQueue_AnItemWithOptionsIsPrefetchedAlone(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var commits []int // marks
		q := w.hookedQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if n := 0; claims(c) {
				for _, op := range c.Ops {
					if op.Mode == backend.Ephemeral && strings.Contains(op.Path, "/m-") {
						n++
					}
				}
				commits = append(commits, n)
			}
			return nil
		}}, &coord.QueueOptions[int]{Prefetch: 8})
		putTogether(w.T, q, 1, 2)
		mustPutWith(w.T, q, 3, 1)
		mustPutWith(w.T, q, 4, 1)
		mustPut(w.T, q, 5, 5)
		n := 0
		for it, err := range q.All(ctx) {
			if err != nil {
				w.T.Fatal(err)
			}
			mustAck(w.T, it)
			if n++; it.Value != n {
				w.T.Errorf("took %d, want %d", it.Value, n)
			}
			if n == 5 {
				break
			}
		}
		if got := fmt.Sprint(commits); got != "[2 1 1 1]" {
			w.T.Errorf("the commits claim %s items", got)
		}
		w.drained(&q.Consumer)
	})
}

// A client that does not know options has acknowledged an item and left its node behind, in the bucket into which a
// Redrive of an item of the same id puts.
func TestQueue_OptionsLeftBehindDoNotStopARedrive(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 9})
		id := mustPutWith(w.T, q, 1, 2)
		for range 2 {
			if err := mustTake(w.T, q, 1).Nack(0); err != nil {
				w.T.Fatal(err)
			}
		}
		w.outsider(backend.Create(w.Path("/q/items/b-0-0/o-"+id), []byte(`{"maxAttempts":3}`), backend.Persistent))
		if n, err := q.Redrive(context.Background(), id); n != 1 || err != nil {
			w.T.Fatal(n, err)
		}
		for range 3 {
			if err := mustTake(w.T, q, 1).Nack(0); err != nil {
				w.T.Fatal(err)
			}
		}
		if d := letters(w.T, &q.Consumer); len(d) != 1 || d[0].Attempts != 3 {
			w.T.Errorf("%+v", d)
		}
		if left := w.options(); len(left) != 0 {
			w.T.Errorf("left %v", left)
		}
	})
}

// An outsider's node below the options does not keep an item of a dead consumer in the queue.
func TestQueue_ANodeBelowTheOptionsDoesNotStopABurial(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		mustPutWith(w.T, q, 1, 1)
		path := w.Path(w.options()[0])
		it := mustTake(w.T, w.queue("b", nil), 1)
		w.outsider(backend.Create(path+"/child", nil, backend.Persistent))
		w.Link("b").Expire(it.Session())
		<-it.Done()
		_, err := q.TryTake(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		if d := letters(w.T, &q.Consumer); len(d) != 1 || d[0].Attempts != 1 {
			w.T.Errorf("%+v", d)
		}
		w.outsider(backend.Delete(path+"/child", backend.AnyVersion), backend.Delete(path, backend.AnyVersion))
		w.drained(&q.Consumer)
	})
}

// The commit that moves an item of a dead consumer to the dead letters deletes its options, and leaves no litter.
func TestQueue_TheBurialForADeadConsumerDeletesTheOptions(t *testing.T) {
	onMemory(t, func(w *world) {
		var deleted []string
		q := w.hookedQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			for _, op := range c.Ops {
				if acknowledges(c) && op.Kind == backend.OpDelete && strings.Contains(op.Path, "/o-") {
					deleted = append(deleted, op.Path)
				}
			}
			return nil
		}}, nil)
		mustPutWith(w.T, q, 1, 1)
		want := w.options()
		it := mustTake(w.T, w.queue("b", nil), 1)
		w.Link("b").Expire(it.Session())
		<-it.Done()
		_, err := q.TryTake(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		if d := letters(w.T, &q.Consumer); len(d) != 1 || !slices.Equal(deleted, want) {
			w.T.Errorf("%d dead letters, deleted %v, want %v", len(d), deleted, want)
		}
		w.drained(&q.Consumer)
	})
}
