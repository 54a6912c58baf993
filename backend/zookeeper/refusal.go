package zookeeper

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// A server that is behind what a session has seen closes its connection, and gives no reason. That can be a
// follower that is late. Or all servers have gone back: then the session would believe in its nodes until its
// lease passes, while others acquire what it holds. So when servers have closed as many connections in a row as
// there are servers, and at least two, the session asks one of them for a zxid, on a connection and with a
// session of its own: that of a commit which changes nothing. A commit needs a majority, so in the same
// history its zxid is larger than all that the session saw before.

// refusals are handshakes of a session that servers have ended without an answer.
type refusals struct {
	inRow  int // since there was contact
	asking bool
	asked  instant       // when the zxid was last asked for
	pause  time.Duration // from then until it is asked for again
}

// refused records that a server has closed the connection instead of welcoming the session.
func (s *session) refused(at contact.Target) {
	servers := len(s.hosts.Targets())
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.refusals
	r.inRow++
	early := r.pause > 0 && r.asked.To(now) < r.pause
	if s.err != nil || s.isSealed() || r.asking || early || r.inRow < max(2, servers) {
		return
	}
	r.asking, r.asked, r.pause = true, now, time.Second
	seen := s.seen
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		zxid, err := s.latest(at)
		s.mu.Lock()
		if s.refusals.asking = false; err == nil {
			s.refusals.pause = s.hosts.Spell()
		}
		s.mu.Unlock()
		if err == nil && zxid <= seen {
			s.lose(errWentBack(fmt.Sprintf("it is at zxid 0x%x, the session has seen 0x%x", zxid, seen)))
		}
	}()
}

// latest returns the zxid of a commit of its own that changes nothing.
func (s *session) latest(at contact.Target) (int64, error) {
	budget, _ := s.times(1)
	ctx, cancel := context.WithTimeout(s.dialing, budget)
	defer cancel()
	c, err := s.connect(ctx, &contact.Attempt{Target: at})
	if err != nil {
		return 0, err
	}
	defer c.dismiss()
	stop := context.AfterFunc(ctx, func() { c.fail(context.Cause(ctx)) })
	defer stop()
	if err := c.conn.SetDeadline(c.until); err != nil {
		return 0, err
	}
	c.fresh = true
	if _, err := c.conn.Write(encodeConnect(0, time.Second, 0, "")); err != nil {
		return 0, err
	}
	if err := c.readHello(); err != nil {
		return 0, err
	}
	if c.answer.session == 0 {
		return 0, errMalformed
	}
	nothing := []backend.Op{backend.Check("/", backend.AnyVersion)}
	frame := encodeCommit(nil, nothing, appendSteps(nil, nothing), s.cfg.aclOf)
	setXid(frame, xidLook)
	if _, err := c.conn.Write(frame); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(c.r, c.head[:]); err != nil {
		return 0, err
	}
	h := parseReplyHeader(c.head[4:])
	switch {
	case h.xid != xidLook:
		return 0, errMalformed
	case h.code != codeOK && h.code != codeNoAuth: // a refusal for want of permission is committed, too
		return 0, fmt.Errorf("%s", serverCode(h.code))
	}
	return h.zxid, nil
}
