package coord

import (
	"context"
	"errors"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// permitWaits is the set of watches of a waiter.
type permitWaits struct {
	own   *backend.Watch // the own node: data and deletion
	limit *backend.Watch
	dir   *backend.Watch // the children of the directory
	ahead *backend.Watch // the predecessor: mark and deletion

	first  bool   // watch the directory
	sure   string // the name of a predecessor that will be marked when it is granted
	unsure string // the name of a predecessor that may have been granted without a mark, or is marked
}

// stop stops the watches, and also the own one if it was not passed to a hold.
func (w *permitWaits) stop(own bool) {
	w.limit.Stop()
	w.dir.Stop()
	w.ahead.Stop()
	if own {
		w.own.Stop()
	}
}

// stands reports whether a watch is armed and has not fired.
func stands(w *backend.Watch) bool { return w != nil && w.Kind() == 0 }

// wait waits until p is granted.
func (a *acquisition) wait(ctx context.Context, p *place, w *permitWaits) (*Hold, error) {
	s := p.s
	var l permits
	for {
		// Arm the own watch before any read that can grant, and the limit's before
		// reading the queue.
		if !stands(w.own) {
			var err error
			w.own.Stop()
			if w.own, _, _, err = s.watchOwn(ctx, p.path); err != nil {
				return nil, err
			}
		}
		if !stands(w.limit) {
			var err error
			if l, w.limit, err = a.limit(ctx, s, true); err != nil {
				return nil, err
			}
		}
		var arm *backend.Watch
		if w.first && !stands(w.dir) {
			arm = backend.NewWatch()
			w.dir = arm
		}
		queue, err := a.list(ctx, p, arm)
		if err != nil {
			return nil, err
		}
		if !stands(w.limit) {
			continue
		}
		switch {
		case a.n > l.n:
			return nil, tooHeavy(a.n, l.n)
		case layout.Weigh(queue) <= int64(l.n):
			if h, err := a.hold(ctx, p, w.own, true); !errors.Is(err, errAgain) {
				return h, err
			}
			continue
		}
		if err := a.follow(ctx, s, w, queue[:len(queue)-1], l); errors.Is(err, errAgain) {
			continue
		} else if err != nil {
			return nil, err
		}
		a.trail.waiting(ctx, p.path, len(queue)-1)
		select {
		case <-w.dir.Fired():
		case <-w.ahead.Fired():
			// Usually the predecessor was marked: then this waiter is the first.
			w.first = w.ahead.Kind() == backend.LookAgain
		case <-w.limit.Fired():
		case <-w.own.Fired():
		case <-s.b.Done():
			return nil, s.b.Err()
		case <-ctx.Done():
			return nil, backend.ContextError(ctx)
		}
	}
}

// follow arms the watch that signals a waiter's turn: on its predecessor, or on the
// directory. It returns errAgain if the queue must be read again.
func (a *acquisition) follow(ctx context.Context, s *session, w *permitWaits, ahead []layout.Permit, l permits) error {
	if len(ahead) > 0 && layout.Weigh(ahead) > int64(l.n) {
		prev := ahead[len(ahead)-1].Name
		if w.sure == prev && stands(w.ahead) {
			w.follows()
			return nil
		}
		if w.unsure != prev {
			w.ahead.Stop()
			w.ahead = nil
			x := backend.NewWatch()
			_, stat, err := s.b.Get(ctx, a.sem.requests+"/"+prev, x)
			switch {
			case isNotFound(err):
				return errAgain
			case err != nil:
				return err
			case stat.Version == 0 && (w.sure == prev || stat.Czxid > l.changed):
				w.sure, w.ahead = prev, x
				w.follows()
				return nil
			}
			x.Stop()
			w.unsure = prev
		}
	}
	w.ahead.Stop()
	w.ahead = nil
	if !stands(w.dir) {
		w.first = true
		return errAgain
	}
	return nil
}

// follows replaces the watch on the directory by the one on the predecessor.
func (w *permitWaits) follows() {
	w.first = false
	w.dir.Stop()
	w.dir = nil
}
