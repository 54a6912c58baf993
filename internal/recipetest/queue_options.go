package recipetest

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
	"github.com/go-coord/coord/trace"
)

// queueOptionsTests are tests of the options of single items, on each service.
type queueOptionsTests struct{ Services }

// mustPutWith puts a number that is taken at most so often.
func mustPutWith(t *testing.T, q *coord.Queue[int], v, attempts int) (id string) {
	t.Helper()
	id, err := q.PutWith(context.Background(), v, &coord.PutOptions{MaxAttempts: attempts})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// options returns the paths of the nodes with options in the queue /q and in its dead letters.
func (w *world) options() (paths []string) {
	for _, dir := range []string{"/q/items", "/q/dead/items"} {
		for _, b := range w.Children(dir) {
			for _, n := range w.Children(dir + "/" + b) {
				if strings.HasPrefix(n, "o-") {
					paths = append(paths, dir+"/"+b+"/"+n)
				}
			}
		}
	}
	return paths
}

// An item is taken as often as its own MaxAttempts allows, whether consumers fail or die, also after a Redrive.
func (on queueOptionsTests) AnItemHasItsOwnMaxAttempts(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 2})
		for _, own := range []int{1, 2, 4} {
			id := mustPutWith(w.T, q, own, own)
			for round := range 2 {
				for n := 1; n <= own; n++ {
					it := mustTake(w.T, q, own)
					if it.Attempt != n || it.ID != id {
						w.T.Fatalf("%+v, want attempt %d of %d", it.Attempt, n, own)
					}
					if err := it.Nack(0); err != nil {
						w.T.Fatal(err)
					}
				}
				if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
					w.T.Fatalf("after %d attempts: %v", own, err)
				}
				if d := letters(w.T, &q.Consumer); len(d) != 1 || d[0].Attempts != own || d[0].ID != id {
					w.T.Fatalf("%+v", d)
				}
				if n := w.options(); len(n) != 0 {
					w.T.Errorf("left %v", n)
				}
				if round == 0 {
					if n, err := q.Redrive(ctx, id); n != 1 || err != nil {
						w.T.Fatal(n, err)
					}
				}
			}
			if err := q.Remove(ctx, id); err != nil {
				w.T.Error(err)
			}
		}
		w.drained(&q.Consumer)
	})
}

// The next consumer buries an item whose consumers have died, by the MaxAttempts of the item.
func (on queueOptionsTests) AnItemOfDeadConsumersHasItsOwnMaxAttempts(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1})
		die := func(name string, own, attempt int) {
			it := mustTake(w.T, w.queue(name, &coord.QueueOptions[int]{MaxAttempts: 1}), own)
			if it.Attempt != attempt {
				w.T.Errorf("attempt %d, want %d", it.Attempt, attempt)
			}
			w.Link(name).Expire(it.Session())
			<-it.Done()
		}
		mustPutWith(w.T, q, 3, 3)
		for n := 1; n <= 3; n++ {
			if v, err := q.Peek(ctx); v != 3 || err != nil {
				w.T.Error(v, err)
			}
			die(fmt.Sprint("b", n), 3, n)
		}
		if v, err := q.Peek(ctx); !errors.Is(err, coord.ErrEmpty) {
			w.T.Error(v, err)
		}
		many := w.queue("c", &coord.QueueOptions[int]{MaxAttempts: 9}) // the item has less
		mustPutWith(w.T, q, 1, 1)
		w.Eventually("the first is a dead letter", func() bool {
			it, err := q.TryTake(ctx)
			if err == nil {
				err = it.Release()
			}
			if err != nil && !errors.Is(err, coord.ErrEmpty) {
				w.T.Error(err)
			}
			return len(letters(w.T, &q.Consumer)) == 1
		})
		die("d", 1, 1)
		w.Eventually("the second is a dead letter", func() bool {
			_, err := many.TryTake(ctx)
			coordtest.WantErr(w.T, err, coord.ErrEmpty)
			return len(letters(w.T, &q.Consumer)) == 2
		})
		for i, d := range letters(w.T, &q.Consumer) {
			if d.Value != 3-2*i || d.Attempts != 3-2*i || d.Reason != trace.ReasonAbandoned {
				w.T.Errorf("%+v", d)
			}
		}
		if n := w.options(); len(n) != 0 {
			w.T.Errorf("left %v", n)
		}
		w.drained(&q.Consumer)
	})
}

