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
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/status"
	"golang.org/x/sync/errgroup"
)

const leaderPath = "/coord-examples-status/leader"

func main() {
	log.SetFlags(0)
	name := flag.String("name", "a", "the name of the replica")
	listen := flag.String("listen", "127.0.0.1:8080", "the `address` to serve at")
	kind := flag.String("backend", "memory", "the service: memory, zookeeper, etcd or postgres")
	servers := flag.String("servers", "", "the servers of -backend zookeeper or etcd, as `host:port,…`, or the connection string of -backend postgres")
	timeout := flag.Duration("session", 10*time.Second, "the session timeout")
	flag.Parse()
	b, err := newBackend(*kind, *servers, *timeout)
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("status serves http://%s/coord/\n", l.Addr())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, b, *name, l); err != nil {
		log.Fatal(err)
	}
}

// run is one replica, until ctx ends. The pages answer from the beginning, also while the client waits
// for the service, and while the replica resigns. Requests that arrive before Shutdown are answered.
func run(ctx context.Context, b backend.Backend, name string, l net.Listener) error {
	st := status.New(&status.Options{Ready: leads})
	server := &http.Server{Handler: pages(st, name)}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		err := campaign(ctx, st, b, name)
		if ctx.Err() != nil {
			err = nil // stopped by a signal
		}
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return errors.Join(err, server.Shutdown(ending))
	})
	return g.Wait()
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

// newBackend returns the service that the flags name. A service in memory serves this process only.
func newBackend(kind, servers string, timeout time.Duration) (backend.Backend, error) {
	list := strings.Split(servers, ",")
	switch kind {
	case "memory":
		return memory.New(&memory.Options{SessionTimeout: timeout}), nil
	case "zookeeper":
		return zookeeper.New(list, &zookeeper.Options{SessionTimeout: timeout}), nil
	case "etcd":
		return etcd.New(list, &etcd.Options{SessionTimeout: timeout}), nil
	case "postgres":
		return postgres.New(servers, &postgres.Options{SessionTimeout: timeout}), nil
	}
	return nil, fmt.Errorf("-backend %q: want memory, zookeeper, etcd or postgres", kind)
}
