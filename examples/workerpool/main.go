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
	queue := newQueue(c)
	jobs := make([]Job, put)
	for i := range jobs {
		jobs[i].Number = i + 1
	}
	if _, err := queue.PutAll(ctx, jobs...); err != nil { // many in one request
		return err
	}
	return queue.Work(ctx, 2, handler(func(ctx context.Context, item *coord.Item[Job]) error {
		select {
		case <-time.After(100 * time.Millisecond): // the work
			log.Printf("job %d is done, attempt %d", item.Value.Number, item.Attempt)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}))
}

// Job is the content of the queue, as JSON.
type Job struct{ Number int }

// prefetch is for short jobs: the next ones are claimed when a handler is free for them. If the worker dies, its death counts as
// an attempt of these jobs too.
const prefetch = 4

// newQueue returns the queue. All workers and producers use the same options.
func newQueue(c *coord.Client) *coord.Queue[Job] {
	return coord.NewQueue(c, "/jobs", &coord.QueueOptions[Job]{
		MaxAttempts:  5, // then the job is a dead letter
		Prefetch:     prefetch,
		DrainTimeout: 10 * time.Second, // from SIGTERM on; then the jobs go to other workers
	})
}

var (
	errBad  = errors.New("the job cannot be done")
	errBusy = errors.New("a system that the job needs is busy")
)

// handler returns the handler for Work: the error of do decides about the job. A job is delivered again if its worker
// died, so it must be idempotent. The context ends when the claim is lost, because then another worker may have the job.
func handler(do func(context.Context, *coord.Item[Job]) error) func(context.Context, *coord.Item[Job]) error {
	return func(ctx context.Context, item *coord.Item[Job]) error {
		err := do(ctx, item)
		switch {
		case errors.Is(err, errBad):
			return coord.Bury(err) // no retry can repair it
		case errors.Is(err, errBusy):
			return coord.RetryAfter(time.Minute, err)
		}
		return err // nil: the job is removed; else it is retried after a growing delay
	}
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
