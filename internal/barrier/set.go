package barrier

import (
	"context"
	"fmt"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/cell"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// Set sets the barrier. It returns nil if the barrier is set already as this call would set it, and
// ErrExists if it is set with the other lifetime, or by another client's session.
func (b *Barrier) Set(ctx context.Context) error {
	if err := b.check(ctx, "set"); err != nil {
		return err
	}
	doubt := false // a lost session may have set it
	_, err := core.OnSessionOnce(ctx, b.c, func(s *core.Session) (struct{}, error) {
		err := b.set(ctx, s)
		if b.ephemeral && backend.IsUncertain(err) && errs.IsOver(err) {
			// If that session set the barrier, the barrier goes with it. The next
			// session can set the barrier again.
			doubt, err = true, s.Backend().Err()
		}
		return struct{}{}, err
	})
	if doubt && err != nil && !errs.Answers(err, backend.ErrExists) {
		err = backend.Uncertain(err)
	}
	if err == nil {
		core.Emit(ctx, b.c, trace.BarrierSet{Subject: b.subject("set")})
	}
	return errs.Op("set", b.path.Full(), err)
}

// set sets the barrier in session s. An ephemeral barrier of an earlier session of this client does not
// count: set waits until the service has removed it.
func (b *Barrier) set(ctx context.Context, s *core.Session) error {
	path, mode := b.path.Full(), backend.Persistent
	if b.ephemeral {
		mode = backend.Ephemeral
	}
	create := backend.Create(path, layout.KindBarrier.Mark(), mode)
	for {
		err := b.commit(ctx, s, create)
		switch {
		case errs.IsNotFound(err):
			dir := nodepath.Parent(path)
			if dir == "" {
				return err // the root always exists
			}
			if err := s.Ensure(ctx, dir); err != nil {
				return err
			}
			continue
		case !errs.Answers(err, backend.ErrExists):
			return s.BelowEphemeral(err, path)
		}
		w := backend.NewWatch()
		at, err := b.look(ctx, s, w, 0)
		if err != nil || !at.set || !b.ephemeral || at.stat.EphemeralOwner == s.Backend().ID() {
			w.Stop()
		}
		switch {
		case errs.IsNotFound(err):
			continue // removed since
		case err != nil:
			return err
		case !at.set:
			err := b.fill(ctx, s, at, create)
			if !errs.Raced(err) {
				return err
			}
			// Another client has used the directory since, or it is gone.
			s.Client().Kinds().Forget(path)
			if err := s.Backend().Sync(ctx, path); err != nil {
				return err
			}
			continue
		case !b.ephemeral && at.stat.EphemeralOwner == 0:
			if err := b.ensurePin(ctx, s, at); !errs.Raced(err) {
				return err
			}
			if err := s.Backend().Sync(ctx, path); err != nil {
				return err
			}
			continue
		case b.ephemeral && at.stat.EphemeralOwner == s.Backend().ID():
			return nil
		}
		if _, own := b.setIn.Load(at.stat.EphemeralOwner); at.stat.EphemeralOwner == 0 || !own {
			w.Stop()
			return backend.ErrExists
		}
		if err := awaitFired(ctx, s, w); err != nil {
			return err
		}
	}
}

// commit applies operations that set the barrier.
func (b *Barrier) commit(ctx context.Context, s *core.Session, ops ...backend.Op) error {
	_, _, err := s.CommitOnce(ctx, ops...)
	if b.ephemeral && (err == nil || backend.IsUncertain(err)) {
		if err == nil {
			b.setIn.Clear() // no earlier node exists
		}
		b.setIn.Store(s.Backend().ID(), true)
	}
	return err
}

// fill sets the barrier in a directory, if that is still as it was read. A persistent barrier gets a
// pin. An ephemeral one takes the place of a directory without nodes, and is refused elsewhere.
func (b *Barrier) fill(ctx context.Context, s *core.Session, at found, create backend.Op) error {
	path := b.path.Full()
	switch {
	case !b.ephemeral:
		mark := layout.KindBarrier.Mark()
		err := b.commit(ctx, s, cell.WriteOps(path, mark, at.stat.Version, at.state.Pin)...)
		if layout.AtPin(err, path) && errs.Answers(err, backend.ErrExists) {
			err = b.commit(ctx, s, cell.WriteOps(path, mark, at.stat.Version, layout.Pinned)...)
		}
		return err
	case at.stat.NumChildren > 0:
		return fmt.Errorf("%w: an ephemeral barrier needs a path without nodes below it",
			s.Client().KindError(path, layout.KindBarrier, string(layout.KindDirectory)))
	}
	return b.commit(ctx, s, backend.Delete(path, at.stat.Version), create)
}

// ensurePin creates the pin of a barrier that is set and can lack one: an outsider may have deleted
// it, and an earlier version of this library created none.
func (b *Barrier) ensurePin(ctx context.Context, s *core.Session, at found) error {
	path := b.path.Full()
	if at.state.Mark == nil || !layout.UsedAsDir(at.stat) || !s.Backend().Features().Has(backend.Containers) {
		return nil // created as a barrier, here or by another library
	}
	err := cell.CreatePin(ctx, s, path, at.stat.Version)
	if layout.AtPin(err, path) && (errs.Answers(err, backend.ErrExists) || errs.Answers(err, backend.ErrDenied)) {
		return nil // denied: this client may set a barrier here, and nothing below it
	}
	return err
}
