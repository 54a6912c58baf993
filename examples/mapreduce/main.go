// Mapreduce counts words: several workers each count a share of the lines, and when all have
// finished, each sums up a share of the words. Double barriers separate the two parts, the
// rounds.
//
//	go run ./examples/mapreduce
//	go run ./examples/mapreduce -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/mapreduce -backend etcd -servers host1:2379,host2:2379
package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

func main() { service.Main("mapreduce", story) }

const workers = 3

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
