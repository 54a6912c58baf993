package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/queue"
)

// QueueOptions may be nil. All clients of one queue should use the same options.
type QueueOptions[T any] struct {
	// Codec turns values into the data of nodes and back. The default is JSON.
	Codec Codec[T]

	// MaxLen is the maximum number of items in the queue, including claimed items. Zero means no
	// limit. A Put beyond the limit waits. The limit is exact as long as all clients set it.
	//
	// Two nodes count the items, so the cost of a Put does not depend on the length. An item that
	// leaves the queue wakes two of the clients that wait for room, and a Put at most two more.
	// If one of two woken clients is dead, cut off or paused, no other client waits for it.
	//
	// The count is wrong if clients without MaxLen put items, if another program deletes nodes,
	// or if a queue gets its first MaxLen while items are claimed. Then the queue can be too long,
	// or seem full, until a Put that finds it full lists the items and corrects the count. Give a
	// queue of dead letters no MaxLen: its count does not include arriving dead letters, but
	// decreases when they leave.
	//
	// A handler must not wait for room in the queue from which it takes: if all handlers do so,
	// they wait for ever.
	MaxLen int

	// FailWhenFull makes Put return ErrFull instead of waiting.
	FailWhenFull bool

	// MaxAttempts is the number of times that an item is taken before it is moved
	// to the dead letters. Zero means no limit. PutOptions can replace it for an item.
	MaxAttempts int

	// DeadLetterPath is the path of the queue that receives the items that were
	// taken too often and the items that cannot be decoded. The default is
	// "<queue>/dead". It is a Queue. Its items keep their id and bytes; their
	// attempts start at 0. The reason of the move is stored beside the item, and Dead
	// shows it. Redrive puts the item back.
	//
	// The path of the queue itself, or a path at or below its "items", "keys", "waiters"
	// or "producers", is refused with ErrInvalid. While an item cannot be moved, it stays
	// where it is, is delivered to no consumer, and does not delay the other items.
	//
	// A queue whose path is so long that the default exceeds the limit of a path is
	// refused with ErrBadPath until it gets a DeadLetterPath.
	DeadLetterPath string

	// Prefetch is the number of items that All, Items and Work claim at a time, at most
	// 128. (Below a very long path fewer fit into a request.) The default is 1. With n handlers,
	// Work claims for all that are free, so up to max(n, Prefetch) items at a time, and has up to
	// n + Prefetch - 1 items whose handlers have not returned.
	// A prefetched item is claimed at once: other consumers do not
	// get it, although no work on it has begun, and if the consumer dies, the death
	// counts as an attempt. When the loop ends or the client closes, the item is
	// given back, which does not count as an attempt; see All.
	//
	// With Prefetch, Work begins the next handlers while it acknowledges the items of those that have returned nil, and
	// their Acks share commits: short handlers need a fraction of a round trip for an item. If the session is lost, up to
	// Prefetch + n - 1 items can be delivered again whose handlers had returned. While an item that has no attempt left is
	// acknowledged, its handler keeps its place.
	//
	// An item that was taken before is claimed alone. So if an item kills its
	// consumers, the items that were prefetched with it do not become dead letters: after
	// the first death each item is claimed alone. With MaxAttempts 1, Prefetch has no
	// effect.
	Prefetch int

	// ClaimTimeout is the time within which a consumer must end the claim on an item. Zero means
	// no limit but the session. It is for consumers that hang while their session lives.
	//
	// When the time has passed, the hold of the item ends with an error that matches ErrLost and
	// ErrClaimTimeout, then its contexts end, and the item is given back as by Nack(0). Writes
	// under the Guard of the item fail before another consumer gets it. The consumer must obey
	// its context: nothing else stops it. If a handler of Work does not, see Work. While the service cannot be reached or refuses, the
	// item stays claimed and the client retries.
	//
	// The time counts from the moment at which the consumer receives the item, by the monotonic
	// clock of the process. Ack, Nack and Release compare it with the clock: after the time they
	// do nothing and return the loss, also after a pause of the process. An Ack that began in
	// time counts. An item that was claimed but is not received within the time is given back,
	// which counts no attempt.
	ClaimTimeout time.Duration

	// DrainTimeout is the time that the handlers of Work have to return after its ctx
	// has ended, or after the failure for which Work ends. Zero means no limit.
	//
	// When the time has passed, the items that handlers still work on are given back,
	// which does not count as an attempt. First the contexts of these handlers end, with a
	// cause that matches ErrReleased and whose text names DrainTimeout. Work still waits until
	// the handlers have returned, and ignores their results: if a handler returns nil, Work logs
	// that, and the item is delivered again. Choose a time shorter than that between SIGTERM and
	// SIGKILL.
	DrainTimeout time.Duration

	// RetryDelay returns the delay after which Work delivers an item again whose handler has
	// failed with err at the given attempt, counted from 1. The default is 100 ms, doubled
	// with each attempt, up to a minute. A delay that is not positive means at once. Work does not
	// call RetryDelay if the handler has returned RetryAfter or Bury, or if the item goes to the dead letters.
	//
	// RetryDelay runs on the goroutine of the handler, while the item is claimed, and several
	// calls can run at the same time. If the handler has panicked, err says so. If RetryDelay
	// itself panics or ends its goroutine, the client logs that, and the delay is the default.
	RetryDelay func(attempt int, err error) time.Duration

	// FairEvery keeps the priorities of a PriorityQueue from starving: one of FairEvery takes of this
	// queue value takes the first item of another priority than the lowest number, if one can be
	// taken. It chooses one of the other priorities at random. The minimum is 2. Zero means
	// that no item is taken while an item with a lower number is ready.
	//
	// Such a take costs one request more, and no round trip. The first take of a queue value is never
	// such a take. Items that are claimed together, for Prefetch or for several free handlers of
	// Work, are one take. A Queue and a DelayQueue refuse FairEvery with ErrInvalid.
	FairEvery int

	// TraceParent returns the traceparent (W3C Trace Context, version 00) of the work that puts an item, from the
	// context of Put, PutAll or the Commit of a PutOp. The consumer finds it in Item.TraceParent, also after a
	// Redrive. Any other text, such as "", means none. oteltrace.TraceParent is such a function.
	//
	// It is stored in the name of a small node beside the item, and costs no request. A PutAll then puts half as many values in one
	// commit. Each attempt of a Commit calls it. If it panics or ends its goroutine, the client logs that,
	// and the item has none. Without TraceParent no such node is made.
	TraceParent func(ctx context.Context) string
}

