package etcd

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// A server sends the events of one stream in the order of their revisions, with two exceptions: a
// watcher that was made while a commit was under way can lag behind, and so can one whose event
// found the buffer of the stream full, which holds 128 responses. A progress reply proves that
// neither is the case: it comes after all events up to its revision. So the hub fires an event at
// once only if every watcher has been proved by a progress reply, and fewer than mostUnproved
// responses have come since that reply was requested. Otherwise it holds the event and requests
// another reply. Servers whose progress replies overtake events give no such proof; there the hub
// fires events as they come. (A third exception is not handled: a member that restores a snapshot
// sends what its watchers missed one watcher after the other, as watchableStore.Restore does.)
//
// Two things make it hard to say what a reply proves. It can overtake the response that tells of
// a new watcher, and with it the events of that watcher: so it proves only watchers that the hub
// knows. And it does not name its request, while a server leaves a request without a reply
// as long as a watcher lags behind. So the hub takes it for the reply to the oldest request
// that it can be for. A watcher that was made after a request, at an earlier revision than that of
// the reply, shows that the reply is for a later request; and a reply with a later revision than
// that of a watcher proves the watcher, whatever its request was.

// mostUnproved is less than the number of responses that a server buffers for a stream.
const mostUnproved = 96

// mostHeld is the number of batches that the hub holds. A server that proves none of so many does not
// keep up.
const mostHeld = 1 << 14

// ask is a progress request.
type ask struct {
	last     int64 // the latest watcher that was requested before it
	received int   // responses since then
	until    int64 // its reply has at most this revision; 0: not known
}

// batch is the events of one watcher in one revision.
type batch struct {
	rev    int64
	from   *watcher
	events []*mvccpb.Event
}

// ask requests a progress reply.
func (h *hub) ask() {
	h.pending = true
	h.asked = append(h.asked, ask{last: h.next})
	h.request(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

// mark requests a watcher that reports nothing. It is released when it is made: then it has
// shown at which revision the server has handled the requests before it. One at a time is enough.
func (h *hub) mark() {
	if !slices.ContainsFunc(h.creating, func(w *watcher) bool { return w.key.what == markRange }) {
		h.watcherLocked(watchKey{markRange, h.s.key})
	}
}

// told records the response that says that the server has made a watcher.
func (h *hub) told(w *watcher) {
	for i := range h.asked {
		if h.asked[i].last < w.id && h.asked[i].until == 0 {
			h.asked[i].until = w.made
		}
	}
	if w.key.what == markRange {
		h.release(w)
	}
}

// ownEvents handles events of the session key. Each is a fence, behind all earlier revisions, on
// servers that give no other. (The transaction of an epoch can delete nodes too, see settle, and the
// events of one revision come in any order.)
func (h *hub) ownEvents(events []*mvccpb.Event) (revoked bool) {
	for _, e := range events {
		if e.Type == mvccpb.DELETE {
			return true
		}
		if !h.link.ordered {
			h.delivered = max(h.delivered, e.Kv.ModRevision-1)
			h.alive(e.Kv.ModRevision)
		}
	}
	h.move()
	return false
}

// progress handles a progress reply.
func (h *hub) progress(rev int64) {
	if len(h.asked) == 0 || !h.link.ordered {
		return
	}
	n := 0
	for n < len(h.asked)-1 && 0 < h.asked[n].until && h.asked[n].until < rev {
		n++ // without a reply
	}
	first := h.asked[n]
	h.asked = slices.Delete(h.asked, 0, n+1)
	h.pending = false
	h.since = first.received
	for id, w := range h.unproved {
		if w.start > 0 && !w.moving && (id <= first.last || w.made < rev) {
			delete(h.unproved, id)
		}
	}
	h.delivered = max(h.delivered, rev)
	h.alive(rev)
	h.fireHeld()
	h.move()
}

// certain returns the revision up to which all events have come.
func (h *hub) certain() int64 {
	rev := h.delivered
	for _, w := range h.unproved {
		if w.start > 0 {
			rev = min(rev, w.start)
		}
	}
	return rev
}

// provedUpTo returns the revision up to which events can be fired in their order.
func (h *hub) provedUpTo() int64 {
	upTo := int64(math.MaxInt64)
	switch {
	case !h.link.ordered:
		return upTo
	case h.since >= mostUnproved:
		return h.certain()
	}
	for _, w := range h.unproved {
		if w.start > 0 {
			upTo = min(upTo, w.start)
		}
	}
	return upTo
}

// fireHeld fires the events whose order is certain.
func (h *hub) fireHeld() {
	slices.SortStableFunc(h.held, func(a, b *batch) int { return int(a.rev - b.rev) })
	upTo := h.provedUpTo()
	n := 0
	for n < len(h.held) && h.held[n].rev <= upTo {
		rev, end := h.held[n].rev, n
		for end < len(h.held) && h.held[end].rev == rev {
			end++
		}
		if rev > h.certain() && h.incomplete(h.held[n:end]) {
			break
		}
		for _, b := range inOrder(h.held[n:end]) {
			h.fire(b)
		}
		n = end
	}
	if n > 0 {
		h.held = slices.Delete(h.held, 0, n)
		h.tries = 0
		h.move()
	}
	if len(h.held) > 0 {
		h.askSoon()
	}
}

// askSoon requests a progress reply, unless one is due.
func (h *hub) askSoon() {
	if !h.pending {
		h.ask()
	}
	h.link.stir() // the sender asks again after a while
}

// lagging is how long a watcher can lag behind the others: servers look after such watchers ten
// times a second.
const lagging = 50 * time.Millisecond

// askAgain requests another progress reply if events are still held: the server may have left the
// request before without one. An error means that it has done so for half the lease.
func (h *hub) askAgain(l *link) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || h.link != l || len(h.held) == 0 {
		return nil
	}
	if h.tries++; lagging*time.Duration(h.tries) > h.s.Lease()/2 {
		return errNoProgress
	}
	h.mark()
	h.ask()
	return nil
}

func (h *hub) move() {
	close(h.moved)
	h.moved = make(chan struct{})
}

// fire fires the watches that the events of one watcher in one revision affect.
func (h *hub) fire(b *batch) {
	b.from.latest = b.rev
	h.fired = max(h.fired, b.rev)
	if b.rev-1 > h.delivered && h.link.ordered {
		h.delivered = b.rev - 1
	}
	for t := range b.from.trees {
		h.tell(t, b)
	}
	if b.from.key.what == belowRange {
		return
	}
	var all []*interest
	for i := range b.from.users {
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b *interest) int { return int(a.order - b.order) })
	for _, e := range b.events {
		for _, i := range all {
			kind := i.kind(b.from, e)
			switch {
			case kind == 0 || i.gone:
			case !i.armed:
				i.early = append(i.early, early{b.rev, kind})
			case b.rev > i.after:
				h.fireOne(i, kind)
			}
		}
	}
}

