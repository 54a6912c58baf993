package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/go-coord/coord"
)

const shardsGroupName = "shards"

// Metrics of a change of the members of shards. The plain mTime and mRequests are those of the
// start.
const (
	mMoves         metric = "moves"          // shards that were granted
	mJoinTime      metric = "join_time"      // ms
	mJoinMoves     metric = "join_moves"     // shards that were granted
	mJoinRequests  metric = "join_requests"  // of all clients
	mLeaveTime     metric = "leave_time"     // ms
	mLeaveMoves    metric = "leave_moves"    // shards that were granted
	mLeaveRequests metric = "leave_requests" // of all clients
)

// A division is a number of shards and of members.
type division struct{ shards, members int }

func (d division) what() string { return fmt.Sprintf("%d shards", d.shards) }

// mostMoves is the bound that the manual gives for a change to or from that many members and one
// more.
func (d division) mostMoves() float64 {
	n := float64(d.shards)
	return n/float64(d.members+1) + 2*math.Sqrt(n) + 3
}

// beyondError is the error of a cell that its peer cannot do within a limit.
type beyondError struct{ limit time.Duration }

func (e beyondError) Error() string { return fmt.Sprintf("not done within %v", e.limit) }

// partitionBoundary is the time for which kazoo's party has to be stable before it partitions.
const partitionBoundary = time.Second

// shardsGroup measures how members divide shards, when they start, and when one more joins and
// leaves.
func shardsGroup(e *env, crowd *place, p *peers, divisions []division, limit time.Duration) *group {
	g := &group{
		name: shardsGroupName,
		about: "Members with a client each divide shards. The figures are those of the start, until every shard is owned and no member has more than one more than another; " +
			"of one more member that joins; and of the same member as it leaves. A move is a shard that is granted to a member, to a new one or to its former one again. " +
			"The first member of coord acquires all shards and gives them up as the others come, so a start has more moves than shards. " +
			fmt.Sprintf("kazoo's SetPartitioner waits until the members did not change for its time_boundary, here %v instead of 30 s; on each change all members release all shards. ", partitionBoundary) +
			fmt.Sprintf("Each of the three has to end within %v.", limit),
		shown: []metric{mTime, mMoves, mRequests, mJoinTime, mJoinMoves, mJoinRequests, mLeaveTime, mLeaveMoves, mLeaveRequests},
		fewer: true,
	}
	for _, d := range divisions {
		cost := 2*time.Second + time.Duration(d.shards+20*d.members)*time.Millisecond
		most := time.Minute + cost + time.Duration(len(changes))*limit
		for _, at := range []*place{e.memory, crowd} {
			where := onZooKeeper
			if at == e.memory {
				where = onMemory
			}
			c := g.add(d.what(), byCoord, where, cost, func(ctx context.Context) (sample, error) {
				return divide(ctx, at, e.path(), d, limit)
			})
			c.most = most
			c.at("members", float64(d.members))
		}
		if f := p.kazoo; f != nil {
			c := g.add(d.what(), f.name, f.where(), 4*cost+3*partitionBoundary, func(ctx context.Context) (sample, error) {
				return f.divide(ctx, crowd, e.root+e.path(), d, limit)
			})
			c.most = most
			c.at("members", float64(d.members))
		}
	}
	return g
}

// changes are the changes of the members, in their order, and the metrics of each.
var changes = []struct {
	verb                  string
	time, moves, requests metric
}{
	{"start", mTime, mMoves, mRequests},
	{"join", mJoinTime, mJoinMoves, mJoinRequests},
	{"leave", mLeaveTime, mLeaveMoves, mLeaveRequests},
}

// A crew is the members that divide shards, and which of them owns each.
type crew struct {
	d division

	mu      sync.Mutex
	members int           // that should own shards
	loads   map[int]int   // by member
	grants  int           // of the present change
	changed chan struct{} // receives after each grant and loss; for one value
	latest  time.Time     // grant or loss
}

// note notes that a member has got a shard or lost it.
func (x *crew) note(member, n int) {
	x.mu.Lock()
	x.loads[member] += n
	x.grants += max(n, 0)
	x.latest = time.Now()
	x.mu.Unlock()
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

// isEven reports whether all shards are owned, in numbers that differ by one at most.
func (x *crew) isEven() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	low, high, sum := x.d.shards, 0, 0
	for i := range x.members {
		low, high, sum = min(low, x.loads[i]), max(high, x.loads[i]), sum+x.loads[i]
	}
	return sum == x.d.shards && high-low <= 1
}

