package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/zkproxy"
)

// A place is a service for clients: the memory backend, the servers, or the servers behind
// proxies that add delay and count. It keeps the clients of earlier cells for later ones.
type place struct {
	where   string
	root    string
	store   *memory.Store // nil for a service with addresses
	addrs   []string
	proxies []*zkproxy.Proxy
	oneWay  time.Duration
	tally   tally

	mu    sync.Mutex
	pools map[string][]connection // by who and where
}

// A connection is a client of a contestant, with one session or its equivalent.
type connection interface {
	// locker returns a caller's access to the lock at an absolute path. Two callers of one
	// path need one each, with different numbers.
	locker(ctx context.Context, path string, caller int) (locker, error)
	Close() error
}

// A locker acquires a lock, and returns a function that releases it.
type locker func(ctx context.Context) (release func() error, err error)

// A contestant is a library with clients in this process.
type contestant struct {
	who   string
	where string // its service
	// dial opens the i-th client of a place. The clients of all contestants with the same
	// number are connected to the same server: it matters whether that is the leader.
	dial func(ctx context.Context, p *place, i int, timeout time.Duration) (connection, error)
}

// newDistantPlace puts a proxy in front of every server.
func newDistantPlace(root string, addrs []string, oneWay time.Duration) (*place, error) {
	p := &place{where: fmt.Sprintf("%s, %v each way", onZooKeeper, oneWay), root: root, oneWay: oneWay}
	p.tally.oneWay = oneWay
	p.tally.reset()
	for i, a := range addrs {
		x, err := zkproxy.New(a)
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		x.SetDelay(oneWay, oneWay)
		x.OnFrame(func(f zkproxy.Frame) { p.tally.frame(i, f, time.Now()) })
		p.proxies = append(p.proxies, x)
		p.addrs = append(p.addrs, x.Addr())
	}
	return p, nil
}

// partition cuts the place off from its servers: neither side is notified.
func (p *place) partition() {
	for _, x := range p.proxies {
		x.Blackhole(true)
	}
}

// conns returns the first n clients of a contestant.
func (p *place) conns(ctx context.Context, who *contestant, n int) ([]connection, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pools == nil {
		p.pools = make(map[string][]connection)
	}
	key := who.who + " on " + who.where
	for len(p.pools[key]) < n {
		c, err := who.dial(ctx, p, len(p.pools[key]), sessionTimeout)
		if err != nil {
			return nil, fmt.Errorf("open client %d of %s: %w", len(p.pools[key])+1, key, err)
		}
		p.pools[key] = append(p.pools[key], c)
	}
	return p.pools[key][:n:n], nil
}

// coords returns the first n clients of coord.
func (p *place) coords(ctx context.Context, n int) ([]*coord.Client, error) {
	conns, err := p.conns(ctx, ours, n)
	if err != nil {
		return nil, err
	}
	clients := make([]*coord.Client, n)
	for i, c := range conns {
		clients[i] = c.(*coordConn).c
	}
	return clients, nil
}

// client returns the first client of coord.
func (p *place) client(ctx context.Context) (*coord.Client, error) {
	cs, err := p.coords(ctx, 1)
	if err != nil {
		return nil, err
	}
	return cs[0], nil
}

// Close ends the clients and the proxies.
func (p *place) Close() error {
	p.mu.Lock()
	pools := p.pools
	p.pools = nil
	p.mu.Unlock()
	var all []connection
	for _, conns := range pools {
		all = append(all, conns...)
	}
	err := closeAll(all)
	for _, x := range p.proxies {
		err = errors.Join(err, x.Close())
	}
	return err
}

// closeAll closes clients concurrently, since many take long to close.
func closeAll(conns []connection) error {
	errs := make([]error, len(conns))
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() { errs[i] = c.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// settle waits until there was no traffic for some time: late replies, and their
// consequences, have arrived.
func (p *place) settle(ctx context.Context) error {
	silence := 3*p.oneWay + 30*time.Millisecond
	last, since := p.tally.get().frames, time.Now()
	for time.Since(since) < silence {
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
		if n := p.tally.get().frames; n != last {
			last, since = n, time.Now()
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
