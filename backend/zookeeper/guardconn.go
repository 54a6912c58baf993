package zookeeper

import (
	"bufio"
	"errors"
	"math"
	"net"
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

// fail closes the connection for a reason, and discards the bytes that were written and not
// sent yet. The operating system would continue sending them for minutes, perhaps until after
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
