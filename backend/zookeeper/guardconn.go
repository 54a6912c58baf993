package zookeeper

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/backend/internal/contact"
)

const (
	readBuffer  = 16 << 10
	keepFrame   = 64 << 10 // a larger buffer for frames is not kept
	fullBatch   = 64 << 10 // no further frame is written together with so many bytes
	smallData   = 4 << 10  // smaller data is copied, so that it keeps nothing else in memory
	trustedSize = 1 << 20  // a longer frame gets its memory bit by bit
)

var (
	errSealed       = errors.New("the session is over")
	errFrameSize    = errors.New("the server sent a frame of invalid length")
	errNotZooKeeper = errors.New("this is not a ZooKeeper server, or not its client port")
	errSessionMoved = errors.New("the session has moved to another server")
	errServerEnds   = errors.New("the server announced that it closes the connection")
	errOnlyPings    = errors.New("the server answers pings but no requests")
)

// guardConn is a connection to a server. It writes the calls of the session and hands their
// replies to the callers. The zk client gets it from its dialer with the handshake made: what it
// writes first is dropped, and what it reads first is the response that the dialer got. Then it
// sends pings and closes the session. These are the only frames that pass through
// Read and Write; the zk client sees no call, no reply to one and no event.
//
// The goroutine of the zk client that reads is the one that reads all frames. The watches
// that a reply arms, the lease that it renews and the events before it are dealt with before
// its caller gets it.
type guardConn struct {
	session *session
	target  contact.Target
	raw     net.Conn // the connection to close: closing TLS can block
	conn    net.Conn // raw, or TLS on it
	until   time.Time

	// Those of the goroutine that makes the handshake, then the dialer's.
	asked  instant // when the connect request was sent
	fresh  bool    // it was for a new session
	hello  []byte  // the connect response
	answer connectResponse

	// The dialer's, then those of the zk client's goroutines.
	greeted    bool     // the session is on this connection
	introduced bool     // the zk client has written its connect request
	login      *instant // when the credentials were sent, until they are answered
	look       *look    // until it is answered

	// The reader's.
	r        *bufio.Reader
	head     [4 + replySize]byte
	frame    []byte        // for bodies
	rest     []byte        // what the zk client has not read yet
	stall    time.Duration // how long a server may make no progress, once greeted
	extended time.Duration // when the read deadline was last extended, by the monotonic clock
	useful   bool          // a reply has arrived
	since    instant       // when the first did
	lasting  bool          // replies have arrived for some time

	// The writer's: the goroutine that has set writing.
	out       []byte
	unwritten []byte // the rest of out, for flush

	direct  *directConn // nil if each write can block
	flusher func()      // flush; a value, since a method would be allocated each time
	breaks  sync.Once

	// Guarded by the session's mu.
	broken  bool
	writing bool    // there is a goroutine that writes
	aside   []*call // frames of the zk client to be written
	sent    fifo    // what has been written, in this order, and not been answered
	pings   []instant
	reading *call // the call whose reply is being read
	lastXid int32 // of a call
}

// The zk client counts its xids from 1. Ours begin where it does not get to.
const firstXid = 1 << 30

// nextXid returns the xid of the next call. After the last one it begins again: a reply is
// matched with the first request that is not answered.
func (c *guardConn) nextXid() int32 {
	if c.lastXid < firstXid || c.lastXid == math.MaxInt32 {
		c.lastXid = firstXid
	} else {
		c.lastXid++
	}
	return c.lastXid
}

// newGuardConn returns a connection whose handshake has to finish by until.
func newGuardConn(s *session, t contact.Target, raw, conn net.Conn, until time.Time) *guardConn {
	c := &guardConn{
		session: s,
		target:  t,
		raw:     raw,
		conn:    conn,
		until:   until,
		r:       bufio.NewReaderSize(conn, readBuffer),
	}
	c.flusher = c.flush
	c.direct = newDirectConn(conn)
	return c
}

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
		c.pass()
		return c.answered(call.at)
	case len(call.steps) > 0 && size > len(call.frame)+len(call.steps)*mostResult:
		return forbidden(c.head[:4])
	}
	return c.reply(call, h, size)
}

// pass hands the frame to the zk client, without its body. It needs none.
func (c *guardConn) pass() {
	binary.BigEndian.PutUint32(c.head[:], replySize)
	c.rest = c.head[:]
}

// pong handles the answer to a ping. It has to be that to the first one without an answer.
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
// at once: a server can go on answering the pings of such a session.
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

