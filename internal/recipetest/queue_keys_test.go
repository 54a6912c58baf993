package recipetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/hook"
	"github.com/go-coord/coord/internal/layout"
)

// A put with a key is one request, as is the rest of the life of its item. A put whose key is in use is four: the
// commit, a Sync and two reads. One put in 32 with a time collects in the background; here none does.
func TestQueue_AKeyCostsNoRequest(t *testing.T) {
	onMemory(t, func(w *world) {
		var r callCount
		q := coord.NewQueue(w.collecting("a", false, r.hooks()), "/q", &coord.QueueOptions[int]{MaxAttempts: 9})
		var costs [3][6]int
		for i, o := range []*coord.PutOptions{nil, {Key: "x"}, {Key: "y", KeyFor: time.Hour}} {
			for range 2 { // the first makes the directories
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
				if o != nil {
					id, put, err := q.PutOnce(context.Background(), o.Key, 1)
					if put || err != nil || id != it.ID {
						w.T.Errorf("%q, %t, %v", id, put, err)
					}
					costs[i][4] = r.reset()
				}
				mustAck(w.T, it)
				costs[i][5] = r.reset()
				time.Sleep(2 * time.Hour) // the put that follows finds that the time has passed
			}
		}
		// The time has passed: the commit, a Sync, four reads, a write that learns the time, and the commit.
		want := costs[0]
		want[4] = 4
		if costs[1] != want {
			w.T.Errorf("%v requests with a key, %v without, want %v", costs[1], costs[0], want)
		}
		want[0] = 8
		if costs[2] != want {
			w.T.Errorf("%v requests with a time, want %v", costs[2], want)
		}
	})
}

// Work acknowledges an item with a key and claims the next one in the same commit, as without keys.
func TestQueue_WorkClaimsItemsWithKeysBesideAcks(t *testing.T) {
	onMemory(t, func(w *world) {
		var all [2][4]int
		for i := range all {
			sc, h := newNextScene(w, nil), newHandled()
			for n := 1; n <= 20; n++ {
				o := &coord.PutOptions{Key: fmt.Sprint(n), KeyFor: time.Hour}
				if i == 0 {
					o = nil
				}
				if _, err := sc.q.PutWith(context.Background(), n, o); err != nil {
					w.T.Fatal(err)
				}
			}
			sc.sent()
			x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
				h.note(it)
				return nil
			})
			h.await(w, 20)
			w.Eventually("all are acknowledged", func() bool { return mustLen(w.T, &sc.q.Consumer) == 0 })
			x.finish()
			if h.String() != inOrder(1, 20) {
				w.T.Errorf("delivered %s", h)
			}
			_, all[i][0], all[i][1], all[i][2] = sc.sent()
			w.drained(&sc.q.Consumer)
		}
		if all[0] != all[1] || all[0][1] < 15 {
			w.T.Errorf("commits that acknowledge, do both, and claim: %v without keys, %v with", all[0], all[1])
		}
	})
}

// Items with keys are claimed many at a time, acknowledged many at a time, and popped without a claim.
func TestQueue_ItemsWithKeysShareCommits(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var claimed, acked []int
		count := func(ops []backend.Op, kind backend.OpKind, name string) (n int) {
			for _, op := range ops {
				if op.Kind == kind && strings.Contains(op.Path, "/"+name) {
					n++
				}
			}
			return n
		}
		q := coord.NewQueue(w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if n := count(c.Ops, backend.OpCreate, "m-"); n > 0 {
				claimed = append(claimed, n)
			}
			if n := count(c.Ops, backend.OpDelete, "i-"); n > 0 {
				acked = append(acked, n)
			}
			return nil
		}}), "/q", &coord.QueueOptions[int]{Prefetch: 10})
		for n := range 20 {
			mustPutOnce(w.T, q, fmt.Sprint(n), n)
		}
		var items []*coord.Item[int]
		for it, err := range q.All(ctx) {
			if err != nil {
				w.T.Fatal(err)
			}
			if items = append(items, it); len(items) == 10 {
				break
			}
		}
		if err := q.AckAll(items...); err != nil {
			w.T.Fatal(err)
		}
		w.Settle() // no call is at the feeder any more, so no Pop needs a claim
		for n := range 10 {
			if v, err := q.Pop(ctx); v != 10+n || err != nil {
				w.T.Errorf("%d, %v", v, err)
			}
		}
		if fmt.Sprint(claimed) != "[10]" || fmt.Sprint(acked) != "[10 1 1 1 1 1 1 1 1 1 1]" {
			w.T.Errorf("the commits claim %v and delete %v items", claimed, acked)
		}
		if left := w.keyNodes(); len(left) != 0 {
			w.T.Errorf("left %v", left)
		}
	})
}

