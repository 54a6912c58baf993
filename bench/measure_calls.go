package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord/backend"
)

const whatGet = "get"

// callsGroup compares single calls of a session of the backend with those of the raw client.
func callsGroup(e *env, widths []int, span time.Duration) *group {
	g := &group{
		name: "calls",
		warm: 1,
		about: "Callers of one session of the ZooKeeper backend, without a recipe, beside the raw client: reads of a node of 100 bytes, " +
			"and pairs of an ephemeral sequential create and its delete. Allocations and processor time are those of this process.",
		shown: []metric{mRate, mP50, mP99, mAllocs, mAllocated, mCPU, mServerCPU, mBusy, mPackets},
	}
	for _, n := range widths {
		for _, x := range []struct {
			what string
			ours func(backend.Session, string) step
			raw  func(*zk.Conn, string) step
		}{
			{whatGet, sessionGet, rawGet},
			{whatPairs, sessionPair, rawPair},
		} {
			g.add(x.what, byRaw, onZooKeeper, span, func(ctx context.Context) (sample, error) {
				return e.rawSteps(e.metered(ctx, onZooKeeper), n, span, x.raw)
			}).at("callers", float64(n))
			g.add(x.what, byCoord, onZooKeeper, span, func(ctx context.Context) (sample, error) {
				return e.sessionSteps(e.metered(ctx, onZooKeeper), n, span, x.ours)
			}).at("callers", float64(n))
		}
	}
	return g
}

func sessionGet(s backend.Session, path string) step {
	return func(ctx context.Context) error { _, _, err := s.Get(ctx, path, nil); return err }
}

func rawGet(c *zk.Conn, path string) step {
	return func(context.Context) error { _, _, err := c.Get(path); return err }
}

func sessionPair(s backend.Session, path string) step {
	return func(ctx context.Context) error {
		r, err := s.Commit(ctx, backend.Create(path+"/n-", nil, backend.EphemeralSequential))
		if err != nil {
			return err
		}
		_, err = s.Commit(ctx, backend.Delete(r[0].Path, backend.AnyVersion))
		return err
	}
}

// sessionSteps is rawSteps with a session of the backend.
func (e *env) sessionSteps(ctx context.Context, callers int, span time.Duration, make func(backend.Session, string) step) (sample, error) {
	c, err := e.direct.client(ctx)
	if err != nil {
		return nil, err
	}
	s, err := c.Session(ctx)
	if err != nil {
		return nil, err
	}
	var steps []step
	base := e.root + e.path()
	for i := range callers {
		path := fmt.Sprintf("%s-%03d", base, i)
		if _, err := s.Commit(ctx, backend.Create(path, []byte(payload), backend.Persistent)); err != nil {
			return nil, err
		}
		steps = append(steps, make(s, path))
	}
	return hammer(ctx, span, steps)
}