// settled waits until the shards are owned evenly, and nothing has changed for a time. It returns
// the time from began to the latest change, and the number of grants.
func (x *crew) settled(ctx context.Context, began time.Time, limit time.Duration) (took time.Duration, grants int, err error) {
	const quiet = 250 * time.Millisecond
	over := time.NewTimer(limit)
	defer over.Stop()
	still := time.NewTimer(quiet)
	defer still.Stop()
	for {
		select {
		case <-x.changed:
			still.Reset(quiet)
			continue
		case <-still.C:
			if !x.isEven() {
				still.Reset(quiet)
				continue
			}
		case <-over.C:
			return 0, 0, beyondError{limit}
		case <-ctx.Done():
			return 0, 0, context.Cause(ctx)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.latest.Sub(began), x.grants, nil
	}
}

// divide makes members of coord divide shards.
func divide(ctx context.Context, p *place, path string, d division, limit time.Duration) (_ sample, err error) {
	clients, err := p.coords(ctx, d.members+1)
	if err != nil {
		return nil, err
	}
	x := &crew{d: d, loads: make(map[int]int), changed: make(chan struct{}, 1)}
	ended := make(chan error, d.members+1)
	stops := make([]context.CancelFunc, 0, d.members+1)
	join := func(n int) {
		for range n {
			i := len(stops)
			life, stop := context.WithCancel(ctx)
			stops = append(stops, stop)
			s := coord.NewShards(clients[i], path, d.shards, &coord.ShardsOptions{ID: fmt.Sprintf("member-%03d", i)})
			go func() {
				ended <- s.Run(life, func(ctx context.Context, _ *coord.Shard) error {
					x.note(i, 1)
					<-ctx.Done()
					x.note(i, -1)
					return nil
				})
			}()
		}
	}
	left := 0
	defer func() {
		for _, stop := range stops {
			stop()
		}
		for range len(stops) - left {
			err = errors.Join(err, <-ended)
		}
	}()
	s := sample{}
	for _, c := range changes {
		if p.store == nil {
			if err := p.settle(ctx); err != nil {
				return s, err
			}
			p.tally.reset()
		}
		x.mu.Lock()
		x.grants = 0
		x.members = d.members
		if c.verb == "join" {
			x.members++
		}
		x.mu.Unlock()
		began := time.Now()
		switch c.verb {
		case "start":
			join(d.members)
		case "join":
			join(1)
		case "leave":
			stops[d.members]()
			if err := <-ended; err != nil {
				return s, err
			}
			left++
		}
		took, grants, err := x.settled(ctx, began, limit)
		if err != nil {
			return s, err
		}
		s[c.time], s[c.moves] = millis(took), float64(grants)
		if p.store == nil {
			if err := p.settle(ctx); err != nil { // requests that arm watches
				return s, err
			}
			s[c.requests] = float64(p.tally.get().requests)
		}
	}
	return s, nil
}

// divide makes members of the peer divide shards. The answer to a change that takes too long has no
// figures.
func (f *foreign) divide(ctx context.Context, p *place, path string, d division, limit time.Duration) (_ sample, err error) {
	defer func() {
		if _, derr := f.ask(ctx, "undivide"); err == nil {
			err = derr
		}
	}()
	if _, err := f.ask(ctx, "divide", servers(p), path, d.shards, d.members+1, partitionBoundary.Milliseconds()); err != nil {
		return nil, err
	}
	s := sample{}
	for _, c := range changes {
		if err := p.settle(ctx); err != nil {
			return s, err
		}
		p.tally.reset()
		figures, err := f.ask(ctx, c.verb, limit.Milliseconds())
		if err != nil {
			return s, err
		}
		if len(figures) != 2 {
			return s, beyondError{limit}
		}
		if err := p.settle(ctx); err != nil {
			return s, err
		}
		s[c.time], s[c.moves], s[c.requests] = figures[0]/1e6, figures[1], float64(p.tally.get().requests)
	}
	return s, nil
}
