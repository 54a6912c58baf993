package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
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
func (q *Queue) PutOp(priority, due int64, o PutOptions, encode func() ([]byte, error)) txn.Op {
	err := o.check()
	var data []byte
	if err == nil {
		data, err = encode()
	}
	if err == nil {
		err = q.mayPut(data)
	}
	p := &txnPut{q, q.keyOf(priority, due), due, data, o.node(), o.newKey()}
	return txn.Op{Name: "put", Path: q.path.Full(), Err: cmp.Or(q.path.Check("put"), errs.Op("put", q.path.Full(), err)),
		Expand: p.expand, Again: p.again, Ended: p.ended}
}

// DuePutOp is PutOp for DelayQueue.PutOp.
func (q *Queue) DuePutOp(due time.Time, o PutOptions, encode func() ([]byte, error)) txn.Op {
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
	once     newKey
}

// expand returns the requests of the transaction, and makes the bucket and the directory of keys that they need.
func (p *txnPut) expand(ctx context.Context, s *core.Session, before []backend.Op) ([]backend.Op, error) {
	bucket, err := p.q.openBucket(ctx, s, p.key)
	if err != nil {
		return nil, err
	}
	it := newItem{id: p.q.c.NewGUID(bucket), data: p.data, options: p.options, key: p.once, trace: p.q.traceOf(ctx)}
	if it.key.Hash != "" {
		if err := p.q.planKey(ctx, s, &it, before); err != nil {
			return nil, err
		}
	}
	ops := withOptions([]backend.Op{backend.Check(bucket, 0)}, bucket, []newItem{it})
	ops = p.q.withKey(withTrace(ops, bucket, &it), bucket, &it)
	// The last creation is the result of the operation.
	return append(ops, backend.Create(bucket+"/"+layout.ItemStem(it.id, p.due), it.data, backend.PersistentSequential)), nil
}

// planKey finds out whether the key of an item is in use, before a transaction puts it after the requests before.
func (q *Queue) planKey(ctx context.Context, s *core.Session, it *newItem, before []backend.Op) error {
	dated, err := dateKeys(ctx, s, []newItem{*it})
	if err != nil {
		return err
	}
	*it = dated[0]
	dir := it.key.In(q.keys)
	if _, err := s.Backend().Exists(ctx, dir, nil); errs.IsNotFound(err) {
		err = q.makeKeys(ctx, s, dir)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	h := dir + "/" + it.key.HolderName()
	for _, op := range slices.Backward(before) {
		switch {
		case op.Path != h:
		case op.Kind == backend.OpDelete: // by the AckOp of the item that has the key
			return nil
		default:
			holder, _ := layout.ParseKeyHolder(op.Data)
			return &txn.Conflict{Err: &keyInUse{holder.ID, it.id}}
		}
	}
	it.key.stale, err = q.lookUpKey(ctx, s, it, before)
	if used, ok := err.(*keyInUse); ok {
		return &txn.Conflict{Err: used}
	}
	return err
}

// again is called when the transaction was refused because of one of the requests. It reports whether other
// requests can succeed.
func (p *txnPut) again(err error) bool {
	p.q.forgetOpen(p.key)
	return errs.Raced(err)
}

// ended forgets items that can be due after the new one, and collects keys, if there can be a new item.
func (p *txnPut) ended(o txn.Outcome) {
	if o == txn.NotApplied {
		return
	}
	if p.q.kind == layout.KindDelayQueue {
		p.q.forgetAfter(p.due)
	}
	if p.once.keep > 0 {
		p.q.collectSometimes(p.once.In(p.q.keys))
	}
}
