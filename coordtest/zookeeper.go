package coordtest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

// ZooKeeperOptions are the settings of StartZooKeeper. Nil means the defaults.
type ZooKeeperOptions struct {
	// Servers is 1 (the default) or 3.
	Servers int

	// TickTime is ZooKeeper's unit of time. The default is 500 ms. Sessions expire at the end of a
	// tick, and their timeout is at least two.
	TickTime time.Duration

	// Config has further settings of zoo.cfg, which override the defaults. It must not set the
	// ports.
	Config map[string]string

	// JavaArgs are further arguments of the JVM.
	JavaArgs []string
}

// actionLimit bounds what the servers do for a test: a restart, the end of a session.
const actionLimit = 90 * time.Second

// ZooKeeper is one ZooKeeper server, or an ensemble of three, for one test. The servers listen on
// the loopback interface, on ports that were free, and keep their data in a temporary directory. It
// is safe for concurrent use.
type ZooKeeper struct {
	tb       testing.TB
	ensemble *zktest.Ensemble
	servers  []*Server
	services atomic.Int64
}

// StartZooKeeper starts servers and returns when they serve. The test ends them, and removes their
// data. It fails if one has ended by itself. The package comment says what must be
// installed, and what happens if it is not.
func StartZooKeeper(tb testing.TB, o *ZooKeeperOptions) *ZooKeeper {
	tb.Helper()
	var opts ZooKeeperOptions
	if o != nil {
		opts = *o
	}
	zktest.Require(tb)
	e, err := zktest.Start(tb.Context(), &zktest.Options{
		Servers: opts.Servers, TickTime: opts.TickTime, Config: opts.Config, JavaArgs: opts.JavaArgs,
		MaxSessionTimeout: time.Hour, // Options.SessionTimeout, whatever the tick
	})
	if err != nil {
		tb.Fatalf("coordtest: %v", err)
	}
	z := &ZooKeeper{tb: tb, ensemble: e}
	for _, s := range e.Servers() {
		z.servers = append(z.servers, &Server{tb: tb, server: s})
	}
	tb.Cleanup(z.close)
	return z
}

func (z *ZooKeeper) close() {
	for i, s := range z.servers {
		if !s.killed.Load() && !s.server.Alive() {
			z.tb.Errorf("coordtest: server %d has ended by itself; the end of its log:\n%s", i, s.Log())
		}
	}
	if err := z.ensemble.Close(); err != nil {
		z.tb.Errorf("coordtest: %v", err)
	}
}

// Addrs returns the addresses of all servers, for zookeeper.New.
func (z *ZooKeeper) Addrs() []string { return z.ensemble.Addrs() }

// Server returns the server with the address Addrs()[i].
func (z *ZooKeeper) Server(i int) *Server { return z.servers[i] }

// Leader returns the server that leads, or the only one. While there is none, it waits; it fails
// the test after a minute and a half. Call it on the goroutine of the test.
func (z *ZooKeeper) Leader() *Server {
	z.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), actionLimit)
	defer cancel()
	s, err := z.ensemble.Leader(ctx)
	if err != nil {
		z.tb.Fatalf("coordtest: %v", err)
	}
	return z.servers[s.ID()-1]
}

// Restart kills the servers that are alive, starts all of them with their data, and returns when
// they serve.
func (z *ZooKeeper) Restart() {
	z.tb.Helper()
	err := error(nil)
	for _, s := range z.servers {
		s.Kill()
	}
	for _, s := range z.servers {
		err = errors.Join(err, s.server.Launch())
		s.killed.Store(false)
	}
	ctx, cancel := context.WithTimeout(context.Background(), actionLimit)
	defer cancel()
	if err = errors.Join(err, z.ensemble.Await(ctx)); err != nil {
		z.tb.Errorf("coordtest: %v", err)
	}
}

// Service returns a service on these servers, with a Root of its own. Each link has a proxy before
// each server.
func (z *ZooKeeper) Service(tb testing.TB, o *Options) *Service {
	return z.service(tb, fmt.Sprintf("/service%d", z.services.Add(1)), o)
}