// A Queue holds values that any number of clients put in and take out: the queue of the
// ZooKeeper recipe guide, with claims in place of deletions. Make one Queue for a path and
// share it, since each Queue value counts as a client of its own when it waits. A Queue is
// safe for concurrent use and needs no closing.
//
// Delivery is at least once: a consumer takes an item, processes it and acknowledges it. An
// item that Put has reported is never lost, and no item is delivered again after an Ack that
// returned nil. Without faults no item is delivered twice. [Consumer] says what happens when
// a consumer dies. If a call ends, or the client closes, before a caller has received the
// item, the item is given back, which counts no attempt, as long as the service answers.
// Close waits at most two seconds for this. Pop delivers at most once.
//
// Values are taken in the order in which they were put, and the values of one PutAll in their
// order. An item that is given back keeps its place. After 32 takes or one second at
// the latest, a consumer sees an item that another consumer has given back. When several
// consumers race for the head, an item can be taken before an older item.
//
// Waiting costs no requests. A change wakes six of the clients that wait for an item, and a
// take at most two more. If up to five of the six clients are dead, cut off or paused, no
// item is delayed. If all six are, new items wait until the session of one of them has
// ended. Further clients in such a state have no effect. A session that its client has lost
// counts as a dead client until the service has ended it.
//
// The cost does not depend on the length, which can be about two million items. The guides
// sizing.md and layout.md list the requests and the nodes; internal/queue/rules.go has the protocol.
type Queue[T any] struct {
	Consumer[T]
}

// NewQueue returns the queue at path. It does no I/O; a bad path or option is
// reported by the first call.
func NewQueue[T any](c *Client, path string, o *QueueOptions[T]) *Queue[T] {
	q := &Queue[T]{newConsumer(c, path, layout.KindQueue, o)}
	q.q.Show(&q.Consumer)
	return q
}

