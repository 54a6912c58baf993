package grpcresolver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/grpcresolver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// conn is a connection as a resolver sees it: it takes lists and errors.
type conn struct {
	resolver.ClientConn
	mu   sync.Mutex
	seen []string // lists and errors
}

func (c *conn) add(s string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, s)
}

// take returns what the connection has received since the last call, when all goroutines wait.
func (c *conn) take() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := c.seen
	c.seen = nil
	return seen
}

func (c *conn) UpdateState(s resolver.State) error {
	var list []string
	for _, a := range s.Addresses {
		list = append(list, a.Addr+a.ServerName)
	}
	c.add(fmt.Sprint(list))
	return errors.New("bad state") // which a watch does not answer
}

func (c *conn) ReportError(err error) { c.add("error: " + err.Error()) }

// want compares the updates that the connection has received since the last call.
func (c *conn) want(t *testing.T, want ...string) {
	t.Helper()
	seen := c.take()
	if !slices.EqualFunc(seen, want, func(got, want string) bool {
		return got == want || strings.HasPrefix(want, "error") && strings.Contains(got, want[7:])
	}) {
		t.Errorf("the connection has received %q, want %q", seen, want)
	}
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
		r.ResolveNow(resolver.ResolveNowOptions{}) // changes nothing: the watch continues
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

func belowGroup(c backendtest.Call) bool { return strings.HasPrefix(c.Path, "/g") }

// dataOfMembers is of calls for which ZooKeeper wants the permission to read a member.
func dataOfMembers(c backendtest.Call) bool { return c.Op == "get" && strings.HasPrefix(c.Path, "/g/") }

// gated returns a client whose calls of some kinds are refused while denied is set, and counts these.
func gated(t *testing.T, s *coordtest.Service, refuses func(c backendtest.Call) bool) (c *coord.Client, denied *atomic.Bool, attempts *atomic.Int32) {
	t.Helper()
	denied, attempts = new(atomic.Bool), new(atomic.Int32)
	b := backendtest.Intercept(s.Link("caller"), backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
		if denied.Load() && refuses(c) {
			attempts.Add(1)
			return backend.ErrDenied
		}
		return nil
	}})
	c, err := coord.Open(t.Context(), b, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, denied, attempts
}

func TestAFailedWatchIsReportedAndBeginsAgainWhenAsked(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		c, denied, _ := gated(t, s, belowGroup)
		if _, err := coord.NewGroup[string](s.Client("server", nil), "/g", nil).Join(t.Context(), "a", "host-a:1"); err != nil {
			t.Fatal(err)
		}
		denied.Store(true)
		var cc conn
		r, err := build(t, grpcresolver.New(c, grpcresolver.Value, nil), "coord:///g", &cc)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cc.want(t, "error: "+coord.ErrDenied.Error())
		r.ResolveNow(resolver.ResolveNowOptions{})
		cc.want(t, "error: "+coord.ErrDenied.Error())
		denied.Store(false)
		r.ResolveNow(resolver.ResolveNowOptions{})
		cc.want(t, "[host-a:1]")
		time.Sleep(time.Hour)
		cc.want(t) // nothing is polled

		r.ResolveNow(resolver.ResolveNowOptions{}) // at a time when the watch continues
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		cc.want(t, "error: "+coord.ErrClosed.Error())
		time.Sleep(time.Hour)
		cc.want(t) // the client stays closed
		r.ResolveNow(resolver.ResolveNowOptions{})
		cc.want(t, "error: "+coord.ErrClosed.Error())
	})
}

// gRPC does not ask to resolve again while it has no address, nor while its connections are well.
func TestAFailedWatchBeginsAgainWithoutBeingAsked(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		c, denied, attempts := gated(t, s, belowGroup)
		denied.Store(true)
		var cc conn
		r, err := build(t, grpcresolver.New(c, grpcresolver.Value, nil), "coord:///g", &cc)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		seen := cc.take()
		if n := attempts.Load(); n < 60 || n > 140 {
			t.Errorf("%d attempts in an hour, want one to two a minute", n)
		}
		for _, seen := range seen {
			if !strings.Contains(seen, coord.ErrDenied.Error()) {
				t.Errorf("the connection has received %q", seen)
			}
		}
		denied.Store(false)
		time.Sleep(time.Minute)
		cc.want(t, "[]")

		denied.Store(true)
		before := attempts.Load()
		if _, err := coord.NewGroup[string](s.Client("server", nil), "/g", nil).Join(t.Context(), "a", "host-a:1"); err != nil {
			t.Fatal(err)
		}
		cc.want(t, "error: "+coord.ErrDenied.Error())
		time.Sleep(time.Second)
		synctest.Wait()
		if attempts.Load() < before+2 {
			t.Error("the pause after a list is as long as before it")
		}
		cc.take()
		r.Close() // in a pause
		time.Sleep(time.Hour)
		cc.want(t)
	})
}

