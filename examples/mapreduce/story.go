package main

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

// story runs the workers. In production each runs in a process of its own.
func story(ctx context.Context, s *service.Service) error {
	ctx, stop := context.WithCancelCause(ctx) // canceled by the first error
	defer stop(nil)
	lines := strings.Split(strings.Repeat(text, 40), "\n")
	var mapped atomic.Int32
	work := func(c *coord.Client, number int) error {
		name := fmt.Sprint("worker-", number)
		round := coord.NewDoubleBarrier(c, "/round", workers, nil)
		err := together(ctx, round, func(ctx context.Context) error {
			s.Say(name, "maps")
			select {
			case <-time.After(time.Duration(number) * 100 * time.Millisecond): // some have more work
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := mapLines(ctx, c, number, lines); err != nil {
				return err
			}
			mapped.Add(1)
			s.Say(name, "has mapped its lines, and waits for the others")
			return nil
		})
		if err != nil {
			return err
		}
		return together(ctx, round, func(ctx context.Context) error {
			if n := mapped.Load(); n != workers {
				return fmt.Errorf("%s reduces when %d of %d have mapped", name, n, workers)
			}
			s.Say(name, "reduces")
			return reduce(ctx, c, number)
		})
	}
	var all sync.WaitGroup
	for number := range workers {
		c, _, err := s.Open(ctx, fmt.Sprint("worker-", number))
		if err != nil {
			stop(err)
			break
		}
		all.Go(func() {
			if err := work(c, number); err != nil {
				stop(fmt.Errorf("worker-%d: %w", number, err))
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return check(ctx, s, lines)
}

// check counts again without workers.
func check(ctx context.Context, s *service.Service, lines []string) error {
	c, _, err := s.Open(ctx, "reader")
	if err != nil {
		return err
	}
	got, want := make(counts), make(counts)
	for number := range workers {
		result, err := resultAt(c, number).Get(ctx)
		if err != nil {
			return err
		}
		maps.Copy(got, result.Value)
	}
	for _, word := range strings.Fields(strings.Join(lines, " ")) {
		want[word]++
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("counted %v, want %v", got, want)
	}
	s.Say("", "%d lines, %d different words, %d times \"the\": the same as a count without workers.", len(lines), len(got), got["the"])
	return nil
}

const text = `the lock is held by one
the others wait in line
the line is in order
one by one the others have it
`
