package coord

import (
	"context"

	"github.com/go-coord/coord/backend"
)

// watchNode watches the node of a hold: it ends the hold when somebody deletes
// the node, and tells of a request to give it up. It returns when the hold has
// ended. own is an armed watch on the data of the node at path, or nil.
func (h *Hold) watchNode(path string, own *backend.Watch) {
	ctx, done := context.Background(), h.Done()
	pause := pauses{c: h.s.c}
	for {
		if own == nil {
			own = backend.NewWatch()
			path = h.Path()
			data, stat, err := h.s.b.Get(ctx, path, own)
			switch {
			case isNotFound(err), err == nil && stat.EphemeralOwner != h.s.b.ID():
				own.Stop()
				if ended, _ := h.gone(ctx, path); ended {
					return
				}
				own = nil
				continue
			case isOver(err):
				return // the session's end ends the hold too
			case err != nil:
				// Not to watch would leave the holder without notice for ever.
				own.Stop()
				own = nil
				h.s.c.log.Warn("coord: cannot watch a hold, trying again", "path", path, "error", err)
				if pause.wait(done, h.s.b.Done()) {
					continue
				}
				return
			}
			pause.reset()
			h.look(data)
		}
		select {
		case <-own.Fired():
			if own.Kind() == backend.Deleted {
				if ended, _ := h.gone(ctx, path); ended {
					return
				}
			}
			own = nil
		case <-done:
			own.Stop()
			return
		}
	}
}

// gone takes note that the node at path has been deleted. It reports whether the
// hold has ended; it has not if it has moved to another node. The error is that
// of ctx, if it ends while that is not known yet.
func (h *Hold) gone(ctx context.Context, path string) (ended bool, err error) {
	if err := h.awaitMove(ctx); err != nil {
		return false, err
	}
	if h.Path() != path {
		return false, nil
	}
	h.lose(h.deleted())
	return true, nil
}

// deleted is why a hold is lost whose node another client has deleted.
func (h *Hold) deleted() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.request != nil && h.request.Force {
		return &revoked{*h.request}
	}
	return ErrDeleted
}

// awaitMove waits for the end of a downgrade that is under way. The session
// bounds it, and ctx.
func (h *Hold) awaitMove(ctx context.Context) error {
	h.mu.Lock()
	moving := h.moving
	h.mu.Unlock()
	if moving == nil {
		return nil
	}
	select {
	case <-moving:
		return nil
	case <-ctx.Done():
		return backend.ContextError(ctx)
	}
}
