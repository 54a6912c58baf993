package core

import (
	"context"
	"time"

	"github.com/go-coord/coord/backend"
)

// A hold that is granted without contention has no watch on its own node at first. The watch reports a deletion by an
// outsider. It is off the critical path, and a shorter hold never pays for it. A deletion before that is seen when the
// watch is armed.
const (
	armDelay   = 20 * time.Millisecond  // the age of a hold at which its watch is armed
	claimDelay = 250 * time.Millisecond // the same for a claim, see Hold.SetClaim
)

// toArm holds the holds of a session that were granted without a watch on their node. It is guarded by Session.mu.
type toArm struct {
	granted []*Hold // since the latest tick
	spare   []*Hold // the other buffer of granted
	arming  bool    // armLoop runs
}

// SetClaim is called before Stand for one of many holds that a client has at a time and that no client asks to give up.
// The watches on their nodes are armed together, in one request, each at the age of claimDelay to twice that.
func (h *Hold) SetClaim() { h.claim = true }

// armLater arms a watch on the node of h after some time, if h still stands then. One
// goroutine serves all holds of a session that are armed in the same way. The caller holds s.mu.
func (s *Session) armLater(h *Hold) {
	if !h.claim {
		s.single.granted = append(s.single.granted, h)
		if !s.single.arming {
			s.single.arming = s.c.GoWork(func() { s.armLoop(&s.single, armDelay, s.watchEach) })
		}
		return
	}
	s.claims.granted = append(s.claims.granted, h)
	if !s.claims.arming {
		s.claims.arming = s.c.GoWork(func() { s.armLoop(&s.claims, claimDelay, s.watchAll) })
	}
}

// armLoop runs as long as holds are granted.
func (s *Session) armLoop(a *toArm, delay time.Duration, arm func(standing []*Hold)) {
	t := time.NewTicker(delay)
	defer t.Stop()
	var due []*Hold // granted before the latest tick, so that each waits at least a period
	for {
		select {
		case <-t.C:
		case <-s.b.Done():
			return
		}
		var standing []*Hold
		for _, h := range due {
			if h.Err() == nil {
				standing = append(standing, h)
			}
		}
		arm(standing)
		clear(due)
		s.mu.Lock()
		due, a.granted, a.spare = a.granted, a.spare[:0], due[:0]
		if len(due) == 0 {
			a.arming = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

// watchEach watches the nodes of holds.
func (s *Session) watchEach(holds []*Hold) {
	for _, h := range holds {
		if h.keeper != nil {
			h.keeper.Watch()
		} else {
			s.c.GoWork(func() { h.WatchNode("", nil) })
		}
	}
}

// watchAll watches the nodes of claims. It arms the watches in one request. A node that is gone by then makes its watch fire;
// data that was written before is not noticed, unlike with watchEach.
func (s *Session) watchAll(claims []*Hold) {
	if len(claims) < 2 {
		s.watchEach(claims)
		return
	}
	s.c.GoWork(func() {
		targets := make([]backend.Target, len(claims))
		since := int64(0) // all nodes were created by then
		for i, h := range claims {
			targets[i] = backend.Target{Path: h.Path(), Watch: backend.NewWatch()}
			since = max(since, h.token)
		}
		if s.b.Arm(context.Background(), since, targets...) != nil {
			s.watchEach(claims) // which tries again
			return
		}
		for i, h := range claims {
			own := targets[i].Watch
			if !s.c.GoWork(func() { h.WatchNode(targets[i].Path, own) }) {
				own.Stop()
			}
		}
	})
}
