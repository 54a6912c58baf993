// Package queuestat reads the state of a queue for clients that look at it from outside:
// for Stats of package coord, and for package inspect.
package queuestat

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"golang.org/x/sync/errgroup"
)

// A List is the list of the children of a node.
type List struct {
	Names []string
	Err   error // that of Session.Children for this node, or nil
}

// mostAtOnce is the number of lists under way, if the service has no batches.
const mostAtOnce = 16

// Lists lists the children of nodes, in one request for many of them if the service has
// batches. An error of the call is that of the context or of the session; each List has an
// error of its own.
func Lists(ctx context.Context, s backend.Session, paths ...string) ([]List, error) {
	lists := make([]List, len(paths))
	if len(paths) > 1 && s.Features().Has(backend.Batches) {
		reads := make([]backend.Read, len(paths))
		for i, path := range paths {
			reads[i] = backend.Read{Path: path, Children: true}
		}
		results, err := s.ReadMany(ctx, reads...)
		switch {
		case err == nil:
			for i, r := range results {
				lists[i] = List{r.Names, r.Err}
			}
			return lists, nil
		case !errors.Is(err, backend.ErrUnsupported) && !errors.Is(err, backend.ErrBadPath):
			return nil, err
		}
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(mostAtOnce)
	for i, path := range paths {
		all.Go(func() error {
			l := &lists[i]
			l.Names, _, l.Err = s.Children(ctx, path, nil)
			if ctx.Err() != nil || s.Err() != nil {
				return l.Err
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	return lists, nil
}

// State is the state of an item.
type State int8

// The states of an item. A claimed item is Claimed whatever its times are.
const (
	Ready   State = iota + 1
	Claimed       // a consumer has claimed it
	Delayed       // it is not due, or put off
)

// StateOf returns the state of an item at a time in milliseconds since 1970.
func StateOf(e *layout.QueueEntry, now int64) State {
	switch {
	case e.Marked:
		return Claimed
	case e.Ready() > now:
		return Delayed
	}
	return Ready
}

// Waiting returns the number of clients that wait for an item, from the list of the
// directory waiters. Each has a slot or a waiter.
func Waiting(names []string) int {
	n := 0
	for _, name := range names {
		_, slot := layout.ParseSlot(name)
		if _, ok := layout.ParseSeq(name, layout.WaiterInfix); ok || slot {
			n++
		}
	}
	return n
}

// A Tally counts the items of a queue.
type Tally struct {
	Items, Ready, Claimed, Delayed int
	Litter                         int   // nodes left of items that are gone
	NextDue                        int64 // when the first delayed item can be taken, 0: there is none

	dues  bool // some item is due at a time
	heads []head
}

// head is the beginning of the ready items of a key.
type head struct {
	key   int64
	due   int64               // the due time of the latest item
	count int                 // the number of items in the present row: those up to the latest that were put in order
	items []layout.QueueEntry // the first, second, fourth, eighth and so on of each row
}

// Add counts the items of a bucket at a time in milliseconds since 1970. The buckets have
// to be added in their order. Add calls each, unless it is nil, with each item in order.
func (t *Tally) Add(b layout.Bucket, c layout.BucketContents, now int64, each func(*layout.QueueEntry, State)) {
	t.Items += len(c.Items)
	t.Litter += len(c.Litter)
	for i := range c.Items {
		e := &c.Items[i]
		t.dues = t.dues || e.Due > 0 // less: an item that was a dead letter
		state := StateOf(e, now)
		switch state {
		case Claimed:
			t.Claimed++
		case Delayed:
			if t.Delayed++; t.NextDue == 0 || e.Ready() < t.NextDue {
				t.NextDue = e.Ready()
			}
		case Ready:
			t.Ready++
			t.noteReady(b.Key, e)
		}
		if each != nil {
			each(e, state)
		}
	}
}

// noteReady keeps few of the ready items, so that Oldest finds one that still exists, even
// if consumers have taken many since the list.
func (t *Tally) noteReady(key int64, e *layout.QueueEntry) {
	if n := len(t.heads); n == 0 || t.heads[n-1].key != key {
		t.heads = append(t.heads, head{key: key})
	}
	h := &t.heads[len(t.heads)-1]
	if e.Due != h.due && min(e.Due, h.due) <= 0 {
		h.count = 0 // a new row: the items before e were dead letters, and were put back in front of e
	}
	h.due = e.Due
	if h.count++; h.count&(h.count-1) == 0 {
		h.items = append(h.items, *e)
	}
}

// MostAges is the number of items that Oldest reads at most.
const MostAges = 16

// Oldest returns since when the ready item that has waited longest has been in the queue,
// in milliseconds since 1970, or since when it has been due, if that is later. It returns
// 0 if there is no ready item, or if all that it looked at have gone since they were
// listed.
//
// The items of one key are in the order in which they were put, so one read for each key
// suffices: one for a Queue, one for each priority. If the first node of a priority has items that
// were dead letters, which come first, it takes one or two more. Of many priorities, Oldest reads those
// that are taken last. A DelayQueue needs one read as well, unless items were put after they were
// due: the item with the earliest due time has waited longest.
func (t *Tally) Oldest(ctx context.Context, s backend.Session) (since int64, err error) {
	heads := t.heads
	if !t.dues {
		heads = slices.Clone(heads)
		slices.Reverse(heads)
	}
	since = math.MaxInt64
	reads := 0
	for _, h := range heads {
		bucket, due := "", int64(0) // of the latest item that was there and has no due time
		for i := range h.items {
			e := &h.items[i]
			if bucket != "" && (e.Bucket != bucket || e.Due == due) {
				continue // it was put later
			}
			if reads == MostAges || t.dues && e.Due >= since {
				return orNone(since), nil
			}
			reads++
			stat, err := s.Exists(ctx, e.Path(), nil)
			switch {
			case errors.Is(err, backend.ErrNotFound) && ctx.Err() == nil:
				continue
			case err != nil:
				return 0, err
			}
			since = min(since, max(stat.Ctime, e.Due))
			if e.Due > 0 && stat.Ctime <= e.Due {
				break
			}
			if e.Due <= 0 {
				bucket, due = e.Bucket, e.Due
			}
		}
	}
	return orNone(since), nil
}

// orNone returns since, or 0 for none.
func orNone(since int64) int64 {
	if since == math.MaxInt64 {
		return 0
	}
	return since
}
