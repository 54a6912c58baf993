//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/zklog"
)

// queuePaths are the paths of the queues, by their workloads.
var queuePaths = map[string]string{"queue": queuePath, "priority": "/priorities", "delay": "/delays"}

const (
	priorityLimit  = 5           // MaxLen of the queue with priorities
	priorityClaims = time.Second // its ClaimTimeout
	priorityTries  = 3           // its MaxAttempts
	mostDelay      = 2 * time.Second

	poison = "-poison" // the end of values whose handlers always fail
)

// mostAttempts are the MaxAttempts of the queues, by their workloads.
var mostAttempts = map[string]int{"priority": priorityTries}

// priorities returns the queue with priorities, and one that does not wait for room.
func (x *client) priorities() (waits, fails *coord.PriorityQueue[string]) {
	o := coord.QueueOptions[string]{
		Codec: coord.Text(), MaxLen: priorityLimit, ClaimTimeout: priorityClaims, MaxAttempts: priorityTries, Prefetch: 3, FairEvery: 3,
	}
	waits = coord.NewPriorityQueue(x.c, queuePaths["priority"], &o)
	o.FailWhenFull = true
	return waits, coord.NewPriorityQueue(x.c, queuePaths["priority"], &o)
}

func (x *client) delays() *coord.DelayQueue[string] {
	return coord.NewDelayQueue(x.c, queuePaths["delay"], &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: 2})
}

// urge puts values with priorities. While the queue has MaxLen items, a put waits, and a tryput is
// refused. Some tryputs are of more values than there can be room for. Now and then urge puts dead
// letters back, or removes them.
func (x *client) urge(ctx context.Context, w *worker) {
	waits, fails := x.priorities()
	w.loop(ctx, 250*time.Millisecond, func(ctx context.Context) bool {
		if w.rand.IntN(10) == 0 {
			e := event{Work: "priority", Op: "dead"}
			if _, err := w.letters(ctx, waits, 2); err != nil && !expected(e, err) {
				x.rec.say(event{Kind: "told", Work: e.Work, Op: e.Op, Err: err.Error(), Odd: true})
			}
		}
		e, q, values := event{Work: "priority", Op: "put"}, waits, 1
		if w.rand.IntN(2) == 0 {
			e.Op, q = "tryput", fails
			if w.rand.IntN(8) == 0 && !x.finish.Load() {
				values = priorityLimit + 1
			}
		}
		var all []string
		for range values {
			v := w.unique()
			if w.rand.IntN(10) == 0 {
				v += poison
			}
			all = append(all, v)
		}
		e.Value = strings.Join(all, " ")
		kind, _ := w.one(ctx, e, 10*time.Second, func(ctx context.Context, e *event) (err error) {
			if priority := w.rand.Int64N(3); values == 1 {
				e.ID, err = q.Put(ctx, priority, e.Value)
			} else {
				var ids []string
				ids, err = q.PutAll(ctx, priority, all...)
				e.ID = strings.Join(ids, " ")
			}
			return err
		})
		return kind == "ok"
	})
}

// letters ends some dead letters of the queue with priorities, and returns how many it has found. It
// puts most of them back, but none when the client has to finish.
func (w *worker) letters(ctx context.Context, q *coord.PriorityQueue[string], most int) (found int, err error) {
	const work = "priority"
	for l, err := range q.Dead(ctx) {
		if err != nil {
			return found, err
		}
		// Another client can have ended the letter between the reads of its nodes.
		if l.Queue != "" && (l.Queue != queuePaths[work] || l.Attempts != priorityTries) {
			w.x.rec.say(event{Kind: "told", Work: work, Op: "dead", ID: l.ID, Err: fmt.Sprintf("the reason is %+v", l), Odd: true})
		}
		e := event{Work: work, Op: "redrive", ID: l.ID, Value: l.Value}
		end := func(ctx context.Context, _ *event) error {
			n, err := q.Redrive(ctx, l.ID)
			if err == nil && n != 1 {
				err = fmt.Errorf("%d items were put back, and there is no error", n)
			}
			return err
		}
		if w.x.finish.Load() || w.rand.IntN(3) == 0 {
			e.Op, end = "remove", func(ctx context.Context, _ *event) error { return q.Remove(ctx, l.ID) }
		}
		_, _ = w.one(ctx, e, limit, end)
		if found++; found == most {
			break
		}
	}
	return found, nil
}

