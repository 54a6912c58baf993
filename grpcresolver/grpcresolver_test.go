package grpcresolver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/grpcresolver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// conn is a connection as a resolver sees it: it takes lists and errors.
type conn struct {
	resolver.ClientConn
	told []string // not read before all goroutines wait
}

func (c *conn) UpdateState(s resolver.State) error {
	var list []string
	for _, a := range s.Addresses {
		list = append(list, a.Addr+a.ServerName)
	}
	c.told = append(c.told, fmt.Sprint(list))
	return errors.New("bad state") // which a watch does not answer
}

func (c *conn) ReportError(err error) { c.told = append(c.told, "error: "+err.Error()) }

// want compares the updates that the connection has received since the last call.
func (c *conn) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if !slices.EqualFunc(c.told, want, func(got, want string) bool {
		return got == want || strings.HasPrefix(want, "error") && strings.Contains(got, want[7:])
	}) {
		t.Errorf("told %q, want %q", c.told, want)
	}
	c.told = nil
}

func build(t *testing.T, b resolver.Builder, target string, cc resolver.ClientConn) (resolver.Resolver, error) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return b.Build(resolver.Target{URL: *u}, cc, resolver.BuildOptions{})
}

func TestEachChangeOfTheGroupIsAList(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		servers, c := s.Client("servers", nil), s.Client("caller", nil)
		var cc conn
		r, err := build(t, grpcresolver.New(c, grpcresolver.Value, nil), "coord:///services/search", &cc)
		if err != nil {
			t.Fatal(err)
		}
		cc.want(t, "[]") // a group that no member has joined
		group := coord.NewGroup[string](servers, "/services/search", nil)
		join := func(id, value string) *coord.Membership[string] {
			m, err := group.Join(t.Context(), id, value)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		b := join("b", "host-b:1")
		cc.want(t, "[host-b:1]")
		join("a", "host-a:1")
		cc.want(t, "[host-a:1 host-b:1]")
		if err := b.SetValue(t.Context(), ""); err != nil { // it drains
			t.Fatal(err)
		}
		cc.want(t, "[host-a:1]")
		if err := b.Leave(); err != nil {
			t.Fatal(err)
		}
		cc.want(t, "[host-a:1]")
		r.ResolveNow(resolver.ResolveNowOptions{}) // changes nothing: the watch goes on
		cc.want(t)
		r.Close()
		join("c", "host-c:1")
		cc.want(t)
	})
}

func TestTheListStaysWhileContactIsLost(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		servers, c := s.Client("servers", nil), s.Client("caller", nil)
		m, err := coord.NewGroup[string](servers, "/g", nil).Join(t.Context(), "a", "host-a:1")
		if err != nil {
			t.Fatal(err)
		}
		var cc conn
		r, err := build(t, grpcresolver.New(c, grpcresolver.Value, nil), "coord:///g", &cc)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cc.want(t, "[host-a:1]")
		s.Link("caller").Refuse(true)
		time.Sleep(time.Minute) // the session is lost
		if err := m.Leave(); err != nil {
			t.Fatal(err)
		}
		r.ResolveNow(resolver.ResolveNowOptions{})
		time.Sleep(time.Minute)
		cc.want(t)
		s.Link("caller").Refuse(false)
		time.Sleep(time.Minute)
		cc.want(t, "[]")
	})
}

func TestAFailedWatchIsReportedAndBeginsAgainWhenAsked(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		var denied bool
		b := backendtest.Intercept(s.Link("caller"), backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if denied && strings.HasPrefix(c.Path, "/g") {
				return backend.ErrDenied
			}
			return nil
		}})
		c, err := coord.Open(t.Context(), b, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := coord.NewGroup[string](s.Client("server", nil), "/g", nil).Join(t.Context(), "a", "host-a:1"); err != nil {
			t.Fatal(err)
		}
		denied = true
		var cc conn
		r, err := build(t, grpcresolver.New(c, grpcresolver.Value, nil), "coord:///g", &cc)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cc.want(t, "error: "+coord.ErrDenied.Error())
		r.ResolveNow(resolver.ResolveNowOptions{})
		cc.want(t, "error: "+coord.ErrDenied.Error())
		denied = false
		time.Sleep(time.Hour)
		cc.want(t) // nothing is polled
		r.ResolveNow(resolver.ResolveNowOptions{})
		cc.want(t, "[host-a:1]")

		r.ResolveNow(resolver.ResolveNowOptions{}) // at a time when the watch goes on
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		cc.want(t, "error: "+coord.ErrClosed.Error())
		r.ResolveNow(resolver.ResolveNowOptions{})
		cc.want(t, "error: "+coord.ErrClosed.Error())
	})
}

