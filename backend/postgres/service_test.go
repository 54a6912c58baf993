package postgres_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/zkproxy"
)

// service is a schema of its own on a server. The schema stays until the server is removed.
type service struct {
	tb     testing.TB
	server string // its address
	pool   string // the address of a pool that the links lead to; "" for none
	opts   postgres.Options

	trips *trips // of the links that are made later, or nil

	mu    sync.Mutex
	links map[string]*link
}

var schemas atomic.Int64

// newService returns a service in a schema that no other test, and no other run of this one, uses.
func newService(tb testing.TB, server string, opts postgres.Options) *service {
	tb.Helper()
	if opts.ContainerInterval == 0 {
		opts.ContainerInterval = -1 // so that nothing but the test deletes nodes
	}
	opts.Schema = fmt.Sprintf("t%d_%d", time.Now().UnixNano(), schemas.Add(1))
	s := &service{tb: tb, server: server, opts: opts, links: make(map[string]*link)}
	tb.Cleanup(s.close)
	return s
}

func (s *service) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.links {
		l.close()
	}
}

func (s *service) Root() string { return "/" }

func (s *service) Link(name string) backendtest.Link { return s.link(name) }

func (s *service) link(name string) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.links[name]; l != nil {
		return l
	}
	l, err := newLink(s)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.links[name] = l
	return l
}

// exec runs SQL on the server, through no link.
func (s *service) exec(sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, pgtest.URL(s.server, ""))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql, args...)
	if err != nil {
		conn.Close(ctx)
		return err
	}
	return conn.Close(ctx)
}

// link is a connection to the server through a proxy of bytes, with the faults of a network, and one
// of messages, which loses a single request or reply.
type link struct {
	backend.Backend
	service  *service
	bytes    *zkproxy.Proxy
	messages net.Listener
	trips    *trips
	work     sync.WaitGroup // the accept loop and both directions of all connections

	mu     sync.Mutex
	closed bool
	conns  map[*conn]struct{}
	drop   loss
}

// loss is what a link loses next.
type loss int

const (
	loseNothing loss = iota
	loseRequest      // a read or commit, before it reaches the server
	loseReply        // the reply to one
)

func newLink(s *service) (*link, error) {
	l := &link{service: s, trips: s.trips, conns: make(map[*conn]struct{})}
	var err error
	if l.messages, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if l.bytes, err = zkproxy.NewRaw(l.messages.Addr().String()); err != nil {
		l.messages.Close()
		return nil, err
	}
	l.work.Go(l.accept)
	l.Backend = postgres.New(pgtest.URL(l.bytes.Addr(), ""), &s.opts)
	return l, nil
}

// close ends all connections, and waits for their goroutines.
func (l *link) close() {
	if err := l.bytes.Close(); err != nil {
		l.service.tb.Error(err)
	}
	if err := l.messages.Close(); err != nil {
		l.service.tb.Error(err)
	}
	l.mu.Lock()
	l.closed = true
	for c := range l.conns {
		c.close()
	}
	l.mu.Unlock()
	l.work.Wait()
}

func (l *link) Partition() {
	l.bytes.Refuse(true)
	l.bytes.Cut()
}

func (l *link) Heal() {
	l.bytes.Refuse(false)
	l.bytes.Blackhole(false)
}

func (l *link) SetLatency(d time.Duration) { l.bytes.SetDelay(d, d) }
func (l *link) DropNextRequest()           { l.lose(loseRequest) }
func (l *link) DropNextReply()             { l.lose(loseReply) }

func (l *link) Expire(session int64) {
	if err := l.service.exec(fmt.Sprintf("SELECT %s.finish($1)", l.service.opts.Schema), session); err != nil {
		l.service.tb.Errorf("expire session %#x: %v", session, err)
	}
}

func (l *link) lose(next loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop = next
}

// take reports whether the link loses this, and then loses nothing more.
func (l *link) take(what loss) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.drop != what {
		return false
	}
	l.drop = loseNothing
	return true
}

// accept serves connections until the link is closed.
func (l *link) accept() {
	for {
		client, err := l.messages.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				l.service.tb.Error(err)
			}
			return
		}
		server, err := net.Dial("tcp", cmp.Or(l.service.pool, l.service.server))
		if err != nil { // the server is down
			client.Close()
			continue
		}
		c := &conn{link: l, client: client, server: server}
		l.mu.Lock()
		if l.closed {
			c.close()
		}
		l.conns[c] = struct{}{}
		l.work.Go(c.serve)
		l.mu.Unlock()
	}
}

