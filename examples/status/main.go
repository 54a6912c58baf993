// Status is a service with probes, of which only the leader is ready: a load balancer or a
// Service of Kubernetes that asks /coord/readyz sends all requests to it.
//
//	go run ./examples/status
//	go run ./examples/status -name a -listen 127.0.0.1:8081 -backend zookeeper -servers host1:2181
//	go run ./examples/status -name b -listen 127.0.0.1:8082 -backend zookeeper -servers host1:2181
//
// It runs until it receives SIGINT or SIGTERM. The page is at /coord/. The test of the example cuts a replica
// off, pauses and kills it, kills the server, and compares the probes with what is true.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/examples/internal/service"
	"github.com/go-coord/coord/status"
)

const leaderPath = "/coord-examples-status/leader"

func main() {
	var name *string
	service.ServeMain("status", &service.Site{
		Listen: "127.0.0.1:8080",
		Page:   "/coord/",
		Flags:  func(flags *flag.FlagSet) { name = flags.String("name", "a", "the name of the replica") },
		New: func(b backend.Backend) (http.Handler, func(ctx context.Context) error, error) {
			st := status.New(&status.Options{Ready: leads})
			return pages(st, *name), func(ctx context.Context) error { return campaign(ctx, st, b, *name) }, nil
		},
	})
}

// pages returns the pages of one replica. They answer also while Open waits for the service, and
// after the replica has resigned, when another one can lead.
func pages(st *status.Handler, name string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/coord/", st)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		if err := leads(st.Report()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "%s leads\n", name)
	})
	return mux
}

// campaign takes part in the election until ctx ends, and resigns then.
func campaign(ctx context.Context, st *status.Handler, b backend.Backend, name string) error {
	c, err := st.Open(ctx, b, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	e := coord.NewElection(c, leaderPath, &coord.ElectionOptions{ID: name})
	return e.Run(ctx, func(ctx context.Context, _ *coord.Term) error {
		<-ctx.Done() // the work of the leader, besides answering
		return context.Cause(ctx)
	})
}

// leads is the Ready of the service. The default would be ready with contact, in each replica.
func leads(r status.Report) error {
	if !r.Leads(leaderPath) {
		return errors.New("this replica does not lead")
	}
	return nil
}
