package queue

import (
	"maps"
	"math"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/serviceclock"
)

// passed is what a consumer remembers of closed buckets from which nothing can be taken yet: see T12.
type passed struct {
	s       *core.Session
	ws      *backend.WatchSet       // of the watches of the buckets; only the feeder takes what has fired
	buckets map[string]passedBucket // by path; guarded by Queue.mu
	dir     itemsList               // of a holder of a slot of a Queue, see W10; only the feeder uses it
}

// itemsList is a list of the directory of items, with a watch that stays armed until the directory changes.
type itemsList struct {
	w     *backend.Watch
	names []string
	stat  backend.Stat
}

type passedBucket struct {
	w     *backend.Watch // of its children
	next  int64          // the earliest time at which one of its items can be taken; 0: it is only watched, for a wait
	items itemsState
}

// itemsState identifies what the directory of items was when it was listed. While it is the same, no key has got
// its first bucket, see P2.
type itemsState struct {
	made    int64 // its czxid
	version int32
}

// counts reports whether the version still counts such buckets, see tally.
func (i itemsState) counts() bool { return i.version >= 0 && i.version < math.MaxInt32 }

// untilReady returns the earliest time at which one of the items can be taken. It reports false if there is no such
// time: a consumer has claimed one of them and can give it back at any time, or there is no item.
func untilReady(items []layout.QueueEntry) (next int64, ok bool) {
	for i := range items {
		if items[i].Marked {
			return 0, false
		}
		next = earlier(next, items[i].Ready())
	}
	return next, len(items) > 0
}

// passedOn returns what the consumer remembers on session s: on a new session nothing.
func (q *Queue) passedOn(s *core.Session) *passed {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.passed == nil || q.passed.s != s {
		if q.passed != nil {
			q.passed.ws.Stop()
		}
		q.passed = &passed{s: s, ws: backend.NewWatchSet(), buckets: make(map[string]passedBucket)}
	}
	return q.passed
}

// passedUntil reports whether the consumer remembers that nothing can be taken from a bucket now, and returns the
// time at which that ends. items is nil if the caller has not listed the directory of items yet.
func (q *Queue) passedUntil(s *core.Session, path string, items *itemsState, now serviceclock.Moment) (next int64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.passed == nil || q.passed.s != s {
		return 0, false
	}
	b, ok := q.passed.buckets[path]
	if !ok || b.w.Kind() != 0 || items != nil && b.items != *items || now.Judge(b.next) != serviceclock.NotYet {
		return 0, false
	}
	return b.next, true
}

// remembers reports whether the walks of a client without a slot watch the buckets that they pass over. They do if the
// last list has shown an item at once. Any other client may be about to wait, when no change of a bucket concerns it.
func (q *Queue) remembers(s *core.Session) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.prompt == s
}

// pass remembers a bucket.
func (q *Queue) pass(p *passed, path string, b passedBucket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if old := p.buckets[path]; old.w != b.w {
		old.w.Stop()
	}
	p.buckets[path] = b
}

// prune forgets the buckets that have changed.
func (q *Queue) prune(p *passed) {
	if len(p.ws.Take()) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(p.buckets, func(_ string, b passedBucket) bool { return b.w.Kind() != 0 })
}