// loggedIn handles the answer to the credentials.
func (c *guardConn) loggedIn(code int32) error {
	at := c.login
	if at == nil {
		return errMalformed
	}
	c.login = nil
	if err := c.leave(code); err != nil {
		return err
	}
	if code != codeOK {
		return c.session.refusedLogin(code)
	}
	if err := c.answered(*at); err != nil {
		return err
	}
	return c.join()
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

// shakeHands sends the connect request and reads the response.
func (c *guardConn) shakeHands() error {
	if err := c.conn.SetDeadline(c.until); err != nil {
		return err
	}
	if err := c.ask(); err != nil {
		return err
	}
	return c.readHello()
}

// readHello reads the response to a connect request.
func (c *guardConn) readHello() error {
	if _, err := io.ReadFull(c.r, c.head[:4]); err != nil {
		return err
	}
	size := int(int32At(c.head[:], 0))
	if size < 0 || size > zkBuffer {
		return forbidden(c.head[:4])
	}
	body, err := c.body(size, nil)
	if err != nil {
		return err
	}
	c.hello = append(bytes.Clone(c.head[:4]), body...)
	c.answer, err = parseConnectResponse(body)
	return err
}

// dismiss ends a connection that is not used because another one is. If it has made a session, it
// closes that.
func (c *guardConn) dismiss() {
	defer c.fail(contact.ErrBeaten)
	if !c.fresh || c.answer.session == 0 {
		return
	}
	c.conn.SetDeadline(time.Now().Add(byeTime))
	if _, err := c.conn.Write(encodeClose(1)); err != nil {
		return
	}
	io.Copy(io.Discard, io.LimitReader(c.r, keepFrame)) // the server closes the connection behind its reply
}

// welcome makes the session use this connection. It replaces the timeout in the connect response,
// from which the zk client derives when to ping and when to give up on a silent server.
func (c *guardConn) welcome() error {
	if err := c.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	c.look = c.session.newLook()
	pretend, err := c.session.greet(c, c.answer, c.asked)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(c.hello[4+timeoutFrom:], uint32(pretend))
	c.rest, c.hello = c.hello, nil
	c.greeted = true
	c.stall = time.Duration(pretend) * time.Millisecond * 2 / 3
	return c.present()
}

// present sends the credentials, on each connection before everything else, and the look behind
// them. The zk client cannot do it: it sends again only credentials that it knows were accepted,
// and learns of that after the session is in use. It begins to write when it has read the connect
// response, so nothing else writes now.
func (c *guardConn) present() error {
	now := c.session.now()
	var out []byte
	if digest := c.session.cfg.digest; digest != nil {
		c.login = &now
		out = encodeAuth(digest())
	}
	if c.look != nil {
		c.look.at = now
		out = append(out, c.look.frames()...)
	}
	if len(out) == 0 {
		c.session.contact(c)
		return nil
	}
	c.conn.SetWriteDeadline(c.until)
	defer c.conn.SetWriteDeadline(time.Time{})
	_, err := c.conn.Write(out)
	return err
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

// Write sends a frame of the zk client. It never fails: the zk client learns of a broken
// connection from Read alone, which it can handle in every state. A failed Write can make it
// deadlock, and is reported in another way.
func (c *guardConn) Write(p []byte) (int, error) {
	s := c.session
	if s.isSealed() {
		return len(p), nil
	}
	if !c.introduced {
		c.introduced = true
		return len(p), nil
	}
	if len(p) < 12 {
		c.fail(errMalformed)
		return len(p), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.broken {
		c.aside = append(c.aside, &call{op: int32At(p, 8), xid: int32At(p, 4), frame: bytes.Clone(p)})
		s.writeLocked()
	}
	return len(p), nil
}

// ask sends the connect request. The server learns what the session has seen: one that is behind
// that refuses the session, so that it never sees the tree go back. The last byte says that a
// read-only server is not accepted; servers would log that a client without it is old.
func (c *guardConn) ask() error {
	s := c.session
	s.mu.Lock()
	c.fresh = s.id == 0
	out := encodeConnect(s.seen, s.cfg.times.Timeout, s.id, s.password)
	s.mu.Unlock()
	c.asked = s.now()
	_, err := c.conn.Write(out)
	return err
}

// waitsLocked reports whether there is something to write.
func (c *guardConn) waitsLocked() bool {
	return len(c.aside) > 0 || c.session.linked && c.session.queue.size > 0
}

// startLocked reports whether there is something to write and no writer. Then the caller has
// become the writer.
func (c *guardConn) startLocked() bool {
	if c.writing || c.session.isSealed() || !c.waitsLocked() {
		return false
	}
	c.writing = true
	return true
}

// flush writes all that waits, and ends when nothing waits. It runs on a goroutine of its own,
// since a write can block.
func (c *guardConn) flush() {
	defer c.session.work.Done()
	out := c.unwritten
	c.unwritten = nil
	if len(out) == 0 {
		// Other callers that are about to make a call do so now, and their requests are
		// written together with the first one.
		runtime.Gosched()
		out = c.take()
	}
	for ; len(out) > 0; out = c.take() {
		if _, err := c.conn.Write(out); err != nil {
			c.fail(err)
		}
	}
}

// flushNow is flush on the goroutine of a caller that is alone, which costs less than a
// goroutine of its own. The caller's context can end, so flushNow writes only what the
// operating system takes at once, and leaves the rest and later calls to flush.
func (c *guardConn) flushNow() {
	out := c.take()
	if len(out) == 0 {
		return
	}
	n, err := c.direct.write(out)
	if err != nil {
		c.fail(err)
	}
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	c.unwritten = out[n:]
	c.writing = !c.broken && !s.isSealed() && (len(c.unwritten) > 0 || c.waitsLocked())
	if c.writing {
		s.work.Add(1)
		go c.flusher()
	}
}

// take returns the frames to be written next, in memory of the writer: a call that is over
// uses its own again. It returns none, and the writer is writer no longer, if nothing is to be
// written. The frames of the zk client are behind the calls, so that the session is closed
// behind them.
func (c *guardConn) take() []byte {
	s := c.session
	now := s.now()
	s.mu.Lock()
	if cap(c.out) > fullBatch+keepFrame {
		c.out = nil
	}
	late := s.lease.Left(now) <= 0
	if late || c.broken || s.isSealed() || !c.waitsLocked() {
		c.writing = false
		over := late && !c.broken
		s.mu.Unlock()
		if over {
			s.lose(errUnheard)
		}
		return nil
	}
	defer s.mu.Unlock()
	c.out = c.takeLocked(c.out[:0], now)
	c.writing = len(c.out) > 0 // there is nothing if every call was withdrawn
	return c.out
}

func (c *guardConn) takeLocked(out []byte, now instant) []byte {
	s := c.session
	if s.linked {
		for s.queue.size > 0 && len(out) < fullBatch {
			call := s.queue.first
			s.queue.remove(call)
			if !s.hub.sending(call) {
				call.answer = answer{code: codeUnimplemented, failed: -1}
				s.overLocked(call, answered)
				continue
			}
			call.stage, call.xid, call.at = sent, c.nextXid(), now
			setXid(call.frame, call.xid)
			c.sent.push(call)
			out = append(out, call.frame...)
		}
		if s.queue.size > 0 {
			return out
		}
	}
	for _, call := range c.aside {
		if call.op == opPing {
			c.pings = append(c.pings, now)
		} else {
			call.at = now
			c.sent.push(call)
		}
		out = append(out, call.frame...)
	}
	c.aside = nil
	return out
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

// SetReadDeadline keeps the deadline of the handshake until the handshake is over, with the
// answers to the credentials and to the look. The zk client would wait for several session timeouts
// for it to begin, and without limit for it to end.
func (c *guardConn) SetReadDeadline(t time.Time) error {
	if (!c.greeted || c.login != nil || c.look != nil) && (t.IsZero() || t.After(c.until)) {
		t = c.until
	}
	return c.conn.SetReadDeadline(t)
}

// SetWriteDeadline gives the handshake's requests the deadline of its response. Later writes
// have none: the server's silence, or the lease, ends a connection on which they block.
func (c *guardConn) SetWriteDeadline(t time.Time) error {
	if c.greeted {
		return nil
	}
	if !t.IsZero() && t.After(c.until) {
		t = c.until
	}
	return c.conn.SetWriteDeadline(t)
}

// The rest of net.Conn.

func (c *guardConn) SetDeadline(t time.Time) error { return c.conn.SetDeadline(t) }
func (c *guardConn) LocalAddr() net.Addr           { return c.conn.LocalAddr() }
func (c *guardConn) RemoteAddr() net.Addr          { return c.conn.RemoteAddr() }
