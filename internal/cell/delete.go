package cell

import (
	"context"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// Delete removes the value if it still has the Czxid and Version of want, and else returns ErrConflict. If
// the Czxid of want is 0, it removes nothing.
func (n *Node) Delete(ctx context.Context, want Content) error {
	if err := n.Check("delete"); err != nil {
		return err
	}
	_, err := core.OnSessionOnce(ctx, n.c, func(s *core.Session) (struct{}, error) { return struct{}{}, n.remove(ctx, s, want) })
	return errs.Op("delete", n.path.Full(), err)
}

// remove deletes the value if it is still old.
func (n *Node) remove(ctx context.Context, s *core.Session, old Content) error {
	now, err := n.expect(ctx, s, old)
	switch {
	case err != nil || old.Czxid == 0:
		return err
	case old.Version < 0:
		return errs.ErrVersions
	}
	err = Unset(ctx, s, n.path.Full(), old.Version, now.at.Pin, layout.KindValue)
	n.c.Kinds().Forget(n.path.Full())
	return conflict(err)
}

// Unset removes the Value, Counter or Barrier at path that has this version. If there are nodes
// below it, the node stays, as a directory: it gets a mark, and the pin goes, so that a container
// is collected when it is empty. Watches of the data fire either way. The mark of a persistent node
// is that of kept: clients that know the node as a Value without a pin write at any version, so
// the path must stay one of a Value.
//
// Each step is applied exactly once or not at all: a repetition could delete a later node of
// the same version.
func Unset(ctx context.Context, s *core.Session, path string, version int32, pin layout.PinState, kept layout.RecipeKind) error {
	directory := func(kind layout.RecipeKind) backend.Op { return backend.SetData(path, kind.Mark(), version) }
	type step struct {
		ops   []backend.Op
		full  int // the next step if the node has other children
		unpin int // the next step if there is no pin
	}
	unpin := backend.Delete(path+"/"+layout.Pin, backend.AnyVersion)
	steps := []step{
		{ops: []backend.Op{backend.Delete(path, version)}, full: 1},
		{ops: deletePinned(path, version), full: 2, unpin: 3},
		{ops: []backend.Op{directory(layout.KindDirectory), unpin}, unpin: 3},
		{ops: []backend.Op{directory(kept)}},
	}
	i := 0
	if pin == layout.Pinned {
		i = 1
	}
	for {
		step := steps[i]
		_, _, err := s.CommitOnce(ctx, step.ops...)
		switch {
		case step.full != 0 && errs.Answers(err, backend.ErrNotEmpty):
			i = step.full
		case step.unpin != 0 && errs.IsNotFound(err) && layout.AtPin(err, path):
			i = step.unpin
		default:
			return err
		}
	}
}
