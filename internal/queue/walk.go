package queue

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/follow"
	"github.com/go-coord/coord/internal/parallel"
	"github.com/go-coord/coord/internal/serviceclock"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// sight is a consumer's view of a queue.
type sight struct {
	found []layout.QueueEntry  // items that can be taken, in order
	stuck map[string]time.Time // items to ignore, by path, and until when
	now   serviceclock.Moment
	next  int64     // if nothing was found: the earliest time at which an item can be taken; 0: no item is put off
	retry time.Time // if nothing was found: until when the first of the items to ignore is ignored, or zero
	doubt bool      // the walk has stopped at an item that may be due, since it learns the time later

	later bool // no bucket of the DelayQueue is due
	items itemsState
}

// learning says when a walk may write to learn the time of the service, if the session does not
// know it.
type learning int8

const (
	// learnsNow is for callers that do not wait.
	learnsNow learning = iota
	// learnsLater is for a consumer that makes a waiter if it finds nothing: that write tells the
	// time as well. Only if the clock of this process says that an item is due does it pay to
	// write at once.
	learnsLater
)

// bucketList is a list of a bucket.
type bucketList struct {
	path  string
	names []string
	stat  backend.Stat
	err   error
}

func (l *bucketList) read(ctx context.Context, s *core.Session, w *backend.Watch) {
	l.names, l.stat, l.err = s.Backend().Children(ctx, l.path, w)
}

// walk lists bucket after bucket until it finds an item that can be taken, and
// returns up to want items of that bucket. With a watch set, it arms watches on all
// nodes that it reads; they fire on every change that can make an item available.
// It ignores the items whose paths are in stuck, until the time given there.
//
// In a Queue it lists the bucket that was first at the last take before it lists the buckets: no new
// bucket can precede it. In a PriorityQueue a new bucket can, but seldom does: so the walk lists both at
// the same time. So does a walk of a Queue with watches, which needs both lists.
//
// An item that is put off, or not due, is found if the service's clock certainly shows its
// time. If the session does not know the time, the walk learns it at the first such item, or
// stops there in doubt.
//
// A walk with p adds the buckets that it passes over, see T12.
func (q *Queue) walk(ctx context.Context, s *core.Session, want int, ws *backend.WatchSet, p *passed, stuck map[string]time.Time, l learning) (sight, error) {
	if q.kind == layout.KindQueue && ws == nil {
		if head := q.headToList(s); head != "" {
			names, stat, err := s.Backend().Children(ctx, head, nil)
			if err != nil && !errs.IsNotFound(err) {
				return sight{}, err
			}
			v := sight{stuck: stuck, now: s.Clock().Now()}
			if err := v.look(ctx, s, layout.ParseBucket(head, names, stat.AsOf).Items, want, l); err != nil || v.doubt || len(v.found) > 0 {
				return v, err
			}
		}
	}
	var names []string // none if there was no put yet, or an outsider has removed the directory
	var dir backend.Stat
	var err error
	readItems := func() {
		kept := q.kind == layout.KindQueue && ws != nil && p != nil
		if kept && p.dir.w != nil && p.dir.w.Kind() == 0 {
			names, dir = p.dir.names, p.dir.stat
			return
		}
		set := ws
		if kept {
			p.dir.w.Stop()
			set = p.ws
		}
		var w *backend.Watch
		w, err = follow.ReadOrAwait(ctx, s, set, q.items, func(w *backend.Watch) (err error) {
			names, dir, err = s.Backend().Children(ctx, q.items, w)
			return err
		})
		if kept {
			p.dir = itemsList{w, names, dir}
		}
	}
	var head bucketList
	if q.kind == layout.KindPriorityQueue || q.kind == layout.KindQueue && ws != nil {
		head.path = q.headToList(s)
	}
	if head.path == "" {
		readItems()
	} else {
		parallel.Do(2, func(i int) {
			if i == 0 {
				readItems()
				return
			}
			w := ws.New()
			if head.read(ctx, s, w); head.err != nil {
				w.Stop()
			}
		})
	}
	q.noteCounting(names)
	if err != nil {
		return sight{}, err
	}
	v := sight{stuck: stuck, now: s.Clock().Now(), items: itemsState{dir.Czxid, dir.Version}}
	all, first := layout.Buckets(q.items, names), ""
	q.noteTurn(all)
	lists := 0 // the first list shows an item as a rule, so it arms no watch that would fire for each change of the bucket
	for i, b := range all {
		if q.kind == layout.KindDelayQueue {
			due := v.due(b.Key)
			if v.doubt {
				if err := v.settle(ctx, s, b.Key, l); err != nil {
					return v, err
				}
				due = !v.doubt && v.due(b.Key)
			}
			if !due {
				v.later = i == 0 && !v.doubt
				return v, nil
			}
		}
		if next, ok := q.passedUntil(s, b.Path, &v.items, v.now); ok {
			v.next = earlier(v.next, next)
			if first == "" {
				first = b.Path
				q.setHead(first)
			}
			continue
		}
		list := head
		var kept *backend.Watch // of a bucket to remember
		if b.Path != head.path || head.err != nil || i < len(all)-1 && !v.shows(&head) {
			w := ws.New()
			if closed := i < len(all)-1 && all[i+1].Key == b.Key; closed && p != nil && (ws != nil || lists > 0) {
				w.Stop()
				kept = p.ws.New()
				w = kept
			}
			lists++
			list = bucketList{path: b.Path}
			if list.read(ctx, s, w); list.err != nil {
				w.Stop()
			}
			if errs.IsNotFound(list.err) {
				continue
			}
			if list.err != nil {
				return sight{}, list.err
			}
		}
		if kept != nil {
			q.pass(p, b.Path, passedBucket{w: kept})
		}
		c := layout.ParseBucket(b.Path, list.names, list.stat.AsOf)
		if len(c.Items) == 0 && (i < len(all)-1 || len(c.Litter) > 0) {
			q.sweep(ctx, s, b, c.Litter, len(c.Litter) == len(list.names) && i < len(all)-1)
			continue
		}
		if first == "" {
			first = b.Path
			q.setHead(first)
		}
		if err := v.look(ctx, s, c.Items, want, l); err != nil || v.doubt || len(v.found) > 0 {
			kept.Stop()
			return v, err
		}
		if next, ok := untilReady(c.Items); ok && kept != nil && v.items.counts() {
			q.pass(p, b.Path, passedBucket{kept, next, v.items})
		}
	}
	return v, nil
}

