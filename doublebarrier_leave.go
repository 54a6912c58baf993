package coord

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/go-coord/coord/internal/line"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// An Entry is a member's place in a round of a DoubleBarrier, from Enter to Leave.
//
// It is a Hold without a token, on the member's node. If the session is lost, or an
// outsider deletes the node, the entry ends: Done fires, and the other members
// do not wait for this member any more. The entry does not undo the work of the
// member; a member that must stop when its entry ends uses the entry's Context. The member can enter again: it joins its old round if that is
// still in progress, or waits for the next.
//
// Release leaves without waiting for the others. While a Leave is under way Release
// has no effect; the ctx of Leave ends it.
type Entry struct {
	*Hold
	d       *DoubleBarrier
	names   []string // of the members of the round
	since   int64    // the czxid of the node with which the member entered, 0 if unknown
	extra   bool
	leaving atomic.Bool // set by Leave, which removes the node itself
}

// Extra reports whether the member joined a round that was open already.
func (e *Entry) Extra() bool { return e.extra }

// Leave ends the entry, so that Done fires, and waits until all other members of the
// round have left or died. It does not wait for extras; an extra itself waits for the
// members of its round.
//
// If ctx ends first, the member has left nevertheless: only the wait ends early, and
// its node is removed before Leave returns, with the limits of Enter. Another call
// of Leave resumes the wait. A session that is lost while Leave waits does not end
// the wait. If the entry was lost before Leave was called, Leave returns its Err at
// once. After Release, Leave waits for the other members; during a Release, it waits
// for the Release first.
//
// Each member that leaves wakes one other member (the recipe guide's rule of the
// lowest and the highest).
func (e *Entry) Leave(ctx context.Context) error {
	const op = "leave"
	e.leaving.Store(true)
	if err := e.Release(); err != nil {
		return core.OpError(op, e.d.path.Full(), err)
	}
	span := e.h.Span().Next(op)
	err := e.leave(ctx, e.h.On(), span)
	for errors.Is(err, backend.ErrSessionLost) && ctx.Err() == nil {
		var s *core.Session
		if s, err = e.d.c.Live(ctx); err != nil {
			break
		}
		// The server of a new session may not even know of the round yet.
		if err = s.Backend().Sync(ctx, e.d.members); err == nil {
			err = e.leave(ctx, s, span)
		}
	}
	if err == nil {
		span.Over(ctx, nil)
		return nil
	}
	e.d.takeOut(e.h.On(), "", op, func(ctx context.Context) error { return e.d.depart(ctx, e.h.On(), e.Path(), e.names) }, e.Path())
	err, _ = e.d.c.AfterAttempt(ctx, err)
	err = core.OpError(op, e.d.path.Full(), err)
	span.Over(ctx, err)
	return err
}

// leave removes the entry's node and waits for the other members, in session s.
func (e *Entry) leave(ctx context.Context, s *core.Session, span *core.Span) error {
	d, own := e.d, core.Base(e.Path())
	if e.extra && s == e.h.On() {
		if err := s.Remove(ctx, e.Path()); err != nil {
			return err
		}
	}
	var other line.Neighbour
	defer other.Stop()
	for {
		living, err := d.living(ctx, s, e.names, e.since)
		if err != nil {
			return err
		}
		// The service removes the node of an earlier session. Until then it counts
		// like that of another member.
		mine := s == e.h.On() && slices.Contains(living, own)
		switch {
		case len(living) == 0:
			return nil
		case mine && len(living) == 1:
			return d.removeLast(ctx, s, e.Path())
		case mine && living[0] == own:
			_, err = other.Watch(ctx, s, d.members, living[len(living)-1])
		default:
			if mine {
				if err := s.Remove(ctx, e.Path()); err != nil {
					return err
				}
			}
			_, err = other.Watch(ctx, s, d.members, living[0])
		}
		if err != nil {
			return err
		}
		if other.W == nil {
			continue // deleted already
		}
		span.Waiting(ctx, e.Path(), -1)
		select {
		case <-other.W.Fired():
		case <-s.Backend().Done():
			return s.Backend().Err()
		case <-ctx.Done():
			return s.ContextError(ctx)
		}
	}
}

// living returns those of names whose nodes exist. The names are of a round to which
// a node of czxid since belonged, or, if since is 0, of a round in which the caller's
// own node still exists. In a directory that was created after since, a node of such
// a name is another node.
func (d *DoubleBarrier) living(ctx context.Context, s *core.Session, names []string, since int64) ([]string, error) {
	list, members, err := s.Backend().Children(ctx, d.members, nil)
	if core.IsNotFound(err) || since != 0 && err == nil && members.Czxid > since {
		return nil, nil
	}
	return layout.SortMembers(names, list).Living, err
}

// removeLast removes the node of the last member of a round, together with ready.
// While that node exists, ready is that of its round, so a repeated commit cannot
// delete the ready of another one.
func (d *DoubleBarrier) removeLast(ctx context.Context, s *core.Session, path string) error {
	err := s.CommitAgain(ctx, backend.Delete(path, backend.AnyVersion), backend.Delete(d.ready, backend.AnyVersion))
	if err == nil || core.IsOver(err) || ctx.Err() != nil {
		return err
	}
	return s.Remove(ctx, path) // an outsider interfered, a reply was lost, or ready cannot be deleted
}

// depart removes the node of a member at once. names lists the members of its round.
// If the member is the last of them, ready is removed with it.
func (d *DoubleBarrier) depart(ctx context.Context, s *core.Session, path string, names []string) error {
	living, err := d.living(ctx, s, names, 0) // after an error the member leaves all the same
	if err == nil && len(living) == 1 && living[0] == core.Base(path) {
		return d.removeLast(ctx, s, path)
	}
	return s.Remove(ctx, path)
}

// entryHold is an Entry as the recipe of its hold.
type entryHold Entry

func (e *entryHold) Release(h *core.Hold) error {
	if e.leaving.Load() {
		return nil
	}
	living, err := e.d.living(context.Background(), h.On(), e.names, 0) // after an error the member leaves all the same
	if err != nil || len(living) != 1 || living[0] != core.Base(h.Path()) {
		return h.Remove(nil)
	}
	_, err = h.RemoveWith(e.d.ready)
	return err
}

func (e *entryHold) Leftovers(*core.Hold, error) core.Leftovers { return core.Leftovers{} }

func (e *entryHold) Lost(*core.Hold) {}
