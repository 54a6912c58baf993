package coord

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/hook"
	"github.com/go-coord/coord/trace"
)

// QueueOptions may be nil. All clients of one queue should use the same options.
type QueueOptions[T any] struct {
	// Codec turns values into the data of nodes and back. The default is JSON.
	Codec Codec[T]

	// MaxLen is the maximum number of items in the queue, including claimed items.
	// Zero means no limit. A Put beyond the limit waits. The limit is exact as long
	// as all clients set it.
	//
	// Two nodes count the items, so a Put costs the same however long the queue is:
	// one request if no other client has put in the meantime, else three. A Put that
	// finds the queue full costs some more, and a list of the queue; of a long queue
	// only now and then, about one request for each such Put. An item that leaves the queue wakes
	// two of the clients that wait for room, and a Put at most two more, however many
	// wait. One of these two can be dead, cut off or paused without delaying another.
	//
	// Consumers count the items that they delete whether they set MaxLen or not. If
	// clients without MaxLen put, if another program deletes items or the nodes that
	// count, or if a queue gets its first MaxLen while items are claimed, the count is
	// wrong. Then the queue can be longer than MaxLen, or seem full, until a
	// Put that finds it full lists the items and corrects the count. A Put that waits
	// does so again when items have left uncounted, at the latest when the last item
	// of its list is gone. Dead letters that a queue receives are neither limited nor
	// counted, but they count when they leave it: give a queue that receives them no MaxLen.
	//
	// A handler that puts into the queue from which it takes waits for room that only a
	// handler can make: when the queue is full and all of them put, they wait for ever.
	MaxLen int

	// FailWhenFull makes Put return ErrFull instead of waiting.
	FailWhenFull bool

	// MaxAttempts is the number of times that an item is taken before it is moved
	// to the dead letters. Zero means no limit.
	MaxAttempts int

	// DeadLetterPath is the path of the queue that receives the items that were
	// taken too often and the items that cannot be decoded. The default is
	// "<queue>/dead". It is a Queue. Its items keep their id and bytes; their
	// attempts are counted anew. The reason of the move is stored beside the item: Dead
	// shows it, and Redrive puts the item back.
	//
	// The path of the queue itself, or a path at or below its "items", "waiters" or
	// "producers",
	// is refused with ErrInvalid. While an item cannot be moved, it stays where it
	// is, is delivered to no consumer, and does not delay the other items.
	//
	// A queue whose path is so long that the default exceeds the limit of a path is
	// refused with ErrBadPath until it gets a DeadLetterPath.
	DeadLetterPath string

	// Prefetch is the number of items that All and Items claim at a time, at most
	// 128. (Below a very long path fewer fit into a request.) The default is 1.
	// A prefetched item is claimed at once: other consumers do not
	// get it, although no work on it has begun, and if the consumer dies, that
	// counts as an attempt. When the loop ends or the client closes, the item is
	// given back, which does not count as an attempt; see All.
	//
	// An item that was taken before is claimed alone. So an item that kills its
	// consumers takes no prefetched item along to the dead letters: after the first
	// death each of them is claimed by itself. If MaxAttempts is 1, that is too late, so
	// Prefetch has no effect.
	Prefetch int

	// ClaimTimeout is the time within which a consumer must end the claim on an item.
	// Zero means no limit but the session. It is for consumers that hang while their
	// session lives.
	//
	// When the time has passed, the hold of the item ends, with an error that matches
	// ErrLost and ErrClaimTimeout. Once Done is closed, the contexts of the item end,
	// and the item is given back as a failed attempt, as by Nack(0): it goes to
	// another consumer or, if it was taken as often as MaxAttempts allows, to the dead
	// letters. Writes under the Guard of the item fail before another consumer gets it.
	// The consumer is not stopped otherwise, and must obey its context. If the service
	// cannot be reached, or refuses, the item stays claimed, and the client retries for
	// as long as its session lives.
	//
	// The time is measured by the monotonic clock of the process, from the moment in
	// which the consumer receives the item. Ack, Nack and Release compare it with the
	// clock when they are called. If it has passed, they do nothing and return the loss,
	// also if the process was paused and nothing else has noticed. An Ack that began in
	// time counts, however long it takes.
	//
	// An item that was claimed and read but is not received within the time, such as a
	// prefetched item behind one whose processing hangs, is given back, which does not
	// count as an attempt.
	ClaimTimeout time.Duration

	// DrainTimeout is the time that the handlers of Work have to return after its ctx
	// has ended, or after the failure for which Work ends. Zero means no limit.
	//
	// When the time has passed, the items that handlers still work on are given back,
	// which does not count as an attempt. First the contexts of these handlers end, with
	// the cause ErrReleased; what they return changes nothing. Work still waits until
	// they have returned. If one has done its work and returns nil then, which is
	// logged, the item is delivered again all the same. Choose it shorter than the time
	// between SIGTERM and SIGKILL.
	DrainTimeout time.Duration
}

