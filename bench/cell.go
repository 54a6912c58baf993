package main

import (
	"context"
	"fmt"
	"time"
)

// A metric is a measured quantity of a run of a cell.
type metric string

// The metrics, with their units.
const (
	mRate       metric = "rate"         // operations per second
	mP50        metric = "p50"          // µs of an operation or a hand-over
	mP90        metric = "p90"          // µs
	mP99        metric = "p99"          // µs
	mMax        metric = "max"          // µs
	mTrips      metric = "trips"        // sequential round trips of one cycle
	mRoundTrips metric = "round_trips"  // a time as a number of round trips
	mRequests   metric = "requests"     // of all clients, without pings
	mBytesUp    metric = "bytes_up"     // in frames, without pings
	mBytesDown  metric = "bytes_down"   // in frames, without pings
	mEvents     metric = "events"       // watch events from the servers
	mWoken      metric = "woken"        // clients that get an event
	mPackets    metric = "packets"      // packets that the servers received, by their own count
	mAllocs     metric = "allocs"       // of this process
	mAllocated  metric = "alloc_bytes"  // of this process
	mCPU        metric = "cpu"          // µs of this process
	mServerCPU  metric = "server_cpu"   // µs of the servers that bench started
	mBusy       metric = "busy"         // per cent of the machine's processors
	mMemory     metric = "memory"       // bytes
	mTime       metric = "time"         // ms
	mTimeouts   metric = "timeouts"     // session timeouts
	mTripsOf    metric = "trips/"       // followed by the name of a step
	mCounted    metric = "counted_over" // number of operations whose mean the exact figures are
)

// A sample holds the measurements of one run of a cell.
type sample map[metric]float64

// The services on which a cell runs.
const (
	onMemory    = "memory"
	onZooKeeper = "ZooKeeper"
	onEtcd      = "etcd"
	onPostgres  = "PostgreSQL"
)

// The subjects of a measurement: the library, its physical limit, and its peers.
const (
	byCoord   = "coord"
	byRaw     = "raw client"
	byGoZK    = "go-zookeeper"
	byCurator = "Curator"
	// byNewer is the cache of Curator that replaces TreeCache.
	byNewer = "CuratorCache"
	byKazoo = "kazoo"
	byEtcd  = "etcd"
	// byPgx is the raw client of PostgreSQL.
	byPgx      = "pgx"
	byAdvisory = "advisory lock"
	byEarly    = byCoord + ", EarlyRelease"
	byRiver    = "river"
)

// A name identifies a cell of a run.
type name struct {
	Group string  `json:"group"`
	What  string  `json:"what"`
	Who   string  `json:"who"`
	Where string  `json:"where"`
	Axis  string  `json:"axis,omitempty"` // what X counts: "callers"
	X     float64 `json:"x,omitempty"`
}

// String formats the name for the reader.
func (n name) String() string {
	s := fmt.Sprintf("%s: %s, %s, %s", n.Group, n.What, n.Who, n.Where)
	if n.Axis != "" {
		s += fmt.Sprintf(", %g %s", n.X, n.Axis)
	}
	return s
}

// A cell is one measurement, repeated in each round. run prepares and cleans up outside of
// the measured time.
type cell struct {
	name
	crash string        // what a consumer's crash does to the item that it processes, for queues
	cost  time.Duration // approximate time of one run, to estimate the remaining time
	most  time.Duration // after which a run fails; 0 means cost and a grace
	run   func(ctx context.Context) (sample, error)
}

// A group is a set of cells to compare, so their runs are interleaved: each round runs every
// cell once.
type group struct {
	name  string
	about string // description of the group, for the report
	shown []metric
	cells []*cell
	// exact means that every round has the same result on any machine.
	exact bool
	fewer bool // the rounds differ little, so there are fewer, as for exact groups
	warm  int  // the rates of its cells are compared, so as many warm-up rounds come first
	// against are the cells of the raw client of PostgreSQL to which the first shown metric is
	// compared, in a column each.
	against []string
	end     func() error // cleans up after the group; may be nil
}

func (g *group) add(what, who, where string, cost time.Duration, run func(ctx context.Context) (sample, error)) *cell {
	c := &cell{name: name{Group: g.name, What: what, Who: who, Where: where}, cost: cost, run: run}
	g.cells = append(g.cells, c)
	return c
}

// at sets the quantity that varies between cells, and its value in this cell.
func (c *cell) at(axis string, x float64) { c.Axis, c.X = axis, x }
