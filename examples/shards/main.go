// Shards is a worker of several that divide twelve pieces of work among themselves. If a worker is
// killed, the others take over its pieces, and give them back when it returns.
//
//	go run ./examples/shards
//	go run ./examples/shards -name a -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/shards -name b -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/shards -name a -backend etcd -servers host1:2379,host2:2379
package main

import (
	"context"
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
	name := flag.String("name", "a", "the name of this worker")
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

// run is one worker, until ctx ends.
func run(ctx context.Context, b backend.Backend, name string) error {
	c, err := coord.Open(ctx, b, &coord.Options{Namespace: "/coord-examples/shards"})
	if err != nil {
		return err
	}
	defer c.Close()
	return work(ctx, c, name, func(ctx context.Context, sh *coord.Shard) {
		log.Printf("%s begins piece %d", name, sh.Index)
		<-ctx.Done() // the work, in steps, until the shard is to move
		log.Printf("%s ends piece %d", name, sh.Index)
	})
}

const pieces = 12

// work calls do with each piece that this worker owns, until ctx ends. do returns when its context
// ends: the piece is to move. Whatever it stores for a piece, it stores under the guard or the token
// of the shard.
func work(ctx context.Context, c *coord.Client, name string, do func(context.Context, *coord.Shard)) error {
	return coord.NewShards(c, "/pieces", pieces, &coord.ShardsOptions{ID: name}).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
		do(ctx, sh)
		return nil
	})
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
