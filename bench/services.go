package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// The groups of this file compare coord on its three backends, and on etcd with what etcd's own
// client brings: package concurrency (Mutex, Election, STM) and watches.
const (
	servicesUncontended = "services: uncontended"
	servicesContended   = "services: contended between clients"
	servicesHandOver    = "services: hand-over"
	servicesUpdates     = "services: updates"
	servicesWaiters     = "services: waiters"
	servicesWatches     = "services: watches"
)

// The names of cells that targets refer to.
const (
	whatOwn    = "add to a number of its own"
	whatShared = "add to one number"
)

// An entrant is a contestant and the place of its clients.
type entrant struct {
	*contestant
	p *place
}

// onMemoryToo is this library on the memory backend.
var onMemoryToo = &contestant{who: byCoord, where: onMemory, dial: dialCoord}

// coord is this library on the cluster.
func (x *etcdCluster) coord() *contestant {
	return &contestant{who: byCoord, where: onEtcd, dial: func(ctx context.Context, p *place, i int, timeout time.Duration) (connection, error) {
		addrs, err := x.at(p, x.addrs)
		if err != nil {
			return nil, err
		}
		b := etcd.New(addrs[i%len(addrs):i%len(addrs)+1], &etcd.Options{SessionTimeout: timeout})
		c, err := coord.Open(ctx, b, &coord.Options{Namespace: p.root})
		if err != nil {
			return nil, err
		}
		return &coordConn{c: c, root: p.root}, nil
	}}
}

// leading is coord's election on the cluster, used as a lock.
func (x *etcdCluster) leading() *contestant {
	ours := x.coord()
	return &contestant{who: leading.who, where: onEtcd, dial: func(ctx context.Context, p *place, i int, timeout time.Duration) (connection, error) {
		c, err := ours.dial(ctx, p, i, timeout)
		if err != nil {
			return nil, err
		}
		return &electionConn{c.(*coordConn)}, nil
	}}
}

// election is concurrency.Election, used as a lock.
func (x *etcdCluster) election() *contestant {
	mutex := x.contestant()
	return &contestant{who: byEtcd + " election", where: onEtcd, dial: func(ctx context.Context, p *place, i int, timeout time.Duration) (connection, error) {
		c, err := mutex.dial(ctx, p, i, timeout)
		if err != nil {
			return nil, err
		}
		return &etcdElection{c.(*etcdConn)}, nil
	}}
}

type etcdElection struct{ *etcdConn }

func (x *etcdElection) locker(ctx context.Context, path string, caller int) (locker, error) {
	s, err := x.session(ctx, caller)
	if err != nil {
		return nil, err
	}
	e := concurrency.NewElection(s, path)
	return func(ctx context.Context) (func() error, error) {
		if err := e.Campaign(ctx, "a"); err != nil {
			return nil, err
		}
		return func() error { return e.Resign(context.WithoutCancel(ctx)) }, nil
	}, nil
}

// metered returns a context with which the cells of a service count its requests.
func (p *peers) metered(ctx context.Context, e *env, where string) context.Context {
	switch where {
	case onEtcd:
		return p.etcd.metered(ctx)
	case onPostgres:
		return p.postgres.metered(ctx)
	}
	return e.metered(ctx, where)
}

// mutexes returns the locks to compare, and elections those whose holders lead.
func (p *peers) mutexes(e *env, far *place) []entrant {
	all := []entrant{{ours, far}}
	if far == e.direct {
		all = append(all, entrant{onMemoryToo, e.memory})
	}
	if p.etcd != nil {
		all = append(all, entrant{p.etcd.coord(), far}, entrant{p.etcd.contestant(), far})
	}
	return all
}

func (p *peers) elections(far *place) []entrant {
	all := []entrant{{leading, far}}
	if p.etcd != nil {
		all = append(all, entrant{p.etcd.leading(), far}, entrant{p.etcd.election(), far})
	}
	return all
}

