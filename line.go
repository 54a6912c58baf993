package coord

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
)

// line is a directory of sequential ephemeral nodes whose order says whose turn
// it is: the queueing discipline of the lock and election recipes of the
// ZooKeeper recipe guide.
//
// Each waiter watches only the node before its own, so one deletion wakes no
// herd. The watch is on the children of that node: an ephemeral has none, so
// nothing but its deletion fires it, and nobody is woken by a change of data.
//
// A waiter also watches the node before that one (look-ahead), and lists the
// directory again when it goes, off the critical path. So it knows when its
// predecessor is the head of the line, and then the event "predecessor deleted"
// is itself the grant: the hand-over costs one message instead of a message and
// a list. At most two waiters wake for one deletion, whatever the length of the
// line.
//
// What makes this safe; without each of these rules two holders, a holder
// without a node, or a waiter that nobody wakes were found by model checking:
//   - the watch on the own node is armed, and the node found present, before
//     the directory is listed and before the predecessor is watched;
//   - at the grant the session, its lease and that watch are tested under one
//     lock, and events are marked in the order in which they came;
//   - only Deleted of a node known as head grants; every other wake-up lists;
//   - reconnection fires all watches with LookAgain, so afterwards nothing is
//     known until the directory was listed again.
type line struct {
	c    *Client
	dir  string
	kind string // what the sequence number of a node follows in its name
}

// position is one contender's node in the order of the line.
type position struct {
	name string
	seq  int32
}

// order returns the contenders among the children, first come first. It sorts
// by the number alone, never by the whole name, and ignores what is not a
// contender.
func (l *line) order(names []string) []position {
	var queue []position
	for _, name := range names {
		if seq, ok := parseSeq(name, l.kind); ok {
			queue = append(queue, position{name, seq})
		}
	}
	slices.SortFunc(queue, func(a, b position) int { return int(a.seq - b.seq) })
	return queue
}

// request is one acquisition.
type request struct {
	op    string // for errors
	data  []byte // of the node
	try   bool   // ErrLocked instead of waiting
	since time.Time
	// made and maybe hand over a node that somebody else made for us, or may
	// have made with the prefix maybe; see lock_local.go. Used once.
	made  *place
	maybe string
	owner recipe // of the hold
}

// place is a node in the line, in the session that owns it.
type place struct {
	s *session
	node
}

// acquire takes a place and waits for its turn. A lost session or a place that
// an outsider deleted sends it to the tail again, until ctx ends. However it
// returns, a node that does not become a hold is removed.
func (l *line) acquire(ctx context.Context, r *request) (*Hold, error) {
	for {
		p, err := l.enter(ctx, r)
		if err == nil {
			var h *Hold
			h, err = l.await(ctx, r, p)
			if err == nil {
				return h, nil
			}
			if !errors.Is(err, errGone) {
				l.leave(ctx, p, r.try)
			}
		}
		switch {
		case errors.Is(err, backend.ErrClosed):
			return nil, opError(r.op, l.dir, ErrClosed)
		case ctx.Err() != nil:
			return nil, opError(r.op, l.dir, backend.ContextError(ctx))
		case errors.Is(err, errGone), errors.Is(err, backend.ErrSessionLost), errors.Is(err, errDrained):
			l.c.emit(ctx, Requeued{Path: l.dir, Err: err})
		default:
			return nil, opError(r.op, l.dir, err)
		}
	}
}

// enter takes a place at the tail of the line.
func (l *line) enter(ctx context.Context, r *request) (place, error) {
	if r.made != nil {
		p := *r.made
		r.made = nil
		if p.s.b.Err() == nil {
			return p, l.checkNumber(ctx, p)
		}
	}
	s, err := l.c.session(ctx)
	if err != nil {
		return place{}, err
	}
	var sp spec
	if r.maybe != "" {
		sp = spec{dir: l.dir, kind: l.kind, prefix: r.maybe, data: r.data, made: true}
		r.maybe = ""
	} else {
		sp = newSpec(l.dir, l.kind, r.data)
	}
	n, err := s.create(ctx, &sp)
	if err != nil {
		return place{}, err
	}
	p := place{s, n}
	return p, l.checkNumber(ctx, p)
}

// leave removes a place that did not become a hold. A caller that only tried
// waits for it while its ctx lasts, so that nothing of it is left when it
// returns.
func (l *line) leave(ctx context.Context, p place, wait bool) {
	if p.s.b.Err() != nil {
		return
	}
	if wait && p.s.remove(ctx, p.path) == nil {
		return
	}
	p.s.removeLater(p.path)
}

