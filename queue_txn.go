package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
)

// PutOp is a Put as a part of a Txn: the item is put if and only if the transaction
// is applied. A transaction cannot keep MaxLen, so a queue with a MaxLen refuses
// PutOp with ErrUnsupported.
func (q *Queue[T]) PutOp(v T) TxnOp { return q.putOp(0, 0, v) }

// PutOp is a Put as a part of a Txn; see Queue.PutOp.
func (q *PriorityQueue[T]) PutOp(priority int64, v T) TxnOp { return q.putOp(priority, 0, v) }

// PutOp is a Put as a part of a Txn; see Queue.PutOp.
func (q *DelayQueue[T]) PutOp(due time.Time, v T) TxnOp {
	at, err := q.q.DueAt("put", due)
	if err != nil {
		return TxnOp{op: "put", err: err}
	}
	return q.putOp(0, at, v)
}

func (q *Consumer[T]) putOp(priority, due int64, v T) TxnOp {
	put, err := q.q.TxnPut(priority, due, func() ([]byte, error) { return q.codec.encode(v) })
	return TxnOp{op: "put", path: put.Path(), err: err, again: put.Again, applied: put.Applied,
		expand: func(ctx context.Context, s *core.Session, _ []backend.Op) ([]backend.Op, error) {
			return put.Ops(ctx, s)
		}}
}
