package coord_test

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
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
)

// callCount counts the calls of a client, and the longest list of names, in bytes.
type callCount struct {
	mu      sync.Mutex
	n       int
	commits int
	longest int
}

func (r *callCount) hooks() *backendtest.Hooks {
	return &backendtest.Hooks{
		Before: func(_ context.Context, c backendtest.Call) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.n++
			if c.Op == "commit" {
				r.commits++
			}
			return nil
		},
		Names: func(_ backendtest.Call, names []string) []string {
			size := 0
			for _, name := range names {
				size += 4 + len(name)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.longest = max(r.longest, size)
			return names
		},
	}
}

// reset returns the number of calls since the last reset.
func (r *callCount) reset() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.n
	r.n, r.commits = 0, 0
	return n
}

// writes returns the number of commits since the last reset.
func (r *callCount) writes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.commits
}

func text200(n int) string { return fmt.Sprintf("%6d%s", n, strings.Repeat(".", 194)) }

func TestATakeCostsTheSameHoweverLongTheQueueIs(t *testing.T) {
	synctest.Test(t, aTakeCostsTheSameHoweverLongTheQueueIs)
}

func aTakeCostsTheSameHoweverLongTheQueueIs(t *testing.T) {
	ctx := context.Background()
	var r callCount
	c := coordtest.Open(t, backendtest.Intercept(memory.New(nil), *r.hooks()), nil)
	perTake := make(map[int]float64)
	for _, length := range []int{100, 10_000, 50_000} {
		path := fmt.Sprint("/q", length)
		q := coord.NewQueue(c, path, &coord.QueueOptions[string]{Codec: coord.Text()})
		prefetching := coord.NewQueue(c, path, &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: 50})
		vs := make([]string, length)
		for n := range vs {
			vs[n] = text200(n)
		}
		r.reset()
		ids, err := q.PutAll(ctx, vs...)
		if err != nil || len(ids) != length {
			t.Fatal(len(ids), err)
		}
		put := float64(r.reset()) / float64(length)
		if length > 1_000 && put > 1.0/50 {
			t.Errorf("PutAll of %d: %.4f requests an item, want 1/50 at most", length, put)
		}
		const takes = 40
		for n := range takes {
			it, err := q.Take(ctx)
			if err != nil || it.Value != text200(n) {
				t.Fatal(it, err)
			}
			if err := it.Ack(); err != nil {
				t.Fatal(err)
			}
		}
		perTake[length] = float64(r.reset()) / takes
		n := takes
		for it, err := range prefetching.All(ctx) {
			if err != nil || it.Value != text200(n) {
				t.Fatal(it, err)
			}
			if err := it.Ack(); err != nil {
				t.Fatal(err)
			}
			if n++; n == 2*takes {
				break
			}
		}
		t.Logf("figure: queue of %d items of 200 bytes: %.4f requests an item to put, %.2f to take and acknowledge one by one, %.2f with prefetch; the longest list %d bytes",
			length, put, perTake[length], float64(r.reset())/takes, r.longest)
		if perTake[length] > 2*perTake[100] {
			t.Errorf("%.2f requests per Take of %d, %.2f of 100", perTake[length], length, perTake[100])
		}
	}
	if r.longest > 200_000 {
		t.Errorf("a list of %d bytes", r.longest)
	}
}

func TestAllOfALongQueueIsTakenInOrder(t *testing.T) {
	synctest.Test(t, allOfALongQueueIsTakenInOrder)
}

func allOfALongQueueIsTakenInOrder(t *testing.T) {
	ctx := context.Background()
	length := 5_000
	if coordtest.Long() {
		length = 50_000
	}
	var r callCount
	c := coordtest.Open(t, backendtest.Intercept(memory.New(nil), *r.hooks()), nil)
	q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{Prefetch: 50})
	vs := make([]int, length)
	for n := range vs {
		vs[n] = n
	}
	if _, err := q.PutAll(ctx, vs...); err != nil {
		t.Fatal(err)
	}
	r.reset()
	n := 0
	for it, err := range q.All(ctx) {
		if err != nil || it.Value != n || it.Attempt != 1 {
			t.Fatal(it, err)
		}
		if err := it.Ack(); err != nil {
			t.Fatal(err)
		}
		if n++; n == length {
			break
		}
	}
	t.Logf("figure: %d items taken with a prefetch of 50: %.3f requests an item", length, float64(r.reset())/float64(length))
	if n, err := q.Len(ctx); n != 0 || err != nil {
		t.Error(n, err)
	}
}

