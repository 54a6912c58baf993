package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// openBucket is the bucket that a put tries first.
type openBucket struct {
	n    int64
	full bool
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
