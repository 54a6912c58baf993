package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"

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
	at, err := q.dueTime("put", due)
	if err != nil {
		return TxnOp{op: "put", err: err}
	}
	return q.putOp(0, at, v)
}

func (q *Consumer[T]) putOp(priority, due int64, v T) TxnOp {
	op := TxnOp{op: "put", path: q.q.FullPath(), err: q.q.CheckPath("put")}
	data, err := q.codec.encode(v)
	if err == nil {
		err = q.q.MayPut(data)
	}
	if op.err == nil {
		op.err = errs.Op("put", q.q.FullPath(), err)
	}
	put := q.q.NewTxnPut(priority, due, data)
	op.expand = func(ctx context.Context, s *core.Session, _ []backend.Op) ([]backend.Op, error) {
		return put.Ops(ctx, s)
	}
	op.again, op.applied = put.Again, put.Applied
	return op
}