type endpoint struct{ Host, Name string }

func TestTheAddressComesFromTheValue(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		c := s.Client("caller", &coord.Options{Namespace: "/prod"})
		group := coord.NewGroup[endpoint](c, "/g", nil)
		if _, err := group.Join(t.Context(), "a", endpoint{"a:1", "/a.example"}); err != nil {
			t.Fatal(err)
		}
		// A member whose value is of another type is left out.
		broken := coord.NewGroup(c, "/g", &coord.GroupOptions[string]{Codec: coord.Codec[string]{
			Encode: func(s string) ([]byte, error) { return []byte(s), nil },
			Decode: func(b []byte) (string, error) { return string(b), nil },
		}})
		if _, err := broken.Join(t.Context(), "b", "no json"); err != nil {
			t.Fatal(err)
		}
		var cc conn
		address := func(m coord.Member[endpoint]) resolver.Address {
			return resolver.Address{Addr: "host-" + m.Value.Host, ServerName: m.Value.Name}
		}
		r, err := build(t, grpcresolver.New(c, address, nil), "coord:///g", &cc)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cc.want(t, "[host-a:1/a.example]")
	})
}

func TestABadTargetIsRefused(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		b := grpcresolver.New(s.Client("caller", nil), grpcresolver.Value, nil)
		if b.Scheme() != "coord" {
			t.Error(b.Scheme())
		}
		for _, target := range []string{"coord://zk1:2181/g", "coord:///g?x=1", "coord:///", "coord:///a//b", "coord:///g/"} {
			if r, err := build(t, b, target, &conn{}); err == nil {
				r.Close()
				t.Errorf("%s is a target", target)
			}
		}
	})
}

// server is a gRPC server that registers its address.
type server struct {
	addr   string
	grpc   *grpc.Server
	member *coord.Membership[string]
}

func serve(t *testing.T, c *coord.Client, id string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: l.Addr().String(), grpc: grpc.NewServer()}
	healthpb.RegisterHealthServer(s.grpc, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(l) }()
	t.Cleanup(func() {
		s.grpc.Stop()
		<-served
	})
	if s.member, err = coord.NewGroup[string](c, "/services/search", nil).Join(t.Context(), id, s.addr); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCallsGoToTheMembers makes calls to two servers that join and leave, with a caller that is cut
// off from the service for longer than its session lasts. No call may fail.
func TestCallsGoToTheMembers(t *testing.T) {
	zk := coordtest.StartZooKeeper(t, nil)
	s := zk.Service(t, &coordtest.Options{SessionTimeout: 3 * time.Second})
	servers, c := s.Client("servers", nil), s.Client("caller", nil)
	roundRobin, err := json.Marshal(map[string]any{"loadBalancingConfig": []any{map[string]any{"round_robin": struct{}{}}}})
	if err != nil {
		t.Fatal(err)
	}
	cc, err := grpc.NewClient("coord:///services/search",
		grpc.WithResolvers(grpcresolver.New(c, grpcresolver.Value, nil)),
		grpc.WithDefaultServiceConfig(string(roundRobin)),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	call := func(opts ...grpc.CallOption) string {
		t.Helper()
		var by peer.Peer
		if _, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{}, append(opts, grpc.Peer(&by))...); err != nil {
			t.Fatalf("a call fails: %v", err)
		}
		return by.Addr.String()
	}
	// answered makes calls until the latest ten are answered by exactly these servers.
	answered := func(want ...*server) {
		t.Helper()
		var by []string
		for {
			if by = append(by, call()); len(by) > 10 {
				by = by[1:]
			}
			got := slices.Compact(slices.Sorted(slices.Values(by)))
			if len(by) == 10 && len(got) == len(want) && !slices.ContainsFunc(want, func(s *server) bool { return !slices.Contains(got, s.addr) }) {
				return
			}
		}
	}

	a := serve(t, servers, "a")
	if by := call(grpc.WaitForReady(true)); by != a.addr {
		t.Fatalf("answered by %s, want %s", by, a.addr)
	}
	b := serve(t, servers, "b")
	answered(a, b)

	session, err := c.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.Link("caller").Blackhole(true)
	if err := a.member.Leave(); err != nil {
		t.Fatal(err)
	}
	<-session.Done()
	answered(a, b) // the list from before the cut; both servers serve
	s.Link("caller").Blackhole(false)
	answered(b)
	a.grpc.GracefulStop()
	for range 10 {
		if by := call(); by != b.addr {
			t.Errorf("answered by %s, which has left", by)
		}
	}
}
