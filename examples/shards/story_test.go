package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/go-coord/coord"
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
			err := work(working, c, name, func(ctx context.Context, sh *coord.Shard) {
				b.begins(name, sh)
				<-ctx.Done()
				b.ends(name, sh)
			})
			if err != nil {
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

// board has the owner of each piece.
type board struct {
	mu      sync.Mutex
	owner   map[int]string
	changed chan struct{}
}

func newBoard() *board { return &board{owner: make(map[int]string), changed: make(chan struct{})} }

func (b *board) begins(name string, sh *coord.Shard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owner[sh.Index] = name
	b.tell()
}

func (b *board) ends(name string, sh *coord.Shard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owner[sh.Index] == name {
		delete(b.owner, sh.Index)
		b.tell()
	}
}

func (b *board) tell() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// await waits until the workers own all pieces, each as many as the others, and returns the owners.
func (b *board) await(ctx context.Context, workers ...string) (map[int]string, error) {
	for {
		b.mu.Lock()
		owner, changed := maps.Clone(b.owner), b.changed
		b.mu.Unlock()
		even := len(owner) == pieces
		for _, name := range workers {
			even = even && len(piecesOf(owner, name)) == pieces/len(workers)
		}
		if even {
			return owner, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("the workers %s do not own %d pieces each: %w", strings.Join(workers, " and "), pieces/len(workers), context.Cause(ctx))
		}
	}
}

func piecesOf(owner map[int]string, name string) (list []int) {
	for _, i := range slices.Sorted(maps.Keys(owner)) {
		if owner[i] == name {
			list = append(list, i)
		}
	}
	return list
}
