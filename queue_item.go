package coord

import (
	"time"

	"github.com/go-coord/coord/internal/queue"
)

// An Item is a value taken from a queue, together with the claim on it, which is a
// Hold. As long as the claim stands, no other consumer gets the item. The claim
// ends with Ack, Nack or Release, with the session, and when another program
// deletes its node. Work on the item should run under Context, and its writes to
// the same service under Guard. The Token of a claim is greater than those of all
// earlier claims of the same item.
//
// Of Ack, Nack and Release the first call counts. Each is one atomic commit that
// checks the claim, so it never changes the item of a later consumer. They take no
// context, like Hold.Release. A repeated call returns the result of the first call.
// Release after Ack or Nack does nothing and returns the result of that call, so it
// can be deferred. An Ack or Nack after a different call does nothing, and returns the
// error of the first call, or an error that matches ErrReleased if that was nil.
// If the claim was lost before, or its ClaimTimeout has passed, all three return Err,
// which matches ErrLost.
//
// Release gives the item back, at its old place, as if it had not been taken: it
// does not count as an attempt. If the session ends before the reply arrives, the
// item goes back with the session, and the attempt counts.
type Item[T any] struct {
	*Hold
	ID      string // what Put returned
	Value   T
	Attempt int // 1 for the first time that the item is taken, and so on

	// TraceParent is the traceparent of the producer (W3C Trace Context), see QueueOptions. Empty: none is known.
	TraceParent string

	claim *queue.Claim
}

// Ack acknowledges the item and deletes it. If Ack returns nil, the item is not
// delivered again. An error that matches ErrLost and not ErrUncertain means that
// the item goes, or has gone already, to another consumer. If the session was lost
// while the outcome was unknown, the error matches ErrUncertain as well. If the
// service refuses the commit (ErrDenied; backend.ErrNotEmpty, if another program
// made a node below the item), Ack returns that error, the item stays claimed, and
// the client retries in the background for as long as its session lives.
//
// Acks of one queue value that are called during another Ack form one commit when
// that Ack is done. Each Ack has the same outcome as alone. A single Ack does not wait
// for others. See also AckAll.
func (it *Item[T]) Ack() error {
	return it.claim.Ack()
}

// Nack gives the item back as a failed attempt. The item keeps its place in the queue,
// but cannot be taken before delay has passed since the call, by the clock of the
// service; DelayQueue describes the precision, a clock that is set, and services without a clock. If delay is
// not positive, the item can be taken at once. An item that was taken as often as
// MaxAttempts allows is moved to the dead letters instead. NackCause also stores the
// reason.
func (it *Item[T]) Nack(delay time.Duration) error { return it.NackCause(delay, nil) }

// NackCause is Nack with the error for which the attempt failed. The first kilobyte of the
// error's text is stored with the item: if the item is moved to the dead letters, Dead shows the
// text, and if it is put off by a delay, Retries shows it until the next consumer takes the item.
// Without a delay it is not stored. The text is as protected as the item's own bytes, so it may
// quote them. It appears in no log and no event.
func (it *Item[T]) NackCause(delay time.Duration, cause error) error {
	return it.claim.Nack(delay, cause)
}

// AckOp is an Ack as a part of a Txn: the item is deleted if and only if the transaction is applied.
//
// If Commit returns nil, the item is acknowledged: its hold has ended, a later Ack returns nil, and a Nack or
// Release does what it does after an Ack. So a handler of Work that has committed the Txn returns nil. If
// the Txn is refused, the claim is as before. If the claim has ended, the error is a *ConflictError with the
// Op "ack", which matches ErrLost or ErrReleased as Hold.Err does. In a transaction of a database it matches
// ErrLost in both cases.
//
// If the outcome of the Txn is unknown, or a transaction of a database carries it and may commit later, the
// hold lasts until the client learns that the item is gone: by a watch, or by the next Ack, Nack or Release.
// While the session lives, the item then counts as acknowledged, and Ack returns nil. If the transaction was
// rolled back, Ack, Nack and Release work as without it. Commit the transaction before the handler returns:
// if the claim ends first, the transaction is refused.
//
// Commit refuses two AckOps of one item, and the AckOp of an item that was not taken from a queue, with
// ErrInvalid. The Txn and the item can belong to different clients.
func (it *Item[T]) AckOp() TxnOp { return TxnOp{it.claim.AckOp()} }

// AckAll acknowledges items that were taken from this queue, up to 128 in one commit,
// or fewer if the service takes less. Each item has the outcome of its own Ack,
// independent of the others. AckAll returns nil if all items were acknowledged. Otherwise
// it returns the joined errors of the items; the Ack of an item, called again, returns
// its own error. If an item is nil, or was not taken from this queue value, nothing is
// done, and the error matches ErrInvalid.
func (q *Consumer[T]) AckAll(items ...*Item[T]) error {
	claims := make([]*queue.Claim, len(items))
	for i, it := range items {
		if it != nil {
			claims[i] = it.claim
		}
	}
	return q.q.AckClaims(claims)
}
