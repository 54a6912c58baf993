package main

import (
	"fmt"
	"math"
	"strings"
)

// A target is a bound that the library has to reach.
type target struct {
	Name    string  `json:"name"`
	AtLeast bool    `json:"at_least"` // otherwise at most
	Bound   float64 `json:"bound"`
	Figure  float64 `json:"figure"`
	Known   bool    `json:"known"` // measured in this run
	Met     bool    `json:"met"`
}

func (t target) String() string {
	want := "≤"
	if t.AtLeast {
		want = "≥"
	}
	if !t.Known {
		return fmt.Sprintf("%s: want %s %g, not measured", t.Name, want, t.Bound)
	}
	met := "met"
	if !t.Met {
		met = "NOT MET"
	}
	return fmt.Sprintf("%s: %s, want %s %g: %s", t.Name, number(t.Figure), want, t.Bound, met)
}

// judge compares the results with the targets.
func judge(results []*result) []target {
	j := &judgement{results: results}
	for _, n := range fullSizes.widths {
		pairs := j.cell("uncontended", whatPairs, byRaw, onZooKeeper, float64(n))
		j.ratio(fmt.Sprintf("uncontended lock, %d callers, as a part of create and delete pairs", n), 0.85,
			j.cell("uncontended", whatCycle, byCoord, onZooKeeper, float64(n)), pairs)
		j.ratio(fmt.Sprintf("the same with the watch on its own node, %d callers", n), 0.65,
			j.cell("uncontended", whatWatched, byCoord, onZooKeeper, float64(n)), pairs)
	}
	between := "contended between clients"
	far := fmt.Sprintf("%s, %v each way", onZooKeeper, farOneWay)
	j.ratio("contended between clients, times go-zookeeper's Lock", 1.3,
		j.cell(between, whatContend, byCoord, onZooKeeper, 8), j.cell(between, whatContend, byGoZK, onZooKeeper, 8))
	j.ratio(fmt.Sprintf("contended between clients, %v each way, times go-zookeeper's Lock", farOneWay), 1.7,
		j.cell(between, whatContend, byCoord, far, 8), j.cell(between, whatContend, byGoZK, far, 8))
	j.ratio("contended inside a process, times Curator's InterProcessMutex", 3,
		j.cell("contended inside a process", whatContend, byCoord, onZooKeeper, 16),
		j.cell("contended inside a process", whatContend, byCurator, onZooKeeper, 16))
	j.ratio("lock that the same client keeps, 1 callers, times the fastest peer", 100,
		j.cell("uncontended", whatCycle, keeping.who, onZooKeeper, 1), j.fastestPeer("uncontended", whatCycle, 1))
	j.ratio("contended inside a process, kept, times Curator's InterProcessMutex", 20,
		j.cell("contended inside a process", whatContend, keeping.who, onZooKeeper, 16),
		j.cell("contended inside a process", whatContend, byCurator, onZooKeeper, 16))
	for _, x := range []struct{ what, name string }{{whatContend, "two clients contend"}, {whatAlternate, whatAlternate}} {
		j.ratio(x.name+", kept, as a part of no Keep", 0.95,
			j.cell(sharedLocks, x.what, keeping.who, onZooKeeper, 2), j.cell(sharedLocks, x.what, byCoord, onZooKeeper, 2))
	}
	j.ratio("items through a queue in batches, times Curator's SimpleDistributedQueue", 10,
		j.best("queues", whatBatches, byCoord), j.best(queuesCompared, whatSimple, byCurator))
	for _, n := range fullSizes.consumers {
		for _, x := range []struct {
			loses bool
			which string
			bound float64
		}{{true, "can lose", 1}, {false, "never loses", 2}} {
			j.ratio(fmt.Sprintf("items one at a time, %d consumers, times the fastest peer that %s an item", n, x.which), x.bound,
				j.cell(queuesCompared, whatTake, byCoord, onZooKeeper, float64(n)), j.fastestQueue(queuesCompared, x.loses, float64(n)))
		}
		j.ratio(fmt.Sprintf("items popped, %d consumers, times the fastest peer that can lose an item", n), 1,
			j.cell(queuesCompared, whatPop, byCoord, onZooKeeper, float64(n)), j.fastestQueue(queuesCompared, true, float64(n)))
	}
	for _, x := range []struct {
		consumers float64
		loses     bool
		which     string
		bound     float64
	}{{1, true, "can lose", 1.2}, {8, true, "can lose", 1.7}, {8, false, "never loses", 2}} {
		j.ratio(fmt.Sprintf("items of a backlog, %g consumers, times the fastest peer that %s an item", x.consumers, x.which), x.bound,
			j.cell(queueBacklogs, whatHandler, byCoord, onZooKeeper, x.consumers), j.fastestQueue(queueBacklogs, x.loses, x.consumers))
	}
	j.ratio("items of a backlog with Prefetch, 1 consumers, times the fastest peer that can lose an item", 1.2,
		j.cell(queueBacklogs, whatStocked, byCoord, onZooKeeper, 1), j.fastestQueue(queueBacklogs, true, 1))
	j.ratio("items of a backlog, 1 consumers, as a part of its commits without a queue", 0.85,
		j.cell(queueBacklogs, whatHandler, byCoord, onZooKeeper, 1), j.cell(queueBacklogs, whatRawWork, byRaw, onZooKeeper, 1))
	j.ratio("items one at a time, 1 consumers, as a part of the same requests without a queue", 0.85,
		j.cell(queuesCompared, whatTake, byCoord, onZooKeeper, 1), j.cell(queuesCompared, whatTaking, byRaw, onZooKeeper, 1))
	j.ratio("items popped, 1 consumers, as a part of the same requests without a queue", 0.85,
		j.cell(queuesCompared, whatPop, byCoord, onZooKeeper, 1), j.cell(queuesCompared, whatPopping, byRaw, onZooKeeper, 1))

	for _, n := range fullSizes.widths {
		j.ratio(fmt.Sprintf("on etcd: uncontended lock, %d callers, as a part of concurrency's Mutex", n), 0.9,
			j.cell(servicesUncontended, whatCycle, byCoord, onEtcd, float64(n)), j.cell(servicesUncontended, whatCycle, byEtcd, onEtcd, float64(n)))
	}
	for _, n := range fullSizes.clients {
		j.ratio(fmt.Sprintf("on etcd: contended, %d clients, times concurrency's Mutex", n), 3,
			j.cell(servicesContended, whatContend, byCoord, onEtcd, float64(n)), j.cell(servicesContended, whatContend, byEtcd, onEtcd, float64(n)))
	}
	j.atMost("on etcd: hand-over to another client: round trips", 1.2, j.cell(servicesHandOver, "hand-over", byCoord, onEtcd, 9), mRoundTrips, 1)
	j.atMost("on etcd: change of leader after a resignation: round trips", 1.2, j.cell(servicesHandOver, "hand-over", leading.who, onEtcd, 9), mRoundTrips, 1)

	j.atMost("on PostgreSQL: hand-over to another client: round trips", 1.2, j.cell(pgHandOver, whatHandOver, byCoord, onPostgres, 9), mRoundTrips, 1)
	pgFlush := j.cell(pgUncontended, whatFlush, byPgx, onPostgres, 1)
	j.ratio("on PostgreSQL: uncontended lock, 32 callers, times one flush after the other", 5,
		j.cell(pgUncontended, whatCycle, byCoord, onPostgres, 32), pgFlush)
	items := float64(batchOf(fullSizes.fill))
	j.ratio("on PostgreSQL: PutAll, times river's InsertMany", 1,
		j.cell(pgQueues, whatPutAll, byCoord, onPostgres, items), j.cell(pgQueues, whatPutAll, byRiver, onPostgres, items))
	worked := j.cell(pgQueues, whatWork, byCoord, onPostgres, 64)
	j.ratio("on PostgreSQL: Work with 64 handlers, times river", 1, worked, j.cell(pgQueues, whatWork, byRiver, onPostgres, 64))
	j.ratio("on PostgreSQL: Work with 64 handlers, times river with a FetchCooldown of 1ms", 1, worked, j.cell(pgQueues, whatEager, byRiver, onPostgres, 64))

	for _, n := range fullSizes.together {
		j.atMost(fmt.Sprintf("LockAll of %d free locks: round trips", n), 1, j.cell(severalLocks, whatTogether, byCoord, onZooKeeper, float64(n)), mTripsOf+"Lock", 1)
	}
	for _, d := range []division{{1000, 10}, {10_000, 100}} {
		r := j.cell(shardsGroupName, d.what(), byCoord, onZooKeeper, float64(d.members))
		for _, x := range []struct {
			verb string
			m    metric
		}{{"joins", mJoinMoves}, {"leaves", mLeaveMoves}} {
			j.atMost(fmt.Sprintf("moves of %d shards when a member %s %d others", d.shards, x.verb, d.members), math.Floor(d.mostMoves()), r, x.m, 1)
		}
	}
	mutex := j.cell("costs", "Mutex", byCoord, onZooKeeper, 0)
	j.atMost("uncontended lock: round trips", 1, mutex, mTripsOf+"Lock", 1)
	j.atMost("uncontended release: round trips", 1, mutex, mTripsOf+"Release", 1)
	j.atMost("uncontended cycle: requests", 2, mutex, mRequests, 1)
	j.atMost("hand-over to another client: round trips", 1.2, j.cell("hand-over", "hand-over", byCoord, onZooKeeper, 9), mRoundTrips, 1)
	j.atMost("change of leader after a resignation: round trips", 1.2, j.cell("hand-over", "hand-over", leading.who, onZooKeeper, 9), mRoundTrips, 1)
	j.atMost("hand-over inside a process: requests", 1.1, j.cell("contended inside a process", whatContend, byCoord, onZooKeeper, 16), mPackets, 1)
	for _, r := range results {
		if r.Group == "waiters" && r.Who == byCoord {
			j.atMost(fmt.Sprintf("clients woken by a release, %g waiters", r.X), 2, r, mWoken, 1)
		}
	}
	j.atMost("put in a batch: round trips an item", 0.02, j.cell("costs", "Queue, batches of 100", byCoord, onZooKeeper, 0), mTripsOf+"PutAll", 0.01)
	onStore := j.cell("recipes on memory", "Mutex", byCoord, onMemory, 1)
	j.atMost("lock and release on memory: µs", 2, onStore, mP50, 1)
	j.atMost("lock and release on memory: allocations", 10, onStore, mAllocs, 1)
	for _, n := range fullSizes.widths {
		for _, what := range []string{whatGet, whatPairs} {
			j.cost(fmt.Sprintf("processor time of %s, %d callers, as a part of go-zookeeper's", what, n), 1, mCPU,
				j.cell("calls", what, byCoord, onZooKeeper, float64(n)), j.cell("calls", what, byRaw, onZooKeeper, float64(n)))
		}
		j.atMost(fmt.Sprintf("allocations of get, %d callers", n), 3, j.cell("calls", whatGet, byCoord, onZooKeeper, float64(n)), mAllocs, 1)
	}
	cache := j.cell("caches", whatSync, byCoord, onZooKeeper, 10_000)
	j.cost("first copy of 10000 nodes: time, as a part of Curator's TreeCache", 0.1, mTime, cache, j.cell("caches", whatSync, byCurator, onZooKeeper, 10_000))
	j.cost("first copy of 10000 nodes: time, as a part of CuratorCache", 0.1, mTime, cache, j.cell("caches", whatSync, byNewer, onZooKeeper, 10_000))
	j.atMost("first copy of 10000 nodes: requests", 210, cache, mPackets, 1)
	j.atMost("heap of a cache of 10000 nodes: bytes a node", 500, cache, mMemory, 1)
	return j.targets
}

