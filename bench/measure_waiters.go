package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/go-coord/coord"
)

// waitersGroup measures the cost of a release with growing numbers of waiters, each a client
// with a session of its own.
func waitersGroup(e *env, crowd *place, p *peers, counts []int) *group {
	g := &group{
		name: "waiters",
		about: "Clients wait for one lock, each with a session. One of them releases it, and all traffic between them and the servers is counted until it ends: " +
			"watch events, clients that get one, except the one that releases, and requests. The time is that of the hand-over.",
		shown: []metric{mEvents, mWoken, mRequests, mP50},
		exact: true,
	}
	whos := []*contestant{ours}
	if p.all != nil {
		whos = append(whos, goZK)
	}
	for _, n := range counts {
		for _, who := range whos {
			g.add("release with others waiting", who.who, who.where, time.Second+time.Duration(n)*8*time.Millisecond,
				func(ctx context.Context) (sample, error) { return e.releases(ctx, crowd, who, n) }).at("waiters", float64(n))
		}
	}
	return g
}

// releases makes n clients wait for a lock, and counts the traffic of one release.
func (e *env) releases(ctx context.Context, p *place, who *contestant, n int) (_ sample, err error) {
	// Two releases come before the counted one: the waiters that queued behind the first
	// holder know more than the others.
	const before = 2
	conns, err := p.conns(ctx, who, n+1+before)
	if err != nil {
		return nil, err
	}
	path := e.root + e.path()
	life, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	granted := make(chan func() error)
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, c := range conns {
		lock, err := c.locker(ctx, path, 0)
		if err != nil {
			return nil, err
		}
		wg.Go(func() {
			release, err := lock(life)
			if err != nil {
				cancel(err)
				return
			}
			select {
			case granted <- release:
			case <-life.Done():
				_ = release() // the run has failed already
			}
		})
	}
	next := func() (release func() error, err error) {
		select {
		case release := <-granted:
			return release, nil
		case <-life.Done():
			return nil, context.Cause(life)
		}
	}
	release, err := next()
	if err != nil {
		cancel(err)
		return nil, err
	}
	for { // until all are queued
		names, _, err := e.raw.Children(path)
		if err == nil && len(names) >= len(conns) {
			break
		}
		if err := sleep(life, 10*time.Millisecond); err != nil {
			cancel(err)
			return nil, err
		}
	}
	err = p.settle(life)
	for range before {
		if err == nil {
			err = release()
		}
		if err == nil {
			release, err = next()
		}
		if err == nil {
			err = p.settle(life)
		}
	}
	if err != nil {
		cancel(err)
		return nil, err
	}
	p.tally.reset()
	began := time.Now()
	released := make(chan error, 1)
	go func(release func() error) { released <- release() }(release)
	release, err = next()
	took := time.Since(began)
	if rerr := <-released; err == nil {
		err = rerr
	}
	if err == nil {
		err = p.settle(life)
	}
	if err != nil {
		cancel(err)
		return nil, err
	}
	t := p.tally.get()
	s := sample{mEvents: float64(t.wakeUps), mWoken: float64(t.woken), mRequests: float64(t.requests), mP50: micros(took)}
	for range n - 1 { // the others, one after the other
		if err := release(); err != nil {
			cancel(err)
			return nil, err
		}
		if release, err = next(); err != nil {
			return nil, err
		}
	}
	return s, release()
}

// memoryGroup measures the memory of waiters in this process while they wait.
func memoryGroup(e *env, waiters int) *group {
	g := &group{
		name:  "memory",
		about: fmt.Sprintf("Heap and stacks of this process for each of %d waiters of one client.", waiters),
		shown: []metric{mMemory},
	}
	for _, p := range []*place{e.memory, e.direct} {
		cost := time.Second + time.Duration(waiters)*time.Millisecond
		g.add("waiting for one lock, in the process", byCoord, p.where, cost, func(ctx context.Context) (sample, error) {
			return e.waitersMemory(ctx, p, waiters, func(int) string { return "" })
		})
		g.add("waiting for a lock each, in line", byCoord, p.where, cost, func(ctx context.Context) (sample, error) {
			return e.waitersMemory(ctx, p, waiters, func(i int) string { return fmt.Sprintf("/%04d", i) })
		})
	}
	return g
}

// waitersMemory makes one client hold locks and callers of another wait for them.
func (e *env) waitersMemory(ctx context.Context, p *place, n int, suffix func(int) string) (_ sample, err error) {
	clients, err := p.coords(ctx, 2)
	if err != nil {
		return nil, err
	}
	base := e.path()
	var (
		holds = make(map[string]*coord.Hold)
		mu    sync.Mutex
	)
	defer func() {
		for _, h := range holds {
			err = errors.Join(err, h.Release())
		}
	}()
	err = atOnce(n, func(i int) error {
		path := base + suffix(i)
		mu.Lock()
		_, ok := holds[path]
		mu.Unlock()
		if ok || suffix(i) == "" && i > 0 {
			return nil
		}
		h, err := coord.NewMutex(clients[0], path, nil).Lock(ctx)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			holds[path] = h
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	before := inUse()
	life, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range n {
		m := coord.NewMutex(clients[1], base+suffix(i), nil)
		wg.Go(func() {
			if h, err := m.Lock(life); err == nil {
				h.Release()
			}
		})
	}
	// All callers are waiting when the memory does not grow any more, but for what the clients of other
	// cells do meanwhile.
	var after, last int64
	for same := 0; same < 3; {
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
		after = inUse()
		if d, most := after-last, max(int64(n), (after-before)/100); d < most && d > -most {
			same++
		} else {
			same = 0
		}
		last = after
	}
	return sample{mMemory: float64(after-before) / float64(n)}, nil
}

// inUse returns the memory of reachable objects and of stacks.
func inUse() int64 {
	m := collected()
	return int64(m.HeapAlloc + m.StackInuse)
}

// collected returns the state of the memory after a collection. What a sync.Pool holds goes
// with the second one.
func collected() *runtime.MemStats {
	runtime.GC()
	runtime.GC()
	m := new(runtime.MemStats)
	runtime.ReadMemStats(m)
	return m
}