// Each request of the life of an item with a key is lost, or its reply, or the session ends there. The producer repeats
// its call: the item is put once. No node is left behind.
func TestQueue_KeysSurviveAFaultAtEachRequest(t *testing.T) {
	faultAtEachRequest(t, keptOnce)
}

// keptOnce puts an item twice with one key, buries, redrives and acknowledges it, with a fault at the n-th request, and
// reports whether there was one.
func keptOnce(w *world, fault string, n int) (hit bool) {
	ctx := context.Background()
	q := faultyQueue(w, fault, n, &coord.QueueOptions[int]{MaxAttempts: 2}, &hit)
	o := &coord.PutOptions{Key: fmt.Sprint(n), KeyFor: time.Duration(n%2) * time.Hour}
	put := func() (id string) {
		id, err := q.PutWith(ctx, n, o)
		if errors.Is(err, coord.ErrUncertain) {
			var again string
			if again, err = q.PutWith(ctx, n, o); errors.Is(err, coord.ErrExists) && again != id {
				w.T.Errorf("request %d: the key is in use by %s, the first call has put %s", n, again, id)
			}
			id = again
		}
		if err != nil && !errors.Is(err, coord.ErrExists) {
			w.T.Fatalf("request %d: %v", n, err)
		}
		return id
	}
	id := put()
	if again := put(); again != id || id == "" {
		w.T.Fatalf("request %d: put %q, then %q", n, id, again)
	}
	one := func(prefix string, want int) {
		w.T.Helper()
		found := slices.DeleteFunc(w.keyNodes(), func(p string) bool { return !strings.Contains(p, "/"+prefix) })
		if len(found) != want {
			w.T.Errorf("request %d: %d nodes %s, want %d: %v", n, len(found), prefix, want, w.keyNodes())
		}
	}
	one("k-", 1)
	one("h-", 1)
	one("u-", n%2)
	until := func(what string, done func() bool, step func()) {
		for tries := 0; !done(); tries++ {
			if tries > 10 {
				w.T.Fatalf("request %d: %s", n, what)
			}
			step()
		}
	}
	until("not buried", func() bool { return len(letters(w.T, &q.Consumer)) == 1 }, func() {
		if it, err := q.TryTake(ctx); err == nil {
			it.Nack(0)
		}
	})
	if left := w.keyNodes(); len(left) != 0 {
		w.T.Errorf("request %d: left %v", n, left)
	}
	until("not moved", func() bool { return len(letters(w.T, &q.Consumer)) == 0 }, func() { q.Redrive(ctx, id) })
	one("k-", 1)
	if again := put(); again != id {
		w.T.Errorf("request %d: the key is in use by %s, want %s", n, again, id)
	}
	until("not acknowledged", func() bool { return mustLen(w.T, &q.Consumer) == 0 }, func() {
		if it, err := q.TryTake(ctx); err == nil {
			it.Ack()
		}
	})
	one("k-", 0)
	one("h-", n%2)
	for _, p := range w.keyNodes() {
		w.outsider(backend.Delete(w.Path(p), backend.AnyVersion))
	}
	w.drained(&q.Consumer)
	return hit
}

