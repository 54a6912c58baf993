package zookeeper

import (
	"context"
	"errors"
	"sync"

	"github.com/go-coord/coord/backend"
)

// optional are the features that servers lack before version 3.6.
const optional = backend.Trees | backend.Batches

// probePath is a path at which there is no node, for the watch that finds out whether there
// are trees.
const probePath = "/zookeeper/probe"

// abilities are the optional features of the servers of a backend. Servers that do not know a
// request close the connection, some of them after an answer. So the first session asks,
// before its user has it and when it holds nothing.
type abilities struct {
	mu    sync.Mutex
	known bool
	has   backend.Features
}

// Features returns what the servers can do, less Options.Without. The leader stamps each commit
// with its own clock, and all connections break when another server becomes the leader, since
// servers without a leader close them.
func (s *session) Features() backend.Features {
	a := s.cfg.abilities
	a.mu.Lock()
	defer a.mu.Unlock()
	return backend.Containers | backend.Clock | a.has
}

// discover finds out which optional features the servers have, unless that is known.
func (s *session) discover(ctx context.Context) error {
	a := s.cfg.abilities
	a.mu.Lock()
	known := a.known
	a.mu.Unlock()
	if known {
		return nil
	}
	has := optional &^ s.cfg.without
	for _, probe := range []struct {
		feature backend.Features
		op      int32
		frame   []byte
	}{
		{backend.Batches, opMultiRead, encodeMultiRead(nil, []backend.Read{{Path: "/"}})},
		{backend.Trees, opAddWatch, encodeAddWatch(nil, probePath, modeTree)},
		{backend.Trees, opRemoveWatches, encodeRemoveWatches(nil, probePath, kindAny)},
	} {
		if !has.Has(probe.feature) {
			continue
		}
		c := s.newCall(probe.op)
		c.frame, c.count = probe.frame, 1
		ok, err := s.knows(ctx, c)
		s.release(c)
		switch {
		case err != nil:
			return err
		case !ok && probe.op != opRemoveWatches: // after a reconnect there is nothing to remove
			has &^= probe.feature
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.known {
		a.known, a.has = true, has
	}
	return nil
}

// knows makes a call, and reports whether the server grants it. It is not granted either if
// contact breaks again and again.
func (s *session) knows(ctx context.Context, c *call) (bool, error) {
	const mostBreaks = 3
	for breaks, throttles := 0, 0; breaks < mostBreaks; {
		_, err := s.do(ctx, c)
		switch {
		case err == errBroke:
			breaks++
			continue
		case err != nil:
			return false, err
		}
		switch verdict, _ := judge(c.answer.code); verdict {
		case expired:
			return false, s.ended(ctx)
		case throttled:
			throttles++
			if err := s.easeOff(ctx, c, throttles); err != nil {
				return false, err
			}
		default:
			return verdict == granted, nil
		}
	}
	return false, nil
}

// refusedFeature records that a server refuses requests of a feature, if that is the error. A
// backend can have servers of several versions.
func (s *session) refusedFeature(f backend.Features, err error) {
	if !errors.Is(err, backend.ErrUnsupported) {
		return
	}
	a := s.cfg.abilities
	a.mu.Lock()
	defer a.mu.Unlock()
	a.has &^= f
}
