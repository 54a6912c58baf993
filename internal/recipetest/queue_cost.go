package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// eachLong is each with sessions that outlast the test: no expiry helps.
func (on Services) eachLong(t *testing.T, f func(w *world)) {
	t.Parallel()
	if on.Memory {
		t.Run("memory", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New(&memory.Options{SessionTimeout: time.Hour})
				f(&world{&coordtest.World{Service: coordtest.MemoryService{Store: st}, T: t, Timeout: time.Hour, Fake: true}})
			})
		})
	}
	on.real(t, f)
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
		case <-time.After(coordtest.Limit):
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

// queueCostTests are tests of Queue on each service.
type queueCostTests struct{ Services }

// An item that a good consumer can take does not wait for consumers that are cut off, paused or
// have a slow clock: each item waits at most a round trip longer than without them.
func (on queueCostTests) AnIdleConsumerThatDoesNotActDelaysNothing(t *testing.T) {
	t.Parallel()
	trials := []idleTrial{
		{good: 5, bad: 1},
		{good: 5, bad: 1, when: 5},
		{good: 2, bad: 1},
		{good: 9, bad: 3, when: 2},
	}
	if on.Share > 1 {
		trials = trials[:1]
	}
	for _, c := range trials {
		for _, how := range []string{"cut off", "paused", "slow clock"} {
			c := c
			c.how, c.delay = how, how == "slow clock"
			t.Run(fmt.Sprintf("%d of %d %s, after %d", c.bad, c.bad+c.good, how, c.when), func(t *testing.T) {
				on.eachLong(t, func(w *world) {
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
