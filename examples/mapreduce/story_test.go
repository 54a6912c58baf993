package main

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/examples/internal/service"
)

// story runs the workers. In production each runs in a process of its own.
func story(ctx context.Context, s *service.Service) error {
	ctx, stop := context.WithCancelCause(ctx) // canceled by the first error
	defer stop(nil)
	lines := strings.Split(strings.Repeat(text, 40), "\n")
	var done atomic.Int32
	step := func(number int) func(context.Context, string) error {
		name := fmt.Sprint("worker-", number)
		return func(ctx context.Context, what string) error {
			switch n := done.Load(); {
			case what == toReduce && n != workers:
				return fmt.Errorf("%s reduces when %d of %d have mapped", name, n, workers)
			case what == mapped:
				done.Add(1)
			}
			s.Say(name, "%s", what)
			if what == toMap { // some have more work
				select {
				case <-time.After(time.Duration(number) * 100 * time.Millisecond):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			return nil
		}
	}
	var running sync.WaitGroup
	for number := range workers {
		c, _, err := s.Open(ctx, fmt.Sprint("worker-", number))
		if err != nil {
			stop(err)
			break
		}
		running.Go(func() {
			if err := work(ctx, c, number, lines, step(number)); err != nil {
				stop(fmt.Errorf("worker-%d: %w", number, err))
			}
		})
	}
	running.Wait()
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
