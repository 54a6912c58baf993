package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// cacheGroup measures the time until a cache has a subtree.
func cacheGroup(e *env, p *peers, sizes []int) *group {
	g := &group{
		name:  "caches",
		about: "The time until a cache has a subtree of that many nodes of 100 bytes, in directories of 100, for the first time.",
		shown: []metric{mTime, mPackets},
	}
	for _, n := range sizes {
		cost := 200*time.Millisecond + time.Duration(n)*200*time.Microsecond
		for _, at := range []*place{e.memory, e.direct} {
			t := &tree{n: n, p: at}
			g.add("sync", byCoord, at.where, cost, func(ctx context.Context) (sample, error) {
				c, path, err := t.get(ctx, e)
				if err != nil {
					return nil, err
				}
				return syncCache(e.metered(ctx, at.where), c, path, n)
			}).at("nodes", float64(n))
			if at == e.memory {
				continue
			}
			for _, f := range []*foreign{p.curator, p.kazoo} {
				if f == nil {
					continue
				}
				g.add("sync", f.name, at.where, cost, func(ctx context.Context) (sample, error) {
					_, path, err := t.get(ctx, e)
					if err != nil {
						return nil, err
					}
					metered := startMeter(e.metered(ctx, at.where))
					figures, err := f.ask(ctx, "cache", servers(at), e.root+path)
					if err != nil || len(figures) != 1 {
						return nil, err
					}
					s := sample{mTime: millis(time.Duration(figures[0]))}
					metered(s, 1)
					return s, nil
				}).at("nodes", float64(n))
			}
		}
	}
	return g
}

// A tree is made once for all rounds.
type tree struct {
	n    int
	p    *place
	once sync.Once
	c    *coord.Client
	path string
	err  error
}

func (t *tree) get(ctx context.Context, e *env) (*coord.Client, string, error) {
	t.once.Do(func() {
		if t.c, t.err = t.p.client(ctx); t.err != nil {
			return
		}
		t.path = e.path()
		t.err = t.grow(ctx)
	})
	return t.c, t.path, t.err
}

// grow makes the root, and directories with n nodes below it.
func (t *tree) grow(ctx context.Context) error {
	s, err := t.c.Session(ctx)
	if err != nil {
		return err
	}
	// The namespace may not exist yet on memory.
	v := coord.NewValue(t.c, t.path, &coord.ValueOptions[string]{Codec: coord.Text()})
	if _, err := v.Set(ctx, payload); err != nil {
		return err
	}
	const wide = 100
	root := t.p.root + t.path
	return atOnce((t.n+wide-1)/wide, func(d int) error {
		dir := fmt.Sprintf("%s/d%03d", root, d)
		ops := []backend.Op{backend.Create(dir, []byte(payload), backend.Persistent)}
		for i := 1; i < min(wide, t.n-d*wide); i++ {
			ops = append(ops, backend.Create(fmt.Sprintf("%s/n%03d", dir, i), []byte(payload), backend.Persistent))
		}
		_, err := s.Commit(ctx, ops...)
		return err
	})
}

// syncCache runs a cache until it has the subtree.
func syncCache(ctx context.Context, c *coord.Client, path string, n int) (sample, error) {
	life, cancel := context.WithCancel(ctx)
	cache := coord.NewCache(c, path, nil)
	ended := make(chan error, 1)
	metered := startMeter(ctx)
	began := time.Now()
	go func() { ended <- cache.Run(life) }()
	var err error
	select {
	case <-cache.Synced():
	case err = <-ended:
		cancel()
		return nil, fmt.Errorf("the cache ended: %w", err)
	}
	took := time.Since(began)
	if got := cache.Len(); got != n+1 {
		err = fmt.Errorf("the cache has %d nodes, want %d", got, n+1)
	}
	s := sample{mTime: millis(took)}
	metered(s, 1)
	cancel()
	<-ended
	return s, err
}
