//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// unique returns a value that no other worker writes.
func (w *worker) unique() string {
	return fmt.Sprintf("%s-%d-%d", w.x.spec.Name, w.x.rec.calls.Load(), w.rand.Uint32())
}

func (x *client) queue() *coord.Queue[string] {
	return coord.NewQueue(x.c, queuePath, &coord.QueueOptions[string]{Codec: coord.Text()})
}

// mostAhead limits the values that a client puts beyond the items that it takes. Without it
// the queue would grow on a slow machine for as long as the nemesis runs.
const mostAhead = 200

const backlog = 64 // values in one put

// producer puts values, mostly one at a time, and now and then more than the waiting consumers take at once.
func (x *client) producer(ctx context.Context, w *worker) {
	q := x.queue()
	w.loop(ctx, 150*time.Millisecond, func(ctx context.Context) bool {
		if x.ahead.Load() > mostAhead && !x.finish.Load() {
			return false
		}
		values := []string{w.unique()}
		more := 0
		switch w.rand.IntN(32) {
		case 0:
			more = w.rand.IntN(backlog)
		case 1, 2, 3:
			more = 1 + w.rand.IntN(2)
		}
		for range more {
			values = append(values, w.unique())
		}
		x.ahead.Add(int64(len(values)))
		e := event{Work: "queue", Op: "put", Value: strings.Join(values, " ")}
		kind, _ := w.one(ctx, e, limit, func(ctx context.Context, e *event) error {
			if len(values) == 1 {
				id, err := q.Put(ctx, values[0])
				e.ID = id
				return err
			}
			ids, err := q.PutAll(ctx, values...)
			e.ID = strings.Join(ids, " ")
			return err
		})
		return kind == "ok"
	})
}

// consumer takes items until ctx ends, and acknowledges most of them. Each consumer has a Queue of its
// own, and so all processes together more than there are slots: some wait for a slot.
func (x *client) consumer(ctx context.Context, w *worker) {
	q := x.queue()
	for ctx.Err() == nil {
		var it *coord.Item[string]
		_, _ = w.one(ctx, event{Work: "queue", Op: "take"}, 2*time.Second, func(ctx context.Context, e *event) (err error) {
			if it, err = q.Take(ctx); err == nil {
				e.take(it)
			}
			return err
		})
		if it == nil {
			continue
		}
		x.ahead.Add(-1)
		w.pause(ctx, 5*time.Millisecond)
		w.settle(ctx, "queue", it)
		w.rest(ctx, 200*time.Millisecond)
	}
}

// rest pauses unless the client has to finish.
func (w *worker) rest(ctx context.Context, mean time.Duration) {
	if !w.x.finish.Load() {
		w.pause(ctx, mean)
	}
}

// confirmed runs a read after a commit that changes nothing: the read then sees everything
// committed before it began. A Sync guarantees less: a leader that was deposed while it was
// stopped answers Sync until it notices.
func (x *client) confirmed(ctx context.Context) error {
	s, err := x.c.Session(ctx)
	if err != nil {
		return err
	}
	_, err = s.Commit(ctx, backend.Check(treePath, backend.AnyVersion))
	return unread(err)
}

// unread turns an uncertain outcome before a read into the definite result that nothing was
// read or changed.
func unread(err error) error {
	if errors.Is(err, coord.ErrUncertain) {
		return fmt.Errorf("not read (%v): %w", err, context.DeadlineExceeded)
	}
	return err
}

func (x *client) value(ctx context.Context, w *worker) {
	v := coord.NewValue(x.c, valuePath, &coord.ValueOptions[string]{Codec: coord.Text()})
	var known coord.Versioned[string]
	get := func(ctx context.Context, e *event) error {
		got, err := v.Get(ctx)
		if errors.Is(err, coord.ErrNotFound) {
			err, got = nil, coord.Versioned[string]{}
		}
		if err == nil {
			known, e.Value, e.Token = got, got.Value, got.Mzxid
		}
		return err
	}
	w.loop(ctx, 50*time.Millisecond, func(ctx context.Context) bool {
		e := event{Work: "value"}
		do := get
		switch n := w.rand.IntN(10); {
		case n < 3:
			e.Op = "get"
			do = func(ctx context.Context, e *event) error {
				if err := x.confirmed(ctx); err != nil {
					return err
				}
				return get(ctx, e)
			}
		case n < 5:
			e.Op = "syncget"
			do = func(ctx context.Context, e *event) error {
				s, err := x.c.Session(ctx)
				if err == nil {
					err = s.Sync(ctx, valuePath)
				}
				if err = unread(err); err != nil {
					return err
				}
				return get(ctx, e)
			}
		case n < 7:
			e.Op, e.Value = "set", w.unique()
			do = func(ctx context.Context, e *event) error {
				got, err := v.Set(ctx, e.Value)
				if err == nil {
					e.Token = got.Mzxid
				}
				if err == nil && got.Czxid > 0 { // else it was replaced before it could be read
					known = got
				}
				return err
			}
		default:
			e.Op, e.Value, e.Old = "cas", w.unique(), known.Value
			old := known
			do = func(ctx context.Context, e *event) error {
				got, err := v.CompareAndSet(ctx, old, e.Value)
				if err == nil {
					known, e.Token = got, got.Mzxid
				}
				return err
			}
		}
		kind, err := w.one(ctx, e, 10*time.Second, func(ctx context.Context, e *event) error {
			before, err := x.c.Session(ctx)
			if err != nil {
				return err
			}
			err = do(ctx, e)
			// A lost session does not come back, so this is the session that was used.
			if after, err := x.c.Session(ctx); err == nil && after.ID() == before.ID() {
				e.Session = after.ID()
			}
			return err
		})
		if errors.Is(err, coord.ErrConflict) {
			// Otherwise this worker would compare with outdated knowledge for ever.
			_ = get(ctx, &event{})
			return true
		}
		return kind == "ok"
	})
}

