package coord

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-coord/coord/internal/line"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// permitWaits is the set of watches of a waiter.
type permitWaits struct {
	own   *backend.Watch // the own node: data and deletion
	limit *backend.Watch
	dir   *backend.Watch // the children of the directory
	ahead *backend.Watch // the predecessor: mark and deletion

	post  permitPost
	prev  string      // the name of the predecessor that was last examined
	trust permitTrust // in that predecessor
}

// permitPost is what a waiter watches, beside its own node and the limit, to learn that
// its turn may have come.
//
//	postNone:        the waiter is the first whose turn has
//	                 not come, or its predecessor may stay
//	                 without a mark                         -> postDirectory
//	                 its predecessor will be marked         -> postPredecessor
//	postDirectory:   its predecessor will be marked         -> postPredecessor
//	postPredecessor: the waiter is the first whose turn has
//	                 not come, or another predecessor may
//	                 not be marked                          -> postDirectory
//	                 the predecessor is marked, or the
//	                 watch on it is lost                    -> postDirectory
//	                 the predecessor is deleted             -> postNone
//
// After each event, the waiter reads the queue again, and is granted if its turn has
// come. At postDirectory it arms the watch on the directory with that read. At postNone
// it does not, since it usually finds another predecessor.
type permitPost int8

const (
	postNone permitPost = iota
	postDirectory
	postPredecessor
)

// permitEvent is what a waiter learns of the requests ahead of it.
type permitEvent int8

const (
	permitFirst       permitEvent = iota // the earlier requests fit: the waiter is the first whose turn has not come
	behindSure                           // they do not fit, and the predecessor will be marked when it is granted
	behindUnsure                         // they do not fit, and the predecessor may not be marked
	predecessorMarked                    // or the watch on it is lost
	predecessorRemoved
)

// permitTrust is whether a predecessor will be marked when it is granted, see above
// acquisition. It is kept as long as the predecessor stays the same, whatever becomes of
// the limit.
//
//	trustUnknown: its S exceeded the limit at its creation -> trustSure
//	              it is marked, or that is not certain     -> trustUnsure
//	trustSure:    it is marked                             -> trustUnsure
type permitTrust int8

const (
	trustUnknown permitTrust = iota
	trustSure
	trustUnsure
)