type judgement struct {
	results []*result
	targets []target
}

func (j *judgement) cell(group, what, who, where string, x float64) *result {
	return find(j.results, func(r *result) bool {
		return r.Group == group && r.What == what && r.Who == who && r.Where == where && r.X == x
	})
}

// best returns the fastest of the cells that differ in one number.
func (j *judgement) best(group, what, who string) (best *result) {
	for _, r := range j.results {
		if r.Error != "" || r.Group != group || r.What != what || r.Who != who {
			continue
		}
		if best == nil || r.Figures[mRate].Median > best.Figures[mRate].Median {
			best = r
		}
	}
	return best
}

// fastestPeer returns the fastest cell of another library.
func (j *judgement) fastestPeer(group, what string, x float64) (fastest *result) {
	for _, r := range j.results {
		if r.Error != "" || r.Group != group || r.What != what || r.X != x || r.Who == byRaw || strings.HasPrefix(r.Who, byCoord) {
			continue
		}
		if fastest == nil || r.Figures[mRate].Median > fastest.Figures[mRate].Median {
			fastest = r
		}
	}
	return fastest
}

// fastestQueue returns the fastest queue of a peer that moves one item at a time and loses the
// item with a consumer that crashes, or does not.
func (j *judgement) fastestQueue(group string, loses bool, consumers float64) (fastest *result) {
	for _, r := range j.results {
		if r.Error != "" || r.Group != group || r.Who == byCoord || r.Who == byRaw || isBatched(r.What) || r.X != consumers || (r.Crash == crashLoses) != loses {
			continue
		}
		if fastest == nil || r.Figures[mRate].Median > fastest.Figures[mRate].Median {
			fastest = r
		}
	}
	return fastest
}

// ratio requires that one rate is a multiple of another.
func (j *judgement) ratio(name string, bound float64, r, to *result) {
	t := target{Name: name, AtLeast: true, Bound: bound}
	if r != nil && to != nil {
		if figure, ok := ratio(mRate, r, to); ok {
			t.Figure, t.Known, t.Met = figure, true, figure >= bound
		}
	}
	j.targets = append(j.targets, t)
}

// cost requires that the cost of one cell is at most a multiple of the cost of another.
func (j *judgement) cost(name string, bound float64, m metric, r, to *result) {
	t := target{Name: name, Bound: bound}
	if r != nil && to != nil {
		if figure, ok := ratio(m, r, to); ok {
			t.Figure, t.Known, t.Met = figure, true, figure <= bound
		}
	}
	j.targets = append(j.targets, t)
}

// atMost requires that a figure, scaled, is not more than its bound.
func (j *judgement) atMost(name string, bound float64, r *result, m metric, scale float64) {
	t := target{Name: name, Bound: bound}
	if r != nil {
		if f, ok := r.Figures[m]; ok {
			t.Figure, t.Known = f.Median*scale, true
			t.Met = t.Figure <= bound
		}
	}
	j.targets = append(j.targets, t)
}
