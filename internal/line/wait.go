package line

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// await waits until p is at the head of the queue, and turns it into a hold.
func (l *Line) await(ctx context.Context, r *request, p place) (*core.Hold, error) {
	if p.Siblings == 1 {
		// Alone in the directory: the head.
		return l.hold(ctx, r, p, nil)
	}
	var w waits
	h, err := l.watchTurn(ctx, r, &p, &w)
	w.before.Stop()
	w.ahead.Stop()
	if err != nil {
		w.own.Stop()
	}
	return h, err
}

// waits is the set of watches of a waiter: on its own node, on its predecessor, and on
// the predecessor's predecessor.
type waits struct {
	own    *backend.Watch
	before contender.Neighbour
	ahead  contender.Neighbour
}

// turnState is a contender's knowledge of its turn. A listing that shows its own node
// determines the state, and events move it on until the turn is granted or the
// directory is listed again. For a reader, the predecessor is the nearest earlier
// writer.
//
//	turnUnknown: the listing shows no contender in its way     -> turnGranted
//	             it shows the predecessor as the head, and its
//	             deletion cannot be a downgrade                -> turnNext
//	             it shows the predecessor right behind the
//	             head, in a line of exclusive contenders only  -> turnSecond
//	             otherwise                                     -> turnFar
//	turnFar:     any event                                     -> turnUnknown
//	turnSecond:  the predecessor's predecessor is deleted      -> turnNext
//	             any other event                               -> turnUnknown
//	turnNext:    the predecessor is deleted                    -> turnGranted
//	             any other event                               -> turnUnknown
//	turnGranted: the hold is made, see line.hold; if the watch
//	             on the own node has fired                     -> turnUnknown
type turnState int8

const (
	turnUnknown turnState = iota
	turnFar
	turnSecond
	turnNext
	turnGranted
)

// turnEvent is an event of the watches of a waiter.
type turnEvent int8

const (
	predecessorDeleted turnEvent = iota
	aheadDeleted                 // the predecessor's predecessor
	otherEvent
)

// turnIn returns the state of the last contender in queue, as a listing shows it, and
// the index of its predecessor, if it has to wait.
func (l *Line) turnIn(queue []layout.Position) (t turnState, predecessor int) {
	i := len(queue) - 1
	j := layout.Blocker(queue, i)
	switch {
	case j < 0:
		return turnGranted, 0
	case l.grants(queue, i, j):
		return turnNext, j
	case l.kinds != layout.SharedLine && j == 1:
		return turnSecond, j
	}
	return turnFar, j
}

// after returns the state that an event leads to.
func (t turnState) after(e turnEvent) turnState {
	switch {
	case t == turnSecond && e == aheadDeleted:
		return turnNext
	case t == turnNext && e == predecessorDeleted:
		return turnGranted
	}
	return turnUnknown
}

