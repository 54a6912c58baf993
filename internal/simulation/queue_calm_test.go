package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/hook"
)

// queuePlay is producers and consumers of one queue, without any fault.
type queuePlay struct {
	simulation
	l    *coordtest.Ledger
	kind string
	one  bool // consumer: then the order must hold
	last map[int]int

	next   map[string]bool // marks that Acks have made, and that no handler has got
	most   map[int]int     // by value: MaxAttempts of an item with options
	buried map[int]bool    // by value: a handler has returned Bury
	letter map[int]bool    // by value: an item with options that was a dead letter

	due  map[int]time.Time // by value, in a DelayQueue
	came []moment          // deliveries
	off  []moment          // claims that ended with a delay, and the times until which it lasts
	dead []moment          // claims that ended with Bury, and the times before it

	redrives [][2]time.Time // begin and end

	keys map[string][]*keySpan // by the hash of the key
	tags map[string]string     // by the id of an item with a key: the name of the node that shows it
}

// keySpan is the time in which an item with a key was in the queue. to is zero while it is there.
type keySpan struct {
	id       string
	from, to time.Time
	until    int64 // of the key, or 0
}

// moment is a time in the life of an item. token is that of a claim.
type moment struct {
	v     int
	token int64
	at    time.Time
}

// simQueue is a queue of any kind.
type simQueue struct {
	*coord.Consumer[int]
	due     time.Time // of a DelayQueue: when the values of the latest put are due
	putAll  func(ctx context.Context, r *rand.Rand, vs ...int) ([]string, error)
	putWith func(ctx context.Context, r *rand.Rand, v int, o *coord.PutOptions) (string, error)
}

func newSimQueue(c *coord.Client, path, kind string, o coord.QueueOptions[int]) *simQueue {
	q := new(simQueue)
	switch kind {
	case "priority":
		p := coord.NewPriorityQueue(c, path, &o)
		q.Consumer = &p.Consumer
		q.putAll = func(ctx context.Context, r *rand.Rand, vs ...int) ([]string, error) {
			return p.PutAll(ctx, int64(r.IntN(6)), vs...)
		}
		q.putWith = func(ctx context.Context, r *rand.Rand, v int, o *coord.PutOptions) (string, error) {
			return p.PutWith(ctx, int64(r.IntN(6)), v, o)
		}
	case "delay":
		p := coord.NewDelayQueue(c, path, &o)
		q.Consumer = &p.Consumer
		q.putAll = func(ctx context.Context, r *rand.Rand, vs ...int) ([]string, error) {
			q.due = time.Now().Add(time.Duration(r.IntN(200)) * time.Millisecond)
			return p.PutAll(ctx, q.due, vs...)
		}
		q.putWith = func(ctx context.Context, r *rand.Rand, v int, o *coord.PutOptions) (string, error) {
			q.due = time.Now().Add(time.Duration(r.IntN(200)) * time.Millisecond)
			return p.PutWith(ctx, q.due, v, o)
		}
	default:
		switch kind {
		case "limited":
			o.MaxLen = simMaxLen
		case "dead letters":
			o.MaxAttempts = simAttempts
		}
		p := coord.NewQueue(c, path, &o)
		q.Consumer = &p.Consumer
		q.putAll = func(ctx context.Context, _ *rand.Rand, vs ...int) ([]string, error) {
			if len(vs) > 1 {
				return p.PutAll(ctx, vs...)
			}
			id, err := p.Put(ctx, vs[0])
			if err != nil {
				return nil, err // an uncertain Put returns an ID too
			}
			return []string{id}, nil
		}
		q.putWith = func(ctx context.Context, _ *rand.Rand, v int, o *coord.PutOptions) (string, error) {
			return p.PutWith(ctx, v, o)
		}
	}
	return q
}

const (
	simBucket    = 5 // items
	simProducers = 2
	simEach      = 15 // values of one producer
	simMaxLen    = 4  // of the limited queue
	simAttempts  = 2  // MaxAttempts of the queue with dead letters

	mostAttempts = 1000 // more than any item has
)

// produce puts values of its own: the actor times 1000, and counting.
func (x *queuePlay) produce(q *simQueue, actor int) {
	r := x.rng(uint64(actor))
	for n := 0; n < simEach; {
		vs := []int{actor*1000 + n}
		if r.IntN(4) == 0 {
			for i := range r.IntN(5) {
				if n+1+i < simEach {
					vs = append(vs, vs[0]+1+i)
				}
			}
		}
		n += len(vs)
		ids, err := q.putAll(context.Background(), r, vs...)
		for i, v := range vs {
			if i < len(ids) {
				x.l.Did(v, nil)
			} else {
				x.l.Did(v, err)
			}
		}
		if err != nil {
			x.t.Errorf("seed %d: put: %v", x.seed, err)
		}
		x.note("put")
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
	}
}

