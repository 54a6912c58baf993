package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/tracing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// redrive is a Redrive under way. After a lost session it continues with the next session.
type redrive struct {
	q      *Queue
	span   *tracing.Span
	all    bool
	wanted map[string]error // the ids that are not moved yet, and why; with all: the ids that cannot be moved
	end    *deadEnd         // nil: not known yet
	moved  int
}

// deadEnd is the end of the dead letters at the beginning of a Redrive. The call can have moved an item
// behind that end, which has become a dead letter again.
type deadEnd struct {
	n, seq int64 // the number of the last bucket, and that of its last item
}

// behind reports whether an item of bucket n is behind the end.
func (end *deadEnd) behind(n int64, e *layout.QueueEntry) bool {
	return n > end.n || n == end.n && e.Seq > end.seq
}

// mostPasses bounds the number of times that a call reads again because an item has changed
// since the list: a list of a server whose tree has diverged is always wrong.
const mostPasses = 10

// errChanging is the error for an item that has changed in each pass.
var errChanging = fmt.Errorf("%w: the item changed during each attempt", errs.ErrConflict)

// errClaimed is the error for an item that a consumer has claimed.
var errClaimed = fmt.Errorf("%w: a consumer has claimed the item", errs.ErrLocked)

// missed returns the error for the items that were not moved, or nil.
func (r *redrive) missed() error {
	same := make(map[string][]string) // ids, by the text of the error
	for id, err := range r.wanted {
		same[err.Error()] = append(same[err.Error()], id)
	}
	var failed []error
	for _, text := range slices.Sorted(maps.Keys(same)) {
		ids := same[text]
		failed = append(failed, fmt.Errorf("items not moved: %d, the first is %q: %w", len(ids), slices.Min(ids), r.wanted[ids[0]]))
	}
	return errors.Join(failed...)
}

// run reads the dead letters, bucket after bucket, and moves the wanted ones. If an item of
// the given ids has changed since the list that showed it, it reads again.
func (r *redrive) run(ctx context.Context, s *core.Session) error {
	if err := s.CheckKind(ctx, r.q.recipeDir()); err != nil {
		return err
	}
	changed := true
	for pass := 0; changed && pass < mostPasses; pass++ {
		changed = false
		for id := range r.wanted {
			r.wanted[id] = backend.ErrNotFound
		}
		if r.all {
			clear(r.wanted)
		}
		buckets, err := r.q.deadBuckets(ctx, s)
		if err == nil && r.end == nil && len(buckets) > 0 {
			r.end, err = endOf(ctx, s, buckets[len(buckets)-1])
		}
		if err != nil {
			return err
		}
		for i, b := range buckets {
			if !r.all && len(r.wanted) == 0 {
				return nil
			}
			again, err := r.bucket(ctx, s, b, i == len(buckets)-1)
			if err != nil {
				return err
			}
			changed = changed || again && !r.all
		}
	}
	return nil
}

// endOf returns the end of the dead letters, whose last bucket is b.
func endOf(ctx context.Context, s *core.Session, b layout.Bucket) (*deadEnd, error) {
	c, err := listBucket(ctx, s, b)
	if err != nil {
		return nil, err
	}
	end := &deadEnd{n: b.N, seq: math.MinInt64}
	for _, e := range c.Items {
		end.seq = max(end.seq, e.Seq)
	}
	return end, nil
}

// bucket moves the items of a bucket that are wanted, and removes the bucket if it is empty
// then, unless it is the last one. again reports whether an item has changed since the list.
func (r *redrive) bucket(ctx context.Context, s *core.Session, b layout.Bucket, last bool) (again bool, err error) {
	c, err := listBucket(ctx, s, b)
	if err != nil {
		return false, err
	}
	var found []layout.QueueEntry
	for _, e := range c.Items {
		_, wanted := r.wanted[e.ID]
		switch {
		case !r.all && !wanted, r.all && r.end.behind(b.N, &e):
		case !e.Marked:
			found = append(found, e)
		case wanted:
			r.wanted[e.ID] = errClaimed
		}
	}
	before := r.moved
	for some := range slices.Chunk(found, r.atOnce(s)) {
		changed, err := r.move(ctx, s, some)
		if err != nil {
			return false, err
		}
		again = again || changed
	}
	r.q.dead.sweep(ctx, s, b, c.Litter, !last && r.moved-before == len(c.Items))
	return again, nil
}

