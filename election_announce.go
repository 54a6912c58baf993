package coord

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// leading is the recipe of a term.
type leading struct {
	l         *line
	announced atomic.Bool // a node of an announcement may exist
}

// Announce publishes, with data, that the leader has taken over and is ready: the
// acknowledgement of the recipe guide. Callers of Leader and WatchLeader see it. A
// candidate leads as soon as it is the head of the queue, and may have much to do
// before it can serve. A later call replaces the data. The announcement goes with the
// term, at the same moment. Announce costs two requests. If the term has ended, the
// error is that of Err.
func (t *Term) Announce(ctx context.Context, data []byte) error {
	const op = "announce"
	path := t.Path()
	if err := t.Err(); err != nil {
		return opError(op, path, err)
	}
	ready := layout.ReadyPath(path)
	t.led.announced.Store(true) // before the node can exist, because Release reads it
	pause := pauses{c: t.s.c}
	for {
		if err := t.Err(); err != nil {
			return opError(op, path, err)
		}
		// The write is conditional on the version that was read, so an attempt of an
		// earlier call that gave up cannot take effect after this one.
		_, stat, err := t.s.b.Get(ctx, ready, nil)
		write := backend.SetData(ready, data, stat.Version)
		if isNotFound(err) {
			err = nil
			write = backend.Create(ready, data, backend.Ephemeral)
		}
		if err == nil {
			_, err = t.s.b.Commit(ctx, backend.Check(path, backend.AnyVersion), write)
		}
		var e *backend.Error
		switch {
		case err == nil:
			if t.trail != nil {
				t.trail.tell(ctx, trace.LeaderAnnounced{Subject: t.trail.at(path), Token: t.token, After: t.trail.held()})
			}
			return nil
		case isNotFound(err) && errors.As(err, &e) && e.Index == 0:
			t.gone(ctx, path)
		case isOver(err):
			t.lose(err)
		case isNotFound(err), answers(err, backend.ErrBadVersion), answers(err, backend.ErrExists):
			// Another call wrote in between, or the read was stale.
			if err := t.s.b.Sync(ctx, ready); err != nil && !isOver(err) {
				return opError(op, path, err)
			}
		case !isUncertain(err) || ctx.Err() != nil:
			return opError(op, path, err)
		default:
			pause.wait(ctx.Done(), t.Done())
		}
	}
}

// release resigns. The same commit removes the announcement.
func (x *leading) release(h *Hold) error {
	if !x.announced.Load() {
		return x.l.release(h)
	}
	ready := layout.ReadyPath(h.Path())
	both, err := h.removeWith(ready)
	if !both {
		// Once the leader's node is gone, no attempt to announce can succeed any
		// more, so a ready node that exists now is the last one.
		h.s.removeLater(ready)
	}
	return err
}

// lost removes what the term leaves behind if the session lives on: first the node of
// a leader that has stepped down, then the announcement. In the other order, an
// Announce under way could create the announcement anew.
func (x *leading) lost(h *Hold) {
	var paths []string
	path := h.Path()
	if errors.Is(h.Err(), ErrSuspended) {
		paths = append(paths, path)
	}
	if x.announced.Load() {
		paths = append(paths, layout.ReadyPath(path))
	}
	if len(paths) == 0 {
		return
	}
	h.s.c.goCleanUp(func(ctx context.Context, u *cleanUp) {
		for _, path := range paths {
			h.s.retry(ctx, u, "remove", path, func(ctx context.Context) error { return h.s.remove(ctx, path) })
		}
	}).note(x.l.dir)
}
