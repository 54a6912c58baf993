package cell

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// misdirected is a write that has reached another node than the client has examined: the examined node was
// deleted, and created again, before the write.
type misdirected struct {
	stat      backend.Stat    // after the write
	pin       layout.PinState // what the write has ensured
	rewritten bool            // the data was replaced after the write and before stat was read
}

// errNotChecked: a write has reached a node that was deleted before the client examined it, by another
// client or, since the node was a container, by the service.
var errNotChecked = errors.New("the written node was deleted before the client could check which recipe uses it")

// errUnconfirmed: undoOrPin has to be repeated.
var errUnconfirmed = errors.New("the client has not yet checked which recipe uses the written node")

// unconfirmed returns the error of an undoOrPin that err has ended.
func unconfirmed(err error) error {
	return backend.Uncertain(fmt.Errorf("%w: %w", errUnconfirmed, err))
}

// confirmKind examines the node that w has reached. If another recipe uses the node, confirmKind undoes
// the write and returns a KindError. Otherwise the node gets a pin, unless the write has ensured that it
// has one, since it can be a container. If neither is possible, the error matches ErrUncertain: the
// write was applied, and may not last.
func (n *Node) confirmKind(ctx context.Context, s *core.Session, w misdirected) error {
	n.c.Kinds().Forget(n.path.Full()) // the node was created again since it was examined
	err := n.undoOrPin(ctx, s, w)
	if errors.Is(err, errUnconfirmed) {
		// The write is undone, or gets its pin, even if the call ends before.
		s.Client().GoCleanUp(func(ctx context.Context, u *core.CleanUp) {
			s.Client().OverSessions(ctx, func(s *core.Session) {
				s.Retry(ctx, u, "examine", n.path.Full(), func(ctx context.Context) error {
					err := n.undoOrPin(ctx, s, w)
					if errors.Is(err, errUnconfirmed) {
						return err
					}
					return nil
				})
			})
		})
	}
	return err
}

// undoOrPin undoes a write if another recipe has nodes below the written node: it makes the node a
// directory again and returns a KindError. The other recipe writes its mark at its next use of the node.
// Otherwise undoOrPin creates the pin that the write has not created or checked.
func (n *Node) undoOrPin(ctx context.Context, s *core.Session, w misdirected) error {
	names, now, err := s.Backend().Children(ctx, n.path.Full(), nil)
	switch {
	case errs.IsNotFound(err) || err == nil && now.Czxid != w.stat.Czxid:
		return n.errIfLost(s, w)
	case errs.Answers(err, backend.ErrDenied):
		return n.addPin(ctx, s, w)
	case err != nil:
		return unconfirmed(err)
	}
	found, err := s.OtherKind(ctx, n.recipeDir(), names)
	switch {
	case err != nil:
		return unconfirmed(err)
	case found == "":
		return n.addPin(ctx, s, w)
	}
	refusal := s.Client().KindError(n.path.Full(), n.kind, string(found))
	if w.rewritten {
		return refusal // there is nothing to undo
	}
	write, unpin := backend.SetData(n.path.Full(), layout.KindDirectory.Mark(), w.stat.Version), backend.Delete(n.path.Full()+"/"+layout.Pin, backend.AnyVersion)
	if slices.Contains(names, layout.Pin) { // it would keep the directory for ever
		err = s.CommitAgain(ctx, write, unpin)
		for errs.Answers(err, backend.ErrBadVersion) {
			var data []byte
			data, now, err = s.Backend().Get(ctx, n.path.Full(), nil)
			if _, marked := layout.ParseMark(data); err == nil && marked && now.Czxid == w.stat.Czxid {
				err = s.CommitAgain(ctx, backend.Check(n.path.Full(), now.Version), unpin) // the other recipe has written its mark
			}
		}
	}
	if !slices.Contains(names, layout.Pin) || errs.IsNotFound(err) && layout.AtPin(err, n.path.Full()) {
		err = s.CommitAgain(ctx, write) // without a pin, or the pin was deleted since the list
	}
	if err != nil && !errs.IsNotFound(err) && !errs.Answers(err, backend.ErrBadVersion) && !errs.Answers(err, backend.ErrDenied) {
		return unconfirmed(err)
	}
	return refusal
}
