package core

import (
	"context"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// WatchNode watches the node of a hold: it ends the hold when another client deletes
// the node, and records requests to give the hold up. It returns when the hold has
// ended. own is an armed watch on the data of the node at path, or nil.
func (h *Hold) WatchNode(path string, own *backend.Watch) {
	ctx, done := context.Background(), h.Done()
	pause := NewPauses(h.s.c)
	for {
		if own == nil {
			own = backend.NewWatch()
			path = h.Path()
			data, stat, err := h.s.b.Get(ctx, path, own)
			switch {
			case errs.IsNotFound(err), err == nil && stat.EphemeralOwner != h.s.b.ID():
				own.Stop()
				if ended, _ := h.NodeGone(ctx, path); ended {
					return
				}
				own = nil
				continue
			case errs.IsOver(err):
				return // the session's end ends the hold too
			case err != nil:
				// Without a watch the holder would never learn of a deletion.
				own.Stop()
				own = nil
				h.s.c.log.Warn("coord: cannot watch the node of a hold, retrying", "path", path, "error", err)
				if pause.Wait(done, h.s.b.Done()) {
					continue
				}
				return
			}
			pause.Reset()
			h.readRequest(data)
		}
		h.watchedBy(own)
		select {
		case <-own.Fired():
			if own.Kind() == backend.Deleted {
				if ended, _ := h.NodeGone(ctx, path); ended {
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

// Revocation is coord.Revocation.
type Revocation struct {
	By     string    // the requester, in its own words
	Reason string    // the reason
	At     time.Time // the time of the request, by the requester's clock
	Force  bool      // the node will be deleted if the holder does not release
}

// Revoked returns a channel that is closed when a client requests the holder to give
// the hold up. The holder consents by calling Release. Without consent nothing happens,
// unless the request sets ForceAfter. The client reads a request some time after it was
// made, and at the earliest some 20 ms after an uncontended grant.
func (h *Hold) Revoked() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.revoked == nil {
		h.revoked = make(chan struct{})
		if h.request != nil {
			close(h.revoked)
		}
	}
	return h.revoked
}

// Revocation returns the latest request to give the hold up, if there is one. A request
// in the format of the recipe guide or of Curator has neither requester nor reason.
func (h *Hold) Revocation() (Revocation, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.request == nil {
		return Revocation{}, false
	}
	return *h.request, true
}

// readRequest records a request in the data of the hold's node.
func (h *Hold) readRequest(data []byte) {
	if r, _ := layout.OpenEnvelope(data); r != nil {
		h.setRequest((*Revocation)(r))
	}
}

// Ask asks the holder to give the hold up. With force the hold ends, by Revoke, if it does not.
func (h *Hold) Ask(by, reason string, force bool) {
	h.setRequest(&Revocation{By: by, Reason: reason, At: time.Now(), Force: force})
}

// Revoke ends the hold by force, for the request to give it up.
func (h *Hold) Revoke() {
	r, _ := h.Revocation()
	h.Lose(&revoked{r})
}

// setRequest records a request to give the hold up.
func (h *Hold) setRequest(r *Revocation) {
	h.mu.Lock()
	first := h.request == nil
	if !first && h.request.Force {
		r.Force = true // another request does not take back the force of an earlier one
	}
	h.request = r
	if first && h.revoked != nil {
		close(h.revoked)
	}
	path := h.path
	h.mu.Unlock()
	if first && h.span != nil {
		h.span.Emit(context.Background(), trace.RevocationRead{Subject: h.span.At(path), By: r.By, Reason: r.Reason, Force: r.Force})
	}
}
