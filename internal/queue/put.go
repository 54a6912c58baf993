package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/serviceclock"
	"github.com/go-coord/coord/internal/tracing"
	"github.com/go-coord/coord/internal/txn"
	"github.com/go-coord/coord/trace"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// newItem is an item to put.
type newItem struct {
	id     string
	data   []byte
	reason []byte // of a dead letter: the data of the node beside it; nil: none
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
			n, size, most, room := 0, 0, mostAtOnce(s, maxBatch, 1, 0, 1), s.Backend().Limits().Bytes*9/10
			if q.maxLen == 0 && s.Backend().Limits().Ops == 0 {
				most = maxPut
			}
			for n < len(all)-done && n < most {
				size += len(q.items) + 512 + len(all[done+n].data)
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

// tally is the version of the directory of items or, once these versions are used up,
// the version of the node tally beside the buckets. Each commit that makes a bucket for a key without
// an open one increments it, on condition that it is the version that was read.
type tally struct {
	path    string
	version int32
}

// next returns the operations that increment the tally. The data of the directory becomes news.
func (t tally) next(news []byte) []backend.Op {
	if t.version == math.MaxInt32 {
		// There is no version after this one. A new node begins with version 0.
		return []backend.Op{backend.Delete(t.path, t.version), backend.Create(t.path, nil, backend.Persistent)}
	}
	return []backend.Op{backend.SetData(t.path, news, t.version)}
}

// listBuckets lists the directory of items. The tally is not newer than the list.
func (q *Queue) listBuckets(ctx context.Context, s *core.Session) ([]string, backend.Stat, tally, error) {
	names, stat, err := s.Backend().Children(ctx, q.items, nil)
	q.noteCounting(names)
	if err != nil || stat.Version >= 0 && stat.Version < math.MaxInt32 {
		return names, stat, tally{q.items, stat.Version}, err
	}
	// The version of the directory is used up and does not change any more.
	next := tally{q.items + "/" + layout.TallyName, 0}
	next.version, err = versionOfNode(ctx, s, next.path)
	if err != nil {
		return nil, backend.Stat{}, tally{}, err
	}
	names, stat, err = s.Backend().Children(ctx, q.items, nil)
	return names, stat, next, err
}

// versionOfNode returns the version of an empty node, and makes the node if it is
// missing.
func versionOfNode(ctx context.Context, s *core.Session, path string) (int32, error) {
	pause := core.NewPauses(s.Client())
	for {
		stat, err := s.Backend().Exists(ctx, path, nil)
		switch {
		case err == nil && stat.Version < 0:
			return 0, errs.ErrVersions // an outsider wrote it
		case err == nil || !errs.IsNotFound(err):
			return stat.Version, err
		}
		_, err = s.Backend().Commit(ctx, backend.Create(path, nil, backend.Persistent))
		switch {
		case err == nil:
		case errors.Is(err, backend.ErrExists):
			if err := s.Backend().Sync(ctx, path); err != nil {
				return 0, err
			}
		case errs.MayRepeat(ctx, err):
			pause.Wait(ctx.Done(), s.Backend().Done())
		default:
			return 0, s.NotSent(ctx, err)
		}
	}
}

// putItems creates items in one commit together with the operations of with, and returns their number: all, or if
// the queue has no room for the buckets that they need, the first ones, at least maxBatch. The first maxBatch are in one bucket; only these
// can have reasons. If one of the operations of with fails, putItems returns the error unchanged, with its index in
// with. It leaves out the reasons of dead letters if the commit would be too large with them, or if
// another client has made a node of that name.
func (q *Queue) putItems(ctx context.Context, s *core.Session, key, due int64, batch []newItem, with []backend.Op) (int, error) {
	if err := s.ClaimKind(ctx, q.recipeDir()); err != nil {
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
		for _, p := range batch {
			if room == 0 {
				n, room = n+1, q.size
				ops = append(ops, backend.SetData(bucket, nil, 0))
				bucket = layout.BucketPath(q.items, pl.key, n)
				ops = append(ops, backend.Create(bucket, nil, backend.Persistent))
			}
			room--
			ops = append(ops, backend.Create(bucket+"/"+layout.ItemStem(p.id, due), p.data, backend.PersistentSequential))
		}
		// Behind the items, so that neither their indexes nor their numbers change.
		end := len(ops)
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
		if i >= end {
			batch = withoutReasons(batch)
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

// fills reports whether a bucket has as many nodes as it should get, by the result of the
// creation of its last item. stem is the name of the item without its number.
func (q *Queue) fills(res backend.Result, stem string) bool {
	if res.Siblings > 0 {
		return int(res.Siblings) >= q.size
	}
	// If the service does not tell the siblings, the sequence number counts the items that the
	// bucket was ever given. It has at most as many.
	seq, ok := layout.ParseDigits(strings.TrimPrefix(nodepath.Base(res.Path), stem))
	return !ok || seq+1 >= int64(q.size)
}

// putPlan is the choice of a bucket for a put, and how the put must change the
// buckets.
type putPlan struct {
	key   int64 // of the bucket
	n     int64
	use   bool  // bucket n is expected to be open
	full  bool  // and the put must close it
	more  int   // buckets that the queue has room for after that
	tally tally // that of the list

	closed bool  // the previous attempt found its bucket closed
	was    int64 // the number of that bucket
}

// target returns the number of the bucket that receives the items.
func (p *putPlan) target() int64 {
	if p.use && !p.full {
		return p.n
	}
	return p.n + 1
}

// planPut chooses a bucket for key, or in a DelayQueue for the key of a longer span: see D4. more is the number of buckets that
// the put makes after that one, if there is room for them.
func (q *Queue) planPut(ctx context.Context, s *core.Session, key int64, more int, p *putPlan) error {
	own := key
	q.mu.Lock()
	o, known := q.open[own]
	if !known && q.many {
		key = q.coarser(own)
		o, known = q.open[key]
	}
	q.mu.Unlock()
	if known && !o.full && more == 0 {
		*p = putPlan{key: key, n: o.n, use: true}
		return nil
	}
	closed, was, wasOf := p.closed, p.was, p.key
	for before := int64(-1); ; {
		names, stat, t, err := q.listBuckets(ctx, s)
		if err != nil {
			return err
		}
		all := layout.Buckets(q.items, names)
		key, o, known = q.keyBeside(all, own)
		*p = putPlan{key: key, n: -1, tally: t}
		for _, b := range all {
			if b.Key == key {
				p.n, p.use = b.N, true
			}
		}
		if p.use && closed && key == wasOf && p.n == was {
			b, err := s.Backend().Exists(ctx, layout.BucketPath(q.items, key, p.n), nil)
			switch {
			case errs.IsNotFound(err):
				continue // the list is stale
			case err != nil:
				return err
			case b.Version == 0:
				// It is a new bucket of the same name.
			case b.Mzxid <= stat.AsOf || b.Mzxid == before:
				p.use = false // it was closed already when it was listed as the last one
			default:
				before = b.Mzxid // closed since the list; the next list shows what followed
				continue
			}
		}
		p.full = p.use && known && p.n == o.n && o.full
		p.more = int(min(int64(more), int64(q.most-len(all)), layout.MaxNumber-p.n))
		if p.n != p.target() {
			p.more--
		}
		p.more = max(p.more, 0)
		switch {
		case p.use && !p.full:
			return nil
		case p.n >= layout.MaxNumber:
			return fmt.Errorf("%w: bucket %q has the highest possible number", errs.ErrLimit, layout.BucketPath(q.items, key, p.n))
		case len(all) < q.most:
			return nil
		}
		freed, err := q.sweepEmpty(ctx, s, all)
		if err != nil {
			return err
		}
		if !freed {
			return fmt.Errorf("%w: the queue has %d buckets, the maximum; put again when consumers have emptied one", errs.ErrLimit, len(all))
		}
	}
}

// keyBeside returns the key under which an item of the given key is put if the queue has these
// buckets, and the bucket of the latest put of that key.
func (q *Queue) keyBeside(all []layout.Bucket, own int64) (key int64, o openBucket, known bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.many = q.kind == layout.KindDelayQueue && len(all) >= q.most/5*2
	if key = own; q.many && !slices.ContainsFunc(all, func(b layout.Bucket) bool { return b.Key == own }) {
		key = q.coarser(own)
	}
	o, known = q.open[key]
	return key, o, known
}

// An item that is due later than this can share a key of an hour, or of a day.
const (
	hourKeys = 24 * time.Hour
	dayKeys  = 30 * 24 * time.Hour
)

// coarser returns the key of the span that an item of a minute shares with others in a queue with
// many buckets. The clock of the client decides, since any span is right.
func (q *Queue) coarser(minute int64) int64 {
	switch d := time.UnixMilli(minute).Sub(q.c.Wall()); {
	case d > dayKeys:
		return spanOf(minute, 24*time.Hour)
	case d > hourKeys:
		return spanOf(minute, time.Hour)
	}
	return minute
}

// spanOf returns the beginning of the span in which a time in milliseconds is.
func spanOf(at int64, span time.Duration) int64 {
	ms := span.Milliseconds()
	return at - ((at%ms)+ms)%ms
}

// sweepEmpty deletes the empty buckets, except the last, and reports whether it
// freed any. A client that found none does not try again within a minute.
func (q *Queue) sweepEmpty(ctx context.Context, s *core.Session, all []layout.Bucket) (freed bool, err error) {
	q.mu.Lock()
	soon := time.Since(q.swept) < time.Minute
	q.mu.Unlock()
	if soon {
		return false, nil
	}
	for _, b := range all[:len(all)-1] {
		stat, err := s.Backend().Exists(ctx, b.Path, nil)
		switch {
		case errs.IsNotFound(err):
			freed = true
		case err != nil:
			return false, err
		case stat.NumChildren == 0:
			freed = q.sweep(ctx, s, b, nil, true) || freed
		}
	}
	if !freed {
		q.mu.Lock()
		q.swept = time.Now()
		q.mu.Unlock()
	}
	return freed, nil
}

// ops returns the operations that precede the creations of the items, and the path
// of the bucket of the items. If a bucket is made for a key without an open one, they
// increment the tally of the list.
func (p *putPlan) ops(q *Queue, with []backend.Op) ([]backend.Op, string) {
	ops := with[:len(with):len(with)]
	target := layout.BucketPath(q.items, p.key, p.target())
	switch {
	case p.use && p.full:
		ops = append(ops, backend.SetData(layout.BucketPath(q.items, p.key, p.n), nil, 0), backend.Create(target, nil, backend.Persistent))
	case p.use:
		ops = append(ops, backend.Check(target, 0))
	default:
		var news []byte
		if q.kind == layout.KindDelayQueue {
			news = strconv.AppendInt(nil, p.key, 10) // see W9
		}
		ops = append(append(ops, p.tally.next(news)...), backend.Create(target, nil, backend.Persistent))
	}
	return ops, target
}

func (q *Queue) setOpen(key int64, o openBucket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.open) >= maxOpen {
		clear(q.open)
	}
	q.open[key] = o
}

func (q *Queue) forgetOpen(key int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.open, key)
	if q.kind == layout.KindDelayQueue {
		delete(q.open, spanOf(key, time.Hour))
		delete(q.open, spanOf(key, 24*time.Hour))
	}
}

// openBucket returns the bucket that takes the items of key, and makes one if there
// is none or it is full. The transaction cannot make the bucket together with the
// item: two items of one queue in one transaction would each make it.
func (q *Queue) openBucket(ctx context.Context, s *core.Session, key int64) (string, error) {
	if err := s.ClaimKind(ctx, q.recipeDir()); err != nil {
		return "", err
	}
	var pl putPlan
	for {
		err := q.planPut(ctx, s, key, 0, &pl)
		if errs.IsNotFound(err) {
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
			case err != nil && !errs.IsNotFound(err):
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
			if errs.Blamed(err) < 0 {
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

// PutValue encodes a value and puts it. It returns the id of the item if the value was put, or may have been.
func (q *Queue) PutValue(ctx context.Context, priority, due int64, encode func() ([]byte, error)) (id string, err error) {
	ids, n, err := q.putValues(ctx, "put", priority, due, 1, func(int) ([]byte, error) { return encode() })
	if n == 1 || len(ids) > 0 && backend.IsUncertain(err) { // the error of a codec can match it
		return ids[0], err
	}
	return "", err
}

// PutValues encodes values and puts them. It returns the ids of the values that were certainly put.
func (q *Queue) PutValues(ctx context.Context, priority, due int64, count int, encode func(i int) ([]byte, error)) (ids []string, err error) {
	ids, n, err := q.putValues(ctx, "putall", priority, due, count, encode)
	return ids[:n], err
}

// putValues encodes values and puts them. It returns the ids of all values and the number of values that were
// certainly put.
func (q *Queue) putValues(ctx context.Context, op string, priority, due int64, count int, encode func(i int) ([]byte, error)) (ids []string, n int, err error) {
	if err := q.path.Check(op); err != nil {
		return nil, 0, err
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, 0, errs.Op(op, q.path.Full(), err)
	}
	all := make([]newItem, count)
	ids = make([]string, count)
	for i := range count {
		data, err := encode(i)
		if err != nil {
			return nil, 0, errs.Op(op, q.path.Full(), err)
		}
		ids[i] = q.c.NewGUID(q.path.Full())
		all[i] = newItem{id: ids[i], data: data}
	}
	span := q.newSpan(op)
	n, err = q.put(ctx, span, priority, due, all)
	err = errs.Op(op, q.path.Full(), err)
	span.Over(ctx, err)
	if span != nil && n > 0 {
		core.Emit(ctx, q.c, trace.ItemsPut{Subject: span.At(""), Items: ids[:n:n]})
	}
	return ids, n, err
}

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
func (q *Queue) PutOp(priority, due int64, encode func() ([]byte, error)) txn.Op {
	data, err := encode()
	if err == nil {
		err = q.mayPut(data)
	}
	p := &txnPut{q, q.keyOf(priority, due), due, data}
	return txn.Op{Name: "put", Path: q.path.Full(), Err: cmp.Or(q.path.Check("put"), errs.Op("put", q.path.Full(), err)),
		Expand: p.expand, Again: p.again, Ended: p.ended}
}

// DuePutOp is PutOp for DelayQueue.PutOp.
func (q *Queue) DuePutOp(due time.Time, encode func() ([]byte, error)) txn.Op {
	at, err := q.DueAt("put", due)
	if err != nil {
		return txn.Op{Name: "put", Path: q.path.Full(), Err: err}
	}
	return q.PutOp(0, at, encode)
}

// txnPut is a Put as a part of a transaction.
type txnPut struct {
	q        *Queue
	key, due int64
	data     []byte
}

// expand returns the requests of the transaction, and makes the bucket that they need.
func (p *txnPut) expand(ctx context.Context, s *core.Session, _ []backend.Op) ([]backend.Op, error) {
	bucket, err := p.q.openBucket(ctx, s, p.key)
	if err != nil {
		return nil, err
	}
	return []backend.Op{
		backend.Check(bucket, 0),
		backend.Create(bucket+"/"+layout.ItemStem(p.q.c.NewGUID(bucket), p.due), p.data, backend.PersistentSequential),
	}, nil
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

// DueAfter returns the due time of DelayQueue.PutAfter.
func (q *Queue) DueAfter(ctx context.Context, d time.Duration) (int64, error) {
	if err := q.path.Check("put"); err != nil {
		return 0, err
	}
	now, err := core.OnSession(ctx, q.c, func(s *core.Session) (serviceclock.Moment, error) { return s.Learn(ctx) })
	if err != nil {
		return 0, errs.Op("put", q.path.Full(), err)
	}
	return now.After(d), nil
}
