package coord

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// QueueOptions may be nil. All clients of one queue should use the same.
type QueueOptions[T any] struct {
	// Codec turns values into the data of nodes and back. Default JSON.
	Codec Codec[T]

	// MaxLen is how many items the queue can hold; those that are claimed count
	// too. Zero means no limit. A Put beyond it waits. The limit is exact as long
	// as all clients set it. Each Put then counts the items, which costs one
	// request for some hundred items in the queue, and producers compete. So does
	// the wait: whatever happens in the queue, a claim too, wakes all producers that
	// wait, and each of them counts.
	MaxLen int

	// FailWhenFull makes Put return ErrFull instead of waiting.
	FailWhenFull bool

	// MaxAttempts is how often an item is taken before it is moved to the dead
	// letters. Zero means no limit.
	MaxAttempts int

	// DeadLetterPath is the path of the queue that gets what was taken too often, and
	// what cannot be decoded. The default is "<queue>/dead". It is a Queue, with
	// items that keep their id and bytes; their attempts are counted anew, and why
	// an item died is not stored. The path of the queue itself, or one
	// below its "items" or "waiters", is refused with ErrInvalid. While an item
	// cannot be moved, it stays where it is, is given to nobody, and does not hold
	// up the others.
	DeadLetterPath string

	// Prefetch is how many items All and Items claim at a time. The default is 1.
	// A prefetched item is claimed from then on: others do not get it, although
	// nobody works on it yet, and if the consumer dies, that was an attempt. When
	// the loop ends or the client closes it is given back, which is none; see All.
	Prefetch int
}

// A Queue holds values that any number of clients put in, and any number take
// out, in the order in which they were put (the queue recipe of the ZooKeeper
// recipe guide, with claims instead of deletions, and without the list of the
// whole queue). It is safe for concurrent use, and there is nothing to close. Make
// it once and share it: the callers of one Queue share what they watch.
//
// At least once: a consumer takes an item, works, and acknowledges it. If it dies
// in between, or its session is lost, the item goes to another one, with the next
// attempt number. Nothing that Put has reported is lost, and nothing comes again
// after an Ack that returned nil. Without faults nothing comes twice. For at most
// once, use Pop. An item that no caller has received is no attempt when the call that
// was to get it ends, or the client closes: it is given back first, as long as the
// service answers; Close waits two seconds at most for that.
//
// Order: values are taken in the order in which they were put, and those of one
// PutAll in their order; an item that is given back keeps its place. A single
// consumer thus sees them in order, apart from those that others had meanwhile.
// When several consumers race for the head, those who lose look a few items
// further, so an item can be taken before an older one.
//
// Waiting costs no requests, however long. A change wakes four of the clients that
// wait for an item, and a take at most four more, however many wait. Three clients
// that are dead, cut off or paused, or have a slow clock, delay nothing that another
// one could take. If the four that have waited longest are, what is put waits
// until the session of one of them has ended. (Producers that wait for room are
// all woken by each change, see MaxLen.)
//
// Cost, in requests: a Put 1, PutAll 1 for up to 128 items. Taking: a list of
// some hundred names, a claim, a read, an Ack; the list and the claim are shared
// by what is prefetched, and the Ack by Acks that are called at a time or with
// AckAll. Each bucket of some hundred items that are all claimed or put off costs a
// list more. The length of the queue does not matter; it can be about two million
// items.
//
// Layout: path is a container, items below it a persistent directory. In items,
// b-<key>-<n> is a bucket of 256 items, and at most one put more (up to 128 items) of
// each producer that puts at the same time; its key is 0, in a PriorityQueue
// the priority, in a DelayQueue the minute of the due time. In a bucket,
// i-<id>-<due>-<number> is an item, with the bytes of the codec and nothing else;
// s-<id> how often it was claimed; m-<id>-<uuid> its claim, which is ephemeral;
// d-<id>-<time> that it is put off. The node tally, in items, is made only after 2^31
// puts with a MaxLen. Clients that wait for an item stand in the
// container waiters, as _c_<uuid>-take-<number>. dead is the queue of the dead
// letters. All else is persistent, items too: the recipe guide's own, which are
// ephemeral, would be lost with the session of the client that put them. The
// directory items and its last bucket stay when the queue is empty. Children with
// other names are ignored. The queues of Curator and kazoo have another layout;
// they cannot take part. (The protocol is told at the top of the source file
// queue_engine.go.)
type Queue[T any] struct {
	Consumer[T]
}

// NewQueue returns the queue at path. It does no I/O; a bad path or option is
// reported by the first call.
func NewQueue[T any](c *Client, path string, o *QueueOptions[T]) *Queue[T] {
	return &Queue[T]{newConsumer(c, path, fifoQueue, o)}
}