// atOnce is the number of items that are moved in one commit.
func (r *redrive) atOnce(s *core.Session) int {
	if r.q.maxLen > 0 {
		return 1
	}
	const ops = 11 // five that take an item out, and six that put it with its options, trace context and key
	return mostAtOnce(s, lettersAtOnce, ops, 1, ops*(max(len(r.q.items), len(r.q.dead.items))+300))
}

// returning is a dead letter that is moved back into its queue.
type returning struct {
	id       string
	data     []byte
	options  []byte
	once     layout.ItemKey
	trace    string
	key, due int64
	out      []backend.Op // delete it from the dead letters
}

// move moves items that no consumer had claimed at the time of the list. again reports whether
// one of them has changed since.
func (r *redrive) move(ctx context.Context, s *core.Session, items []layout.QueueEntry) (again bool, err error) {
	letters, err := readLetters(ctx, s, items)
	if err != nil {
		return false, err
	}
	again = len(letters) < len(items)
	var some []returning
	size := 0
	for _, l := range letters {
		ours, sure := r.q.ours(l)
		if !ours || r.all && !sure {
			continue
		}
		h := returning{id: l.e.ID, data: l.data, options: l.why.Options, once: l.why.ItemKey(), trace: l.why.Trace}
		switch r.q.kind {
		case layout.KindPriorityQueue:
			h.key, h.due = l.why.Priority, l.why.DueAgain()
		case layout.KindDelayQueue:
			h.due = l.why.DueAgain()
			h.key = r.q.keyOf(0, h.due)
		}
		h.out, err = takeOut(ctx, s, &l.e, true)
		switch {
		case errs.IsNotFound(err), errors.Is(err, errs.ErrAgain):
			r.changed(h.id)
			again = true
			continue
		case err != nil:
			return again, err
		}
		n := len(h.data) + len(h.options) + 512 + len(r.q.items)
		if h.once.Hash != "" {
			n += 3 * (512 + len(r.q.items))
		}
		if h.trace != "" {
			n += 512 + len(r.q.items)
		}
		twice := h.once.Hash != "" && slices.ContainsFunc(some, func(o returning) bool { return o.once.Hash == h.once.Hash })
		if len(some) > 0 && (twice || h.key != some[0].key || h.due != some[0].due || size+n > s.Backend().Limits().Bytes/2) {
			changed, err := r.commit(ctx, s, some)
			if again = again || changed; err != nil {
				return again, err
			}
			some, size = nil, 0
		}
		some, size = append(some, h), size+n
	}
	changed, err := r.commit(ctx, s, some)
	return again || changed, err
}

// commit moves items to one bucket, in one commit. It leaves out the items that have changed since they
// were read, and then reports again.
func (r *redrive) commit(ctx context.Context, s *core.Session, some []returning) (again bool, err error) {
	for len(some) > 0 {
		var with []backend.Op
		var owner []int // for each operation, the index of its item
		var batch []newItem
		for i, h := range some {
			batch = append(batch, newItem{id: h.id, data: h.data, options: h.options, key: newKey{ItemKey: h.once}, trace: h.trace})
			for with = append(with, h.out...); len(owner) < len(with); {
				owner = append(owner, i)
			}
		}
		err := r.q.putBack(ctx, s, some[0].key, some[0].due, batch, with)
		if used, ok := err.(*keyInUse); ok {
			r.wanted[used.item] = used
			some = slices.DeleteFunc(some, func(h returning) bool { return h.id == used.item })
			continue
		}
		i := errs.Blamed(err)
		switch {
		case err == nil:
			r.done(ctx, some)
			return again, nil
		case i < 0 || i >= len(with):
			return again, err
		}
		h := &some[owner[i]]
		if out, ok := withoutNote(h.out, with[i].Path); ok {
			h.out = out
			continue
		}
		if errors.Is(err, backend.ErrNotEmpty) {
			r.wanted[h.id] = err
		} else {
			r.changed(h.id)
			again = true
		}
		some = slices.Delete(some, owner[i], owner[i]+1)
	}
	return again, nil
}

// changed notes that an item has changed since the list that showed it.
func (r *redrive) changed(id string) {
	if !r.all {
		r.wanted[id] = errChanging
	}
}