var errNoProgress = errors.New("etcd: the server does not answer progress requests")

// flush waits until all events up to a revision have fired. It gives a server up that keeps them
// back for half the lease.
func (h *hub) flush(ctx context.Context, l *link, rev int64) error {
	timer := time.NewTimer(lagging)
	defer timer.Stop()
	// A new epoch makes the commits under way repeat, so a slow network alone does not begin one.
	silent := max(4, int(h.s.Lease()/8/lagging))
	for tries := 0; ; tries++ {
		h.mu.Lock()
		if h.link != l || h.ended {
			h.mu.Unlock()
			return errBroken
		}
		if h.certain() >= rev || len(h.places)+len(h.trees) == 0 {
			h.mu.Unlock()
			return nil
		}
		moved := h.moved
		if lagging*time.Duration(tries) > h.s.Lease()/2 {
			h.mu.Unlock()
			return errNoProgress
		}
		if l.ordered {
			if tries > 0 {
				h.mark()
			}
			h.ask()
		}
		h.mu.Unlock()
		if !l.ordered && tries == 0 || tries == silent {
			// The event of the session key is behind all others, and a new revision ends
			// what kept the server from a reply.
			err := h.s.newEpoch(ctx, l, rev)
			if err != nil && (!l.ordered || !is(err, rpctypes.ErrGRPCNoSpace)) {
				return err
			}
		}
	wait:
		for {
			select {
			case <-moved:
				h.mu.Lock()
				over := h.link != l || h.ended || h.certain() >= rev || len(h.places)+len(h.trees) == 0
				moved = h.moved
				h.mu.Unlock()
				if over {
					break wait
				}
			case <-timer.C:
				timer.Reset(lagging)
				break wait
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// incomplete reports whether the events of a revision lack one that must come before them: the
// creation of the node of a tree, whose children were created by the same commit.
func (h *hub) incomplete(batches []*batch) bool {
	for _, b := range batches {
		if b.from.key.what != belowRange {
			continue
		}
		for t := range b.from.trees {
			node := t.node
			if t.later != nil { // no commit creates a sequential node with children
				node = t.later
			}
			switch {
			case node == nil, node.latest >= b.rev:
				continue
			case 0 < node.start && b.rev <= node.start: // the event was before the watcher
				continue
			case slices.ContainsFunc(batches, func(o *batch) bool { return o.from == node }):
				continue
			}
			kids := h.s.cfg.kids(t.path)
			for _, e := range b.events {
				if e.Type == mvccpb.PUT && len(e.Kv.Value) > 0 && e.Kv.Value[0]&flagNewParent != 0 && strings.HasPrefix(string(e.Kv.Key), kids) {
					if r, err := decode(e.Kv); err == nil && r.newborn() {
						return true
					}
				}
			}
		}
	}
	return false
}

// inOrder returns the batches of one revision so that a node is created before what is below it,
// and deleted after it.
func inOrder(batches []*batch) []*batch {
	if len(batches) == 1 {
		return batches
	}
	slices.SortStableFunc(batches, func(a, b *batch) int { return rank(a) - rank(b) })
	return batches
}

func rank(b *batch) int {
	switch {
	case b.from.key.what == kidsRange:
		return -1
	case b.from.key.what == belowRange:
		return 1
	case b.events[0].Type == mvccpb.DELETE:
		return 2
	}
	return 0
}

// latest returns the revision of the latest events that have fired.
func (h *hub) latest() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fired
}