// Put appends a value and returns its id, by which an Item tells it. It is applied
// once, whatever is lost on the way. Only when ctx ends, or the session is lost,
// before the outcome is known, the error matches ErrUncertain; the id is returned
// then too: the item that has it was put. With any other error it is empty.
//
// Errors: the context's; ErrFull; ErrTooLarge; ErrLimit when there are too many
// buckets; ErrInvalid from the codec; ErrDenied, ErrClosed, ErrBadPath.
func (q *Queue[T]) Put(ctx context.Context, v T) (id string, err error) {
	return q.putOne(ctx, 0, 0, v)
}

// PutAll appends values in order, many in one commit. It returns the ids of those
// that were put for certain: all, or those before the first that was not. If the
// error matches ErrUncertain, up to 128 more may have been put. Others' values
// can come in between.
func (q *Queue[T]) PutAll(ctx context.Context, vs ...T) (ids []string, err error) {
	return q.putAll(ctx, 0, 0, vs)
}

// newConsumer makes the engine.
func newConsumer[T any](c *Client, path string, kind queueKind, o *QueueOptions[T]) Consumer[T] {
	q := newQueue(c, path, kind)
	var opts QueueOptions[T]
	if o != nil {
		opts = *o
	}
	refuse := func(format string, args ...any) {
		if q.path.err == nil {
			q.path.err = fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
		}
	}
	switch {
	case opts.MaxLen < 0:
		refuse("MaxLen %d", opts.MaxLen)
	case opts.MaxAttempts < 0:
		refuse("MaxAttempts %d", opts.MaxAttempts)
	case opts.Prefetch < 0:
		refuse("Prefetch %d", opts.Prefetch)
	}
	q.maxLen, q.reject = opts.MaxLen, opts.FailWhenFull
	q.maxAttempts = opts.MaxAttempts
	if opts.DeadLetterPath == "" {
		opts.DeadLetterPath = deadPath(path)
	}
	q.dead = newQueue(c, opts.DeadLetterPath, fifoQueue)
	if q.path.err == nil && q.dead.path.err != nil {
		q.path.err = fmt.Errorf("dead letters: %w", q.dead.path.err)
	}
	switch {
	case q.dead.path.full == q.path.full:
		refuse("DeadLetterPath is the path of the queue itself")
	case within(q.dead.path.full, q):
		refuse("DeadLetterPath %q stands in the items or waiters of the queue", opts.DeadLetterPath)
	case within(q.path.full, q.dead):
		refuse("the queue stands in the items or waiters of its DeadLetterPath %q", opts.DeadLetterPath)
	}
	return Consumer[T]{q: q, codec: opts.Codec.orJSON(), prefetch: min(max(opts.Prefetch, 1), maxBatch)}
}

// within reports whether a queue at path would stand among the nodes of q.
func within(path string, q *queue) bool {
	return strings.HasPrefix(path+"/", q.items+"/") || strings.HasPrefix(path+"/", q.waiters+"/")
}

func (q *Consumer[T]) putOne(ctx context.Context, priority, due int64, v T) (string, error) {
	ids, n, err := q.putEach(ctx, "put", priority, due, []T{v})
	if n == 1 || isUncertain(err) {
		return ids[0], err
	}
	return "", err
}

func (q *Consumer[T]) putAll(ctx context.Context, priority, due int64, vs []T) ([]string, error) {
	ids, n, err := q.putEach(ctx, "putall", priority, due, vs)
	return ids[:n], err
}

// putEach returns the ids of all values, and how many were put for certain.
func (q *Consumer[T]) putEach(ctx context.Context, op string, priority, due int64, vs []T) (ids []string, n int, err error) {
	if err := q.q.path.check(op); err != nil {
		return nil, 0, err
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, 0, opError(op, q.q.path.full, err)
	}
	all := make([]parcel, len(vs))
	ids = make([]string, len(vs))
	for i, v := range vs {
		data, err := q.codec.encode(v)
		if err != nil {
			return nil, 0, opError(op, q.q.path.full, err)
		}
		ids[i] = q.q.c.newGUID(q.q.path.full)
		all[i] = parcel{ids[i], data}
	}
	trail := q.q.trail(op)
	n, err = q.q.put(ctx, trail, priority, due, all)
	err = opError(op, q.q.path.full, err)
	trail.over(ctx, err)
	if trail != nil && n > 0 {
		tell(ctx, q.q.c, trace.ItemsPut{Subject: trail.at(""), Items: ids[:n:n]})
	}
	return ids, n, err
}
