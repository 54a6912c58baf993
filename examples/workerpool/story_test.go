package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

const jobs = 30

// story runs three workers. In production each runs in a process of its own.
func story(ctx context.Context, s *service.Service) error {
	boss, _, err := s.Open(ctx, "boss")
	if err != nil {
		return err
	}
	queue := newQueue(boss)
	all := make([]Job, jobs)
	for i := range all {
		all[i].Number = i + 1
	}
	if _, err := queue.PutAll(ctx, all...); err != nil { // many in one request
		return err
	}
	s.Say("boss", "puts %d jobs into the queue", jobs)

	working, stop := context.WithCancelCause(ctx)
	var pool sync.WaitGroup
	defer pool.Wait()
	defer stop(nil)
	start := func(name string, do func(context.Context, *coord.Item[Job]) error) (service.Link, error) {
		c, link, err := s.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		q := newQueue(c)
		pool.Go(func() {
			if err := q.Work(working, 1, handler(do)); err != nil {
				stop(fmt.Errorf("%s: %w", name, err))
			}
		})
		return link, nil
	}

	taken := make(chan *coord.Item[Job], jobs)
	link, err := start("worker-1", func(ctx context.Context, item *coord.Item[Job]) error {
		taken <- item
		select { // a long job
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-working.Done():
			return working.Err()
		}
	})
	if err != nil {
		return err
	}
	var victim *coord.Item[Job]
	select {
	case victim = <-taken:
	case <-working.Done():
		return fmt.Errorf("worker-1 takes nothing: %w", context.Cause(working))
	}
	s.Say("worker-1", "takes job %d", victim.Value.Number)

	done := make(chan *coord.Item[Job], 2*jobs)
	for _, name := range []string{"worker-2", "worker-3"} {
		_, err := start(name, func(ctx context.Context, item *coord.Item[Job]) error {
			if item.Attempt > 1 {
				s.Say(name, "takes job %d, attempt %d", item.Value.Number, item.Attempt)
			}
			select {
			case <-time.After(10 * time.Millisecond): // the work
				done <- item
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil {
			return err
		}
	}
	link.Partition()
	s.Say("worker-1", "is killed in the middle of job %d", victim.Value.Number)

	times := make(map[int]int)
	for len(times) < jobs {
		select {
		case item := <-done:
			n, attempts := item.Value.Number, 1
			if times[n]++; n <= prefetch { // worker-1 had claimed it
				attempts = 2
			}
			if times[n] != 1 || item.Attempt != attempts {
				return fmt.Errorf("job %d was done %d times, at attempt %d, want once at attempt %d", n, times[n], item.Attempt, attempts)
			}
			if len(times) == jobs-prefetch && times[victim.Value.Number] == 0 {
				s.Say("", "All other jobs are done. The claims of worker-1 stand until its session ends.")
			}
		case <-working.Done():
			return fmt.Errorf("%d of %d jobs are done: %w", len(times), jobs, context.Cause(working))
		}
	}
	if !errors.Is(victim.Err(), coord.ErrLost) {
		return fmt.Errorf("the claim of worker-1 ended with %v, want a loss", victim.Err())
	}
	stop(nil)
	pool.Wait() // the last Ack has returned
	if n, err := queue.Len(ctx); err != nil || n != 0 {
		return fmt.Errorf("%d jobs are left, error %v", n, err)
	}
	s.Say("", "%d jobs, each done once, and none is left.", len(times))
	return nil
}
