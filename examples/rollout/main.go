// Rollout restarts one server of a cluster. Run it once for each server, on all machines at the same time:
// a semaphore with two permits makes sure that at most two servers are down at a time.
//
//	go run ./examples/rollout
//	go run ./examples/rollout -name server-1 -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/rollout -name server-1 -backend etcd -servers host1:2379,host2:2379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
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
	name := flag.String("name", "server-1", "the name of the server to restart")
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

// run restarts one server.
func run(ctx context.Context, b backend.Backend, name string) error {
	c, err := coord.Open(ctx, b, &coord.Options{Namespace: "/coord-examples/rollout"})
	if err != nil {
		return err
	}
	defer c.Close()
	return upgrade(ctx, c, name, func(ctx context.Context) error {
		log.Printf("%s goes down", name)
		select {
		case <-time.After(time.Second): // the restart, and the check of its health
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		log.Printf("%s is up", name)
		return nil
	})
}

// limit is the number of servers that may be down at a time. The service stores it: a client
// that uses another limit is refused with ErrLimit, so two versions of this program cannot
// exceed it together.
const limit = 2

// upgrade restarts a server when it has a permit.
func upgrade(ctx context.Context, c *coord.Client, name string, restart func(context.Context) error) error {
	permits := coord.NewSemaphore(c, "/restarts", limit, &coord.SemaphoreOptions{Data: []byte(name)})
	permit, err := permits.Acquire(ctx, 1)
	if err != nil {
		return err
	}
	// If the permit is lost, another server may go down, so this upgrade must not begin a
	// further step. The context ends then.
	err = restart(permit.Context(ctx))
	return errors.Join(err, permit.Release())
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
