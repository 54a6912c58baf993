// Package grpchealth shows the session of a client, and the terms that it leads, by the health service of gRPC: Check and Watch
// of google.golang.org/grpc/health.
//
//	s := health.NewServer()
//	healthpb.RegisterHealthServer(server, s)
//	g.Go(func() error { return grpchealth.Session(ctx, s, "", c) })
//	g.Go(func() error { return election.Run(ctx, grpchealth.Leading(s, "search.Index", index)) })
//
// A status is for the choice of a server, and says nothing about a single call: a call can arrive after a loss, and a process
// that was paused shows the former status until it has noticed the loss. So a handler that needs the leadership looks
// at Term.Err, and fences its writes by the guard or the token of the term.
//
// A gRPC client follows the status of a service if its service config has a healthCheckConfig, its program imports
// google.golang.org/grpc/health, and its policy is not pick_first:
//
//	{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": "search.Index"}}
//
// After health.Server.Shutdown every status stays NOT_SERVING. Call it before the server is stopped.
package grpchealth

import (
	"context"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/go-coord/coord"
)

// Session keeps the status of a service at SERVING while the session of c lives, and at NOT_SERVING otherwise, until ctx ends or c
// is closed. It leaves the status at NOT_SERVING. The service "" is the server as a whole; a new health.Server reports it as SERVING until
// Session begins.
//
// A loss of contact changes nothing, since nothing is lost yet. When the service of coord is down, the sessions of all processes end after their
// timeout, and all become NOT_SERVING together. Use it for services that cannot work without a session.
//
// The result is nil when ctx has ended, and matches coord.ErrClosed when c was closed before.
func Session(ctx context.Context, s *health.Server, service string, c *coord.Client) error {
	defer s.SetServingStatus(service, healthpb.HealthCheckResponse_NOT_SERVING)
	for state := range c.States(ctx) {
		switch state.Phase {
		case coord.PhaseConnected, coord.PhaseSuspended:
			s.SetServingStatus(service, healthpb.HealthCheckResponse_SERVING)
		case coord.PhaseLost:
			s.SetServingStatus(service, healthpb.HealthCheckResponse_NOT_SERVING)
		case coord.PhaseClosed:
			return state.Err
		}
	}
	return nil
}

// Leading sets the status of a service to NOT_SERVING, and returns a function for coord.Election.Run. This sets the status to
// SERVING and calls work. The status is NOT_SERVING again when the context ends, because the term is lost or the process
// stops, or when work returns, panics or ends its goroutine.
//
// Each election needs a service of its own: the end of a term sets the status, whatever the process leads besides.
//
// The status changes a moment after the loss; the next leader can be SERVING meanwhile. A leader that must prepare first calls the function
// of Leading when it is ready, from the function that it gives to Run.
func Leading(s *health.Server, service string, work func(ctx context.Context, t *coord.Term) error) func(ctx context.Context, t *coord.Term) error {
	stop := func() { s.SetServingStatus(service, healthpb.HealthCheckResponse_NOT_SERVING) }
	stop()
	if work == nil {
		return nil // Run refuses it, before it campaigns
	}
	return func(ctx context.Context, t *coord.Term) error {
		s.SetServingStatus(service, healthpb.HealthCheckResponse_SERVING)
		ended := make(chan struct{})
		unregister := context.AfterFunc(ctx, func() {
			defer close(ended)
			stop()
		})
		defer func() {
			if unregister() {
				stop()
			} else {
				<-ended // or it would change the status of the next term
			}
		}()
		return work(ctx, t)
	}
}
