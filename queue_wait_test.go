package coord_test

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
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkservice"
)

// onEachLong is onEach with sessions that outlast the test: no expiry helps.
func onEachLong(t *testing.T, f func(w *world)) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(&memory.Options{SessionTimeout: time.Hour})
			f(&world{Service: memoryService{st}, t: t, timeout: time.Hour, fake: true})
		})
	})
	t.Run("zookeeper", func(t *testing.T) {
		t.Parallel()
		f(&world{Service: zkservice.New(t, server.Get(t), zookeeper.Options{SessionTimeout: realTimeout}), t: t, timeout: realTimeout})
	})
}

// idleCrew is consumers of one queue that wait, each in a client of its own. A
// consumer that gets an item acknowledges it and waits again.
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
	w.t.Cleanup(func() { cancel(); x.wg.Wait() })
	return x
}

// hire makes a consumer. It takes an item, so that what is made once is made.
func (x *idleCrew) hire(name string, hooks *backendtest.Hooks) *coord.Consumer[int] {
	x.w.t.Helper()
	q, put := x.queue(x.w.open(name, hooks))
	put(0)
	mustAck(x.w.t, mustTake(x.w.t, q, 0))
	return q
}

// start starts a consumer, and returns when it waits.
func (x *idleCrew) start(name string, q *coord.Consumer[int]) {
	x.w.t.Helper()
	n := x.w.waits.Load()
	x.wg.Go(func() {
		for {
			it, err := q.Take(x.ctx)
			if err != nil {
				if !errors.Is(err, context.Canceled) && !errors.Is(err, coord.ErrClosed) {
					x.w.t.Errorf("%s: %v", name, err)
				}
				return
			}
			x.came <- delivery{name, it.Value, time.Now()}
			if err := it.Ack(); err != nil && x.ctx.Err() == nil {
				x.w.t.Errorf("%s: %v", name, err)
			}
		}
	})
	x.w.eventually(name+" waits", func() bool { return x.w.waits.Load() > n })
}

// slowest puts the numbers below count, one after the other, and returns the
// longest time between a put and its delivery. It stops early when the session of a
// consumer that was cut off has ended, since nothing is shown then.
func (x *idleCrew) slowest(count int, put func(n int), standing func() bool) (most time.Duration) {
	x.w.t.Helper()
	n := 0
	for ; n < count && standing(); n++ {
		began := time.Now()
		put(n)
		select {
		case d := <-x.came:
			if d.value != n {
				x.w.t.Fatalf("%s got %d, want %d", d.who, d.value, n)
			}
			most = max(most, d.at.Sub(began))
		case <-time.After(x.w.timeout + 10*time.Second):
			x.w.t.Fatalf("item %d was not taken", n)
		}
		if x.w.fake {
			time.Sleep(time.Second) // all wait again
		}
	}
	if n < 3 {
		x.w.t.Fatalf("%d items: this tests too little", n)
	}
	return most
}

// pause stops the calls of a client, as a pause of its process does, except that
// its session lives on.
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
	when      int    // how many of the good ones come before the bad ones
	how       string // "cut off", "paused" or "slow clock"
	delay     bool   // a DelayQueue
}