// The clock of the service says when the time of a key has passed, whatever those of the producers show.
func TestQueue_TheTimeOfAKeyIsByTheServicesClock(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		o := &coord.PutOptions{Key: "x", KeyFor: time.Hour}
		store := w.Service.(coordtest.MemoryService).Store
		store.SetClock(-24 * time.Hour)
		w.Skew = 2 * time.Hour
		fast := w.queue("fast", nil)
		w.Skew = -2 * time.Hour
		slow := w.queue("slow", nil)
		for _, q := range []*coord.Queue[int]{fast, slow} {
			id, err := q.PutWith(ctx, 1, o)
			if err != nil {
				w.T.Fatal(err)
			}
			mustAck(w.T, mustTake(w.T, q, 1))
			time.Sleep(time.Hour - 2*time.Second)
			inUse(w.T, fast, "x", id)
			inUse(w.T, slow, "x", id)
			time.Sleep(4 * time.Second)
		}
		other := mustPutOnce(w.T, fast, "x", 2)
		inUse(w.T, slow, "x", other)
	})
}

// collecting opens a client that collects at each put with a time, or never, in place of at one put in 32.
func (w *world) collecting(name string, always bool, hooks *backendtest.Hooks) *coord.Client {
	return coordtest.OpenWith(w.T, backendtest.Intercept(w.Link(name), *hooks), &coord.Options{Namespace: w.Path("")}, hook.Hooks{Draw: func(what string) uint64 {
		switch {
		case what != "collect":
			return rand.Uint64()
		case always:
			return 0
		}
		return 1
	}})
}

// sameShard returns n keys whose nodes are in one directory.
func sameShard(n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("key ", i); strings.HasPrefix(layout.HashKey(key), "00") {
			keys = append(keys, key)
		}
	}
	return keys
}

// A put with a time collects the keys of its directory whose time has passed. A key stays while its item is in the queue.
func TestQueue_KeysWhoseTimeHasPassedAreCollected(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewQueue[int](w.collecting("a", true, &backendtest.Hooks{}), "/q", nil)
		keys := sameShard(5)
		put := func(i int, keep time.Duration) string {
			id, err := q.PutWith(ctx, i, &coord.PutOptions{Key: keys[i], KeyFor: keep})
			if err != nil {
				w.T.Fatal(err)
			}
			return id
		}
		put(0, time.Minute)
		put(1, time.Minute)
		put(2, time.Hour)
		for i := range 3 {
			mustAck(w.T, mustTake(w.T, q, i))
		}
		stays := put(3, time.Minute)
		lost := put(0+4, time.Minute) // its item goes with its h
		mustAck(w.T, func() *coord.Item[int] {
			it := mustTake(w.T, q, 3)
			other := mustTake(w.T, q, 4)
			if err := it.Release(); err != nil {
				w.T.Fatal(err)
			}
			return other
		}())
		for _, n := range w.keyNodes() {
			if data, _ := w.nodeData(n); strings.Contains(data, lost) {
				w.outsider(backend.Delete(w.Path(n), backend.AnyVersion))
			}
		}
		time.Sleep(2 * time.Minute)
		if _, err := q.PutWith(ctx, 9, &coord.PutOptions{Key: keys[4], KeyFor: time.Hour}); err != nil {
			w.T.Fatal(err)
		}
		w.Settle()
		count := make(map[string]int)
		for _, n := range w.keyNodes() {
			count[n[strings.LastIndex(n, "/"):][:3]]++
		}
		// The nodes of the keys 2, 3 and 4. Key 2 has no item any more.
		if want := map[string]int{"/k-": 2, "/h-": 3, "/u-": 3}; !maps.Equal(count, want) {
			w.T.Errorf("%v, want %v: %v", count, want, w.keyNodes())
		}
		inUse(w.T, q, keys[3], stays)
		for i := range 2 {
			if err := q.Remove(ctx, mustPutOnce(w.T, q, keys[i], i)); err != nil {
				w.T.Error(err)
			}
		}
	})
}

