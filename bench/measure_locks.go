package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
)

// The names of cells that targets refer to.
const (
	whatPairs   = "create and delete"
	whatWrite   = "write"
	whatCycle   = "lock, released at once"
	whatWatched = "lock, held until its own watch is armed"
	whatContend = "one lock"
)

// uncontendedGroup compares uncontended locks with the minimum cost of a lock: one create and
// one delete.
func uncontendedGroup(e *env, rivals []rival, widths []int, span time.Duration) *group {
	g := &group{
		name: "uncontended",
		about: "Callers of one client, each with a lock of its own. The physical limit is the raw client: an ephemeral sequential create and its delete. " +
			"A hold that lasts for some time has a watch armed on its own node, which is one request more; " +
			"'held until its own watch is armed' means that each caller holds several locks, and releases the oldest.",
		shown: []metric{mRate, mP50, mP90, mP99, mAllocs, mCPU, mServerCPU, mBusy, mPackets},
	}
	for _, n := range widths {
		at := func(what, who, where string, run func(ctx context.Context) (sample, error)) {
			g.add(what, who, where, span+time.Duration(n)*5*time.Millisecond, func(ctx context.Context) (sample, error) {
				return run(e.metered(ctx, where))
			}).at("callers", float64(n))
		}
		at(whatWrite, byRaw, onZooKeeper, func(ctx context.Context) (sample, error) { return e.rawWrites(ctx, n, span) })
		at(whatPairs, byRaw, onZooKeeper, func(ctx context.Context) (sample, error) { return e.rawPairs(ctx, n, span) })
		for _, r := range append(slices.Clone(rivals), native{keeping}) {
			at(whatCycle, r.who(), r.where(), func(ctx context.Context) (sample, error) {
				return r.cycles(ctx, e.direct, e.root+e.path(), n, span)
			})
		}
		at(whatWatched, byCoord, onZooKeeper, func(ctx context.Context) (sample, error) { return e.watchedCycles(ctx, n, span) })
	}
	return g
}

// rawPairs creates and deletes ephemeral nodes with the raw client.
func (e *env) rawPairs(ctx context.Context, callers int, span time.Duration) (sample, error) {
	return e.rawSteps(ctx, callers, span, rawPair)
}

