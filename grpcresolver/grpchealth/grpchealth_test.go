package grpchealth_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/grpcresolver"
	"github.com/go-coord/coord/grpcresolver/grpchealth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	up   = healthpb.HealthCheckResponse_SERVING
	down = healthpb.HealthCheckResponse_NOT_SERVING
)

// stream is the server's side of a call of Watch.
type stream struct {
	healthpb.Health_WatchServer
	ctx  context.Context
	sent chan healthpb.HealthCheckResponse_ServingStatus
}

func (s stream) Context() context.Context { return s.ctx }

func (s stream) Send(r *healthpb.HealthCheckResponse) error {
	s.sent <- r.Status
	return nil
}

// watch returns a function that compares what a call of Watch has reported since the last comparison, and what Check returns.
func watch(t *testing.T, s *health.Server, service string) (want func(...healthpb.HealthCheckResponse_ServingStatus)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w, done := stream{ctx: ctx, sent: make(chan healthpb.HealthCheckResponse_ServingStatus, 100)}, make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Watch(&healthpb.HealthCheckRequest{Service: service}, w)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return func(want ...healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		synctest.Wait()
		var got []healthpb.HealthCheckResponse_ServingStatus
		for len(w.sent) > 0 {
			got = append(got, <-w.sent)
		}
		if !slices.Equal(got, want) {
			t.Errorf("Watch has reported %v, want %v", got, want)
		}
		if r, err := s.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service}); err != nil || len(want) > 0 && r.Status != want[len(want)-1] {
			t.Errorf("Check returns %v, %v", r, err)
		}
	}
}

func TestSession_ServesWhileTheSessionLives(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		for name, closed := range map[string]bool{"closed": true, "ended": false} {
			server, c, link := health.NewServer(), s.Client(name, nil), s.Link(name)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			link.Refuse(true)
			synctest.Wait()
			go func() { done <- grpchealth.Session(ctx, server, "search", c) }()
			synctest.Wait()
			want := watch(t, server, "search")
			want(up)
			link.Refuse(false)
			time.Sleep(s.SessionTimeout())
			want()
			link.Cut()
			want()
			link.Refuse(true)
			want() // nothing is lost yet
			time.Sleep(s.SessionTimeout())
			want(down)
			link.Refuse(false)
			time.Sleep(s.SessionTimeout())
			want(up)
			if closed {
				c.Close()
				if err := <-done; !errors.Is(err, coord.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			}
			cancel()
			if !closed {
				if err := <-done; err != nil {
					t.Errorf("after the end of ctx: %v", err)
				}
			}
			want(down)
		}
	})
}

func TestLeading_ServesWhileItLeads(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		server, other := health.NewServer(), coord.NewElection(s.Client("b", nil), "/leader", nil)
		first, err := other.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		slow := make(chan struct{})
		work := grpchealth.Leading(server, "search", func(ctx context.Context, _ *coord.Term) error {
			<-ctx.Done()
			<-slow
			return ctx.Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- coord.NewElection(s.Client("a", nil), "/leader", nil).Run(ctx, work) }()
		want := watch(t, server, "search")
		want(down)
		first.Release()
		want(up)
		s.Link("a").Expire()
		want(down) // although work has not returned
		slow <- struct{}{}
		want(up)
		cancel()
		want(down)
		close(slow)
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		want()
	})
}

func TestLeading_WithoutAFunctionIsRefusedByRun(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		e := coord.NewElection(s.Client("a", nil), "/leader", nil)
		if err := e.Run(t.Context(), grpchealth.Leading(health.NewServer(), "search", nil)); !errors.Is(err, coord.ErrInvalid) {
			t.Error(err)
		}
	})
}

// The end of a term never changes the status of the next one.
func TestLeading_EndsWithItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, f := range map[string]func(cancel func()){
			"return": func(func()) {}, "panic": func(func()) { panic("a panic") }, "Goexit": func(func()) { runtime.Goexit() }, "canceled": func(cancel func()) { cancel() },
		} {
			server := health.NewServer()
			ctx, cancel := context.WithCancel(t.Context())
			work := grpchealth.Leading(server, "search", func(context.Context, *coord.Term) error {
				f(cancel)
				return nil
			})
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				_ = work(ctx, nil)
			}()
			<-done
			if r, err := server.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "search"}); err != nil || r.Status != down {
				t.Errorf("%s: %v, %v", name, r, err)
			}
			server.SetServingStatus("search", up) // the next term
			cancel()
			synctest.Wait()
			if r, err := server.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "search"}); err != nil || r.Status != up {
				t.Errorf("%s: the next term: %v, %v", name, r, err)
			}
		}
	})
}

// The calls of a client reach the leader, and the next one after a loss. The client finds the servers by their group.
func TestLeading_CallsReachTheLeader(t *testing.T) {
	s := coordtest.StartZooKeeper(t, nil).Service(t, &coordtest.Options{SessionTimeout: 3 * time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	serve := func(name string) (addr string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		status, server, c := health.NewServer(), grpc.NewServer(), s.Client(name, nil)
		healthpb.RegisterHealthServer(server, status)
		led, served := make(chan struct{}), make(chan struct{})
		work := grpchealth.Leading(status, "search", func(ctx context.Context, _ *coord.Term) error {
			<-ctx.Done()
			return nil
		})
		go func() {
			defer close(led)
			_ = coord.NewElection(c, "/leader", nil).Run(ctx, work)
		}()
		go func() {
			defer close(served)
			_ = server.Serve(l)
		}()
		t.Cleanup(func() {
			cancel()
			server.Stop()
			<-led
			<-served
		})
		if _, err := coord.NewGroup[string](c, "/servers", nil).Join(t.Context(), name, l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		return l.Addr().String()
	}
	conn, err := grpc.NewClient("coord:///servers",
		grpc.WithResolvers(grpcresolver.New(s.Client("caller", nil), grpcresolver.Value, nil)),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": "search"}}`),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// reached returns the server that a call has reached.
	reached := func() string {
		var p peer.Peer
		if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true), grpc.Peer(&p)); err != nil {
			t.Fatal(err)
		}
		return p.Addr.String()
	}
	election := coord.NewElection(s.Client("caller", nil), "/leader", nil)
	a := serve("a")
	s.Eventually("a leads", func() bool {
		l, err := election.Leader(t.Context())
		return err == nil && !l.Vacant()
	})
	b := serve("b")
	s.Eventually("calls reach the leader", func() bool { return reached() == a })
	for range 10 {
		if got := reached(); got != a {
			t.Errorf("a call has reached %s", got)
		}
	}
	s.Link("a").Blackhole(true)
	s.Eventually("calls reach the next leader", func() bool { return reached() == b })
	for range 10 {
		if got := reached(); got != b {
			t.Errorf("a call has reached %s", got)
		}
	}
}