// The members may not be read, but their directory may: no watch fires when the permission comes.
func TestMembersAreReadAgainThatWereDenied(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		c, denied, _ := gated(t, s, dataOfMembers)
		if _, err := coord.NewGroup[string](s.Client("server", nil), "/g", nil).Join(t.Context(), "a", "host-a:1"); err != nil {
			t.Fatal(err)
		}
		denied.Store(true)
		var cc conn
		r, err := build(t, grpcresolver.New(c, grpcresolver.Value, nil), "coord:///g", &cc)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cc.want(t, "error: grpcresolver: none of 1 members can be read")
		denied.Store(false)
		time.Sleep(time.Minute)
		cc.want(t, "[host-a:1]")
	})
}

func TestCloseDoesNotWaitForALookup(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		c := s.Client("caller", nil)
		s.Link("caller").Refuse(true)
		var cc conn
		r, err := build(t, grpcresolver.New(c, grpcresolver.Value, nil), "coord:///g", &cc)
		if err != nil {
			t.Fatal(err)
		}
		cc.want(t)
		begin := time.Now()
		r.Close()
		if time.Since(begin) > 0 {
			t.Errorf("Close takes %v", time.Since(begin))
		}
		s.Link("caller").Refuse(false)
		time.Sleep(time.Minute)
		cc.want(t)
	})
}

// A member at which the function for addresses panics, or ends its goroutine, is left out; the others
// are used, and the watch continues.
func TestResolver_AnAddressFunctionThatDoesNotReturn(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("a secret") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
				group := coord.NewGroup[string](s.Client("servers", nil), "/g", nil)
				join := func(id, value string) *coord.Membership[string] {
					m, err := group.Join(t.Context(), id, value)
					if err != nil {
						t.Fatal(err)
					}
					return m
				}
				b := join("b", "bad")
				var cc conn
				r, err := build(t, grpcresolver.New(s.Client("caller", nil), func(m coord.Member[string]) resolver.Address {
					if m.Value == "bad" {
						fail()
					}
					return resolver.Address{Addr: m.Value}
				}, nil), "coord:///g", &cc)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				cc.want(t, "error: none of 1 members can be read")
				a := join("a", "host-a:1")
				cc.want(t, "[host-a:1]")
				if err := b.SetValue(t.Context(), "host-b:1"); err != nil {
					t.Fatal(err)
				}
				cc.want(t, "[host-a:1 host-b:1]")
				if err := a.Leave(); err != nil {
					t.Fatal(err)
				}
				cc.want(t, "[host-b:1]")
			})
		})
	}
}

type endpoint struct{ Host, Name string }

func TestTheAddressComesFromTheValue(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		c := s.Client("caller", &coord.Options{Namespace: "/prod"})
		group := coord.NewGroup[endpoint](c, "/g", nil)
		readable, err := group.Join(t.Context(), "a", endpoint{"a:1", "/a.example"})
		if err != nil {
			t.Fatal(err)
		}
		// A member whose value is of another type is left out. If it is the only one, the reason is reported.
		broken := coord.NewGroup(c, "/g", &coord.GroupOptions[string]{Codec: coord.Codec[string]{
			Encode: func(s string) ([]byte, error) { return []byte(s), nil },
			Decode: func(b []byte) (string, error) { return string(b), nil },
		}})
		unreadable, err := broken.Join(t.Context(), "b", "no json")
		if err != nil {
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
		// A member that cannot be read any more keeps its address, and one that leaves does not.
		session, err := c.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		members, err := group.Members(t.Context())
		if err != nil || len(members) != 2 {
			t.Fatal(members, err)
		}
		if _, err := session.Commit(t.Context(), backend.SetData(members[0].Path, []byte("no json"), backend.AnyVersion)); err != nil {
			t.Fatal(err)
		}
		cc.want(t, "[host-a:1/a.example]", "error: "+coord.ErrDecode.Error())
		if err := readable.Leave(); err != nil {
			t.Fatal(err)
		}
		cc.want(t, "[]", "error: "+coord.ErrDecode.Error())
		if err := unreadable.Leave(); err != nil {
			t.Fatal(err)
		}
		cc.want(t, "[]")
	})
}

