package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// queueKeysTests are tests of the keys of items, on each service.
type queueKeysTests struct{ Services }

// keyNodes returns the paths of the nodes of keys: those beside the items of /q and of its dead letters, and those of
// the directory of keys.
func (w *world) keyNodes() (paths []string) {
	for _, dir := range []string{"/q/items", "/q/dead/items", "/q/keys"} {
		if dir == "/q/keys" && !slices.Contains(w.Children("/q"), "keys") {
			continue
		}
		for _, b := range w.Children(dir) {
			for _, n := range w.Children(dir + "/" + b) {
				if strings.HasPrefix(n, "k-") || strings.HasPrefix(n, "h-") || strings.HasPrefix(n, "u-") {
					paths = append(paths, dir+"/"+b+"/"+n)
				}
			}
		}
	}
	slices.Sort(paths)
	return paths
}

// keyNode returns the path of the only node of a key whose name begins with prefix.
func (w *world) keyNode(prefix string) string {
	w.T.Helper()
	found := slices.DeleteFunc(w.keyNodes(), func(p string) bool { return !strings.Contains(p, "/"+prefix) })
	if len(found) != 1 {
		w.T.Fatalf("%d nodes %s: %v", len(found), prefix, w.keyNodes())
	}
	return found[0]
}

// mustPutOnce puts a value whose key is free.
func mustPutOnce(t *testing.T, q *coord.Queue[int], key string, v int) (id string) {
	t.Helper()
	id, put, err := q.PutOnce(context.Background(), key, v)
	if !put || err != nil || id == "" {
		t.Fatalf("%q, %t, %v, want a put of key %q", id, put, err, key)
	}
	return id
}

// inUse checks that the item with this id has the key.
func inUse(t *testing.T, q *coord.Queue[int], key, id string) {
	t.Helper()
	got, put, err := q.PutOnce(context.Background(), key, -1)
	if put || err != nil || got != id {
		t.Errorf("PutOnce returns %q, %t, %v, want the item %q that has the key", got, put, err, id)
	}
	got, err = q.PutWith(context.Background(), -1, &coord.PutOptions{Key: key, KeyFor: time.Hour})
	if !errors.Is(err, coord.ErrExists) || got != id {
		t.Errorf("PutWith returns %q, %v, want the item %q that has the key", got, err, id)
	}
}

// An item has its key as long as it is in the queue, whatever happens to its claims. Each of its ends frees the key, and
// deletes all nodes of it in the same commit.
func (on queueKeysTests) AnItemHasItsKeyUntilItsEnd(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxAttempts: 9})
		other := w.queue("b", nil)
		*coordtest.Inside(&q.Consumer).BucketSize = 6
		ends := map[string]func(id string) error{
			"ack":    func(string) error { return mustTake(w.T, q, 1).Ack() },
			"ackall": func(string) error { return q.AckAll(mustTake(w.T, q, 1)) },
			"pop":    func(string) error { _, err := q.Pop(ctx); return err },
			"purge":  func(string) error { _, err := q.Purge(ctx); return err },
			"remove": func(id string) error { return q.Remove(ctx, id) },
			"remove after a failure": func(id string) error {
				return errors.Join(mustTake(w.T, q, 1).Nack(time.Hour), q.Remove(ctx, id))
			},
			"purge after a failure": func(id string) error {
				err := mustTake(w.T, q, 1).Nack(time.Hour)
				_, failed := q.Purge(ctx)
				return errors.Join(err, failed)
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
				return q.Work(ctx, 1, func(context.Context, *coord.Item[int]) error { stop(); return coord.Bury(nil) })
			},
			"an outsider": func(id string) error { return deletedByOutsider(w, q, id) },
		}
		for _, keep := range []time.Duration{0, time.Hour} {
			for name, end := range ends {
				key := "key of " + name
				id, err := q.PutWith(ctx, 1, &coord.PutOptions{Key: key, KeyFor: keep})
				if err != nil {
					w.T.Fatalf("%s: %v", name, err)
				}
				inUse(w.T, other, key, id)
				it := mustTake(w.T, q, 1)
				inUse(w.T, other, key, id)
				if err := it.Release(); err != nil {
					w.T.Fatal(err)
				}
				it = mustTake(w.T, q, 1)
				if err := it.Nack(0); err != nil {
					w.T.Fatal(err)
				}
				inUse(w.T, other, key, id)
				if st, err := q.Stats(ctx); st.Ready != 1 || err != nil {
					w.T.Errorf("%s: %+v, %v", name, st, err)
				}
				if err := end(id); err != nil {
					w.T.Errorf("%s: %v", name, err)
				}
				stays := keep > 0 && !strings.Contains(name, "purge") && !strings.Contains(name, "remove") && name != "bury"
				if left := w.keyNodes(); !stays && len(left) != 0 {
					w.T.Fatalf("%s: left %v", name, left)
				} else if stays && (len(left) != 2 || strings.Contains(left[0], "/k-")) {
					w.T.Fatalf("%s: left %v, want the key until its time", name, left)
				}
				if stays {
					inUse(w.T, other, key, id)
					for _, n := range w.keyNodes() {
						w.outsider(backend.Delete(w.Path(n), backend.AnyVersion))
					}
				}
				if name == "bury" {
					if err := q.Remove(ctx, id); err != nil {
						w.T.Error(err)
					}
				}
				again := mustPutOnce(w.T, other, key, 1)
				if again == id {
					w.T.Errorf("%s: the same id again", name)
				}
				mustAck(w.T, mustTake(w.T, other, 1))
			}
		}
		w.drained(&q.Consumer)
	})
}

