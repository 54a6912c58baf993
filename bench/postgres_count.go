package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/internal/zkproxy"
)

// countedConns numbers the connections that are counted. The places have no proxy of this number.
type countedConns struct{ latest atomic.Int64 }

const postgresProxy = 1000

// wrap makes a connection tell the tally of a place of its requests, replies and notifications: its messages up to a
// Sync or a Query are a request, and those up to a ReadyForQuery the reply. Requests that only keep
// the session are pings.
func (x *countedConns) wrap(p *place) func(context.Context, *pgconn.Config, net.Conn) (net.Conn, error) {
	return func(_ context.Context, _ *pgconn.Config, c net.Conn) (net.Conn, error) {
		w := &countedConn{Conn: c, place: p, number: int(x.latest.Add(1))}
		w.up.each, w.up.untyped, w.down.each = w.sent, true, w.came
		return w, nil
	}
}

type countedConn struct {
	net.Conn
	place  *place
	number int

	mu      sync.Mutex
	up      messages
	down    messages
	request zkproxy.Frame   // that is being sent; without an opcode it does nothing yet
	reply   int             // bytes of the reply that is coming
	latest  int32           // request
	pending []zkproxy.Frame // requests without a reply
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.up.add(b) // before a reply can come
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	c.down.add(b[:n])
	c.mu.Unlock()
	return n, err
}

// sent is called with each message to the server.
func (c *countedConn) sent(kind byte, body []byte, size int) {
	c.request.Size += size
	op := zkproxy.OpGetData
	switch kind {
	case 'B':
		_, rest, _ := bytes.Cut(body, []byte{0}) // the name of the portal
		name, _, _ := bytes.Cut(rest, []byte{0})
		switch {
		case strings.HasPrefix(string(name), "k_"):
			op = zkproxy.OpPing
		case strings.HasPrefix(string(name), "c_"):
			op = zkproxy.OpMulti
		}
		if c.request.Opcode == 0 || c.request.Opcode == zkproxy.OpPing {
			c.request.Opcode = op
		}
	case 'S', 'Q':
		if c.request.Opcode == 0 {
			c.request.Opcode = op
		}
		c.latest++
		c.request.Conn, c.request.Dir, c.request.Xid = c.number, zkproxy.Up, c.latest
		c.place.tally.frame(postgresProxy, c.request, time.Now())
		c.pending = append(c.pending, c.request)
		c.request = zkproxy.Frame{}
	}
}

// came is called with each message from the server, which has left it one way ago.
func (c *countedConn) came(kind byte, _ []byte, size int) {
	left := time.Now().Add(-c.place.oneWay)
	c.reply += size
	switch {
	case kind == 'A':
		c.reply -= size
		c.place.tally.frame(postgresProxy, zkproxy.Frame{Conn: c.number, Dir: zkproxy.Down, Opcode: zkproxy.OpEvent, Size: size}, left)
	case kind == 'Z' && len(c.pending) == 0: // the end of the login
		c.reply = 0
	case kind == 'Z':
		f := c.pending[0]
		c.pending = c.pending[1:]
		f.Dir, f.Size = zkproxy.Down, c.reply
		c.reply = 0
		c.place.tally.frame(postgresProxy, f, left)
	}
}

// messages cuts a stream into the messages of PostgreSQL's protocol.
type messages struct {
	each    func(kind byte, body []byte, size int)
	untyped bool // the next message has no type: the first of a client
	rest    []byte
}

func (m *messages) add(b []byte) {
	m.rest = append(m.rest, b...)
	for {
		head := 1
		if m.untyped {
			head = 0
		}
		if len(m.rest) < head+4 {
			return
		}
		size := head + int(binary.BigEndian.Uint32(m.rest[head:]))
		if len(m.rest) < size {
			return
		}
		kind := byte(0)
		if head == 1 {
			kind = m.rest[0]
		}
		m.each(kind, m.rest[head+4:size], size)
		m.rest, m.untyped = m.rest[size:], false
	}
}