// consume takes until ctx ends, in all ways that there are.
func (x *queuePlay) consume(ctx context.Context, q *simQueue, actor int) {
	r := x.rng(uint64(actor))
	for ctx.Err() == nil {
		switch r.IntN(7) {
		case 6:
			x.handle(ctx, q, r)
		case 0:
			for it, err := range q.All(ctx) {
				if err != nil {
					x.t.Errorf("seed %d: all: %v", x.seed, err)
					return
				}
				x.work(r, it)
				if r.IntN(3) == 0 {
					break
				}
			}
		case 1:
			it, err := q.TryTake(ctx)
			switch {
			case err == nil:
				x.work(r, it)
			case errors.Is(err, coord.ErrEmpty):
				x.note("empty")
				time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
			case ctx.Err() == nil:
				x.t.Errorf("seed %d: trytake: %v", x.seed, err)
			}
		case 2:
			short, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(30))*time.Millisecond)
			ch := q.Items(short)
			if it, ok := <-ch; ok {
				x.work(r, it)
			}
			cancel()
			for it := range ch { // handed over in the same moment
				it.Release()
			}
		default:
			short, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(200))*time.Millisecond)
			it, err := q.Take(short)
			cancel()
			switch {
			case err == nil:
				x.work(r, it)
			case errors.Is(err, context.DeadlineExceeded):
				x.note("gave up")
			case ctx.Err() == nil:
				x.t.Errorf("seed %d: take: %v", x.seed, err)
			}
		}
	}
}

// took records a delivery, and checks the order.
func (x *queuePlay) took(it *coord.Item[int]) {
	x.l.Took(it)
	x.note("delivered")
	if it.Attempt > 1 {
		x.note("again")
	}
	if x.one && x.kind == "fifo" {
		x.mu.Lock()
		if from := it.Value / 1000; it.Value%1000 < x.last[from] {
			x.t.Errorf("seed %d: %d came after %d", x.seed, it.Value, x.last[from])
		} else {
			x.last[from] = it.Value % 1000
		}
		x.mu.Unlock()
	}
}

// handle takes items by Work for some time.
func (x *queuePlay) handle(ctx context.Context, q *simQueue, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+r.IntN(200))*time.Millisecond)
	defer cancel()
	n := 1
	if !x.one {
		n += r.IntN(3)
	}
	slow := time.Duration(r.IntN(8)) * time.Millisecond
	var mu sync.Mutex
	var done []*coord.Item[int]
	if err := q.Work(ctx, n, func(_ context.Context, it *coord.Item[int]) error {
		x.took(it)
		time.Sleep(slow)
		mu.Lock()
		defer mu.Unlock()
		done = append(done, it)
		return nil
	}); err != nil {
		x.t.Errorf("seed %d: work: %v", x.seed, err)
	}
	for _, it := range done {
		err := it.Ack() // the result of the Ack of Work
		if x.l.Ended(it, err); err != nil {
			x.t.Errorf("seed %d: ack by work: %v", x.seed, err)
			continue
		}
		x.note("ack")
	}
}

// work does something with an item.
func (x *queuePlay) work(r *rand.Rand, it *coord.Item[int]) {
	x.took(it)
	select {
	case <-time.After(time.Duration(r.IntN(15)) * time.Millisecond):
	case <-it.Done():
		x.note("loss")
	}
	err := it.Ack()
	x.l.Ended(it, err)
	if err != nil {
		x.t.Errorf("seed %d: ack: %v", x.seed, err)
		return
	}
	x.note("ack")
}

