package coord

import (
	"context"
	"iter"
	"time"

	"github.com/go-coord/coord/internal/queue"
)

// A Consumer is the taking side of a Queue, a PriorityQueue or a DelayQueue. It is part of
// them and cannot be made alone.
//
// When a consumer dies or loses its session, the service ends its claims. "Redelivered"
// means that another consumer gets the item at its old place, with the next Attempt, as far
// as MaxAttempts allows:
//
//	consumer        dies before its Ack, or Pop's deletion       dies after that
//	Take, TryTake   the item is redelivered                      nothing is lost
//	All             the same, and the prefetched items too       nothing is lost
//	Items           the same, and the item not yet received      nothing is lost
//	Work            the items of the handlers are redelivered,   nothing is lost
//	                and the prefetched items too
//	Pop             the item is redelivered                      the item is lost
//
// So only Pop can lose an item, and only Pop never delivers an item twice. A redelivery
// repeats work: make the work idempotent, write its result in a [Txn] that acknowledges the item
// by AckOp, or in one that creates a node named after the item's ID, so that the second Txn
// fails. The Guard of the item refuses late writes of an earlier consumer. Ack is a separate
// commit after these writes. A consumer that loses its session and lives learns of the loss, and
// its Ack fails.
//
// If a consumer dies, items that it has claimed but not received count an attempt. If its
// client closes or its ctx ends, it gives them back, which counts no attempt. ClaimTimeout is
// only for consumers that hang.
type Consumer[T any] struct {
	q     *queue.Queue
	codec Codec[T]
	taker *queue.Taker[*Item[T]]
}

// Take waits for the next item until ctx ends, and claims it. The caller must end the claim
// with Ack, Nack or Release. ctx bounds only the wait, which a lost session does not end.
// When the wait ends without an item, nothing stays claimed: an item that is being claimed
// at that moment is given back in the background.
//
// In every call that takes items, an item that the codec cannot decode is moved to the dead
// letters, but not more than five in a row. The sixth is given back, which counts no
// attempt, and the call fails with ErrDecode: probably this consumer has the wrong codec.
// The count of five includes all calls on this queue value; an item that can be decoded
// resets it. Redrive puts moved items back; Remove deletes bad items.
//
// Errors: the context's; ErrDecode; ErrExists, if another program has made persistent nodes
// with the names of all slots; ErrClosed; ErrDenied; ErrBadPath.
func (q *Consumer[T]) Take(ctx context.Context) (*Item[T], error) {
	return q.taker.Take(ctx, "take", false)
}

// TryTake takes the next item, or returns ErrEmpty if no item can be taken. It does
// not wait for other clients, only for the service.
func (q *Consumer[T]) TryTake(ctx context.Context) (*Item[T], error) {
	return q.taker.Take(ctx, "trytake", true)
}

// All takes one item after the other until ctx ends or the body breaks off. An item
// belongs to the body, which must end its claim or have another goroutine end it
// later: the item is not given back when the body returns, so that it can be
// processed concurrently with the loop. Prefetched items that were not yet handed
// out are given back when the loop ends or the client closes. The end of the loop
// waits for that at most one second, while there is contact; the rest continues in
// the background.
//
// If ctx ends, the loop ends without another pair. While the service has no space
// (ErrNoSpace), the loop waits. On a permanent failure (ErrClosed, ErrDecode, ErrDenied,
// ErrBadPath) the last pair is nil and the error. ErrDecode: the codec has failed on six
// items in a row, see Take.
func (q *Consumer[T]) All(ctx context.Context) iter.Seq2[*Item[T], error] { return q.taker.All(ctx) }

// Items is All as a channel. The channel is unbuffered: an item is handed over or,
// if ctx ends or the client closes, given back. The channel is closed in these
// cases, and on a failure for which All would return an error.
//
// While a receiver processes an item, the next item is claimed already: no other
// consumer gets it, and if the process dies, the death counts as an attempt of both
// items. If processing takes long, or can kill the process, use All, Work or Take, which
// claim an item only when the caller asks for it.
func (q *Consumer[T]) Items(ctx context.Context) <-chan *Item[T] { return q.taker.Items(ctx) }

// Work calls handle with one item after the other, at most n at a time, on goroutines of its own. Handlers that do
// not overlap can run on the same goroutine. Work returns nil when ctx has ended and all handlers have returned. With n = 1 the
// handlers run in the order of the items, one after the other unless one hangs.
//
// If handle returns nil, Work acknowledges the item. If the client knows of a next item, the same
// commit claims it for the handler, so an item of a backlog costs one round trip; if the service
// refuses that, the Ack is sent alone. With Prefetch the next handlers do not wait for the Ack. If handle fails, panics or ends its goroutine, Work gives the
// item back by Nack: for 100 ms, then twice as long with each attempt, up to a minute; RetryDelay of the
// options replaces these delays. An error that contains one of [RetryAfter] has its delay, and one of
// [Bury] moves the item to the dead letters. If handle has ended the claim itself, Work does nothing
// more with the item.
// The context of a handler is that of Item.Context: it ends with the claim, and not with ctx.
//
// A handler that still runs after ClaimTimeout and has lost its claim hangs. Work logs that, and another
// handler begins in its place, so at most n handlers hang beside n others, also with n = 1. If more hang,
// each keeps its place until one returns. Work still waits for all of them before it returns.
//
// After ctx has ended, Work waits for the handlers; DrainTimeout limits how long they keep their
// items. A handler's error that matches context.Canceled, or the error or cause of ctx, counts
// no attempt then, and the item is given back, also if the error contains one of Bury or RetryAfter. Work continues after a lost session. Details: the guide queues.md.
//
// On ErrClosed, ErrDecode, ErrDenied and ErrBadPath, Work waits for the handlers and returns the
// error. ErrInvalid: n is less than 1, or handle is nil.
func (q *Consumer[T]) Work(ctx context.Context, n int, handle func(ctx context.Context, it *Item[T]) error) error {
	return q.taker.Work(ctx, n, handle)
}