// Each end of an item deletes the node with its options, in the same commit.
func (on queueOptionsTests) OptionsGoWithTheItem(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxAttempts: 9})
		*coordtest.Inside(&q.Consumer).BucketSize = 6
		for name, end := range map[string]func(id string) error{
			"ack":    func(string) error { return mustTake(w.T, q, 1).Ack() },
			"ackall": func(string) error { return q.AckAll(mustTake(w.T, q, 1)) },
			"pop":    func(string) error { _, err := q.Pop(ctx); return err },
			"purge":  func(string) error { _, err := q.Purge(ctx); return err },
			"remove": func(id string) error { return q.Remove(ctx, id) },
			"remove after a failure": func(id string) error {
				return errors.Join(mustTake(w.T, q, 1).Nack(time.Hour), q.Remove(ctx, id))
			},
			"a transaction": func(string) error {
				_, err := coord.NewTxn(c).Add(mustTake(w.T, q, 1).AckOp()).Commit(ctx)
				return err
			},
			"work": func(string) error {
				ctx, stop := context.WithCancel(ctx)
				return q.Work(ctx, 1, func(context.Context, *coord.Item[int]) error { stop(); return nil })
			},
			"bury": func(id string) error {
				ctx, stop := context.WithCancel(ctx)
				err := q.Work(ctx, 1, func(context.Context, *coord.Item[int]) error { stop(); return coord.Bury(nil) })
				return errors.Join(err, q.Remove(context.Background(), id))
			},
			"an outsider": func(id string) error { return deletedByOutsider(w, q, id) },
		} {
			id := mustPutWith(w.T, q, 1, 3)
			if n := w.options(); len(n) != 1 || !strings.HasSuffix(n[0], "/o-"+id) {
				w.T.Fatalf("%s: %v", name, n)
			}
			if n := mustLen(w.T, &q.Consumer); n != 1 {
				w.T.Errorf("%s: Len is %d", name, n)
			}
			if st, err := q.Stats(ctx); st.Ready != 1 || st.Dead != 0 || err != nil {
				w.T.Errorf("%s: %+v, %v", name, st, err)
			}
			if err := end(id); err != nil {
				w.T.Errorf("%s: %v", name, err)
			}
			if n := w.options(); len(n) != 0 {
				w.T.Errorf("%s: left %v", name, n)
			}
		}
		w.drained(&q.Consumer)
	})
}

