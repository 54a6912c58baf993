package semaphore

import (
	"context"
	"errors"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// watches is the set of watches of a waiter.
type watches struct {
	own   *backend.Watch // the own node: data and deletion
	limit *backend.Watch
	dir   *backend.Watch // the children of the directory
	ahead *backend.Watch // the predecessor: mark and deletion

	state watchState
	prev  string    // the name of the predecessor that was last examined
	mark  markState // of that predecessor
}

// watchState says which watch a waiter has, beside those on its own node and the limit, to
// learn that its turn may have come.
//
//	watchesNone:        the waiter is the first whose turn has
//	                    not come, or its predecessor may stay
//	                    without a mark                         -> watchesDirectory
//	                    its predecessor will be marked         -> watchesPredecessor
//	watchesDirectory:   its predecessor will be marked         -> watchesPredecessor
//	watchesPredecessor: the waiter is the first whose turn has
//	                    not come, or another predecessor may
//	                    not be marked                          -> watchesDirectory
//	                    the predecessor is marked, or the
//	                    watch on it is lost                    -> watchesDirectory
//	                    the predecessor is deleted             -> watchesNone
//
// After each event, the waiter reads the queue again, and is granted if its turn has
// come. In watchesDirectory it arms the watch on the directory with that read. In
// watchesNone it does not, since it usually finds another predecessor.
type watchState int8

const (
	watchesNone watchState = iota
	watchesDirectory
	watchesPredecessor
)

// queueEvent is an event or a result of a read that concerns the requests ahead of a waiter.
type queueEvent int8

const (
	firstWaiting      queueEvent = iota // the earlier requests fit: the waiter is the first whose turn has not come
	behindCertain                       // they do not fit, and the predecessor will be marked when it is granted
	behindUncertain                     // they do not fit, and the predecessor may not be marked
	predecessorMarked                   // or the watch on it is lost
	predecessorRemoved
)

// markState says whether a predecessor will be marked when it is granted, see the protocol
// in acquire.go. A waiter keeps it as long as the predecessor stays the same, also when
// the limit changes.
//
//	markUnknown: its S exceeded the limit at its creation -> markCertain
//	             it is marked, or that is not certain     -> markUncertain
//	markCertain: it is marked                             -> markUncertain
type markState int8

const (
	markUnknown markState = iota
	markCertain
	markUncertain
)

// move moves w to the state that e leads to, and stops the watch that it does not need
// there.
func (w *watches) move(e queueEvent) {
	switch e {
	case behindCertain:
		w.state = watchesPredecessor
		w.dir.Stop()
		w.dir = nil
	case firstWaiting, behindUncertain:
		w.state = watchesDirectory
		w.ahead.Stop()
		w.ahead = nil
	case predecessorMarked:
		w.state = watchesDirectory
	case predecessorRemoved:
		w.state = watchesNone
	}
}

// stop stops the watches. own is false if the watch on the own node was passed to a hold.
func (w *watches) stop(own bool) {
	w.limit.Stop()
	w.dir.Stop()
	w.ahead.Stop()
	if own {
		w.own.Stop()
	}
}

// isArmed reports whether a watch is armed and has not fired.
func isArmed(w *backend.Watch) bool { return w != nil && w.Kind() == 0 }

// wait waits until r is granted.
func (a *acquisition) wait(ctx context.Context, r *request, w *watches) (*core.Hold, error) {
	s := r.s
	var l storedLimit
	for {
		// Arm the own watch before any read that can grant, and the limit's before
		// reading the queue.
		if !isArmed(w.own) {
			var err error
			w.own.Stop()
			if w.own, _, _, err = s.WatchOwn(ctx, r.Path); err != nil {
				return nil, err
			}
		}
		if !isArmed(w.limit) {
			var err error
			if l, w.limit, err = a.limit(ctx, s, true); err != nil {
				return nil, err
			}
		}
		var arm *backend.Watch
		if w.state == watchesDirectory && !isArmed(w.dir) {
			arm = backend.NewWatch()
			w.dir = arm
		}
		queue, err := a.list(ctx, r, arm)
		if err != nil {
			return nil, err
		}
		if !isArmed(w.limit) {
			continue
		}
		switch {
		case a.n > l.n:
			return nil, exceedsLimit(a.n, l.n)
		case layout.Weigh(queue) <= int64(l.n):
			if h, err := a.hold(ctx, r, w.own, grantedLater); !errors.Is(err, errs.ErrAgain) {
				return h, err
			}
			continue
		}
		if err := a.follow(ctx, s, w, queue[:len(queue)-1], l); errors.Is(err, errs.ErrAgain) {
			continue
		} else if err != nil {
			return nil, err
		}
		a.span.Waiting(ctx, r.Path, len(queue)-1)
		select {
		case <-w.dir.Fired():
		case <-w.ahead.Fired():
			if w.ahead.Kind() == backend.Deleted {
				w.move(predecessorRemoved)
			} else {
				w.move(predecessorMarked)
			}
		case <-w.limit.Fired():
		case <-w.own.Fired():
		case <-s.Backend().Done():
			return nil, s.Backend().Err()
		case <-ctx.Done():
			return nil, s.ContextError(ctx)
		}
	}
}

// follow moves the waiter to the state in which it sees its turn, behind the requests
// ahead. It returns ErrAgain if the queue must be read again.
func (a *acquisition) follow(ctx context.Context, s *core.Session, w *watches, ahead []layout.Permit, l storedLimit) error {
	e := firstWaiting
	if len(ahead) > 0 && layout.Weigh(ahead) > int64(l.n) {
		var err error
		if e, err = a.examine(ctx, s, w, ahead[len(ahead)-1].Name, l); err != nil {
			return err
		}
	}
	w.move(e)
	if w.state == watchesDirectory && !isArmed(w.dir) {
		return errs.ErrAgain
	}
	return nil
}

// examine determines whether the predecessor prev will be marked when it is granted,
// and watches it if so. It returns ErrAgain if prev is gone.
func (a *acquisition) examine(ctx context.Context, s *core.Session, w *watches, prev string, l storedLimit) (queueEvent, error) {
	if w.prev != prev {
		w.prev, w.mark = prev, markUnknown
		w.ahead.Stop()
		w.ahead = nil
	}
	switch {
	case w.mark == markCertain && isArmed(w.ahead):
		return behindCertain, nil
	case w.mark == markUncertain:
		return behindUncertain, nil
	}
	w.ahead.Stop()
	w.ahead = nil
	x := backend.NewWatch()
	_, stat, err := s.Backend().Get(ctx, a.sem.requests+"/"+prev, x)
	switch {
	case errs.IsNotFound(err):
		return 0, errs.ErrAgain
	case err != nil:
		return 0, err
	case stat.Version == 0 && (w.mark == markCertain || stat.Czxid > l.changed):
		w.mark, w.ahead = markCertain, x
		return behindCertain, nil
	}
	x.Stop()
	w.mark = markUncertain
	return behindUncertain, nil
}
