package pgtest

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/internal/zkproxy"
)

// Each runs f as coordtest.Each does, and in a third subtest, "postgres", on a server of its own
// without fsync. That is skipped, or fails, as Require does. With go test -short f runs in memory only.
func Each(t *testing.T, o *coordtest.Options, f func(t *testing.T, s *coordtest.Service)) {
	t.Helper()
	coordtest.Each(t, o, f)
	t.Run("postgres", func(t *testing.T) {
		if testing.Short() {
			t.Skip("-short: in memory only")
		}
		f(t, Start(t, &Options{Settings: map[string]string{"fsync": "off"}}).Service(t, o))
	})
}

// Service returns a service in the database postgres, in a schema of its own. That of the first one on a server is "coord", so
// that postgres.Check finds it without an option.
func (s *Server) Service(tb testing.TB, o *coordtest.Options) *coordtest.Service {
	var timeout time.Duration
	if o != nil {
		timeout = o.SessionTimeout
	}
	s.mu.Lock()
	s.services++
	schema := "" // the default
	if s.services > 1 {
		schema = fmt.Sprintf("coord%d", s.services)
	}
	s.mu.Unlock()
	return coordtest.New(tb, &provider{s, postgres.Options{Schema: schema, SessionTimeout: timeout}}, o)
}

// provider provides the tree in a schema.
type provider struct {
	server *Server
	opts   postgres.Options
}

func (p *provider) Root() string { return "" }

func (p *provider) Connect(string) (coordtest.Connection, error) {
	proxy, err := zkproxy.NewRaw(p.server.Addr())
	if err != nil {
		return nil, err
	}
	return &connection{postgres.New(URL(proxy.Addr(), ""), &p.opts), p, proxy}, nil
}

// connection is a connection to the server through a proxy.
type connection struct {
	backend.Backend
	provider *provider
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
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	_, err := c.provider.server.Exec(ctx, "", fmt.Sprintf("SELECT %s.finish(%d)", cmp.Or(c.provider.opts.Schema, "coord"), session))
	return err
}
