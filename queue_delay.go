package coord

import (
	"context"
	"fmt"
	"time"
)

// A DelayQueue is a Queue whose items cannot be taken before they are due. What is
// due is taken in the order of the due times, as far as the items that are due
// within one minute fit into one bucket of some hundred, and else by the minute.
// An item that is added later and is due sooner passes. All else that is said of
// Queue holds of it too.
//
// Due times are compared with the clocks of the clients that take, in
// milliseconds, and are rounded up to one: only a client whose clock is fast takes early.
//
// Each minute in which something is due has a node of its own: at most 10,000 such
// minutes can be in use at a time, less the further nodes that need more than some
// hundred items in one minute. Beyond that Put fails with ErrLimit, after it
// has looked for minutes that are empty: one request each, once a minute at most.
type DelayQueue[T any] struct {
	Consumer[T]
}

// NewDelayQueue returns the queue at path. It does no I/O; a bad path or option is
// reported by the first call.
func NewDelayQueue[T any](c *Client, path string, o *QueueOptions[T]) *DelayQueue[T] {
	return &DelayQueue[T]{newConsumer(c, path, delayQueue, o)}
}

// Put adds a value that is due at a time, which may have passed, rounded up to a
// millisecond. It is as Queue.Put else. A time after the year 9999 is ErrInvalid, and one
// before the year 0 counts as the beginning of that year.
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

// dueTime is the due time in milliseconds. What was due before the year 0 is due since
// then.
func (q *DelayQueue[T]) dueTime(op string, due time.Time) (int64, error) {
	first := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	switch {
	case due.Before(first):
		due = first // long before, the milliseconds would overflow
	case due.Year() > 9999:
		return 0, opError(op, q.q.path.full, fmt.Errorf("%w: due in the year %d, after 9999", ErrInvalid, due.Year()))
	}
	return milliseconds(due), nil
}

// milliseconds is the time as items bear it. It is rounded up: nothing may come early.
func milliseconds(t time.Time) int64 { return t.Add(time.Millisecond - 1).UnixMilli() }
