// Package rawlink makes and tests the links of package coordtest to a server with one address. A link has a proxy of bytes
// before the server.
package rawlink

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/internal/zkproxy"
)

// expireLimit bounds the end of a session.
const expireLimit = 90 * time.Second

// Provider is a coordtest.Provider.
type Provider struct {
	Addr    string
	Backend func(addr string) backend.Backend              // for the address of a proxy
	Expire  func(ctx context.Context, session int64) error // ends a session on the server
}

// Root returns the root of the tree.
func (Provider) Root() string { return "" }

// Connect makes a connection through a proxy of its own.
func (p Provider) Connect(string) (coordtest.Connection, error) {
	proxy, err := zkproxy.NewRaw(p.Addr)
	if err != nil {
		return nil, err
	}
	return &connection{p.Backend(proxy.Addr()), p, proxy}, nil
}

type connection struct {
	backend.Backend
	provider Provider
	proxy    *zkproxy.Proxy
}

func (c *connection) Cut()                  { c.proxy.Cut() }
func (c *connection) Blackhole(on bool)     { c.proxy.Blackhole(on) }
func (c *connection) Delay(d time.Duration) { c.proxy.SetDelay(d, d) }
func (c *connection) Close() error          { return c.proxy.Close() }

func (c *connection) Refuse(on bool) {
	c.proxy.Refuse(on)
	if on {
		c.proxy.Cut()
	}
}

func (c *connection) Expire(session int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), expireLimit)
	defer cancel()
	return c.provider.Expire(ctx, session)
}

// Lock takes the lock at /lock.
func Lock(t *testing.T, c *coord.Client) *coord.Hold {
	t.Helper()
	h, err := coord.NewMutex(c, "/lock", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestFaults tests each fault of a link that ends no session, and Expire, on any service.
func TestFaults(t *testing.T, s *coordtest.Service) {
	a := s.Client("a", nil)
	h := Lock(t, a)
	n := coord.NewCounter(a, "/n")
	add := func(want int64) {
		t.Helper()
		if got, err := n.Add(t.Context(), 1); err != nil || got != want {
			t.Fatalf("the counter is %d, %v, want %d", got, err, want)
		}
	}
	add(1)
	b, err := a.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, changed := b.Status()
	s.Link("a").Cut()
	<-changed
	add(2)
	reply := s.Link("a").DropReply(1, "/n")
	add(3)
	<-reply.Done()
	request := s.Link("a").DropRequest(1, "/n")
	add(4)
	<-request.Done()
	if h.Err() != nil {
		t.Fatalf("the hold ended with %v", h.Err())
	}

	const d = 60 * time.Millisecond
	s.Link("a").Delay(d)
	began := time.Now()
	if got, err := n.Get(t.Context()); err != nil || got != 4 || time.Since(began) < 2*d {
		t.Errorf("the counter is %d, %v, after %v", got, err, time.Since(began))
	}
	s.Link("a").Delay(0)

	s.Link("a").Expire()
	next := Lock(t, s.Client("b", nil))
	<-h.Done()
	if !errors.Is(h.Err(), coord.ErrLost) || next.Token() <= h.Token() {
		t.Errorf("the hold ended with %v; tokens %d and %d", h.Err(), h.Token(), next.Token())
	}
}
