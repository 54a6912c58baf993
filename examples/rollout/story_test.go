package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

// server is a server to restart.
type server struct {
	name    string
	client  *coord.Client
	version int
}

// cluster counts the servers that are down.
type cluster struct {
	mu         sync.Mutex
	down, most int
}

func (c *cluster) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down++
	c.most = max(c.most, c.down)
}

func (c *cluster) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down--
}

// story upgrades six servers. In production each does so in a process of its own.
func story(ctx context.Context, s *service.Service) error {
	ctx, cancel := context.WithCancelCause(ctx) // canceled by the first error
	defer cancel(nil)
	var (
		servers [6]server
		state   cluster
		all     sync.WaitGroup
	)
	restart := func(ctx context.Context, srv *server) error {
		state.stop()
		defer state.start()
		s.Say(srv.name, "goes down")
		select {
		case <-time.After(150 * time.Millisecond): // the restart, and the check of its health
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		srv.version++
		s.Say(srv.name, "is up with version %d", srv.version)
		return nil
	}
	s.Say("", "%d servers are to be restarted, %d at a time.", len(servers), limit)
	for i := range servers {
		var err error
		servers[i] = server{name: fmt.Sprint("server-", i+1), version: 1}
		if servers[i].client, _, err = s.Open(ctx, servers[i].name); err != nil {
			return err
		}
	}
	for i := range servers {
		srv := &servers[i]
		all.Go(func() {
			err := upgrade(ctx, srv.client, srv.name, func(ctx context.Context) error { return restart(ctx, srv) })
			if err != nil {
				cancel(fmt.Errorf("%s: %w", srv.name, err))
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, srv := range servers {
		if srv.version != 2 {
			return fmt.Errorf("%s runs version %d", srv.name, srv.version)
		}
	}
	if state.down != 0 || state.most > limit {
		return fmt.Errorf("%d servers were down at a time, and %d are now; want at most %d, and 0", state.most, state.down, limit)
	}
	s.Say("", "All run version 2. Never more than %d were down.", state.most)
	return nil
}
