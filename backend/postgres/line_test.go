package postgres_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zkproxy"
)

// line is a proxy of requests, behind one of bytes. A request is one group of messages.
type line struct {
	*zkproxy.Proxy
	server   string
	messages net.Listener
	work     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[*lineConn]struct{}
	tell   func(zkproxy.Frame)
	faults []*lineFault // armed
	broken error        // what was no message
}

// lineFault is the fault of one request.
type lineFault struct {
	line          *line
	match         func(zkproxy.Frame) bool
	what          zkproxy.DropWhat
	hit, release  chan struct{}
	once, unhands sync.Once
}

// lineConn is a connection of the client, and its continuation to the server.
type lineConn struct {
	line           *line
	client, server net.Conn
	ended          chan struct{} // with either side
	once           sync.Once

	mu       sync.Mutex
	requests []*lineRequest // without a reply so far, the oldest first
}

type lineRequest struct {
	zkproxy.Frame
	fault *lineFault // of the reply, or nil
}

func newLine(server string) (*line, error) {
	l := &line{server: server, conns: make(map[*lineConn]struct{})}
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

// Close ends all connections, and returns what the proxy did not understand.
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

func (l *line) OnFrame(f func(zkproxy.Frame)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell = f
}

func (l *line) said(f zkproxy.Frame) {
	l.mu.Lock()
	tell := l.tell
	l.mu.Unlock()
	if tell != nil {
		tell(f)
	}
}

func (l *line) Drop(match func(zkproxy.Frame) bool, what zkproxy.DropWhat) ensemble.Fault {
	f := &lineFault{line: l, match: match, what: what, hit: make(chan struct{}), release: make(chan struct{})}
	l.arm(f)
	return f
}

func (l *line) arm(f *lineFault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-f.release: // canceled
	default:
		l.faults = append(l.faults, f)
	}
}

func (f *lineFault) Hit() <-chan struct{} { return f.hit }

func (f *lineFault) Cancel() {
	f.unhands.Do(func() { close(f.release) })
	f.line.mu.Lock()
	defer f.line.mu.Unlock()
	f.line.faults = slices.DeleteFunc(f.line.faults, func(o *lineFault) bool { return o == f })
}

func (f *lineFault) happened() { f.once.Do(func() { close(f.hit) }) }

// claim returns the fault that takes a request, or nil.
func (l *line) claim(frame zkproxy.Frame) *lineFault {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range l.faults {
		if f.match(frame) {
			l.faults = slices.Delete(l.faults, i, i+1)
			return f
		}
	}
	return nil
}

// frameOf tells a request as a frame of ZooKeeper, by a Bind. Session is that of a request which
// opens it or goes on with it.
func frameOf(bind []byte) (f zkproxy.Frame) {
	_, rest, _ := bytes.Cut(bind[5:], []byte{0}) // the name of the portal
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
		if kindOf(bind) != keeps {
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
	for _, r := range c.requests { // their replies will not come
		if r.fault != nil {
			c.line.arm(r.fault)
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

// held waits until a fault is over. It returns false if the connection has ended.
func (c *lineConn) held(f *lineFault) bool {
	f.happened()
	select {
	case <-f.release:
	case <-c.ended:
	}
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// up passes requests on until one side ends, or one is lost.
func (c *lineConn) up() error {
	start, err := readMessage(c.client, 0)
	if err != nil {
		return err
	}
	if _, err := c.server.Write(start); err != nil {
		return err
	}
	var group []byte
	frame := zkproxy.Frame{Dir: zkproxy.Up, Opcode: zkproxy.OpAuth}
	for {
		m, err := readMessage(c.client, 1)
		if err != nil {
			return err
		}
		group = append(group, m...)
		if m[0] == 'B' {
			frame = frameOf(m)
		}
		switch m[0] {
		case 'S', 'Q': // Sync, or a Query, which needs none
			r := &lineRequest{Frame: frame}
			c.line.said(frame)
			f := c.line.claim(frame)
			switch {
			case f == nil:
			case f.what == zkproxy.DropRequest:
				c.line.Cut()
				f.happened()
				return nil
			case f.what == zkproxy.HoldRequest:
				if !c.held(f) {
					return nil
				}
			default:
				r.fault = f
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
		group, frame = group[:0], zkproxy.Frame{Dir: zkproxy.Up, Opcode: zkproxy.OpAuth}
	}
}

// down passes replies on until one side ends, or one is lost.
func (c *lineConn) down() error {
	var group []byte
	for started := false; ; {
		m, err := readMessage(c.server, 1)
		if err != nil {
			_, _ = c.client.Write(group) // the client may have ended
			return err
		}
		// Messages of the start, and those that belong to no request.
		alone := !started || len(group) == 0 && bytes.IndexByte([]byte("ANS"), m[0]) >= 0
		group = append(group, m...)
		switch {
		case m[0] == 'Z' && started:
			r, err := c.answered()
			if err != nil {
				return err
			}
			switch {
			case r.Opcode == zkproxy.OpPing, r.Opcode == zkproxy.OpConnect:
				c.line.said(zkproxy.Frame{Dir: zkproxy.Down, Opcode: r.Opcode, Session: r.Session})
			}
			switch {
			case r.fault == nil:
			case r.fault.what == zkproxy.DropReply:
				c.line.Cut()
				r.fault.happened()
				return nil
			case !c.held(r.fault):
				return nil
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

// answered takes the oldest request.
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