// conn is a connection of the client, and its continuation to the server. It passes requests and
// replies on as groups: the messages up to a Sync, and those up to ReadyForQuery.
type conn struct {
	link           *link
	client, server net.Conn

	mu       sync.Mutex
	requests []request // without a reply so far, the oldest first
}

// request is one group of messages.
type request struct {
	kind kind
	trip trip
}

// kind is what a request is for.
type kind string

const (
	keeps   kind = "" // it opens, keeps or closes a session
	reads   kind = "read"
	commits kind = "commit"
)

func (c *conn) serve() {
	var down sync.WaitGroup
	down.Go(func() {
		defer c.close()
		c.down()
	})
	c.up()
	c.close()
	down.Wait()
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	delete(c.link.conns, c)
}

// close closes both sides. A second call does nothing.
func (c *conn) close() {
	c.client.Close()
	c.server.Close()
}

// up passes requests on until one side ends, or one is lost.
func (c *conn) up() {
	start, err := c.read(c.client, 0)
	if err != nil {
		return
	}
	if _, err := c.server.Write(start); err != nil {
		return
	}
	var group []byte
	what := keeps
	for {
		m, err := c.read(c.client, 1)
		if err != nil {
			return
		}
		group = append(group, m...)
		if m[0] == 'B' || m[0] == 'P' {
			what = cmp.Or(kindOf(m), what)
		}
		switch m[0] {
		case 'S', 'Q': // Sync, or a Query, which needs none
			if what != keeps && c.link.take(loseRequest) {
				c.link.bytes.Cut()
				return
			}
			r := request{what, c.link.trips.sent(c.link, what)}
			c.mu.Lock()
			c.requests = append(c.requests, r)
			c.mu.Unlock()
		case 'X', 'p': // Terminate, a password
		default:
			continue
		}
		if _, err := c.server.Write(group); err != nil {
			return
		}
		group, what = group[:0], keeps
	}
}

// kindOf returns the kind of a request by a Bind, or by the Parse of a statement that is not prepared.
func kindOf(m []byte) kind {
	_, name, _ := bytes.Cut(m[5:], []byte{0}) // of a Bind the portal; of a Parse the name, which is empty
	name = bytes.TrimPrefix(name, []byte("/*"))
	switch {
	case bytes.HasPrefix(name, []byte("r_")):
		return reads
	case bytes.HasPrefix(name, []byte("c_")):
		return commits
	}
	return keeps
}

// down passes replies on until one side ends, or one is lost.
func (c *conn) down() {
	var group []byte
	for started := false; ; {
		m, err := c.read(c.server, 1)
		if err != nil {
			_, _ = c.client.Write(group) // the client may have ended
			return
		}
		// Messages of the start, and those that belong to no request: NotificationResponse,
		// NoticeResponse and ParameterStatus.
		alone := !started || len(group) == 0 && bytes.IndexByte([]byte("ANS"), m[0]) >= 0
		group = append(group, m...)
		if m[0] == 'A' {
			c.link.trips.notified(c.link)
		}
		if m[0] == 'Z' {
			if started {
				r := c.answered()
				if r.kind != keeps && c.link.take(loseReply) {
					c.link.bytes.Cut()
					return
				}
				c.link.trips.answered(c.link, r)
			}
			started = true
		} else if !alone {
			continue
		}
		if _, err := c.client.Write(group); err != nil {
			return
		}
		group = group[:0]
	}
}

// answered takes the oldest request.
func (c *conn) answered() request {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.requests) == 0 {
		c.link.service.tb.Error("the server answered what nobody asked")
		return request{}
	}
	r := c.requests[0]
	c.requests = c.requests[1:]
	return r
}

// read is readMessage, which reports what is no message.
func (c *conn) read(from io.Reader, kind int) ([]byte, error) {
	m, err := readMessage(from, kind)
	if errors.Is(err, errNoMessage) {
		c.link.service.tb.Error(err)
	}
	return m, err
}

var errNoMessage = errors.New("this begins no message of PostgreSQL")

// readMessage reads one message, whose length comes after a type of so many bytes.
func readMessage(from io.Reader, kind int) ([]byte, error) {
	head := make([]byte, kind+4)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[kind:])
	if n < 4 || n > 1<<30 {
		return nil, fmt.Errorf("%q: %w", head, errNoMessage)
	}
	m := append(head, make([]byte, n-4)...)
	_, err := io.ReadFull(from, m[kind+4:])
	return m, err
}
