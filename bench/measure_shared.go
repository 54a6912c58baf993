package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord"
)

const (
	sharedLocks  = "shared locks"
	severalLocks = "several locks"

	whatAlternate = "two clients alternate"
	whatTenth     = "every tenth cycle by another client"
	whatTenLocks  = "ten locks, of which two clients share the first"

	whatTogether = "LockAll"
	whatInTurn   = "LockAll, one lock after the other"
	whatMulti    = "InterProcessMultiLock"
)

// A mix says how two clients share locks. They make cycles one after the other and never wait
// for each other. The first client uses the locks by turns; of the cycles of the first lock,
// the second client makes every n-th.
type mix struct {
	what  string
	locks int
	every int
}

var mixes = []mix{{whatAlternate, 1, 2}, {whatTenth, 1, 10}, {whatTenLocks, 10, 2}}

// next returns the lock of the k-th cycle, and whether the second client makes it.
func (m mix) next(k int) (lock int, second bool) {
	return k % m.locks, k%m.locks == 0 && k/m.locks%m.every == m.every-1
}

// sharedGroup makes two clients share locks: what a client gains that keeps a lock, and what
// the other one loses.
func sharedGroup(e *env, rivals []rival, span time.Duration) *group {
	g := &group{
		name: sharedLocks,
		warm: 1,
		about: "Two clients with a session each. 'One lock' is contended: both acquire it again at once. In the other rows they make their cycles one after the other and " +
			"never wait for each other. Either they alternate on one lock; or the second client makes every tenth cycle; or the first client uses ten locks by turns, and the second client " +
			"makes every other cycle of the first lock. In the last two, nine of ten cycles are by the client that had the lock before. " +
			"The times are those of a cycle, and for the contended lock those of a hand-over.",
		shown: []metric{mRate, mP50, mP99, mPackets, mServerCPU, mBusy},
	}
	all := append(slices.Clone(rivals), native{keeping})
	for _, r := range all {
		g.add(whatContend, r.who(), r.where(), span+100*time.Millisecond, func(ctx context.Context) (sample, error) {
			return r.contend(e.metered(ctx, r.where()), e.direct, e.root+e.path(), 2, false, span)
		}).at("clients", 2)
	}
	for _, m := range mixes {
		for _, r := range all {
			g.add(m.what, r.who(), r.where(), span+200*time.Millisecond, func(ctx context.Context) (sample, error) {
				return r.share(e.metered(ctx, r.where()), e.direct, e.root+e.path(), m, span)
			}).at("clients", 2)
		}
	}
	return g
}

// severalGroup measures the acquisition of several free locks.
func severalGroup(e *env, p *peers, counts []int, span time.Duration) *group {
	g := &group{
		name: severalLocks,
		about: "One caller acquires free locks, and releases them. Round trips and requests are counted by proxies, the times are those of a cycle without a proxy. " +
			"'One lock after the other' is LockAll for lockers that cannot share a commit: it acquires them in the order of their paths, and releases them at once.",
		shown: []metric{mTrips, mRequests, mP50, mRate},
	}
	const cycles = 3
	for _, n := range counts {
		cost := span + time.Duration(2*n*(cycles+1))*2*countedOneWay + time.Second
		for _, x := range []struct {
			what string
			wrap func(*coord.Mutex) coord.Locker
		}{
			{whatTogether, func(m *coord.Mutex) coord.Locker { return m }},
			{whatInTurn, func(m *coord.Mutex) coord.Locker { return wrapped{m} }},
		} {
			g.add(x.what, byCoord, onZooKeeper, cost, func(ctx context.Context) (sample, error) {
				var callers [2]*caller
				for i, p := range []*place{e.counted, e.direct} {
					c, err := p.client(ctx)
					if err != nil {
						return nil, err
					}
					callers[i] = lockingAll(c, e.path(), n, x.wrap)
					if err := callers[i].cycle(ctx); err != nil {
						return nil, err
					}
				}
				s, err := countCycles(ctx, e.counted, []string{"Lock", "Release"}, callers[0].steps, cycles)
				if err != nil {
					return nil, err
				}
				timed, err := hammer(e.metered(ctx, onZooKeeper), span, []step{callers[1].cycle})
				return s.with(timed, mP50, mRate), err
			}).at("locks", float64(n))
		}
		if f := p.curator; f != nil {
			g.add(whatMulti, f.name, f.where(), cost, func(ctx context.Context) (sample, error) {
				return f.together(ctx, e, n, cycles, span)
			}).at("locks", float64(n))
		}
	}
	return g
}

// wrapped is a Mutex of which LockAll knows only the methods of a Locker.
type wrapped struct{ *coord.Mutex }

// lockingAll returns a caller that acquires and releases n locks.
func lockingAll(c *coord.Client, path string, n int, wrap func(*coord.Mutex) coord.Locker) *caller {
	var all []coord.Locker
	for i := range n {
		all = append(all, wrap(coord.NewMutex(c, fmt.Sprintf("%s-%02d", path, i), nil)))
	}
	var h *coord.HoldSet
	return &caller{steps: []step{
		func(ctx context.Context) (err error) {
			h, err = coord.LockAll(ctx, all...)
			return err
		},
		func(context.Context) error { return h.Release() },
	}}
}

// with adds metrics of another sample.
func (s sample) with(from sample, metrics ...metric) sample {
	for _, m := range metrics {
		if v, ok := from[m]; ok {
			s[m] = v
		}
	}
	return s
}

func (r native) share(ctx context.Context, p *place, path string, m mix, span time.Duration) (sample, error) {
	conns, err := p.conns(ctx, r.contestant, 2)
	if err != nil {
		return nil, err
	}
	at := func(i int) string { return fmt.Sprintf("%s-%03d", path, i) }
	first, err := r.lockers(ctx, conns[:1], m.locks, at)
	if err != nil {
		return nil, err
	}
	second, err := r.lockers(ctx, conns[1:], 1, at)
	if err != nil {
		return nil, err
	}
	k := 0
	return hammer(ctx, span, []step{func(ctx context.Context) error {
		i, other := m.next(k)
		k++
		lock := first[i]
		if other {
			lock = second[0]
		}
		release, err := lock(ctx)
		if err != nil {
			return err
		}
		return release()
	}})
}

func (f *foreign) share(ctx context.Context, p *place, path string, m mix, span time.Duration) (sample, error) {
	return f.hammered(f.ask(ctx, "share", servers(p), path, m.locks, m.every, span.Milliseconds()))
}

// together counts and times the acquisition of n locks by the peer.
func (f *foreign) together(ctx context.Context, e *env, n, cycles int, span time.Duration) (sample, error) {
	path := e.root + e.path()
	ask := func(p *place, span time.Duration) (sample, error) {
		return f.hammered(f.ask(ctx, "together", servers(p), path, n, span.Milliseconds()))
	}
	s, err := f.count(ctx, e.counted, cycles, func(n int) error {
		for range n {
			if _, err := ask(e.counted, 0); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	timed, err := ask(e.direct, span)
	return s.with(timed, mP50, mRate), err
}
