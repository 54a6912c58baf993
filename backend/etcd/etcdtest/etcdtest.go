// Package etcdtest is coordtest for etcd: it starts an embedded etcd server from a test, and runs one
// test function in memory, on a ZooKeeper server and on an etcd server. Nothing has to be
// installed for etcd: the server runs in the process of the test.
//
//	func TestMyService(t *testing.T) {
//		etcdtest.Each(t, nil, func(t *testing.T, s *coordtest.Service) {
//			...
//		})
//	}
//
// The faults of a link mean what the comment of package coordtest says, with these notes:
//
//   - A link has a TCP proxy before the server. Cut, Refuse, Blackhole and Delay act on its bytes;
//     gRPC keeps many calls on one connection, so no fault acts on a single reply on the wire.
//   - DropRequest and DropReply act on commits, as on every service.
//   - Expire revokes the leases of the sessions. When it returns, their keys are deleted.
//   - Timeouts of sessions are rounded up to whole seconds.
//   - There is one server, not a cluster: embedded members of a cluster leave goroutines behind.
//
// Import it in tests only: it links the etcd server, which is large.
package etcdtest

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/internal/rawlink"
	"github.com/go-coord/coord/internal/zktest"
)

// Each runs f as coordtest.Each does, and in a third subtest, "etcd", on an embedded server of its
// own, also without ZooKeeper. With go test -short it runs in memory only.
func Each(t *testing.T, o *coordtest.Options, f func(t *testing.T, s *coordtest.Service)) {
	t.Helper()
	coordtest.Each(t, o, f)
	t.Run("etcd", func(t *testing.T) {
		if testing.Short() {
			t.Skip("-short: in memory only")
		}
		f(t, Start(t, nil).Service(t, o))
	})
}

// Options are the settings of Start. Nil means the defaults.
type Options struct {
	// Configure, if it is set, changes the configuration of the server before its first start. It
	// must not change addresses, the name and the directory.
	Configure func(cfg *embed.Config)
}

// startLimit bounds the start of a server.
const startLimit = 90 * time.Second

// A Server is one embedded etcd server, for one test. It listens on the loopback interface, on ports
// that were free, and keeps its data in a temporary directory. Its methods are safe for concurrent
// use; a failure of one fails the test.
type Server struct {
	tb       testing.TB
	cfg      embed.Config
	addr     string
	services atomic.Int64

	mu      sync.Mutex
	running *embed.Etcd // nil while it is stopped
}

// Start starts a server and returns when it serves. The test ends it.
func Start(tb testing.TB, o *Options) *Server {
	tb.Helper()
	// Another process can take a port between the choice and the start.
	for tries := 1; ; tries++ {
		s, err := start(tb, o)
		if err == nil {
			tb.Cleanup(s.Stop)
			return s
		}
		if tries == 5 || !strings.Contains(err.Error(), "address already in use") {
			tb.Fatalf("etcdtest: %v", err)
		}
	}
}

func start(tb testing.TB, o *Options) (*Server, error) {
	ports, err := zktest.FreePorts(2)
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Dir = tb.TempDir()
	client, peer := local(ports[0]), local(ports[1])
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = 20, 200 // there is nothing to elect
	cfg.UnsafeNoFsync = true
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	if o != nil && o.Configure != nil {
		o.Configure(cfg)
	}
	s := &Server{tb: tb, cfg: *cfg, addr: client[0].Host}
	return s, s.start()
}

func local(port int) []url.URL {
	return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)}}
}

// Addr is the address of the server for etcd.New, also while it is stopped.
func (s *Server) Addr() string { return s.addr }

// Service returns a service on the server, with a prefix of its own.
func (s *Server) Service(tb testing.TB, o *coordtest.Options) *coordtest.Service {
	var timeout time.Duration
	if o != nil {
		timeout = o.SessionTimeout
	}
	prefix := fmt.Sprintf("service%d", s.services.Add(1))
	connect := func(addr string) backend.Backend {
		return etcd.New([]string{addr}, &etcd.Options{Prefix: prefix, SessionTimeout: timeout})
	}
	return coordtest.New(tb, rawlink.Provider{Addr: s.addr, Backend: connect, Expire: s.Expire}, o)
}

// Stop ends the server, which keeps its data and resets its connections. A server in the process of
// the test cannot be killed or paused: Link.Blackhole, or a coordtest.NewRawProxy before the server,
// shows a client what a paused server does.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		s.running.Close()
		s.running = nil
	}
}

// Restart stops the server if it runs, starts it with its data, and returns when it serves.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	if err := s.start(); err != nil {
		s.tb.Errorf("etcdtest: %v", err)
	}
}

func (s *Server) start() error {
	cfg := s.cfg // StartEtcd writes to it
	e, err := embed.StartEtcd(&cfg)
	if err != nil {
		return err
	}
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	select {
	case <-e.Server.ReadyNotify():
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running = e
		return nil
	case err = <-e.Err():
	case <-limit.C:
		err = fmt.Errorf("the server at %s is not ready after %v", s.addr, startLimit)
	}
	e.Close()
	return err
}

// Expire ends a session: it revokes its lease. When it returns, the session's ephemeral nodes are
// deleted. A session that has ended already is no error.
func (s *Server) Expire(ctx context.Context, session int64) error {
	cc, err := grpc.NewClient("passthrough:///"+s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer cc.Close()
	_, err = pb.NewLeaseClient(cc).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: session}, grpc.WaitForReady(true))
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}