// watchTurn reads the queue, and waits, until p is granted.
func (l *Line) watchTurn(ctx context.Context, r *request, p *place, w *waits) (*core.Hold, error) {
	s := p.s
	for {
		// A contender that nothing blocks needs no watch, since its hold arms one
		// later. But an exclusive hold needs its token, so the node is read if its
		// czxid is not known.
		if w.own.Kind() != 0 || w.own == nil && p.Czxid == 0 && r.kind != layout.ReadInfix {
			if err := l.watchOwn(ctx, p, w); err != nil {
				return nil, err
			}
		}
		if w.before.W.Kind() != 0 {
			// A deletion that was seen earlier must not count for this listing: the
			// next server can be behind that event, and still list the deleted node.
			w.before.Stop()
		}
		names, _, err := s.Backend().Children(ctx, l.dir, nil)
		if err != nil && !errs.IsNotFound(err) {
			return nil, err
		}
		queue := l.kinds.Order(names)
		if len(queue) < len(names) {
			if err := l.intruder(names, p.Seq); err != nil {
				return nil, err
			}
			if err := s.ConfirmKind(ctx, l.recipeDir(), p.Path, names); err != nil {
				return nil, err
			}
		}
		i := slices.IndexFunc(queue, func(q layout.Position) bool { return q.Name == nodepath.Base(p.Path) })
		if i < 0 {
			// Either the own node was deleted just now, which reading it shows; or the
			// server lags behind its earlier replies, which Sync mends.
			if err := s.Backend().Sync(ctx, l.dir); err != nil {
				return nil, err
			}
			if err := l.watchOwn(ctx, p, w); err != nil {
				return nil, err
			}
			continue
		}
		queue = queue[:i+1]
		turn, j := l.turnIn(queue)
		if turn != turnGranted {
			if r.try {
				return nil, r.Locked(func() []string { return holders(queue, nodepath.Base(p.Path)) })
			}
			if err := l.behindOwn(ctx, r, queue[:j+1]); err != nil {
				return nil, err
			}
			r.willWait()
			if turn, err = l.watchOthers(ctx, r, p, w, turn, queue, j); err != nil {
				return nil, err
			}
		}
		if turn != turnGranted {
			continue
		}
		// Nothing blocks the contender: the listing has shown that, or the deletion of
		// the known head.
		if h, err := l.hold(ctx, r, *p, w.own); !errors.Is(err, errs.ErrAgain) {
			return h, err
		}
	}
}

// watchOthers makes p, the last in queue, wait for its predecessor at j until the turn
// is granted or unknown.
func (l *Line) watchOthers(ctx context.Context, r *request, p *place, w *waits, turn turnState, queue []layout.Position, j int) (turnState, error) {
	s := p.s
	// A deletion during the listing that shows the predecessor counts.
	if w.before.IsGone(queue[j].Name) && turn.after(predecessorDeleted) == turnGranted {
		return turnGranted, nil
	}
	if w.own == nil && p.Czxid == 0 {
		if err := l.watchOwn(ctx, p, w); err != nil {
			return turnUnknown, err
		}
	}
	// One request arms all watches. The watch on the own node fires for every change since the
	// node's creation; the other watches need only that their nodes exist. (A node that a
	// downgrade has made can be younger than the own node. Its watch fires at once, and the
	// next pass arms it.)
	var room [3]backend.Target
	targets, since := room[:0], int64(math.MaxInt64)
	if w.own == nil {
		w.own = backend.NewWatch()
		p.data = r.data
		targets, since = append(targets, backend.Target{Path: p.Path, Watch: w.own}), p.Czxid
	}
	// No look-ahead is needed if the deletion of the predecessor is the grant, nor in a
	// line of readers and writers, where every other wake-up lists again.
	if turn == turnNext || l.kinds == layout.SharedLine {
		w.ahead.Stop()
	} else {
		targets = w.ahead.Aim(targets, l.dir, queue[j-1].Name)
	}
	targets = w.before.Aim(targets, l.dir, queue[j].Name)
	if len(targets) > 0 {
		if err := s.Backend().Arm(ctx, since, targets...); err != nil {
			return turnUnknown, err
		}
		if ok, err := contender.Sees(ctx, s, l.dir, queue[j].Name); !ok {
			return turnUnknown, err
		}
	}
	r.span.Waiting(ctx, p.Path, len(queue)-1)
	for turn != turnGranted && turn != turnUnknown {
		e, err := w.next(ctx, s)
		if err != nil {
			return turnUnknown, err
		}
		if turn = turn.after(e); turn == turnNext {
			r.span.Waiting(ctx, p.Path, 1)
		}
	}
	return turn, nil
}

