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

// cluster is the story's record of all replicas.
type cluster struct {
	s    *service.Service
	runs chan turn

	mu   sync.Mutex
	term *coord.Term // the latest term
	by   string      // its replica
}

// turn is one run of the job.
type turn struct {
	by     string
	number int
}

// story runs three replicas. In production each runs in a process of its own.
func story(ctx context.Context, s *service.Service) error {
	ctx, fail := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer fail(nil)
	cl := &cluster{s: s, runs: make(chan turn, 1000)}
	links := make(map[string]service.Link)
	stops := make(map[string]context.CancelFunc)
	for _, name := range []string{"alpha", "beta", "gamma"} {
		c, link, err := s.Open(ctx, name)
		if err != nil {
			return err
		}
		r := &replica{name: name, client: c, every: 50 * time.Millisecond}
		r.leads = func(t *coord.Term) error { return cl.leads(name, t) }
		r.job = func(number int) { cl.runs <- turn{name, number} }
		mine, stop := context.WithCancel(ctx)
		links[name], stops[name] = link, stop
		all.Go(func() {
			if err := r.run(mine); err != nil {
				fail(fmt.Errorf("%s: %w", name, err))
			}
		})
	}

	first, err := cl.watch(ctx, turn{})
	if err != nil {
		return err
	}
	s.Say(first.by, "is cut off")
	cl.mu.Lock()
	term := cl.term
	cl.mu.Unlock()
	links[first.by].Partition()
	select {
	case <-term.Done():
	case <-ctx.Done():
		return fmt.Errorf("the term of %s did not end: %w", first.by, context.Cause(ctx))
	}
	s.Say(first.by, "stops by itself: %v", term.Err())
	second, err := cl.watch(ctx, first)
	if err != nil {
		return err
	}

	links[first.by].Heal()
	s.Say(first.by, "is back, and waits in the queue")
	s.Say(second.by, "is stopped, and resigns")
	stops[second.by]()
	_, err = cl.watch(ctx, second)
	return err
}

// leads is called at the beginning of each term. The previous term must have ended.
func (cl *cluster) leads(name string, t *coord.Term) error {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if before := cl.term; before != nil {
		switch {
		case before.Err() == nil:
			return fmt.Errorf("%s leads while %s does", name, cl.by)
		case t.Token() <= before.Token():
			return fmt.Errorf("%s leads with token %d after token %d", name, t.Token(), before.Token())
		}
	}
	cl.term, cl.by = t, name
	cl.s.Say(name, "leads")
	return nil
}

// watch waits until a replica other than the previous one has run the job some times, and
// returns its latest run. No number may occur twice.
func (cl *cluster) watch(ctx context.Context, before turn) (turn, error) {
	last := before
	for times := 0; times < 3; {
		select {
		case r := <-cl.runs:
			if r.number <= last.number {
				return r, fmt.Errorf("%s does run %d after run %d", r.by, r.number, last.number)
			}
			last = r
			if r.by != before.by {
				times++
				cl.s.Say(r.by, "does run %d", r.number)
			}
		case <-ctx.Done():
			return last, errors.Join(fmt.Errorf("no replica runs the job after run %d of %q", last.number, last.by), context.Cause(ctx))
		}
	}
	return last, nil
}