// done notes that items were moved.
func (r *redrive) done(ctx context.Context, some []returning) {
	r.moved += len(some)
	ids := make([]string, len(some))
	for i, h := range some {
		ids[i] = h.id
		delete(r.wanted, h.id)
	}
	if r.span != nil {
		core.Emit(ctx, r.q.c, trace.ItemsPut{Subject: r.span.At(""), Items: ids})
	}
}

// putBack is putItems for items that were dead letters. With MaxLen it fails with ErrFull if
// there is no room.
func (q *Queue) putBack(ctx context.Context, s *core.Session, key, due int64, batch []newItem, with []backend.Op) error {
	if q.maxLen == 0 {
		_, err := q.putItems(ctx, s, key, due, batch, with)
		return err
	}
	// With counts of its own: the producer that has the turn may wait for room.
	p := &limitedPut{q: q, lim: new(limit), s: s, key: key, due: due, batch: batch, with: with, now: true, traced: true}
	_, err := p.run(ctx)
	return err
}

// remove deletes the item with this id, in session s.
func (q *Queue) remove(ctx context.Context, s *core.Session, id string) error {
	for range mostPasses {
		in, e, err := q.find(ctx, s, id)
		switch {
		case err != nil:
			return err
		case e == nil:
			return backend.ErrNotFound
		case e.Marked:
			return errClaimed
		}
		ops, err := takeOut(ctx, s, e, true)
		for err == nil {
			err = in.commitRemoval(ctx, s, []layout.QueueEntry{*e}, append(ops, in.counting(1)...)...)
			if err == nil {
				return nil
			}
			i := errs.Blamed(err)
			if i == len(ops) {
				in.counted.Store(false)
				err = nil
			} else if i >= 0 {
				if out, ok := withoutNote(ops, ops[i].Path); ok {
					ops, err = out, nil
				}
			}
		}
		// Otherwise the item has changed since the list.
		if !errors.Is(err, errs.ErrAgain) && !errs.IsNotFound(err) && (errs.Blamed(err) < 0 || errors.Is(err, backend.ErrNotEmpty)) {
			return err
		}
	}
	return errChanging
}

// find returns the item with this id, or nil, and the queue that contains it. It searches the queue, the
// dead letters, and the queue again: the item can be moved in either direction during the search.
func (q *Queue) find(ctx context.Context, s *core.Session, id string) (in *Queue, e *layout.QueueEntry, err error) {
	for _, in := range []*Queue{q, q.dead, q} {
		if err := s.CheckKind(ctx, in.recipeDir()); err != nil {
			return nil, nil, err
		}
		names, err := s.List(ctx, in.items)
		if err != nil {
			return nil, nil, err
		}
		in.noteCounting(names)
		for _, b := range layout.Buckets(in.items, names) {
			c, err := listBucket(ctx, s, b)
			if err != nil {
				return nil, nil, err
			}
			if i := slices.IndexFunc(c.Items, func(e layout.QueueEntry) bool { return e.ID == id }); i >= 0 {
				return in, &c.Items[i], nil
			}
		}
	}
	return nil, nil, nil
}

// Redrive is Consumer.Redrive of package coord.
func (q *Queue) Redrive(ctx context.Context, ids []string) (n int, err error) {
	const op = "redrive"
	if err := q.path.Check(op); err != nil {
		return 0, err
	}
	r := &redrive{q: q, span: q.newSpan(op), all: len(ids) == 0, wanted: make(map[string]error, len(ids))}
	for _, id := range ids {
		r.wanted[id] = backend.ErrNotFound
	}
	_, err = core.OnSessionOnce(ctx, q.c, func(s *core.Session) (struct{}, error) { return struct{}{}, r.run(ctx, s) })
	if err == nil {
		err = r.missed()
	}
	return r.moved, errs.Op(op, q.path.Full(), err)
}

// RemoveItem is Consumer.Remove of package coord.
func (q *Queue) RemoveItem(ctx context.Context, id string) error {
	if err := q.path.Check("remove"); err != nil {
		return err
	}
	_, err := core.OnSessionOnce(ctx, q.c, func(s *core.Session) (struct{}, error) { return struct{}{}, q.remove(ctx, s, id) })
	return errs.Op("remove", q.path.Full(), err)
}
