package cell

import (
	"cmp"
	"context"
	"fmt"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
)

// afterSet returns the content of the node after a write by set. f is the state of the node that the
// client found before. If the node was deleted and created again since then, see confirmKind.
func (n *Node) afterSet(ctx context.Context, s *core.Session, f kinds.DirState, results []backend.Result, zxid int64) (Content, error) {
	x := Content{Czxid: -1, Version: -1, Mzxid: zxid}
	var stat backend.Stat
	if results != nil {
		stat = results[0].Stat
	} else {
		var err error
		stat, err = s.Backend().Exists(ctx, n.path.Full(), nil)
		switch {
		case err == nil && stat.Czxid <= zxid:
		case f.Pin == layout.NoPin && f.Czxid != 0 && s.Backend().Features().Has(backend.Containers):
			// The data may have gone into a container.
			return Content{}, backend.Uncertain(cmp.Or(err, errNotChecked))
		default:
			return x, nil
		}
	}
	rewritten := results == nil && stat.Mzxid != zxid
	if !rewritten {
		x = Content{Czxid: stat.Czxid, Version: stat.Version, Mzxid: zxid}
	}
	if f.Czxid == 0 || f.Czxid == stat.Czxid {
		return x, nil
	}
	return x, n.confirmKind(ctx, s, misdirected{stat, f.Pin, rewritten})
}

// writtenCzxid returns the czxid of the node to which the commit zxid has written. read is the czxid of the
// node that was read before the write. writtenCzxid returns read if the reply was lost, and the node is gone
// or was created again since.
func (n *Node) writtenCzxid(ctx context.Context, s *core.Session, read int64, results []backend.Result, zxid int64) int64 {
	if results != nil {
		return results[0].Stat.Czxid
	}
	if stat, err := s.Backend().Exists(ctx, n.path.Full(), nil); err == nil && stat.Czxid < zxid {
		return stat.Czxid // the node existed before this commit
	}
	return read
}

// conflict returns the error for a commit under a version.
func conflict(err error) error {
	switch {
	case errs.Answers(err, backend.ErrBadVersion):
		return fmt.Errorf("%w: %w", errs.ErrConflict, err)
	case errs.IsNotFound(err):
		return errDeleted
	}
	return err
}

// errDeleted is the conflict of a value that was deleted.
var errDeleted = fmt.Errorf("%w: %w", errs.ErrConflict, backend.ErrNotFound)
