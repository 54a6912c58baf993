package coord

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/go-coord/coord/backend"
)

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
	if err != nil {
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

// watchTurn reads the line until it is p's turn.
func (l *line) watchTurn(ctx context.Context, r *request, p *place, w *waits) (*Hold, error) {
	s := p.s
	for {
		// Who finds nobody in the way needs no watch: the hold will have one. But
		// it needs its token.
		if w.own.Kind() != 0 || w.own == nil && p.czxid == 0 && r.kind != readKind {
			if err := l.watchOwn(ctx, p, w); err != nil {
				return nil, err
			}
		}
		if w.before.w.Kind() != 0 {
			// What fired earlier must not count for this list: the next server can
			// be behind an event that was seen, and then show what has gone.
			w.before.stop()
		}
		names, _, err := s.b.Children(ctx, l.dir, nil)
		if err != nil && !isNotFound(err) {
			return nil, err
		}
		queue := l.order(names)
		if len(queue) < len(names) {
			if err := l.intruder(names, p.seq); err != nil {
				return nil, err
			}
		}
		i := slices.IndexFunc(queue, func(q position) bool { return q.name == base(p.path) })
		if i < 0 {
			// Deleted just now, which the own node tells; or a server that lags
			// behind what it has answered before, which Sync mends.
			if err := s.b.Sync(ctx, l.dir); err != nil {
				return nil, err
			}
			if err := l.watchOwn(ctx, p, w); err != nil {
				return nil, err
			}
			continue
		}
		j := blocker(queue, i)
		if j >= 0 && r.try {
			return nil, ErrLocked
		}
		if j >= 0 {
			if err := l.behindOwn(ctx, r, queue[:j+1]); err != nil {
				return nil, err
			}
			if again, err := l.watchOthers(ctx, r, p, w, queue, i, j); again || err != nil {
				if err != nil {
					return nil, err
				}
				continue
			}
		}
		if h, err := l.hold(ctx, r, *p, w.own); !errors.Is(err, errAgain) {
			return h, err
		}
	}
}

// watchOthers waits for the contender at j, for which the one at i has to wait, p. It
// reports false if that one's deletion was the grant, and true if the line is to be
// read again.
func (l *line) watchOthers(ctx context.Context, r *request, p *place, w *waits, queue []position, i, j int) (again bool, err error) {
	s := p.s
	// The deletion of the blocker is the grant if nobody is in its way, and if it
	// cannot be a downgrade that goes on in the way of a writer. It may have come
	// while the list was under way that shows the blocker as the head.
	grants := l.grants(queue, i, j)
	if grants && w.before.gone(queue[j].name) {
		return false, nil
	}
	if w.own == nil && p.czxid == 0 {
		if err := l.watchOwn(ctx, p, w); err != nil {
			return false, err
		}
	}
	// All at one moment. Of the own node's data every change counts since its
	// creation; of the others only that they are there. (After its creation comes
	// a node that a downgrade has made. That one is armed the second time.)
	var room [3]backend.Target
	targets, since := room[:0], int64(math.MaxInt64)
	if w.own == nil {
		w.own = backend.NewWatch()
		p.data = r.data
		targets, since = append(targets, backend.Target{Path: p.path, Watch: w.own}), p.czxid
	}
	// Who will know by the blocker alone need not look ahead, and who lists again
	// anyway.
	aheadIsHead := false
	if grants || l.kinds == sharedLine {
		w.ahead.stop()
	} else {
		aheadIsHead = j == 1
		targets = w.ahead.aim(targets, l.dir, queue[j-1].name)
	}
	targets = w.before.aim(targets, l.dir, queue[j].name)
	if len(targets) > 0 {
		if err := s.b.Arm(ctx, since, targets...); err != nil {
			return false, err
		}
		if ok, err := s.sees(ctx, l.dir, queue[j].name); !ok {
			return err == nil, err
		}
	}
	r.trail.waiting(ctx, p.path, i)
	for {
		select {
		case <-w.before.w.Fired():
		case <-w.ahead.w.Fired():
		case <-w.own.Fired():
		case <-s.b.Done():
			return false, s.b.Err()
		case <-ctx.Done():
			return false, backend.ContextError(ctx)
		}
		if aheadIsHead && w.ahead.w.Kind() == backend.Deleted {
			// So the blocker is the head now.
			w.ahead.stop()
			grants, aheadIsHead = true, false
			r.trail.waiting(ctx, p.path, 1)
		}
		switch {
		case grants && w.before.w.Kind() == backend.Deleted:
			return false, nil
		case w.before.w.Kind() != 0, w.ahead.w.Kind() != 0, w.own.Kind() != 0:
			return true, nil
		}
	}
}

// sees asks whether the node called name in dir, whose watch has been armed, is there and
// can be read. To arm a watch needs no permission, but servers from 3.8.4 on keep the
// event from a session that may not read the node (ZOOKEEPER-4799): it would wait for
// ever. A session asks once in each directory; of clients of another make, which likely
// have other credentials, always.
func (s *session) sees(ctx context.Context, dir, name string) (bool, error) {
	if isOurs(name) && s.isAllowed(dir) {
		return true, nil
	}
	_, _, err := s.b.Children(ctx, dir+"/"+name, nil)
	switch {
	case isNotFound(err):
		return false, nil // it went just now, and that may have been kept from us
	case err != nil:
		return false, err
	case isOurs(name):
		s.setAllowed(dir)
	}
	return true, nil
}

// grants reports whether the deletion of the blocker at j is the grant for the
// contender at i.
func (l *line) grants(queue []position, i, j int) bool {
	if queue[i].shared {
		return !slices.ContainsFunc(queue[:j], func(q position) bool { return !q.shared })
	}
	return l.kinds != sharedLine && j == 0
}

// watchOwn reads the own node and arms a new watch on it, if it is there and ours.
func (l *line) watchOwn(ctx context.Context, p *place, w *waits) (err error) {
	w.own.Stop()
	w.own, p.data, p.czxid, err = p.s.watchOwn(ctx, p.path)
	return err
}
