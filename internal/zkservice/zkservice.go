// Package zkservice turns a running ZooKeeper ensemble into a service for tests. Each client
// gets a link with its own faults: a proxy in front of every server. backendtest and the
// tests of the recipes run on it and on the memory backend.
package zkservice

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

// Service is one fresh part of an ensemble's tree.
type Service struct {
	tb   testing.TB
	e    *zktest.Ensemble
	opts zookeeper.Options
	root string

	mu    sync.Mutex
	links map[string]*Link
}

var _ backendtest.Service = (*Service)(nil)

// roots numbers the roots of one process.
var roots atomic.Int64

// New returns a service below a new root of its own. The links open sessions with opts. All
// of it ends with the test. The nodes below the root stay, since the ensemble ends soon
// after.
func New(tb testing.TB, e *zktest.Ensemble, opts zookeeper.Options) *Service {
	tb.Helper()
	s := &Service{tb: tb, e: e, opts: opts, links: make(map[string]*Link)}
	s.root = fmt.Sprintf("/t%d-%d", time.Now().UnixNano(), roots.Add(1))
	conn, _, err := zk.Connect(e.Addrs(), 10*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	if err := Create(conn, s.root, zk.WorldACL(zk.PermAll)); err != nil {
		tb.Fatalf("create the root of a service: %v", err)
	}
	tb.Cleanup(s.close)
	return s
}

// Create creates a persistent node whose name is unique. On a busy machine the connection
// can fail before, and contact can break during the request, so it is repeated for a minute.
func Create(conn *zk.Conn, path string, acl []zk.ACL) error {
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := conn.Create(path, []byte{}, 0, acl)
		if err == nil || errors.Is(err, zk.ErrNodeExists) {
			return nil
		}
		if !errors.Is(err, zk.ErrConnectionClosed) && !errors.Is(err, zk.ErrNoServer) || time.Now().After(deadline) {
			return err
		}
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// Root is the path that the test works under.
func (s *Service) Root() string { return s.root }

// Link returns the link with this name.
func (s *Service) Link(name string) backendtest.Link { return s.ZooKeeper(name) }

// ZooKeeper returns the link with this name and all of its methods.
func (s *Service) ZooKeeper(name string) *Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.links[name]; l != nil {
		return l
	}
	l := &Link{service: s}
	for _, addr := range s.e.Addrs() {
		p, err := zkproxy.New(addr)
		if err != nil {
			s.tb.Fatal(err)
		}
		l.Proxies = append(l.Proxies, p)
	}
	l.Backend = zookeeper.New(l.Addrs(), &s.opts)
	s.links[name] = l
	return l
}

func (s *Service) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.links {
		for _, p := range l.Proxies {
			p.Close()
		}
	}
}

// Link is a connection to the ensemble through one proxy for each server.
type Link struct {
	backend.Backend
	Proxies []*zkproxy.Proxy
	service *Service
}

// Addrs returns the addresses of the proxies.
func (l *Link) Addrs() []string {
	var addrs []string
	for _, p := range l.Proxies {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// Partition cuts the link's connections and refuses new ones.
func (l *Link) Partition() {
	for _, p := range l.Proxies {
		p.Refuse(true)
	}
	for _, p := range l.Proxies {
		p.Cut()
	}
}

// Heal ends a partition or a black hole.
func (l *Link) Heal() {
	for _, p := range l.Proxies {
		p.Refuse(false)
		p.Blackhole(false)
	}
}

// Blackhole loses everything in both directions until Heal: neither side is notified.
func (l *Link) Blackhole() {
	for _, p := range l.Proxies {
		p.Blackhole(true)
	}
}

// SetLatency makes every frame take this long, each way.
func (l *Link) SetLatency(d time.Duration) {
	for _, p := range l.Proxies {
		p.SetDelay(d, d)
	}
}

// Requests returns the number of requests that the link has sent, without pings and connects.
func (l *Link) Requests() int {
	n := 0
	for _, p := range l.Proxies {
		n += p.Count().Requests()
	}
	return n
}

// Contacts returns the number of connections that were made through the link.
func (l *Link) Contacts() int {
	n := 0
	for _, p := range l.Proxies {
		n += p.Count().Connections
	}
	return n
}

// Expire makes the ensemble end a session.
func (l *Link) Expire(session int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := zktest.ExpireSession(ctx, l.service.e.Addrs()[0], session, nil); err != nil {
		l.service.tb.Errorf("expire session %#x: %v", session, err)
	}
}

// DropNextRequest loses the next request of the link.
func (l *Link) DropNextRequest() { l.drop(zkproxy.DropRequest) }

// DropNextReply loses the reply to the next request of the link.
func (l *Link) DropNextReply() { l.drop(zkproxy.DropReply) }

// drop arms one fault on every proxy; the first request takes all of them.
func (l *Link) drop(what zkproxy.DropWhat) {
	var taken atomic.Bool
	for _, p := range l.Proxies {
		p.Drop(func(f zkproxy.Frame) bool {
			switch f.Opcode {
			case zkproxy.OpConnect, zkproxy.OpPing, zkproxy.OpClose, zkproxy.OpAuth:
				return false
			}
			return taken.CompareAndSwap(false, true)
		}, what)
	}
}
