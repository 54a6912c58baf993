package postgres_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/costtest"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zkproxy"
)

// line is a proxy of requests, behind a proxy of bytes. A request is one group of messages.
type line struct {
	ensemble.Requests
	server   string
	trips    *costtest.Trips // or nil
	messages net.Listener
	work     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[*lineConn]struct{}
	broken error // bytes that were no message of PostgreSQL
}

// lineConn is a connection of the client, and its continuation to the server.
type lineConn struct {
	line           *line
	client, server net.Conn
	ended          chan struct{} // closed when either side ends
	once           sync.Once

	mu       sync.Mutex
	requests []*lineRequest // without a reply so far, the oldest first
}

type lineRequest struct {
	zkproxy.Frame
	kind  kind
	trip  costtest.Trip
	fault *ensemble.RequestFault // of the reply, or nil
}

// countedTrip is how long a reply takes where round trips are counted.
const countedTrip = 5 * time.Millisecond

// kind is what a request is for.
type kind string

const (
	keeps   kind = "" // it opens, keeps or closes a session
	reads   kind = "read"
	commits kind = "commit"
)

// newLine returns a line to a server. t counts its round trips, and can be nil.
func newLine(server string, t *costtest.Trips) (*line, error) {
	l := &line{server: server, trips: t, conns: make(map[*lineConn]struct{})}
	var err error
	if l.messages, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if l.Proxy, err = zkproxy.NewRaw(l.messages.Addr().String()); err != nil {
		return nil, errors.Join(err, l.messages.Close())
	}
	l.work.Go(l.accept)
	return l, nil
}

func (l *line) accept() {
	for {
		client, err := l.messages.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", l.server)
		if err != nil { // the server is down
			client.Close()
			continue
		}
		c := &lineConn{line: l, client: client, server: server, ended: make(chan struct{})}
		l.mu.Lock()
		if l.closed {
			c.close()
		}
		l.conns[c] = struct{}{}
		l.work.Go(c.serve)
		l.mu.Unlock()
	}
}

