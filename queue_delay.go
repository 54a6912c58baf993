package coord

import (
	"context"
	"fmt"
	"time"
)

// A DelayQueue is a Queue whose items cannot be taken before they are due. Items
// that are due are taken in the order of their due times, as far as the items of
// one minute fit into one bucket of some hundred; beyond that the order is by the
// minute. An item that is added later but due sooner is taken first. In all other
// respects a DelayQueue behaves as a Queue.
//
// Due times are rounded up to a millisecond and compared with the clocks of the
// clients that take. So only a client whose clock is fast takes an item early.
//
// Each minute in which an item is due has a node of its own. At most 10,000 such
// minutes can be in use at a time, less the additional nodes of minutes with more
// than some hundred items. Beyond that Put looks for empty minutes, which costs one
// request each, and if it finds none it fails with ErrLimit. A client that found
// none looks again after a minute at the earliest.
type DelayQueue[T any] struct {
	Consumer[T]
}

// NewDelayQueue returns the queue at path. It does no I/O; a bad path or option is
// reported by the first call.
func NewDelayQueue[T any](c *Client, path string, o *QueueOptions[T]) *DelayQueue[T] {
	return &DelayQueue[T]{newConsumer(c, path, delayQueue, o)}
}

// Put adds a value that is due at the given time, rounded up to a millisecond; the
// time may be in the past. Otherwise it is as Queue.Put. A time after the year 9999
// is refused with ErrInvalid, and a time before the year 0 counts as the beginning
// of that year.
func (q *DelayQueue[T]) Put(ctx context.Context, due time.Time, v T) (id string, err error) {
	at, err := q.dueTime("put", due)
	if err != nil {
		return "", err
	}
	return q.putOne(ctx, 0, at, v)
}

// PutAll adds values that are due at the same time, as Queue.PutAll does.
func (q *DelayQueue[T]) PutAll(ctx context.Context, due time.Time, vs ...T) (ids []string, err error) {
	at, err := q.dueTime("putall", due)
	if err != nil {
		return nil, err
	}
	return q.putAll(ctx, 0, at, vs)
}

// dueTime returns the due time in milliseconds. A time before the year 0 counts as
// the beginning of that year.
func (q *DelayQueue[T]) dueTime(op string, due time.Time) (int64, error) {
	first := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	switch {
	case due.Before(first):
		due = first // of a time long before, the milliseconds would overflow
	case due.Year() > 9999:
		return 0, opError(op, q.q.path.full, fmt.Errorf("%w: due in the year %d, after 9999", ErrInvalid, due.Year()))
	}
	return milliseconds(due), nil
}

// milliseconds returns t as items store it. It rounds up, because no item may be
// taken early.
func milliseconds(t time.Time) int64 { return t.Add(time.Millisecond - 1).UnixMilli() }