// run returns the longest wait of an item. Under fake time a round trip takes
// tripTime.
func (tr idleTrial) run(w *world, path string, items int) time.Duration {
	w.t.Helper()
	x := newIdleCrew(w, func(c *coord.Client) (*coord.Consumer[int], func(n int)) {
		if tr.delay {
			q := coord.NewDelayQueue[int](c, path, nil)
			return &q.Consumer, func(n int) {
				if _, err := q.Put(context.Background(), time.Now().Add(dueIn), n); err != nil {
					w.t.Error(err)
				}
			}
		}
		q := coord.NewQueue[int](c, path, nil)
		return &q.Consumer, func(n int) { mustPut(w.t, q, n, n) }
	})
	name := func(kind string, i int) string { return fmt.Sprint(path, kind, i) }
	good, bad, pauses := make([]*coord.Consumer[int], tr.good), make([]*coord.Consumer[int], tr.bad), make([]*pause, tr.bad)
	for i := range good {
		good[i] = x.hire(name("good", i), nil)
	}
	for i := range bad {
		pauses[i] = &pause{open: make(chan struct{})}
		bad[i] = x.hire(name("bad", i), &backendtest.Hooks{Before: pauses[i].before})
	}
	for i := range tr.when {
		x.start(name("good", i), good[i])
	}
	before := w.children(path + "/waiters")
	for i, q := range bad {
		if tr.how == "slow clock" {
			coord.SetClock(q, -time.Hour)
		}
		x.start(name("bad", i), q)
		w.t.Cleanup(func() { close(pauses[i].open) })
	}
	w.settle()
	dead := slices.DeleteFunc(w.children(path+"/waiters"), func(name string) bool { return slices.Contains(before, name) })
	if len(dead) != tr.bad {
		w.t.Fatalf("%d waiters more for %d bad consumers", len(dead), tr.bad)
	}
	for i := range bad {
		switch tr.how {
		case "paused":
			pauses[i].shut.Store(true)
		case "cut off":
			l := w.Link(name("bad", i))
			l.Partition()
			w.t.Cleanup(l.Heal)
		}
	}
	for i := tr.when; i < tr.good; i++ {
		x.start(name("good", i), good[i])
	}
	if m, ok := w.Service.(memoryService); ok {
		for i := range tr.good {
			m.Store.Link(name("good", i)).SetLatency(tripTime / 2)
		}
		time.Sleep(time.Second)
	}
	_, put := x.queue(w.open(name("producer", 0), nil))
	standing := func() bool {
		now := w.children(path + "/waiters")
		return !slices.ContainsFunc(dead, func(name string) bool { return !slices.Contains(now, name) })
	}
	if tr.how == "slow clock" {
		standing = func() bool { return true } // it looks again at each put, and stays or not
	}
	return x.slowest(items, put, standing)
}

const (
	tripTime = 10 * time.Millisecond
	dueIn    = 50 * time.Millisecond
)

// What any consumer can take waits for none that is cut off, paused or has a slow
// clock: never more than a round trip longer than without them, item after item.
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
					if !w.fake {
						if most > w.timeout/2 {
							w.t.Errorf("an item waited for %v", most)
						}
						return
					}
					usual := idleTrial{good: c.good, delay: c.delay}.run(w, "/control", items)
					w.t.Logf("figure: %d of %d idle consumers %s: an item waited for %v at most, %v without them", c.bad, c.bad+c.good, how, most, usual)
					if most > usual+tripTime {
						w.t.Errorf("an item waited for %v, without them %v", most, usual)
					}
				})
			})
		}
	}
}

// When all of the front is dead, its sessions bound the wait, and nothing else is
// needed.
func TestADeadFrontIsPassedWhenItsSessionsEnd(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		var dead []*taking
		for i := range 4 {
			name := fmt.Sprint("dead", i)
			dead = append(dead, w.takeWaits(ctx, w.queue(name, nil)))
			w.Link(name).Partition()
		}
		live := []*taking{w.takeWaits(context.Background(), w.queue("a", nil)), w.takeWaits(context.Background(), w.queue("b", nil))}
		p := w.queue("p", nil)
		mustPut(w.t, p, 1, 2)
		var got []int
		for _, x := range live {
			<-x.done
			if x.err != nil {
				w.t.Fatal(x.err)
			}
			got = append(got, x.it.Value)
			mustAck(w.t, x.it)
		}
		if slices.Sort(got); !slices.Equal(got, []int{1, 2}) {
			w.t.Errorf("got %v", got)
		}
		for i := range dead {
			w.Link(fmt.Sprint("dead", i)).Heal()
		}
		cancel()
		for _, x := range dead {
			<-x.done
			wantErr(w.t, x.err, context.Canceled)
		}
		w.drained(&p.Consumer)
	})
}