// Items that stay in the queue beyond the time of their keys, more of them than one commit can collect, do not keep another
// key from being collected, which is the last one by its name and by its time.
func TestQueue_KeysAreCollectedBehindItemsThatStay(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewQueue[int](w.collecting("a", true, &backendtest.Hooks{}), "/q", nil)
		const stay = 200
		keys := sameShard(stay + 51)
		slices.SortFunc(keys[:stay+1], func(a, b string) int { return strings.Compare(layout.HashKey(a), layout.HashKey(b)) })
		put := func(n int, keep time.Duration) {
			if _, err := q.PutWith(ctx, n, &coord.PutOptions{Key: keys[n], KeyFor: keep}); err != nil {
				w.T.Fatal(err)
			}
		}
		for n := range stay {
			put(n, time.Minute)
		}
		put(stay, time.Hour)
		h := "/q/keys/00/h-" + layout.HashKey(keys[stay])
		for it, err := range q.All(ctx) {
			if err != nil {
				w.T.Fatal(err)
			}
			if it.Value == stay {
				mustAck(w.T, it)
				break
			}
		}
		time.Sleep(2 * time.Hour)
		for n := stay + 1; slices.Contains(w.keyNodes(), h); n++ {
			if n == len(keys) {
				w.T.Fatal("the key is not collected")
			}
			put(n, time.Minute)
			w.Settle()
		}
	})
}

// A put with a time in a transaction collects as any other: a program may have no other puts.
func TestQueue_APutInATransactionCollectsKeys(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.collecting("a", true, &backendtest.Hooks{})
		q := coord.NewQueue[int](c, "/q", nil)
		for i, key := range sameShard(3) {
			op := q.PutOpWith(i, &coord.PutOptions{Key: key, KeyFor: time.Minute})
			_, err := coord.NewTxn(c).If(coord.IfExists("/none")).Add(op).Commit(ctx)
			coordtest.WantErr(w.T, err, coord.ErrNotFound)
			w.Settle()
			if n := len(w.keyNodes()); n != 2*min(i, 1) {
				w.T.Errorf("after the refusal of put %d: %v", i, w.keyNodes())
			}
			if _, err := coord.NewTxn(c).Add(op).Commit(ctx); err != nil {
				w.T.Fatal(err)
			}
			mustAck(w.T, mustTake(w.T, q, i))
			w.Settle()
			if left := w.keyNodes(); len(left) != 2 { // h and u of this item
				w.T.Errorf("after put %d: %v", i, left)
			}
			time.Sleep(2 * time.Minute)
		}
	})
}

// While a client collects, the item of a dead key is put back, or another item gets the key: nothing of theirs is deleted.
func TestQueue_ACollectedKeyIsTheOneThatWasRead(t *testing.T) {
	for name, meanwhile := range map[string]func(w *world, q *coord.Queue[int], key, id string){
		"another item": func(w *world, q *coord.Queue[int], key, _ string) {
			mustPutOnce(w.T, q, key, 7)
		},
		"another item with a time": func(w *world, q *coord.Queue[int], key, _ string) {
			if _, err := q.PutWith(context.Background(), 7, &coord.PutOptions{Key: key, KeyFor: time.Hour}); err != nil {
				w.T.Fatal(err)
			}
		},
		"two items": func(w *world, q *coord.Queue[int], key, _ string) {
			if err := q.Remove(context.Background(), mustPutOnce(w.T, q, key, 6)); err != nil {
				w.T.Fatal(err)
			}
			mustPutOnce(w.T, q, key, 7) // its h has the version of the first
		},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				var x coordtest.Nth
				q, other := coord.NewQueue[int](w.collecting("a", true, &backendtest.Hooks{Before: x.Before}), "/q", nil), w.queue("b", nil)
				keys := sameShard(2)
				id, err := q.PutWith(ctx, 1, &coord.PutOptions{Key: keys[0], KeyFor: time.Minute})
				if err != nil {
					w.T.Fatal(err)
				}
				mustAck(w.T, mustTake(w.T, q, 1))
				w.Settle()
				time.Sleep(2 * time.Minute)
				done := false
				x.Arm(1, func(c backendtest.Call) bool { return coordtest.Deletes(c) && strings.Contains(c.Path, "/u-") }, func(context.Context, backendtest.Call, error) error {
					meanwhile(w, other, keys[0], id)
					done = true
					return nil
				})
				if _, err := q.PutWith(ctx, 2, &coord.PutOptions{Key: keys[1], KeyFor: time.Minute}); err != nil {
					w.T.Fatal(err)
				}
				w.Settle()
				if !done {
					w.T.Fatal("nothing was collected")
				}
				_, put, err := q.PutOnce(ctx, keys[0], 8)
				if put || err != nil {
					w.T.Errorf("the key was put twice: %t, %v", put, err)
				}
			})
		})
	}
}

