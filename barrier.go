package coord

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// BarrierOptions may be nil.
type BarrierOptions struct {
	// Ephemeral makes a barrier that goes with the session of whoever has set it.
	// Without it a barrier stands until it is removed, whatever becomes of the
	// one who has set it.
	Ephemeral bool
}

// A Barrier holds up everybody who waits at it for as long as it is set (the
// barrier of the ZooKeeper recipe guide). Anybody can set it and anybody can
// remove it. When it is removed all who wait go on, so all of them are woken.
//
// A call of Wait that began after Set had returned does not pass before the barrier
// is removed. One that began earlier may find no barrier yet. Each
// wake-up is a reason to look and never a reason to pass. So who is slow to look
// and finds that the barrier has been set again goes on waiting.
//
// Layout: path is the node of the barrier: the barrier is set while the node
// exists. Its data names the recipe. What is missing above it is made as containers. It is Curator's and
// kazoo's layout too; clients of all three can use one barrier.
//
// A Barrier is safe for concurrent use and holds no resources; there is nothing
// to close.
type Barrier struct {
	c         *Client
	path      recipePath
	ephemeral bool
	setIn     sync.Map // of int64, the session in which this client has, or may have, set it: with Ephemeral
}

// NewBarrier returns the barrier at path. It does no I/O; a bad path is reported
// by the first call.
func NewBarrier(c *Client, path string, o *BarrierOptions) *Barrier {
	b := &Barrier{c: c, path: c.recipePath(path)}
	if o != nil {
		b.ephemeral = o.Ephemeral
	}
	return b
}

// Set sets the barrier. It returns nil if the barrier stands already as this call
// would have set it: a persistent one, whoever has made it, or with Ephemeral one
// of this client's present session. If what stands there is of the other kind, or
// goes with another client's session, the error matches ErrExists: the barrier is
// set, but not for as long as was asked for.
//
// With Ephemeral, what an earlier session of this client has set with this Barrier
// is not taken for the new one's: Set waits until the service has removed it. A
// session that is lost later takes the barrier along; Client.WatchState tells.
//
// If its outcome is unknown when ctx or the session ends, the error matches
// ErrUncertain; it is not set a second time, which could undo a Remove.
func (b *Barrier) Set(ctx context.Context) error {
	doubt := false // a session that was lost may have set it
	err := b.write(ctx, "set", func(ctx context.Context, s *session) error {
		err := b.set(ctx, s)
		if b.ephemeral && isUncertain(err) && isOver(err) {
			// If it was set, it goes with its session, and the next one can set it anew.
			doubt, err = true, s.b.Err()
		}
		return err
	})
	if doubt && err != nil && !answers(err, backend.ErrExists) {
		err = opError("set", b.path.full, backend.Uncertain(errors.Unwrap(err)))
	}
	if err == nil {
		tell(ctx, b.c, trace.BarrierSet{Subject: trace.Subject{Recipe: "barrier", Path: b.path.full, Op: "set", Node: b.path.full}})
	}
	return err
}

// Remove removes the barrier, and everybody who waits at it goes on. That it is
// not set is no error. If its outcome is unknown when ctx or the session ends,
// the error matches ErrUncertain; it is not removed a second time, since somebody
// may have set it anew. Children that others have put under the barrier make it
// fail with ErrNotEmpty.
func (b *Barrier) Remove(ctx context.Context) error {
	err := b.write(ctx, "remove", func(ctx context.Context, s *session) error {
		if _, err := b.look(ctx, s, nil, 0); err != nil && !isNotFound(err) {
			return err
		}
		_, _, err := s.commitOnce(ctx, backend.Delete(b.path.full, backend.AnyVersion))
		if isNotFound(err) {
			return nil
		}
		return err
	})
	if err == nil {
		tell(ctx, b.c, trace.BarrierRemoved{Subject: trace.Subject{Recipe: "barrier", Path: b.path.full, Op: "remove", Node: b.path.full}})
	}
	return err
}