// Put appends a value and returns the id of its item, which Item.ID reports. The
// value is put exactly once, even if replies are lost. Only if ctx ends, or the
// session is lost, before the outcome is known, does the error match ErrUncertain.
// The id is returned in that case too: the value was put if and only if an item
// with this id appears. With any other error the id is empty.
//
// Errors: the context's; ErrFull; ErrTooLarge; ErrLimit when there are too many
// buckets, the nodes that hold the items; ErrInvalid from the codec; ErrExists, if the Put waits
// for room and another program has made persistent nodes with the names of all slots, the nodes
// in which clients wait; ErrDenied, ErrClosed, ErrBadPath.
func (q *Queue[T]) Put(ctx context.Context, v T) (id string, err error) {
	return q.PutWith(ctx, v, nil)
}

// PutOptions are the options of one item. The zero value of a field, and nil for all of them, mean the options of
// the queue.
//
// Options are stored in nodes of their own, in the commit that puts the item, and deleted with it. A Put without
// options makes no such node. Options stay with the item in the dead letters and after a Redrive; they are lost if
// the reason of the dead letter is.
type PutOptions struct {
	// MaxAttempts replaces the MaxAttempts of QueueOptions for this item. Consumers that do not know this option,
	// of an earlier version, go by the options of the queue.
	//
	// A consumer reads it together with the item, and claims such an item alone, so Work needs two round trips for
	// it where it needs one for another item of a backlog.
	MaxAttempts int

	// Key lets the item be put only if no other item of the queue has this key. An item has its key as long as it
	// is in the queue: waiting, claimed, put off or not due. The key is free again when the item is acknowledged,
	// popped, removed or moved to the dead letters. A Redrive takes the key again, and leaves the item in the dead
	// letters, with ErrExists, if another item has the key. At most 1,024 bytes. The service stores a hash of it.
	//
	// If the key is in use, PutWith puts nothing and returns the id of the item that has the key, with an error
	// that matches ErrExists. Of producers that put the same key at the same time, exactly one puts its item. A Txn
	// is refused with a *ConflictError that matches ErrExists and whose Op is "put".
	//
	// It is the item that is unique, not its delivery: that is at least once. The keys of a queue are not
	// protected from clients of earlier versions and other programs: see queues.md for what they do to a key.
	Key string

	// KeyFor is the time, counted from the Put by the service's clock, for which the key stays in use at least,
	// also after the item was acknowledged or popped. Until then PutWith returns the id of that item. Remove, Purge and
	// the move to the dead letters free the key of an item that is in the queue. If that clock is set, the time can be
	// wrong by the difference, as the delay of Nack. Zero means that the key is free as soon as the item has left the
	// queue. Two small nodes stay for each such key until a later Put with KeyFor deletes them.
	KeyFor time.Duration
}

// PutWith is Put with options of the item. ErrInvalid: an option is negative, the Key is too long, or KeyFor is set
// without a Key. ErrExists: another item, whose id is returned, has the Key.
//
// A Put with a Key costs the same one round trip as without. If the key is in use, or was used and its KeyFor has
// passed, it costs a few reads more. If it has to wait for room, it looks whether the key is in use before each wait: so
// one of several equal Puts that wait puts its item, and the others return. The first keys of a queue make up to 256 small nodes that stay, at two requests each.
func (q *Queue[T]) PutWith(ctx context.Context, v T, o *PutOptions) (id string, err error) {
	return q.putWith(ctx, 0, 0, v, o)
}

// PutOnce is PutWith with a Key and without KeyFor: it keeps a second item out while the first one is in the queue. A request that can
// come again after the Ack, such as a webhook, needs PutWith with KeyFor. put reports whether the value
// was put. If another item of the queue has the key, PutOnce returns the id of that item, false and nil.
//
// If the error matches ErrUncertain, call PutOnce with the same key again: the value is in the queue once, whether the
// second call puts it or not, unless its item was acknowledged in between.
// ErrInvalid: the key is empty or too long. Other errors: as of Put.
func (q *Queue[T]) PutOnce(ctx context.Context, key string, v T) (id string, put bool, err error) {
	return q.q.PutOnce(ctx, 0, 0, key, q.encoding(v))
}

// PutAll appends values in order, many in one commit: up to 1,024 if they fit into it, 128 with
// MaxLen, and 121 on etcd. It returns the ids of the values that were certainly put: all of them,
// or those before the first failure. If the error matches ErrUncertain, the values of one
// further commit may have been put, all of them or none. Values of other clients can come in
// between, but not between those of one commit.
func (q *Queue[T]) PutAll(ctx context.Context, vs ...T) (ids []string, err error) {
	return q.putAll(ctx, 0, 0, vs)
}

