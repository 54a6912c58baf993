// Status is a service with probes, of which only the leader is ready: a load balancer or a
// Service of Kubernetes that asks /coord/readyz sends all requests to it.
//
//	go run ./examples/status
//	go run ./examples/status -name a -listen 127.0.0.1:8081 -backend zookeeper -servers host1:2181
//	go run ./examples/status -name b -listen 127.0.0.1:8082 -backend zookeeper -servers host1:2181
//
// It runs until it is told to stop. The page is at /coord/. The test of the example cuts a replica
// off, pauses and kills it, kills the server, and compares the probes with what is true.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/examples/internal/service"
	"github.com/go-coord/coord/status"
)

const leaderPath = "/coord-examples-status/leader"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "status:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("status", flag.ContinueOnError)
	var (
		name    = flags.String("name", "a", "the name of the replica")
		listen  = flags.String("listen", "127.0.0.1:8080", "where to serve")
		kind    = flags.String("backend", "memory", "the service: memory, zookeeper or etcd")
		servers = flags.String("servers", "", "the servers of -backend zookeeper or etcd, as `host:port,…`")
		timeout = flags.Duration("session", 10*time.Second, "the session timeout")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	b, err := service.Backend(*kind, *servers, *timeout)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s serves http://%s/coord/\n", *name, l.Addr())
	return serve(ctx, b, l, *name)
}

// serve is one replica. It serves until ctx ends, and gives its term back.
func serve(ctx context.Context, b backend.Backend, l net.Listener, name string) error {
	st := status.New(&status.Options{Ready: leads})
	mux := http.NewServeMux()
	mux.Handle("/coord/", st)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		if err := leads(st.Report()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "%s leads\n", name)
	})
	// The probes answer while Open waits for the service.
	server := &http.Server{Handler: mux}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()

	err := campaign(ctx, st, b, name)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // the replica has received a signal to stop
	}
	// By now another replica can lead. Requests that came before end in order.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = errors.Join(err, server.Shutdown(ending))
	<-served
	return err
}

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