// A Queue holds values that any number of clients put in and any number of clients
// take out, in the order of the puts. It is the queue recipe of the ZooKeeper
// recipe guide, with claims instead of deletions, and without a list of the whole
// queue. A Queue is safe for concurrent use and needs no closing. Make one and
// share it: the callers of one Queue share its watches.
//
// Delivery is at least once. A consumer takes an item, processes it, and
// acknowledges it. If the consumer dies in between, or its session is lost, the
// item goes to another consumer with the next attempt number. An item that Put has
// reported is never lost, and no item is delivered again after an Ack that returned
// nil. Without faults no item is delivered twice. For at-most-once delivery use
// Pop. If the call that was to receive an item ends, or the client closes, before a
// caller has received the item, that does not count as an attempt: the item is
// given back first, as long as the service answers. Close waits at most two seconds
// for this.
//
// Order: values are taken in the order in which they were put, and the values of
// one PutAll in their order; an item that is given back keeps its place. So a
// single consumer sees the values in order, except those that other consumers held
// in the meantime: a client takes up to 32 times by one list, which is at most a second
// old, before it sees what others have given back. When several consumers race for the
// head, the losers look a few items further, so an item can be taken before an older one.
//
// Waiting costs no requests, however long it lasts. A change wakes six of the clients
// that wait for an item, and a take wakes at most two more, however many wait. Up to
// five of these six can be dead, cut off or paused without delaying anything that
// another client could take. (If the service has no clock, see DelayQueue, that
// includes clients with a slow clock.) If all six are in such a state, new items wait
// until the session of one of them has ended. Clients that are in such a state do not
// take the places of others, however many they are. Clients that wait for room do so in
// the same way; see MaxLen.
//
// In this, each Queue value counts as a client of its own. If six values of one process wait, they
// can be the six that are woken, so share one value in a process. Then its death delays no other.
//
// Cost, in round trips: Put 1; PutAll 1 for up to 128 items; Take 1, for a claim and a
// read at the same time, and 1 for an Ack. Once in 32 takes, or in a second, a list of
// some hundred names is added, and one read for an item that was taken before. (A
// PriorityQueue lists for each Take, behind a Sync, so that is 3.) Pop 1, if it follows
// another. Prefetched items share the claim and the read. Acks that are called
// concurrently or with AckAll share a request.
// Each bucket of some hundred items that are all claimed or put off costs one more
// list. The length of the queue does not matter; it can be about two million items.
//
// Layout: path is a container, and the directory items below it is persistent. In
// items, b-<key>-<n> is a bucket of 256 items, plus at most one put (up to 128
// items) for each producer that puts at the same time. The key of a bucket is 0 in
// a Queue, the priority in a PriorityQueue, and in a DelayQueue the minute of the due
// time, or its hour or day. (There items has the key of the latest bucket as its data.) In a bucket, i-<id>-<due>-<number> is an item, whose data is the
// bytes of the codec and nothing else; s-<id> counts its claims; m-<id>-<uuid> is
// its claim, which is ephemeral; d-<id>-<time> means that it is put off. In a queue of
// dead letters r-<id> has, in JSON, the reason why the item was moved there ("reason",
// "error"), "attempts", the "session" of the last consumer, and the "queue", "priority"
// and "due" that a Redrive needs; it goes with the item. In items, the nodes in and out
// count the items of a queue with MaxLen: in contains the number of items that were put,
// and the version of out is the number that were deleted, both modulo 2^32. The node
// tally, in items, is made only after 2^31 new buckets of priorities or minutes. Clients
// that wait for an item have a node in the container waiters: slot-<i>, from 0 to 5, or
// _c_<uuid>-take-<number>; clients that wait for room have one in the container
// producers: slot-0, slot-1 or _c_<uuid>-put-<number>. dead is
// the queue of the dead letters. All other nodes are persistent. So are items: the
// ephemeral items of the recipe guide would be lost with the session of the client
// that put them. The directory items and its last bucket remain when the queue is
// empty. Children with other names are ignored. The queues of Curator and kazoo
// have another layout, so their clients cannot take part. (The source file
// queue_engine.go describes the protocol.)
type Queue[T any] struct {
	Consumer[T]
}