// move moves w to the post that e leads to, and stops the watch of the other one.
func (w *permitWaits) move(e permitEvent) {
	switch e {
	case behindSure:
		w.post = postPredecessor
		w.dir.Stop()
		w.dir = nil
	case permitFirst, behindUnsure:
		w.post = postDirectory
		w.ahead.Stop()
		w.ahead = nil
	case predecessorMarked:
		w.post = postDirectory
	case predecessorRemoved:
		w.post = postNone
	}
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
func (a *acquisition) wait(ctx context.Context, p *line.Place, w *permitWaits) (*core.Hold, error) {
	s := p.S
	var l permits
	for {
		// Arm the own watch before any read that can grant, and the limit's before
		// reading the queue.
		if !stands(w.own) {
			var err error
			w.own.Stop()
			if w.own, _, _, err = s.WatchOwn(ctx, p.Path); err != nil {
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
		if w.post == postDirectory && !stands(w.dir) {
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
			if h, err := a.hold(ctx, p, w.own, grantedLater); !errors.Is(err, core.ErrAgain) {
				return h, err
			}
			continue
		}
		if err := a.follow(ctx, s, w, queue[:len(queue)-1], l); errors.Is(err, core.ErrAgain) {
			continue
		} else if err != nil {
			return nil, err
		}
		a.span.Waiting(ctx, p.Path, len(queue)-1)
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

// follow moves the waiter to the post from which it sees its turn, behind the requests
// ahead. It returns core.ErrAgain if the queue must be read again.
func (a *acquisition) follow(ctx context.Context, s *core.Session, w *permitWaits, ahead []layout.Permit, l permits) error {
	e := permitFirst
	if len(ahead) > 0 && layout.Weigh(ahead) > int64(l.n) {
		var err error
		if e, err = a.examine(ctx, s, w, ahead[len(ahead)-1].Name, l); err != nil {
			return err
		}
	}
	w.move(e)
	if w.post == postDirectory && !stands(w.dir) {
		return core.ErrAgain
	}
	return nil
}

// examine determines whether the predecessor prev will be marked when it is granted,
// and watches it if so. It returns core.ErrAgain if prev is gone.
func (a *acquisition) examine(ctx context.Context, s *core.Session, w *permitWaits, prev string, l permits) (permitEvent, error) {
	if w.prev != prev {
		w.prev, w.trust = prev, trustUnknown
		w.ahead.Stop()
		w.ahead = nil
	}
	switch {
	case w.trust == trustSure && stands(w.ahead):
		return behindSure, nil
	case w.trust == trustUnsure:
		return behindUnsure, nil
	}
	w.ahead.Stop()
	w.ahead = nil
	x := backend.NewWatch()
	_, stat, err := s.Backend().Get(ctx, a.sem.requests+"/"+prev, x)
	switch {
	case core.IsNotFound(err):
		return 0, core.ErrAgain
	case err != nil:
		return 0, err
	case stat.Version == 0 && (w.trust == trustSure || stat.Czxid > l.changed):
		w.trust, w.ahead = trustSure, x
		return behindSure, nil
	}
	x.Stop()
	w.trust = trustUnsure
	return behindUnsure, nil
}

// permits is the limit of a semaphore as stored on the service.
type permits struct {
	n       int
	changed int64 // the zxid of its latest change
	version int32 // of its node
}

// checkLimit returns ErrInvalid for a number that cannot be a limit.
func checkLimit(n int64) error {
	if !layout.IsLimit(n) {
		return fmt.Errorf("%w: limit %d, want 1 to %d", ErrInvalid, n, layout.MaxPermits)
	}
	return nil
}

// readLimit reads the limit. The watch, if any, fires at the next change.
func readLimit(ctx context.Context, s *core.Session, path string, w *backend.Watch) (permits, error) {
	data, stat, err := s.Backend().Get(ctx, path, w)
	if err != nil {
		return permits{}, err
	}
	n, ok := layout.ParseLimit(data)
	if !ok {
		w.Stop()
		return permits{}, fmt.Errorf("%w: the limit at %s is not a number from 1 to %d (%d bytes)", ErrInvalid, path, layout.MaxPermits, len(data))
	}
	return permits{n, stat.Mzxid, stat.Version}, nil
}

// makeLimit creates the node of the limit, if it does not exist.
func (s *Semaphore) makeLimit(ctx context.Context, ss *core.Session, limit int) error {
	if err := ss.ClaimKindAnew(ctx, s.recipeDir()); err != nil {
		return err
	}
	_, err := ss.MakeNode(ctx, backend.Create(s.limit, formatLimit(limit), backend.Persistent), func(string) error { return ss.ClaimKindAnew(ctx, s.recipeDir()) })
	return err
}

// setLimit changes the limit, and returns the zxid of the change.
func (s *Semaphore) setLimit(ctx context.Context, ss *core.Session, limit int) (int64, error) {
	if err := ss.ClaimKind(ctx, s.recipeDir()); err != nil {
		return 0, err
	}
	pause := core.NewPauses(ss.Client())
	for {
		// Exactly once: a repetition could undo a later change by another client.
		_, zxid, err := ss.CommitOnce(ctx, backend.SetData(s.limit, formatLimit(limit), backend.AnyVersion))
		if !core.IsNotFound(err) {
			return zxid, err
		}
		if err := ss.ClaimKindAnew(ctx, s.recipeDir()); err != nil {
			return 0, err
		}
		_, zxid, err = ss.CommitOnce(ctx, backend.Create(s.limit, formatLimit(limit), backend.Persistent))
		if !core.IsNotFound(err) && !core.Answers(err, backend.ErrExists) { // another client has created it meanwhile
			return zxid, err
		}
		pause.Wait(ctx.Done(), ss.Backend().Done())
	}
}

func formatLimit(n int) []byte { return strconv.AppendInt(nil, int64(n), 10) }

// limit reads the limit, and creates its node if there is none. The first time it also
// compares the limit with the one that the client expects. With watch it returns an
// armed watch.
func (a *acquisition) limit(ctx context.Context, s *core.Session, watch bool) (permits, *backend.Watch, error) {
	sem := a.sem
	for {
		var w *backend.Watch
		if watch {
			w = backend.NewWatch()
		}
		l, err := readLimit(ctx, s, sem.limit, w)
		if core.IsNotFound(err) {
			// The first use of the semaphore, or an outsider deleted the node.
			n := int(sem.want.Load())
			if seen := sem.seen.Load(); seen != nil {
				n = seen.n
			}
			if err := sem.makeLimit(ctx, s, n); err != nil {
				return permits{}, nil, err
			}
			continue
		}
		if err != nil {
			return permits{}, nil, err
		}
		if want := int(sem.want.Load()); !a.agreed && !sem.adopt && l.n != want {
			w.Stop()
			sem.seen.Store(nil)
			return permits{}, nil, fmt.Errorf("%w: the semaphore has %d permits, this client expects %d", ErrLimit, l.n, want)
		}
		a.agreed = true
		if seen := sem.seen.Load(); seen == nil || *seen != l {
			sem.seen.Store(&l)
		}
		return l, w, nil
	}
}

// limitStands returns the condition that the limit is still the one that was last seen,
// and that this client accepts it. Its Kind is zero if there is none. (It does not
// detect that the node was deleted and created again.)
func (s *Semaphore) limitStands() backend.Op {
	seen := s.seen.Load()
	if seen == nil || seen.version < 0 || !s.adopt && int64(seen.n) != s.want.Load() {
		return backend.Op{}
	}
	return backend.Check(s.limit, seen.version)
}
