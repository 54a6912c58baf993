package coord

import (
	"context"
	"fmt"
	"time"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
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
	op := TxnOp{op: "put", path: q.q.path.Full(), err: q.q.path.Check("put")}
	data, err := q.codec.encode(v)
	if err == nil {
		err = q.q.fits(data)
	}
	if err == nil && q.q.maxLen > 0 {
		err = fmt.Errorf("%w: a transaction cannot put into a queue with MaxLen", ErrUnsupported)
	}
	if op.err == nil {
		op.err = core.OpError("put", q.q.path.Full(), err)
	}
	key := q.q.keyOf(priority, due)
	op.expand = func(ctx context.Context, s *core.Session, _ []backend.Op) ([]backend.Op, error) {
		bucket, err := q.q.openBucket(ctx, s, key)
		if err != nil {
			return nil, err
		}
		return []backend.Op{
			backend.Check(bucket, 0),
			backend.Create(bucket+"/"+layout.ItemStem(q.q.c.NewGUID(bucket), due), data, backend.PersistentSequential),
		}, nil
	}
	op.again = func(err error) bool {
		q.q.forgetOpen(key)
		return core.Raced(err)
	}
	if q.q.kind == delayQueue {
		op.applied = func() { q.q.forgetAfter(due) }
	}
	return op
}

// openBucket returns the bucket that takes the items of key, and makes one if there
// is none or it is full. The transaction cannot make the bucket together with the
// item: two items of one queue in one transaction would each make it.
func (q *queue) openBucket(ctx context.Context, s *core.Session, key int64) (string, error) {
	if err := s.ClaimKind(ctx, q.recipeDir()); err != nil {
		return "", err
	}
	var pl putPlan
	for {
		err := q.planPut(ctx, s, key, &pl)
		if core.IsNotFound(err) {
			if err := q.makeItems(ctx, s); err != nil {
				return "", err
			}
			continue
		}
		if err != nil {
			return "", err
		}
		pl.closed = false
		if pl.use {
			path := layout.BucketPath(q.items, pl.key, pl.n)
			stat, err := s.Backend().Exists(ctx, path, nil)
			switch {
			case err != nil && !core.IsNotFound(err):
				return "", err
			case err == nil && stat.Version == 0:
				// This is the number of items created so far. (Cversion is twice
				// the number of creations, less the number of children. Without it
				// the bucket is closed when it holds that many at a time.)
				if int(max((stat.Cversion+stat.NumChildren)/2, stat.NumChildren)) < q.size {
					q.setOpen(pl.key, openBucket{pl.n, false})
					return path, nil
				}
				pl.full = true
			default:
				// It is closed or gone. The next list must be newer.
				pl.closed, pl.was = err == nil, pl.n
				q.forgetOpen(key)
				if err := s.Backend().Sync(ctx, q.items); err != nil {
					return "", err
				}
				continue
			}
		}
		ops, _ := pl.ops(q, nil)
		if _, _, err := s.CommitOnce(ctx, ops...); err != nil {
			if core.Blamed(err) < 0 {
				return "", err
			}
			q.forgetOpen(key)
			if err := s.Backend().Sync(ctx, q.items); err != nil {
				return "", err
			}
			continue
		}
		q.setOpen(pl.key, openBucket{pl.target(), false})
	}
}
