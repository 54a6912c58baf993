package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/internal/layout"
)

// A DelayQueue is a Queue whose items cannot be taken before they are due. In all other
// respects it behaves as a Queue.
//
// Items that are due are taken in the order of their due times. The order is coarser in two
// cases: by the minute, if the items of one minute do not fit into one bucket of some
// hundred; and for items that were put far ahead into a long queue (see the guide
// queues.md). An item that is added later but due sooner is taken first: at once by the
// queue value that has put it, and after a second at the latest by others.
//
// Due times are rounded up to a millisecond and compared with the clock of the service, if
// it has one (backend.Clock); so are the delays of Nack. The clocks of clients do not
// matter. No call takes an item early, also if the clock of the service is set back or
// another server takes over: the server that commits a claim (of a ZooKeeper ensemble, the
// leader) stamps it with its time, and the client gives the item back, which counts no
// attempt, if that time is before the due time.
//
// An idle consumer takes an item late by at most the sum of a millisecond, the time of a
// request, the time of the take, and 100 ms if the client last wrote some minutes ago. This
// holds while the speeds of the two clocks differ by at most 200 ppm. If the clock is set, or
// another server takes over, the client goes by its old estimate of the time until its next
// write or break of contact: then Take can be late by the difference, and Peek, Stats, PutAfter
// and the delay of Nack are wrong by it. A Take that waits already can be late by the difference
// after a write to another path, too. After a suspension of the client's machine, the
// client takes items late by that time until its next write or break of contact.
//
// If the service has no clock, each client uses its own clock: a client with a fast clock
// takes an item early. So do Peek and Stats of a client that may not write to its journal (a
// node below /_coord) and can neither put nor take; it logs that once for each session.
//
// A queue can have 10,000 nodes for minutes, which suffice for due times in the next ten
// years. Beyond that Put fails with ErrLimit if no node is empty.
type DelayQueue[T any] struct {
	Consumer[T]
}

// NewDelayQueue returns the queue at path. It does no I/O; a bad path or option is
// reported by the first call.
func NewDelayQueue[T any](c *Client, path string, o *QueueOptions[T]) *DelayQueue[T] {
	q := &DelayQueue[T]{newConsumer(c, path, layout.KindDelayQueue, o)}
	q.q.Show(&q.Consumer)
	return q
}

// Put adds a value that is due when the clock of the service shows the given time,
// rounded up to a millisecond; the time may be in the past. Otherwise it is as
// Queue.Put. A time after the year 9999 is refused with ErrInvalid, and a time before
// the year 0 counts as the beginning of that year. A producer whose clock may be wrong
// uses PutAfter.
func (q *DelayQueue[T]) Put(ctx context.Context, due time.Time, v T) (id string, err error) {
	return q.PutWith(ctx, due, v, nil)
}

// PutWith is Put with options of the item, as Queue.PutWith.
func (q *DelayQueue[T]) PutWith(ctx context.Context, due time.Time, v T, o *PutOptions) (id string, err error) {
	at, err := q.q.DueAt("put", due)
	if err != nil {
		return "", err
	}
	return q.putWith(ctx, 0, at, v, o)
}

// PutOnce is PutWith with a Key, as Queue.PutOnce. The key is unique in the queue, whatever the due time.
func (q *DelayQueue[T]) PutOnce(ctx context.Context, due time.Time, key string, v T) (id string, put bool, err error) {
	at, err := q.q.DueAt("putonce", due)
	if err != nil {
		return "", false, err
	}
	return q.q.PutOnce(ctx, 0, at, key, q.encoding(v))
}

// PutAll adds values that are due at the same time, as Queue.PutAll does.
func (q *DelayQueue[T]) PutAll(ctx context.Context, due time.Time, vs ...T) (ids []string, err error) {
	at, err := q.q.DueAt("putall", due)
	if err != nil {
		return nil, err
	}
	return q.putAll(ctx, 0, at, vs)
}

// PutAfter adds a value that is due when d has passed since the call, by the clock of
// the service: never earlier, and later by at most the uncertainty of the client's
// estimate of that clock. If that clock was set since the client's last write, both are wrong
// by the difference, see DelayQueue. The clock of this process does not matter. If d
// is not positive, the item is due within that uncertainty. The first PutAfter on a
// session costs one request more. In all else it is as Put.
func (q *DelayQueue[T]) PutAfter(ctx context.Context, d time.Duration, v T) (id string, err error) {
	return q.PutAfterWith(ctx, d, v, nil)
}

// PutAfterWith is PutAfter with options of the item, as Queue.PutWith.
func (q *DelayQueue[T]) PutAfterWith(ctx context.Context, d time.Duration, v T, o *PutOptions) (id string, err error) {
	due, err := q.q.DueAfter(ctx, d, o.engine())
	if err != nil {
		return "", err
	}
	return q.putWith(ctx, 0, due, v, o)
}

// PutOp is a Put as a part of a Txn; see Queue.PutOp.
func (q *DelayQueue[T]) PutOp(due time.Time, v T) TxnOp {
	return q.PutOpWith(due, v, nil)
}

// PutOpWith is PutOp with options of the item.
func (q *DelayQueue[T]) PutOpWith(due time.Time, v T, o *PutOptions) TxnOp {
	return TxnOp{q.q.DuePutOp(due, o.engine(), q.encoding(v))}
}