// A put that is refused reads the key after a Sync: its server can be behind the commit that was refused.
func TestQueue_AKeyIsReadBehindASync(t *testing.T) {
	onMemory(t, func(w *world) {
		var calls []string
		q := w.hookedQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if strings.Contains(c.Path, "/q") {
				calls = append(calls, c.Op)
			}
			return nil
		}}, nil)
		id := mustPutOnce(w.T, q, "x", 1)
		calls = nil
		inUse(w.T, q, "x", id)
		if got := fmt.Sprint(calls); got != "[commit sync get get commit sync get get]" {
			w.T.Errorf("the calls are %s", got)
		}
	})
}

// Between the reads of a put, the item that has the key becomes a dead letter and is put back, into another bucket: it has the
// key all the same.
func TestQueue_AKeyMovesBetweenTheReads(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		o := &coord.QueueOptions[int]{MaxAttempts: 1}
		var x coordtest.Nth
		q, other := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, o), w.queue("b", o)
		for _, keep := range []time.Duration{0, time.Minute} {
			id, err := q.PutWith(ctx, 1, &coord.PutOptions{Key: "x", KeyFor: keep})
			if err != nil {
				w.T.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
			was := w.keyNode("k-")
			x.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/k-") }, func(context.Context, backendtest.Call, error) error {
				if err := mustTake(w.T, other, 1).Nack(0); err != nil {
					w.T.Error(err)
				}
				mustPut(w.T, other, 10, 19)
				if n, err := other.Redrive(ctx); n != 1 || err != nil {
					w.T.Error(n, err)
				}
				return nil
			})
			inUse(w.T, q, "x", id)
			if now := w.keyNode("k-"); !x.Idle() || now == was {
				w.T.Errorf("the item was in %s and is in %s", was, now)
			}
			if _, err := q.Purge(ctx); err != nil {
				w.T.Fatal(err)
			}
		}
	})
}

// A put that is about to take the place of an item whose time has passed is paused. Meanwhile that place is taken, left and
// taken again, so that h has the version that the put has read.
func TestQueue_AStaleKeyIsTakenOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var x coordtest.Nth
		q, other := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil), w.queue("b", nil)
		for rounds := range 3 {
			if _, err := q.PutWith(ctx, 1, &coord.PutOptions{Key: "x", KeyFor: time.Minute}); err != nil {
				w.T.Fatal(err)
			}
			mustAck(w.T, mustTake(w.T, q, 1))
			time.Sleep(2 * time.Minute)
			var has string
			x.Arm(1, func(c backendtest.Call) bool {
				return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return op.Kind == backend.OpSetData && strings.Contains(op.Path, "/h-") })
			}, func(context.Context, backendtest.Call, error) error {
				for range rounds {
					mustPutOnce(w.T, other, "x", 2)
					mustAck(w.T, mustTake(w.T, other, 2))
				}
				has = mustPutOnce(w.T, other, "x", 3)
				return nil
			})
			inUse(w.T, q, "x", func() string {
				id, put, err := q.PutOnce(ctx, "x", 4)
				if put || err != nil {
					w.T.Errorf("%d rounds: the key was put twice: %q, %v", rounds, id, err)
				}
				return has
			}())
			if !x.Idle() {
				w.T.Error("no put has taken the place")
			}
			if _, err := q.Purge(ctx); err != nil {
				w.T.Fatal(err)
			}
		}
	})
}

