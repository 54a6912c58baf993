package barrier

import (
	"context"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/tracing"
)

// Wait waits until the barrier is not set.
func (b *Barrier) Wait(ctx context.Context) error {
	const op = "wait"
	if err := b.check(ctx, op); err != nil {
		return err
	}
	span := b.c.NewSpan("barrier", b.path.Full(), op)
	seen := int64(0) // the czxid of the barrier's node that the call waits for
	_, err := core.OnSession(ctx, b.c, func(s *core.Session) (struct{}, error) { return struct{}{}, b.await(ctx, s, span, &seen) })
	err = errs.Op(op, b.path.Full(), err)
	span.Over(ctx, err)
	return err
}

// await waits in session s until the node is no barrier. seen is the czxid of the barrier that an earlier
// session has found, and gets that of the latest barrier.
func (b *Barrier) await(ctx context.Context, s *core.Session, span *tracing.Span, seen *int64) error {
	// The server of this session may not know yet of a barrier that was set before
	// Wait was called. It does after a Sync.
	if err := s.Backend().Sync(ctx, b.path.Full()); err != nil {
		return err
	}
	for {
		w := backend.NewWatch()
		at, err := b.look(ctx, s, w, *seen)
		if err != nil || !at.set {
			w.Stop()
			if errs.IsNotFound(err) {
				return nil
			}
			return err
		}
		*seen = at.stat.Czxid
		span.Waiting(ctx, b.path.Full(), -1)
		if err := awaitFired(ctx, s, w); err != nil {
			return err
		}
	}
}

// awaitFired waits until an armed watch fires. It returns an error if the session or
// ctx ends first.
func awaitFired(ctx context.Context, s *core.Session, w *backend.Watch) error {
	select {
	case <-w.Fired():
		return s.Backend().Err()
	case <-s.Backend().Done():
		w.Stop()
		return s.Backend().Err()
	case <-ctx.Done():
		w.Stop()
		return s.ContextError(ctx)
	}
}