// shows reports whether a list shows an item that can be taken, or may be. The list of the first
// bucket was read beside that of the buckets. If it shows none and the bucket is not the last, it can
// be older than the last put into that bucket, so the walk lists it again before it passes over it.
func (v sight) shows(l *bucketList) bool {
	v.found = nil
	v.add(layout.ParseBucket(l.path, l.names, l.stat.AsOf).Items, 1)
	return len(v.found) > 0 || v.doubt
}

// look adds the items that can be taken, until v has want of them. If it is in doubt about the
// first one, it learns the time of the service, or leaves the doubt.
func (v *sight) look(ctx context.Context, s *core.Session, items []layout.QueueEntry, want int, l learning) error {
	rest := v.add(items, want)
	if !v.doubt || len(v.found) > 0 {
		return nil
	}
	err := v.settle(ctx, s, rest[0].Ready(), l)
	if err == nil && !v.doubt {
		v.add(rest, want)
	}
	return err
}

// add adds the items that can be taken, until v has want of them. It stops at an item that is in
// doubt, and returns that item and the items after it.
func (v *sight) add(items []layout.QueueEntry, want int) (rest []layout.QueueEntry) {
	now := time.Now()
	for i := range items {
		e := &items[i]
		switch {
		case e.Marked:
		case !v.due(e.Ready()):
			if v.doubt {
				return items[i:]
			}
		case len(v.stuck) > 0 && v.stuck[e.Path()].After(now):
			if until := v.stuck[e.Path()]; v.retry.IsZero() || until.Before(v.retry) {
				v.retry = until
			}
		default:
			if v.found = append(v.found, *e); len(v.found) == want {
				return nil
			}
		}
	}
	return nil
}

// due reports whether the service's clock certainly shows a time. If not, it notes the time or
// the doubt.
func (v *sight) due(at int64) bool {
	switch v.now.Judge(at) {
	case serviceclock.Reached:
		return true
	case serviceclock.InDoubt:
		v.doubt = true
	case serviceclock.NotYet:
		v.next = earlier(v.next, at)
	}
	return false
}

// settle ends the doubt about a time by learning the time of the service, unless that can be
// done later.
func (v *sight) settle(ctx context.Context, s *core.Session, at int64, l learning) error {
	if l == learnsLater && at > s.Client().Wall().UnixMilli() {
		return nil
	}
	now, err := s.Learn(ctx)
	if err == nil {
		v.now, v.doubt = now, false
	}
	return err
}

// earlier returns the earlier of two times, of which 0 means none.
func earlier(a, b int64) int64 {
	if a == 0 || b < a {
		return b
	}
	return a
}