// Of the producers that put one key at the same time one puts its item, and the others learn its id.
func (on queueKeysTests) OneOfManyProducersPuts(t *testing.T) {
	on.each(t, func(w *world) {
		const producers, keys = 5, 4
		ids := make([][producers]string, keys)
		puts := make([][producers]bool, keys)
		var all sync.WaitGroup
		for i := range producers {
			q := w.queue(fmt.Sprint("p", i), nil)
			all.Go(func() {
				for k := range keys {
					var err error
					if ids[k][i], puts[k][i], err = q.PutOnce(context.Background(), fmt.Sprint(k), k); err != nil {
						w.T.Error(err)
					}
				}
			})
		}
		all.Wait()
		q := w.queue("c", nil)
		taken := make(map[string]int)
		for range keys {
			it, err := q.Take(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			taken[it.ID] = it.Value
			mustAck(w.T, it)
		}
		for k := range keys {
			n := 0
			for i := range producers {
				if puts[k][i] {
					n++
				}
				if v, ok := taken[ids[k][i]]; !ok || v != k || ids[k][i] != ids[k][0] {
					w.T.Errorf("key %d: producer %d got %q, which was taken with %d", k, i, ids[k][i], v)
				}
			}
			if n != 1 {
				w.T.Errorf("key %d: %d producers have put", k, n)
			}
		}
		w.drained(&q.Consumer)
		if left := w.keyNodes(); len(left) != 0 {
			w.T.Errorf("left %v", left)
		}
	})
}

// A key with a time is in use after the Ack until the time has passed, and then once more.
func (on queueKeysTests) AKeyIsInUseForItsTime(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", nil)
		for range 3 {
			before := time.Now()
			id, err := q.PutWith(ctx, 1, &coord.PutOptions{Key: "x", KeyFor: time.Hour})
			if err != nil {
				w.T.Fatal(err)
			}
			if w.Fake && time.Since(before) > time.Minute {
				w.T.Error("the put took long")
			}
			mustAck(w.T, mustTake(w.T, q, 1))
			inUse(w.T, q, "x", id)
			if !w.Fake {
				w.outsider(backend.Delete(w.Path(w.keyNode("u-")), backend.AnyVersion), backend.Delete(w.Path(w.keyNode("h-")), backend.AnyVersion))
				continue
			}
			time.Sleep(time.Hour - time.Minute)
			inUse(w.T, q, "x", id)
			time.Sleep(2 * time.Minute)
		}
		// A short time, on each service.
		for n := range 3 {
			var id string
			w.Eventually("the time of the key has passed", func() bool {
				var err error
				if id, err = q.PutWith(ctx, n, &coord.PutOptions{Key: "y", KeyFor: 3 * time.Millisecond}); err != nil {
					coordtest.WantErr(w.T, err, coord.ErrExists)
				}
				return err == nil
			})
			if h, _ := w.nodeData(w.keyNodes()[0]); len(w.keyNodes()) < 3 || h == "" && id == "" {
				w.T.Errorf("%v", w.keyNodes())
			}
			mustAck(w.T, mustTake(w.T, q, n))
		}
		w.Eventually("a key without a time takes the place", func() bool {
			_, put, err := q.PutOnce(ctx, "y", 7)
			if err != nil {
				w.T.Error(err)
			}
			return put
		})
		mustAck(w.T, mustTake(w.T, q, 7))
		for _, n := range w.keyNodes() {
			if strings.HasPrefix(n, "/q/items/") {
				w.T.Errorf("left %s", n)
			}
		}
		w.drained(&q.Consumer)
	})
}

