package recipetest

import (
	"context"
	"sync/atomic"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// countedMember is a member whose requests and moves are counted.
type countedMember struct {
	*crewMember
	requests     atomic.Int64
	gained, lost atomic.Int64
}

func (x *crew) counted(id string) *countedMember {
	m := &countedMember{}
	b := backendtest.Intercept(x.w.Link(id), backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
		m.requests.Add(1)
		return nil
	}})
	c := coordtest.Open(x.w.T, b, &coord.Options{Namespace: x.w.Path(""), Trace: func(_ context.Context, e trace.Event) {
		if e, ok := e.(trace.ShardsAssigned); ok {
			m.gained.Add(int64(e.Gained))
			m.lost.Add(int64(e.Lost))
		}
	}})
	m.crewMember = x.startOn(c, id, coord.ShardsOptions{})
	return m
}

// evenly waits until the members own all shards, in numbers that differ by at most one.
func (x *crew) evenly(members []*countedMember) {
	x.w.T.Helper()
	x.w.Eventually("the shards are owned evenly", func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		have := make(map[*crewMember]int)
		for _, m := range x.owners {
			if m == nil {
				return false
			}
			have[m]++
		}
		for _, m := range members {
			if n := have[m.crewMember]; n != x.n/len(members) && n != (x.n+len(members)-1)/len(members) {
				return false
			}
			delete(have, m.crewMember)
		}
		return len(have) == 0
	})
	x.w.Settle()
}
