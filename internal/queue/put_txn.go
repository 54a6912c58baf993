package queue

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/txn"
)

// mayPut returns the error of a Put of data in a transaction.
func (q *Queue) mayPut(data []byte) error {
	if err := q.fits(data); err != nil {
		return err
	}
	if q.maxLen > 0 {
		return fmt.Errorf("%w: a transaction cannot put into a queue with MaxLen", backend.ErrUnsupported)
	}
	return nil
}

// PutOp is a Put as a part of a transaction. encode returns the bytes of the item.
func (q *Queue) PutOp(priority, due int64, o layout.ItemOptions, encode func() ([]byte, error)) txn.Op {
	err := checkOptions(o)
	var data []byte
	if err == nil {
		data, err = encode()
	}
	if err == nil {
		err = q.mayPut(data)
	}
	p := &txnPut{q, q.keyOf(priority, due), due, data, o.Encode()}
	return txn.Op{Name: "put", Path: q.path.Full(), Err: cmp.Or(q.path.Check("put"), errs.Op("put", q.path.Full(), err)),
		Expand: p.expand, Again: p.again, Ended: p.ended}
}

// DuePutOp is PutOp for DelayQueue.PutOp.
func (q *Queue) DuePutOp(due time.Time, o layout.ItemOptions, encode func() ([]byte, error)) txn.Op {
	at, err := q.DueAt("put", due)
	if err != nil {
		return txn.Op{Name: "put", Path: q.path.Full(), Err: err}
	}
	return q.PutOp(0, at, o, encode)
}

// txnPut is a Put as a part of a transaction.
type txnPut struct {
	q        *Queue
	key, due int64
	data     []byte
	options  []byte // nil: none
}

// expand returns the requests of the transaction, and makes the bucket that they need.
func (p *txnPut) expand(ctx context.Context, s *core.Session, _ []backend.Op) ([]backend.Op, error) {
	bucket, err := p.q.openBucket(ctx, s, p.key)
	if err != nil {
		return nil, err
	}
	it := newItem{id: p.q.c.NewGUID(bucket), data: p.data, options: p.options}
	return withOptions([]backend.Op{
		backend.Check(bucket, 0),
		backend.Create(bucket+"/"+layout.ItemStem(it.id, p.due), it.data, backend.PersistentSequential),
	}, bucket, []newItem{it}), nil
}

// again is called when the transaction was refused because of one of the requests. It reports whether other
// requests can succeed.
func (p *txnPut) again(err error) bool {
	p.q.forgetOpen(p.key)
	return errs.Raced(err)
}

// ended forgets items that can be due after the new one, if there can be a new one.
func (p *txnPut) ended(o txn.Outcome) {
	if o != txn.NotApplied && p.q.kind == layout.KindDelayQueue {
		p.q.forgetAfter(p.due)
	}
}