// servicesGroups are the groups that compare the services.
func servicesGroups(e *env, p *peers, s sizes) []*group {
	shown := []metric{mRate, mP50, mP99, mAllocs, mCPU, mServerCPU, mPackets}
	lone := &group{name: servicesUncontended, warm: 1, shown: shown,
		about: "Callers of one client, each with a lock of its own, on each service; on etcd beside package concurrency, whose Mutex and Election have no token."}
	many := &group{name: servicesContended, warm: 1, shown: shown,
		about: "Clients with a session each take turns with one lock, or lead in turns, and hold it for no time. The times are those of a hand-over."}
	for _, x := range append(p.mutexes(e, e.direct), p.elections(e.direct)...) {
		for _, n := range s.widths {
			lone.add(whatCycle, x.who, x.where, s.long+time.Duration(n)*5*time.Millisecond, func(ctx context.Context) (sample, error) {
				return native{x.contestant}.cycles(p.metered(ctx, e, x.where), x.p, e.root+e.path(), n, s.long)
			}).at("callers", float64(n))
		}
		for _, n := range s.clients {
			many.add(whatContend, x.who, x.where, s.long+time.Duration(n)*30*time.Millisecond, func(ctx context.Context) (sample, error) {
				return native{x.contestant}.contend(p.metered(ctx, e, x.where), x.p, e.root+e.path(), n, false, s.long)
			}).at("clients", float64(n))
		}
	}
	var who []*contestant
	for _, x := range append(p.mutexes(e, e.counted), p.elections(e.counted)...) {
		who = append(who, x.contestant)
	}
	over := handOverGroup(e, who)
	over.name = servicesHandOver
	for _, c := range over.cells {
		c.Group = servicesHandOver
	}
	return []*group{lone, many, over, updatesGroup(e, p, s), crowdGroup(e, p, s.crowd), watchesGroup(e, p, s.watches)}
}

// updatesGroup compares read-modify-write: coord's Counter and etcd's STM.
func updatesGroup(e *env, p *peers, s sizes) *group {
	g := &group{name: servicesUpdates, warm: 1, shown: []metric{mRate, mP50, mP99, mPackets, mCPU, mServerCPU},
		about: "Adding one to a number: coord's Counter on each service, and on etcd also the STM of package concurrency. " +
			"Callers of one client have a number each, or clients add to the same one."}
	all := p.mutexes(e, e.direct)
	for _, x := range all {
		who := x.who
		if who == byEtcd {
			who += " STM"
		}
		run := func(ctx context.Context, clients, callers int) (sample, error) {
			ctx = p.metered(ctx, e, x.where)
			conns, err := x.p.conns(ctx, x.contestant, clients)
			if err != nil {
				return nil, err
			}
			path := e.root + e.path()
			var steps []step
			for i := range max(clients, callers) {
				at := path
				if callers > 1 {
					at = fmt.Sprintf("%s-%03d", path, i)
				}
				add := adding(conns[i%len(conns)], at)
				if err := add(ctx); err != nil { // it makes the node
					return nil, err
				}
				steps = append(steps, add)
			}
			return hammer(ctx, s.long, steps)
		}
		for _, n := range s.widths {
			g.add(whatOwn, who, x.where, s.long, func(ctx context.Context) (sample, error) { return run(ctx, 1, n) }).at("callers", float64(n))
		}
		for _, n := range s.clients {
			g.add(whatShared, who, x.where, s.long, func(ctx context.Context) (sample, error) { return run(ctx, n, 1) }).at("clients", float64(n))
		}
	}
	return g
}

// adding returns a step that adds one to the number at an absolute path.
func adding(c connection, path string) step {
	if x, ok := c.(*coordConn); ok {
		n := coord.NewCounter(x.c, path[len(x.root):])
		return func(ctx context.Context) error { _, err := n.Add(ctx, 1); return err }
	}
	x := c.(*etcdConn)
	return func(ctx context.Context) error {
		_, err := concurrency.NewSTM(x.c, func(s concurrency.STM) error {
			n, _ := strconv.ParseInt(s.Get(path), 10, 64) // zero at first
			s.Put(path, strconv.FormatInt(n+1, 10))
			return nil
		}, concurrency.WithAbortContext(ctx))
		return err
	}
}

// crowdGroup measures hand-overs while many clients wait.
func crowdGroup(e *env, p *peers, crowd []int) *group {
	g := &group{name: servicesWaiters, shown: []metric{mP50, mP90, mMax}, fewer: true,
		about: "Clients with a session each wait for one lock. The times are those of a hand-over; each holder keeps the lock for 20 ms."}
	at := &place{where: onZooKeeper, root: e.root, addrs: e.addrs}
	g.end = at.Close
	all := p.mutexes(e, at)
	for _, x := range all {
		for _, n := range crowd {
			g.add(whatContend, x.who, x.where, 2*time.Second+time.Duration(n)*20*time.Millisecond, func(ctx context.Context) (sample, error) {
				return e.crowd(ctx, x, n)
			}).at("waiters", float64(n))
		}
	}
	return g
}

