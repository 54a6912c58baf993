package main

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/go-coord/coord/examples/internal/service"
)

// story runs three workers. In production each runs in a process of its own.
func story(ctx context.Context, s *service.Service) error {
	b := newBoard()
	working, stop := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop(nil)
	start := func(name string) (service.Link, error) {
		c, link, err := s.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		all.Go(func() {
			if err := work(working, c, name, b); err != nil {
				stop(fmt.Errorf("%s: %w", name, err))
			}
		})
		return link, nil
	}
	show := func(workers ...string) (map[int]string, error) {
		owner, err := b.await(working, workers...)
		for _, name := range workers {
			if err == nil {
				s.Say(name, "owns %v", piecesOf(owner, name))
			}
		}
		return owner, err
	}

	links := make(map[string]service.Link)
	var workers []string
	var before map[int]string
	for _, name := range []string{"worker-1", "worker-2", "worker-3"} {
		var err error
		if links[name], err = start(name); err != nil {
			return err
		}
		s.Say(name, "comes")
		workers = append(workers, name)
		if before, err = show(workers...); err != nil {
			return err
		}
	}

	links["worker-2"].Partition()
	s.Say("worker-2", "is killed")
	if _, err := show("worker-1", "worker-3"); err != nil {
		return err
	}
	links["worker-2"].Heal()
	s.Say("worker-2", "is back")
	after, err := show(workers...)
	if err != nil {
		return err
	}
	if !maps.Equal(before, after) {
		return fmt.Errorf("the owners are %v, want %v", after, before)
	}
	s.Say("", "Each worker owns the same pieces as before.")
	return nil
}