// The same whatever the put has read when the others come.
func TestQueue_AStaleKeyIsTakenOnceAtEachRequest(t *testing.T) {
	reached, ran := 0, false
	for at, before := 1, true; before; at++ {
		before = false // also if -run leaves the subtest out
		onMemory(t, func(w *world) {
			ran = true
			ctx := context.Background()
			var x coordtest.Nth
			q, other := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil), w.queue("b", nil)
			if _, err := q.PutWith(ctx, 1, &coord.PutOptions{Key: "x", KeyFor: time.Second}); err != nil {
				w.T.Fatal(err)
			}
			mustAck(w.T, mustTake(w.T, q, 1))
			time.Sleep(time.Minute)
			var has string
			x.Arm(at, func(backendtest.Call) bool { return true }, func(context.Context, backendtest.Call, error) error {
				mustPutOnce(w.T, other, "x", 2)
				mustAck(w.T, mustTake(w.T, other, 2))
				has = mustPutOnce(w.T, other, "x", 3)
				return nil
			})
			id, put, err := q.PutOnce(ctx, "x", 4)
			if before = has != ""; before {
				reached++
			}
			if err != nil || before && (put || id != has) || !before && !put {
				w.T.Errorf("request %d: %q, %t, %v, and %q was put meanwhile", at, id, put, err, has)
			}
			if n := mustLen(w.T, &other.Consumer); n != 1 {
				w.T.Errorf("request %d: %d items with one key", at, n)
			}
		})
	}
	if ran && reached < 6 { // two commits, a Sync and at least three reads
		t.Errorf("the put made %d requests", reached)
	}
}

// An AckOp frees the key of an item whose time has passed while it was in the queue.
func TestQueue_AnAckOpFreesAKeyAfterItsTime(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q := coord.NewQueue[int](c, "/q", nil)
		o := &coord.PutOptions{Key: "x", KeyFor: time.Minute}
		if _, err := q.PutWith(ctx, 0, o); err != nil {
			w.T.Fatal(err)
		}
		for i := range 3 {
			it := mustTake(w.T, q, i)
			next := func() error {
				_, err := coord.NewTxn(c).Add(it.AckOp(), q.PutOpWith(i+1, o)).Commit(ctx)
				return err
			}
			coordtest.WantErr(w.T, next(), coord.ErrExists, coord.ErrConflict)
			time.Sleep(time.Hour)
			if err := next(); err != nil {
				w.T.Fatalf("successor %d: %v", i, err)
			}
			if n := mustLen(w.T, &q.Consumer); n != 1 {
				w.T.Errorf("%d items with one key", n)
			}
		}
		mustAck(w.T, mustTake(w.T, q, 3))
		if left := w.keyNodes(); len(left) != 2 { // h and u of the last item
			w.T.Errorf("left %v", left)
		}
	})
}

