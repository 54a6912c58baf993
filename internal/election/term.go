package election

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/line"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// A Term is the engine of coord.Term: the hold of a candidate that leads.
type Term struct {
	h   *core.Hold
	led *leading // nil if h was not gained by a campaign
}

// TermOf returns the term of a hold that was not gained by a campaign: the hold never stood, or the
// program has made the Term.
func TermOf(h *core.Hold) *Term { return &Term{h: h} }

// Hold returns the hold of the term.
func (t *Term) Hold() *core.Hold { return t.h }

// leading is the owner of the hold of a term.
type leading struct {
	l         *line.Line
	announced atomic.Bool // a node of an announcement may exist
}

// Announce creates the node of the announcement, or replaces its data.
func (t *Term) Announce(ctx context.Context, data []byte) error {
	const op = "announce"
	path := t.h.Path()
	if err := t.h.Err(); err != nil {
		return errs.Op(op, path, err)
	}
	ready := layout.ReadyPath(path)
	t.led.announced.Store(true) // before the node can exist, because RemoveNode reads it
	doubt := false              // an earlier attempt may have been applied
	fail := func(err error) error {
		if doubt {
			err = backend.Uncertain(err)
		}
		return errs.Op(op, path, err)
	}
	pause := core.NewPauses(t.h.On().Client())
	for {
		if err := t.h.Err(); err != nil {
			return errs.Op(op, path, err)
		}
		// The write is conditional on the version that was read, so an attempt of an
		// earlier call that gave up cannot take effect after this one.
		_, stat, err := t.h.On().Backend().Get(ctx, ready, nil)
		write := backend.SetData(ready, data, stat.Version)
		if errs.IsNotFound(err) {
			err = nil
			write = backend.Create(ready, data, backend.Ephemeral)
		}
		if err == nil {
			_, err = t.h.On().Backend().Commit(ctx, backend.Check(path, backend.AnyVersion), write)
		}
		var e *backend.Error
		switch {
		case err == nil:
			t.h.Emit(ctx, func(at trace.Subject, led time.Duration) trace.Event {
				return trace.LeaderAnnounced{Subject: at, Token: t.h.Token(), After: led}
			})
			return nil
		case errs.IsNotFound(err) && errors.As(err, &e) && e.Index == 0:
			t.h.NodeGone(ctx, path)
		case errs.IsOver(err):
			t.h.Lose(err)
		case errs.IsNotFound(err), errs.Answers(err, backend.ErrBadVersion), errs.Answers(err, backend.ErrExists):
			// Another call wrote in between, or the read was stale.
			if err := t.h.On().Backend().Sync(ctx, ready); err != nil && !errs.IsOver(err) {
				return fail(err)
			}
		case !backend.IsUncertain(err) || ctx.Err() != nil:
			return fail(err)
		default:
			doubt = true
			pause.Wait(ctx.Done(), t.h.Done())
		}
	}
}

// RemoveNode resigns. The same commit removes the announcement.
func (x *leading) RemoveNode(h *core.Hold) error {
	if !x.announced.Load() {
		return x.l.RemoveNode(h)
	}
	ready := layout.ReadyPath(h.Path())
	both, err := h.RemoveWith(ready)
	if !both {
		// Once the leader's node is gone, no attempt to announce can succeed any
		// more, so a ready node that exists now is the last one.
		h.On().RemoveLater(ready)
	}
	return err
}

// Leftovers returns the nodes to delete if the session lives on: first the node of a leader that has
// stepped down, then the announcement. In the other order, an Announce under way could create the
// announcement again.
func (x *leading) Leftovers(h *core.Hold, cause error) (dir string, paths []string, remove func(ctx context.Context, path string) error) {
	path := h.Path()
	if errors.Is(cause, errs.ErrSuspended) {
		paths = append(paths, path)
	}
	if x.announced.Load() {
		paths = append(paths, layout.ReadyPath(path))
	}
	return nodepath.Parent(path), paths, h.On().Remove
}

// Lost does nothing.
func (x *leading) Lost(*core.Hold) {}
