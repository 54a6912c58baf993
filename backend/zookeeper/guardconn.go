package zookeeper

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	readBuffer = 16 << 10
	keepFrame  = 64 << 10 // a larger buffer for a frame is not kept
)

var (
	errSealed       = errors.New("the session is over")
	errFrameSize    = errors.New("frame of a forbidden length")
	errNotZooKeeper = errors.New("this is not a ZooKeeper server, or not its client port")
	errSessionMoved = errors.New("the session has moved to another server")
	errServerEnds   = errors.New("the server says that it is closing")
)

// guardConn is the connection that the zk client gets from its dialer. All traffic between
// the zk client and a server passes here. The zk client writes each frame with one Write, and
// has one goroutine at a time that reads and one that writes.
//
// Each frame from the server is read whole and inspected before the zk client gets its first
// byte. So watches are marked, the lease is renewed and an expired session is ended before
// any caller can see the reply.
type guardConn struct {
	session *session
	address string
	raw     net.Conn // the connection to close: closing TLS can block
	conn    net.Conn // raw, or TLS on it
	until   time.Time

	// The reader's.
	r       *bufio.Reader
	frame   []byte
	rest    []byte        // the part of frame that the zk client has not read yet
	greeted bool          // the connect response has arrived
	stall   time.Duration // how long a frame may make no progress, once greeted
	useful  bool          // a reply has arrived
	since   instant       // when the first did
	lasting bool          // replies have arrived for some time

	mu    sync.Mutex
	asked *instant // when the connect request was sent
	sent  map[int32]request
	pings []instant

	scratch []byte // the writer's
	breaks  sync.Once
}

// request is a request that has not been answered yet.
type request struct {
	op   int32
	at   instant
	arms *expectation // nil if it arms no watch
}

// newGuardConn returns a connection whose handshake has to finish by until.
func newGuardConn(s *session, address string, raw, conn net.Conn, until time.Time) *guardConn {
	return &guardConn{
		session: s,
		address: address,
		raw:     raw,
		conn:    conn,
		until:   until,
		r:       bufio.NewReaderSize(conn, readBuffer),
		sent:    make(map[int32]request),
	}
}