// next waits for an event. If both nodes were deleted, it returns the deletion ahead
// first.
func (w *waits) next(ctx context.Context, s *core.Session) (turnEvent, error) {
	select {
	case <-w.before.W.Fired():
	case <-w.ahead.W.Fired():
	case <-w.own.Fired():
	case <-s.Backend().Done():
		return otherEvent, s.Backend().Err()
	case <-ctx.Done():
		return otherEvent, s.ContextError(ctx)
	}
	switch {
	case w.ahead.W.Kind() == backend.Deleted:
		w.ahead.Stop()
		return aheadDeleted, nil
	case w.before.W.Kind() == backend.Deleted:
		return predecessorDeleted, nil
	}
	return otherEvent, nil
}

// holders returns the names of the nodes ahead of own that hold the lock: the first of
// the queue, and if that is a reader's, the readers right behind it.
func holders(queue []layout.Position, own string) []string {
	var names []string
	for i, q := range queue {
		if q.Name == own || i > 0 && !(q.Shared && queue[0].Shared) {
			break
		}
		names = append(names, q.Name)
	}
	return names
}

// beginLookup begins the lookup of a call whose node, if it has one, is at own.
func (l *Line) beginLookup(ctx context.Context, r *request, s *core.Session, own string, err error) (end func()) {
	return r.Begin(ctx, s, l.dir, err, func(names []string) []string { return holders(l.kinds.Order(names), nodepath.Base(own)) })
}

// grants reports whether the deletion of the predecessor at j grants the lock to the
// contender at i: no other contender is in its way, and the deletion cannot be a
// downgrade, which continues to block a writer.
func (l *Line) grants(queue []layout.Position, i, j int) bool {
	if queue[i].Shared {
		return !slices.ContainsFunc(queue[:j], func(q layout.Position) bool { return !q.Shared })
	}
	return l.kinds != layout.SharedLine && j == 0
}

// watchOwn reads the own node and arms a new watch on it, provided that the node exists
// and belongs to this session.
func (l *Line) watchOwn(ctx context.Context, p *place, w *waits) (err error) {
	w.own.Stop()
	w.own, p.data, p.Czxid, err = p.s.WatchOwn(ctx, p.Path)
	return err
}

// checkNumber returns nil for a place whose number is valid. If few numbers are left, it removes the
// node, waits until the queue has drained and the directory is deleted, and returns
// errs.ErrDrained. A try does not wait: it gets ErrLocked. If no number is left (layout.LeftHard), or nodes of
// other programs keep the directory, the error is ErrLimit.
func (l *Line) checkNumber(ctx context.Context, p place, r *request) error {
	if contender.NumbersLeft(p.s, p.Seq) > layout.LeftClose {
		return nil
	}
	if err := p.s.Remove(ctx, p.Path); err != nil {
		p.s.RemoveAndWait(p.Path)
		return err
	}
	if contender.NumbersLeft(p.s, p.Seq) <= layout.LeftHard {
		return fmt.Errorf("%w: the sequence numbers of the directory are exhausted", errs.ErrLimit)
	}
	for {
		w := backend.NewWatch()
		names, stat, err := p.s.Backend().Children(ctx, l.dir, w)
		if errs.IsNotFound(err) {
			return errs.ErrDrained
		}
		if err != nil {
			return err
		}
		if stat.NumChildren == 0 {
			w.Stop()
			_, err := p.s.Backend().Commit(ctx, backend.Delete(l.dir, backend.AnyVersion))
			switch {
			case err == nil, errs.IsNotFound(err):
				return errs.ErrDrained
			case errors.Is(err, backend.ErrNotEmpty), errs.MayRepeat(ctx, err):
				continue
			}
			return err
		}
		if len(l.kinds.Order(names)) == 0 {
			w.Stop()
			return fmt.Errorf("%w: the sequence numbers of the directory are exhausted, and nodes of other programs prevent its replacement; delete them", errs.ErrLimit)
		}
		if r.try {
			w.Stop()
			return errs.ErrLocked
		}
		r.willWait()
		select {
		case <-w.Fired():
		case <-p.s.Backend().Done():
			return p.s.Backend().Err()
		case <-ctx.Done():
			w.Stop()
			return p.s.ContextError(ctx)
		}
	}
}