// NewQueue returns the queue at path. It does no I/O; a bad path or option is
// reported by the first call.
func NewQueue[T any](c *Client, path string, o *QueueOptions[T]) *Queue[T] {
	q := &Queue[T]{newConsumer(c, path, fifoQueue, o)}
	q.show()
	return q
}

// Put appends a value and returns the id of its item, which Item.ID reports. The
// value is put exactly once, even if replies are lost. Only if ctx ends, or the
// session is lost, before the outcome is known, does the error match ErrUncertain.
// The id is returned in that case too: the value was put if and only if an item
// with this id appears. With any other error the id is empty.
//
// Errors: the context's; ErrFull; ErrTooLarge; ErrLimit when there are too many
// buckets; ErrInvalid from the codec; ErrExists, if the Put waits for room and another program has
// made persistent nodes with the names of all slots; ErrDenied, ErrClosed, ErrBadPath.
func (q *Queue[T]) Put(ctx context.Context, v T) (id string, err error) {
	return q.putOne(ctx, 0, 0, v)
}

// PutAll appends values in order, many in one commit. It returns the ids of the
// values that were certainly put: all of them, or those before the first failure.
// If the error matches ErrUncertain, up to 128 more may have been put. Values of
// other clients can come in between.
func (q *Queue[T]) PutAll(ctx context.Context, vs ...T) (ids []string, err error) {
	return q.putAll(ctx, 0, 0, vs)
}

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
	case opts.ClaimTimeout < 0:
		refuse("ClaimTimeout %v", opts.ClaimTimeout)
	case opts.DrainTimeout < 0:
		refuse("DrainTimeout %v", opts.DrainTimeout)
	case opts.Prefetch < 0:
		refuse("Prefetch %d", opts.Prefetch)
	case opts.Prefetch > maxBatch:
		refuse("Prefetch %d, limit %d", opts.Prefetch, maxBatch)
	}
	q.maxLen, q.reject = opts.MaxLen, opts.FailWhenFull
	q.maxAttempts, q.claimTimeout = opts.MaxAttempts, opts.ClaimTimeout
	deadLetters := "DeadLetterPath"
	if opts.DeadLetterPath == "" {
		deadLetters = "no DeadLetterPath is set, and the default is not valid"
		opts.DeadLetterPath = deadPath(path)
	}
	q.dead = newQueue(c, opts.DeadLetterPath, fifoQueue)
	if q.path.err == nil && q.dead.path.err != nil {
		q.path.err = fmt.Errorf("%s: %w", deadLetters, q.dead.path.err)
	}
	switch {
	case q.dead.path.full == q.path.full:
		refuse("DeadLetterPath is the path of the queue itself")
	case within(q.dead.path.full, q):
		refuse("DeadLetterPath %q stands in the items, waiters or producers of the queue", opts.DeadLetterPath)
	case within(q.path.full, q.dead):
		refuse("the queue stands in the items, waiters or producers of its DeadLetterPath %q", opts.DeadLetterPath)
	}
	return Consumer[T]{q: q, codec: opts.Codec.orJSON(), prefetch: max(opts.Prefetch, 1), drain: opts.DrainTimeout}
}

