package coord

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// leading is the recipe of a term.
type leading struct {
	l         *line
	announced atomic.Bool // a node of an announcement may stand
}

// readyKind is in the name of an announcement's node what latchKind is in that of
// its leader. The GUID and the number are the leader's, so it is found by his name,
// and never taken for a successor's.
//
// It is a node of its own, as the recipe guide has it. To write into the leader's
// would be cheaper, but candidates of Curator's watch the data of the node before
// theirs, and that one watch would be used up: they would not see the leader go.
const readyKind = "ready-"

// readyPath is where the announcement of the leader at path stands, or "" if he is
// of a make that has none.
func readyPath(path string) string {
	i := strings.LastIndex(path, latchKind)
	if i < 0 {
		return ""
	}
	return path[:i] + readyKind + path[i+len(latchKind):]
}

// Announce publishes that the leader has taken over and is ready, with data for
// those who follow Leader or WatchLeader: the acknowledgement of the recipe guide.
// Being first in line makes a leader, which may have much to do before it can
// serve. A later call replaces the data. It goes with the term, in the same
// moment, and costs two requests. If the term has ended the error is that of Err.
func (t *Term) Announce(ctx context.Context, data []byte) error {
	const op = "announce"
	path := t.Path()
	if err := t.Err(); err != nil {
		return opError(op, path, err)
	}
	ready := readyPath(path)
	t.led.announced.Store(true) // before it can be: Release looks
	pause := pauses{c: t.s.c}
	for {
		if err := t.Err(); err != nil {
			return opError(op, path, err)
		}
		// Under the version that was read: an attempt of an earlier call that was
		// given up cannot come after this one.
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
			// Somebody was in between, or what was read is behind.
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

// release resigns. What was announced goes in the same commit.
func (x *leading) release(h *Hold) error {
	if !x.announced.Load() {
		return x.l.release(h)
	}
	ready := readyPath(h.Path())
	both, err := h.removeWith(ready)
	if !both {
		// Once the leader's node is gone no attempt to announce can succeed any
		// more, so what stands now is the last of it.
		h.s.removeLater(ready)
	}
	return err
}

// lost takes away what stands, should the session live on: what was announced, and
// before it the node of a leader who has stepped down. An announcement can be under
// way, and would come after all.
func (x *leading) lost(h *Hold) {
	var paths []string
	path := h.Path()
	if errors.Is(h.Err(), ErrSuspended) {
		paths = append(paths, path)
	}
	if x.announced.Load() {
		paths = append(paths, readyPath(path))
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
