package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/go-coord/coord"
)

// shardsPlay has the owners of shards, as far as they know.
type shardsPlay struct {
	mu     sync.Mutex
	owners map[int]*coord.Shard
	ids    map[int]string // of the members that own the shards
	loads  map[string]int // by member
	grants int
}

func (p *shardsPlay) own(id string, sh *coord.Shard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A member can learn late that it was granted the shard, when its node is deleted and another
	// member owns the shard: its token is smaller.
	if owner := p.owners[sh.Index]; owner == nil || owner.Token() < sh.Token() {
		p.owners[sh.Index] = sh
		p.ids[sh.Index] = id
	}
	p.loads[id]++
	p.grants++
}

func (p *shardsPlay) disown(id string, sh *coord.Shard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owners[sh.Index] == sh {
		delete(p.owners, sh.Index)
		delete(p.ids, sh.Index)
	}
	p.loads[id]--
}

// rest waits until the shards are settled and none is granted any more, and returns their owners
// and the number of all grants.
func (p *shardsPlay) rest(n, members int) (ids map[int]string, grants int) {
	for last := -1; ; {
		time.Sleep(10*time.Millisecond + 7)
		settled := p.settled(n, members)
		p.mu.Lock()
		ids, grants = maps.Clone(p.ids), p.grants
		p.mu.Unlock()
		if settled && grants == last {
			return ids, grants
		}
		last = -1
		if settled {
			last = grants
			time.Sleep(time.Second)
		}
	}
}

// settled reports whether all of n shards are owned, in numbers that differ by at most one, by so
// many members.
func (p *shardsPlay) settled(n, members int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sh := range p.owners {
		if sh.Err() != nil {
			return false
		}
	}
	least, most, all := n, 0, 0
	for _, load := range p.loads {
		if load > 0 {
			least, most, all = min(least, load), max(most, load), all+1
		}
	}
	return len(p.owners) == n && all == members && most-least <= 1
}

// shardsScenario: members come, go, and come again under their ids. In the end, when nothing fails
// any more, all of them own all shards evenly. Then one leaves and comes back: a shard is granted
// once for each change of its owner, and in the end each has the owner that it had.
func shardsScenario() *scenario {
	const at, n, members = "/sim/shards", 4, 3
	return &scenario{
		name: "shards", share: 10, clients: members, dir: at + "/shards/1",
		must: []string{"grant", "came back", "moved", "forced", "loss", "fenced write", "closed", "cancel", "outsider's delete", "outsider's write"},
		play: func(x *sim) {
			p := &shardsPlay{owners: make(map[int]*coord.Shard), ids: make(map[int]string), loads: make(map[string]int)}
			fin, finish := context.WithCancel(context.Background())
			// The member with the index 0 is away from the one to the other.
			away, leave := context.WithCancel(context.Background())
			back, comeBack := context.WithCancel(context.Background())
			for i := range members {
				x.act("member", i, func(a *actor) {
					id := fmt.Sprint("m", i)
					run := func(ctx context.Context) {
						o := &coord.ShardsOptions{ID: id}
						if a.x.arbiter.seed%3 > 0 {
							o.ForceAfter = time.Duration(20+i) * time.Millisecond
						}
						a.say("runs")
						err := coord.NewShards(a.client(), at, n, o).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
							x.owns(ctx, a, id, p, at, sh)
							return nil
						})
						if err != nil && !a.excused(err) {
							a.errorf("run: %v", err)
						}
						a.pause()
					}
					for round := range 1 + i {
						a.linger(5)
						ctx, done := a.context()
						ctx, stop := context.WithTimeout(ctx, time.Duration(50+a.r.IntN(600))*time.Millisecond+time.Duration(10*i+round))
						run(ctx)
						stop()
						done()
					}
					for fin.Err() == nil {
						ctx := fin
						if i == 0 && away.Err() == nil {
							ctx = away
						}
						run(ctx)
						if i == 0 && away.Err() != nil {
							<-back.Done()
						}
					}
				})
			}
			x.act("judge", -1, func(a *actor) {
				<-x.calm
				before, granted := p.rest(n, members)
				a.note("settled")
				moves := func(now map[int]string, grants int) (moved int) {
					for i, id := range before {
						if now[i] != id {
							moved++
						}
					}
					if grants -= granted; grants != moved {
						a.errorf("%d shards have another owner after %d grants: %v, then %v", moved, grants, before, now)
					}
					return moved
				}
				leave()
				without, grants := p.rest(n, members-1)
				moved := moves(without, grants)
				comeBack()
				again, all := p.rest(n, members)
				if !maps.Equal(before, again) || all-grants != moved {
					a.errorf("a member left and came back: %v, then %v, then %v, by %d and %d grants", before, without, again, moved, all-grants)
				}
				a.note("came back")
				finish()
			})
			x.ending = func() {
				leave()
				comeBack()
				finish()
				x.empty(at + "/workers")
				for i := range n {
					x.empty(fmt.Sprint(at, "/shards/", i))
				}
			}
		},
	}
}

// owns owns a shard until it is to move. Some owners take their time then.
func (x *sim) owns(ctx context.Context, a *actor, id string, p *shardsPlay, at string, sh *coord.Shard) {
	path := fmt.Sprint(at, "/shards/", sh.Index)
	step := func(n int) {
		for range n {
			a.x.pass(context.Background(), &simCall{op: "step", path: fmt.Sprint(a.name, " ", sh.Index)})
			x.fenced(path, sh.Hold)
		}
	}
	x.has(a, path, sh.Hold, false, false)
	p.own(id, sh)
	step(2)
	<-ctx.Done()
	p.disown(id, sh)
	if _, ok := sh.Revocation(); ok {
		x.note("moved")
	}
	if sh.Token()%5 == 0 {
		select {
		case <-sh.Done():
		case <-time.After(50*time.Millisecond + time.Duration(sh.Index)):
		}
		if errors.Is(sh.Err(), coord.ErrRevoked) {
			x.note("forced")
		}
	}
	step(1)
	x.heard(sh.Hold)
	x.gives(path, sh.Hold)
	x.ended(sh.Hold)
}
