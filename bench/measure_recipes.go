package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord"
)

// openCallers prepares callers of one client, each at a path of its own, and makes each run
// one cycle: the first use creates directories.
func openCallers(ctx context.Context, e *env, c *coord.Client, op *operation, n int) (_ []*caller, err error) {
	base := e.path()
	callers := make([]*caller, n)
	err = atOnce(n, func(i int) error {
		x, err := op.open(ctx, c, fmt.Sprintf("%s/%03d", base, i))
		if err != nil {
			return err
		}
		callers[i] = x
		return x.cycle(ctx)
	})
	if err != nil {
		return nil, errors.Join(err, endCallers(callers))
	}
	return callers, nil
}

func endCallers(callers []*caller) error {
	return atOnce(len(callers), func(i int) error {
		if callers[i] == nil {
			return nil
		}
		return callers[i].Close()
	})
}

// tripsGroup counts the exact cost of the main operation of every recipe; the counts are the
// same on every machine.
func tripsGroup(e *env, p *peers) *group {
	g := &group{
		name: "costs",
		about: "Sequential round trips, requests and bytes of one cycle of the main operation of each recipe, by one caller, once its directories exist. " +
			"Counted by proxies, on PostgreSQL by the connections; the same on every machine.",
		shown: []metric{mTrips, mRequests, mBytesUp, mBytesDown, mEvents},
		exact: true,
	}
	const cycles = 3
	us := []*contestant{ours}
	if p.postgres != nil {
		us = append(us, p.postgres.coord())
	}
	for _, op := range operations() {
		cost := time.Duration(len(op.steps)*(cycles+2))*2*countedOneWay + 500*time.Millisecond
		for _, x := range us {
			g.add(op.what, x.who, x.where, cost, func(ctx context.Context) (sample, error) {
				conns, err := e.counted.conns(ctx, x, 1)
				if err != nil {
					return nil, err
				}
				callers, err := openCallers(ctx, e, conns[0].(*coordConn).c, op, 1)
				if err != nil {
					return nil, err
				}
				s, err := countCycles(ctx, e.counted, op.steps, callers[0].steps, cycles)
				return s, errors.Join(err, endCallers(callers))
			})
		}
	}
	for _, r := range p.all {
		g.add("lock", r.who(), r.where(), 2*time.Second, func(ctx context.Context) (sample, error) {
			return r.trips(ctx, e.counted, e.root+e.path(), cycles)
		})
	}
	return g
}

// countCycles makes n cycles behind the counting proxies.
func countCycles(ctx context.Context, p *place, names []string, steps []step, n int) (sample, error) {
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	p.tally.reset()
	times := make([][]float64, len(steps)) // round trips of each step, by cycle
	for range n {
		for i, do := range steps {
			p.tally.beginStep()
			began := time.Now()
			if err := do(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w", names[i], err)
			}
			took := time.Since(began)
			if p.tally.get().frames > 0 {
				times[i] = append(times[i], p.tally.trips())
			} else { // a peer whose frames the proxy cannot decode
				times[i] = append(times[i], halfTrips(took, p.oneWay))
			}
		}
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	s := p.tally.get().per(n)
	for i, name := range names {
		trips := median(times[i])
		s[mTrips] += trips
		s[mTripsOf+metric(name)] = trips
	}
	return s, nil
}

// per converts the counted traffic of n operations to a sample.
func (t tallied) per(n int) sample {
	return sample{
		mRequests:  float64(t.requests) / float64(n),
		mBytesUp:   float64(t.up) / float64(n),
		mBytesDown: float64(t.down) / float64(n),
		mEvents:    float64(t.events) / float64(n),
		mCounted:   float64(n),
	}
}

// recipesGroup measures the rate of every recipe's main operation.
func recipesGroup(e *env, p *place, widths []int, span time.Duration) *group {
	g := &group{
		name: "recipes on " + p.where,
		about: "Cycles of the main operation of each recipe, by callers of one client, each at a path of its own. " +
			"Times are of whole cycles. Allocations and processor time are of this process, which is only the client on ZooKeeper.",
		shown: []metric{mRate, mP50, mP99, mAllocs, mCPU, mPackets},
	}
	if p.store == nil {
		for _, n := range widths {
			g.add(whatPairs, byRaw, p.where, span+time.Duration(n)*time.Millisecond, func(ctx context.Context) (sample, error) {
				return e.rawPairs(e.metered(ctx, p.where), n, span)
			}).at("callers", float64(n))
		}
	}
	for _, op := range operations() {
		for _, n := range widths {
			overhead := time.Duration(n) * 2 * time.Millisecond
			if p.store != nil {
				overhead = 0
			}
			g.add(op.what, byCoord, p.where, span+overhead, func(ctx context.Context) (sample, error) {
				c, err := p.client(ctx)
				if err != nil {
					return nil, err
				}
				callers, err := openCallers(ctx, e, c, op, n)
				if err != nil {
					return nil, err
				}
				steps := make([]step, n)
				for i, x := range callers {
					steps[i] = x.cycle
				}
				s, err := hammer(e.metered(ctx, p.where), span, steps)
				return s, errors.Join(err, endCallers(callers))
			}).at("callers", float64(n))
		}
	}
	return g
}
