package main

import (
	"regexp"
	"time"
)

// sizes determine how much is measured.
type sizes struct {
	rounds int
	long   time.Duration // duration of a run that is compared with others
	short  time.Duration // duration of a run of one among many

	widths []int // numbers of concurrent callers

	waiters, depths, batches, members, sites, nodes []int

	clients []int // that contend for one lock, on all services
	crowd   []int // clients that wait for one lock, on all services
	watches []int // of one client, on all services

	divisions []division
	patience  time.Duration // of a change of their members

	together []int // locks of one caller

	consumers []int // of the queues that are compared
	batch     int   // items put and taken together in these queues
	producers []int // of the queues without a backlog
	backlog   int   // items in the queues that are drained

	callers, putters, handlers []int // of the groups with PostgreSQL
	fill                       int   // items in their queues

	idle int // waiters whose memory is measured
}

var fullSizes = sizes{
	rounds: 5, long: time.Second, short: 200 * time.Millisecond, widths: []int{1, 16, 64},
	waiters: []int{1, 10, 100, 1000}, depths: []int{0, 100, 1000, 10_000}, batches: []int{1, 10, 100, 1000},
	members: []int{2, 10, 50, 200}, sites: []int{1, 2, 5, 10, 20}, nodes: []int{1000, 10_000, 100_000}, idle: 500,
	clients: []int{8, 32}, crowd: []int{1000}, watches: []int{10_000},
	divisions: []division{{64, 3}, {64, 10}, {64, 100}, {1000, 3}, {1000, 10}, {1000, 100}, {10_000, 3}, {10_000, 10}, {10_000, 100}}, patience: time.Minute,
	together: []int{1, 3, 10}, consumers: []int{1, 8}, batch: 100, producers: []int{1, 4, 8}, backlog: 500,
	callers: []int{1, 8, 32}, putters: []int{1, 8}, handlers: []int{1, 64}, fill: 5000,
}

// quickSizes are only for a check that everything works. Two such runs agree less.
var quickSizes = sizes{
	rounds: 1, long: 120 * time.Millisecond, short: 30 * time.Millisecond, widths: []int{1, 16},
	waiters: []int{1, 10, 50}, depths: []int{0, 1000}, batches: []int{1, 100},
	members: []int{2, 20}, sites: []int{1, 5}, nodes: []int{1000}, idle: 200,
	clients: []int{4, 8}, crowd: []int{50}, watches: []int{500},
	divisions: []division{{64, 3}}, patience: 20 * time.Second,
	together: []int{1, 3, 10}, consumers: []int{1, 8}, batch: 10, producers: []int{1, 4, 8}, backlog: 40,
	callers: []int{1, 32}, putters: []int{1, 8}, handlers: []int{1, 64}, fill: 300,
}

// plan returns the groups whose names match, in the order in which they run. The physical
// limit comes first, since the others are compared with it, and the failovers last, since
// they change the leading server.
func plan(e *env, p *peers, s sizes, only *regexp.Regexp) ([]*group, error) {
	crowd, err := newDistantPlace(e.root, e.addrs, 0)
	if err != nil {
		return nil, err
	}
	e.atEnd(crowd.Close)
	us := append([]rival{native{ours}}, p.all...)
	natives := []*contestant{ours, leading}
	for _, r := range p.all {
		if n, ok := r.(native); ok {
			natives = append(natives, n.contestant)
		}
	}
	all := []*group{
		tripsGroup(e, p),
		callsGroup(e, s.widths, s.long),
		uncontendedGroup(e, us, s.widths, s.long),
		contendedGroup(e, us, s.long),
		handOverGroup(e, natives),
		insideGroup(e, us, s.long),
		sharedGroup(e, us, s.long),
		severalGroup(e, p, s.together, s.short),
		recipesGroup(e, e.memory, s.widths, s.short/4),
		recipesGroup(e, e.direct, s.widths, s.short),
		memoryGroup(e, s.idle), // before there are clients of etcd that have work of their own
		queueGroup(e, s.depths, s.batches, s.long/2),
		comparedQueuesGroup(e, p, s.consumers, s.batch, s.long),
		backlogGroup(e, p, s.consumers, s.backlog),
		loopGroup(e, p, s.producers, s.backlog),
		cacheGroup(e, p, s.nodes),
		waitersGroup(e, crowd, p, s.waiters),
		barrierGroup(e, crowd, p, s.members, s.long/2),
		commitGroup(e, crowd, s.sites, s.long/2),
		shardsGroup(e, crowd, p, s.divisions, s.patience),
	}
	all = append(all, servicesGroups(e, p, s)...)
	all = append(all, postgresGroups(e, p, s)...)
	all = append(all, failoverGroup(e, us, p))
	var groups []*group
	for _, g := range all {
		if only == nil || only.MatchString(g.name) {
			groups = append(groups, g)
		}
	}
	return groups, nil
}
