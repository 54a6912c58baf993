package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-coord/coord"
)

// barrierGroup measures the cost of a round of a double barrier with growing numbers of
// members.
func barrierGroup(e *env, crowd *place, p *peers, members []int, span time.Duration) *group {
	g := &group{
		name: "double barriers",
		about: "Rounds in which all members enter and all leave. Members of coord have a client and a session each, those of the peers are threads of one client. " +
			"The time is that of a round, the requests are those of one member.",
		shown: []metric{mTime, mRequests, mEvents},
	}
	for _, n := range members {
		cost := span + time.Duration(n)*10*time.Millisecond
		g.add("round", byCoord, onZooKeeper, cost, func(ctx context.Context) (sample, error) {
			return e.barrierRounds(ctx, crowd, n, span)
		}).at("members", float64(n))
		for _, f := range []*foreign{p.curator, p.kazoo} {
			if f == nil {
				continue
			}
			g.add("round", f.name, onZooKeeper, cost, func(ctx context.Context) (sample, error) {
				const rounds = 3
				ask := func() ([]float64, error) {
					return f.ask(ctx, "barrier", servers(crowd), e.root+e.path(), n, rounds)
				}
				if err := crowd.settle(ctx); err != nil {
					return nil, err
				}
				crowd.tally.reset()
				figures, err := ask()
				if err != nil {
					return nil, err
				}
				if len(figures) != 1 {
					return nil, errNoFigures
				}
				return crowd.tally.get().perMember(time.Duration(figures[0]), n, rounds), nil
			}).at("members", float64(n))
		}
	}
	return g
}

func (t tallied) perMember(took time.Duration, members, rounds int) sample {
	s := t.per(members*rounds).without(mBytesUp, mBytesDown, mCounted)
	s[mTime] = millis(took) / float64(rounds)
	return s
}

// barrierRounds makes members enter and leave for a time, at least for two rounds.
func (e *env) barrierRounds(ctx context.Context, p *place, n int, span time.Duration) (sample, error) {
	clients, err := p.coords(ctx, n)
	if err != nil {
		return nil, err
	}
	path := e.path()
	members := make([]*coord.DoubleBarrier, n)
	for i, c := range clients {
		members[i] = coord.NewDoubleBarrier(c, path, n, nil)
	}
	round := func() error {
		return gather(ctx, n, func(ctx context.Context, i int) error {
			entry, err := members[i].Enter(ctx)
			if err != nil {
				return err
			}
			return entry.Leave(ctx)
		})
	}
	if err := round(); err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	p.tally.reset()
	began, rounds := time.Now(), 0
	for ; rounds < 2 || time.Since(began) < span; rounds++ {
		if err := round(); err != nil {
			return nil, err
		}
	}
	return p.tally.get().perMember(time.Since(began), n, rounds), nil
}

// commitGroup measures the cost of a transaction over growing numbers of sites.
func commitGroup(e *env, crowd *place, sites []int, span time.Duration) *group {
	g := &group{
		name: "two-phase commit",
		about: "Sequential transactions, proposed by one client to sites that have a client each and vote yes at once. " +
			"A proposal returns when it is decided; the requests include the acknowledgements of the sites and the removal of the record.",
		shown: []metric{mRate, mP50, mP99, mRequests},
	}
	for _, n := range sites {
		g.add("transaction", byCoord, onZooKeeper, span+200*time.Millisecond, func(ctx context.Context) (sample, error) {
			return e.transactions(ctx, crowd, n, span)
		}).at("sites", float64(n))
	}
	return g
}

func (e *env) transactions(ctx context.Context, p *place, sites int, span time.Duration) (_ sample, err error) {
	clients, err := p.coords(ctx, sites+1)
	if err != nil {
		return nil, err
	}
	x, err := openTwoPhase(ctx, clients, e.path(), sites)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := x.cycle(ctx); err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	p.tally.reset()
	s, err := hammer(ctx, span, []step{x.cycle})
	if err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	s[mRequests] = float64(p.tally.get().requests) / s[mDone]
	return s.without(mAllocs, mAllocated, mCPU), nil
}
