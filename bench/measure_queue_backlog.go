package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
)

const (
	queueBacklogs = "queues with a backlog"
	queueLoops    = "queues without a backlog"

	whatHandler = "Work with one handler"
	whatStocked = "Work with one handler and Prefetch 16"
	whatRawWork = "the commits of Work, without a queue and reads"
	whatRawTake = "a read and a delete, without a queue"

	stockOf = 16

	alone = 3 // times as many items, so that the cells of one consumer take as long as others

	loopConsumers = 8 // of queueLoops
)

// A load is what goes through a queue: all items are there before the consumers begin, or, with
// producers, each producer puts its next item when a consumer has got its latest one.
type load struct{ consumers, producers, items int }

// backlogGroup compares the consumers of queues that other clients have filled.
func backlogGroup(e *env, p *peers, consumers []int, items int) *group {
	g := &group{
		name: queueBacklogs,
		warm: 2, // the servers compile long commits later than those of one write

		about: fmt.Sprintf("Another client has put %d items of %d bytes, and %d for a single consumer. The consumers, with a client each, take all of them, one by one. "+
			"coord's Ack claims the next item in its commit; with Prefetch it claims %d items at a time, and the Acks share commits. "+
			"The raw client makes the commits of Work, one for an item, and the two requests of a queue that deletes an item when it hands it out. "+
			"The figures are per item, without the put. "+
			"A cell fails unless every item was taken exactly once.", items, len(payload), alone*items, stockOf),
		shown: []metric{mRate, mPackets, mServerCPU},
	}
	for _, n := range consumers {
		items := items
		if n == 1 {
			items *= alone
		}
		g.addLoad(e, p, load{consumers: n, items: items}, func(c *cell) { c.at("consumers", float64(n)) })
	}
	return g
}

// loopGroup compares queues that are empty or nearly so.
func loopGroup(e *env, p *peers, producers []int, items int) *group {
	g := &group{
		name: queueLoops,
		warm: 1,
		about: fmt.Sprintf("%d consumers, with a client each, take items of %d bytes. Each producer, with a client of its own, puts its next item when its latest one "+
			"was taken. So the queue has no more items than producers, and an Ack of coord seldom finds a next item to claim. The figures are per item. "+
			"A cell fails unless every item was taken exactly once. kazoo's Queue is left out: its consumers cannot wait.", loopConsumers, len(payload)),
		shown: []metric{mRate, mPackets, mServerCPU},
	}
	for _, n := range producers {
		g.addLoad(e, p, load{loopConsumers, n, items}, func(c *cell) { c.at("producers", float64(n)) })
	}
	return g
}

// addLoad adds the cells of all queues with a load.
func (g *group) addLoad(e *env, p *peers, l load, at func(c *cell)) {
	add := func(what, who, where, crash string, perItem time.Duration, run func(ctx context.Context, path string) (sample, error)) {
		c := g.add(what, who, where, time.Duration(l.items)*perItem, func(ctx context.Context) (sample, error) {
			return run(p.metered(ctx, e, where), e.path())
		})
		c.crash = crash
		at(c)
	}
	own := func(open loader) func(ctx context.Context, path string) (sample, error) {
		return func(ctx context.Context, path string) (sample, error) { return l.run(ctx, open, path) }
	}
	const fast, slow = 2 * time.Millisecond, 8 * time.Millisecond
	backlog := l.producers == 0
	if backlog && l.consumers == 1 {
		add(whatRawWork, byRaw, onZooKeeper, crashNothing, fast, own(e.direct.rawDrainers(rawDrainer.work)))
		add(whatRawTake, byRaw, onZooKeeper, crashNothing, fast, own(e.direct.rawDrainers(rawDrainer.take)))
	}
	us := []*contestant{ours}
	if p.etcd != nil {
		us = append(us, p.etcd.coord())
	}
	for _, x := range us {
		add(whatHandler, x.who, x.where, crashRedelivers, fast, own(e.direct.handlers(x, 1)))
		if backlog {
			add(whatStocked, x.who, x.where, crashRedelivers, fast, own(e.direct.handlers(x, stockOf)))
		}
	}
	peer := func(f *foreign, what, kind, crash string) {
		add(what, f.name, f.where(), crash, slow, func(ctx context.Context, path string) (sample, error) { return f.drain(ctx, e, kind, path, l) })
	}
	if f := p.curator; f != nil {
		peer(f, whatSimple, "simple", crashLoses)
		peer(f, whatPlain, "plain", crashLoses)
		peer(f, whatLocked, "locked", crashRedeliversLate)
	}
	if f := p.kazoo; f != nil {
		if backlog {
			peer(f, whatQueue, "plain", crashLoses)
		}
		peer(f, whatLocking, "locking", crashRedelivers)
	}
	if p.etcd != nil {
		add(whatRecipe, byEtcd, onEtcd, crashLoses, slow, own(func(ctx context.Context, path string, n int) ([]drainer, error) {
			consumers, err := p.etcd.consumers(ctx, e.direct, path, n)
			var drainers []drainer
			for _, c := range consumers {
				drainers = append(drainers, c.(etcdQueue))
			}
			return drainers, err
		}))
	}
}

