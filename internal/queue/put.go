package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/serviceclock"
	"github.com/go-coord/coord/internal/tracing"
	"github.com/go-coord/coord/trace"
)

// newItem is an item to put.
type newItem struct {
	id      string
	data    []byte
	options []byte // the data of the node with its options; nil: none
	key     newKey
	trace   string // the traceparent of the producer; "": none
	reason  []byte // of a dead letter: the data of the node beside it; nil: none
}

// fits returns ErrTooLarge if an item with data would leave no room for the other operations
// of the commit that moves it to the dead letters, or back.
func (q *Queue) fits(data []byte) error {
	most, path := q.c.Rules().Limits().Bytes, len(q.items)
	if q.dead != nil {
		path = max(path, len(q.dead.items))
	}
	if room := most - min(16*(path+256), most/2); len(data) > room {
		return fmt.Errorf("%w: the item has %d bytes, limit %d", backend.ErrTooLarge, len(data), room)
	}
	return nil
}

// put puts all items, in order, in as few commits as possible. It returns the
// number of items that were certainly put. If the error matches ErrUncertain,
// the items of one further commit may have been put.
func (q *Queue) put(ctx context.Context, span *tracing.Span, priority, due int64, all []newItem) (int, error) {
	for i := range all {
		if err := q.fits(all[i].data); err != nil {
			return 0, err
		}
	}
	done := 0
	for done < len(all) {
		m, err := core.OnSessionOnce(ctx, q.c, func(s *core.Session) (int, error) {
			nodes := 1
			if all[0].trace != "" {
				nodes = 2
			}
			n, size, most, room := 0, 0, mostAtOnce(s, maxBatch, nodes, 0, 1), s.Backend().Limits().Bytes*9/10
			if q.maxLen == 0 && s.Backend().Limits().Ops == 0 {
				most = maxPut / nodes
			}
			for n < len(all)-done && n < most {
				size += nodes*(len(q.items)+512) + len(all[done+n].data)
				if n > 0 && size > room {
					break
				}
				n++
			}
			if q.maxLen > 0 {
				return q.putLimited(ctx, s, span, q.keyOf(priority, due), due, all[done:done+n])
			}
			return q.putItems(ctx, s, q.keyOf(priority, due), due, all[done:done+n], nil)
		})
		if err != nil {
			return done, err
		}
		done += m
	}
	return done, nil
}

// putItems creates items in one commit together with the operations of with, and returns their number: all, or if
// the queue has no room for the buckets that they need, the first ones, at least maxBatch. The first maxBatch are in one bucket; only these
// can have options, keys and reasons. If one of the operations of with fails, putItems returns the error unchanged, with its index in
// with. It leaves out the reasons of dead letters if the commit would be too large with them, or if
// another client has made a node of that name. If there is a node with options or a trace context already, left behind by a client that
// does not know such nodes, the put keeps that node: no client changes it. If the key of an item is in
// use, putItems puts nothing and returns a keyInUse.
func (q *Queue) putItems(ctx context.Context, s *core.Session, key, due int64, batch []newItem, with []backend.Op) (int, error) {
	if err := s.ClaimKind(ctx, q.recipeDir()); err != nil {
		return 0, err
	}
	batch, err := dateKeys(ctx, s, batch)
	if err != nil {
		return 0, err
	}
	var pl putPlan
	for {
		err := q.planPut(ctx, s, key, (max(len(batch)-maxBatch, 0)+q.size-1)/q.size, &pl)
		if errs.IsNotFound(err) {
			if err := q.makeItems(ctx, s); err != nil {
				return 0, err
			}
			continue
		}
		if err != nil {
			return 0, err
		}
		ops, target := pl.ops(q, with)
		n, bucket, room := pl.target(), target, maxBatch
		if !pl.use || pl.full { // no other client can put into a bucket before the commit that makes it
			room = max(room, q.size)
		}
		batch = batch[:min(len(batch), room+pl.more*q.size)]
		var traces []backend.Op
		for _, p := range batch {
			if room == 0 {
				n, room = n+1, q.size
				ops = append(ops, backend.SetData(bucket, nil, 0))
				bucket = layout.BucketPath(q.items, pl.key, n)
				ops = append(ops, backend.Create(bucket, nil, backend.Persistent))
			}
			room--
			ops = append(ops, backend.Create(bucket+"/"+layout.ItemStem(p.id, due), p.data, backend.PersistentSequential))
			traces = withTrace(traces, bucket, &p)
		}
		// Behind the items, so that neither their indexes nor their numbers change.
		end := len(ops)
		ops = append(withOptions(ops, target, batch), traces...)
		keys := len(ops)
		ops = q.withKeys(ops, target, batch)
		reasons := len(ops)
		ops = withReasons(s, ops, target, batch)
		results, _, err := s.CommitOnce(ctx, ops...)
		if q.kind == layout.KindDelayQueue && (err == nil || backend.IsUncertain(err)) {
			q.forgetAfter(due)
		}
		if err == nil {
			full := false
			if results != nil {
				full = q.fills(results[end-1], layout.ItemStem(batch[len(batch)-1].id, due))
			}
			q.setOpen(pl.key, openBucket{n, full})
			return len(batch), nil
		}
		i := errs.Blamed(err)
		if i < 0 || i < len(with) {
			return 0, err
		}
		if i >= reasons {
			batch = withoutReasons(batch)
			continue
		}
		if i >= keys {
			if batch, err = q.refusedKey(ctx, s, batch, ops[i], err); err != nil {
				return 0, err
			}
			continue
		}
		if i >= end {
			if !errors.Is(err, backend.ErrExists) {
				return 0, err
			}
			batch = withoutOptions(batch, ops[i].Path)
			continue
		}
		q.forgetOpen(key)
		// Another client closed, made or removed a bucket, or the list was stale.
		// The next list must be newer than the state that made the commit fail.
		if err := s.Backend().Sync(ctx, q.items); err != nil {
			return 0, err
		}
		pl.closed = pl.use && errors.Is(err, backend.ErrBadVersion)
		pl.was = pl.n
	}
}

