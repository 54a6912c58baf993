package core

import (
	"context"
	"errors"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
)

// Lose ends the hold early. It calls nothing of the user's.
func (h *Hold) Lose(cause error) {
	e, ok := h.fail(cause)
	if !ok {
		return
	}
	h.s.endHold(h)
	e.removal.start()
	runEnds(e.ends, e.err)
	e.tell()
}

// fail marks the hold as lost, unless it has ended. It calls no functions: a session
// ends all of its holds before it reports any loss.
func (h *Hold) fail(cause error) (ending, bool) {
	removal := h.removalFor(cause)
	h.mu.Lock()
	if h.err != nil {
		h.mu.Unlock()
		removal.u.End()
		return ending{}, false
	}
	defer h.mu.Unlock()
	err := &errs.Loss{Path: h.path, Cause: cause}
	return ending{h, err, h.finish(err), removal}, true
}

// ending is the end of a hold that is already marked as lost.
type ending struct {
	h       *Hold
	err     *errs.Loss
	ends    []*onEnd    // functions to be called
	removal lossRemoval // to be started
}

// tell reports the loss to the Logger, the Trace and the owner.
func (e *ending) tell() {
	h := e.h
	if !errors.Is(e.err.Cause, backend.ErrClosed) {
		h.s.c.log.Warn("coord: hold lost", "path", e.err.Path, "token", h.token, "error", e.err.Cause)
	}
	h.span.Lost(e.err.Path, h.token, e.err)
	h.owner.Lost(h)
}

// lossRemoval removes the nodes that a lost hold has left behind.
type lossRemoval struct {
	h     *Hold // nil: the nodes go with the session
	cause error
	u     *CleanUp
}

// removalFor registers the removal of the nodes that h leaves behind when it is lost for cause. It is
// called before Done is closed, so that an acquisition that begins when Done is closed waits
// for the removal.
func (h *Hold) removalFor(cause error) lossRemoval {
	if h.s.b.Err() != nil {
		return lossRemoval{}
	}
	r := lossRemoval{h: h, cause: cause}
	if dir, paths, _ := h.owner.Leftovers(h, cause); len(paths) > 0 {
		r.u = h.s.c.BeginCleanUp()
		r.u.Note(dir)
	}
	return r
}

// start begins the removal, before any function of the user's is called. It asks the
// owner again for the nodes: a call that ran while the hold was being marked as lost may
// have added one, such as an announcement.
func (r lossRemoval) start() {
	if r.h == nil {
		return
	}
	_, paths, remove := r.h.owner.Leftovers(r.h, r.cause)
	if len(paths) == 0 {
		r.u.End()
		return
	}
	if r.u == nil {
		r.u = r.h.s.c.BeginCleanUp()
	}
	s := r.h.s
	r.u.start(func(ctx context.Context, u *CleanUp) {
		for _, path := range paths {
			s.Retry(ctx, u, "remove", path, func(ctx context.Context) error { return remove(ctx, path) })
		}
	})
}

// checkLease ends the hold if its session is over or its own time has passed, even if no event has
// reported that yet.
func (h *Hold) checkLease() {
	if h.s == nil {
		return // the hold never stood
	}
	if err := h.s.b.Err(); err != nil {
		h.Lose(err)
	} else if h.isOverdue() {
		h.Lose(errs.ErrClaimTimeout)
	}
}

// EndAfter limits the hold to d from now on.
func (h *Hold) EndAfter(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = time.Now().Add(d)
}

func (h *Hold) isOverdue() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err == nil && !h.until.IsZero() && !time.Now().Before(h.until)
}

// NodeGone is called when the node at path was found deleted. It ends the hold and returns true, or returns
// false if the hold has moved to another node. If ctx ends before that is known, the error is that of ctx.
func (h *Hold) NodeGone(ctx context.Context, path string) (ended bool, err error) {
	if err := h.awaitMove(ctx); err != nil {
		return false, err
	}
	if h.Path() != path {
		return false, nil
	}
	if by, ok := h.owner.(Settler); ok {
		if settled, err := by.EndIfSettled(ctx); settled || err != nil {
			return settled, err
		}
	}
	h.Lose(h.deleted())
	return true, nil
}

// deleted returns the reason for the loss of a hold whose node another client has
// deleted.
func (h *Hold) deleted() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.request != nil && h.request.Force {
		return &revoked{*h.request}
	}
	return errs.ErrDeleted
}
