package zkproxy

import (
	"bufio"
	"net"
	"strings"
	"sync"
	"time"
)

// dialLimit bounds the connection to the target, which is on this machine.
const dialLimit = 5 * time.Second

// A conn is one client's connection and its continuation to the server. Each direction has a
// goroutine that reads frames into a line and one that writes them from the line.
type conn struct {
	proxy  *Proxy
	number int
	target string
	lines  [2]*line
	done   chan struct{} // closed by cut
	black  [2]chan struct{}

	mu      sync.Mutex
	sockets [2]net.Conn // by the direction that reads: Up the client's, Down the server's
	isCut   bool
	ended   int // directions that have ended
	pending map[int32][]request
}

// A request waits for its reply. Requests with the same xid (pings) are
// answered in order.
type request struct {
	frame Frame
	fault *Fault // takes effect on the reply, or nil
}

func newConn(p *Proxy, number int, client net.Conn, target string) *conn {
	return &conn{
		proxy: p, number: number, target: target,
		lines:   [2]*line{newLine(), newLine()},
		done:    make(chan struct{}),
		black:   [2]chan struct{}{make(chan struct{}), make(chan struct{})},
		sockets: [2]net.Conn{Up: client},
		pending: make(map[int32][]request),
	}
}

// blacken begins a black hole; only a cut ends it. The caller holds Proxy.mu.
func (c *conn) blacken(dir Dir) {
	if !c.isBlack(dir) {
		close(c.black[dir])
	}
}

func (c *conn) isBlack(dir Dir) bool {
	select {
	case <-c.black[dir]:
		return true
	default:
		return false
	}
}

// cut closes both sides. A second call does nothing.
func (c *conn) cut() {
	c.mu.Lock()
	if c.isCut {
		c.mu.Unlock()
		return
	}
	c.isCut = true
	close(c.done)
	for _, s := range c.sockets {
		if s != nil {
			s.Close()
		}
	}
	pending := c.pending
	c.pending = nil
	c.mu.Unlock()
	for _, queue := range pending {
		for _, r := range queue {
			c.proxy.rearm(r.fault)
		}
	}
}

// run serves the connection until it ends.
func (c *conn) run() {
	defer c.proxy.wg.Done()
	defer c.proxy.forget(c)
	defer c.settle()
	defer c.cut()
	if c.isBlack(Up) {
		<-c.done // no bytes arrive at the server, so no connection arrives either
		return
	}
	dialer := net.Dialer{Timeout: dialLimit}
	network := "tcp"
	if strings.HasPrefix(c.target, "/") {
		network = "unix"
	}
	server, err := dialer.DialContext(c.proxy.ctx, network, c.target)
	if err != nil {
		if c.isBlack(Down) {
			<-c.done // the refusal is lost too
		}
		return
	}
	c.mu.Lock()
	c.sockets[Down] = server
	if c.isCut {
		server.Close()
	}
	client := c.sockets[Up]
	c.mu.Unlock()

	var wg sync.WaitGroup
	wg.Go(func() { c.read(Up, client) })
	wg.Go(func() { c.read(Down, server) })
	wg.Go(func() { c.write(Up, server) })
	wg.Go(func() { c.write(Down, client) })
	wg.Wait()
}

// read puts bytes that arrive from src into the line until the stream ends.
func (c *conn) read(dir Dir, src net.Conn) {
	if c.proxy.raw {
		c.readRaw(dir, src)
		return
	}
	r := bufio.NewReaderSize(src, 64<<10)
	for first := true; ; first = false {
		data, err := readFrame(r)
		if c.isBlack(dir) {
			// The bytes are lost, and so are all that follow. The sender's buffer fills up,
			// as it does without acknowledgements.
			c.proxy.swallow.Add(1)
			<-c.done
			return
		}
		var it item
		switch {
		case err == nil:
			it, err = c.handle(dir, first, data)
			if err != nil {
				it = item{refused: true}
			}
		case isMalformed(err):
			it = item{refused: true}
		default:
			it = item{isEnd: true}
		}
		it.due = c.proxy.due(dir)
		c.lines[dir].push(it)
		if it.data == nil {
			return
		}
	}
}

func (c *conn) readRaw(dir Dir, src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if c.isBlack(dir) {
			c.proxy.swallow.Add(1)
			<-c.done
			return
		}
		due := c.proxy.due(dir)
		if n > 0 {
			c.proxy.counter.bytes(dir, n)
			c.lines[dir].push(item{due: due, data: append([]byte(nil), buf[:n]...)})
		}
		if err != nil {
			c.lines[dir].push(item{due: due, isEnd: true})
			return
		}
	}
}

// handle parses a frame, reports it and decides what to do with it.
func (c *conn) handle(dir Dir, first bool, data []byte) (item, error) {
	it := item{data: data}
	f, err := c.parse(dir, first, data[4:])
	if err != nil {
		return it, err
	}
	f.Conn = c.number
	var fault *Fault
	if dir == Down && !f.isEvent() {
		req := c.answered(f.Xid, first)
		f.Opcode, f.Path, f.Ops, fault = req.frame.Opcode, req.frame.Path, req.frame.Ops, req.fault
	}
	c.proxy.saw(f)
	if dir == Up || f.isEvent() {
		fault = c.proxy.claim(f)
	}
	if dir == Up {
		req := request{frame: f}
		if fault != nil && fault.what.onReply() {
			req.fault, fault = fault, nil
		}
		c.asked(req)
	}
	if fault == nil {
		return it, nil
	}
	if fault.what.holds() {
		it.wait = fault.release
		fault.happened()
		return it, nil
	}
	return item{cut: fault}, nil
}

func (c *conn) parse(dir Dir, first bool, body []byte) (Frame, error) {
	switch {
	case first:
		return parseConnect(body, dir)
	case dir == Up:
		return parseRequest(body)
	default:
		return parseReply(body)
	}
}

// write writes the items of the line to dst until the connection ends.
func (c *conn) write(dir Dir, dst net.Conn) {
	broken := false
	for {
		it, ok := c.lines[dir].pop(c.done)
		if !ok {
			return
		}
		if !c.pass(dir, it) {
			c.lines[dir].unpop(it)
			return
		}
		switch {
		case it.cut != nil:
			c.cut()
			it.cut.happened()
			return
		case it.refused:
			c.cut()
			return
		case it.isEnd:
			c.end(dst)
			return
		case !broken:
			// An error here means that the other side has closed. This side learns of it from
			// the other direction, with that direction's delay.
			_, err := dst.Write(it.data)
			broken = err != nil
		}
	}
}

// pass waits until the item may be forwarded: its delay has passed and no hold applies. It
// returns false when the connection has ended or the item is lost.
func (c *conn) pass(dir Dir, it item) bool {
	if !waitUntil(it.due, c.done) {
		return false
	}
	if it.wait != nil {
		select {
		case <-it.wait:
		case <-c.done:
			return false
		}
	}
	for held := c.proxy.holding(dir); held != nil; held = c.proxy.holding(dir) {
		select {
		case <-held:
		case <-c.done:
			return false
		}
	}
	if c.isBlack(dir) {
		<-c.done
		return false
	}
	return true
}

// end forwards the end of a stream. The connection is over when both directions have ended.
func (c *conn) end(dst net.Conn) {
	if t, ok := dst.(*net.TCPConn); ok {
		_ = t.CloseWrite() // fails if the other side has closed already
	}
	c.mu.Lock()
	c.ended++
	over := c.ended == len(c.lines)
	c.mu.Unlock()
	if over {
		c.cut()
	}
}