// Whatever an outsider makes of the node with the options, the item can be taken, buried, moved and removed. A field
// that this version does not know survives a Redrive.
func (on queueOptionsTests) StrangeOptionsDoNotMatter(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1})
		for what, spoil := range map[string]func(path string){
			"gone":     func(path string) { w.outsider(backend.Delete(path, backend.AnyVersion)) },
			"garbage":  func(path string) { w.outsider(backend.SetData(path, []byte("\xff{"), backend.AnyVersion)) },
			"empty":    func(path string) { w.outsider(backend.SetData(path, nil, backend.AnyVersion)) },
			"negative": func(path string) { w.outsider(backend.SetData(path, []byte(`{"maxAttempts":-4}`), backend.AnyVersion)) },
			"a child":  func(path string) { w.outsider(backend.Create(path+"/child", nil, backend.Persistent)) },
		} {
			most := 1
			if what == "a child" {
				most = 3
			}
			for name, end := range map[string]func(it *coord.Item[int]) error{
				"ack": (*coord.Item[int]).Ack,
				"nack": func(it *coord.Item[int]) error {
					for n := 1; n < most; n++ {
						if err := it.Nack(0); err != nil {
							return err
						}
						it = mustTake(w.T, q, 1)
					}
					if err := it.Nack(0); err != nil {
						return err
					}
					if d := letters(w.T, &q.Consumer); len(d) != 1 || d[0].Attempts != most {
						w.T.Errorf("%s: %+v", what, d)
					}
					return q.Remove(ctx, it.ID)
				},
				"remove": func(it *coord.Item[int]) error { return errors.Join(it.Release(), q.Remove(ctx, it.ID)) },
				"purge":  func(it *coord.Item[int]) error { _, err := q.Purge(ctx); return errors.Join(it.Ack(), err) },
			} {
				mustPutWith(w.T, q, 1, 3)
				path := w.options()[0]
				taken := mustTake(w.T, q, 1)
				if err := taken.Release(); err != nil {
					w.T.Fatal(err)
				}
				spoil(w.Path(path))
				it := mustTake(w.T, q, 1)
				if it.Attempt != 1 {
					w.T.Errorf("%s, %s: attempt %d", what, name, it.Attempt)
				}
				if err := end(it); err != nil {
					w.T.Errorf("%s, %s: %v", what, name, err)
				}
				if n := mustLen(w.T, &q.Consumer); n != 0 {
					w.T.Errorf("%s, %s: %d items left", what, name, n)
				}
				if what == "a child" {
					w.outsider(backend.Delete(w.Path(path)+"/child", backend.AnyVersion), backend.Delete(w.Path(path), backend.AnyVersion))
				}
			}
		}
		id := mustPutWith(w.T, q, 2, 1)
		w.outsider(backend.SetData(w.Path(w.options()[0]), []byte(`{"later":{"a":"<>"},"maxAttempts":2}`), backend.AnyVersion))
		for n := range 2 {
			if err := mustTake(w.T, q, 2).Nack(0); err != nil {
				w.T.Fatal(n, err)
			}
		}
		if n, err := q.Redrive(ctx, id); n != 1 || err != nil {
			w.T.Fatal(n, err)
		}
		if data, _ := w.nodeData(w.options()[0]); data != `{"later":{"a":"<>"},"maxAttempts":2}` {
			w.T.Errorf("the options are %s after a Redrive", data)
		}
		mustAck(w.T, mustTake(w.T, q, 2))
		w.drained(&q.Consumer)
	})
}

// Each Put method takes options, and refuses a negative MaxAttempts.
func (on queueOptionsTests) EachPutTakesOptions(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		o := &coord.QueueOptions[int]{MaxAttempts: 5}
		q, p, d := coord.NewQueue(c, "/q", o), coord.NewPriorityQueue(c, "/p", o), coord.NewDelayQueue(c, "/d", o)
		once, bad := &coord.PutOptions{MaxAttempts: 1}, &coord.PutOptions{MaxAttempts: -1}
		due := time.Now().Add(-time.Hour)
		commit := func(op coord.TxnOp) error { _, err := coord.NewTxn(c).Add(op).Commit(ctx); return err }
		for name, x := range map[string]struct {
			consumer *coord.Consumer[int]
			put      func(o *coord.PutOptions) error
			txn      func(o *coord.PutOptions) coord.TxnOp
		}{
			"Queue": {&q.Consumer, func(o *coord.PutOptions) error { _, err := q.PutWith(ctx, 1, o); return err },
				func(o *coord.PutOptions) coord.TxnOp { return q.PutOpWith(1, o) }},
			"PriorityQueue": {&p.Consumer, func(o *coord.PutOptions) error { _, err := p.PutWith(ctx, -3, 1, o); return err },
				func(o *coord.PutOptions) coord.TxnOp { return p.PutOpWith(-3, 1, o) }},
			"DelayQueue": {&d.Consumer, func(o *coord.PutOptions) error { _, err := d.PutWith(ctx, due, 1, o); return err },
				func(o *coord.PutOptions) coord.TxnOp { return d.PutOpWith(due, 1, o) }},
		} {
			for how, put := range map[string]func(o *coord.PutOptions) error{"Put": x.put, "PutOp": func(o *coord.PutOptions) error { return commit(x.txn(o)) }} {
				coordtest.WantErr(w.T, put(bad), coord.ErrInvalid)
				for most, o := range map[int]*coord.PutOptions{5: nil, 1: once} {
					if err := put(o); err != nil {
						w.T.Fatalf("%s, %s: %v", name, how, err)
					}
					for range most {
						if err := mustTake(w.T, x.consumer, 1).Nack(0); err != nil {
							w.T.Fatal(err)
						}
					}
					dead := letters(w.T, x.consumer)
					if len(dead) != 1 || dead[0].Attempts != most {
						w.T.Fatalf("%s, %s: %+v, want %d attempts", name, how, dead, most)
					}
					if n, err := x.consumer.Redrive(ctx); n != 1 || err != nil {
						w.T.Fatal(n, err)
					}
					for range most {
						if err := mustTake(w.T, x.consumer, 1).Nack(0); err != nil {
							w.T.Fatal(err)
						}
					}
					if err := x.consumer.Remove(ctx, letters(w.T, x.consumer)[0].ID); err != nil {
						w.T.Error(err)
					}
				}
			}
		}
		if _, err := q.PutWith(ctx, 1, &coord.PutOptions{}); err != nil || len(w.options()) != 0 {
			w.T.Errorf("%v, %v: zero options make a node", err, w.options())
		}
		mustAck(w.T, mustTake(w.T, q, 1))
	})
}