// show shows the inside of the queue to the tests.
func (q *Consumer[T]) show() {
	e := q.q
	if e.c.hooks.Queue == nil {
		return
	}
	e.c.hooks.Queue(q, hook.Queue{
		BucketSize: &e.size, DeadBucketSize: &e.dead.size, BucketLimit: &e.most,
		AcksWaiting: func() (n int) {
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, line := range e.acks {
				n += len(line.waiting)
			}
			return n
		},
		AckLines: func() int {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.acks)
		},
		Rivals: func() int {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.rivals
		},
		Feeding: func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.feeding
		},
	})
}

// within reports whether a queue at path would stand among the nodes of q.
func within(path string, q *queue) bool {
	return strings.HasPrefix(path+"/", q.items+"/") || strings.HasPrefix(path+"/", q.waiters.g.dir+"/") || strings.HasPrefix(path+"/", q.producers.g.dir+"/")
}

func (q *Consumer[T]) putOne(ctx context.Context, priority, due int64, v T) (string, error) {
	ids, n, err := q.putEach(ctx, "put", priority, due, []T{v})
	if n == 1 || len(ids) > 0 && isUncertain(err) { // the error of a codec can match it
		return ids[0], err
	}
	return "", err
}

func (q *Consumer[T]) putAll(ctx context.Context, priority, due int64, vs []T) ([]string, error) {
	ids, n, err := q.putEach(ctx, "putall", priority, due, vs)
	return ids[:n], err
}

// putEach returns the ids of all values and the number of values that were
// certainly put.
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
		all[i] = parcel{id: ids[i], data: data}
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

// A PriorityQueue is a Queue whose items are taken by priority, the lowest number
// first, and items of one priority in the order in which they were put (the
// priority queue of the ZooKeeper recipe guide). In all other respects it behaves
// as a Queue.
//
// An item with a lower number is taken before one with a higher number if it was
// put before the call of Take began. A consumer that loses a race for the first
// item looks for the first item again. With Prefetch, the comparison is made at the
// moment in which the items are claimed.
//
// Each priority has nodes of its own. At most 10,000 priorities can be in use at a
// time, less the additional nodes of long queues (one for some hundred items).
// Beyond that Put looks for empty nodes, as in a DelayQueue, and if it finds none
// it fails with ErrLimit.
type PriorityQueue[T any] struct {
	Consumer[T]
}

// NewPriorityQueue returns the queue at path. It does no I/O; a bad path or option
// is reported by the first call.
func NewPriorityQueue[T any](c *Client, path string, o *QueueOptions[T]) *PriorityQueue[T] {
	q := &PriorityQueue[T]{newConsumer(c, path, priorityQueue, o)}
	q.show()
	return q
}

// Put adds a value, as Queue.Put does.
func (q *PriorityQueue[T]) Put(ctx context.Context, priority int64, v T) (id string, err error) {
	return q.putOne(ctx, priority, 0, v)
}

// PutAll adds values of one priority, as Queue.PutAll does.
func (q *PriorityQueue[T]) PutAll(ctx context.Context, priority int64, vs ...T) (ids []string, err error) {
	return q.putAll(ctx, priority, 0, vs)
}
