package service

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

// A Link is one client's connection to the service, which an example can cut. Programs do not
// need one: they pass memory.New, zookeeper.New or etcd.New to coord.Open.
type Link interface {
	backend.Backend
	// Partition cuts the link: nothing gets through until Heal. The service ends the client's
	// session when its timeout has passed, as if the process had been killed.
	Partition()
	Heal()
}

var (
	_ Link = (*memory.Link)(nil)
	_ Link = (*wire)(nil)
)

// wire is a link to servers. It makes its connections itself, so it can stall them:
// between Partition and Heal nothing gets through in either direction, neither side is
// notified, and no connection can be made.
type wire struct {
	backend.Backend

	mu    sync.Mutex
	cut   bool
	conns map[*conn]struct{}
}

// A dialer makes connections: the Dial of the Options of a backend.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

func newWire(open func(dial dialer) backend.Backend) *wire {
	w := &wire{conns: make(map[*conn]struct{})}
	w.Backend = open(w.dial)
	return w
}

// Partition stalls every connection and refuses new ones.
func (w *wire) Partition() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for c := range w.conns {
		c.stalled.Store(true)
	}
}

// Heal allows new connections. Bytes that were sent over the old ones are lost, so the old
// ones break now.
func (w *wire) Heal() {
	w.mu.Lock()
	w.cut = false
	var broken []*conn
	for c := range w.conns {
		if c.stalled.Load() {
			broken = append(broken, c)
		}
	}
	w.mu.Unlock()
	for _, c := range broken {
		c.Close()
	}
}

func (w *wire) isCut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut
}

var errCut = errors.New("the example has cut this link")

// dial is a dialer.
func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if w.isCut() {
		return nil, errCut
	}
	var d net.Dialer
	inner, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, wire: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut { // cut meanwhile
		inner.Close()
		return nil, errCut
	}
	w.conns[c] = struct{}{}
	return c, nil
}

// conn is a connection of a wire.
type conn struct {
	net.Conn
	wire    *wire
	stalled atomic.Bool // for the rest of its life
}

// Read drops bytes that arrive while the connection is stalled. Deadlines and Close work as
// usual.
func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.stalled.Load() {
			return n, err
		}
	}
}

// Write reports success while the connection is stalled, as a kernel with free buffers does.
func (c *conn) Write(p []byte) (int, error) {
	if c.stalled.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *conn) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}