// sweep deletes litter and, with whole, the bucket if it is empty then, whether it
// is open or not. If the commit fails, the next walk tries again. sweep reports
// whether it removed something.
func (q *Queue) sweep(ctx context.Context, s *core.Session, b layout.Bucket, litter []string, whole bool) bool {
	var ops []backend.Op
	batch := q.batch(s)
	for _, name := range litter {
		if len(ops) >= batch {
			whole = false
			break
		}
		ops = append(ops, backend.Delete(b.Path+"/"+name, backend.AnyVersion))
		if id, key, ok := layout.ParseTag(name); ok && key.Until == 0 {
			holder, _ := (&layout.QueueEntry{Bucket: b.Path, ID: id, Tag: key}).KeyAt()
			ops = append(ops, backend.Delete(holder, backend.AnyVersion))
		}
	}
	if whole {
		ops = append(ops, backend.Delete(b.Path, backend.AnyVersion))
	}
	if len(ops) == 0 {
		return false
	}
	_, err := s.Backend().Commit(ctx, ops...)
	for i := errs.Blamed(err); i >= 0 && strings.HasPrefix(ops[i].Path, q.keys+"/"); i = errs.Blamed(err) {
		ops = slices.Delete(ops, i, i+1) // an outsider has deleted h, or made a node below it
		_, err = s.Backend().Commit(ctx, ops...)
	}
	if err != nil && !errs.Raced(err) && !backend.IsUncertain(err) && !errs.IsOver(err) && ctx.Err() == nil {
		s.Client().Log().Warn("coord: cannot remove an empty bucket of a queue, leaving it to the next consumer", "path", b.Path, "error", err)
	}
	return err == nil
}

func (q *Queue) knownHead() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.head
}

// headToList returns the path of the bucket that was first, or "" if it is not known, or if nothing can be taken from
// it yet.
func (q *Queue) headToList(s *core.Session) string {
	head := q.knownHead()
	if _, ok := q.passedUntil(s, head, nil, s.Clock().Now()); ok {
		return ""
	}
	return head
}

// choose returns the items of a list to claim in one commit, want at most, and the items behind them. If
// other consumers take from the head of the queue, it skips a few items. But from every fourth list it
// takes the head: there may be no other consumer that takes the first item.
func (q *Queue) choose(items []layout.QueueEntry, want int) (found, rest []layout.QueueEntry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	want = min(want, len(items))
	q.lists++
	if extra := min(q.rivals, len(items)-want); extra > 0 && q.lists%4 > 0 {
		items = items[q.c.Random("spread")%uint64(extra+1):]
	}
	n := q.atOnce(items, want)
	return items[:n:n], items[n:]
}

const mostRivals = 32

// noteRival records whether another consumer was faster with an item.
func (q *Queue) noteRival(rival bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if rival {
		q.run = 0
	}
	switch {
	case q.kind != layout.KindQueue:
	case rival:
		q.rivals = min(q.rivals+4, mostRivals)
	case q.rivals > 0:
		q.rivals--
	}
}

func (q *Queue) setHead(path string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.head = path
}

// ignoreTime is how long a client ignores an item that it cannot move to the dead
// letters or claim, or that only its server has.
const ignoreTime = time.Minute

// ignore makes the client ignore an item for ignoreTime.
func (q *Queue) ignore(path string) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stuck == nil {
		q.stuck = make(map[string]time.Time)
	}
	maps.DeleteFunc(q.stuck, func(_ string, until time.Time) bool { return !until.After(now) })
	q.stuck[path] = now.Add(ignoreTime)
	q.forgetLocked()
}

// stuckItems returns the paths of the items to ignore, and until when.
func (q *Queue) stuckItems() map[string]time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.stuck) == 0 {
		return nil
	}
	return maps.Clone(q.stuck)
}

// eachBucket lists every bucket of the queue. It calls f with each bucket, whether
// it is the last one, and its contents.
func (q *Queue) eachBucket(ctx context.Context, s *core.Session, f func(b layout.Bucket, last bool, c layout.BucketContents) error) error {
	names, _, err := s.Backend().Children(ctx, q.items, nil)
	if err != nil {
		return err
	}
	q.noteCounting(names)
	all := layout.Buckets(q.items, names)
	for i, b := range all {
		names, stat, err := s.Backend().Children(ctx, b.Path, nil)
		if errs.IsNotFound(err) {
			continue
		}
		if err == nil {
			err = f(b, i == len(all)-1, layout.ParseBucket(b.Path, names, stat.AsOf))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// countItems returns the number of items.
func (q *Queue) countItems(ctx context.Context, s *core.Session) (n int, err error) {
	err = q.eachBucket(ctx, s, func(_ layout.Bucket, _ bool, c layout.BucketContents) error {
		n += len(c.Items)
		return nil
	})
	return n, err
}