// However many consumers wait, a put wakes those that have slots, and the claim of the item the
// first two of the line.
func TestAPutWakesFewOfManyWaitingConsumers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const consumers = 40
		st := memory.New(nil)
		var all [consumers]callCount
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		took := make(chan int, consumers)
		for i := range consumers {
			l := st.Link(fmt.Sprint(i))
			c := coordtest.Open(t, backendtest.Intercept(l, *all[i].hooks()), nil)
			l.SetLatency(tripTime / 2)
			q := coord.NewQueue[int](c, "/q", nil)
			for range 3 { // callers of one client wait together
				wg.Go(func() {
					it, err := q.Take(ctx)
					if err != nil {
						if !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
						return
					}
					took <- i
					if err := it.Ack(); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		p := coord.NewQueue[int](coordtest.Open(t, st, nil), "/q", nil)
		var most, sum, busy int
		for n := range 30 {
			for i := range all {
				all[i].reset()
			}
			synctest.Wait()
			for i := range all {
				if k := all[i].reset(); k != 0 {
					t.Errorf("a waiting consumer made %d requests", k)
				}
			}
			mustPut(t, p, n, n)
			time.Sleep(time.Second)
			awake, calls := 0, 0
			for i := range all {
				if k := all[i].reset(); k > 0 {
					awake++
					calls += k
				}
			}
			if len(took) != n+1 {
				t.Fatalf("%d taken after %d puts", len(took), n+1)
			}
			most, sum, busy = max(most, awake), sum+awake, busy+calls
		}
		t.Logf("figure: %d clients with 3 waiting callers each, 30 puts: %.1f clients wake for a put, %d at most, with %.1f requests together", consumers, float64(sum)/30, most, float64(busy)/30)
		// The holders of slots look for the item, the first waiter takes the slot of the winner, and
		// the second waiter becomes the first.
		if most > 8 {
			t.Errorf("%d clients woke for one put", most)
		}
		cancel()
		wg.Wait()
		close(took)
		var who []int
		for i := range took {
			who = append(who, i)
		}
		slices.Sort(who)
		if k := len(slices.Compact(who)); k < 15 {
			t.Errorf("only %d of %d clients got something of 30 puts", k, consumers)
		}
	})
}

// Items that are not due, or of less priority, add nothing to the cost of a Take, however many
// there are.
func TestATakeDoesNotReadItemsThatAreNotDueOrOfLessPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		var r callCount
		c := coordtest.Open(t, backendtest.Intercept(memory.New(nil), *r.hooks()), nil)
		d, p := coord.NewDelayQueue[int](c, "/d", nil), coord.NewPriorityQueue[int](c, "/p", nil)
		for n := range 40 {
			if _, err := d.PutAll(ctx, time.Now().Add(time.Duration(n+2)*time.Minute), make([]int, 500)...); err != nil {
				t.Fatal(err)
			}
			if _, err := p.PutAll(ctx, int64(n), make([]int, 500)...); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.Put(ctx, time.Now(), 1); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Put(ctx, -1, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for name, q := range map[string]*coord.Consumer[int]{"delay": &d.Consumer, "priority": &p.Consumer} {
			r.reset()
			it, err := q.Take(ctx)
			if err != nil || it.Value != 1 {
				t.Fatal(name, it, err)
			}
			if err := it.Ack(); err != nil {
				t.Fatal(err)
			}
			n := r.reset()
			t.Logf("figure: a Take and its Ack in a %s queue of 20,000 items cost %d requests", name, n)
			if n > 8 {
				t.Errorf("%s: %d requests", name, n)
			}
		}
		r.reset()
		if _, err := d.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
			t.Fatal(err)
		}
		if n := r.reset(); n > 4 {
			t.Errorf("to find nothing due cost %d requests", n)
		}
		if r.longest > 50_000 {
			t.Errorf("a list of %d bytes", r.longest)
		}
	})
}