// PutOp is a Put as a part of a Txn: the item is put if and only if the transaction
// is applied. A transaction cannot keep MaxLen, so a queue with a MaxLen refuses
// PutOp with ErrUnsupported.
func (q *Queue[T]) PutOp(v T) TxnOp { return q.PutOpWith(v, nil) }

// PutOpWith is PutOp with options of the item. An AckOp before it in the transaction frees the key of its item, unless
// the KeyFor of that item has not passed.
func (q *Queue[T]) PutOpWith(v T, o *PutOptions) TxnOp {
	return TxnOp{q.q.PutOp(0, 0, o.engine(), q.encoding(v))}
}

// A PriorityQueue is a Queue whose items are taken by priority, the lowest number
// first, and items of one priority in the order in which they were put (the
// priority queue of the ZooKeeper recipe guide). In all other respects it behaves
// as a Queue.
//
// An item with a lower number is taken before one with a higher number if it was
// put before the call of Take began. So while items with lower numbers keep coming, items
// with higher numbers wait, for ever if need be: FairEvery prevents that. A consumer that loses a race for the first
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
	q := &PriorityQueue[T]{newConsumer(c, path, layout.KindPriorityQueue, o)}
	q.q.Show(&q.Consumer)
	return q
}

// Put adds a value, as Queue.Put does.
func (q *PriorityQueue[T]) Put(ctx context.Context, priority int64, v T) (id string, err error) {
	return q.PutWith(ctx, priority, v, nil)
}

// PutWith is Put with options of the item, as Queue.PutWith.
func (q *PriorityQueue[T]) PutWith(ctx context.Context, priority int64, v T, o *PutOptions) (id string, err error) {
	return q.putWith(ctx, priority, 0, v, o)
}

// PutOnce is PutWith with a Key, as Queue.PutOnce. The key is unique in the queue, whatever the priority.
func (q *PriorityQueue[T]) PutOnce(ctx context.Context, priority int64, key string, v T) (id string, put bool, err error) {
	return q.q.PutOnce(ctx, priority, 0, key, q.encoding(v))
}

// PutAll adds values of one priority, as Queue.PutAll does.
func (q *PriorityQueue[T]) PutAll(ctx context.Context, priority int64, vs ...T) (ids []string, err error) {
	return q.putAll(ctx, priority, 0, vs)
}

// PutOp is a Put as a part of a Txn; see Queue.PutOp.
func (q *PriorityQueue[T]) PutOp(priority int64, v T) TxnOp {
	return q.PutOpWith(priority, v, nil)
}

// PutOpWith is PutOp with options of the item.
func (q *PriorityQueue[T]) PutOpWith(priority int64, v T, o *PutOptions) TxnOp {
	return TxnOp{q.q.PutOp(priority, 0, o.engine(), q.encoding(v))}
}

func newConsumer[T any](c *Client, path string, kind layout.RecipeKind, o *QueueOptions[T]) Consumer[T] {
	var opts QueueOptions[T]
	if o != nil {
		opts = *o
	}
	q := queue.New(c.core(), path, kind, queue.Config[Codec[T]](opts))
	codec := opts.Codec.orJSON()
	return Consumer[T]{q, codec, queue.NewTaker(q, func(cl *queue.Claim, data []byte) (*Item[T], error) {
		v, err := codec.decode(data)
		if err != nil {
			return nil, err
		}
		h, id, attempt, traceparent := cl.Item()
		return &Item[T]{Hold: &Hold{h}, ID: id, Value: v, Attempt: attempt, TraceParent: traceparent, claim: cl}, nil
	})}
}

func (q *Consumer[T]) putWith(ctx context.Context, priority, due int64, v T, o *PutOptions) (string, error) {
	return q.q.PutValue(ctx, priority, due, o.engine(), q.encoding(v))
}

// engine returns the options for the engine.
func (o *PutOptions) engine() queue.PutOptions {
	if o == nil {
		return queue.PutOptions{}
	}
	return queue.PutOptions(*o)
}

func (q *Consumer[T]) putAll(ctx context.Context, priority, due int64, vs []T) ([]string, error) {
	return q.q.PutValues(ctx, priority, due, len(vs), func(i int) ([]byte, error) { return q.codec.encode(vs[i]) })
}

// encoding returns the function that encodes v.
func (q *Consumer[T]) encoding(v T) func() ([]byte, error) {
	return func() ([]byte, error) { return q.codec.encode(v) }
}
