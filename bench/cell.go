package main

import (
	"context"
	"fmt"
	"time"
)

// A metric is something that a run of a cell measures.
type metric string

// The metrics, with their units.
const (
	mRate       metric = "rate"         // operations a second
	mP50        metric = "p50"          // µs that an operation takes, or a hand-over
	mP90        metric = "p90"          // µs
	mP99        metric = "p99"          // µs
	mMax        metric = "max"          // µs
	mTrips      metric = "trips"        // round trips one after the other, of one cycle
	mRoundTrips metric = "round_trips"  // that a time is as long as
	mRequests   metric = "requests"     // of all clients, pings not counted
	mBytesUp    metric = "bytes_up"     // in frames, pings not counted
	mBytesDown  metric = "bytes_down"   // likewise
	mEvents     metric = "events"       // watch events that the servers send
	mWoken      metric = "woken"        // clients that get one
	mPackets    metric = "packets"      // that the servers received, by their own count
	mAllocs     metric = "allocs"       // of this process
	mAllocated  metric = "alloc_bytes"  // of this process
	mCPU        metric = "cpu"          // µs of this process
	mServerCPU  metric = "server_cpu"   // µs of our servers
	mBusy       metric = "busy"         // per cent of the machine's processors
	mMemory     metric = "memory"       // bytes
	mTime       metric = "time"         // ms
	mTimeouts   metric = "timeouts"     // session timeouts
	mTripsOf    metric = "trips/"       // with the name of a step behind it
	mCounted    metric = "counted_over" // operations that exact figures are the mean of
)

// A sample is what one run of a cell measured.
type sample map[metric]float64

// Where a cell runs.
const (
	onMemory    = "memory"
	onZooKeeper = "ZooKeeper"
	onEtcd      = "etcd"
)

// Who is measured: the library, its physical limit, and its peers.
const (
	byCoord   = "coord"
	byRaw     = "raw client"
	byGoZK    = "go-zookeeper"
	byCurator = "Curator"
	byKazoo   = "kazoo"
	byEtcd    = "etcd"
)

// A name tells a cell from all others of a run.
type name struct {
	Group string  `json:"group"`
	What  string  `json:"what"`
	Who   string  `json:"who"`
	Where string  `json:"where"`
	Axis  string  `json:"axis,omitempty"` // what X counts: "callers"
	X     float64 `json:"x,omitempty"`
}

// String is for people.
func (n name) String() string {
	s := fmt.Sprintf("%s: %s, %s, %s", n.Group, n.What, n.Who, n.Where)
	if n.Axis != "" {
		s += fmt.Sprintf(", %g %s", n.X, n.Axis)
	}
	return s
}

// A cell is one thing that is measured, in each of a number of rounds. run has to
// make what it needs, and to end it, without measuring that.
type cell struct {
	name
	cost time.Duration // about what one run takes, for the time that is left
	run  func(ctx context.Context) (sample, error)
}

// A group is a number of cells that are compared, so their runs are interleaved:
// each round runs every cell once.
type group struct {
	name  string
	about string // what the group shows, for the report
	shown []metric
	cells []*cell
	// exact says that every round has the same result on any machine.
	exact bool
	fewer bool         // the rounds differ little, so there are fewer, as of what is exact
	warm  bool         // the rates of its cells are compared: one round more comes before the first
	end   func() error // of what only this group needs; may be nil
}

func (g *group) add(what, who, where string, cost time.Duration, run func(ctx context.Context) (sample, error)) *cell {
	c := &cell{name: name{Group: g.name, What: what, Who: who, Where: where}, cost: cost, run: run}
	g.cells = append(g.cells, c)
	return c
}

// at says what is varied from this cell to the next.
func (c *cell) at(axis string, x float64) { c.Axis, c.X = axis, x }