// Of equal puts that wait for room one puts its item, and the others return its id, whether they are of one queue value or of several.
func TestQueue_OneOfEqualPutsThatWaitForRoomPuts(t *testing.T) {
	for _, clients := range []int{1, 5} {
		onMemory(t, func(w *world) {
			var qs []*coord.Queue[int]
			for i := range clients {
				qs = append(qs, w.queue(fmt.Sprint("client", i), &coord.QueueOptions[int]{MaxLen: 1}))
			}
			mustPut(w.T, qs[0], 1, 1)
			type result struct {
				id  string
				put bool
				err error
			}
			const puts = 5
			results := make(chan result, puts)
			for i := range puts {
				go func() {
					id, put, err := qs[i%clients].PutOnce(context.Background(), "x", 2)
					results <- result{id, put, err}
				}()
			}
			time.Sleep(time.Minute) // fake time: all wait
			if n := len(results); n > 0 {
				w.T.Fatalf("%d puts did not wait", n)
			}
			mustAck(w.T, mustTake(w.T, qs[0], 1))
			time.Sleep(time.Minute)
			if n := len(results); n != puts {
				w.T.Fatalf("%d clients: %d puts have returned while their item is in the queue", clients, n)
			}
			put, ids := 0, make(map[string]bool)
			for range puts {
				r := <-results
				ids[r.id] = true
				if r.put {
					put++
				}
				if r.err != nil {
					w.T.Error(r.err)
				}
			}
			if put != 1 || len(ids) != 1 {
				w.T.Errorf("%d clients: %d items were put, ids %v", clients, put, ids)
			}
		})
	}
}

// An outsider has deleted the node that shows the key beside its item, and another item has got the key. The ends of the first
// item do not free it.
func TestQueue_AnItemWithoutItsTagLeavesTheKeyAlone(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
		for name, end := range map[string]func(it *coord.Item[int]) error{
			"ack":  (*coord.Item[int]).Ack,
			"bury": func(it *coord.Item[int]) error { return errors.Join(it.Nack(0), q.Remove(ctx, it.ID)) },
			"txn":  func(it *coord.Item[int]) error { _, err := coord.NewTxn(c).Add(it.AckOp()).Commit(ctx); return err },
			"ackall": func(it *coord.Item[int]) error {
				mustPut(w.T, q, 3, 3)
				two := mustTake(w.T, q, 2)
				err := q.AckAll(it, mustTake(w.T, q, 3))
				return errors.Join(err, two.Release())
			},
		} {
			mustPutOnce(w.T, q, "x", 1)
			it := mustTake(w.T, q, 1)
			w.outsider(backend.Delete(w.Path(w.keyNode("k-")), backend.AnyVersion))
			other := mustPutOnce(w.T, q, "x", 2)
			if err := end(it); err != nil {
				w.T.Errorf("%s: %v", name, err)
			}
			inUse(w.T, q, "x", other)
			mustAck(w.T, mustTake(w.T, q, 2))
			if left := w.keyNodes(); len(left) != 0 {
				w.T.Errorf("%s: left %v", name, left)
			}
		}
	})
}

// An outsider deletes the node that shows the key beside its item, just before the item is moved to the dead letters. A Redrive does not
// give the key back: the item has none.
func TestQueue_ADeadLetterWithoutItsTagHasNoKey(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		o := &coord.QueueOptions[int]{MaxAttempts: 1}
		q := coord.NewQueue(w.Open("a", nil), "/q", o)
		for name, bury := range map[string]func(q *coord.Queue[int]){
			"nack": func(q *coord.Queue[int]) {
				if err := mustTake(w.T, q, 1).Nack(0); err != nil {
					w.T.Error(err)
				}
			},
			"its consumer has died": func(q *coord.Queue[int]) {
				c := w.Open("dies", nil)
				it := mustTake(w.T, coord.NewQueue(c, "/q", o), 1)
				w.Link("dies").Expire(it.Session())
				<-it.Done()
				_, err := q.TryTake(ctx)
				coordtest.WantErr(w.T, err, coord.ErrEmpty)
			},
		} {
			var x coordtest.Nth
			id := mustPutOnce(w.T, q, "x", 1)
			x.Arm(1, func(c backendtest.Call) bool {
				return slices.ContainsFunc(c.Ops, func(op backend.Op) bool {
					return strings.HasPrefix(op.Path, "/q/dead/") && strings.Contains(op.Path, "/r-")
				})
			}, func(context.Context, backendtest.Call, error) error {
				w.outsider(backend.Delete(w.Path(w.keyNode("k-")), backend.AnyVersion))
				return nil
			})
			bury(coord.NewQueue(w.Open("buries: "+name, &backendtest.Hooks{Before: x.Before}), "/q", o))
			if !x.Idle() {
				w.T.Fatalf("%s: no move to the dead letters", name)
			}
			if d := letters(w.T, &q.Consumer); len(d) != 1 || d[0].Reason == "" {
				w.T.Errorf("%s: dead letters %+v", name, d)
			}
			if n, err := q.Redrive(ctx, id); n != 1 || err != nil {
				w.T.Fatalf("%s: Redrive returns %d, %v", name, n, err)
			}
			other := mustPutOnce(w.T, q, "x", 2)
			mustAck(w.T, mustTake(w.T, q, 1))
			inUse(w.T, q, "x", other)
			mustAck(w.T, mustTake(w.T, q, 2))
			if left := w.keyNodes(); len(left) != 0 {
				w.T.Errorf("%s: left %v", name, left)
			}
		}
	})
}