// run plays until all that was put has been acknowledged.
func (x *queuePlay) run() {
	const path = "/sim/q"
	x.l, x.last = coordtest.NewLedger(), make(map[int]int)
	x.st = memory.New(&memory.Options{SessionTimeout: 300 * time.Millisecond})
	consumers := 3
	if x.one {
		consumers = 1
	}
	if *simTrace {
		fmt.Println("seed", x.seed)
	}
	var all []*coord.Client
	var qs []*simQueue
	for i := range simProducers + consumers {
		l := x.st.Link(fmt.Sprint("client-", i))
		l.SetLatency(time.Duration(x.seed%3) * time.Millisecond)
		all = append(all, openQueues(x.t, l))
		qs = append(qs, newSimQueue(all[i], path, x.kind, coord.QueueOptions[int]{Prefetch: 1 + int(x.seed)%4}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var producers, rest sync.WaitGroup
	for i, q := range qs {
		if i < simProducers {
			producers.Go(func() { x.produce(q, i) })
			continue
		}
		rest.Go(func() { x.consume(ctx, q, i) })
		if !x.one {
			rest.Go(func() { x.consume(ctx, q, i+100) })
		}
	}
	producers.Wait()
	outside := openQueues(x.t, x.st)
	look := newSimQueue(outside, path, x.kind, coord.QueueOptions[int]{})
	for deadline := time.Now().Add(time.Minute); ; {
		n, err := look.Len(ctx)
		if err != nil {
			x.t.Fatal(err)
		}
		if n == 0 {
			break
		}
		if x.kind == "limited" && n > simMaxLen {
			x.t.Errorf("seed %d: %d items, the limit is %d", x.seed, n, simMaxLen)
		}
		if time.Now().After(deadline) {
			x.t.Errorf("seed %d: %d items are left that no consumer takes", x.seed, n)
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	cancel()
	rest.Wait()
	time.Sleep(time.Second) // of fake time, for sessions that have to expire
	synctest.Wait()
	x.bury(coord.NewQueue[int](outside, path+"/dead", nil))
	for _, wrong := range x.l.Check() {
		x.t.Errorf("seed %d: %s", x.seed, wrong)
	}
	for n, times := range x.l.Delivered {
		if times != 1 {
			x.t.Errorf("seed %d: %d was delivered %d times without any fault", x.seed, n, times)
		}
	}
	if _, err := look.TryTake(context.Background()); !errors.Is(err, coord.ErrEmpty) {
		x.t.Errorf("seed %d: %v", x.seed, err)
	}
	for _, dir := range coordtest.Children(x.t, x.st, path+"/items") {
		if left := coordtest.Children(x.t, x.st, path+"/items/"+dir); len(left) > 0 {
			x.t.Errorf("seed %d: left behind in %s: %v", x.seed, dir, left)
		}
	}
	if left := coordtest.Children(x.t, x.st, path+"/waiters"); len(left) > 0 {
		x.t.Errorf("seed %d: waiters left behind: %v", x.seed, left)
	}
	for _, c := range all {
		c.Close()
	}
}

// bury counts the dead letters as done: they must not have been acknowledged.
func (x *queuePlay) bury(dead *coord.Queue[int]) {
	for {
		it, err := dead.TryTake(context.Background())
		if errors.Is(err, coord.ErrEmpty) {
			return
		}
		if err != nil {
			x.t.Fatal(err)
		}
		if x.kind != "dead letters" {
			x.t.Errorf("seed %d: a dead letter: %d", x.seed, it.Value)
		}
		x.note("dead letter")
		x.l.Ended(it, it.Ack())
	}
}

func playQueue(t *testing.T, kind string, first, seeds uint64, one bool) map[string]int {
	count := make(map[string]int)
	for seed := first; seed < first+seeds && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			x := &queuePlay{simulation: simulation{t: t, seed: seed, count: count}, kind: kind, one: one}
			x.run()
		})
	}
	return count
}

func TestWithoutFaultsNothingIsDeliveredTwice(t *testing.T) {
	first, seeds, _ := simRange(40, 2_000)
	for _, run := range []struct {
		kind string
		one  bool
	}{{"fifo", true}, {"fifo", false}, {"priority", false}, {"delay", false}, {"limited", false}} {
		t.Run(fmt.Sprint(run.kind, ", one consumer: ", run.one), func(t *testing.T) {
			count := playQueue(t, run.kind, first, seeds, run.one)
			t.Logf("figure: queue without faults, %s, %d seeds: %v", run.kind, seeds, count)
			if count["delivered"] == 0 || count["delivered"] != count["ack"] {
				t.Errorf("%d delivered, %d acknowledged", count["delivered"], count["ack"])
			}
		})
	}
}

// openQueues opens a client whose queues have small buckets.
func openQueues(t *testing.T, b backend.Backend) *coord.Client {
	t.Helper()
	c, err := coord.Open(hook.With(t.Context(), hook.Hooks{BucketSize: simBucket}), b, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
