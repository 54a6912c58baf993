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

// encoding returns the function that encodes v.
func (q *Consumer[T]) encoding(v T) func() ([]byte, error) {
	return func() ([]byte, error) { return q.codec.encode(v) }
}