func (z *ZooKeeper) service(tb testing.TB, root string, o *Options) *Service {
	return New(tb, &zooKeeperProvider{z, root, o.timeout()}, o)
}

// A Server is one ZooKeeper process. Its methods are safe for concurrent use; a failure of one fails
// the test.
type Server struct {
	tb     testing.TB
	server *zktest.Server
	killed atomic.Bool // by the test
}

// Addr is the address of the server, also while it is down.
func (s *Server) Addr() string { return s.server.Addr() }

// Kill ends the process at once (SIGKILL), and returns when it has ended. Its data stays.
func (s *Server) Kill() {
	s.killed.Store(true)
	s.server.Kill()
}

// Pause stops the process (SIGSTOP): its connections stay open, and it does not answer. When Pause
// returns it does nothing any more.
func (s *Server) Pause() { s.check(s.server.Pause()) }

// Resume continues a paused process.
func (s *Server) Resume() { s.check(s.server.Resume()) }

// Restart kills the process if it is alive, starts it with its data, and returns when it serves.
// Of three servers another one must be alive for that; ZooKeeper.Restart restarts all.
func (s *Server) Restart() {
	ctx, cancel := context.WithTimeout(context.Background(), actionLimit)
	defer cancel()
	err := s.server.Restart(ctx)
	s.killed.Store(err != nil)
	s.check(err)
}

// Log returns the end of the log of the server.
func (s *Server) Log() string { return s.server.LogTail() }

func (s *Server) check(err error) {
	s.tb.Helper()
	if err != nil {
		s.tb.Errorf("coordtest: %v", err)
	}
}

// zooKeeperProvider provides a part of the tree of an ensemble.
type zooKeeperProvider struct {
	zk      *ZooKeeper
	root    string
	timeout time.Duration
}

func (p *zooKeeperProvider) Root() string { return p.root }

func (p *zooKeeperProvider) Connect(string) (Connection, error) {
	c := &zooKeeperConnection{zk: p.zk}
	var addrs []string
	for _, addr := range p.zk.Addrs() {
		proxy, err := zkproxy.New(addr)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		seen := newSessions()
		proxy.OnFrame(seen.saw)
		c.sessions = append(c.sessions, seen)
		c.proxies = append(c.proxies, proxy)
		addrs = append(addrs, proxy.Addr())
	}
	c.Backend = zookeeper.New(addrs, &zookeeper.Options{SessionTimeout: p.timeout})
	return c, nil
}

// zooKeeperConnection is a connection to an ensemble through one proxy for each server.
type zooKeeperConnection struct {
	backend.Backend
	zk       *ZooKeeper
	proxies  []*zkproxy.Proxy
	sessions []*sessions // by proxy
}

func (c *zooKeeperConnection) Cut() {
	for _, p := range c.proxies {
		p.Cut()
	}
}

func (c *zooKeeperConnection) Refuse(on bool) {
	for _, p := range c.proxies {
		p.Refuse(on)
	}
	if on {
		c.Cut()
	}
}

func (c *zooKeeperConnection) Blackhole(on bool) {
	for _, p := range c.proxies {
		p.Blackhole(on)
	}
}

func (c *zooKeeperConnection) Delay(d time.Duration) {
	for _, p := range c.proxies {
		p.SetDelay(d, d)
	}
}

// Expire asks the servers that are alive, since one of them may have no majority.
func (c *zooKeeperConnection) Expire(session int64) error {
	var passwd []byte
	for _, seen := range c.sessions {
		if p := seen.passwd(session); p != nil {
			passwd = p
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), actionLimit)
	defer cancel()
	err := errors.New("no server is alive")
	for ctx.Err() == nil {
		asked := false
		for _, s := range c.zk.ensemble.Servers() {
			if !s.Alive() || s.Paused() {
				continue
			}
			asked = true
			try, stop := context.WithTimeout(ctx, 5*time.Second)
			err = zktest.ExpireSession(try, s.Addr(), session, passwd)
			stop()
			if err == nil {
				return nil
			}
		}
		if !asked {
			break
		}
	}
	return err
}

func (c *zooKeeperConnection) Close() error {
	var err error
	for _, p := range c.proxies {
		err = errors.Join(err, p.Close())
	}
	return err
}
