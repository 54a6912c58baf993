package main

import (
	"context"
	"fmt"
	"time"
)

// A rival has a lock: coord, or a peer. Paths are absolute and unused.
type rival interface {
	who() string
	where() string
	// cycles makes callers of one client acquire and release locks of their own.
	cycles(ctx context.Context, p *place, path string, callers int, span time.Duration) (sample, error)
	// contend makes clients, or callers of one client, take turns with one lock.
	contend(ctx context.Context, p *place, path string, callers int, oneClient bool, span time.Duration) (sample, error)
	// share makes two clients share locks, one cycle after the other.
	share(ctx context.Context, p *place, path string, m mix, span time.Duration) (sample, error)
	// trips counts the cost of cycles of one caller.
	trips(ctx context.Context, p *place, path string, cycles int) (sample, error)
	// failover makes a client at holder acquire a lock, and one at heir wait for it, with
	// that session timeout. It calls cut, and returns the time from then until the heir has
	// the lock.
	failover(ctx context.Context, holder, heir *place, path string, timeout time.Duration, cut func()) (time.Duration, error)
}

// native is a rival whose clients are in this process.
type native struct{ *contestant }

func (r native) who() string   { return r.contestant.who }
func (r native) where() string { return r.contestant.where }

// lockers returns the callers' access to locks, after each was acquired once.
func (r native) lockers(ctx context.Context, conns []connection, n int, path func(int) string) ([]locker, error) {
	lockers := make([]locker, n)
	err := atOnce(n, func(i int) error {
		conn := conns[i%len(conns)]
		lock, err := conn.locker(ctx, path(i), i/len(conns))
		if err != nil {
			return err
		}
		lockers[i] = lock
		release, err := lock(ctx)
		if err != nil {
			return err
		}
		return release()
	})
	return lockers, err
}

func (r native) cycles(ctx context.Context, p *place, path string, callers int, span time.Duration) (sample, error) {
	conns, err := p.conns(ctx, r.contestant, 1)
	if err != nil {
		return nil, err
	}
	lockers, err := r.lockers(ctx, conns, callers, func(i int) string { return fmt.Sprintf("%s-%03d", path, i) })
	if err != nil {
		return nil, err
	}
	steps := make([]step, callers)
	for i, lock := range lockers {
		steps[i] = func(ctx context.Context) error {
			release, err := lock(ctx)
			if err != nil {
				return err
			}
			return release()
		}
	}
	return hammer(ctx, span, steps)
}

func (r native) contend(ctx context.Context, p *place, path string, callers int, oneClient bool, span time.Duration) (sample, error) {
	n := callers
	if oneClient {
		n = 1
	}
	conns, err := p.conns(ctx, r.contestant, n)
	if err != nil {
		return nil, err
	}
	lockers, err := r.lockers(ctx, conns, callers, func(int) string { return path })
	if err != nil {
		return nil, err
	}
	return contend(ctx, span, 0, lockers)
}

func (r native) trips(ctx context.Context, p *place, path string, cycles int) (sample, error) {
	conns, err := p.conns(ctx, r.contestant, 1)
	if err != nil {
		return nil, err
	}
	lockers, err := r.lockers(ctx, conns, 1, func(int) string { return path })
	if err != nil {
		return nil, err
	}
	var release func() error
	s, err := countCycles(ctx, p, []string{"Lock", "Release"}, []step{
		func(ctx context.Context) (err error) { release, err = lockers[0](ctx); return err },
		func(context.Context) error { return release() },
	}, cycles)
	if r.where() != onZooKeeper {
		s = s.without(mRequests, mBytesUp, mBytesDown, mEvents) // their frames do not pass this place
	}
	return s, err
}

func (s sample) without(metrics ...metric) sample {
	for _, m := range metrics {
		delete(s, m)
	}
	return s
}

func (r native) failover(ctx context.Context, holder, heir *place, path string, timeout time.Duration, cut func()) (_ time.Duration, err error) {
	var conns [2]connection
	defer func() {
		for _, c := range conns {
			if c != nil {
				if cerr := c.Close(); err == nil {
					err = cerr
				}
			}
		}
	}()
	var locks [2]locker
	for i, p := range []*place{holder, heir} {
		if conns[i], err = r.dial(ctx, p, 0, timeout); err != nil {
			return 0, err
		}
		if locks[i], err = conns[i].locker(ctx, path, 0); err != nil {
			return 0, err
		}
	}
	if _, err := locks[0](ctx); err != nil { // it ends with its session
		return 0, err
	}
	var granted time.Time
	got := make(chan error, 1)
	go func() {
		release, err := locks[1](ctx)
		granted = time.Now()
		if err == nil {
			err = release()
		}
		got <- err
	}()
	// After this time the heir waits in the queue.
	select {
	case err := <-got:
		return 0, fmt.Errorf("the heir did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	began := time.Now()
	cut()
	select {
	case err := <-got:
		return granted.Sub(began), err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}
