package zookeeper

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/zkprobe"
)

const (
	largestFrame = 1<<20 - 1 // servers read it by default
	smallFrame   = 4 << 10   // a break is no reason to doubt that the server reads such a frame
	mostBreaks   = 3         // after so many in a row, a frame of this length is not sent again

	leastMeasure = 100 * time.Millisecond
	mostMeasure  = 2 * time.Second
)

// frameDoubt is what a session knows of requests that its servers may not read, because they are
// longer than jute.maxbuffer. A server drops the connection for such a request, and gives no reason.
//
// So if a server drops a connection while a long request has no answer, the session measures, before
// it connects again, which length that server reads. The limit that it finds is for all sessions of
// the backend, and is measured again before each of their further connections, until that server reads a
// frame of the default length. A server can also read a request and be unable to pass it on to its
// leader, which has a limit of its own. So after three breaks in a row, each with an unanswered request
// of the same length and none longer, the session sends none of that length any more.
type frameDoubt struct {
	size   int            // of the longest request without an answer when the connection broke, 0 for none
	breaks int            // in a row with that size
	at     contact.Target // the server of the latest connection
	most   int            // the longest frame that is sent, if it is not zero
}

// brokeLocked records that the connection c, whose longest request without an answer has that size,
// is broken.
func (s *session) brokeLocked(c *guardConn, longest int, why error) {
	d := &s.doubt
	d.at = c.target
	switch {
	case longest <= smallFrame || !closedByServer(why):
		d.size, d.breaks = 0, 0
	case longest != d.size:
		d.size, d.breaks = longest, 1
	default:
		if d.breaks++; d.breaks >= mostBreaks {
			d.most = longest - 1
		}
	}
}

// readLocked records that a server has read a request.
func (d *frameDoubt) readLocked(size int) {
	if size >= d.size {
		d.size, d.breaks = 0, 0
	}
}

// frameLimit returns the length of the longest frame that servers are known to read.
func (s *session) frameLimit() int {
	most := largestFrame
	if n := int(s.cfg.frameLimit.Load()); n > 0 {
		most = n
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doubt.most > 0 {
		most = min(most, s.doubt.most)
	}
	return most
}

// checkFrame refuses a request that servers do not read.
func (s *session) checkFrame(frame []byte) error {
	size := len(frame) - 4
	if size <= zkprobe.Least {
		return nil
	}
	if most := s.frameLimit(); size > most && most < largestFrame {
		return fmt.Errorf("%w: the request has %d bytes, but a server accepts at most %d (its jute.maxbuffer)", backend.ErrTooLarge, size, most)
	}
	return nil
}

// measure finds out which frames the server of the latest connection reads, if there is reason to.
// It is called while the session has no connection. If it cannot find out, nothing changes.
func (s *session) measure() {
	s.mu.Lock()
	d := s.doubt
	s.mu.Unlock()
	known := s.cfg.frameLimit.Load()
	if d.at.Address == "" || d.size == 0 && known == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.dialing, min(mostMeasure, max(s.checkLease()/4, leastMeasure)))
	defer cancel()
	dial := func(ctx context.Context) (net.Conn, error) {
		raw, err := s.cfg.dialer()(ctx, "tcp", d.at.Address)
		if err != nil {
			return nil, err
		}
		return s.cfg.secure(ctx, d.at, raw)
	}
	if known > 0 {
		switch ok, err := zkprobe.Reads(ctx, dial, largestFrame); {
		case ok:
			s.cfg.frameLimit.CompareAndSwap(known, 0)
			return
		case err != nil, d.size == 0, d.size > int(known):
			return
		}
	}
	limit, err := zkprobe.Limit(ctx, dial, d.size)
	if err != nil || limit >= d.size {
		return
	}
	s.cfg.frameLimit.Store(int64(limit))
	s.log.Warn("coord: a server does not accept long requests, refusing those above its jute.maxbuffer", "server", d.at.String(), "jute.maxbuffer", limit, "expected", largestFrame)
}