// The death of a consumer and the end of a claim leave the key with the item. An item that becomes a dead letter gives the
// key up, and a Redrive takes it again, unless another item has it.
func (on queueKeysTests) ADeadLetterHasNoKeyUntilARedrive(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 2})
		for _, keep := range []time.Duration{0, time.Hour} {
			id, err := q.PutWith(ctx, 1, &coord.PutOptions{Key: "x", KeyFor: keep, MaxAttempts: 3})
			if err != nil {
				w.T.Fatal(err)
			}
			for n := range 3 {
				name := fmt.Sprint("dies", keep, n)
				it := mustTake(w.T, w.queue(name, &coord.QueueOptions[int]{MaxAttempts: 2}), 1)
				inUse(w.T, q, "x", id)
				w.Link(name).Expire(it.Session())
				<-it.Done()
				inUse(w.T, q, "x", id)
			}
			w.Eventually("it is a dead letter", func() bool {
				_, err := q.TryTake(ctx)
				coordtest.WantErr(w.T, err, coord.ErrEmpty)
				return len(letters(w.T, &q.Consumer)) == 1
			})
			if left := w.keyNodes(); len(left) != 0 {
				w.T.Fatalf("left %v", left)
			}
			other := mustPutOnce(w.T, q, "x", 2)
			n, err := q.Redrive(ctx, id)
			coordtest.WantErr(w.T, err, coord.ErrExists)
			if n != 0 || len(letters(w.T, &q.Consumer)) != 1 {
				w.T.Errorf("%d were moved, %d dead letters", n, len(letters(w.T, &q.Consumer)))
			}
			free, err := q.Put(ctx, 3)
			if err != nil {
				w.T.Fatal(err)
			}
			inUse(w.T, q, "x", other)
			mustAck(w.T, mustTake(w.T, q, 2))
			for range 2 {
				if err := mustTake(w.T, q, 3).Nack(0); err != nil {
					w.T.Fatal(err)
				}
			}
			second := mustPutOnce(w.T, q, "x", 4)
			// Two dead letters with one key, and one without: the second of the two stays.
			for range 2 {
				if err := mustTake(w.T, q, 4).Nack(0); err != nil {
					w.T.Fatal(err)
				}
			}
			n, err = q.Redrive(ctx)
			coordtest.WantErr(w.T, err, coord.ErrExists)
			if d := letters(w.T, &q.Consumer); n != 2 || len(d) != 1 || d[0].ID != second {
				w.T.Errorf("%d were moved, left %+v", n, d)
			}
			inUse(w.T, q, "x", id)
			if err := errors.Join(q.Remove(ctx, free), q.Remove(ctx, second)); err != nil {
				w.T.Error(err)
			}
			mustAck(w.T, mustTake(w.T, q, 1))
			if keep > 0 {
				inUse(w.T, q, "x", id)
				w.outsider(backend.Delete(w.Path(w.keyNode("u-")), backend.AnyVersion), backend.Delete(w.Path(w.keyNode("h-")), backend.AnyVersion))
			}
			if left := w.keyNodes(); len(left) != 0 {
				w.T.Errorf("left %v", left)
			}
		}
		w.drained(&q.Consumer)
	})
}