func TestABadTargetIsRefused(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		b := grpcresolver.New(s.Client("caller", nil), grpcresolver.Value, nil)
		if b.Scheme() != "coord" {
			t.Error(b.Scheme())
		}
		for _, target := range []string{"coord://zk1:2181/g", "coord:///g?x=1", "coord:///g#x", "coord:///", "coord:///a//b", "coord:///g/"} {
			if r, err := build(t, b, target, &conn{}); err == nil {
				r.Close()
				t.Errorf("%s is a target", target)
			}
		}
	})
}

// A missing client or function is found where it is given, and not on a goroutine of gRPC.
func TestNew_RefusesNil(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		for name, f := range map[string]func(){
			"client":   func() { grpcresolver.New(nil, grpcresolver.Value, nil) },
			"function": func() { grpcresolver.New[string](s.Client("caller", nil), nil, nil) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("a nil %s is accepted", name)
					}
				}()
				f()
			}()
		}
	})
}

// TestACallThatWaitsIsMadeWhenTheGroupCanBeRead shows on gRPC that nothing else begins the next watch.
func TestACallThatWaitsIsMadeWhenTheGroupCanBeRead(t *testing.T) {
	store := memory.New(nil)
	open := func(b backend.Backend) *coord.Client {
		c, err := coord.Open(t.Context(), b, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	s := serve(t, open(store), "a")
	var denials atomic.Int32
	c := open(backendtest.Intercept(store, backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
		if strings.HasPrefix(c.Path, "/services") && denials.Add(1) == 1 {
			return backend.ErrDenied
		}
		return nil
	}}))
	cc, err := grpc.NewClient("coord:///services/search", grpc.WithResolvers(grpcresolver.New(c, grpcresolver.Value, nil)),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("%s serves, but the call fails: %v", s.addr, err)
	}
}

// TestACallThatRunsOutlastsItsServersMembership: the group becomes empty while a stream runs.
func TestACallThatRunsOutlastsItsServersMembership(t *testing.T) {
	for _, policy := range []string{"pick_first", "round_robin"} {
		t.Run(policy, func(t *testing.T) {
			c, err := coord.Open(t.Context(), memory.New(nil), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			a := serve(t, c, "a")
			cc, err := grpc.NewClient("coord:///services/search", grpc.WithResolvers(grpcresolver.New(c, grpcresolver.Value, nil)),
				grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"`+policy+`":{}}]}`), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer cc.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			calls := healthpb.NewHealthClient(cc)
			stream, err := calls.Watch(ctx, &healthpb.HealthCheckRequest{Service: "search"}, grpc.WaitForReady(true))
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := a.member.Leave(); err != nil {
				t.Fatal(err)
			}
			for status.Code(err) != codes.Unavailable { // until the connection has the empty list
				if _, err = calls.Check(ctx, &healthpb.HealthCheckRequest{}); ctx.Err() != nil {
					t.Fatal("a group without members answers calls")
				}
			}
			a.health.SetServingStatus("search", healthpb.HealthCheckResponse_SERVING)
			if got, err := stream.Recv(); err != nil || got.Status != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("the stream yields %v, %v", got, err)
			}
		})
	}
}

// server is a gRPC server that registers its address.
type server struct {
	addr   string
	grpc   *grpc.Server
	health *health.Server
	member *coord.Membership[string]
}

func serve(t *testing.T, c *coord.Client, id string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: l.Addr().String(), grpc: grpc.NewServer(), health: health.NewServer()}
	healthpb.RegisterHealthServer(s.grpc, s.health)
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
	s := zk.Service(t, &coordtest.Options{SessionTimeout: 8 * time.Second})
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
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
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