func rawPair(c *zk.Conn, path string) step {
	return func(context.Context) error {
		node, err := c.Create(path+"/n-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
		if err != nil {
			return err
		}
		return c.Delete(node, -1)
	}
}

// rawWrites writes nodes with the raw client.
func (e *env) rawWrites(ctx context.Context, callers int, span time.Duration) (sample, error) {
	data := []byte(payload)
	return e.rawSteps(ctx, callers, span, func(c *zk.Conn, path string) step {
		return func(context.Context) error { _, err := c.Set(path, data, -1); return err }
	})
}

// limit adds the reference for sequential turns: the writes of one caller.
func (g *group) limit(e *env, span time.Duration) {
	g.add(whatWrite, byRaw, onZooKeeper, span, func(ctx context.Context) (sample, error) {
		return e.rawWrites(e.metered(ctx, onZooKeeper), 1, span)
	}).at("callers", 1)
}

func (e *env) rawSteps(ctx context.Context, callers int, span time.Duration, make func(*zk.Conn, string) step) (sample, error) {
	conns, err := e.direct.conns(ctx, goZK, 1)
	if err != nil {
		return nil, err
	}
	c := conns[0].(*zkConn).c
	var steps []step
	base := e.root + e.path()
	for i := range callers {
		path := fmt.Sprintf("%s-%03d", base, i)
		if _, err := c.Create(path, []byte(payload), 0, zk.WorldACL(zk.PermAll)); err != nil {
			return nil, err
		}
		steps = append(steps, make(c, path))
	}
	return hammer(ctx, span, steps)
}

// armed is the time after which a hold certainly has a watch on its node: the library arms it
// lazily, after 20 to 40 ms.
const armed = 45 * time.Millisecond

// watchedCycles acquires locks, and releases each when its watch has been armed. So a caller
// has several holds that grow old while it acquires others, and its cycles are those of a
// caller that releases at once, plus the arming.
func (e *env) watchedCycles(ctx context.Context, callers int, span time.Duration) (sample, error) {
	c, err := e.direct.client(ctx)
	if err != nil {
		return nil, err
	}
	type aging struct {
		h     *coord.Hold
		since time.Time
	}
	type worker struct {
		locks []*coord.Mutex // a ring
		next  int
		holds []aging
	}
	base := e.path()
	// A caller that makes 3,000 cycles per second needs that many locks.
	size := max(8, 192/callers)
	workers := make([]*worker, callers)
	err = atOnce(callers, func(i int) error {
		w := &worker{}
		workers[i] = w
		for k := range size {
			m := coord.NewMutex(c, fmt.Sprintf("%s/%03d-%03d", base, i, k), nil)
			h, err := m.Lock(ctx)
			if err != nil {
				return err
			}
			if err := h.Release(); err != nil {
				return err
			}
			w.locks = append(w.locks, m)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	steps := make([]step, callers)
	for i, w := range workers {
		steps[i] = func(ctx context.Context) error {
			if len(w.holds) == size {
				if err := sleep(ctx, armed-time.Since(w.holds[0].since)); err != nil {
					return err
				}
			}
			// At most one, so that the cost of a step is one cycle.
			if len(w.holds) > 0 && (len(w.holds) == size || time.Since(w.holds[0].since) >= armed) {
				h := w.holds[0].h
				w.holds = w.holds[1:]
				if err := h.Release(); err != nil {
					return err
				}
			}
			h, err := w.locks[w.next].Lock(ctx)
			if err != nil {
				return err
			}
			w.next = (w.next + 1) % size
			w.holds = append(w.holds, aging{h, time.Now()})
			return nil
		}
	}
	// The first holds of each caller grow old before the measurement.
	_, err = hammer(ctx, armed+20*time.Millisecond, steps)
	var s sample
	if err == nil {
		s, err = hammer(ctx, span, steps)
	}
	for _, w := range workers {
		for _, a := range w.holds {
			err = errors.Join(err, a.h.Release())
		}
	}
	return s, err
}

// contendedGroup makes eight clients, with a session each, contend for one lock.
func contendedGroup(e *env, rivals []rival, span time.Duration) *group {
	g := &group{
		name: "contended between clients",
		warm: 1,
		about: "Eight clients, each with a session of its own, take turns with one lock and hold it for no time. " +
			"The times are those of a hand-over: from the begin of a release to the next grant.",
		shown: []metric{mRate, mP50, mP90, mP99, mPackets, mCPU, mServerCPU, mBusy},
	}
	const clients = 8
	g.limit(e, span)
	for _, p := range []*place{e.direct, e.near, e.far} {
		for _, r := range append(slices.Clone(rivals), native{leading}, native{keeping}) {
			where := r.where()
			if p.oneWay > 0 {
				where = fmt.Sprintf("%s, %v each way", where, p.oneWay)
			}
			g.add(whatContend, r.who(), where, span+200*time.Millisecond, func(ctx context.Context) (sample, error) {
				return r.contend(e.metered(ctx, r.where()), p, e.root+e.path(), clients, false, span)
			}).at("clients", clients)
		}
	}
	return g
}

// insideGroup makes callers of one client contend for one lock.
func insideGroup(e *env, rivals []rival, span time.Duration) *group {
	g := &group{
		name:  "contended inside a process",
		warm:  1,
		about: "Sixteen callers of one client take turns with one lock and hold it for no time. The times are those of a hand-over.",
		shown: []metric{mRate, mP50, mP90, mP99, mPackets, mCPU, mServerCPU, mBusy},
	}
	const callers = 16
	g.limit(e, span)
	for _, r := range append(slices.Clone(rivals), native{keeping}) {
		g.add(whatContend, r.who(), r.where(), span+100*time.Millisecond, func(ctx context.Context) (sample, error) {
			return r.contend(e.metered(ctx, r.where()), e.direct, e.root+e.path(), callers, true, span)
		}).at("callers", callers)
	}
	g.add(whatContend, byCoord, onMemory, span, func(ctx context.Context) (sample, error) {
		return native{ours}.contend(ctx, e.memory, e.root+e.path(), callers, true, span)
	}).at("callers", callers)
	return g
}

// handOverGroup measures the hand-over of a lock in round trips, after the waiters had time
// to arm their watches.
func handOverGroup(e *env, who []*contestant) *group {
	g := &group{
		name: "hand-over",
		about: fmt.Sprintf("Nine clients take turns with one lock, %v away each way, and hold it for %v, so that all others are queued. ", countedOneWay, handOverHold) +
			"The time from the begin of a release to the next grant, in round trips.",
		shown: []metric{mRoundTrips, mP50, mP99},
		fewer: true,
	}
	const clients, turns = 9, 12
	// The first turns happen before the queue is complete.
	span := turns * (handOverHold + 2*countedOneWay)
	for _, w := range who {
		g.add(whatHandOver, w.who, w.where, span+time.Second, func(ctx context.Context) (sample, error) {
			conns, err := e.counted.conns(ctx, w, clients)
			if err != nil {
				return nil, err
			}
			path := e.root + e.path()
			lockers, err := native{w}.lockers(ctx, conns, clients, func(int) string { return path })
			if err != nil {
				return nil, err
			}
			s, err := contend(ctx, span, handOverHold, lockers)
			if err != nil {
				return nil, err
			}
			s[mRoundTrips] = s[mP50] / micros(2*countedOneWay)
			return s, nil
		}).at("clients", clients)
	}
	return g
}

const handOverHold = 100 * time.Millisecond