// Each queue and each Put method takes a key, which is unique in the queue, and refuses the same mistakes.
func (on queueKeysTests) EachPutTakesAKey(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q, p, d := coord.NewQueue[int](c, "/q", nil), coord.NewPriorityQueue[int](c, "/p", nil), coord.NewDelayQueue[int](c, "/d", nil)
		due := time.Now().Add(-time.Hour)
		commit := func(op coord.TxnOp) error { _, err := coord.NewTxn(c).Add(op).Commit(ctx); return err }
		for name, x := range map[string]struct {
			consumer *coord.Consumer[int]
			with     func(n int, o *coord.PutOptions) (string, error)
			once     func(n int, key string) (string, bool, error)
			op       func(n int, o *coord.PutOptions) coord.TxnOp
		}{
			"Queue": {&q.Consumer, func(n int, o *coord.PutOptions) (string, error) { return q.PutWith(ctx, 1, o) },
				func(n int, key string) (string, bool, error) { return q.PutOnce(ctx, key, 1) },
				func(n int, o *coord.PutOptions) coord.TxnOp { return q.PutOpWith(1, o) }},
			"PriorityQueue": {&p.Consumer, func(n int, o *coord.PutOptions) (string, error) { return p.PutWith(ctx, int64(n), 1, o) },
				func(n int, key string) (string, bool, error) { return p.PutOnce(ctx, int64(n), key, 1) },
				func(n int, o *coord.PutOptions) coord.TxnOp { return p.PutOpWith(int64(n), 1, o) }},
			"DelayQueue": {&d.Consumer, func(n int, o *coord.PutOptions) (string, error) {
				return d.PutWith(ctx, due.Add(time.Duration(n)*time.Minute), 1, o)
			},
				func(n int, key string) (string, bool, error) {
					return d.PutOnce(ctx, due.Add(time.Duration(n)*time.Minute), key, 1)
				},
				func(n int, o *coord.PutOptions) coord.TxnOp {
					return d.PutOpWith(due.Add(time.Duration(n)*time.Minute), 1, o)
				}},
			"PutAfterWith": {&d.Consumer, func(n int, o *coord.PutOptions) (string, error) {
				return d.PutAfterWith(ctx, time.Duration(n)*time.Millisecond, 1, o)
			},
				func(n int, key string) (string, bool, error) { return d.PutOnce(ctx, due, key, 1) },
				func(n int, o *coord.PutOptions) coord.TxnOp { return d.PutOpWith(due, 1, o) }},
		} {
			for what, o := range map[string]coord.PutOptions{
				"too long": {Key: strings.Repeat("x", 1025)}, "without a key": {KeyFor: time.Hour}, "negative": {Key: "x", KeyFor: -1},
			} {
				_, err := x.with(0, &o)
				coordtest.WantErr(w.T, err, coord.ErrInvalid)
				coordtest.WantErr(w.T, commit(x.op(0, &o)), coord.ErrInvalid)
				if what == "negative" {
					continue
				}
				if id, put, err := x.once(0, o.Key); id != "" || put || !errors.Is(err, coord.ErrInvalid) {
					w.T.Errorf("%s, %s: %q, %t, %v", name, what, id, put, err)
				}
			}
			long := &coord.PutOptions{Key: strings.Repeat("\x00", 1024)}
			for i, put := range []func() (string, error){
				func() (string, error) { return x.with(1, long) },
				func() (string, error) {
					id, put, err := x.once(1, long.Key)
					if !put {
						w.T.Errorf("%s: not put, %v", name, err)
					}
					return id, err
				},
				func() (string, error) { return "", commit(x.op(1, long)) },
			} {
				id, err := put()
				if err != nil {
					w.T.Fatalf("%s, put %d: %v", name, i, err)
				}
				if id == "" {
					if id, err = x.with(2, long); !errors.Is(err, coord.ErrExists) {
						w.T.Errorf("%s: %v", name, err)
					}
				}
				for n := range 3 {
					if got, put, err := x.once(n, long.Key); got != id || put || err != nil {
						w.T.Errorf("%s: %q, %t, %v, want %q", name, got, put, err, id)
					}
					err := commit(x.op(n, long))
					var conflict *coord.ConflictError
					if !errors.As(err, &conflict) || conflict.Op != "put" || !errors.Is(err, coord.ErrExists) || !errors.Is(err, coord.ErrConflict) {
						w.T.Errorf("%s: %v", name, err)
					}
				}
				if n := mustLen(w.T, x.consumer); n != 1 {
					w.T.Errorf("%s: %d items", name, n)
				}
				mustAck(w.T, mustTake(w.T, x.consumer, 1))
			}
		}
		w.drained(&q.Consumer)
	})
}

