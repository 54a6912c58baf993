package cell

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// Set writes data, whatever the value is.
func (n *Node) Set(ctx context.Context, data []byte) (Content, error) {
	if err := n.Check("set"); err != nil {
		return Content{}, err
	}
	err := n.fits(data)
	var x Content
	if err == nil {
		x, err = core.OnSessionOnce(ctx, n.c, func(s *core.Session) (Content, error) { return n.set(ctx, s, data) })
	}
	if err != nil {
		return Content{}, errs.Op("set", n.path.Full(), err)
	}
	return x, nil
}

// set writes data, whatever the value is. At the first use by this client it examines the
// node first, because another recipe may use it. If the node is a directory, set writes
// under the version that it has examined, because another recipe may write its mark there.
func (n *Node) set(ctx context.Context, s *core.Session, data []byte) (Content, error) {
	for {
		_, known := n.c.Kinds().Known(n.recipeDir())
		f, err := s.DirState(ctx, n.recipeDir())
		if err == nil {
			version := int32(backend.AnyVersion)
			if f.Directory || !known && f.Czxid != 0 {
				version = f.Version
			}
			var results []backend.Result
			var zxid int64
			results, zxid, err = n.write(ctx, s, f, data, version)
			if err == nil {
				return n.afterSet(ctx, s, f, results, zxid)
			}
		}
		missing := errs.IsNotFound(err)
		if missing || backend.IsUncertain(err) || errs.Answers(err, backend.ErrBadVersion) {
			n.c.Kinds().Forget(n.path.Full()) // it is missing, or was created again
		}
		if !missing && !errs.Answers(err, backend.ErrBadVersion) {
			return Content{}, err
		}
		if missing {
			if x, err := n.create(ctx, s, data); !errs.Answers(err, errs.ErrConflict) {
				return x, err
			}
		}
		// This server's answer may be stale.
		if err := s.Backend().Sync(ctx, n.path.Full()); err != nil {
			return Content{}, err
		}
	}
}

// create creates the node and its missing ancestors, or sets the value in the directory that is
// there. It returns ErrConflict if there is a value.
func (n *Node) create(ctx context.Context, s *core.Session, data []byte) (Content, error) {
	ops, version := n.createOps(data)
	for {
		_, zxid, err := s.CommitOnce(ctx, ops...)
		switch {
		case err == nil:
			s.SetState(n.path.Full(), kinds.DirState{Kind: n.kind, Czxid: zxid, Version: backend.AnyVersion})
			return Content{Czxid: zxid, Version: version, Mzxid: zxid}, nil
		case errs.Answers(err, backend.ErrExists):
			// A read can lag behind this answer.
			if err := s.Backend().Sync(ctx, n.path.Full()); err != nil {
				return Content{}, err
			}
			old, err := n.read(ctx, s)
			switch {
			case err != nil:
				return Content{}, err
			case old.Czxid != 0:
				return Content{}, fmt.Errorf("%w: the value already exists", errs.ErrConflict)
			case !old.at.Directory:
				continue // deleted since
			}
			x, err := n.setInDirectory(ctx, s, old, data)
			if errs.Answers(err, errs.ErrConflict) {
				continue // read again whether it is a value now
			}
			return x, err
		case !errs.IsNotFound(err):
			return Content{}, s.BelowEphemeral(err, n.path.Full())
		}
		dir := nodepath.Parent(n.path.Full())
		if dir == "" {
			return Content{}, err // the root always exists
		}
		if err := s.Ensure(ctx, dir); err != nil {
			return Content{}, err
		}
	}
}

// createOps returns the operations that create the node with data, and the resulting
// version. A node without bytes is written once more in the same commit: its
// version distinguishes it from a directory that no recipe has used yet, see
// core.Session.Examine.
func (n *Node) createOps(data []byte) (ops []backend.Op, version int32) {
	ops = []backend.Op{backend.Create(n.path.Full(), data, backend.Persistent)}
	if len(data) == 0 {
		return append(ops, backend.SetData(n.path.Full(), nil, 0)), 1
	}
	return ops, 0
}

// setInDirectory sets the value in the directory that old has found, or returns ErrConflict.
func (n *Node) setInDirectory(ctx context.Context, s *core.Session, old Content, data []byte) (Content, error) {
	f := old.at
	results, zxid, err := n.write(ctx, s, f, data, f.Version)
	if err != nil {
		n.c.Kinds().Forget(n.path.Full())
		return Content{}, conflict(err)
	}
	return Content{Czxid: n.writtenCzxid(ctx, s, f.Czxid, results, zxid), Version: f.Version + 1, Mzxid: zxid}, nil
}

// write writes data under a version. f is the state in which the client has found the node. If the node
// was, or may have been, created as a directory, the same commit ensures that it has a pin: the service
// removes a container without children, with its data.
func (n *Node) write(ctx context.Context, s *core.Session, f kinds.DirState, data []byte, version int32) ([]backend.Result, int64, error) {
	for {
		results, zxid, err := s.CommitOnce(ctx, WriteOps(n.path.Full(), data, version, f.Pin)...)
		switch {
		case err == nil:
			if (f.Directory || f.Pin == layout.PinNeeded) && results != nil {
				now := kinds.DirState{Kind: n.kind, Czxid: results[0].Stat.Czxid, Version: backend.AnyVersion}
				if f.Pin != layout.NoPin {
					now.Pin = layout.Pinned
				}
				s.SetState(n.path.Full(), now)
			}
			return results, zxid, nil
		case !layout.AtPin(err, n.path.Full()):
			return nil, 0, err
		case f.Pin == layout.PinNeeded && errs.Answers(err, backend.ErrExists):
			f.Pin = layout.Pinned
		case f.Pin == layout.PinNeeded && !f.Directory && errs.Answers(err, backend.ErrDenied):
			f.Pin = layout.NoPin // this client may write a value here, and nothing below it
		case f.Pin == layout.Pinned && errs.IsNotFound(err) && version != backend.AnyVersion:
			f.Pin = layout.PinNeeded // an outsider has deleted the pin
		case f.Pin == layout.Pinned && errs.IsNotFound(err):
			// The value was deleted since this client has examined the node, which can be the
			// directory of another recipe now.
			return nil, 0, fmt.Errorf("%w: the value was deleted meanwhile", backend.ErrBadVersion)
		default:
			return nil, 0, err
		}
	}
}

// fits reports whether data can be written, in the largest commit that a write
// needs.
func (n *Node) fits(data []byte) error {
	if kind, ok := layout.ParseMark(data); ok {
		return fmt.Errorf("%w: the data is reserved, it marks the directory of a %s", backend.ErrInvalid, kind)
	}
	replace := []backend.Op{backend.Delete(n.path.Full(), 0), backend.Create(n.path.Full(), data, backend.Persistent), n.c.Proof()}
	set := append(WriteOps(n.path.Full(), data, 0, layout.PinNeeded), n.c.Proof())
	limits := n.c.Rules().Limits()
	return errors.Unwrap(cmp.Or(limits.Refuse(replace), limits.Refuse(set)))
}