// await waits until p is at the head of the line, and makes it a hold.
func (l *line) await(ctx context.Context, r *request, p place) (*Hold, error) {
	if p.siblings == 1 {
		// Alone in the directory: the head.
		return l.hold(ctx, r, p, nil)
	}
	var w waits
	h, err := l.watchTurn(ctx, r, &p, &w)
	w.before.stop()
	w.ahead.stop()
	if err != nil && w.own != nil {
		w.own.Stop()
	}
	return h, err
}

// waits is what a waiter watches: its own node, the one before it, and the one
// before that.
type waits struct {
	own    *backend.Watch
	before neighbour
	ahead  neighbour
}

// neighbour is a watched node of the line.
type neighbour struct {
	name string
	w    *backend.Watch
}

func (n *neighbour) stop() {
	if n.w != nil {
		n.w.Stop()
	}
	*n = neighbour{}
}

func (n *neighbour) fired() <-chan struct{} {
	if n.w == nil {
		return nil
	}
	return n.w.Fired()
}

// watch arms a watch on the node called name, unless that stands already. It
// reports false if the node is gone.
func (n *neighbour) watch(ctx context.Context, s *session, dir, name string) (bool, error) {
	if n.w != nil && n.name == name && n.w.Kind() == 0 {
		return true, nil
	}
	n.stop()
	w := backend.NewWatch()
	if _, _, err := s.b.Children(ctx, dir+"/"+name, w); err != nil {
		w.Stop()
		if isNotFound(err) {
			return false, nil
		}
		return false, err
	}
	*n = neighbour{name, w}
	return true, nil
}

func (l *line) watchTurn(ctx context.Context, r *request, p *place, w *waits) (*Hold, error) {
	s, told := p.s, false
	for {
		// The own watch first: it must be armed, and the node present, before
		// anything that could become a grant is read.
		if w.own == nil || w.own.Kind() != 0 {
			w.own = backend.NewWatch()
			_, stat, err := s.b.Get(ctx, p.path, w.own)
			if isNotFound(err) || err == nil && stat.EphemeralOwner != s.b.ID() {
				return nil, errGone
			}
			if err != nil {
				return nil, err
			}
			p.czxid = stat.Czxid
		}
		names, _, err := s.b.Children(ctx, l.dir, nil)
		if err != nil && !isNotFound(err) {
			return nil, err
		}
		queue := l.order(names)
		i := slices.IndexFunc(queue, func(q position) bool { return q.name == base(p.path) })
		if i < 0 {
			// Deleted just now, which the own watch tells; or a server that
			// lags behind what it has answered before, which Sync mends.
			if err := s.b.Sync(ctx, l.dir); err != nil {
				return nil, err
			}
			w.own.Stop()
			w.own = nil
			continue
		}
		if i == 0 {
			if h, err := l.hold(ctx, r, *p, w.own); !errors.Is(err, errAgain) {
				return h, err
			}
			continue
		}
		if r.try {
			return nil, ErrLocked
		}
		// The one ahead first: when it goes while we arm the other watch, we
		// still learn of it.
		if i == 1 {
			w.ahead.stop()
		} else if ok, err := w.ahead.watch(ctx, s, l.dir, queue[i-2].name); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		if ok, err := w.before.watch(ctx, s, l.dir, queue[i-1].name); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		if !told {
			told = true
			l.c.emit(ctx, WaitBegan{Path: p.path})
		}
		select {
		case <-w.before.fired():
			if i == 1 && w.before.w.Kind() == backend.Deleted {
				if h, err := l.hold(ctx, r, *p, w.own); !errors.Is(err, errAgain) {
					return h, err
				}
			}
		case <-w.ahead.fired():
		case <-w.own.Fired():
		case <-s.b.Done():
			return nil, s.b.Err()
		case <-ctx.Done():
			return nil, backend.ContextError(ctx)
		}
	}
}

// hold makes the place a hold. own is the armed watch on its node; nil has one
// armed later. It returns errAgain if that watch has fired.
func (l *line) hold(ctx context.Context, r *request, p place, own *backend.Watch) (*Hold, error) {
	h := &Hold{s: p.s, path: p.path, token: p.czxid, recipe: r.owner}
	if l.c.trace != nil {
		h.since = time.Now()
	}
	if err := p.s.grant(h, own); err != nil {
		return nil, err
	}
	if own != nil && !l.c.goWork(func() { h.watchNode(own) }) {
		own.Stop()
	}
	if l.c.trace != nil {
		l.c.emit(ctx, Granted{Path: h.path, Token: h.token, Waited: h.since.Sub(r.since)})
	}
	return h, nil
}