// numbersPerProcess makes the additions of each process unique: the delta is the number of
// the call times this constant, plus the number of the process.
const numbersPerProcess = 4096

func (x *client) counter(ctx context.Context, w *worker) {
	n := coord.NewCounter(x.c, counterPath)
	additions := int64(0)
	w.loop(ctx, 60*time.Millisecond, func(ctx context.Context) bool {
		if w.rand.IntN(3) == 0 {
			kind, _ := w.one(ctx, event{Work: "counter", Op: "get"}, 10*time.Second, func(ctx context.Context, e *event) (err error) {
				if err = x.confirmed(ctx); err == nil {
					e.Num, err = n.Get(ctx)
				}
				return err
			})
			return kind == "ok"
		}
		additions++
		delta := additions*numbersPerProcess + x.spec.Number
		kind, _ := w.one(ctx, event{Work: "counter", Op: "add", Token: delta}, 10*time.Second, func(ctx context.Context, e *event) (err error) {
			e.Num, err = n.Add(ctx, delta)
			return err
		})
		return kind == "ok"
	})
}

// churn changes a subtree at random.
func (x *client) churn(ctx context.Context, w *worker) {
	w.loop(ctx, 50*time.Millisecond, func(ctx context.Context) bool {
		s, err := x.c.Session(ctx)
		if err != nil {
			return false
		}
		p := fmt.Sprintf("%s/%d", treePath, w.rand.IntN(6))
		if w.rand.IntN(5) > 0 {
			p += fmt.Sprintf("/%d", w.rand.IntN(6))
		}
		e := event{Work: "cache", ID: p, Session: s.ID()}
		var op backend.Op
		_, there := x.cache.k.Get(p)
		switch n := w.rand.IntN(6); {
		case !there:
			e.Op, e.Value = "create", w.unique()
			op = backend.Create(p, []byte(e.Value), backend.Persistent)
			if n == 0 {
				op.Mode = backend.Ephemeral
			}
		case n < 3:
			e.Op, e.Value = "set", w.unique()
			op = backend.SetData(p, []byte(e.Value), backend.AnyVersion)
		default:
			e.Op = "delete"
			op = backend.Delete(p, backend.AnyVersion)
		}
		kind, _ := w.one(ctx, e, 10*time.Second, func(ctx context.Context, e *event) error {
			_, err := s.Commit(ctx, op)
			return err
		})
		return kind == "ok"
	})
}

// drain returns when the queues and the dead letters are empty and no record of a transaction is
// left. The time for that depends on the backlog and on the machine, so drain gives up when the
// backlog has not become smaller for limit.
func (x *client) drain(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stuck := time.AfterFunc(limit, cancel)
	defer stuck.Stop()
	priorities, _ := x.priorities()
	w := &worker{x: x, rand: rand.New(rand.NewPCG(x.spec.Seed, 200))}
	queues := []interface {
		Len(ctx context.Context) (int, error)
	}{x.queue(), priorities, x.delays()}
	co := coord.NewCoordinator[string](x.c, txnPath, nil)
	least := math.MaxInt
	for {
		s, err := x.c.Session(ctx)
		if err == nil {
			err = s.Sync(ctx, queuePath)
		}
		n := 0
		for _, q := range queues {
			if err == nil {
				var k int
				k, err = q.Len(ctx)
				n += k
			}
		}
		if err == nil { // behind the queue, from which they come
			var k int
			k, err = w.letters(ctx, priorities, math.MaxInt)
			n += k
		}
		var left []coord.ProposalStatus
		if err == nil {
			x.recover(ctx)
			left, err = co.List(ctx)
		}
		if err == nil && n == 0 && len(left) == 0 {
			return x.awaitAsked(ctx)
		}
		if err == nil && n+len(left) < least {
			least = n + len(left)
			stuck.Reset(limit)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d items, transactions %+v, %v", n, left, err)
		}
		select {
		case <-time.After(50 * time.Millisecond): // there is no signal for it
		case <-ctx.Done():
		}
	}
}
