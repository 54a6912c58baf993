package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/zktest"
)

const (
	// sessionTimeout is long: no measurement here is about expired sessions, except the
	// failovers, which have failoverTimeout.
	sessionTimeout = 20 * time.Second
	// nearOneWay and farOneWay are distances at which contended locks are compared: to
	// servers in the next building, and in the next town.
	nearOneWay = time.Millisecond
	farOneWay  = 5 * time.Millisecond
	// countedOneWay is long compared with all work, so that the time of an operation shows
	// its exact number of round trips.
	countedOneWay = 20 * time.Millisecond
)

// An env is the environment of the cells.
type env struct {
	ensemble *zktest.Ensemble // nil for given servers
	addrs    []string
	root     string // all nodes of this run are below it
	raw      *zk.Conn

	memory  *place
	direct  *place // the servers
	near    *place // the same, nearOneWay away
	far     *place // the same, farOneWay away
	counted *place // the same, countedOneWay away, and frames are counted

	numbers atomic.Int64
	mu      sync.Mutex
	ends    []func() error
}

// newEnv starts three servers, or uses the given ones.
func newEnv(ctx context.Context, servers []string, fsync, quick bool, notes io.Writer) (_ *env, err error) {
	e := &env{addrs: servers, root: fmt.Sprintf("/coord-bench-%d", time.Now().UnixNano())}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if len(servers) == 0 {
		fmt.Fprintln(notes, "starting three ZooKeeper servers")
		args := []string{"-Xmx512m"}
		if !quick {
			args = append(args, "-XX:TieredStopAtLevel=4") // the optimizing compiler, as on servers that run for a long time
		}
		e.ensemble, err = zktest.Start(ctx, &zktest.Options{
			Servers: 3, ForceSync: fsync, MaxSessionTimeout: time.Minute, JavaArgs: args,
		})
		if err != nil {
			return e, err
		}
		e.atEnd(e.ensemble.Close)
		e.addrs = e.ensemble.Addrs()
	}
	if e.raw, err = dialRaw(ctx, e.addrs, sessionTimeout); err != nil {
		return e, err
	}
	e.atEnd(func() error { e.raw.Close(); return nil })
	if _, err := e.raw.Create(e.root, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		return e, fmt.Errorf("create %s: %w", e.root, err)
	}
	e.atEnd(e.removeNodes)
	e.memory = &place{where: onMemory, root: e.root, store: memory.New(&memory.Options{SessionTimeout: sessionTimeout})}
	e.direct = &place{where: onZooKeeper, root: e.root, addrs: e.addrs}
	e.atEnd(e.memory.Close)
	e.atEnd(e.direct.Close)
	if e.near, err = newDistantPlace(e.root, e.addrs, nearOneWay); err != nil {
		return e, err
	}
	e.atEnd(e.near.Close)
	if e.far, err = newDistantPlace(e.root, e.addrs, farOneWay); err != nil {
		return e, err
	}
	e.atEnd(e.far.Close)
	if e.counted, err = newDistantPlace(e.root, e.addrs, countedOneWay); err != nil {
		return e, err
	}
	e.atEnd(e.counted.Close)
	return e, nil
}

// atEnd registers f for Close, which calls the latest first.
func (e *env) atEnd(f func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ends = append(e.ends, f)
}

// Close ends everything that was started for the run.
func (e *env) Close() error {
	e.mu.Lock()
	ends := e.ends
	e.ends = nil
	e.mu.Unlock()
	var err error
	for i := len(ends) - 1; i >= 0; i-- {
		err = errors.Join(err, ends[i]())
	}
	return err
}

// path returns an unused path below the namespace of coord's clients. All paths have the same
// length, for the count of bytes.
func (e *env) path() string { return fmt.Sprintf("/c%07d", e.numbers.Add(1)) }

// removeNodes removes the nodes of the run from given servers.
func (e *env) removeNodes() error {
	if e.ensemble != nil {
		return nil // servers of bench end with their data
	}
	return removeTree(e.raw, e.root)
}

func removeTree(c *zk.Conn, path string) error {
	names, _, err := c.Children(path)
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	for _, n := range names {
		if err := removeTree(c, path+"/"+n); err != nil {
			return err
		}
	}
	if err := c.Delete(path, -1); err != nil && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNotEmpty) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// packets returns the number of requests that the servers have received by their own count,
// including pings and all clients. It is known only for servers that bench has started.
func (e *env) packets(ctx context.Context) (n float64, known bool) {
	if e.ensemble == nil {
		return 0, false
	}
	for _, s := range e.ensemble.Servers() {
		m, err := s.Mntr(ctx)
		if err != nil {
			return 0, false
		}
		k, err := strconv.ParseFloat(m["zk_packets_received"], 64)
		if err != nil {
			return 0, false
		}
		n += k
	}
	return n, true
}

// processors returns the processor time so far of the servers that bench started.
func (e *env) processors() (sum time.Duration, known bool) {
	if e.ensemble == nil {
		return 0, false
	}
	for _, s := range e.ensemble.Servers() {
		t, ok := processorTimeOf(s.Pid())
		if !ok {
			return 0, false
		}
		sum += t
	}
	return sum, true
}

// A meter counts the requests and the processor time of the servers while a cell hammers
// them, and not while the cell prepares.
type meter struct {
	requests   func(ctx context.Context) (n float64, known bool)
	processors func() (sum time.Duration, known bool)
	own        float64 // requests of one reading
}

type meterKey struct{}

// metered returns a context with which hammer and contend count requests, if where is the
// servers without a proxy.
func (e *env) metered(ctx context.Context, where string) context.Context {
	if where != onZooKeeper {
		return ctx
	}
	// The four-letter words themselves are packets.
	return context.WithValue(ctx, meterKey{}, &meter{e.packets, e.processors, float64(len(e.addrs))})
}

// startMeter begins to count. The returned function adds the count for each of n operations
// to a sample.
func startMeter(ctx context.Context) (stop func(s sample, n int)) {
	usedBefore, allBefore, machine := machineTime()
	var packets float64
	var used time.Duration
	var counted, timed bool
	m, ours := ctx.Value(meterKey{}).(*meter)
	if ours {
		packets, counted = m.requests(ctx)
		used, timed = m.processors()
	}
	return func(s sample, n int) {
		if n == 0 {
			return
		}
		if now, all, ok := machineTime(); ok && machine && all > allBefore {
			s[mBusy] = 100 * float64(now-usedBefore) / float64(all-allBefore)
		}
		if !ours {
			return
		}
		if now, ok := m.processors(); ok && timed {
			s[mServerCPU] = micros(now-used) / float64(n)
		}
		if now, ok := m.requests(ctx); ok && counted {
			s[mPackets] = max(0, now-packets-m.own) / float64(n)
		}
	}
}

// mDone is the number of operations of a run. It is not a result.
const mDone metric = "done"
