package coord

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/go-coord/coord/internal/cell"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/tracing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// BarrierOptions may be nil.
type BarrierOptions struct {
	// Ephemeral ties the barrier to the session of the client that sets it: the
	// service removes the barrier when that session ends. Without Ephemeral the
	// barrier stays set until a client removes it, even if the setter's session has ended.
	Ephemeral bool
}

// A Barrier blocks every waiter for as long as it is set (the barrier of the
// ZooKeeper recipe guide). Any client can set it, and any client can remove it. Its
// removal wakes all waiters.
//
// A call of Wait that begins after Set has returned does not pass before the barrier
// is removed. A call that begins earlier may find no barrier yet. A waiter that wakes
// reads the barrier again, and passes only if it is not set. So a slow waiter that
// finds the barrier set again continues to wait.
//
// Other recipes can be used below the path of a barrier, in any order. A directory that
// the library has made above them is not a set barrier. An ephemeral node cannot have
// children. So Set of an Ephemeral barrier returns ErrKind while there are nodes below its
// path, and while the barrier is set, an error of recipes below it matches
// ErrKind and ErrNoChildren.
//
// Clients of Curator and kazoo can share a barrier whose path is not used as a directory.
// They take each node for a barrier, and cannot remove a node that has nodes below it.
// layout.md describes the nodes.
//
// A Barrier is safe for concurrent use and holds no resources; there is nothing to
// close.
type Barrier struct {
	c         *core.Client
	path      nodepath.Path
	ephemeral bool
	setIn     sync.Map // of int64: with Ephemeral, the sessions in which this client has, or may have, set the barrier
}

// NewBarrier returns the barrier at path. It does no I/O; a bad path is reported
// by the first call.
func NewBarrier(c *Client, path string, o *BarrierOptions) *Barrier {
	b := &Barrier{c: c.core(), path: c.core().Path(path)}
	if o != nil {
		b.ephemeral = o.Ephemeral
	}
	return b
}

// Set sets the barrier. It returns nil if the barrier is set already as this call
// would have set it: without Ephemeral by a persistent node, whichever client created
// it; with Ephemeral by a node of this client's current session. If the existing node
// has the other lifetime, or belongs to another client's session, the error matches
// ErrExists: the barrier is set, but not for the requested lifetime.
//
// With Ephemeral, a node that an earlier session of this client created with this
// Barrier does not count for the current session: Set waits until the service has
// removed it. If the session is lost later, the barrier goes with it;
// Client.WatchState reports the loss.
//
// If the outcome is unknown when ctx or the session ends, the error matches
// ErrUncertain. The barrier is not set a second time, because that could undo a
// Remove. With Ephemeral, Set continues with the next session, where the node of the
// lost session does not count. So it can undo a Remove between the two sessions.
func (b *Barrier) Set(ctx context.Context) error {
	if err := b.check(ctx, "set"); err != nil {
		return err
	}
	doubt := false // a lost session may have set it
	_, err := core.OnSessionOnce(ctx, b.c, func(s *core.Session) (struct{}, error) {
		err := b.set(ctx, s)
		if b.ephemeral && backend.IsUncertain(err) && errs.IsOver(err) {
			// If that session set the barrier, the barrier goes with it. The next
			// session can set it anew.
			doubt, err = true, s.Backend().Err()
		}
		return struct{}{}, err
	})
	if doubt && err != nil && !errs.Answers(err, backend.ErrExists) {
		err = backend.Uncertain(err)
	}
	if err == nil {
		core.Emit(ctx, b.c, trace.BarrierSet{Subject: trace.Subject{Recipe: "barrier", Path: b.path.Full(), Op: "set", Node: b.path.Full()}})
	}
	return errs.Op("set", b.path.Full(), err)
}

// Remove removes the barrier, so that all waiters pass. It returns nil if the barrier
// is not set. If the outcome is unknown when ctx or the session ends, the error
// matches ErrUncertain. The barrier is not removed a second time, because another
// client may have set it anew. Nodes below the barrier stay.
func (b *Barrier) Remove(ctx context.Context) error {
	if err := b.check(ctx, "remove"); err != nil {
		return err
	}
	_, err := core.OnSessionOnce(ctx, b.c, func(s *core.Session) (struct{}, error) {
		return struct{}{}, b.remove(ctx, s)
	})
	if err == nil {
		core.Emit(ctx, b.c, trace.BarrierRemoved{Subject: trace.Subject{Recipe: "barrier", Path: b.path.Full(), Op: "remove", Node: b.path.Full()}})
	}
	return errs.Op("remove", b.path.Full(), err)
}

// Wait returns nil if the barrier is not set. Otherwise it waits until the barrier is
// removed or ctx ends. A lost session does not end the wait. Wait costs two requests,
// and one more for each change of the barrier's node. If the node has children, and its
// data does not name the recipe, Wait costs another request.
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

func (b *Barrier) check(ctx context.Context, op string) error {
	if err := b.path.Check(op); err != nil {
		return err
	}
	return errs.Op(op, b.path.Full(), backend.ContextError(ctx))
}

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
			i := strings.LastIndexByte(path, '/')
			if i <= 0 {
				return err
			}
			if err := s.Ensure(ctx, path[:i]); err != nil {
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
			s.Client().ForgetState(path)
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
func (b *Barrier) fill(ctx context.Context, s *core.Session, at barrierAt, create backend.Op) error {
	path := b.path.Full()
	switch {
	case !b.ephemeral:
		f := at.footing
		ops := append([]backend.Op{backend.SetData(path, layout.KindBarrier.Mark(), at.stat.Version)}, f.Pin.Ops(path)...)
		err := b.commit(ctx, s, ops...)
		if layout.AtPin(err, path) && errs.Answers(err, backend.ErrExists) {
			err = b.commit(ctx, s, ops[0], backend.Check(path+"/"+layout.Pin, backend.AnyVersion))
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
func (b *Barrier) ensurePin(ctx context.Context, s *core.Session, at barrierAt) error {
	used := at.stat.NumChildren > 0 || at.stat.Cversion > 0 || at.stat.Container
	if at.footing.Mark == nil || !used || !s.Backend().Features().Has(backend.Containers) {
		return nil // created as a barrier, here or by another library
	}
	ops := append([]backend.Op{backend.Check(b.path.Full(), at.stat.Version)}, layout.PinNeeded.Ops(b.path.Full())...)
	err := s.CommitAgain(ctx, ops...)
	if layout.AtPin(err, b.path.Full()) && (errs.Answers(err, backend.ErrExists) || errs.Answers(err, backend.ErrDenied)) {
		return nil // denied: this client may set a barrier here, and nothing below it
	}
	return err
}

// barrierAt is what was read at the path of a barrier.
type barrierAt struct {
	stat    backend.Stat
	set     bool // false: the node is a directory, in which no barrier is set
	footing core.DirState
}

// look reads the node of the barrier. It returns an error if the node belongs to
// another recipe. seen is the czxid of a node that an earlier call has found to be a
// barrier: that node is not examined again, whatever data was written to it since, unless
// the barrier was removed from it.
func (b *Barrier) look(ctx context.Context, s *core.Session, w *backend.Watch, seen int64) (barrierAt, error) {
	data, stat, err := s.Backend().Get(ctx, b.path.Full(), w)
	at := barrierAt{stat: stat, set: !layout.IsDirectory(data, stat) || layout.IsBareBarrier(data, stat)}
	if err != nil || stat.Czxid == seen && at.set {
		return at, err
	}
	at.footing, err = s.Examine(ctx, core.NewRecipeDir(b.path.Full(), layout.KindBarrier), data, stat)
	return at, err
}

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