// While a client collects, the item of a key whose time has passed becomes a dead letter, another item has the key and ends, and the first
// item is put back. The collector has read that h names another item: it must not delete the u that the Redrive has made. Otherwise a
// put that is paused takes the key from an item in the queue, since h has the version that the put has read.
func TestQueue_TheTimeOfAnItemThatIsPutBackIsNotCollected(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var x, y coordtest.Nth
		o := &coord.QueueOptions[int]{MaxAttempts: 1}
		q := coord.NewQueue(w.collecting("a", true, &backendtest.Hooks{Before: x.Before}), "/q", o)
		other := coord.NewQueue(w.collecting("b", false, &backendtest.Hooks{}), "/q", o)
		slow := coord.NewQueue(w.collecting("c", false, &backendtest.Hooks{Before: y.Before}), "/q", o)
		keys := sameShard(2)
		id, err := other.PutWith(ctx, 1, &coord.PutOptions{Key: keys[0], KeyFor: time.Minute})
		if err != nil {
			w.T.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		until := strings.TrimSuffix(w.keyNode("u-"), "/")
		var putBack func()
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/h-") }, func(context.Context, backendtest.Call, error) error {
			if err := mustTake(w.T, other, 1).Nack(0); err != nil {
				w.T.Error(err)
			}
			second := mustPutOnce(w.T, other, keys[0], 2)
			putBack = func() {
				if err := other.Remove(ctx, second); err != nil {
					w.T.Error(err)
				}
				if n, err := other.Redrive(ctx, id); n != 1 || err != nil {
					w.T.Error(n, err)
				}
			}
			x.Arm(1, func(c backendtest.Call) bool { return c.Op == "commit" && strings.Contains(c.Path, "/u-") }, func(context.Context, backendtest.Call, error) error {
				putBack()
				return nil
			})
			return nil
		})
		if _, err := q.PutWith(ctx, 9, &coord.PutOptions{Key: keys[1], KeyFor: time.Hour}); err != nil {
			w.T.Fatal(err)
		}
		w.Settle()
		if !x.Idle() { // the collector need not commit anything
			putBack()
		}
		if !slices.Contains(w.keyNodes(), until) {
			w.T.Errorf("%s is gone, its item is in the queue: %v", until, w.keyNodes())
		}
		for range 2 {
			it, err := other.TryTake(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			if it.ID == id {
				mustAck(w.T, it)
				break
			}
			defer it.Release()
		}
		var has string
		y.Arm(1, func(c backendtest.Call) bool {
			return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return op.Kind == backend.OpSetData && strings.Contains(op.Path, "/h-") })
		}, func(context.Context, backendtest.Call, error) error {
			mustAck(w.T, func() *coord.Item[int] { mustPutOnce(w.T, other, keys[0], 3); return mustTake(w.T, other, 3) }())
			has = mustPutOnce(w.T, other, keys[0], 4)
			return nil
		})
		got, put, err := slow.PutOnce(ctx, keys[0], 5)
		if put || err != nil || got != has || has == "" {
			w.T.Errorf("PutOnce returns %q, %t, %v while the item %q with this key is in the queue", got, put, err, has)
		}
	})
}
