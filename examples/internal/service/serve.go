package service

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
)

// A Site is an example that serves pages until it receives a signal.
type Site struct {
	Listen string              // the default of the flag -listen
	Page   string              // the path of the page whose address is printed
	Flags  func(*flag.FlagSet) // defines further flags, or nil

	// New returns the pages, and the work that runs beside them until its context ends. The flags
	// have their values when it is called.
	New func(b backend.Backend) (http.Handler, func(ctx context.Context) error, error)
}

// ServeMain is the main function of the example called name. It exits as Main does, but with status
// 0 after a signal.
func ServeMain(name string, s *Site) {
	exit(name, func(ctx context.Context, args []string, stdout io.Writer) error {
		return Serve(ctx, name, args, stdout, s)
	})
}

// Serve is ServeMain without the process. It serves until ctx ends, and returns nil then.
func Serve(ctx context.Context, name string, args []string, stdout io.Writer, s *Site) error {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	var (
		listen  = flags.String("listen", s.Listen, "the `address` to serve at")
		kind    = flags.String("backend", "memory", "the service: memory, zookeeper or etcd")
		servers = flags.String("servers", "", "the servers of -backend zookeeper or etcd, as `host:port,…`")
		timeout = flags.Duration("session", 10*time.Second, "the session timeout")
	)
	if s.Flags != nil {
		s.Flags(flags)
	}
	if help, err := parse(flags, args, stdout); help || err != nil {
		return err
	}
	b, err := newBackend(*kind, *servers, *timeout)
	if err != nil {
		return err
	}
	handler, work, err := s.New(b)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s serves http://%s%s\n", name, l.Addr(), s.Page)
	return serve(ctx, l, handler, work)
}

// serve serves until the work ends. The pages answer from the beginning, also while the work waits for
// the service. Requests that came before the end are answered, if that takes no longer than limit.
func serve(ctx context.Context, l net.Listener, handler http.Handler, work func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(l)
		cancel()
	}()
	err := work(ctx)
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		err = nil
	}
	const limit = 10 * time.Second
	ending, stop := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer stop()
	if over := server.Shutdown(ending); errors.Is(over, context.DeadlineExceeded) {
		server.Close()
	} else {
		err = errors.Join(err, over)
	}
	if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	return err
}

// newBackend returns the service that the flags name.
func newBackend(kind, servers string, timeout time.Duration) (backend.Backend, error) {
	hosts := list(servers)
	switch {
	case kind == "memory" && len(hosts) == 0:
		return memory.New(&memory.Options{SessionTimeout: timeout}), nil
	case kind == "zookeeper" && len(hosts) > 0:
		return zookeeper.New(hosts, &zookeeper.Options{SessionTimeout: timeout}), nil
	case kind == "etcd" && len(hosts) > 0:
		return etcd.New(hosts, &etcd.Options{SessionTimeout: timeout}), nil
	}
	return nil, usage("-backend %q -servers %q: want memory, or zookeeper or etcd with servers", kind, servers)
}