// onEachLong is onEach with sessions that outlast the test: no expiry helps.
func onEachLong(t *testing.T, f func(w *world)) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(&memory.Options{SessionTimeout: time.Hour})
			f(&world{&coordtest.World{Service: coordtest.MemoryService{Store: st}, T: t, Timeout: time.Hour, Fake: true}})
		})
	})
	t.Run("zookeeper", func(t *testing.T) {
		t.Parallel()
		f(onServer(t, zookeeper.Options{}))
	})
}

// idleCrew is a set of idle consumers of one queue, each on a client of its own. A consumer
// that gets an item acknowledges it and waits again.
type idleCrew struct {
	w     *world
	queue func(c *coord.Client) (q *coord.Consumer[int], put func(n int))
	ctx   context.Context
	wg    sync.WaitGroup
	came  chan delivery
}

type delivery struct {
	who   string
	value int
	at    time.Time
}

func newIdleCrew(w *world, queue func(c *coord.Client) (*coord.Consumer[int], func(n int))) *idleCrew {
	x := &idleCrew{w: w, queue: queue, came: make(chan delivery, 100)}
	var cancel context.CancelFunc
	x.ctx, cancel = context.WithCancel(context.Background())
	w.T.Cleanup(func() { cancel(); x.wg.Wait() })
	return x
}

// hire returns a consumer that has taken an item, so that the queue's directories exist.
func (x *idleCrew) hire(name string, hooks *backendtest.Hooks) *coord.Consumer[int] {
	x.w.T.Helper()
	q, put := x.queue(x.w.Open(name, hooks))
	put(0)
	mustAck(x.w.T, mustTake(x.w.T, q, 0))
	return q
}

// start starts a consumer, and returns when it waits.
func (x *idleCrew) start(name string, q *coord.Consumer[int]) {
	x.w.T.Helper()
	n := x.w.Waits.Load()
	x.wg.Go(func() {
		for {
			it, err := q.Take(x.ctx)
			if err != nil {
				if !errors.Is(err, context.Canceled) && !errors.Is(err, coord.ErrClosed) {
					x.w.T.Errorf("%s: %v", name, err)
				}
				return
			}
			x.came <- delivery{name, it.Value, time.Now()}
			// The test can end, and close the client, before the Ack.
			if err := it.Ack(); err != nil && x.ctx.Err() == nil && !errors.Is(err, coord.ErrClosed) {
				x.w.T.Errorf("%s: %v", name, err)
			}
		}
	})
	x.w.Eventually(name+" waits", func() bool { return x.w.Waits.Load() > n })
}

// slowest puts the numbers below count, one after the other, and returns the longest time
// between a put and its delivery. It stops early if the session of a consumer that was cut off
// has ended, since further items would show nothing. On a real server only the item counts during
// whose delivery that happened: the others may have waited for the machine.
func (x *idleCrew) slowest(count int, put func(n int), standing func() bool) (most time.Duration) {
	x.w.T.Helper()
	n := 0
	for ; n < count && standing(); n++ {
		began := time.Now()
		put(n)
		select {
		case d := <-x.came:
			if d.value != n {
				x.w.T.Fatalf("%s got %d, want %d", d.who, d.value, n)
			}
			if x.w.Fake || !standing() {
				most = max(most, d.at.Sub(began))
			}
		case <-time.After(x.w.Timeout + 10*time.Second):
			x.w.T.Fatalf("item %d was not taken", n)
		}
		if x.w.Fake {
			time.Sleep(time.Second) // all wait again
		}
	}
	if n < 3 && x.w.Fake {
		x.w.T.Fatalf("%d items: this tests too little", n)
	} else if n < 3 {
		x.w.T.Logf("%d items: on this machine it tests too little", n)
	}
	return most
}

// pause blocks the calls of a client, as a pause of its process does, but its session lives on.
type pause struct {
	shut atomic.Bool
	open chan struct{}
}

func (g *pause) before(ctx context.Context, _ backendtest.Call) error {
	if g.shut.Load() {
		select {
		case <-g.open:
		case <-ctx.Done():
		}
	}
	return nil
}

// idleTrial is a queue with idle consumers, some of which do not act.
type idleTrial struct {
	good, bad int
	when      int    // how many of the good ones start before the bad ones
	how       string // "cut off", "paused" or "slow clock"
	delay     bool   // a DelayQueue
}