// work takes items with priorities by Work until ctx ends. Work ends most of the claims. Some handlers
// fail, and some take longer than the claim lasts.
func (x *client) work(ctx context.Context, _ *worker) {
	const work = "priority"
	q, _ := x.priorities()
	x.handle(ctx, work, &q.Consumer, func(ctx context.Context, w *worker, it *coord.Item[string]) error {
		n, finish, failed := w.rand.IntN(20), x.finish.Load(), errors.New("not now")
		if n == 0 && !finish {
			time.Sleep(priorityClaims * 5 / 4) // longer than ClaimTimeout; the handler ignores its context
		}
		switch isPoison := strings.HasSuffix(it.Value, poison); {
		case !isPoison && n < 5:
			w.settle(ctx, work, it)
			return failed // Work ignores the result: the claim has ended
		case isPoison, n < 7 && !finish:
			return w.leave(work, it, failed)
		}
		return w.leave(work, it, nil)
	})
}

// serve takes items by Work until ctx ends, with rests: where many consumers compete for each item, few Acks claim the
// next one.
func (x *client) serve(ctx context.Context, w *worker) {
	const work = "queue"
	for ctx.Err() == nil {
		some, stop := context.WithTimeout(ctx, time.Second+time.Duration(w.rand.Int64N(int64(2*time.Second))))
		x.handle(some, work, &x.queue().Consumer, func(ctx context.Context, w *worker, it *coord.Item[string]) error {
			x.ahead.Add(-1)
			switch n := w.rand.IntN(20); {
			case n == 0:
				w.settle(ctx, work, it)
				return nil
			case n == 1 && !x.finish.Load():
				return w.leave(work, it, errors.New("not now"))
			}
			return w.leave(work, it, nil)
		})
		stop()
		w.rest(ctx, 2*time.Second)
	}
}

// handle handles items by Work until ctx ends.
func (x *client) handle(ctx context.Context, work string, q *coord.Consumer[string], do func(ctx context.Context, w *worker, it *coord.Item[string]) error) {
	err := q.Work(ctx, 2, func(ctx context.Context, it *coord.Item[string]) error {
		w := &worker{x: x, rand: rand.New(rand.NewPCG(uint64(x.rec.calls.Load()), uint64(x.spec.Number)))}
		w.took(ctx, work, it)
		w.pause(ctx, 5*time.Millisecond)
		return do(ctx, w, it)
	})
	if ctx.Err() == nil || err != nil && !errors.Is(err, coord.ErrClosed) {
		x.rec.say(event{Kind: "told", Work: work, Op: "work", Err: fmt.Sprint(err), Odd: true})
	}
}

// postpone puts values that are due later. The Num of a put is the delay.
func (x *client) postpone(ctx context.Context, w *worker) {
	q := x.delays()
	w.loop(ctx, 200*time.Millisecond, func(ctx context.Context) bool {
		d := time.Duration(w.rand.Int64N(int64(mostDelay)))
		e := event{Work: "delay", Op: "put", Value: w.unique(), Num: int64(d)}
		kind, _ := w.one(ctx, e, limit, func(ctx context.Context, e *event) (err error) {
			e.ID, err = q.PutAfter(ctx, d, e.Value)
			return err
		})
		return kind == "ok"
	})
}

// collect takes what is due until ctx ends. When the loop ends, what it claimed in advance is given
// back.
func (x *client) collect(ctx context.Context, w *worker) {
	const work = "delay"
	for ctx.Err() == nil {
		some, stop := context.WithTimeout(ctx, 3*time.Second)
		for it, err := range x.delays().All(some) {
			if err != nil {
				x.rec.say(event{Kind: "told", Work: work, Op: "all", Err: err.Error(), Odd: !errors.Is(err, coord.ErrClosed)})
				break
			}
			w.took(ctx, work, it)
			w.pause(ctx, 5*time.Millisecond)
			w.settle(ctx, work, it)
		}
		stop()
	}
}