// A key in a transaction: the item is put if and only if the transaction is applied, an AckOp before it frees the key of
// its item, and two puts of one key are refused.
func (on queueKeysTests) AKeyInATransaction(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q := coord.NewQueue[int](c, "/q", nil)
		x := &coord.PutOptions{Key: "x"}
		_, err := coord.NewTxn(c).Add(q.PutOpWith(1, x), q.PutOpWith(2, x)).Commit(ctx)
		coordtest.WantErr(w.T, err, coord.ErrExists, coord.ErrConflict)
		_, err = coord.NewTxn(c).Add(q.PutOpWith(1, x)).If(coord.IfExists("/none")).Commit(ctx)
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		if left := w.keyNodes(); len(left) != 0 {
			w.T.Fatalf("left %v", left)
		}
		r, err := coord.NewTxn(c).Add(q.PutOpWith(1, &coord.PutOptions{Key: "x", MaxAttempts: 7}), q.PutOpWith(2, &coord.PutOptions{Key: "y"})).Commit(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		for _, r := range r {
			if !strings.Contains(r.Path, "/i-") || r.Version != 0 {
				w.T.Errorf("the result is %+v, want the item", r)
			}
		}
		it := mustTake(w.T, q, 1)
		_, err = coord.NewTxn(c).Add(q.PutOpWith(3, x), it.AckOp()).Commit(ctx) // too early
		coordtest.WantErr(w.T, err, coord.ErrExists, coord.ErrConflict)
		if _, err = coord.NewTxn(c).Add(it.AckOp(), q.PutOpWith(3, x)).Commit(ctx); err != nil {
			w.T.Fatal(err)
		}
		mustAck(w.T, mustTake(w.T, q, 2))
		it = mustTake(w.T, q, 3)
		inUse(w.T, q, "x", it.ID)
		// With a time, the key stays in use.
		if _, err = coord.NewTxn(c).Add(it.AckOp(), q.PutOpWith(4, &coord.PutOptions{Key: "x", KeyFor: time.Hour})).Commit(ctx); err != nil {
			w.T.Fatal(err)
		}
		it = mustTake(w.T, q, 4)
		_, err = coord.NewTxn(c).Add(it.AckOp(), q.PutOpWith(5, x)).Commit(ctx)
		coordtest.WantErr(w.T, err, coord.ErrExists, coord.ErrConflict)
		inUse(w.T, q, "x", it.ID)
		mustAck(w.T, it)
		inUse(w.T, q, "x", it.ID)
		w.drained(&q.Consumer)
	})
}

// Whatever an outsider, or a client that does not know keys, makes of the nodes of a key: the item can be taken and
// acknowledged, and the key is free at the end.
func (on queueKeysTests) StrangeNodesOfKeysDoNotMatter(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxAttempts: 3})
		gone := func(path string) { w.outsider(backend.Delete(w.Path(path), backend.AnyVersion)) }
		below := func(path string) { w.outsider(backend.Create(w.Path(path)+"/child", nil, backend.Persistent)) }
		item := func(id string) (nodes []string) {
			for _, b := range w.Children("/q/items") {
				for _, n := range w.Children("/q/items/" + b) {
					if strings.HasPrefix(n, "i-"+id) || strings.HasPrefix(n, "s-"+id) {
						nodes = append(nodes, "/q/items/"+b+"/"+n)
					}
				}
			}
			return nodes
		}
		for what, spoil := range map[string]func(id string){
			"k is gone":    func(string) { gone(w.keyNode("k-")) },
			"h is gone":    func(string) { gone(w.keyNode("h-")) },
			"all are gone": func(string) { gone(w.keyNode("k-")); gone(w.keyNode("h-")) },
			"h is garbage": func(string) {
				w.outsider(backend.SetData(w.Path(w.keyNode("h-")), []byte("\xff{"), backend.AnyVersion))
			},
			"a child of k":  func(string) { below(w.keyNode("k-")) },
			"a child of h":  func(string) { below(w.keyNode("h-")) },
			"the item goes": func(id string) { gone(item(id)[0]) },
			"an old client": func(id string) {
				for _, n := range item(id) {
					gone(n)
				}
			},
			"h and the item": func(id string) { gone(w.keyNode("h-")); gone(item(id)[0]) },
		} {
			for name, end := range map[string]func(it *coord.Item[int]) error{
				"ack":    (*coord.Item[int]).Ack,
				"remove": func(it *coord.Item[int]) error { return errors.Join(it.Release(), q.Remove(ctx, it.ID)) },
				"purge":  func(it *coord.Item[int]) error { _, err := q.Purge(ctx); return errors.Join(it.Ack(), err) },
				"txn": func(it *coord.Item[int]) error {
					_, err := coord.NewTxn(c).Add(it.AckOp()).Commit(ctx)
					return err
				},
				"bury": func(it *coord.Item[int]) error {
					for range 2 {
						if err := it.Nack(0); err != nil {
							return err
						}
						it = mustTake(w.T, q, 1)
					}
					return errors.Join(it.Nack(0), q.Remove(ctx, it.ID))
				},
			} {
				id := mustPutOnce(w.T, q, "x", 1)
				it := mustTake(w.T, q, 1)
				if err := it.Release(); err != nil {
					w.T.Fatal(err)
				}
				spoil(id)
				if !strings.Contains(what, "item") && what != "an old client" {
					it = mustTake(w.T, q, 1)
					if err := end(it); err != nil {
						w.T.Errorf("%s, %s: %v", what, name, err)
					}
				}
				if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) { // sweeps
					w.T.Errorf("%s, %s: %v", what, name, err)
				}
				for _, n := range w.keyNodes() {
					if slices.Contains(w.Children(n), "child") {
						gone(n + "/child")
					}
				}
				if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
					w.T.Errorf("%s, %s: %v", what, name, err)
				}
				other := mustPutOnce(w.T, q, "x", 2)
				inUse(w.T, q, "x", other)
				mustAck(w.T, mustTake(w.T, q, 2))
				if left := w.keyNodes(); len(left) != 0 {
					w.T.Fatalf("%s, %s: left %v", what, name, left)
				}
			}
		}
		w.drained(&q.Consumer)
	})
}