// run returns the longest wait of an item. Under fake time a round trip takes
// tripTime.
func (tr idleTrial) run(w *world, path string, items int) time.Duration {
	w.T.Helper()
	x := newIdleCrew(w, func(c *coord.Client) (*coord.Consumer[int], func(n int)) {
		if tr.delay {
			q := coord.NewDelayQueue[int](c, path, nil)
			return &q.Consumer, func(n int) {
				if _, err := q.Put(context.Background(), time.Now().Add(dueIn+w.Skew), n); err != nil {
					w.T.Error(err)
				}
			}
		}
		q := coord.NewQueue[int](c, path, nil)
		return &q.Consumer, func(n int) { mustPut(w.T, q, n, n) }
	})
	name := func(kind string, i int) string { return fmt.Sprint(path, kind, i) }
	good, bad, pauses := make([]*coord.Consumer[int], tr.good), make([]*coord.Consumer[int], tr.bad), make([]*pause, tr.bad)
	for i := range good {
		good[i] = x.hire(name("good", i), nil)
	}
	for i := range bad {
		pauses[i] = &pause{open: make(chan struct{})}
		if tr.how == "slow clock" {
			w.Skew = -time.Hour
		}
		bad[i] = x.hire(name("bad", i), &backendtest.Hooks{Before: pauses[i].before})
		w.Skew = 0
	}
	for i := range tr.when {
		x.start(name("good", i), good[i])
	}
	before := w.Children(path + "/waiters")
	for i, q := range bad {
		x.start(name("bad", i), q)
		w.T.Cleanup(func() { close(pauses[i].open) })
	}
	w.Settle()
	dead := slices.DeleteFunc(w.Children(path+"/waiters"), func(name string) bool { return slices.Contains(before, name) })
	if len(dead) != tr.bad {
		w.T.Fatalf("%d waiters more for %d bad consumers", len(dead), tr.bad)
	}
	for i := range bad {
		switch tr.how {
		case "paused":
			pauses[i].shut.Store(true)
		case "cut off":
			l := w.Link(name("bad", i))
			l.Partition()
			w.T.Cleanup(l.Heal)
		}
	}
	for i := tr.when; i < tr.good; i++ {
		x.start(name("good", i), good[i])
	}
	if m, ok := w.Service.(coordtest.MemoryService); ok {
		for i := range tr.good {
			m.Store.Link(name("good", i)).SetLatency(tripTime / 2)
		}
		time.Sleep(time.Second)
	}
	_, put := x.queue(w.Open(name("producer", 0), nil))
	standing := func() bool {
		now := w.Children(path + "/waiters")
		return !slices.ContainsFunc(dead, func(name string) bool { return !slices.Contains(now, name) })
	}
	if tr.how == "slow clock" {
		standing = func() bool { return true } // it looks again at each put, so its node may go
	}
	return x.slowest(items, put, standing)
}

const (
	tripTime = 10 * time.Millisecond
	dueIn    = 50 * time.Millisecond
)

// An item that a good consumer can take does not wait for consumers that are cut off, paused or
// have a slow clock: each item waits at most a round trip longer than without them.
func TestAnIdleConsumerThatDoesNotActDelaysNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []idleTrial{
		{good: 5, bad: 1},
		{good: 5, bad: 1, when: 5},
		{good: 2, bad: 1},
		{good: 9, bad: 3, when: 2},
	} {
		for _, how := range []string{"cut off", "paused", "slow clock"} {
			c := c
			c.how, c.delay = how, how == "slow clock"
			t.Run(fmt.Sprintf("%d of %d %s, after %d", c.bad, c.bad+c.good, how, c.when), func(t *testing.T) {
				onEachLong(t, func(w *world) {
					const items = 25
					most := c.run(w, "/bad", items)
					if !w.Fake {
						if most > w.Timeout/2 {
							w.T.Errorf("an item waited for %v", most)
						}
						return
					}
					usual := idleTrial{good: c.good, delay: c.delay}.run(w, "/control", items)
					w.T.Logf("figure: %d of %d idle consumers %s: an item waited for %v at most, %v without them", c.bad, c.bad+c.good, how, most, usual)
					if most > usual+tripTime {
						w.T.Errorf("an item waited for %v, without them %v", most, usual)
					}
				})
			})
		}
	}
}