// Pop takes the next item and deletes it before it returns the value: delivery is
// at most once, and if the caller fails before it has processed the value, the
// value is lost. If ctx or the session ends while the outcome of the deletion is
// unknown, the error matches ErrUncertain, and the item is either deleted or goes
// to another consumer. With any other error the item was not deleted, and is given
// back.
//
// Successive calls cost one round trip each: a Pop also reads the next item, or the next
// ones if they are small, and if no other consumer has taken it, the next Pop deletes it
// at once. (Once in 32 calls, or in a second, a Pop costs two round trips more, for a list
// and a read, or for a claim if other consumers take items too; for a PriorityQueue it
// costs four.) So the queue value keeps the bytes of up to 16 items, 64 KiB if they are
// more than one, and what the last Pop reads is read in vain. In a
// DelayQueue on a service with a clock, each Pop claims its item first, which costs one
// round trip more: only a claim that was too early can be given back.
func (q *Consumer[T]) Pop(ctx context.Context) (T, error) {
	var v, zero T
	err := q.q.Pop(ctx, func(data []byte) (err error) {
		v, err = q.codec.decode(data)
		return err
	})
	if err != nil {
		return zero, err
	}
	return v, nil
}

// Peek returns the value of the item that the next Take would get (leaving FairEvery aside), without
// taking it, or ErrEmpty. Another consumer may take the item at the same moment. Peek
// costs as much as a TryTake without its claim, and the next Take lists the items. It
// skips items that were taken too often, which a Take moves to the dead letters. If the
// item cannot be decoded, the error matches ErrDecode.
func (q *Consumer[T]) Peek(ctx context.Context) (T, error) {
	var v T
	err := q.q.Peek(ctx, func(data []byte) (err error) {
		v, err = q.codec.decode(data)
		return err
	})
	return v, err
}

// Len counts the items, including items that are claimed or not due. It lists the
// whole queue: one request for some hundred items. Items can come and go while it
// counts.
func (q *Consumer[T]) Len(ctx context.Context) (int, error) { return q.q.Length(ctx) }

// Purge deletes every item that was in the queue when Purge began and is not
// claimed, and returns their number. It costs about three requests for some hundred
// items, and one or two more for each of them that was taken before. It also
// deletes the nodes that held the items, except the last. The error matches ErrKind
// if another recipe uses the path.
func (q *Consumer[T]) Purge(ctx context.Context) (int, error) { return q.q.PurgeAll(ctx) }

// QueueStats are the figures of a queue at a moment, for operators. Their nodes are read
// in a few requests, one after the other, so the figures are not a snapshot: an item that
// is claimed, acknowledged or moved meanwhile is counted as it was when its node was read.
// An item that moves to the dead letters at that moment can be counted twice, or not at
// all.
//
// If Ready is positive while Claimed and Waiting are zero, no consumer takes items.
type QueueStats struct {
	Ready   int // items that a consumer can take now
	Claimed int // items that a consumer has claimed, including prefetched items
	Delayed int // items that are not due, or put off by Nack

	// Dead is the number of items in the queue at DeadLetterPath, whatever their state
	// and whichever queue they come from.
	Dead int

	// Oldest is the age of the oldest ready item, by the clock of the service. The age counts
	// from the Put, and in a DelayQueue from the due time if that is later. A failed delivery
	// does not reset it. Oldest is zero if no item is ready, or if the ready items were taken
	// during the call.
	//
	// In a PriorityQueue with ready items of more than 16 priorities, only the 16 priorities
	// that are taken last count, or fewer if a Redrive has put items back. In a DelayQueue into
	// which more than 16 items were put after their due times, Oldest can be too low.
	Oldest time.Duration

	// Waiting is the number of clients that wait for an item because they found none. It
	// counts a queue value of a client once, however many of its calls wait, and a dead
	// client until its session ends. It does not count consumers that work on an item.
	Waiting int

	// Buckets is the number of nodes that hold the items, 256 each in a long Queue. It is
	// zero if nothing was ever put. One remains when the queue is empty.
	Buckets int

	// Unread is the number of such nodes, of the queue and of its dead letters, that Stats
	// did not read: it reads the first 256 nodes of each, in the order in which items are
	// taken. If Unread is not zero, then Ready, Claimed, Delayed, Dead and Oldest are lower
	// bounds. Len counts the items of a queue of any length.
	Unread int
}

// Stats returns the figures of the queue. It works for a queue of any kind and on a path
// without a queue, where all figures are zero. It changes nothing in the queue, and
// needs only the permission to read the queue and its dead letters.
//
// The number of requests is bounded, whatever the length of the queue: a Sync, one for the
// directories, one for some 16 to 64 nodes that hold items (each of some hundred items, and
// at most 512 of them are read), and one for Oldest; in a PriorityQueue one for each
// priority with ready items, at most 16. That is some 8 requests for a queue of 50,000
// items. A service without batches takes one request for each node. If there are
// unclaimed items and the client does not know the time of the service, which it learns
// from its writes, a small write is added; see DelayQueue. The replies amount to about
// 70 bytes for each item that is read.
//
// Errors: the context's; ErrClosed; ErrDenied; ErrBadPath.
func (q *Consumer[T]) Stats(ctx context.Context) (QueueStats, error) {
	st, err := q.q.ReadStats(ctx)
	return QueueStats(st), err
}
