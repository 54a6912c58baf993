// Package zkproxy is a TCP proxy between ZooKeeper's clients and a server. It
// understands the frames of the protocol, so that tests can break a connection
// at an exact place, for instance after a create was applied and before its
// reply, count requests, and count round trips by adding delay.
//
// Faults can be changed at run time. They affect whole frames: the proxy forwards frames in
// order and unchanged.
//
// A change of Hold, Blackhole and similar settings affects every later frame. A frame that is
// being written at that moment may still get through.
package zkproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A Proxy listens on a port of the loopback interface and forwards each
// connection to its target. Its methods are safe for concurrent use.
type Proxy struct {
	listener net.Listener
	raw      bool
	ctx      context.Context // of dialling; ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup // the accept loop and everything of all connections
	counter  counter
	swallow  atomic.Int64 // reads that ended in a black hole, for the tests of the proxy itself

	mu       sync.Mutex
	closed   bool
	target   string
	refuse   bool
	black    [2]bool // by Dir, as all arrays of two here
	delay    [2]time.Duration
	held     [2]chan struct{} // closed when Hold is lifted; nil when nothing is held
	conns    map[*conn]struct{}
	lastConn int
	observe  func(Frame)
	faults   []*Fault // waiting for a frame, in order of arrival
}

// New returns a proxy for the ZooKeeper server at target ("host:port"). A stream in another
// protocol is cut at its first malformed frame; that includes TLS and four-letter words.
func New(target string) (*Proxy, error) { return start(target, false) }

// NewRaw returns a proxy that does not decode the stream, for TLS and other servers. The target can be the path of a Unix socket. Cut, Refuse, Blackhole,
// Hold and SetDelay work on pieces of the stream instead of frames. Drop and OnFrame see
// nothing; Count counts bytes and connections.
func NewRaw(target string) (*Proxy, error) { return start(target, true) }

func start(target string, raw bool) (*Proxy, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("zkproxy: %w", err)
	}
	p := &Proxy{listener: l, raw: raw, target: target, conns: make(map[*conn]struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.counter.reset()
	p.wg.Add(1)
	go p.accept()
	return p, nil
}

// Addr returns the address to connect to, "127.0.0.1:port".
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetTarget sends new connections to another server. Present ones remain.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// OnFrame sets a function that is called for every frame that arrives, before it is forwarded
// or dropped; nil removes it. The calls for one direction of one connection are in order;
// other calls are concurrent. f must not block and must not call Close. It does not get
// frames that a black hole swallows.
func (p *Proxy) OnFrame(f func(Frame)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observe = f
}

// Open returns the number of connections that have not ended. All frames of the others are
// counted.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Close stops listening, cuts all connections and returns when every goroutine
// has ended. A second Close does nothing.
func (p *Proxy) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	var err error
	if !closed {
		err = p.listener.Close()
		p.cancel()
	}
	p.Cut()
	p.wg.Wait()
	return err
}

func (p *Proxy) accept() {
	defer p.wg.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			if p.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// The process is out of file descriptors, or a connection ended in the accept
			// queue.
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		p.open(client)
	}
}

// open registers a new connection and starts it, or refuses it.
func (p *Proxy) open(client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refuse {
		client.Close()
		return
	}
	p.lastConn++
	c := newConn(p, p.lastConn, client, p.target)
	for dir, black := range p.black {
		if black {
			c.blacken(Dir(dir))
		}
	}
	p.conns[c] = struct{}{}
	p.counter.connection()
	p.wg.Add(1)
	go c.run()
}

func (p *Proxy) forget(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// due returns the time at which a frame that arrives now has to be forwarded.
func (p *Proxy) due(dir Dir) time.Time {
	p.mu.Lock()
	d := p.delay[dir]
	p.mu.Unlock()
	if d <= 0 {
		return time.Time{}
	}
	return time.Now().Add(d)
}

// holding returns nil if this direction is not held, else a channel that is closed when Hold
// is lifted.
func (p *Proxy) holding(dir Dir) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[dir]
}

// saw counts a frame and reports it to the observer.
func (p *Proxy) saw(f Frame) {
	p.counter.frame(f)
	p.mu.Lock()
	observe := p.observe
	p.mu.Unlock()
	if observe != nil {
		observe(f)
	}
}
