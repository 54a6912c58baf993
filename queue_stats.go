package coord

import (
	"context"
	"time"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/queuestat"
)

// QueueStats are the figures of a queue at a moment, for operators. Their nodes are read
// in a few requests, one after the other, so the figures are not a snapshot: an item that
// is claimed, acknowledged or moved meanwhile is counted as it was when its node was read.
// An item that moves to the dead letters at that moment can be counted twice, or not at
// all.
//
// If Ready is positive while Claimed and Waiting are zero, no consumer takes items.
type QueueStats struct {
	Ready   int // items that a consumer can take now
	Claimed int // items that a consumer has claimed, including prefetched items
	Delayed int // items that are not due, or put off by Nack

	// Dead is the number of items in the queue at DeadLetterPath, whatever their state
	// and whichever queue they come from.
	Dead int

	// Oldest is the age of the oldest ready item, by the clock of the service. The age counts
	// from the Put, and in a DelayQueue from the due time if that is later. A failed delivery
	// does not reset it. Oldest is zero if no item is ready, or if the ready items were taken
	// during the call.
	//
	// In a PriorityQueue with ready items of more than 16 priorities, only the 16 priorities
	// that are taken last count, or fewer if a Redrive has put items back. In a DelayQueue into
	// which more than 16 items were put after their due times, Oldest can be too low.
	Oldest time.Duration

	// Waiting is the number of clients that wait for an item because they found none. It
	// counts a queue value of a client once, however many of its calls wait, and a dead
	// client until its session ends. It does not count consumers that work on an item.
	Waiting int

	// Buckets is the number of nodes that hold the items, 256 each in a long Queue. It is
	// zero if nothing was ever put. One remains when the queue is empty.
	Buckets int

	// Unread is the number of such nodes, of the queue and of its dead letters, that Stats
	// did not read: it reads the first 256 nodes of each, in the order in which items are
	// taken. If Unread is not zero, then Ready, Claimed, Delayed, Dead and Oldest are lower
	// bounds. Len counts the items of a queue of any length.
	Unread int
}

// mostStats is the number of buckets that Stats lists at most, of the queue and of the
// dead letters each.
const mostStats = 256

// Stats returns the figures of the queue. It works for a queue of any kind and on a path
// without a queue, where all figures are zero. It changes nothing in the queue, and
// needs only the permission to read the queue and its dead letters.
//
// The number of requests is bounded, whatever the length of the queue: a Sync, one for the
// directories, one for some 16 to 64 nodes that hold items (each of some hundred items, and
// at most 512 of them are read), and one for Oldest; in a PriorityQueue one for each
// priority with ready items, at most 16. That is some 8 requests for a queue of 50,000
// items. A service without batches takes one request for each node. If there are
// unclaimed items and the client does not know the time of the service, which it learns
// from its writes, a small write is added; see DelayQueue. The replies amount to about
// 70 bytes for each item that is read.
//
// Errors: the context's; ErrClosed; ErrDenied; ErrBadPath.
func (q *Consumer[T]) Stats(ctx context.Context) (QueueStats, error) {
	if err := q.q.path.Check("stats"); err != nil {
		return QueueStats{}, err
	}
	st, err := core.OnSession(ctx, q.q.c, func(s *core.Session) (QueueStats, error) { return q.q.stats(ctx, s) })
	if err != nil {
		return QueueStats{}, core.OpError("stats", q.q.path.Full(), err)
	}
	return st, nil
}

// stats reads the figures.
func (q *queue) stats(ctx context.Context, s *core.Session) (st QueueStats, err error) {
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
	now := int64(0) // it does not matter where all items are claimed
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
		if l.Err != nil && !core.IsNotFound(l.Err) {
			return nil, l.Err
		}
		names[i] = l.Names
	}
	return names, nil
}
