package cell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// CompareAndSet replaces want with data. It returns ErrConflict if the node does not have the Czxid and
// Version of want. If the Czxid of want is 0, it creates the node. With an error the content is not zero
// if data was written all the same, see replace.
func (n *Node) CompareAndSet(ctx context.Context, want Content, data []byte) (Content, error) {
	const op = "compareandset"
	if err := n.Check(op); err != nil {
		return Content{}, err
	}
	if err := n.fits(data); err != nil {
		return Content{}, errs.Op(op, n.path.Full(), err)
	}
	x, err := core.OnSessionOnce(ctx, n.c, func(s *core.Session) (Content, error) {
		if want.Czxid == 0 { // the service itself refuses an existing node
			return n.create(ctx, s, data)
		}
		old, err := n.expect(ctx, s, want)
		if err != nil {
			return Content{}, err
		}
		return n.replace(ctx, s, old, data)
	})
	return x, errs.Op(op, n.path.Full(), err)
}

// Update replaces the content with the result of fn. An error of fn for the current content ends it.
// With an error the content is not zero if the data was written all the same, see replace.
func (n *Node) Update(ctx context.Context, fn func(old Content) ([]byte, error)) (Content, error) {
	if err := n.Check("update"); err != nil {
		return Content{}, err
	}
	x, err := n.update(ctx, func(old Content) ([]byte, error) {
		data, err := fn(old)
		if err != nil {
			return nil, err
		}
		return data, n.fits(data)
	})
	return x, errs.Op("update", n.path.Full(), err)
}

// update replaces the content with the result of fn, exactly once.
//
// A conflict is not a failure of the service: another client has succeeded. The
// pauses spare the service the requests of clients that would only conflict again.
func (n *Node) update(ctx context.Context, fn func(old Content) ([]byte, error)) (Content, error) {
	var refusal error // of fn; it ends the update, whatever it matches
	pause := core.NewPauses(n.c)
	x, err := core.OnSessionOnce(ctx, n.c, func(s *core.Session) (Content, error) {
		old, err := n.read(ctx, s)
		for err == nil {
			var data []byte
			data, refusal = fn(old)
			if refusal == nil {
				var x Content
				x, err = n.replace(ctx, s, old, data)
				if !errs.Answers(err, errs.ErrConflict) || x.Czxid != 0 {
					return x, err
				}
				pause.Wait(ctx.Done(), s.Backend().Done())
			}
			// This server may still show the state that fn has just seen.
			if err = s.Backend().Sync(ctx, n.path.Full()); err != nil {
				break
			}
			seen := old
			old, err = n.read(ctx, s)
			if refusal != nil && old.same(seen) {
				break
			}
		}
		return Content{}, err
	})
	switch {
	case refusal == nil:
	case err == nil:
		err = refusal
	default:
		err = errors.Join(refusal, err)
	}
	return x, err
}

// replace writes data in place of old, which was read just before, or returns
// ErrConflict. With ErrConflict the content is not zero if the data was written all
// the same: to a node that was made since and has the same version.
func (n *Node) replace(ctx context.Context, s *core.Session, old Content, data []byte) (Content, error) {
	path := n.path.Full()
	switch {
	case old.at.Directory:
		return n.setInDirectory(ctx, s, old, data)
	case old.Czxid == 0:
		return n.create(ctx, s, data)
	case old.Version < 0:
		return Content{}, errs.ErrVersions // -1 would mean any version
	}
	f := old.at
	if old.Version == math.MaxInt32 {
		// There is no version after this one. A new node begins with its first
		// version.
		create, version := n.createOps(data)
		ops := []backend.Op{backend.Delete(path, old.Version)}
		if f.Pin == layout.Pinned {
			ops = deletePinned(path, old.Version)
		}
		_, zxid, err := s.CommitOnce(ctx, append(ops, create...)...)
		if err != nil {
			return Content{}, conflict(err)
		}
		n.c.Kinds().Forget(path)
		return Content{Czxid: zxid, Version: version, Mzxid: zxid}, nil
	}
	results, zxid, err := n.write(ctx, s, f, data, old.Version)
	if err != nil {
		return Content{}, conflict(err)
	}
	x := Content{Czxid: n.writtenCzxid(ctx, s, old.Czxid, results, zxid), Version: old.Version + 1, Mzxid: zxid}
	if x.Czxid != old.Czxid {
		w := misdirected{stat: backend.Stat{Czxid: x.Czxid, Version: x.Version}, pin: f.Pin}
		if results != nil {
			w.stat = results[0].Stat
		}
		err := n.confirmKind(ctx, s, w)
		if errors.Is(err, errs.ErrKind) {
			return Content{}, err // undone
		}
		return x, cmp.Or(err, fmt.Errorf("%w: the node was deleted and created again just before the write", errs.ErrConflict))
	}
	return x, nil
}
