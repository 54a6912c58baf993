// Singleton is a job that runs at regular times, once in a whole cluster: the leader of an
// election runs it. When the leader is cut off, or stops, another replica continues.
//
//	go run ./examples/singleton
//	go run ./examples/singleton -name a -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/singleton -name b -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/singleton -name a -backend etcd -servers host1:2379,host2:2379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
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
	name := flag.String("name", "a", "the name of this replica")
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

// run is one replica, until ctx ends.
func run(ctx context.Context, b backend.Backend, name string) error {
	c, err := coord.Open(ctx, b, &coord.Options{Namespace: "/coord-examples/singleton"})
	if err != nil {
		return err
	}
	defer c.Close()
	r := &replica{
		name:   name,
		client: c,
		every:  time.Second,
		leads: func(t *coord.Term) error {
			log.Printf("%s leads with token %d", name, t.Token())
			return nil
		},
		job: func(number int) { log.Printf("%s does run %d", name, number) },
	}
	return r.run(ctx)
}

// replica is one of the programs in the cluster. It campaigns until ctx ends.
type replica struct {
	name   string
	client *coord.Client
	every  time.Duration
	leads  func(t *coord.Term) error
	job    func(run int)
}

func (r *replica) run(ctx context.Context) error {
	// The value holds the number of the latest run. The first replica creates it.
	_, err := r.last().CompareAndSet(ctx, coord.Versioned[int]{}, 0)
	if err != nil && !errors.Is(err, coord.ErrConflict) {
		return err
	}
	e := coord.NewElection(r.client, "/leader", &coord.ElectionOptions{ID: r.name})
	err = e.Run(ctx, r.lead) // campaigns again when a term was lost
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil // the replica was stopped
	}
	return err
}

func (r *replica) last() *coord.Value[int] {
	return coord.NewValue[int](r.client, "/last-run", nil)
}

// lead runs the job from time to time until ctx ends, which is when the term ends.
func (r *replica) lead(ctx context.Context, t *coord.Term) error {
	if err := r.leads(t); err != nil {
		return err
	}
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		// This read sees everything that earlier leaders have written.
		last, err := r.last().Get(ctx)
		if err != nil {
			return err
		}
		// A process can be paused right here, and another one may lead when it resumes. So
		// the run is written down before it is done, in a transaction that is refused if the
		// term is over. A job that may run twice, but must not be skipped, would be written
		// down afterwards.
		run := last.Value + 1
		_, err = coord.NewTxn(r.client).Under(t.Guard()).Set("/last-run", []byte(strconv.Itoa(run))).Commit(ctx)
		if errors.Is(err, coord.ErrConflict) {
			err = errors.Join(err, t.Verify(ctx)) // ends the term here, if its loss was not noticed yet
		}
		if err != nil {
			return fmt.Errorf("run %d: %w", run, err)
		}
		r.job(run)
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
