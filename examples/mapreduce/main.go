// Mapreduce counts words: several workers each count a share of the lines, and when all have
// finished, each sums up a share of the words. Double barriers separate the two parts, the
// rounds.
//
//	go run ./examples/mapreduce < README.md     # all workers in this process
//	go run ./examples/mapreduce -worker 0 -backend zookeeper -servers host1:2181,host2:2181 < README.md
//	go run ./examples/mapreduce -worker 1 -backend etcd -servers host1:2379,host2:2379 < README.md
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
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
	"golang.org/x/sync/errgroup"
)

func main() {
	log.SetFlags(0)
	kind := flag.String("backend", "memory", "the service: memory, zookeeper, etcd or postgres")
	servers := flag.String("servers", "", "the servers of -backend zookeeper or etcd, as `host:port,…`, or the connection string of -backend postgres")
	worker := flag.Int("worker", all, "the number of this worker, from 0; -1: all workers in this process")
	flag.Parse()
	b, err := newBackend(*kind, *servers)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, b, *worker, os.Stdin); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

const (
	workers = 3
	all     = -1
)

// run counts the words of text as one of the workers, or as all of them.
func run(ctx context.Context, b backend.Backend, worker int, text io.Reader) error {
	if worker < all || worker >= workers {
		return fmt.Errorf("worker %d: want a number below %d", worker, workers)
	}
	read, err := io.ReadAll(text)
	if err != nil {
		return err
	}
	lines := strings.Split(string(read), "\n")
	c, err := coord.Open(ctx, b, &coord.Options{Namespace: "/coord-examples/mapreduce"})
	if err != nil {
		return err
	}
	defer c.Close()
	g, ctx := errgroup.WithContext(ctx)
	for number := range workers {
		if worker != all && worker != number {
			continue
		}
		g.Go(func() error {
			err := work(ctx, c, number, lines, func(_ context.Context, what string) error {
				log.Printf("worker-%d %s", number, what)
				return nil
			})
			if err != nil {
				return err
			}
			result, err := resultAt(c, number).Get(ctx)
			log.Printf("worker-%d has counted %v", number, result.Value)
			return err
		})
	}
	return g.Wait()
}

// The steps of a worker.
const (
	toMap    = "maps"
	mapped   = "has mapped its lines, and waits for the others"
	toReduce = "reduces"
)

// work is one worker. It calls step before each of its steps.
func work(ctx context.Context, c *coord.Client, number int, lines []string, step func(ctx context.Context, what string) error) error {
	round := coord.NewDoubleBarrier(c, "/round", workers, nil)
	err := together(ctx, round, func(ctx context.Context) error {
		if err := step(ctx, toMap); err != nil {
			return err
		}
		if err := mapLines(ctx, c, number, lines); err != nil {
			return err
		}
		return step(ctx, mapped)
	})
	if err != nil {
		return err
	}
	return together(ctx, round, func(ctx context.Context) error {
		if err := step(ctx, toReduce); err != nil {
			return err
		}
		return reduce(ctx, c, number)
	})
}

// counts is the number of occurrences of each word.
type counts map[string]int

// together runs f as one of the workers of a round: f begins when all workers have entered,
// and together returns when all have left.
func together(ctx context.Context, round *coord.DoubleBarrier, f func(context.Context) error) error {
	entry, err := round.Enter(ctx)
	if err != nil {
		return err
	}
	// If the session is lost the other workers do not wait for this one any more, so it must
	// stop: this context ends.
	if err := f(entry.Context(ctx)); err != nil {
		return errors.Join(err, entry.Release()) // leave without waiting
	}
	return entry.Leave(ctx)
}

// partAt is the value with which a mapper passes its result to a reducer.
func partAt(c *coord.Client, mapper, reducer int) *coord.Value[counts] {
	return coord.NewValue[counts](c, fmt.Sprintf("/parts/%d-%d", mapper, reducer), nil)
}

func resultAt(c *coord.Client, reducer int) *coord.Value[counts] {
	return coord.NewValue[counts](c, fmt.Sprintf("/results/%d", reducer), nil)
}

// mapLines counts every workers-th line, and sorts the words by their reducers.
func mapLines(ctx context.Context, c *coord.Client, number int, lines []string) error {
	var parts [workers]counts
	for i := range parts {
		parts[i] = make(counts)
	}
	for i := number; i < len(lines); i += workers {
		for _, word := range strings.Fields(lines[i]) {
			h := fnv.New32a()
			h.Write([]byte(word))
			parts[h.Sum32()%workers][word]++
		}
	}
	for reducer, part := range parts {
		if _, err := partAt(c, number, reducer).Set(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// reduce sums up the results of all mappers for one reducer.
func reduce(ctx context.Context, c *coord.Client, number int) error {
	sum := make(counts)
	for mapper := range workers {
		// This read sees everything that was written before the others left the round. If a
		// worker died in it, its part is missing, and this is ErrNotFound.
		part, err := partAt(c, mapper, number).Get(ctx)
		if err != nil {
			return err
		}
		for word, n := range part.Value {
			sum[word] += n
		}
	}
	_, err := resultAt(c, number).Set(ctx, sum)
	return err
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
