package coord

import (
	"context"
	"fmt"
	"time"
)

// A DelayQueue is a Queue whose items cannot be taken before they are due. Items
// that are due are taken in the order of their due times, as far as the items of
// one minute fit into one bucket of some hundred; beyond that the order is by the
// minute, or as said below. An item that is added later but due sooner is taken first: at once by the queue
// value that has put it, and after a second at the latest by others, see Queue. In all
// other respects a DelayQueue behaves as a Queue.
//
// Due times are rounded up to a millisecond and compared with the clock of the
// service, if it has one (backend.Clock); so are the delays of Nack. The clocks of
// the clients can be wrong by any time. A client keeps an interval that contains the
// time of the service, learned from its own writes: no wider than a millisecond, plus
// the time that a request takes, plus 100 ms if the latest of these writes was some
// minutes ago. An item is never taken early, and an idle consumer takes it late by at
// most the width of that interval, and the time that the take itself takes.
//
// This holds while the speeds of the two clocks differ by at most 200 ppm. If the
// clock of the service is set, or its server is replaced by one with another clock,
// the time after that counts. A client notices a replaced server when its contact
// breaks, and a clock that was set with its next write; until then it goes by the time
// that it knew. If a client's machine is suspended, its items are late by that time
// until its next write or break of contact.
//
// Learning the time costs no request as a rule: puts, takes, Acks and the start of a
// wait are such writes. If the time is not known, or no longer known well, and an item
// that may be due depends on it, it costs one small write. (On a new session that
// write needs a node, which a put or a take would make later.) This is the case for a
// TryTake or a Peek on a new session that meets an item that is put off, for a first
// Take that meets one that is due by the client's clock, for a first PutAfter, after a
// break of contact, and at the end of a wait of more than four minutes, where it costs
// a list as well. A client that the service does not let write to its journal uses its
// own clock, and logs that once for each session.
//
// If the service has no clock of its own, due times are compared with the clocks of
// the clients. Then a client whose clock is fast takes an item early, and one whose
// clock is slow takes it late.
//
// Each minute in which an item is due has a node of its own, and one more for each some hundred
// items. While a queue has 4,000 such nodes, an item that is put more than a day before it
// is due shares a node with the others of its hour, and more than thirty days before, with
// those of its day. So the 10,000 nodes that a queue can have suffice for due times in the
// next ten years. Of two items that wait although both are due, one from such a node can be taken before
// one that was due earlier. From the beginning of its hour or day on, such a node is part
// of each list that a consumer makes: with some ten thousand items in a day, some forty
// requests more. (Clients of earlier versions find these items too, but do not put so.)
//
// Beyond 10,000 nodes Put looks for empty ones, which costs one request each, and if it
// finds none it fails with ErrLimit. A client that found none looks again after a minute at
// the earliest. A Put for a minute without a node costs its client a list of the minutes,
// and a client that waits two small requests, if no earlier item is due; while one is, it
// costs that client a list too.
type DelayQueue[T any] struct {
	Consumer[T]
}

// NewDelayQueue returns the queue at path. It does no I/O; a bad path or option is
// reported by the first call.
func NewDelayQueue[T any](c *Client, path string, o *QueueOptions[T]) *DelayQueue[T] {
	q := &DelayQueue[T]{newConsumer(c, path, delayQueue, o)}
	q.show()
	return q
}

// Put adds a value that is due when the clock of the service shows the given time,
// rounded up to a millisecond; the time may be in the past. Otherwise it is as
// Queue.Put. A time after the year 9999 is refused with ErrInvalid, and a time before
// the year 0 counts as the beginning of that year. A producer whose clock may be wrong
// uses PutAfter.
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

// PutAfter adds a value that is due when d has passed since the call, by the clock of
// the service: never earlier, and later by at most the width of the interval that the
// client knows of the service's time, see DelayQueue. The clock of this process does
// not matter. If d is not positive, the item is due within that interval. The first
// PutAfter on a session costs one request more. Otherwise it is as Put.
func (q *DelayQueue[T]) PutAfter(ctx context.Context, d time.Duration, v T) (id string, err error) {
	if err := q.q.path.check("put"); err != nil {
		return "", err
	}
	now, err := onSession(ctx, q.q.c, func(s *session) (moment, error) { return s.learn(ctx) })
	if err != nil {
		return "", opError("put", q.q.path.full, err)
	}
	return q.putOne(ctx, 0, now.after(d), v)
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
