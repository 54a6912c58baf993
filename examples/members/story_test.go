package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

// story runs three instances and a caller. In production each runs in a process of its own.
func story(ctx context.Context, s *service.Service) (err error) {
	names := []string{"east", "north", "west"}
	instances := make(map[string]*instance)
	links := make(map[string]service.Link)
	defer func() {
		for _, i := range instances {
			err = errors.Join(err, i.kill())
		}
	}()
	for _, name := range names {
		c, link, err := s.Open(ctx, name)
		if err != nil {
			return err
		}
		links[name] = link
		if instances[name], err = start(ctx, c, name); err != nil {
			delete(instances, name)
			return err
		}
	}

	following, unfollow := context.WithCancel(ctx)
	defer unfollow()
	client, _, err := s.Open(ctx, "caller")
	if err != nil {
		return err
	}
	group := coord.NewGroup[Endpoint](client, "/instances", nil)
	picker, err := group.Picker(following, coord.PickRoundRobin)
	if err != nil {
		return err
	}
	call := &caller{picker: picker, http: http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	changes := group.Watch(following)
	if err := until(ctx, s, changes, "east", "north", "west"); err != nil {
		return err
	}
	if err := answer(ctx, s, call, "east", "north", "west"); err != nil {
		return err
	}

	s.Say("north", "leaves the list")
	if err := instances["north"].stop(ctx); err != nil {
		return err
	}
	delete(instances, "north")
	if err := until(ctx, s, changes, "east", "west"); err != nil {
		return err
	}
	if err := answer(ctx, s, call, "east", "west"); err != nil {
		return err
	}
	if call.failed > 0 {
		return fmt.Errorf("%d calls failed while all instances were alive", call.failed)
	}

	s.Say("west", "is killed")
	links["west"].Partition()
	if err := instances["west"].kill(); err != nil {
		return err
	}
	delete(instances, "west")
	if err := answer(ctx, s, call, "east"); err != nil { // by the second try
		return err
	}
	if call.failed == 0 {
		return errors.New("no call went to the dead instance, which is still in the list")
	}
	s.Say("caller", "has tried the dead one %d times", call.failed)
	if err := until(ctx, s, changes, "east"); err != nil {
		return err
	}
	call.failed = 0
	if err := answer(ctx, s, call, "east"); err != nil {
		return err
	}
	if call.failed > 0 {
		return fmt.Errorf("%d calls went to an instance that is not in the list any more", call.failed)
	}
	return nil
}

// until waits until the list is want, and reports each change.
func until(ctx context.Context, s *service.Service, changes <-chan coord.GroupUpdate[Endpoint], want ...string) error {
	for {
		select {
		case m, ok := <-changes:
			if !ok || m.Err != nil {
				return fmt.Errorf("the watch has ended: %w", errors.Join(m.Err, ctx.Err()))
			}
			var ids []string
			for _, member := range m.Members {
				ids = append(ids, member.ID)
			}
			s.Say("caller", "sees the list %v", ids)
			if slices.Equal(ids, want) {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("the list is not %v: %w", want, context.Cause(ctx))
		}
	}
}

// answer makes some calls, and checks that exactly these instances answer.
func answer(ctx context.Context, s *service.Service, c *caller, want ...string) error {
	const calls = 12
	by := make(map[string]int)
	for range calls {
		name, err := c.call(ctx)
		if err != nil {
			return err
		}
		by[name]++
	}
	s.Say("caller", "makes %d calls, answered by %v", calls, by)
	if got := slices.Sorted(maps.Keys(by)); !slices.Equal(got, want) {
		return fmt.Errorf("the calls were answered by %v, want %v", got, want)
	}
	return nil
}
