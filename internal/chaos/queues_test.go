//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/zklog"
)

// queuePaths are the paths of the queues, by their workloads.
var queuePaths = map[string]string{"queue": queuePath, "priority": "/priorities", "delay": "/delays"}

const (
	priorityLimit  = 20          // MaxLen of the queue with priorities
	priorityClaims = time.Second // its ClaimTimeout
	mostDelay      = 2 * time.Second
)

func (x *client) priorities() *coord.PriorityQueue[string] {
	return coord.NewPriorityQueue(x.c, queuePaths["priority"], &coord.QueueOptions[string]{
		Codec: coord.Text(), MaxLen: priorityLimit, ClaimTimeout: priorityClaims,
	})
}

func (x *client) delays() *coord.DelayQueue[string] {
	return coord.NewDelayQueue(x.c, queuePaths["delay"], &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: 2})
}

// urge puts values with priorities. It waits while the queue has MaxLen items.
func (x *client) urge(ctx context.Context, w *worker) {
	q := x.priorities()
	w.loop(ctx, 150*time.Millisecond, func(ctx context.Context) bool {
		e := event{Work: "priority", Op: "put", Value: w.unique()}
		kind, _ := w.one(ctx, e, 10*time.Second, func(ctx context.Context, e *event) (err error) {
			e.ID, err = q.Put(ctx, w.rand.Int64N(3), e.Value)
			return err
		})
		return kind == "ok"
	})
}

// work takes items with priorities by Work until ctx ends. Some handlers fail, and some take longer
// than the claim lasts.
func (x *client) work(ctx context.Context, _ *worker) {
	const work = "priority"
	err := x.priorities().Work(ctx, 2, func(ctx context.Context, it *coord.Item[string]) error {
		w := &worker{x: x, rand: rand.New(rand.NewPCG(uint64(x.rec.calls.Load()), uint64(x.spec.Number)))}
		w.took(ctx, work, it)
		w.pause(ctx, 5*time.Millisecond)
		if !x.finish.Load() {
			switch w.rand.IntN(20) {
			case 0:
				time.Sleep(priorityClaims * 5 / 4) // whatever the context says
			case 1:
				return errors.New("not now")
			}
		}
		w.settle(ctx, work, it)
		return nil // no matter what: the claim has ended
	})
	if err != nil && !errors.Is(err, coord.ErrClosed) {
		x.rec.say(event{Kind: "told", Work: work, Op: "work", Err: err.Error(), Odd: true})
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

// clockError is what the clock of the machine and the clock that all processes share may differ by
// in the time of a delay.
const clockError = 2 * time.Millisecond

// checkDelays finds items that were delivered before they were due.
func checkDelays(puts, takes []*call) (wrong []string) {
	due := make(map[string]int64)
	for _, c := range puts {
		due[c.Value] = c.from + c.Num
	}
	for _, c := range takes {
		if early := time.Duration(due[c.Value] - c.to); c.outcome == "ok" && early > clockError {
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
	verdict(t, checkDelays(puts, take(5+delay)), "")
	verdict(t, checkDelays(puts, take(4+delay-int64(clockError))), "before it was due")
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
