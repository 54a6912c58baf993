package line

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// RevokeOptions is coord.RevokeOptions.
type RevokeOptions struct {
	By, Reason string
	ForceAfter time.Duration
}

// Revoke writes a request into the nodes of the present holders of the lock at path, and waits until these
// nodes are deleted. With ForceAfter it deletes them itself when that time has passed.
func (l *Line) Revoke(ctx context.Context, path *nodepath.Path, o *RevokeOptions) error {
	if err := path.Check("revoke"); err != nil {
		return err
	}
	var opts RevokeOptions
	if o != nil {
		opts = *o
	}
	if opts.ForceAfter < 0 {
		return errs.Op("revoke", path.Full(), fmt.Errorf("%w: negative ForceAfter", backend.ErrInvalid))
	}
	if !utf8.ValidString(opts.By) || !utf8.ValidString(opts.Reason) {
		return errs.Op("revoke", path.Full(), fmt.Errorf("%w: By and Reason must be valid UTF-8", backend.ErrInvalid))
	}
	holders, err := l.holders(ctx)
	if err != nil {
		return errs.Op("revoke", path.Full(), err)
	}
	q := layout.Revocation{By: opts.By, Reason: opts.Reason, At: time.Now(), Force: opts.ForceAfter > 0}
	for _, h := range holders {
		if err := l.request(ctx, h, &q, false); err != nil {
			return errs.Op("revoke", h, err)
		}
	}
	// The time to consent begins when all holders have been asked.
	var deadline <-chan time.Time
	if opts.ForceAfter > 0 {
		t := time.NewTimer(opts.ForceAfter)
		defer t.Stop()
		deadline = t.C
	}
	forced := false
	for i := 0; i < len(holders); i++ {
		h := holders[i]
		for !forced {
			gone, err := l.awaitGone(ctx, h, deadline)
			if err != nil {
				return errs.Op("revoke", h, err)
			}
			if gone {
				break
			}
			forced = true
		}
		if forced {
			if err := l.request(ctx, h, &q, true); err != nil {
				return errs.Op("revoke", h, err)
			}
		}
		// A writer that has downgraded still holds the lock, on a reader's node without
		// the request.
		if at := strings.LastIndex(h, layout.WriteInfix); l.kinds == layout.SharedLine && at >= 0 {
			twin := h[:at] + layout.ReadInfix + h[at+len(layout.WriteInfix):]
			if err := l.request(ctx, twin, &q, false); err != nil {
				return errs.Op("revoke", twin, err)
			}
			holders = append(holders, twin)
		}
	}
	return nil
}

// holders returns the paths of the nodes that hold the lock.
func (l *Line) holders(ctx context.Context) ([]string, error) {
	return core.OnSession(ctx, l.c, func(s *core.Session) ([]string, error) {
		names, err := s.List(ctx, l.dir)
		if err != nil {
			return nil, err
		}
		var paths []string
		queue := l.kinds.Order(names)
		for i, q := range queue {
			if layout.Blocker(queue, i) >= 0 {
				break
			}
			paths = append(paths, l.dir+"/"+q.Name)
		}
		if paths == nil {
			return nil, s.CheckKind(ctx, l.recipeDir()) // another kind of recipe may have the path
		}
		return paths, nil
	})
}

// request writes the request into the node at path, or deletes the node if force is set. The commit
// requires the version that request has read; if the data has changed meanwhile, request reads
// again. If the node is gone, the request is fulfilled. (A name is never used again, so
// the request cannot reach a successor.)
func (l *Line) request(ctx context.Context, path string, q *layout.Revocation, force bool) error {
	pause := core.NewPauses(l.c)
	_, err := core.OnSession(ctx, l.c, func(s *core.Session) (struct{}, error) {
		for {
			data, stat, err := s.Backend().Get(ctx, path, nil)
			if errs.IsNotFound(err) {
				return struct{}{}, nil
			}
			if err != nil {
				return struct{}{}, err
			}
			old, own := layout.OpenEnvelope(data)
			mine := *q
			mine.Force = q.Force || old != nil && old.Force
			text, err := mine.Encode(own)
			if err != nil {
				return struct{}{}, err
			}
			if len(text) > s.Backend().Limits().Bytes/2 {
				// The request has precedence over the contender's own data.
				if text, err = mine.Encode(nil); err != nil {
					return struct{}{}, err
				}
			}
			if !layout.IsOurs(nodepath.Base(path)) {
				text = []byte(layout.CuratorRequest) // the only request that Curator understands
			}
			op := backend.SetData(path, text, stat.Version)
			if force {
				op = backend.Delete(path, stat.Version)
			}
			_, err = s.Backend().Commit(ctx, op)
			switch {
			case err == nil:
				core.Emit(ctx, l.c, trace.RevocationSent{Subject: l.subject("revoke", path), By: mine.By, Reason: mine.Reason, Forced: force})
				return struct{}{}, nil
			case errs.IsNotFound(err):
				return struct{}{}, nil
			case errors.Is(err, backend.ErrBadVersion):
			case !errs.MayRepeat(ctx, err):
				return struct{}{}, err
			default:
				pause.Wait(ctx.Done(), s.Backend().Done())
			}
		}
	})
	return err
}

// awaitGone waits until the node at path is deleted. It reports false if the deadline
// comes first.
func (l *Line) awaitGone(ctx context.Context, path string, deadline <-chan time.Time) (bool, error) {
	return core.OnSession(ctx, l.c, func(s *core.Session) (bool, error) { return s.AwaitDeletion(ctx, path, deadline) })
}