// A drainer puts items or takes them, with a client of its own.
type drainer interface {
	put(ctx context.Context, items []string) error
	// drain takes items until all are taken.
	drain(ctx context.Context, d *drainage) error
	left(ctx context.Context) (int, error)
}

// A loader returns n drainers of a queue.
type loader func(ctx context.Context, path string, n int) ([]drainer, error)

// A drainage is what the consumers of a queue share while they take its items.
type drainage struct {
	*ledger
	rest  atomic.Int64 // items that no consumer waits for yet
	taken atomic.Int64
	all   context.CancelFunc // of the consumers, when all items are taken
	fed   []chan struct{}    // for each producer: its latest item was taken
}

// next reports whether a consumer shall take one item more.
func (d *drainage) next() bool { return d.rest.Add(-1) >= 0 }

// took records an item that a consumer has got.
func (d *drainage) took(item string) error {
	if err := d.take([]string{item}); err != nil {
		return err
	}
	if n := len(d.fed); n > 0 {
		k, _ := strconv.Atoi(item) // the ledger knows it
		d.fed[k%n] <- struct{}{}
	}
	if d.taken.Add(1) == int64(len(d.ledger.taken)) {
		d.all()
	}
	return nil
}

// run moves the items of a load through a queue.
func (l load) run(ctx context.Context, open loader, path string) (sample, error) {
	drainers, err := open(ctx, path, l.consumers+max(l.producers, 1))
	if err != nil {
		return nil, err
	}
	consumers, producers := drainers[:l.consumers], drainers[l.consumers:]
	d := &drainage{ledger: &ledger{size: len(payload)}}
	items := d.put(l.items)
	if l.producers == 0 {
		if err := producers[0].put(ctx, items); err != nil {
			return nil, fmt.Errorf("put: %w", err)
		}
		producers = nil
	}
	for range producers {
		d.fed = append(d.fed, make(chan struct{}, 1))
	}
	d.rest.Store(int64(l.items))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	working, all := context.WithCancel(ctx)
	defer all()
	d.all = all
	var wg sync.WaitGroup
	metered := startMeter(ctx)
	before := readCosts()
	began := time.Now()
	for _, c := range consumers {
		wg.Go(func() {
			if err := c.drain(working, d); err != nil {
				cancel(fmt.Errorf("take: %w", err))
			}
		})
	}
	for i, p := range producers {
		wg.Go(func() {
			for k := i; k < len(items); k += len(producers) {
				if err := p.put(ctx, items[k:k+1]); err != nil {
					cancel(fmt.Errorf("put: %w", err))
					return
				}
				select {
				case <-d.fed[i]:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	s := sample{mRate: float64(l.items) / took.Seconds()}
	s.addCosts(before, readCosts(), l.items)
	metered(s, l.items)
	left, err := drainers[0].left(ctx)
	if err != nil {
		return nil, err
	}
	return s, d.check(left)
}

// handler is a consumer of coord that takes items by Work.
type handler struct{ coordQueue }

func (p *place) handlers(who *contestant, prefetch int) loader {
	open := p.coordQueues(who, true, func(q coordQueue) consumer { return taker{q} })
	return func(ctx context.Context, path string, n int) ([]drainer, error) {
		consumers, err := open(ctx, path, n, prefetch)
		var drainers []drainer
		for _, c := range consumers {
			drainers = append(drainers, handler{c.(taker).coordQueue})
		}
		return drainers, err
	}
}

func (x handler) drain(ctx context.Context, d *drainage) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed error // only written by the one handler
	err := x.q.Work(ctx, 1, func(_ context.Context, it *coord.Item[string]) error {
		if failed = errors.Join(failed, d.took(it.Value)); failed != nil {
			cancel()
		}
		return nil
	})
	return errors.Join(err, failed)
}

// rawDrainer takes items with the raw client, without a queue: what one consumer alone must send.
type rawDrainer struct {
	c      *zk.Conn
	dir    string // its names are as long as those of coord
	values map[string]string
	step   func(x rawDrainer, before, item string) (string, error)
}

func (p *place) rawDrainers(step func(x rawDrainer, before, item string) (string, error)) loader {
	return func(ctx context.Context, path string, n int) ([]drainer, error) {
		conns, err := p.conns(ctx, goZK, n)
		if err != nil {
			return nil, err
		}
		dir := p.root + path
		for _, d := range []string{"", "/items", "/b-0-0000000000"} {
			dir += d
			if _, err := conns[0].(*zkConn).c.Create(dir, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
				return nil, err
			}
		}
		values := make(map[string]string)
		var drainers []drainer
		for _, conn := range conns {
			drainers = append(drainers, rawDrainer{conn.(*zkConn).c, dir, values, step})
		}
		return drainers, nil
	}
}

const rawID = "0123456789abcdef" // of the length of an id of coord

func (x rawDrainer) put(_ context.Context, items []string) error {
	for i, it := range items {
		name := fmt.Sprintf("i-%s%06d-0-%010d", rawID, i, i)
		x.values[name] = it
		if _, err := x.c.Create(x.dir+"/"+name, []byte(it), 0, zk.WorldACL(zk.PermAll)); err != nil {
			return err
		}
	}
	return nil
}

func (x rawDrainer) drain(_ context.Context, d *drainage) error {
	names, _, err := x.c.Children(x.dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	before := ""
	for _, name := range append(names, "") {
		value, err := x.step(x, before, name)
		if err == nil && name != "" {
			err = d.took(value)
		}
		if err != nil {
			return err
		}
		before = name
	}
	return nil
}

// work acknowledges the item before, and claims an item, in one commit.
func (x rawDrainer) work(before, item string) (string, error) {
	state, mark := func(name string) string { return x.dir + "/s-" + name[2:24] }, func(name string) string { return x.dir + "/m-" + name[2:24] + "-" + rawID }
	var ops []any
	if before != "" {
		ops = append(ops, &zk.DeleteRequest{Path: mark(before), Version: -1}, &zk.DeleteRequest{Path: state(before), Version: -1},
			&zk.DeleteRequest{Path: x.dir + "/" + before, Version: -1})
	}
	if item != "" {
		acl := zk.WorldACL(zk.PermAll)
		ops = append(ops, &zk.CheckVersionRequest{Path: x.dir + "/" + item, Version: -1}, &zk.CreateRequest{Path: state(item), Data: []byte("1"), Acl: acl},
			&zk.CreateRequest{Path: mark(item), Acl: acl, Flags: zk.FlagEphemeral})
	}
	_, err := x.c.Multi(ops...)
	return x.values[item], err
}

// take reads an item and deletes it.
func (x rawDrainer) take(_, item string) (string, error) {
	if item == "" {
		return "", nil
	}
	data, _, err := x.c.Get(x.dir + "/" + item)
	if err != nil {
		return "", err
	}
	return string(data), x.c.Delete(x.dir+"/"+item, -1)
}

func (x rawDrainer) left(context.Context) (int, error) {
	names, _, err := x.c.Children(x.dir)
	return len(names), err
}

func (x etcdQueue) drain(_ context.Context, d *drainage) error {
	for d.next() {
		item, err := x.q.Dequeue()
		if err == nil {
			err = d.took(item)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// drain moves the items of a load through a queue in the peer's process.
func (f *foreign) drain(ctx context.Context, e *env, kind, path string, l load) (_ sample, err error) {
	defer func() { // also if only a part of the queue was made
		if _, uerr := f.ask(ctx, "unqueue"); err == nil {
			err = uerr
		}
	}()
	if _, err := f.ask(ctx, "fill", kind, servers(e.direct), e.root+path, l.consumers, l.producers, l.items, len(payload)); err != nil {
		return nil, err
	}
	metered := startMeter(ctx)
	figures, err := f.ask(ctx, "drain")
	if err != nil {
		return nil, err
	}
	if len(figures) != 2 {
		return nil, fmt.Errorf("%s: %d figures, want 2", f.name, len(figures))
	}
	s := sample{mRate: figures[0] / (figures[1] / float64(time.Second))}
	metered(s, int(figures[0]))
	return s, nil
}
