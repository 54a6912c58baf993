// Members is an instance of a service. It registers its address, and calls one of the registered
// instances every second. An instance that stops leaves the list first; one that is killed is in
// the list until its session ends, and a caller tries another one meanwhile.
//
//	go run ./examples/members
//	go run ./examples/members -name a -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/members -name b -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/members -name a -backend etcd -servers host1:2379,host2:2379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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
)

func main() {
	log.SetFlags(0)
	kind := flag.String("backend", "memory", "the service: memory, zookeeper, etcd or postgres")
	servers := flag.String("servers", "", "the servers of -backend zookeeper or etcd, as `host:port,…`, or the connection string of -backend postgres")
	name := flag.String("name", "a", "the name of this instance")
	flag.Parse()
	b, err := newBackend(*kind, *servers)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, b, *name); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// run is one instance, until ctx ends.
func run(ctx context.Context, b backend.Backend, name string) error {
	c, err := coord.Open(ctx, b, &coord.Options{Namespace: "/coord-examples/members"})
	if err != nil {
		return err
	}
	defer c.Close()
	i, err := start(ctx, c, name)
	if err != nil {
		return err
	}
	return errors.Join(callAll(ctx, c, name), i.stop(context.WithoutCancel(ctx)))
}

// callAll calls one instance every second.
func callAll(ctx context.Context, c *coord.Client, name string) error {
	picker, err := coord.NewGroup[Endpoint](c, "/instances", nil).Picker(ctx, coord.PickRoundRobin)
	if err != nil {
		return err
	}
	calls := &caller{picker: picker, http: http.Client{Timeout: 10 * time.Second}}
	defer calls.http.CloseIdleConnections()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		answer, err := calls.call(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			log.Printf("%s is not answered: %v", name, err)
		default:
			log.Printf("%s is answered by %s", name, answer)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Endpoint is the data that an instance publishes.
type Endpoint struct{ Address string }

// An instance serves HTTP on an address that it has registered.
type instance struct {
	name   string
	http   *http.Server
	member *coord.Membership[Endpoint]
	served chan error
}

func start(ctx context.Context, c *coord.Client, name string) (*instance, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	handler := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) }
	i := &instance{name: name, http: &http.Server{Handler: http.HandlerFunc(handler)}, served: make(chan error, 1)}
	go func() { i.served <- i.http.Serve(listener) }()
	// Register last: an instance in the list can be called. The membership maintains itself
	// from now on, also when the session is lost and replaced.
	group := coord.NewGroup[Endpoint](c, "/instances", nil)
	i.member, err = group.Join(ctx, name, Endpoint{listener.Addr().String()})
	if err != nil {
		return nil, errors.Join(err, i.kill())
	}
	return i, nil
}

// stop leaves the list first, and then finishes the calls under way.
func (i *instance) stop(ctx context.Context) error {
	err := i.member.Leave()
	// A caller may have picked this instance just before the change of the list.
	select {
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
	}
	err = errors.Join(err, i.http.Shutdown(ctx))
	<-i.served
	return err
}

// kill ends the instance as SIGKILL ends a process, without leaving.
func (i *instance) kill() error {
	err := i.http.Close()
	<-i.served
	return err
}

// A caller calls the instances in turn.
type caller struct {
	http   http.Client
	picker *coord.Picker[Endpoint]
	failed int
}

// call tries another instance if one does not answer: a dead instance is in the list until
// the service has noticed, which takes the session timeout.
func (c *caller) call(ctx context.Context) (answer string, failed error) {
	for range 3 {
		m, err := c.picker.Next(ctx) // waits while there is none
		if err != nil {
			return "", err
		}
		if answer, err = c.get(ctx, "http://"+m.Value.Address); err == nil {
			return answer, nil
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", m.ID, err))
		c.failed++
	}
	return "", failed
}

func (c *caller) get(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// newBackend returns the service that the flags name. A service in memory serves this process only.
func newBackend(kind, servers string) (backend.Backend, error) {
	list := strings.Split(servers, ",")
	switch kind {
	case "memory":
		return memory.New(nil), nil
	case "zookeeper":
		return zookeeper.New(list, nil), nil
	case "etcd":
		return etcd.New(list, nil), nil
	case "postgres":
		return postgres.New(servers, nil), nil
	}
	return nil, fmt.Errorf("-backend %q: want memory, zookeeper, etcd or postgres", kind)
}
