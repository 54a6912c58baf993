package doublebarrier

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/tracing"
)

// Entry is the engine of an Entry: a member's place in a round, from Enter to Leave.
type Entry struct {
	b       *Barrier
	h       *core.Hold
	span    *tracing.Span // of Enter
	names   []string      // of the members of the round
	since   int64         // the czxid of the node with which the member entered, 0 if unknown
	extra   bool
	leaving atomic.Bool // set by Leave, which removes the node itself
}

// Hold returns the hold on the member's node.
func (e *Entry) Hold() *core.Hold { return e.h }

// Extra reports whether the member joined a round that was open already.
func (e *Entry) Extra() bool { return e.extra }

// Leave ends the hold and waits until all other members of the round have left or died.
func (e *Entry) Leave(ctx context.Context) error {
	const op = "leave"
	e.leaving.Store(true)
	if err := e.h.Release(); err != nil {
		return errs.Op(op, e.b.path.Full(), err)
	}
	span := e.span.Next(op)
	err := e.leave(ctx, e.h.On(), span)
	for errors.Is(err, backend.ErrSessionLost) && ctx.Err() == nil {
		var s *core.Session
		if s, err = e.b.c.Live(ctx); err != nil {
			break
		}
		// The server of a new session may not even know of the round yet.
		if err = s.Backend().Sync(ctx, e.b.members); err == nil {
			err = e.leave(ctx, s, span)
		}
	}
	if err == nil {
		span.Over(ctx, nil)
		return nil
	}
	e.b.cleanUp(e.h.On(), "", op, func(ctx context.Context) error { return e.b.removeMember(ctx, e.h.On(), e.h.Path(), e.names) }, e.h.Path())
	err, _ = e.b.c.AfterAttempt(ctx, err)
	err = errs.Op(op, e.b.path.Full(), err)
	span.Over(ctx, err)
	return err
}

// leave removes the entry's node and waits for the other members, in session s.
func (e *Entry) leave(ctx context.Context, s *core.Session, span *tracing.Span) error {
	b, own := e.b, nodepath.Base(e.h.Path())
	if e.extra && s == e.h.On() {
		if err := s.Remove(ctx, e.h.Path()); err != nil {
			return err
		}
	}
	var other contender.Neighbour
	defer other.Stop()
	for {
		present, err := b.present(ctx, s, e.names, e.since)
		if err != nil {
			return err
		}
		// The service removes the node of an earlier session. Until then it counts
		// like that of another member.
		mine := s == e.h.On() && slices.Contains(present, own)
		switch {
		case len(present) == 0:
			return nil
		case mine && len(present) == 1:
			return b.removeLast(ctx, s, e.h.Path())
		case mine && present[0] == own:
			_, err = other.Watch(ctx, s, b.members, present[len(present)-1])
		default:
			if mine {
				if err := s.Remove(ctx, e.h.Path()); err != nil {
					return err
				}
			}
			_, err = other.Watch(ctx, s, b.members, present[0])
		}
		if err != nil {
			return err
		}
		if other.W == nil {
			continue // deleted already
		}
		span.Waiting(ctx, e.h.Path(), -1)
		select {
		case <-other.W.Fired():
		case <-s.Backend().Done():
			return s.Backend().Err()
		case <-ctx.Done():
			return s.ContextError(ctx)
		}
	}
}

// present returns the names whose nodes exist. The names are of a round to which a node
// of czxid since belonged, or, if since is 0, of a round in which the caller's own node
// still exists. In a directory that was created after since, a node of such a name is
// another node.
func (b *Barrier) present(ctx context.Context, s *core.Session, names []string, since int64) ([]string, error) {
	list, members, err := s.Backend().Children(ctx, b.members, nil)
	if errs.IsNotFound(err) || since != 0 && err == nil && members.Czxid > since {
		return nil, nil
	}
	return layout.SortMembers(names, list).Inside, err
}

// owner is an Entry as the owner of its hold.
type owner Entry

// RemoveNode deletes the member's node, together with ready if the member is the last one. A Leave under way
// deletes the node itself.
func (o *owner) RemoveNode(h *core.Hold) error {
	if o.leaving.Load() {
		return nil
	}
	present, err := o.b.present(context.Background(), h.On(), o.names, 0) // after an error the member leaves all the same
	if err != nil || len(present) != 1 || present[0] != nodepath.Base(h.Path()) {
		return h.Remove(nil)
	}
	_, err = h.RemoveWith(o.b.ready)
	return err
}

// Leftovers has no nodes: the node of a lost hold goes with its session, or was deleted.
func (o *owner) Leftovers(*core.Hold, error) (dir string, paths []string, remove func(ctx context.Context, path string) error) {
	return
}

// Lost does nothing.
func (o *owner) Lost(*core.Hold) {}

// removeLast removes the node of the last member of a round, together with ready.
// While that node exists, ready is that of its round, so a repeated commit cannot
// delete the ready of another one.
func (b *Barrier) removeLast(ctx context.Context, s *core.Session, path string) error {
	err := s.CommitAgain(ctx, backend.Delete(path, backend.AnyVersion), backend.Delete(b.ready, backend.AnyVersion))
	if err == nil || errs.IsOver(err) || ctx.Err() != nil {
		return err
	}
	return s.Remove(ctx, path) // an outsider interfered, a reply was lost, or ready cannot be deleted
}

// removeMember removes the node of a member without waiting. names lists the members of its round.
// If no other of them is left, ready is removed with the node.
func (b *Barrier) removeMember(ctx context.Context, s *core.Session, path string, names []string) error {
	present, err := b.present(ctx, s, names, 0) // after an error the member leaves all the same
	if err == nil && len(present) == 1 && present[0] == nodepath.Base(path) {
		return b.removeLast(ctx, s, path)
	}
	return s.Remove(ctx, path)
}

// cleanUp removes, by do, the nodes of a member that gave up. It works in the background
// and waits for that as core.CleanUp.Wait does. If the session is lost, it removes the
// nodes over the next session: the service may not know of the loss yet, and would count
// them among the next n. prefix is that of the nodes of the call, or "".
func (b *Barrier) cleanUp(s *core.Session, prefix, what string, do func(context.Context) error, paths ...string) {
	b.c.GoCleanUp(func(ctx context.Context, u *core.CleanUp) {
		if s.Backend().Err() == nil {
			s.Retry(ctx, u, what, paths[0], do)
		}
		if s.Backend().Err() == nil {
			return
		}
		b.c.OverSessions(ctx, func(next *core.Session) {
			for _, path := range paths {
				if path == "" {
					continue
				}
				err := next.Backend().Sync(ctx, path)
				if err == nil {
					err = next.RemoveOf(ctx, s.Backend().ID(), path)
				}
				if err != nil && !errs.IsOver(err) {
					b.c.Log().Warn("coord: cannot remove a node of a lost session, it remains until the service ends that session", "path", path, "error", err)
				}
			}
		})
	}).MadeFor(prefix).Wait(s, b.members)
}
