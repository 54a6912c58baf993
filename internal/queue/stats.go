package queue

import (
	"context"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"

	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/queuestat"
)

// mostStats is the number of buckets that Stats lists at most, of the queue and of the
// dead letters each.
const mostStats = 256

func (q *Queue) stats(ctx context.Context, s *core.Session) (st queueFigures, err error) {
	if err := s.Backend().Sync(ctx, q.items); err != nil {
		return st, err
	}
	dirs, err := standingLists(ctx, s, q.items, q.waiters.g.Dir, q.dead.items)
	if err != nil {
		return st, err
	}
	st.Waiting = queuestat.Waiting(dirs[1])
	live, dead := layout.Buckets(q.items, dirs[0]), layout.Buckets(q.dead.items, dirs[2])
	st.Buckets = len(live)
	st.Unread = max(len(live)-mostStats, 0) + max(len(dead)-mostStats, 0)
	live, dead = live[:min(len(live), mostStats)], dead[:min(len(dead), mostStats)]
	var paths []string
	for _, b := range live {
		paths = append(paths, b.Path)
	}
	for _, b := range dead {
		paths = append(paths, b.Path)
	}
	lists, err := standingLists(ctx, s, paths...)
	if err != nil {
		return st, err
	}
	contents := make([]layout.BucketContents, len(live))
	unclaimed := false
	for i, b := range live {
		contents[i] = layout.ParseBucket(b.Path, lists[i], 0)
		for _, e := range contents[i].Items {
			unclaimed = unclaimed || !e.Marked
		}
	}
	for i, b := range dead {
		st.Dead += len(layout.ParseBucket(b.Path, lists[len(live)+i], 0).Items)
	}
	now := int64(0) // not used if all items are claimed
	if unclaimed {
		m, err := s.Learn(ctx)
		if err != nil {
			return st, err
		}
		now = m.Least / int64(time.Millisecond)
	}
	var t queuestat.Tally
	for i, b := range live {
		t.Add(b, contents[i], now, nil)
	}
	st.Ready, st.Claimed, st.Delayed = t.Ready, t.Claimed, t.Delayed
	since, err := t.Oldest(ctx, s.Backend())
	if since > 0 {
		st.Oldest = max(time.Duration(now-since)*time.Millisecond, 0)
	}
	return st, err
}

// standingLists lists directories. The list of one that is missing is empty.
func standingLists(ctx context.Context, s *core.Session, paths ...string) ([][]string, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	lists, err := queuestat.Lists(ctx, s.Backend(), paths...)
	if err != nil {
		return nil, err
	}
	names := make([][]string, len(lists))
	for i, l := range lists {
		if l.Err != nil && !errs.IsNotFound(l.Err) {
			return nil, l.Err
		}
		names[i] = l.Names
	}
	return names, nil
}

// queueFigures is coord.QueueStats.
type queueFigures struct {
	Ready   int // items that a consumer can take now
	Claimed int // items that a consumer has claimed, including prefetched items
	Delayed int // items that are not due, or put off by Nack
	Dead    int
	Oldest  time.Duration
	Waiting int
	Buckets int
	Unread  int
}

// ReadStats is Consumer.Stats of package coord.
func (q *Queue) ReadStats(ctx context.Context) (queueFigures, error) {
	if err := q.path.Check("stats"); err != nil {
		return queueFigures{}, err
	}
	st, err := core.OnSession(ctx, q.c, func(s *core.Session) (queueFigures, error) { return q.stats(ctx, s) })
	if err != nil {
		return queueFigures{}, errs.Op("stats", q.path.Full(), err)
	}
	return st, nil
}
