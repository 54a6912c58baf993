package cell

import (
	"context"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// addPin creates the pin of the node that w has written, unless the value was deleted since. The pin is
// needed also if the data has changed: the later write of another client may have included no pin,
// because that client has read the node as a value.
func (n *Node) addPin(ctx context.Context, s *core.Session, w misdirected) error {
	if w.pin != layout.NoPin || !s.Backend().Features().Has(backend.Containers) {
		return nil
	}
	stat := w.stat
	for {
		err := CreatePin(ctx, s, n.path.Full(), stat.Version)
		switch {
		case err == nil, errs.Answers(err, backend.ErrExists):
			return nil
		case errs.IsNotFound(err):
			return n.errIfLost(s, w)
		case errs.Answers(err, backend.ErrDenied):
			if layout.UsedAsDir(stat) {
				return backend.Uncertain(err)
			}
			return nil // it was created as a value
		case !errs.Answers(err, backend.ErrBadVersion):
			return unconfirmed(err)
		}
		if err := s.Backend().Sync(ctx, n.path.Full()); err != nil {
			return unconfirmed(err)
		}
		data, now, err := s.Backend().Get(ctx, n.path.Full(), nil)
		switch {
		case errs.IsNotFound(err), err == nil && now.Czxid != stat.Czxid:
			return n.errIfLost(s, w)
		case err == nil && layout.IsDirectory(data, now):
			return nil
		case errs.Answers(err, backend.ErrDenied):
			return backend.Uncertain(err)
		case err != nil:
			return unconfirmed(err)
		}
		stat = now
	}
}

// errIfLost returns the error of a write whose node is gone. If the node had no pin, it can have been a
// container that the service has removed together with the written data.
func (n *Node) errIfLost(s *core.Session, w misdirected) error {
	if w.pin != layout.NoPin || !s.Backend().Features().Has(backend.Containers) {
		return nil
	}
	return backend.Uncertain(errNotChecked)
}

// WriteOps returns the operations that write data at path under a version, the write of the data first.
// pin is the state of the pin that the writer has found there.
func WriteOps(path string, data []byte, version int32, pin layout.PinState) []backend.Op {
	return append([]backend.Op{backend.SetData(path, data, version)}, pin.Ops(path)...)
}

// CreatePin creates the pin of the Value, Counter or Barrier at path, if that still has the version.
func CreatePin(ctx context.Context, s *core.Session, path string, version int32) error {
	return s.CommitAgain(ctx, append([]backend.Op{backend.Check(path, version)}, layout.PinNeeded.Ops(path)...)...)
}

// deletePinned returns the operations that delete the node at path with its pin.
func deletePinned(path string, version int32) []backend.Op {
	return []backend.Op{backend.Delete(path+"/"+layout.Pin, backend.AnyVersion), backend.Delete(path, version)}
}
