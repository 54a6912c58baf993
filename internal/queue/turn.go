package queue

import (
	"context"
	"math"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/parallel"
)

// This file takes items out of the order of priorities, for FairEvery. The rules are T11 in rules.go.

// fairTurn is the next turn of a priority behind the first one.
type fairTurn struct {
	left   int           // takes before it; -1: not drawn yet
	bucket layout.Bucket // the first bucket of a priority behind the first one; no path: the latest list has shown none
	last   bool          // and it is the last bucket of the queue
}

// noteTurn chooses the priority of the next turn from a list of buckets. The choice is random, so that consumers
// that take few items, and priorities that come and go, leave none out.
func (q *Queue) noteTurn(all []layout.Bucket) {
	if q.fairEvery == 0 {
		return
	}
	var firsts []int // of each priority behind the first one, the index of its first bucket
	for i := 1; i < len(all); i++ {
		if all[i].Key != all[i-1].Key {
			firsts = append(firsts, i)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turn.bucket, q.turn.last = layout.Bucket{}, false
	if n := len(firsts); n > 0 {
		i := firsts[q.c.Random("priority")%uint64(n)]
		q.turn.bucket, q.turn.last = all[i], i == len(all)-1
	}
}

// isTurn counts a take, and reports whether it is the turn t. A turn for which no priority is known is put off to
// the next take.
func (q *Queue) isTurn() (t fairTurn, ok bool) {
	if q.fairEvery == 0 {
		return fairTurn{}, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	t = q.turn
	switch {
	case t.left < 0:
		q.turn.left = int(q.c.Random("turn") % uint64(q.fairEvery))
		return t, false
	case t.left > 0:
		q.turn.left--
		return t, false
	case t.bucket.Path == "":
		return t, false
	}
	q.turn.left = q.fairEvery - 1
	return t, true
}

// walkInTurn is walk for a take that does not wait. In the turn of a priority behind the first one it also lists
// that priority's first bucket, at the same time, and returns the items of that bucket if any can be taken.
func (q *Queue) walkInTurn(ctx context.Context, s *core.Session, p *passed, l learning) (v sight, err error) {
	stuck := q.stuckItems()
	t, ok := q.isTurn()
	if !ok {
		return q.walk(ctx, s, math.MaxInt, nil, p, stuck, l)
	}
	list := bucketList{path: t.bucket.Path}
	parallel.Do(2, func(i int) {
		if i == 0 {
			v, err = q.walk(ctx, s, math.MaxInt, nil, p, stuck, l)
			return
		}
		list.read(ctx, s, nil)
	})
	if err != nil || list.err != nil {
		return v, err
	}
	c := layout.ParseBucket(list.path, list.names, list.stat.AsOf)
	if len(c.Items) == 0 { // else the next turn would find this bucket again
		q.sweep(ctx, s, t.bucket, c.Litter, len(c.Litter) == len(list.names) && !t.last)
		return v, nil
	}
	u := sight{stuck: stuck, now: s.Clock().Now()}
	if u.add(c.Items, math.MaxInt); len(u.found) > 0 {
		v.found = u.found
	}
	return v, nil
}
