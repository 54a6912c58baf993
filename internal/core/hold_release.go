package core

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
)

// Release ends the hold, so that Done is closed, then removes its node and returns. It is
// idempotent. It takes no context, since it must succeed: without contact it waits, but not
// longer than the session can last. The hold has ended in any case.
//
// Nil means that the hold had not ended before its release, and that this Release has
// removed the node, or keeps it (MutexOptions.Keep). Otherwise the error matches
//
//   - ErrLost, if the hold was lost before the release: another client may have been
//     granted already. Err returns the same error, or ErrReleased if only the removal
//     detects the loss.
//   - ErrUncertain, if the reply to the removal was lost and the node does not exist:
//     another client may have removed it first. The error matches ErrLost too if the
//     session was lost after that.
//   - the reason for which the service refuses the removal, such as ErrDenied. Release
//     continues in the background.
func (h *Hold) Release() error { return h.ReleaseFor("") }

// ReleaseFor is Release. If why is not empty, the text of Err has this reason.
func (h *Hold) ReleaseFor(why string) error {
	if h.BeginRelease(why) {
		h.EndRelease(h.owner.RemoveNode(h))
	}
	return h.releaseOutcome()
}

// BeginRelease ends the hold for a Release, see ReleaseFor. It reports false if the hold had ended before. If
// it reports true, the caller removes the node and then calls EndRelease.
func (h *Hold) BeginRelease(why string) bool {
	h.checkLease()
	h.mu.Lock()
	if h.err != nil {
		h.mu.Unlock()
		return false
	}
	h.releasing = true
	h.ended.path = h.path
	err := error(&h.ended)
	if why != "" {
		err = fmt.Errorf("%w: %s", err, why)
	}
	ends := h.finish(err)
	h.mu.Unlock()
	h.held = h.span.Held()
	h.s.endHold(h)
	runEnds(ends, err)
	h.awaitMove(context.Background()) // the session bounds it
	return true
}

// EndRelease ends the Release that BeginRelease began, with its result.
func (h *Hold) EndRelease(err error) {
	h.mu.Lock()
	h.isReleased, h.releaseErr = true, err
	if h.waiting != nil {
		close(h.waiting)
	}
	path := h.path
	h.mu.Unlock()
	h.span.Released(path, h.token, h.held, err)
}

// releaseOutcome waits for the end of the Release and returns its result. If the hold was lost before, it
// returns the loss.
func (h *Hold) releaseOutcome() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.releasing {
		return h.err
	}
	if !h.isReleased {
		if h.waiting == nil {
			h.waiting = make(chan struct{})
		}
		waiting := h.waiting
		h.mu.Unlock()
		<-waiting
		h.mu.Lock()
	}
	return h.releaseErr
}

// Remove deletes the node of a hold that its holder releases, and returns the result of
// Release. The deletion is the first operation of a commit, to which with, if it is not
// nil, adds operations that must happen at the same moment. If that commit is refused,
// Remove deletes the node alone.
//
// Remove repeats a commit whose reply was lost: the name of the node is never used again, so the retry
// cannot delete a successor. A commit that only deletes the node is the one commit that a backend may
// repeat by itself (package backend, "Calls"). The backend for etcd sends it without a compare: see send
// in backend/etcd/commit.go.
func (h *Hold) Remove(with func(ctx context.Context, del backend.Op) error) error {
	ctx := context.Background() // the session bounds it
	s, path := h.s, h.Path()
	del := backend.Delete(path, backend.AnyVersion)
	doubt := false // an earlier attempt may have deleted the node
	for pause := NewPauses(s.c); ; {
		var err error
		if with != nil {
			err = with(ctx, del)
		} else {
			_, err = s.b.Commit(ctx, del)
		}
		switch {
		case err == nil:
			return nil
		case errs.IsOver(err) && doubt:
			return &errs.Loss{Path: path, Cause: backend.Uncertain(errs.Why(err))}
		case errs.IsOver(err):
			return &errs.Loss{Path: path, Cause: errs.Why(err)}
		case backend.IsUncertain(err):
			doubt = true
			pause.Wait(nil, s.b.Done())
		case with != nil:
			with = nil
		case errs.IsNotFound(err) && doubt:
			return errs.Op("release", path, backend.Uncertain(errs.Why(err)))
		case errs.IsNotFound(err):
			return &errs.Loss{Path: path, Cause: h.deleted()}
		default:
			s.RemoveLater(path)
			return errs.Op("release", path, errs.Why(err))
		}
	}
}

// RemoveWith is Remove, and at the same moment deletes the node at path, if the service
// permits that. It reports whether the node at path was deleted.
func (h *Hold) RemoveWith(path string) (both bool, err error) {
	err = h.Remove(func(ctx context.Context, del backend.Op) error {
		_, err := h.s.b.Commit(ctx, del, backend.Delete(path, backend.AnyVersion))
		both = err == nil
		return err
	})
	return both, err
}

// HandOver is Remove, and in the same commit creates a node of this kind in g, the directory of the
// hold's node. n is the created node; it is zero if the client does not know that g carries its mark, or if
// the service refuses the creation. If the node may have been created, doubt is its Spec, with which Create
// or RemoveAttemptsLater looks for the node.
func (h *Hold) HandOver(g kinds.RecipeDir, kind string, data []byte) (n Node, doubt *Spec, err error) {
	s := h.s
	f, _ := s.c.kinds.Known(g)
	if f.Mark == nil || f.Version != backend.AnyVersion {
		return n, nil, h.Remove(nil)
	}
	sp := NewSpec(s.c, g, kind, data)
	err = h.Remove(func(ctx context.Context, del backend.Op) error {
		res, err := s.b.Commit(ctx, del,
			backend.Create(sp.Prefix, data, backend.EphemeralSequential),
			backend.Carry(g.Dir, f.Mark))
		if err == nil {
			if made, err := s.made(ctx, &sp, res[1], &res[2].Stat); err == nil {
				n, doubt = made, nil
			}
			return nil
		}
		var e *backend.Error
		switch {
		case backend.IsUncertain(err) && !errs.IsOver(err):
			// If the commit was applied, the node is found by its name. A later attempt
			// then fails, since the node that it deletes is gone.
			mayStand := sp // a copy, so that sp is not allocated for each hand-over
			mayStand.Made = true
			doubt = &mayStand
		case errors.Is(err, backend.ErrDenied) && errors.As(err, &e) && e.Index == 2:
			s.c.kinds.LeaveData(s.nth, g)
		case errors.Is(err, backend.ErrBadVersion) && errors.As(err, &e) && e.Index == 2:
			s.c.kinds.Forget(g.Dir) // foreign data
			s.overwrite(ctx, g, f)
		}
		return err
	})
	return n, doubt, err
}