// crowd makes n clients wait for a lock, and measures some hand-overs.
func (e *env) crowd(ctx context.Context, x entrant, n int) (sample, error) {
	const hold, turns = 20 * time.Millisecond, 20
	conns, err := x.p.conns(ctx, x.contestant, n+1)
	if err != nil {
		return nil, err
	}
	path := e.root + e.path()
	life, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	granted := make(chan func() error)
	// The holder is the first: the others queue behind it.
	first, err := conns[0].locker(ctx, path, 0)
	if err != nil {
		return nil, err
	}
	release, err := first(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range conns[1:] {
		lock, err := c.locker(ctx, path, 0)
		if err != nil {
			return nil, err
		}
		wg.Go(func() {
			release, err := lock(life)
			if err != nil {
				if life.Err() == nil {
					cancel(err)
				}
				return
			}
			select {
			case granted <- release:
			case <-life.Done():
				_ = release() // the run is over
			}
		})
	}
	for {
		queued, err := contenders(life, conns[0], path)
		if err != nil {
			return nil, err
		}
		if queued > n {
			break
		}
		if err := sleep(life, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
	if err := sleep(life, 200*time.Millisecond); err != nil { // they arm their watches
		return nil, err
	}
	var times []time.Duration
	for range min(turns, n) {
		if err := sleep(life, hold); err != nil {
			return nil, err
		}
		began := time.Now()
		released := make(chan error, 1)
		go func(release func() error) { released <- release() }(release)
		select {
		case release = <-granted:
			times = append(times, time.Since(began))
		case <-life.Done():
			return nil, context.Cause(life)
		}
		if err := <-released; err != nil {
			return nil, err
		}
	}
	s := sample{}
	s.addTimes(times)
	return s, release()
}

// contenders returns how many clients hold or wait.
func contenders(ctx context.Context, c connection, path string) (int, error) {
	if x, ok := c.(*coordConn); ok {
		all, err := coord.NewMutex(x.c, path[len(x.root):], nil).Contenders(ctx)
		return len(all), err
	}
	r, err := c.(*etcdConn).c.Get(ctx, path+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return int(r.Count), nil
}

// A watching is a client that watches nodes.
type watching interface {
	// create makes nodes.
	create(ctx context.Context, paths []string) error
	// watch watches a node, and returns when the service has the watch. The channel is closed
	// after the next change.
	watch(ctx context.Context, path string) (<-chan struct{}, error)
	// write changes a node, through another client.
	write(ctx context.Context, path string) error
	close()
}

// watchesGroup measures one client with many watches.
func watchesGroup(e *env, p *peers, counts []int) *group {
	g := &group{name: servicesWatches, shown: []metric{mTime, mP50, mP99}, fewer: true,
		about: "One client watches that many nodes. The time is that of arming the watches, 64 at a time; " +
			"the others are those from a write of another client to the event, one after the other."}
	all := p.mutexes(e, e.direct)
	if p.all != nil {
		all = append(all, entrant{goZK, e.direct})
	}
	for _, x := range all {
		for _, n := range counts {
			g.add("watches", x.who, x.where, 2*time.Second+time.Duration(n)*500*time.Microsecond, func(ctx context.Context) (sample, error) {
				return e.watches(ctx, x, n)
			}).at("watches", float64(n))
		}
	}
	return g
}

func (e *env) watches(ctx context.Context, x entrant, n int) (_ sample, err error) {
	conns, err := x.p.conns(ctx, x.contestant, 2)
	if err != nil {
		return nil, err
	}
	w, err := newWatching(ctx, conns)
	if err != nil {
		return nil, err
	}
	defer w.close()
	path := e.root + e.path()
	paths := []string{path}
	if err := w.create(ctx, paths); err != nil {
		return nil, err
	}
	paths = paths[:0]
	for i := range n {
		paths = append(paths, fmt.Sprintf("%s/n%06d", path, i))
	}
	if err := w.create(ctx, paths); err != nil {
		return nil, err
	}
	fired := make([]<-chan struct{}, n)
	const lanes = 64
	began := time.Now()
	err = atOnce(lanes, func(k int) error {
		for i := k; i < n; i += lanes {
			var err error
			if fired[i], err = w.watch(ctx, paths[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s := sample{mTime: millis(time.Since(began))}
	var times []time.Duration
	const events = 100
	for k := range min(events, n) {
		i := k * n / min(events, n)
		began := time.Now()
		if err := w.write(ctx, paths[i]); err != nil {
			return nil, err
		}
		select {
		case <-fired[i]:
			times = append(times, time.Since(began))
		case <-ctx.Done():
			return nil, fmt.Errorf("no event of %s: %w", paths[i], context.Cause(ctx))
		}
	}
	s.addTimes(times)
	return s, nil
}

func newWatching(ctx context.Context, conns []connection) (watching, error) {
	switch x := conns[0].(type) {
	case *coordConn:
		var s [2]backend.Session
		for i := range s {
			own, err := conns[i].(*coordConn).c.Session(ctx)
			if err != nil {
				return nil, err
			}
			s[i] = own
		}
		return &coordWatching{s: s}, nil
	case *zkConn:
		return &zkWatching{[2]*zk.Conn{x.c, conns[1].(*zkConn).c}}, nil
	case *etcdConn:
		life, cancel := context.WithCancel(context.WithoutCancel(ctx))
		return &etcdWatching{[2]*clientv3.Client{x.c, conns[1].(*etcdConn).c}, life, cancel}, nil
	}
	return nil, errors.New("no watches")
}

type coordWatching struct {
	s    [2]backend.Session
	mu   sync.Mutex
	mine []*backend.Watch
}

func (x *coordWatching) create(ctx context.Context, paths []string) error {
	const most = 50
	for ; len(paths) > 0; paths = paths[min(most, len(paths)):] {
		var ops []backend.Op
		for _, path := range paths[:min(most, len(paths))] {
			ops = append(ops, backend.Create(path, []byte(payload), backend.Persistent))
		}
		if _, err := x.s[1].Commit(ctx, ops...); err != nil {
			return err
		}
	}
	return nil
}

func (x *coordWatching) watch(ctx context.Context, path string) (<-chan struct{}, error) {
	w := backend.NewWatch()
	_, err := x.s[0].Exists(ctx, path, w)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mine = append(x.mine, w)
	return w.Fired(), err
}

func (x *coordWatching) write(ctx context.Context, path string) error {
	_, err := x.s[1].Commit(ctx, backend.SetData(path, []byte(payload), backend.AnyVersion))
	return err
}

func (x *coordWatching) close() {
	for _, w := range x.mine {
		w.Stop()
	}
}

type zkWatching struct{ c [2]*zk.Conn }

func (x *zkWatching) create(_ context.Context, paths []string) error {
	return atOnce(len(paths), func(i int) error {
		_, err := x.c[1].Create(paths[i], []byte(payload), 0, zk.WorldACL(zk.PermAll))
		return err
	})
}

func (x *zkWatching) watch(_ context.Context, path string) (<-chan struct{}, error) {
	_, _, events, err := x.c[0].ExistsW(path)
	if err != nil {
		return nil, err
	}
	fired := make(chan struct{})
	go func() {
		<-events // at the latest when the connection is closed
		close(fired)
	}()
	return fired, nil
}

func (x *zkWatching) write(_ context.Context, path string) error {
	_, err := x.c[1].Set(path, []byte(payload), -1)
	return err
}

func (x *zkWatching) close() {}

type etcdWatching struct {
	c      [2]*clientv3.Client
	life   context.Context
	cancel func()
}

func (x *etcdWatching) create(ctx context.Context, paths []string) error {
	return atOnce((len(paths)+99)/100, func(i int) error {
		var ops []clientv3.Op
		for _, path := range paths[100*i : min(100*i+100, len(paths))] {
			ops = append(ops, clientv3.OpPut(path, payload))
		}
		_, err := x.c[1].Txn(ctx).Then(ops...).Commit()
		return err
	})
}

func (x *etcdWatching) watch(ctx context.Context, path string) (<-chan struct{}, error) {
	events := x.c[0].Watch(x.life, path, clientv3.WithCreatedNotify())
	fired := make(chan struct{})
	select {
	case r := <-events:
		if err := r.Err(); err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	go func() {
		<-events
		close(fired)
	}()
	return fired, nil
}

func (x *etcdWatching) write(ctx context.Context, path string) error {
	_, err := x.c[1].Put(ctx, path, payload)
	return err
}

func (x *etcdWatching) close() { x.cancel() }
