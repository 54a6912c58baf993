// Config is a program that follows a configuration. A change reaches all such programs at once. A bad
// configuration changes nothing. A program that missed a change gets the latest configuration
// when it has contact again.
//
//	go run ./examples/config -workers 4        # sets the configuration first
//	go run ./examples/config -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/config -backend etcd -servers host1:2379,host2:2379 -workers 8
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
	workers := flag.Int("workers", 0, "set the configuration to this `number` of workers first")
	flag.Parse()
	b, err := newBackend(*kind, *servers)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, b, *workers); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// run is the program: it follows the configuration until ctx ends.
func run(ctx context.Context, b backend.Backend, workers int) error {
	c, err := coord.Open(ctx, b, &coord.Options{Namespace: "/coord-examples/config"})
	if err != nil {
		return err
	}
	defer c.Close()
	v := coord.NewValue[Config](c, "/config", nil)
	if workers != 0 {
		if _, err := v.Set(ctx, Config{Level: "info", Workers: workers}); err != nil {
			return err
		}
	}
	return follow(ctx, v,
		func(cfg Config) { log.Printf("applies %+v", cfg) },
		func(err error) { log.Printf("keeps its configuration: %v", err) })
}

// Config is the content of the node, as JSON.
type Config struct {
	Level   string
	Workers int
}

// follow calls apply with the present configuration and then with every change, until ctx
// ends. An unusable configuration changes nothing, and is reported to refused.
func follow(ctx context.Context, v *coord.Value[Config], apply func(Config), refused func(error)) error {
	for e := range v.Watch(ctx) {
		switch {
		case e.Err == nil && e.Value.Workers < 1: // JSON cannot check this
			refused(fmt.Errorf("%d workers", e.Value.Workers))
		case e.Err == nil:
			apply(e.Value)
		case errors.Is(e.Err, coord.ErrNotFound), errors.Is(e.Err, coord.ErrDecode):
			refused(e.Err) // the node is missing or invalid; the watch continues
		default:
			return e.Err // the last element: the watch has ended
		}
	}
	return ctx.Err()
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
