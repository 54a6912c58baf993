package coord

import "time"

// PutOp is a Put as a part of a Txn: the item is put if and only if the transaction
// is applied. A transaction cannot keep MaxLen, so a queue with a MaxLen refuses
// PutOp with ErrUnsupported.
func (q *Queue[T]) PutOp(v T) TxnOp { return TxnOp{q.q.PutOp(0, 0, q.encoding(v))} }

// PutOp is a Put as a part of a Txn; see Queue.PutOp.
func (q *PriorityQueue[T]) PutOp(priority int64, v T) TxnOp {
	return TxnOp{q.q.PutOp(priority, 0, q.encoding(v))}
}

// PutOp is a Put as a part of a Txn; see Queue.PutOp.
func (q *DelayQueue[T]) PutOp(due time.Time, v T) TxnOp {
	return TxnOp{q.q.DuePutOp(due, q.encoding(v))}
}

// AckOp is an Ack as a part of a Txn: the item is deleted if and only if the transaction is applied.
//
// If Commit returns nil, the item is acknowledged: its hold has ended, a later Ack returns nil, and a Nack or
// Release does what it does after an Ack. So a handler of Work that has committed the Txn returns nil. If
// the Txn is refused, the claim is as before. A claim that does not stand any more is the reason of a
// *ConflictError with the Op "ack", which matches ErrLost or ErrReleased as the error of Hold.Err does. That of a
// transaction of a database matches ErrLost in both cases.
//
// If Commit cannot tell whether the Txn is applied, or a transaction of a database carries it, which can
// commit later or not at all, the hold stands until the client learns that the item is gone: by a watch, or
// by the next Ack, Nack or Release. As long as its session lives, the item is acknowledged then, and Ack
// returns nil. If the transaction was rolled back, all three do what they do without it. Let the transaction
// commit before the handler returns: if the claim ends first, the transaction is refused.
//
// Commit refuses two AckOps of one item, and the AckOp of an item that was not taken from a queue, with
// ErrInvalid. The Txn and the item can belong to different clients.
func (it *Item[T]) AckOp() TxnOp { return TxnOp{it.claim.AckOp()} }

// encoding returns the function that encodes v.
func (q *Consumer[T]) encoding(v T) func() ([]byte, error) {
	return func() ([]byte, error) { return q.codec.encode(v) }
}