// Close ends all connections. It returns an error if some bytes were no message of PostgreSQL.
func (l *line) Close() error {
	err := errors.Join(l.Proxy.Close(), l.messages.Close())
	l.mu.Lock()
	l.closed = true
	for c := range l.conns {
		c.close()
	}
	l.mu.Unlock()
	l.work.Wait()
	return errors.Join(err, l.broken)
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

// frameOf returns a request as a frame of ZooKeeper, by the message that kindOf reads. Session is set only for a request that opens or
// attaches a session.
func frameOf(m []byte) (f zkproxy.Frame) {
	_, rest, _ := bytes.Cut(m[5:], []byte{0})
	statement, rest, _ := bytes.Cut(rest, []byte{0})
	f = zkproxy.Frame{Dir: zkproxy.Up, Opcode: zkproxy.OpAuth}
	switch name := string(statement); name {
	case "k_open", "k_attach":
		f.Opcode = zkproxy.OpConnect
		formats := int(binary.BigEndian.Uint16(rest))
		rest = rest[2+2*formats:]
		if len(rest) >= 14 && binary.BigEndian.Uint32(rest[2:]) == 8 { // the first parameter is the session
			f.Session = int64(binary.BigEndian.Uint64(rest[6:]))
		}
	case "k_beat":
		f.Opcode = zkproxy.OpPing
	case "k_finish":
		f.Opcode = zkproxy.OpClose
	case "r_get":
		f.Opcode = zkproxy.OpGetData
	case "r_exists":
		f.Opcode = zkproxy.OpExists
	case "r_children":
		f.Opcode = zkproxy.OpGetChildren2
	case "r_arm":
		f.Opcode = zkproxy.OpAddWatch
	case "r_sync":
		f.Opcode = zkproxy.OpSync
	default:
		if kindOf(m) != keeps {
			f.Opcode = zkproxy.OpMulti
		}
	}
	return f
}

func (c *lineConn) serve() {
	var down sync.WaitGroup
	down.Go(func() {
		defer c.close()
		c.failed(c.down())
	})
	c.failed(c.up())
	c.close()
	down.Wait()
	for _, r := range c.requests { // they get no reply
		if r.fault != nil {
			r.fault.Arm()
		}
	}
	c.line.mu.Lock()
	defer c.line.mu.Unlock()
	delete(c.line.conns, c)
}

// close closes both sides.
func (c *lineConn) close() {
	c.once.Do(func() { close(c.ended) })
	c.client.Close()
	c.server.Close()
}

func (c *lineConn) failed(err error) {
	if errors.Is(err, errNoMessage) {
		c.line.mu.Lock()
		defer c.line.mu.Unlock()
		c.line.broken = errors.Join(c.line.broken, err)
	}
}

// up forwards requests until one side ends, or a fault drops a request.
func (c *lineConn) up() error {
	start, err := readMessage(c.client, 0)
	if err != nil {
		return err
	}
	if _, err := c.server.Write(start); err != nil {
		return err
	}
	var group []byte
	other := zkproxy.Frame{Dir: zkproxy.Up, Opcode: zkproxy.OpAuth}
	frame, what := other, keeps
	for {
		m, err := readMessage(c.client, 1)
		if err != nil {
			return err
		}
		group = append(group, m...)
		if k := kindOf(m); (m[0] == 'B' || m[0] == 'P') && (k != keeps || what == keeps) {
			frame, what = frameOf(m), k
		}
		switch m[0] {
		case 'S', 'Q': // Sync, or a Query, which needs none
			r := &lineRequest{Frame: frame, kind: what}
			c.line.Tell(frame)
			f := c.line.Claim(frame)
			switch {
			case f == nil:
			case f.What == zkproxy.DropRequest:
				c.line.Cut()
				f.Happened()
				return nil
			case f.What == zkproxy.HoldRequest:
				if !f.Hold(c.ended) {
					return nil
				}
			default:
				r.fault = f
			}
			if what != keeps {
				c.line.trips.Sent(c.line, &r.trip, string(what), what == commits)
			}
			c.mu.Lock()
			c.requests = append(c.requests, r)
			c.mu.Unlock()
		case 'X', 'p': // Terminate, a password
		default:
			continue
		}
		if _, err := c.server.Write(group); err != nil {
			return err
		}
		group, frame, what = group[:0], other, keeps
	}
}

// down forwards replies until one side ends, or a fault drops a reply.
func (c *lineConn) down() error {
	var group []byte
	for started := false; ; {
		m, err := readMessage(c.server, 1)
		if err != nil {
			_, _ = c.client.Write(group) // the client may have ended
			return err
		}
		// Messages of the login, and messages of no request: NotificationResponse, NoticeResponse and
		// ParameterStatus.
		alone := !started || len(group) == 0 && bytes.IndexByte([]byte("ANS"), m[0]) >= 0
		group = append(group, m...)
		if m[0] == 'A' {
			c.line.trips.Notified(c.line)
		}
		switch {
		case m[0] == 'Z' && started:
			r, err := c.answered()
			if err != nil {
				return err
			}
			switch {
			case r.Opcode == zkproxy.OpPing, r.Opcode == zkproxy.OpConnect:
				c.line.Tell(zkproxy.Frame{Dir: zkproxy.Down, Opcode: r.Opcode, Session: r.Session})
			}
			switch {
			case r.fault == nil:
			case r.fault.What == zkproxy.DropReply:
				c.line.Cut()
				r.fault.Happened()
				return nil
			case !r.fault.Hold(c.ended):
				return nil
			}
			if r.kind != keeps && c.line.trips != nil {
				// As over a network: the requests that a call sends at once are sent before the first reply.
				select {
				case <-time.After(countedTrip):
				case <-c.ended:
					return nil
				}
				c.line.trips.Answered(c.line, &r.trip)
			}
		case m[0] == 'Z':
			started = true
		case !alone:
			continue
		}
		if _, err := c.client.Write(group); err != nil {
			return err
		}
		group = group[:0]
	}
}

// answered removes the oldest request and returns it.
func (c *lineConn) answered() (*lineRequest, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.requests) == 0 {
		return nil, fmt.Errorf("an answer to no request: %w", errNoMessage)
	}
	r := c.requests[0]
	c.requests = c.requests[1:]
	return r, nil
}

var errNoMessage = errors.New("this begins no message of PostgreSQL")

// readMessage reads one message. Its length follows a type of kind bytes.
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
