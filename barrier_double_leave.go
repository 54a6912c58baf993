package coord

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/go-coord/coord/backend"
)

// An Entry is a member's place in a round of a DoubleBarrier, from Enter to Leave.
//
// It is a Hold without a token: it stands on the member's node. If the session is
// lost, or somebody deletes the node, the entry ends: Done fires, and to the others
// the member has left, so they do not wait for it any more. What the member has
// computed until then is not undone; a member that must not go on alone uses the
// entry's Context. It can enter again: it joins its old round, if that is still in
// progress, or waits for the next.
//
// Release leaves without waiting for the others. While a Leave is under way it
// changes nothing; what ends that is its ctx.
type Entry struct {
	*Hold
	d       *DoubleBarrier
	names   []string // of the round
	since   int64    // the czxid of the node that it came with, 0 if it is not known
	extra   bool
	leaving atomic.Bool // by Leave, which removes the node in its own way
}

// Extra reports whether the member has joined a round that others had opened.
func (e *Entry) Extra() bool { return e.extra }

// Leave ends the entry, so that Done fires, and waits until all other members of the
// round have left or died. Extras are not waited for; an extra itself waits for the
// members of its round.
//
// If ctx ends first, the member has left all the same: its node is removed before
// Leave returns, as when Enter is given up, and only the wait was. Another call of
// Leave waits on. A session that is lost while Leave waits does not end the wait. If
// the entry was lost before Leave was called, Leave returns its Err at once. After
// Release it waits for the others; it first waits for a Release that is under way.
//
// One member after the other goes, and each that goes wakes one (the recipe's
// leaving by lowest and highest): the first that came stays until it is the last,
// and watches the highest that is still there; the others remove their nodes at
// once, watch the lowest, and wake when it goes.
func (e *Entry) Leave(ctx context.Context) error {
	const op = "leave"
	e.leaving.Store(true)
	if err := e.Release(); err != nil {
		return opError(op, e.d.path.full, err)
	}
	trail := e.trail.next(op)
	err := e.leave(ctx, e.s, trail)
	for errors.Is(err, backend.ErrSessionLost) && ctx.Err() == nil {
		var s *session
		if s, err = e.d.c.session(ctx); err != nil {
			break
		}
		// The server of a new session may not even know of the round yet.
		if err = s.b.Sync(ctx, e.d.members); err == nil {
			err = e.leave(ctx, s, trail)
		}
	}
	if err == nil {
		trail.over(ctx, nil)
		return nil
	}
	e.d.takeOut(e.s, "", op, func(ctx context.Context) error { return e.d.depart(ctx, e.s, e.Path(), e.names) }, e.Path())
	err, _ = afterAttempt(ctx, err)
	err = opError(op, e.d.path.full, err)
	trail.over(ctx, err)
	return err
}

// leave goes out and waits for the others, in session s.
func (e *Entry) leave(ctx context.Context, s *session, trail *trail) error {
	d, own := e.d, base(e.Path())
	if e.extra && s == e.s {
		if err := s.remove(ctx, e.Path()); err != nil {
			return err
		}
	}
	var other neighbour
	defer other.stop()
	for {
		living, err := d.living(ctx, s, e.names, e.since)
		if err != nil {
			return err
		}
		// The node of an earlier session goes with it. It is waited for.
		mine := s == e.s && slices.Contains(living, own)
		switch {
		case len(living) == 0:
			return nil
		case mine && len(living) == 1:
			return d.removeLast(ctx, s, e.Path())
		case mine && living[0] == own:
			_, err = other.watch(ctx, s, d.members, living[len(living)-1])
		default:
			if mine {
				if err := s.remove(ctx, e.Path()); err != nil {
					return err
				}
			}
			_, err = other.watch(ctx, s, d.members, living[0])
		}
		if err != nil {
			return err
		}
		if other.w == nil {
			continue // gone already
		}
		trail.waiting(ctx, e.Path(), -1)
		select {
		case <-other.w.Fired():
		case <-s.b.Done():
			return s.b.Err()
		case <-ctx.Done():
			return backend.ContextError(ctx)
		}
	}
}

// living returns those of names that are still there. They are of a round that a node of
// czxid since was a member of, or of one in which the own node stands if since is 0. In a
// directory that was made after that, a node of such a name is another one.
func (d *DoubleBarrier) living(ctx context.Context, s *session, names []string, since int64) ([]string, error) {
	list, members, err := s.b.Children(ctx, d.members, nil)
	if isNotFound(err) || since != 0 && err == nil && members.Czxid > since {
		return nil, nil
	}
	return sortMembers(names, list).living, err
}

// removeLast removes the node of the last member of a round, and ready with it: as
// long as the one stands, the other is that of its round, so a repetition meets no
// other.
func (d *DoubleBarrier) removeLast(ctx context.Context, s *session, path string) error {
	err := s.commitAgain(ctx, backend.Delete(path, backend.AnyVersion), backend.Delete(d.ready, backend.AnyVersion))
	if err == nil || isOver(err) || ctx.Err() != nil {
		return err
	}
	return s.remove(ctx, path) // an outsider was here, a reply was lost, or ready cannot go
}

// depart takes a node out at once. If it was the last of the round that names has,
// ready goes with it.
func (d *DoubleBarrier) depart(ctx context.Context, s *session, path string, names []string) error {
	living, err := d.living(ctx, s, names, 0) // if that is refused, who leaves goes all the same
	if err == nil && len(living) == 1 && living[0] == base(path) {
		return d.removeLast(ctx, s, path)
	}
	return s.remove(ctx, path)
}

// release and lost make an Entry the recipe of its hold.

func (e *Entry) release(h *Hold) error {
	if e.leaving.Load() {
		return nil
	}
	living, err := e.d.living(context.Background(), h.s, e.names, 0) // if that is refused, the member leaves all the same
	if err != nil || len(living) != 1 || living[0] != base(h.Path()) {
		return h.remove(nil)
	}
	_, err = h.removeWith(e.d.ready)
	return err
}

func (e *Entry) lost(*Hold) {}