// Read returns the frames that are for the zk client.
func (c *guardConn) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if err := c.next(); err != nil {
			c.fail(err)
			return 0, err
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// next reads one frame and inspects it. c.rest is set if the frame is for the zk client.
func (c *guardConn) next() error {
	if cap(c.frame) < 4 || cap(c.frame) > keepFrame {
		c.frame = make([]byte, 4, 512)
	}
	head := c.frame[:4]
	if _, err := io.ReadFull(c.r, head); err != nil {
		return err
	}
	size := int32At(head, 0)
	if size < 0 || size > maxFrame {
		return forbidden(head)
	}
	if cap(c.frame) < 4+int(size) {
		bigger := make([]byte, 4+int(size))
		copy(bigger, head)
		c.frame = bigger
	}
	frame := c.frame[:4+int(size)]
	if err := c.fill(frame[4:]); err != nil {
		return err
	}
	if !c.greeted {
		if err := c.welcome(frame[4:]); err != nil {
			return err
		}
		c.rest = frame
		return nil
	}
	op, forClient, err := c.incoming(frame[4:])
	if err != nil || !forClient {
		return err
	}
	switch op {
	case opWatches:
		frame = asSync(frame)
		c.frame = frame
	case opIdle:
		frame = asRefusal(frame)
	}
	c.rest = frame
	return nil
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
			if err := c.conn.SetReadDeadline(time.Now().Add(c.stall)); err != nil {
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

// welcome inspects the connect response. It replaces the timeout in it, from which the zk
// client derives when to ping and when to give up on a silent server.
func (c *guardConn) welcome(body []byte) error {
	r, err := parseConnectResponse(body)
	if err != nil {
		return err
	}
	c.mu.Lock()
	asked := c.asked
	c.mu.Unlock()
	if asked == nil {
		return errMalformed // no request was sent
	}
	pretend, err := c.session.greet(c, r, *asked)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(body[timeoutFrom:], uint32(pretend))
	c.greeted = true
	c.stall = time.Duration(pretend) * time.Millisecond * 2 / 3
	if digest := c.session.cfg.digest; digest != nil {
		if err := c.logIn(digest()); err != nil {
			return err
		}
	}
	return c.conn.SetReadDeadline(time.Time{})
}

// logIn sends the credentials, on each connection before everything else. The zk client
// cannot do it: it sends again only credentials that it knows were accepted, and learns of
// that after the session is in use. It begins to write when it has read the connect response,
// so nothing else writes now.
func (c *guardConn) logIn(digest string) error {
	c.mu.Lock()
	c.sent[xidAuth] = request{op: opAuth, at: c.session.now()}
	c.mu.Unlock()
	c.conn.SetWriteDeadline(c.until)
	defer c.conn.SetWriteDeadline(time.Time{})
	_, err := c.conn.Write(authRequest(digest))
	return err
}

// incoming inspects a reply or an event. It returns the operation of the request that a reply
// belongs to.
func (c *guardConn) incoming(body []byte) (op int32, forClient bool, err error) {
	h, err := parseReplyHeader(body)
	if err != nil {
		return 0, false, err
	}
	switch {
	case h.xid == xidEvent:
		e, err := parseEvent(body)
		if err != nil {
			return 0, false, err
		}
		c.session.hub.event(e)
		return 0, false, nil // the zk client has no watches
	case h.xid == xidPing:
		c.mu.Lock()
		if len(c.pings) == 0 {
			c.mu.Unlock()
			return 0, false, errMalformed
		}
		at := c.pings[0]
		c.pings = c.pings[1:]
		c.mu.Unlock()
		return 0, true, c.answered(at)
	case h.xid < 0 && h.xid != xidAuth:
		return 0, false, nil
	}

	c.mu.Lock()
	r, ok := c.sent[h.xid]
	delete(c.sent, h.xid)
	c.mu.Unlock()
	if !ok {
		return 0, false, errMalformed
	}
	switch h.code {
	case codeOK:
		if err := checkReply(r.op, body); err != nil {
			return 0, false, err
		}
	case codeSessionExpired, codeUnknownSession:
		// The zk client still gets the reply: for the request it is a definite refusal.
		c.session.lose(errExpired)
		return r.op, r.op != opAuth, nil
	case codeSessionMoved:
		return 0, false, errSessionMoved
	case codeClosing:
		return 0, false, errServerEnds
	default:
		if r.op == opAuth {
			return 0, false, c.session.refusedLogin(h.code)
		}
	}
	if err := c.answered(r.at); err != nil {
		return 0, false, err
	}
	if r.arms != nil {
		if r.op == opWatches && h.code == codeOK {
			c.session.hub.armMany(r.arms)
		} else if kind, exists, ok := watchedBy(r.op, h.code); ok {
			c.session.hub.arm(r.arms, kind, exists)
		}
	}
	if r.op == opAuth {
		c.session.contact(c)
		return 0, false, nil
	}
	return r.op, true, nil
}

// answered renews the lease, unless it has passed.
func (c *guardConn) answered(at instant) error {
	if !c.lasting {
		now := c.session.now()
		switch {
		case !c.useful:
			c.useful, c.since = true, now
			c.session.hosts.answered(remote(c.raw))
		case c.since.to(now) >= c.session.hosts.spell:
			c.lasting = true
			c.session.hosts.lasted()
		}
	}
	return c.session.renew(at)
}

// Write sends a frame of the zk client. It never fails: the zk client learns of a broken
// connection from Read alone, which it can handle in every state. A failed Write can make it
// deadlock, and is reported in another way.
func (c *guardConn) Write(p []byte) (int, error) {
	if c.session.isSealed() {
		return len(p), nil
	}
	frame, err := c.outgoing(p)
	if err == nil {
		_, err = c.conn.Write(frame)
	}
	if err != nil {
		c.fail(err)
	}
	return len(p), nil
}

// outgoing inspects a frame before it is sent, and returns the bytes to send.
func (c *guardConn) outgoing(p []byte) ([]byte, error) {
	now := c.session.now()
	if len(p) < 12 {
		return nil, errMalformed
	}
	if c.ask(now) {
		if len(p) < 4+askedFrom+4 {
			return nil, errMalformed
		}
		// The zk client asks for the timeout that it believes in. It omits the flag for
		// read-only servers, and servers would log on each connection that the client is old.
		out := append(append(c.scratch[:0], p...), 0)
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		binary.BigEndian.PutUint32(out[4+askedFrom:], uint32(c.session.cfg.timeout/time.Millisecond))
		return out, nil
	}
	xid, op := int32At(p, 4), int32At(p, 8)
	if xid == xidPing {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pings = append(c.pings, now)
		return p, nil
	}
	r := request{op: op, at: now}
	if out, said, ok := unmark(c.scratch[:0], p); ok {
		if ticket, container, ok := commitMark(said); ok {
			switch {
			case !c.session.tickets.write(ticket):
				out = idle(c.scratch[:0], p)
				r.op = opIdle
			case container:
				makeContainer(out)
				r.op = opContainer
			}
		} else if r.arms = c.session.hub.sent(said); r.arms != nil {
			if op == opSync {
				out = setWatches(c.scratch[:0], p, r.arms.since, r.arms.many)
				r.op = opWatches
			} else {
				setWatchFlag(out)
			}
		}
		p = out
		if cap(out) <= keepFrame {
			c.scratch = out
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent[xid] = r
	return p, nil
}

// ask reports whether the frame being sent is the first one, the connect request.
func (c *guardConn) ask(now instant) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked != nil {
		return false
	}
	c.asked = &now
	return true
}

// fail closes the connection for a reason, and discards the bytes that were written and not
// sent yet. The operating system would go on sending them for minutes, perhaps until after
// the session was declared lost. A connection of Options.Dial that has no SetLinger is only
// closed.
func (c *guardConn) fail(err error) {
	c.breaks.Do(func() {
		if tcp, ok := c.raw.(interface{ SetLinger(int) error }); ok {
			tcp.SetLinger(0)
		}
		c.raw.Close()
		c.session.lostContact(c, err)
	})
}

// Close is called by the zk client for a connection that has not failed, when the session has
// been closed.
func (c *guardConn) Close() error {
	c.breaks.Do(func() {
		c.raw.Close()
		c.session.lostContact(c, net.ErrClosed)
	})
	return nil
}

// SetReadDeadline keeps the deadline of the handshake until the handshake is over. The zk
// client would wait for several session timeouts for it to begin, and without limit for it to
// end.
func (c *guardConn) SetReadDeadline(t time.Time) error {
	if !c.greeted && (t.IsZero() || t.After(c.until)) {
		t = c.until
	}
	return c.conn.SetReadDeadline(t)
}

// SetWriteDeadline gives the connect request the same deadline as its response.
func (c *guardConn) SetWriteDeadline(t time.Time) error {
	if !t.IsZero() && t.After(c.until) && !c.hasAsked() {
		t = c.until
	}
	return c.conn.SetWriteDeadline(t)
}

// remote returns the address to which the name of a server was resolved.
func remote(conn net.Conn) string {
	if a := conn.RemoteAddr(); a != nil {
		return a.String()
	}
	return "" // a connection of Options.Dial
}

func (c *guardConn) hasAsked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked != nil
}

// The rest of net.Conn.

func (c *guardConn) SetDeadline(t time.Time) error { return c.conn.SetDeadline(t) }
func (c *guardConn) LocalAddr() net.Addr           { return c.conn.LocalAddr() }
func (c *guardConn) RemoteAddr() net.Addr          { return c.conn.RemoteAddr() }