// Wait returns nil when the barrier is not set, and otherwise waits until it is
// removed or ctx ends. A lost session does not end the wait. It costs two
// requests, and one more for each change of the barrier's node.
func (b *Barrier) Wait(ctx context.Context) error {
	const op = "wait"
	if err := b.check(ctx, op); err != nil {
		return err
	}
	trail := b.c.trail("barrier", b.path.full, op)
	seen := int64(0) // the czxid of the barrier that it waits for
	_, err := onSession(ctx, b.c, func(s *session) (struct{}, error) { return struct{}{}, b.await(ctx, s, trail, &seen) })
	err = opError(op, b.path.full, err)
	trail.over(ctx, err)
	return err
}

func (b *Barrier) check(ctx context.Context, op string) error {
	if err := b.path.check(op); err != nil {
		return err
	}
	return opError(op, b.path.full, backend.ContextError(ctx))
}

// write runs f, which writes once.
func (b *Barrier) write(ctx context.Context, op string, f func(context.Context, *session) error) error {
	if err := b.check(ctx, op); err != nil {
		return err
	}
	_, err := onSessionOnce(ctx, b.c, func(s *session) (struct{}, error) { return struct{}{}, f(ctx, s) })
	return opError(op, b.path.full, err)
}

func (b *Barrier) set(ctx context.Context, s *session) error {
	path, mode := b.path.full, backend.Persistent
	if b.ephemeral {
		mode = backend.Ephemeral
	}
	for {
		_, _, err := s.commitOnce(ctx, backend.Create(path, kindBarrier.mark(), mode))
		if b.ephemeral && (err == nil || isUncertain(err)) {
			if err == nil {
				b.setIn.Clear() // there was none
			}
			b.setIn.Store(s.b.ID(), true)
		}
		switch {
		case isNotFound(err):
			i := strings.LastIndexByte(path, '/')
			if i <= 0 {
				return err
			}
			if err := s.ensure(ctx, path[:i]); err != nil {
				return err
			}
			continue
		case !answers(err, backend.ErrExists):
			return err
		}
		w := backend.NewWatch()
		stat, err := b.look(ctx, s, w, 0)
		switch {
		case isNotFound(err):
			w.Stop()
			continue // removed since
		case err != nil:
			w.Stop()
			return err
		case !b.ephemeral && stat.EphemeralOwner == 0, b.ephemeral && stat.EphemeralOwner == s.b.ID():
			w.Stop()
			return nil
		}
		if _, own := b.setIn.Load(stat.EphemeralOwner); stat.EphemeralOwner == 0 || !own {
			w.Stop()
			return backend.ErrExists
		}
		if err := s.awaitFired(ctx, w); err != nil {
			return err
		}
	}
}

// look reads the node of the barrier, and refuses if it is another recipe's. seen is
// the czxid of a node that was found to be a barrier, whatever is written to it since.
func (b *Barrier) look(ctx context.Context, s *session, w *backend.Watch, seen int64) (backend.Stat, error) {
	data, stat, err := s.b.Get(ctx, b.path.full, w)
	if err != nil || stat.Czxid == seen {
		return stat, err
	}
	_, err = s.examine(ctx, ground{dir: b.path.full, recipe: kindBarrier}, data, stat)
	return stat, err
}

func (b *Barrier) await(ctx context.Context, s *session, trail *trail, seen *int64) error {
	// The server that we read from may not know yet of a barrier that was set
	// before Wait was called. It knows after a Sync.
	if err := s.b.Sync(ctx, b.path.full); err != nil {
		return err
	}
	for {
		w := backend.NewWatch()
		stat, err := b.look(ctx, s, w, *seen)
		if err != nil {
			w.Stop()
			if isNotFound(err) {
				return nil
			}
			return err
		}
		*seen = stat.Czxid
		trail.waiting(ctx, b.path.full, -1)
		if err := s.awaitFired(ctx, w); err != nil {
			return err
		}
	}
}

// awaitFired waits until an armed watch has fired, in a session that lives.
func (s *session) awaitFired(ctx context.Context, w *backend.Watch) error {
	select {
	case <-w.Fired():
		return s.b.Err()
	case <-s.b.Done():
		w.Stop()
		return s.b.Err()
	case <-ctx.Done():
		w.Stop()
		return backend.ContextError(ctx)
	}
}