// Whatever an outsider writes into the node that names the item with a key: unless it names an item with that key, the key is free.
func (on queueKeysTests) AnyDataOfAKeyCanBeRead(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", nil)
		id := mustPutOnce(w.T, q, "x", 1)
		bucket := w.Children("/q/items")[0]
		mustAck(w.T, mustTake(w.T, q, 1))
		for i, data := range []string{
			"", "\xff{", "null", "[]", `{"id":7}`,
			fmt.Sprintf(`{"id":%q,"bucket":"b-0-0"}`, strings.Repeat("/", len(id))),
			fmt.Sprintf(`{"id":%q,"bucket":"b-0-0"}`, strings.Repeat("é", len(id)/2)),
			fmt.Sprintf(`{"id":%q,"bucket":"b-0-0"}`, strings.Repeat("\x01", len(id))),
			fmt.Sprintf(`{"id":%q,"bucket":"../keys"}`, id),
			fmt.Sprintf(`{"id":%q,"bucket":%q,"until":-5}`, id, bucket),
			fmt.Sprintf(`{"id":%q,"bucket":%q,"until":1e300}`, id, bucket),
			fmt.Sprintf(`{"id":%q,"bucket":%q,"until":1,"more":{}}`, id, bucket),
		} {
			mustPutOnce(w.T, q, "x", i)
			w.outsider(backend.SetData(w.Path(w.keyNode("h-")), []byte(data), backend.AnyVersion))
			other, put, err := q.PutOnce(context.Background(), "x", 100+i)
			if !put || err != nil {
				w.T.Fatalf("%q: %q, %t, %v", data, other, put, err)
			}
			inUse(w.T, q, "x", other)
			mustAck(w.T, mustTake(w.T, q, i)) // deletes the h of the other item as well
			mustAck(w.T, mustTake(w.T, q, 100+i))
		}
		w.drained(&q.Consumer)
	})
}

// A put whose key is in use does not wait for room in a full queue.
func (on queueKeysTests) AKeyInUseNeedsNoRoom(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxLen: 2})
		id := mustPutOnce(w.T, q, "x", 1)
		mustPut(w.T, q, 2, 2)
		inUse(w.T, q, "x", id)
		refusing := w.queue("b", &coord.QueueOptions[int]{MaxLen: 2, FailWhenFull: true})
		inUse(w.T, refusing, "x", id)
		_, _, err := refusing.PutOnce(ctx, "y", 3)
		coordtest.WantErr(w.T, err, coord.ErrFull)
		n := w.Waits.Load()
		type result struct {
			id  string
			put bool
			err error
		}
		done := make(chan result, 1)
		go func() {
			id, put, err := q.PutOnce(ctx, "y", 3)
			done <- result{id, put, err}
		}()
		w.Eventually("the put waits for room", func() bool { return w.Waits.Load() > n })
		inUse(w.T, q, "x", id) // although another put of the queue value waits
		mustAck(w.T, mustTake(w.T, q, 1))
		if r := <-done; !r.put || r.err != nil {
			w.T.Errorf("%+v", r)
		}
		mustAck(w.T, mustTake(w.T, q, 2))
		mustAck(w.T, mustTake(w.T, q, 3))
		mustPutOnce(w.T, q, "x", 4)
		mustPutOnce(w.T, refusing, "y", 5)
		mustAck(w.T, mustTake(w.T, q, 4))
		mustAck(w.T, mustTake(w.T, q, 5))
		w.drained(&q.Consumer)
	})
}
