package zookeeper

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"
)

// Read returns the frames that are for the zk client.
func (c *guardConn) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if err := c.next(); err != nil {
			if err == errUnheard {
				c.session.lose(err)
			}
			c.fail(err)
			c.over(broke)
			return 0, err
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// over ends the call whose reply is being read, if there is one.
func (c *guardConn) over(as stage) {
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if c.reading != nil {
		c.session.overLocked(c.reading, as)
		c.reading = nil
	}
}

// next reads one frame and handles it. c.rest is set if the frame is for the zk client.
func (c *guardConn) next() error {
	if _, err := io.ReadFull(c.r, c.head[:4]); err != nil {
		return err
	}
	size := int(int32At(c.head[:], 0))
	switch {
	case size < 0:
		return forbidden(c.head[:4])
	case size < replySize:
		return errMalformed
	}
	if err := c.fill(c.head[4:]); err != nil {
		return err
	}
	if size > maxFrame {
		return c.skip(parseReplyHeader(c.head[4:]), size-replySize)
	}
	return c.incoming(parseReplyHeader(c.head[4:]), size-replySize)
}

// skip discards a reply that is too long, of a read of data or children. Other replies cannot
// be that long.
func (c *guardConn) skip(h replyHeader, size int) error {
	s := c.session
	s.mu.Lock()
	call := c.sent.pop(h.xid)
	if call != nil && call.op != opClose {
		c.reading = call
	}
	s.mu.Unlock()
	if call == nil || call.op != opMultiRead && call.op != opGetData && call.op != opChildren {
		return forbidden(c.head[:4])
	}
	call.answer = answer{failed: -1, size: size, skipped: true}
	for size > 0 {
		body, err := c.scratch(min(size, keepFrame))
		if err != nil {
			return err
		}
		size -= len(body)
	}
	return c.finish(call, h.zxid)
}

// incoming handles the frame that begins with a header and has a body of that size.
func (c *guardConn) incoming(h replyHeader, size int) error {
	s := c.session
	switch {
	case h.xid == xidEvent && size > mostEvent:
		return forbidden(c.head[:4])
	case h.xid == xidEvent:
		body, err := c.scratch(size)
		if err != nil {
			return err
		}
		e, err := parseEvent(body)
		if err == nil {
			e.zxid = max(0, h.zxid)
			s.hub.event(e)
		}
		return err
	case h.xid == xidLook && c.look != nil:
		return c.looked(h, size)
	case h.xid < 0:
		if _, err := c.scratch(size); err != nil {
			return err
		}
		switch h.xid {
		case xidPing:
			return c.pong(h.code)
		case xidAuth:
			return c.loggedIn(h.code)
		}
		return nil
	}
	s.mu.Lock()
	call := c.sent.pop(h.xid)
	if call != nil && call.op != opClose {
		c.reading = call
	}
	s.mu.Unlock()
	switch {
	case call == nil:
		return errMalformed
	case call.op == opClose:
		if _, err := c.scratch(size); err != nil {
			return err
		}
		if h.code == codeOK {
			s.cfg.reports.Ended(s.ID())
		}
		c.pass()
		return c.answered(call.at)
	case len(call.steps) > 0 && size > len(call.frame)+len(call.steps)*mostResult:
		return forbidden(c.head[:4])
	}
	return c.reply(call, h, size)
}

// pass hands the frame to the zk client, without its body, which the zk client does not need.
func (c *guardConn) pass() {
	binary.BigEndian.PutUint32(c.head[:], replySize)
	c.rest = c.head[:]
}

// pong handles the answer to a ping, which is the answer to the first ping that has none.
//
// A server answers the pings and the calls of a connection in order. If it answers pings and no
// calls, the connection is useless although it renews the lease, so the session leaves it.
func (c *guardConn) pong(code int32) error {
	if err := c.leave(code); err != nil {
		return err
	}
	s := c.session
	s.mu.Lock()
	if len(c.pings) == 0 {
		s.mu.Unlock()
		return errMalformed
	}
	at := c.pings[0]
	c.pings = c.pings[1:]
	over, stuck := c.hangsLocked(at)
	s.mu.Unlock()
	if over {
		s.lose(errUnanswered)
	}
	if stuck {
		return errOnlyPings
	}
	c.pass()
	return c.answered(at)
}

// leave handles a code that is about the session or the server, and not about the request. It
// returns why the connection ends, or nil for any other code. A session that has ended is lost
// at once: a server can continue answering the pings of such a session.
func (c *guardConn) leave(code int32) error {
	if !aboutSession(code) {
		return nil
	}
	switch code {
	case codeSessionMoved:
		return errSessionMoved
	case codeClosing:
		return errServerEnds
	}
	c.session.lose(errExpired)
	return errExpired
}

// aboutSession reports whether a code says that the session has ended, or that this server does
// not serve it any more.
func aboutSession(code int32) bool {
	switch code {
	case codeSessionExpired, codeUnknownSession, codeSessionMoved, codeClosing:
		return true
	}
	return false
}

// hangsLocked reports whether the server has answered a ping that was sent at the instant, half the lease
// after a call without an answer: the pings would keep the session, its nodes and its callers for ever.
// over says that each server in turn has done so, with reads or with commits.
func (c *guardConn) hangsLocked(at instant) (over, stuck bool) {
	s := c.session
	first := c.sent.first()
	if first == nil || first.op == opClose || first.at.To(at) <= s.lease.Length/2 {
		return false, false
	}
	silent := first.silenceLocked(s)
	*silent++
	return *silent >= max(2, s.hosts.Len()), true
}

// silenceLocked returns the number of connections in a row that have broken because calls of this kind
// had no answer.
func (c *call) silenceLocked(s *session) *int {
	if len(c.steps) > 0 {
		return &s.silentCommits
	}
	return &s.silentReads
}

// reply reads the rest of the reply to a call, and ends the call.
func (c *guardConn) reply(call *call, h replyHeader, size int) error {
	code := h.code
	// A large reply to a read of data is read into memory that the caller gets with the data.
	own := call.op == opGetData && code == codeOK && size > smallData
	var body []byte
	var err error
	if own {
		body, err = c.body(size, nil)
	} else {
		body, err = c.scratch(size)
	}
	if err != nil {
		return err
	}
	a := &call.answer
	*a = answer{code: code, failed: -1, size: size}
	if code == codeOK {
		if err := a.decode(call.op, body, call.steps, call.count, !own); err != nil {
			return err
		}
	}
	// The code of a step of a multi counts as that of the reply. The leader checks the session
	// before each step, and applies nothing if it refuses one.
	if err := c.leave(a.code); err != nil {
		if err == errExpired {
			c.over(answered) // it is a definite refusal
		}
		return err
	}
	c.session.hub.replied(call, code)
	return c.finish(call, h.zxid)
}

// finish records an answer and hands it to its caller.
func (c *guardConn) finish(call *call, zxid int64) error {
	s := c.session
	now := s.now()
	if err := c.note(now); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isSealed() {
		return errSealed
	}
	if err := s.renewLocked(call.at, now); err != nil {
		return err
	}
	s.seen = max(s.seen, zxid)
	call.zxid = zxid
	if call.answer.code == codeOK && call.path != "" {
		s.past.saw(call.path, &call.answer.stat)
	}
	s.doubt.readLocked(len(call.frame) - 4)
	*call.silenceLocked(s) = 0
	if call.answer.code == codeThrottled && len(call.steps) > 0 && call.stage != leftAlone && call.over == nil {
		call.over = make(chan struct{})
		s.throttled = append(s.throttled, call)
	}
	c.reading = nil
	s.overLocked(call, answered)
	return nil
}

// scratch reads a body into memory that is used again for the next one.
func (c *guardConn) scratch(size int) ([]byte, error) {
	body, err := c.body(size, c.frame)
	if cap(body) <= keepFrame {
		c.frame = body
	}
	return body, err
}

// body reads a body, into the memory of buf if it is large enough. The memory for a large one
// is allocated as its bytes arrive, because the length of a frame can be wrong.
func (c *guardConn) body(size int, buf []byte) ([]byte, error) {
	buf = buf[:0]
	for len(buf) < size {
		from := len(buf)
		n := min(size-from, max(from, trustedSize))
		buf = slices.Grow(buf, n)[:from+n]
		if err := c.fill(buf[from:]); err != nil {
			return nil, err
		}
	}
	return buf, nil
}

// fill reads the rest of a frame. The zk client's deadline is for the whole frame, so a long
// reply over a slow link would be cut off, requested again and cut off again. Therefore the
// deadline is extended as long as bytes arrive. The lease still bounds a reply, since only
// answers renew it.
func (c *guardConn) fill(rest []byte) error {
	for {
		n, err := c.r.Read(rest)
		rest = rest[n:]
		switch {
		case len(rest) == 0:
			return nil
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case c.greeted:
			if err := c.SetReadDeadline(time.Now().Add(c.stall)); err != nil {
				return err
			}
		}
	}
}

// forbidden returns the error of a frame that begins with an impossible length. Mostly that
// is the text, or the TLS record, of another protocol.
func forbidden(head []byte) error {
	const alert, handshake = 0x15, 0x16 // records of TLS
	switch {
	case (head[0] == alert || head[0] == handshake) && head[1] == 3:
		return fmt.Errorf("%w: it speaks TLS, and Options.TLS is not set", errNotZooKeeper)
	case bytes.IndexFunc(head, func(r rune) bool { return r < ' ' || r > '~' }) < 0:
		return fmt.Errorf("%w: its answer begins with %q", errNotZooKeeper, head)
	}
	return fmt.Errorf("%w: %d", errFrameSize, int32At(head, 0))
}

// answered records the answer to a request of the zk client that was sent at the instant. Before
// the look is answered it proves nothing: the server can have another history.
func (c *guardConn) answered(at instant) error {
	if c.look != nil {
		return nil
	}
	now := c.session.now()
	if err := c.note(now); err != nil {
		return err
	}
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	return c.session.renewLocked(at, now)
}

// note records that there is an answer.
func (c *guardConn) note(now instant) error {
	if !c.lasting {
		switch {
		case !c.useful:
			c.useful, c.since = true, now
			c.session.hosts.Answered(c.target)
		case c.since.To(now) >= c.session.hosts.Spell():
			c.lasting = true
			c.session.hosts.Lasted()
		}
	}
	// The zk client extends the deadline at the frames that it gets.
	if now.Mono-c.extended < c.stall/8 {
		return nil
	}
	c.extended = now.Mono
	return c.SetReadDeadline(time.Now().Add(c.stall))
}
