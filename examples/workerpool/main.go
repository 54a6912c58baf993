// Workerpool is a worker on a typed queue. If a worker is killed in the middle of a job, another one
// does the job.
//
//	go run ./examples/workerpool -put 10
//	go run ./examples/workerpool -put 100 -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/workerpool -backend etcd -servers host1:2379,host2:2379
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
	put := flag.Int("put", 0, "put this `number` of jobs into the queue first")
	flag.Parse()
	b, err := newBackend(*kind, *servers)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, b, *put); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// run is one worker, until ctx ends.
func run(ctx context.Context, b backend.Backend, put int) error {
	c, err := coord.Open(ctx, b, &coord.Options{Namespace: "/coord-examples/workerpool"})
	if err != nil {
		return err
	}
	defer c.Close()
	queue := coord.NewQueue[Job](c, "/jobs", nil)
	jobs := make([]Job, put)
	for i := range jobs {
		jobs[i].Number = i + 1
	}
	if _, err := queue.PutAll(ctx, jobs...); err != nil { // many in one request
		return err
	}
	return work(ctx, queue, func(ctx context.Context, item *coord.Item[Job]) error {
		select {
		case <-time.After(time.Second): // the work
			log.Printf("job %d is done, attempt %d", item.Value.Number, item.Attempt)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// Job is the content of the queue, as JSON.
type Job struct{ Number int }

// work is a worker: it takes jobs and does them, until ctx ends. A job is delivered again if
// its worker died, so a job must be idempotent.
func work(ctx context.Context, q *coord.Queue[Job], do func(context.Context, *coord.Item[Job]) error) error {
	for item, err := range q.All(ctx) {
		if err != nil {
			return err // not temporary: the client is closed, or has no permission
		}
		// The context of the job ends when the claim is lost, because then another worker may
		// have the job.
		err := do(item.Context(ctx), item)
		switch {
		case err == nil:
			err = item.Ack() // the job is done and removed
		case ctx.Err() != nil:
			err = item.Release() // the worker stops: the job has not failed
		default:
			err = item.Nack(time.Second) // the job is retried later
		}
		if err != nil && !errors.Is(err, coord.ErrLost) { // lost: another worker does it
			return err
		}
	}
	return nil
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
