package sweep

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-coord/coord"
)

// shardOwners has the owners of shards, as far as they know.
type shardOwners struct {
	mu sync.Mutex
	by map[int]*coord.Shard
	id map[int]string
}

// evenly reports whether the shards are owned by so many members, in numbers that differ by at most
// one.
func (o *shardOwners) evenly(n, members int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	loads := make(map[string]int)
	for i, sh := range o.by {
		if sh.Err() != nil {
			return false
		}
		loads[o.id[i]]++
	}
	for _, load := range loads {
		if load > (n+members-1)/members {
			return false
		}
	}
	return len(o.by) == n && len(loads) == members
}

// shards: two members come and go. Whatever fails, no shard has two owners, and the members that
// are there own all of them.
func shards() *recipe {
	const n = 3
	begin := func(x *cell, p *player, owners *shardOwners) (end func()) {
		ctx, stop := context.WithCancel(x.ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			s := coord.NewShards(p.c, "/shards", n, &coord.ShardsOptions{ID: p.name})
			err := s.Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
				r := x.resource(fmt.Sprint("shard ", sh.Index), 1)
				r.enter(p, sh.Hold, 1)
				owners.mu.Lock()
				owners.by[sh.Index], owners.id[sh.Index] = sh, p.name
				owners.mu.Unlock()
				<-ctx.Done()
				owners.mu.Lock()
				if owners.by[sh.Index] == sh {
					delete(owners.by, sh.Index)
				}
				owners.mu.Unlock()
				r.leave(sh.Hold)
				return nil
			})
			p.ok("run", err)
		}()
		return func() {
			stop()
			<-done
		}
	}
	return &recipe{
		name: "shards", players: []string{"a", "b"},
		play: func(x *cell) {
			owners := &shardOwners{by: make(map[int]*coord.Shard), id: make(map[int]string)}
			owned := func(what string, members int) {
				x.until(what, func() bool { return owners.evenly(n, members) })
				x.step(what)
			}
			first := begin(x, x.by["a"], owners)
			owned("a owns all", 1)
			x.rest()
			second := begin(x, x.by["b"], owners)
			owned("both own some", 2)
			x.rest()
			first()
			owned("b owns all", 1)
			second()
		},
		fresh: func(x *cell, p *player) {
			owners := &shardOwners{by: make(map[int]*coord.Shard), id: make(map[int]string)}
			end := begin(x, p, owners)
			x.until("the fresh member owns all", func() bool { return owners.evenly(n, 1) })
			list, err := coord.NewShards(p.c, "/shards", n, nil).Owners(x.ctx)
			if p.ok("owners", err) {
				for i, c := range list {
					if c.ID != p.name {
						x.violation("shard %d: owner %q", i, c.ID)
					}
				}
			}
			end()
		},
	}
}
