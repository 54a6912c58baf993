package cell

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/carry"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/txn"
)

// SetOp is a Set as a part of a transaction. invalid is the reason why data cannot be written, or nil.
func (n *Node) SetOp(data []byte, invalid error) txn.Op {
	if invalid == nil {
		invalid = errs.Op("set", n.FullPath(), n.fits(data))
	}
	return n.setOp(data, true, invalid)
}

// PlainSetOp is SetOp for a node that need not be a Value. If the node is missing, the service refuses
// the operation.
func (n *Node) PlainSetOp(data []byte) txn.Op { return n.setOp(data, false, nil) }

// setOp writes data. If the node is missing, the operation creates it, or with create false is refused by
// the service.
func (n *Node) setOp(data []byte, create bool, invalid error) txn.Op {
	return txn.Op{Name: "set", Path: n.FullPath(), Err: cmp.Or(n.Check("set"), invalid),
		Expand: func(ctx context.Context, s *core.Session, before []backend.Op) ([]backend.Op, error) {
			if carry.Of(ctx) != nil {
				// Nothing examines the node afterwards, and a refusal is not reported to this client.
				n.c.Kinds().Forget(n.path.Full())
			}
			return n.setOps(ctx, s, before, data, create)
		},
		Least:   []backend.Op{backend.SetData(n.FullPath(), data, backend.AnyVersion)},
		Again:   func(err error) bool { return n.setAgain(err, create) },
		Examine: n.afterTxnSet,
	}
}

// DeleteOp is a deletion of the node at any version as a part of a transaction.
func (n *Node) DeleteOp() txn.Op {
	return txn.Op{Name: "delete", Path: n.FullPath(), Err: n.Check("delete"),
		Expand: func(_ context.Context, _ *core.Session, before []backend.Op) ([]backend.Op, error) {
			return n.deleteOps(before), nil
		},
		Again: n.deleteAgain,
	}
}

// setOps returns the operations that write data at any version as a part of a transaction, after the
// operations before. If the node is missing, they create it, or with create false the service refuses
// them.
//
// They include the pin of the node, as each write of a Value does. A node that a Txn or another program
// has created gets none with create false: it is no container.
func (n *Node) setOps(ctx context.Context, s *core.Session, before []backend.Op, data []byte, create bool) ([]backend.Op, error) {
	// Earlier operations of the same transaction can change the state that a read finds. A
	// node that one of them creates is no container.
	path := n.path.Full()
	set := []backend.Op{backend.SetData(path, data, backend.AnyVersion)}
	missing, _ := n.createOps(data)
	if !create {
		missing = set
	}
	written, pinned := false, false
	for _, o := range slices.Backward(before) {
		switch {
		case o.Path == path+"/"+layout.Pin:
			pinned = true
		case o.Path != path:
		case o.Kind == backend.OpDelete:
			return missing, nil
		case o.Kind == backend.OpCreate:
			return set, nil
		case o.Kind == backend.OpSetData:
			written = true
		}
	}
	if written && (pinned || !create) {
		return set, nil // beside another write of the node
	}
	f, err := n.stateInTxn(ctx, s, create)
	switch {
	case errs.IsNotFound(err):
	case err != nil:
		return nil, err
	case f.Directory && !written:
		return WriteOps(n.path.Full(), data, f.Version, f.Pin), nil
	default:
		return WriteOps(n.path.Full(), data, backend.AnyVersion, f.Pin), nil
	}
	if dir := nodepath.Parent(path); create && dir != "" && !txn.Creates(before, dir) {
		if err := s.Ensure(ctx, dir); err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// setAgain reports whether the service refused the operations of setOps only because the state that
// setOps has read was outdated.
func (n *Node) setAgain(err error, create bool) bool {
	path := n.path.Full()
	n.c.Kinds().Forget(path) // it can be another node by now, or have lost its pin
	return errs.IsNotFound(err) && (create || layout.AtPin(err, path)) || errors.Is(err, backend.ErrExists) || errors.Is(err, backend.ErrBadVersion)
}

// stateInTxn returns the state of the node for a write of a transaction. The write of a Value reads the
// node each time, since it may have to create it; the write of a plain node only at the first use.
func (n *Node) stateInTxn(ctx context.Context, s *core.Session, value bool) (kinds.DirState, error) {
	if value {
		x, err := n.read(ctx, s)
		if err == nil && !x.at.Directory && x.Czxid == 0 {
			err = backend.ErrNotFound
		}
		return x.at, err
	}
	f, err := s.DirState(ctx, n.recipeDir())
	if f.Plain && f.Pin == layout.PinNeeded {
		f.Pin, f.Directory = layout.NoPin, false
	}
	return f, err
}

// afterTxnSet examines the node after a transaction of the operations all, which has set it, see
// confirmKind. stat is zero if the node is missing: then another client has deleted it, or see errIfLost.
func (n *Node) afterTxnSet(ctx context.Context, s *core.Session, all []backend.Op, stat backend.Stat, zxid int64) error {
	w := misdirected{stat: stat, rewritten: stat.Mzxid != zxid}
	for _, op := range all {
		switch {
		case op.Path == n.path.Full()+"/"+layout.Pin:
			w.pin = layout.Pinned
		case op.Path == n.path.Full() && (op.Kind == backend.OpCreate || op.Kind == backend.OpDelete):
			return nil
		}
	}
	f, known := n.c.Kinds().Known(n.recipeDir())
	switch {
	case stat.Czxid == 0 || stat.Czxid > zxid:
		return n.errIfLost(s, w)
	case !known || f.Czxid != stat.Czxid || w.pin == layout.NoPin && stat.Container:
		return n.confirmKind(ctx, s, w)
	case f.Directory: // it is a value now
		s.SetState(n.path.Full(), kinds.DirState{Kind: n.kind, Czxid: stat.Czxid, Version: backend.AnyVersion, Pin: w.pin})
	}
	return nil
}

// deleteOps returns the operations that delete the node at any version as a part of a transaction, after
// the operations before: with its pin, if this client or the transaction has created the pin.
func (n *Node) deleteOps(before []backend.Op) []backend.Op {
	pin, remove := n.path.Full()+"/"+layout.Pin, backend.Delete(n.path.Full(), backend.AnyVersion)
	f, _ := n.c.Kinds().Known(n.recipeDir())
	if f.Pin == layout.Pinned || txn.Creates(before, pin) {
		return []backend.Op{backend.Delete(pin, backend.AnyVersion), remove}
	}
	return []backend.Op{remove}
}

// deleteAgain reports whether the service refused the operations of deleteOps only because the pin is
// gone.
func (n *Node) deleteAgain(err error) bool {
	f, known := n.c.Kinds().Known(n.recipeDir())
	n.c.Kinds().Forget(n.path.Full())
	return errs.IsNotFound(err) && layout.AtPin(err, n.path.Full()) && known && f.Pin == layout.Pinned
}