// PutValue encodes a value and puts it. It returns the id of the item if the value was put, or may have been.
// If another item has the key, it returns the id of that item.
func (q *Queue) PutValue(ctx context.Context, priority, due int64, o PutOptions, encode func() ([]byte, error)) (id string, err error) {
	id, _, err = q.putValue(ctx, "put", priority, due, o, encode)
	return id, err
}

// PutOnce is PutValue with a key, and without an error if another item has the key.
func (q *Queue) PutOnce(ctx context.Context, priority, due int64, key string, encode func() ([]byte, error)) (id string, put bool, err error) {
	const op = "putonce"
	if key == "" && q.path.Err() == nil {
		return "", false, errs.Op(op, q.path.Full(), fmt.Errorf("%w: the key is empty", backend.ErrInvalid))
	}
	id, inUse, err := q.putValue(ctx, op, priority, due, PutOptions{Key: key}, encode)
	if inUse {
		return id, false, nil
	}
	return id, err == nil, err
}

// putValue is PutValue. inUse reports whether the id is that of another item, which has the key.
func (q *Queue) putValue(ctx context.Context, op string, priority, due int64, o PutOptions, encode func() ([]byte, error)) (id string, inUse bool, err error) {
	ids, n, holder, err := q.putValues(ctx, op, priority, due, o, 1, func(int) ([]byte, error) { return encode() })
	switch {
	case holder != "":
		return holder, true, err
	case n == 1 || len(ids) > 0 && backend.IsUncertain(err): // the error of a codec can match it
		return ids[0], false, err
	}
	return "", false, err
}

// PutValues encodes values and puts them. It returns the ids of the values that were certainly put.
func (q *Queue) PutValues(ctx context.Context, priority, due int64, count int, encode func(i int) ([]byte, error)) (ids []string, err error) {
	ids, n, _, err := q.putValues(ctx, "putall", priority, due, PutOptions{}, count, encode)
	return ids[:n], err
}

// putValues encodes values and puts them. It returns the ids of all values and the number of values that were
// certainly put. holder is the id of the item that has the key, if that is why nothing was put.
func (q *Queue) putValues(ctx context.Context, op string, priority, due int64, o PutOptions, count int, encode func(i int) ([]byte, error)) (ids []string, n int, holder string, err error) {
	if err := q.path.Check(op); err != nil {
		return nil, 0, "", err
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, 0, "", errs.Op(op, q.path.Full(), err)
	}
	if err := o.check(); err != nil {
		return nil, 0, "", errs.Op(op, q.path.Full(), err)
	}
	options, key, traceparent := o.node(), o.newKey(), q.traceOf(ctx)
	all := make([]newItem, count)
	ids = make([]string, count)
	for i := range count {
		data, err := encode(i)
		if err != nil {
			return nil, 0, "", errs.Op(op, q.path.Full(), err)
		}
		ids[i] = q.c.NewGUID(q.path.Full())
		all[i] = newItem{id: ids[i], data: data, options: options, key: key, trace: traceparent}
	}
	span := q.newSpan(op)
	n, err = q.put(ctx, span, priority, due, all)
	if used, ok := err.(*keyInUse); ok { // errors.As would also find the cause of a context that has ended
		holder = used.holder
	}
	err = errs.Op(op, q.path.Full(), err)
	span.Over(ctx, err)
	if span != nil && n > 0 {
		core.Emit(ctx, q.c, trace.ItemsPut{Subject: span.At(""), Items: ids[:n:n]})
	}
	if key.keep > 0 && err == nil {
		q.collectSometimes(key.In(q.keys))
	}
	return ids, n, holder, err
}

// DueAt returns the due time of DelayQueue.Put, for op. A time before the year 0 counts as
// the beginning of that year.
func (q *Queue) DueAt(op string, due time.Time) (int64, error) {
	first := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	switch {
	case due.Before(first):
		due = first // of a time long before, the milliseconds would overflow
	case due.Year() > 9999:
		return 0, errs.Op(op, q.path.Full(), fmt.Errorf("%w: the item is due in the year %d, limit 9999", backend.ErrInvalid, due.Year()))
	}
	return serviceclock.Milliseconds(due), nil
}

// DueAfter returns the due time of DelayQueue.PutAfterWith. It refuses bad options before a request.
func (q *Queue) DueAfter(ctx context.Context, d time.Duration, o PutOptions) (int64, error) {
	if err := q.path.Check("put"); err != nil {
		return 0, err
	}
	if err := o.check(); err != nil {
		return 0, errs.Op("put", q.path.Full(), err)
	}
	now, err := core.OnSession(ctx, q.c, func(s *core.Session) (serviceclock.Moment, error) { return s.Learn(ctx) })
	if err != nil {
		return 0, errs.Op("put", q.path.Full(), err)
	}
	return now.After(d), nil
}