// took records a delivery.
func (w *worker) took(ctx context.Context, work string, it *coord.Item[string]) {
	_, _ = w.one(ctx, event{Work: work, Op: "take"}, limit, func(_ context.Context, e *event) error {
		e.take(it)
		return nil
	})
}

func (e *event) take(it *coord.Item[string]) {
	e.ID, e.Value, e.Num, e.Token, e.Session, e.Old = it.ID, it.Value, int64(it.Attempt), it.Token(), it.Session(), it.Path()
}

// settle acknowledges most of the items, and gives the others back.
func (w *worker) settle(ctx context.Context, work string, it *coord.Item[string]) {
	e := event{Work: work, Op: "ack", ID: it.ID, Value: it.Value, Token: it.Token(), Session: it.Session(), Old: it.Path()}
	finish := it.Ack
	if !w.x.finish.Load() {
		switch w.rand.IntN(10) {
		case 0:
			e.Op, finish = "nack", func() error { return it.Nack(0) }
		case 1:
			e.Op, finish = "giveback", it.Release
		}
	}
	_, _ = w.one(ctx, e, limit, func(context.Context, *event) error { return finish() })
}

// leave is the end of a handler that returns failed and leaves the claim to Work. It records the
// result of the call by which Work ends the claim, which further calls return as well.
func (w *worker) leave(work string, it *coord.Item[string], failed error) error {
	e := event{Work: work, Op: "ack", ID: it.ID, Value: it.Value, Token: it.Token(), Session: it.Session(), Old: it.Path()}
	end := it.Ack
	if failed != nil {
		e.Op, end = "nack", func() error { return it.Nack(0) }
		if most := mostAttempts[work]; most == 0 || it.Attempt < most {
			e.Num = int64(retryDelay(it.Attempt))
		}
	}
	e = w.x.rec.begin(e)
	w.x.holds.Go(func() {
		<-it.Done()
		w.end(e, end())
	})
	return failed
}

// clockError is what the clock of the machine and the clock that all processes share may differ by
// in the time of a delay.
const clockError = 2 * time.Millisecond

// checkDelays finds items that were delivered before they were due. Due times are those of the service's clock, so the items that
// waited while that was set do not count.
func checkDelays(puts, takes, faults []*call) (wrong []string) {
	due, put := make(map[string]int64), make(map[string]int64)
	for _, c := range puts {
		due[c.Value], put[c.Value] = c.from+c.Num, c.from
	}
	for _, c := range takes {
		early := time.Duration(due[c.Value] - c.to)
		if c.outcome == "ok" && early > clockError && !during(faults, clockFaults, put[c.Value], c.to) {
			wrong = append(wrong, fmt.Sprintf("delivered %v before it was due: %v", early, c))
		}
	}
	return wrong
}

// isItem reports whether a path is that of an item of the queue of a workload.
func isItem(work, path string) bool {
	return strings.HasPrefix(path, queuePaths[work]+"/items/") && strings.Contains(path, "/i-")
}

// checkLimit finds a queue that was longer than its limit, by the servers' logs.
func (l *ledger) checkLimit() []string {
	if l.longest > priorityLimit {
		return []string{fmt.Sprintf("%d items in a queue of at most %d", l.longest, priorityLimit)}
	}
	return nil
}

func TestTheCheckOfDelaysFindsAnEarlyDelivery(t *testing.T) {
	delay := int64(time.Second)
	puts := made(call{event: event{Op: "put", Value: "v", Num: delay}, from: 5, to: 9})
	take := func(at int64) []*call {
		return made(call{event: event{Op: "take", Value: "v"}, from: at - 1, to: at})
	}
	set := func(from, to int64) []*call {
		return made(call{event: event{Work: "fault", Op: "clock set"}, from: from, to: to})
	}
	early := 4 + delay - int64(clockError)
	verdict(t, checkDelays(puts, take(5+delay), nil), "")
	verdict(t, checkDelays(puts, take(early), nil), "before it was due")
	verdict(t, checkDelays(puts, take(early), set(1, 5)), "")
	verdict(t, checkDelays(puts, take(early), set(early, forever)), "")
	verdict(t, checkDelays(puts, take(early), set(1, 4)), "before it was due")
	verdict(t, checkDelays(puts, take(early), set(early+1, forever)), "before it was due")
}