// An item with options is claimed alone, by a commit of its own: with MaxAttempts 1 the death of the consumer would
// make it a dead letter that no handler has seen.
func (on queueOptionsTests) AnItemWithOptionsIsClaimedAlone(t *testing.T) {
	on.each(t, func(w *world) {
		for _, handlers := range []int{1, 3} {
			sc, h := newNextScene(w, nil), newHandled()
			putTogether(w.T, sc.q, 1, 3)
			id := mustPutWith(w.T, sc.q, 4, 1)
			putTogether(w.T, sc.q, 5, 7)
			var shared atomic.Int32 // commits that do more than to claim the item
			sc.before.Arm(1, func(c backendtest.Call) bool {
				if !claims(c) || !slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return op.Kind == backend.OpCreate && strings.Contains(op.Path, "/m-"+id) }) {
					return false
				}
				if acknowledges(c) || slices.ContainsFunc(c.Ops, func(op backend.Op) bool {
					return op.Kind == backend.OpCreate && strings.Contains(op.Path, "/m-") && !strings.Contains(op.Path, id)
				}) {
					shared.Add(1)
				}
				return false
			}, coordtest.Lose)
			x := w.work(sc.q, handlers, func(_ context.Context, it *coord.Item[int]) error {
				h.note(it)
				return nil
			})
			h.await(w, 7)
			w.Eventually("all are acknowledged", func() bool { return mustLen(w.T, &sc.q.Consumer) == 0 })
			x.finish()
			if got := strings.Fields(h.String()); handlers == 1 && h.String() != inOrder(1, 7) || len(got) != 7 {
				w.T.Errorf("delivered %s", h)
			}
			if shared.Load() > 0 {
				w.T.Error("the item was claimed beside other operations")
			}
			// 1; 1 and 2; 2 and 3; 3; 4; 4 and 5; 5 and 6; 6 and 7; 7.
			if _, _, both, own := sc.sent(); handlers == 1 && sc.exact() && (own != 2 || both != 5) {
				w.T.Errorf("%d commits claim, %d acknowledge and claim, want 2 and 5", own, both)
			}
			w.drained(&sc.q.Consumer)
		}
	})
}

// deletedByOutsider deletes the node of an item of /q by hand, and lets a consumer remove the nodes beside it.
func deletedByOutsider(w *world, q *coord.Queue[int], id string) error {
	for _, b := range w.Children("/q/items") {
		for _, n := range w.Children("/q/items/" + b) {
			if strings.HasPrefix(n, "i-"+id) {
				w.outsider(backend.Delete(w.Path("/q/items/"+b+"/"+n), backend.AnyVersion))
			}
		}
	}
	_, err := q.TryTake(context.Background())
	if !errors.Is(err, coord.ErrEmpty) {
		return err
	}
	return nil
}
