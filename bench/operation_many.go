package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord"
)

// openTwoPhase makes sites serve transactions at path, spread over the clients, and returns a
// caller that proposes to all of them.
func openTwoPhase(ctx context.Context, clients []*coord.Client, path string, sites int) (*caller, error) {
	co := coord.NewCoordinator(clients[0], path, &coord.CoordinatorOptions[string]{Codec: coord.Text()})
	yes := func(context.Context, coord.Branch[string]) error { return nil }
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var (
		serving sync.WaitGroup
		names   []string
		failed  = make(chan error, sites)
	)
	for i := range sites {
		name := fmt.Sprintf("site-%02d", i)
		names = append(names, name)
		p := coord.NewParticipant(clients[i%len(clients)], path, name,
			coord.Handler[string]{Prepare: yes, Commit: yes, Abort: yes, Codec: coord.Text()})
		serving.Go(func() {
			if err := p.Serve(life); life.Err() == nil {
				failed <- err
			}
		})
	}
	var n int
	propose := func(ctx context.Context) error {
		n++
		d, err := co.Propose(ctx, coord.Proposal[string]{ID: fmt.Sprintf("t%07d", n), Sites: names, Payload: payload})
		if err == nil && !d.Commit {
			err = fmt.Errorf("transaction %s was aborted: %s", d.ID, d.Reason)
		}
		select {
		case serr := <-failed:
			return errors.Join(err, serr)
		default:
			return err
		}
	}
	x := &caller{
		steps: []step{propose},
		close: func() error {
			cancel()
			serving.Wait()
			return nil
		},
	}
	// A proposal to a site is possible once it was served, for which there is no signal.
	for {
		err := propose(ctx)
		if !errors.Is(err, coord.ErrNotFound) {
			if err != nil {
				return nil, errors.Join(err, x.Close())
			}
			return x, nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return nil, errors.Join(err, x.Close())
		}
	}
}

// openCache follows one node, which every step changes; the step waits for the change to
// show.
func openCache(ctx context.Context, c *coord.Client, path string) (*caller, error) {
	s, end, err := follow(ctx, c, path)
	if err != nil {
		return nil, err
	}
	return &caller{
		steps: []step{func(ctx context.Context) error {
			set, err := s.value.Set(ctx, payload)
			if err != nil {
				return err
			}
			for {
				select {
				case <-s.changed:
				case err := <-s.ended:
					return fmt.Errorf("the cache has ended: %w", err)
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				if s.seen.Load() >= set.Mzxid {
					return nil
				}
			}
		}},
		close: end,
	}, nil
}

// openCacheRead reads a node of a cache repeatedly.
func openCacheRead(ctx context.Context, c *coord.Client, path string) (*caller, error) {
	s, end, err := follow(ctx, c, path)
	if err != nil {
		return nil, err
	}
	return &caller{
		steps: []step{func(context.Context) error {
			if _, ok := s.cache.Get(path); !ok {
				return errors.New("the node is not in the cache")
			}
			return nil
		}},
		close: end,
	}, nil
}

// follower is a cache of one node.
type follower struct {
	cache   *coord.Cache
	value   *coord.Value[string]
	seen    atomic.Int64
	changed chan struct{} // capacity 1
	ended   chan error
}

func follow(ctx context.Context, c *coord.Client, path string) (*follower, func() error, error) {
	v := coord.NewValue(c, path, &coord.ValueOptions[string]{Codec: coord.Text()})
	if _, err := v.Set(ctx, payload); err != nil {
		return nil, nil, err
	}
	f := &follower{cache: coord.NewCache(c, path, nil), value: v, changed: make(chan struct{}, 1), ended: make(chan error, 1)}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	work.Go(func() { f.ended <- f.cache.Run(life) })
	work.Go(func() {
		for batch, err := range f.cache.Events(life) {
			if err != nil {
				return
			}
			for _, e := range batch {
				f.seen.Store(e.Node.Stat.Mzxid)
			}
			select {
			case f.changed <- struct{}{}:
			default:
			}
		}
	})
	end := func() error {
		cancel()
		work.Wait()
		return nil
	}
	select {
	case <-f.cache.Synced():
	case err := <-f.ended:
		end()
		return nil, nil, fmt.Errorf("the cache did not sync: %w", err)
	case <-ctx.Done():
		end()
		return nil, nil, context.Cause(ctx)
	}
	return f, end, nil
}