func TestTheCheckOfTheLimitCountsTheItems(t *testing.T) {
	at := func(n int) string { return fmt.Sprintf("%s/items/b-0-0/i-x%d-0-0000000000", queuePaths["priority"], n) }
	var log []zklog.Txn
	add := func(typ int32, path string) {
		log = append(log, zklog.Txn{Zxid: int64(len(log) + 1), Ops: []zklog.Op{{Type: typ, Path: path, Data: []byte(path)}}})
	}
	for n := range priorityLimit {
		add(zklog.Create, at(n))
	}
	add(zklog.Delete, at(0))
	add(zklog.Create, at(priorityLimit))
	add(zklog.Create, queuePaths["delay"]+"/items/b-0-0/i-y-0-0000000000")
	verdict(t, newLedger(log).checkLimit(), "")
	add(zklog.Create, at(priorityLimit+1))
	verdict(t, newLedger(log).checkLimit(), fmt.Sprintf("%d items in a queue", priorityLimit+1))
}

func TestTheCountOfAcksThatClaimKnowsThem(t *testing.T) {
	dead := strings.Replace(itemAt, "/items/", "/dead/items/", 1)
	for _, tc := range []struct {
		name string
		log  itemLog
		want int
	}{
		{"an Ack", itemLog{}.put().claim(1, 1).ack(1), 0},
		{"two claims", itemLog{}.and(opCreate(markAt(1), ""), opCreate(markAt(2), "")), 0},
		{"a burial", itemLog{}.put().claim(1, 1).bury(1), 0},
		{"a Redrive", itemLog{}.and(opDelete(dead), opCreate(itemAt, "v")), 0},
		{"an Ack and a claim", itemLog{}.and(opDelete(markAt(1)), opDelete(stateAt), opDelete(itemAt), opCreate(markAt(2), "")), 1},
	} {
		if n := newLedger(tc.log).nexts; n != tc.want {
			t.Errorf("%s: %d commits, want %d", tc.name, n, tc.want)
		}
	}
}

func TestTheQueueOfARunLosesNoItem(t *testing.T) {
	nexts, left := int64(0), 0
	processes := onMemory(t, func(ctx context.Context, x *client) {
		var all sync.WaitGroup
		for i, work := range []func(ctx context.Context, w *worker){x.producer, x.consumer, x.serve} {
			all.Go(func() { work(ctx, &worker{x: x, rand: rand.New(rand.NewPCG(x.spec.Seed, uint64(i)))}) })
		}
		all.Wait()
	}, func(ctx context.Context, all []*client) {
		for range int(limit / time.Second) {
			n, err := all[0].queue().Len(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			if left = n; n == 0 {
				break
			}
			time.Sleep(time.Second)
		}
		for _, x := range all {
			nexts += x.nexts.Load()
		}
	})
	checkOdd(t, processes)
	puts, takes, ends := callsOf(processes, "queue", "put"), callsOf(processes, "queue", "take"), callsOf(processes, "queue", "ack", "nack", "giveback")
	items, last := make(map[string]item), make(map[string]*call)
	for _, c := range takes {
		if c.outcome == "ok" && (last[c.Value] == nil || last[c.Value].Token < c.Token) {
			last[c.Value] = c
		}
	}
	for _, c := range puts {
		for _, v := range strings.Fields(c.Value) {
			if c.outcome == "ok" || last[v] != nil {
				items[v] = item{created: 1, deleted: 1}
			}
		}
	}
	for _, c := range ends { // nothing is left, so the last claim was acknowledged
		c.verdict(c.Op == "ack" && last[c.Value].Old == c.Old)
	}
	verdict(t, checkQueue(puts, takes, ends, items), "")
	t.Logf("figure: chaos of queue on memory: %d items, %d deliveries, %d commits acknowledged items and claimed the next ones", len(items), len(takes), nexts)
	if left > 0 || len(items) < 500 || nexts == 0 {
		t.Errorf("%d items are left of %d, %d commits acknowledged items and claimed the next ones", left, len(items), nexts)
	}
}
