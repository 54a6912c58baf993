package zookeeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord/backend"
)

// newRead returns a call that reads a node and arms the watch, if there is one.
func (s *session) newRead(op int32, path string, w *backend.Watch) *call {
	c := s.newCall(op)
	c.frame = encodeRead(c.frame, op, path, w != nil)
	c.path, c.watch = path, w
	return c
}

// Get returns the data and the Stat of a node.
func (s *session) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	if err := checkRead("get", path); err != nil {
		return nil, backend.Stat{}, err
	}
	c := s.newRead(opGetData, path, w)
	defer s.release(c)
	if err := s.read(ctx, c, "get", path); err != nil {
		w.Stop()
		return nil, backend.Stat{}, err
	}
	return c.answer.data, c.answer.stat, nil
}

// Exists returns the Stat of a node.
func (s *session) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	if err := checkRead("exists", path); err != nil {
		return backend.Stat{}, err
	}
	c := s.newRead(opExists, path, w)
	defer s.release(c)
	if err := s.read(ctx, c, "exists", path); err != nil {
		// The watch for the creation of a missing node stays.
		if c.givenUp || c.answer.code != codeNoNode {
			w.Stop()
		}
		return backend.Stat{}, err
	}
	return c.answer.stat, nil
}

// Children returns the names of the children of a node, and its Stat.
func (s *session) Children(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
	if err := checkRead("children", path); err != nil {
		return nil, backend.Stat{}, err
	}
	c := s.newRead(opChildren, path, w)
	defer s.release(c)
	if err := s.read(ctx, c, "children", path); err != nil {
		w.Stop()
		return nil, backend.Stat{}, err
	}
	return c.answer.names, c.answer.stat, nil
}

// Arm arms several watches. It sends ZooKeeper's setWatches request, with which other clients
// re-arm their watches after a reconnect. If the service does not know setWatches, or does not read
// one of that length, Arm reads one node after the other.
func (s *session) Arm(ctx context.Context, since int64, targets ...backend.Target) error {
	err := backend.CheckTargets(targets)
	for i := 0; err == nil && i < len(targets); i++ {
		if rule := ownRule(targets[i].Path); rule != "" {
			err = &backend.Error{Op: "arm", Path: targets[i].Path, Err: badPath(rule)}
		}
	}
	if err == nil {
		c := s.newCall(opWatches)
		defer s.release(c)
		c.frame = encodeSetWatches(c.frame, since, targets)
		c.many = s.hub.newArmList(targets)
		err = s.read(ctx, c, "arm", targets[0].Path)
		if errors.Is(err, backend.ErrUnsupported) || errors.Is(err, backend.ErrTooLarge) {
			err = s.armEach(ctx, since, targets)
		}
	}
	if err != nil {
		for _, t := range targets {
			t.Watch.Stop() // the reply may have armed it just as the call was given up
		}
	}
	return err
}

// armEach arms the watches of Arm by reads, and so not at one moment. Each read compares the
// node with since, to find out whether it came too late. The caller's watch is armed only
// after that comparison, or a deletion could fire it before.
func (s *session) armEach(ctx context.Context, since int64, targets []backend.Target) error {
	for _, t := range targets {
		inner := backend.NewWatch()
		changed, err := s.lastChange(ctx, t, inner)
		switch {
		case errors.Is(err, backend.ErrNotFound), err == nil && changed > since:
			inner.Stop()
			s.hub.startle(t, err != nil)
			t.Watch.Fire(backend.LookAgain)
		case err != nil:
			inner.Stop()
			return err
		default:
			s.hub.hand(keyOf(t), inner, t.Watch)
		}
	}
	return nil
}

// lastChange returns the zxid of the latest change of what a target watches, and arms w.
func (s *session) lastChange(ctx context.Context, t backend.Target, w *backend.Watch) (int64, error) {
	op := int32(opExists)
	if t.Children {
		op = opChildren
	}
	c := s.newRead(op, t.Path, w)
	defer s.release(c)
	if err := s.read(ctx, c, "arm", t.Path); err != nil {
		return 0, err
	}
	if t.Children {
		return c.answer.stat.Pzxid, nil
	}
	return c.answer.stat.Mzxid, nil
}

// Sync brings the server up to date. Servers order it after everything that they received
// before on this connection, and the session sends everything in the order in which it was
// called. A commit in a server's buffers for an old connection cannot be applied once the
// session has moved to a new one: another server refuses it, and the same server has dropped
// it. Only a commit that was throttled is sent again behind a Sync, which is then repeated.
func (s *session) Sync(ctx context.Context, path string) error {
	if err := checkRead("sync", path); err != nil {
		return err
	}
	c := s.newCall(opSync)
	defer s.release(c)
	c.frame = encodeSync(c.frame, path)
	for {
		if err := s.read(ctx, c, "sync", path); err != nil {
			return err
		}
		over := s.throttledBefore(c)
		if over == nil {
			return nil
		}
		select {
		case <-over:
		case <-ctx.Done():
		case <-s.sealed:
		}
	}
}

// checkRead refuses a path locally. The longest valid path still fits into a request; servers
// drop the connection for a larger one.
func checkRead(op, path string) error {
	if err := checkPath(path); err != nil {
		return &backend.Error{Op: op, Path: path, Err: reason(err)}
	}
	if len(path) > backend.MaxRequest {
		return &backend.Error{Op: op, Path: path, Err: fmt.Errorf("%w: the path has %d bytes, limit %d", backend.ErrTooLarge, len(path), backend.MaxRequest)}
	}
	return nil
}

// read makes a call that changes nothing, and repeats it while contact breaks or servers are
// overloaded. The error is nil if the server granted it.
func (s *session) read(ctx context.Context, c *call, op, path string) error {
	fail := func(err error) error { return &backend.Error{Op: op, Path: path, Err: err} }
	defer s.endTurn(c) // the caller can continue with another call, or wait for one
	for throttles := 0; ; {
		if err := s.checkFrame(c.frame); err != nil {
			return fail(err)
		}
		if c.many != nil {
			s.hub.announce(c.many)
		}
		_, err := s.do(ctx, c)
		if err == nil && c.answer.code == codeOK {
			if c.answer.skipped && c.op != opMultiRead {
				return fail(errTooLong)
			}
			return nil
		}
		if c.many != nil {
			s.hub.forget(c.many)
		}
		switch {
		case err == errBroke:
			continue
		case err != nil:
			return fail(err)
		}
		switch verdict, err := judge(c.answer.code); verdict {
		case refused:
			return fail(withNode(c.answer.code, err, op, path))
		case expired:
			return fail(s.ended(ctx))
		case throttled:
			throttles++
			if err := s.easeOff(ctx, c, throttles); err != nil {
				return fail(err)
			}
		default:
			// If the session asked again, the server would give the same answer at once, in a
			// tight loop.
			return fail(fmt.Errorf("%w: %w", backend.ErrUnsupported, err))
		}
	}
}
