package barrier

import (
	"context"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/cell"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// Remove removes the barrier, if it is set.
func (b *Barrier) Remove(ctx context.Context) error {
	if err := b.check(ctx, "remove"); err != nil {
		return err
	}
	_, err := core.OnSessionOnce(ctx, b.c, func(s *core.Session) (struct{}, error) {
		return struct{}{}, b.remove(ctx, s)
	})
	if err == nil {
		core.Emit(ctx, b.c, trace.BarrierRemoved{Subject: b.subject("remove")})
	}
	return errs.Op("remove", b.path.Full(), err)
}

// remove deletes the node in session s, if it is a barrier.
func (b *Barrier) remove(ctx context.Context, s *core.Session) error {
	for synced := false; ; synced = true {
		at, err := b.look(ctx, s, nil, 0)
		switch {
		case err != nil && !errs.IsNotFound(err):
			return err
		case err == nil && at.set:
			err := cell.Unset(ctx, s, b.path.Full(), at.stat.Version, layout.NoPin, layout.KindDirectory)
			if errs.IsNotFound(err) {
				return nil
			}
			if !errs.Answers(err, backend.ErrBadVersion) {
				return err
			}
		case synced:
			return nil
		}
		// This server may not know yet of a barrier that was set, or removed.
		if err := s.Backend().Sync(ctx, b.path.Full()); err != nil {
			return err
		}
	}
}
