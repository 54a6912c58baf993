package coord

import (
	"context"

	"github.com/go-coord/coord/backend"
)

// watchNode watches the node of a hold: it ends the hold when another client deletes
// the node, and records requests to give the hold up. It returns when the hold has
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
				// Without a watch the holder would never learn of a deletion.
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

// gone is called when the node at path was found deleted. It ends the hold, unless the
// hold has moved to another node, and reports whether the hold has ended. If ctx ends
// before that is known, the error is that of ctx.
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

// deleted returns the reason for the loss of a hold whose node another client has
// deleted.
func (h *Hold) deleted() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.request != nil && h.request.Force {
		return &revoked{*h.request}
	}
	return ErrDeleted
}

// awaitMove waits until a downgrade under way is complete. The session and ctx bound
// it.
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
