package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/layout"
)

// The ways to use a queue that are compared.
const (
	queuesCompared = "queues compared"

	inBatches = ", in batches"

	whatTake     = "Take and Ack"
	whatPop      = "Pop"
	whatPrefetch = "PutAll, Prefetch and AckAll" + inBatches
	whatSimple   = "SimpleDistributedQueue"
	whatPlain    = "DistributedQueue"
	whatLocked   = "DistributedQueue with a lock path"
	whatQueue    = "Queue"
	whatLocking  = "LockingQueue"
	whatRecipe   = "recipe Queue"
	whatThree    = "create, create and delete, without a queue"
	whatTaking   = "the requests of Put, Take and Ack, without a queue"
	whatPopping  = "the requests of Put and Pop, without a queue"
)

// What a consumer's crash does to the item that it processes.
const (
	crashLoses      = "lost"
	crashRedelivers = "redelivered"
	// The consumers of Curator watch the items and not the locks. So the end of a lock wakes
	// no consumer, and each looks at the items again when one is put or deleted.
	crashRedeliversLate = "redelivered, after the next change of the queue"
	crashNothing        = "no item"
)

// comparedQueuesGroup compares the queues of coord with those of other libraries: a service's
// requests and time for an item, and what a consumer's crash does to the item.
func comparedQueuesGroup(e *env, p *peers, consumers []int, batch int, span time.Duration) *group {
	g := &group{
		name: queuesCompared,
		warm: 1,
		about: fmt.Sprintf("Items of %d bytes, with a client for each consumer. In each turn a consumer puts an item, takes one, and acknowledges it "+
			"where the queue knows that. So the queues stay short, which is the best case of those that list all items. "+
			"In batches a turn has %d items: coord puts, claims and acknowledges them together; putMulti of Curator's DistributedQueue stores them in one node, "+
			"which is taken and deleted as a whole; put_all of kazoo's LockingQueue puts them together, and they are taken one by one. The other queues have no batches: "+
			"their items are put one by one and then taken one by one. "+
			"The first row is the limit of the queues that never lose an item: three writes, one after the other. "+
			"The next two make the requests of coord's Put, Take and Ack, and of its Put and Pop. They have one client for all. "+
			"The times are those of a turn, the other figures are per item. A cell fails unless every item was taken exactly once.", len(payload), batch),
		shown: []metric{mRate, mPackets, mServerCPU, mP50, mP99},
	}
	add := func(what, who, where, crash string, t turner) {
		for _, n := range consumers {
			size, cost := 1, 300*time.Millisecond
			if isBatched(what) {
				size = batch
			}
			switch what { // taken one by one, so a turn can take longer than the span
			case whatSimple + inBatches, whatQueue + inBatches, whatLocking + inBatches, whatRecipe + inBatches:
				cost += time.Duration(n*size) * 15 * time.Millisecond
			}
			c := g.add(what, who, where, span+cost, func(ctx context.Context) (sample, error) {
				ctx = e.metered(ctx, where)
				if where == onEtcd {
					ctx = p.etcd.metered(ctx)
				}
				s, err := t(ctx, e.path(), n, size, span)
				return s.perItem(size), err
			})
			c.at("consumers", float64(n))
			c.crash = crash
		}
	}
	add(whatThree, byRaw, onZooKeeper, crashNothing, func(ctx context.Context, _ string, n, _ int, span time.Duration) (sample, error) {
		return e.rawSteps(ctx, n, span, rawThree)
	})
	add(whatTaking, byRaw, onZooKeeper, crashNothing, func(ctx context.Context, _ string, n, _ int, span time.Duration) (sample, error) {
		return e.rawSteps(ctx, n, span, rawTaking)
	})
	add(whatPopping, byRaw, onZooKeeper, crashNothing, func(ctx context.Context, _ string, n, _ int, span time.Duration) (sample, error) {
		return e.rawSteps(ctx, n, span, rawPopping)
	})
	us := []*contestant{ours}
	if p.etcd != nil {
		us = append(us, p.etcd.coord())
	}
	for _, x := range us {
		add(whatTake, x.who, x.where, crashRedelivers, inProcess(e.direct.takers(x)))
		add(whatPop, x.who, x.where, crashLoses, inProcess(e.direct.poppers(x)))
		add(whatPrefetch, x.who, x.where, crashRedelivers, inProcess(e.direct.prefetchers(x)))
	}
	if f := p.curator; f != nil {
		add(whatSimple, f.name, f.where(), crashLoses, f.turner(e, "simple"))
		add(whatSimple+inBatches, f.name, f.where(), crashLoses, f.turner(e, "simple"))
		add(whatPlain, f.name, f.where(), crashLoses, f.turner(e, "plain"))
		add(whatPlain+inBatches, f.name, f.where(), crashLoses, f.turner(e, "plain"))
		add(whatLocked, f.name, f.where(), crashRedeliversLate, f.turner(e, "locked"))
		add(whatLocked+inBatches, f.name, f.where(), crashRedeliversLate, f.turner(e, "locked"))
	}
	if f := p.kazoo; f != nil {
		add(whatQueue, f.name, f.where(), crashLoses, f.turner(e, "plain"))
		add(whatQueue+inBatches, f.name, f.where(), crashLoses, f.turner(e, "plain"))
		add(whatLocking, f.name, f.where(), crashRedelivers, f.turner(e, "locking"))
		add(whatLocking+inBatches, f.name, f.where(), crashRedelivers, f.turner(e, "locking"))
	}
	if p.etcd != nil {
		for _, what := range []string{whatRecipe, whatRecipe + inBatches} {
			add(what, byEtcd, onEtcd, crashLoses, inProcess(func(ctx context.Context, path string, n, _ int) ([]consumer, error) {
				return p.etcd.consumers(ctx, e.direct, path, n)
			}))
		}
	}
	return g
}

// rawThree makes the writes that a queue cannot do without if it never loses an item: one for the
// item, one for the claim, and one that deletes both. Each begins when the one before is answered.
func rawThree(c *zk.Conn, path string) step {
	return func(context.Context) error {
		item, err := c.Create(path+"/i-", []byte(payload), zk.FlagSequence, zk.WorldACL(zk.PermAll))
		if err != nil {
			return err
		}
		mark := path + "/m-" + item[strings.LastIndexByte(item, '-')+1:]
		if _, err := c.Create(mark, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
			return err
		}
		_, err = c.Multi(&zk.DeleteRequest{Path: mark, Version: -1}, &zk.DeleteRequest{Path: item, Version: -1})
		return err
	}
}

// bucket makes the requests of coord's queue in a bucket at path. Its commits also write a node that
// tells later whether they were applied, if the reply is lost.
type bucket struct {
	c       *zk.Conn
	path    string
	receipt *zk.SetDataRequest // nil until the first put
}

const itemID = "01234567-89ab-8def-8123-456789abcdef"

func (b *bucket) commit(ops ...any) ([]zk.MultiResponse, error) {
	return b.c.Multi(append(ops, b.receipt)...)
}

// put makes the commit that puts an item, and the list that finds it.
func (b *bucket) put() (item string, err error) {
	all := zk.WorldACL(zk.PermAll)
	if b.receipt == nil {
		r := &zk.SetDataRequest{Path: b.path + "-receipt", Data: []byte(itemID), Version: -1}
		if _, err := b.c.Create(r.Path, r.Data, zk.FlagEphemeral, all); err != nil {
			return "", err
		}
		b.receipt = r
	}
	put, err := b.commit(&zk.CheckVersionRequest{Path: b.path, Version: 0},
		&zk.CreateRequest{Path: b.path + "/" + layout.ItemStem(itemID, 0), Data: []byte(payload), Acl: all, Flags: zk.FlagSequence})
	if err != nil {
		return "", err
	}
	names, _, err := b.c.Children(b.path)
	if err == nil && (len(names) != 1 || b.path+"/"+names[0] != put[1].String) {
		err = fmt.Errorf("%s has the nodes %q instead of %s", b.path, names, put[1].String)
	}
	return put[1].String, err
}

// rawTaking makes the requests of coord's Put, Take and Ack: a commit, the list, the commit that
// claims the item beside the read of it, and the commit that deletes it.
func rawTaking(c *zk.Conn, path string) step {
	b := &bucket{c: c, path: path}
	state, mark := path+"/"+layout.StatePrefix+itemID, path+"/"+layout.MarkPrefix+itemID+"-"+itemID
	return func(context.Context) error {
		item, err := b.put()
		if err != nil {
			return err
		}
		read := make(chan error, 1)
		go func() {
			_, _, err := c.Get(item)
			read <- err
		}()
		all := zk.WorldACL(zk.PermAll)
		_, err = b.commit(&zk.CheckVersionRequest{Path: item, Version: -1},
			&zk.CreateRequest{Path: state, Data: []byte("1"), Acl: all}, &zk.CreateRequest{Path: mark, Acl: all, Flags: zk.FlagEphemeral})
		if err = errors.Join(err, <-read); err != nil {
			return err
		}
		_, err = b.commit(&zk.DeleteRequest{Path: mark, Version: -1}, &zk.DeleteRequest{Path: state, Version: -1}, &zk.DeleteRequest{Path: item, Version: -1})
		return err
	}
}

// rawPopping makes the requests of coord's Put and Pop: a commit, the list, the read of the item, and
// the commit that deletes it unless it was claimed.
func rawPopping(c *zk.Conn, path string) step {
	b := &bucket{c: c, path: path}
	state := path + "/" + layout.StatePrefix + itemID
	return func(context.Context) error {
		item, err := b.put()
		if err != nil {
			return err
		}
		if _, _, err := c.Get(item); err != nil {
			return err
		}
		_, err = b.commit(&zk.DeleteRequest{Path: item, Version: -1},
			&zk.CreateRequest{Path: state, Acl: zk.WorldACL(zk.PermAll)}, &zk.DeleteRequest{Path: state, Version: 0})
		return err
	}
}

// isBatched reports whether several items are put at a time.
func isBatched(what string) bool { return strings.HasSuffix(what, inBatches) }

// A turner makes consumers of a queue put batches of items and take as many, in turns, for a
// time. The path is relative to the namespace of coord's clients. Rates count turns.
type turner func(ctx context.Context, path string, consumers, batch int, span time.Duration) (sample, error)

// A consumer puts items into a queue and takes items out of it, with a client of its own.
type consumer interface {
	put(ctx context.Context, items []string) error
	// take waits for n items, and acknowledges them if the queue knows that.
	take(ctx context.Context, n int) ([]string, error)
	// giveBack gives back what was taken in advance.
	giveBack()
	// left returns the number of items in the queue.
	left(ctx context.Context) (int, error)
}

// An opener returns n consumers of a queue that take batches of some size.
type opener func(ctx context.Context, path string, n, batch int) ([]consumer, error)

// inProcess is the turner of consumers in this process.
func inProcess(open opener) turner {
	return func(ctx context.Context, path string, n, batch int, span time.Duration) (sample, error) {
		consumers, err := open(ctx, path, n, batch)
		if err != nil {
			return nil, err
		}
		for _, c := range consumers {
			defer c.giveBack()
		}
		l := &ledger{size: len(payload)}
		turn := func(ctx context.Context, c consumer) error {
			if err := c.put(ctx, l.put(batch)); err != nil {
				return fmt.Errorf("put: %w", err)
			}
			items, err := c.take(ctx, batch)
			if err != nil {
				return fmt.Errorf("take: %w", err)
			}
			return l.take(items)
		}
		for _, c := range consumers { // makes the directories and the sessions
			if err := turn(ctx, c); err != nil {
				return nil, err
			}
			c.giveBack()
		}
		end := time.Now().Add(span)
		steps := make([]step, n)
		for i, c := range consumers {
			steps[i] = func(ctx context.Context) error {
				if err := turn(ctx, c); err != nil {
					return err
				}
				if time.Now().After(end) {
					c.giveBack() // another consumer waits for these items
				}
				return nil
			}
		}
		s, err := hammer(ctx, span, steps)
		if err != nil {
			return nil, err
		}
		left, err := consumers[0].left(ctx)
		if err != nil {
			return nil, err
		}
		return s, l.check(left)
	}
}

// turner returns the turner of consumers in the peer's process.
func (f *foreign) turner(e *env, kind string) turner {
	return func(ctx context.Context, path string, n, batch int, span time.Duration) (_ sample, err error) {
		defer func() { // also if only a part of the queue was made
			if _, uerr := f.ask(ctx, "unqueue"); err == nil {
				err = uerr
			}
		}()
		if _, err := f.ask(ctx, "queue", kind, servers(e.direct), e.root+path, n, batch, len(payload)); err != nil {
			return nil, err
		}
		metered := startMeter(ctx)
		s, err := f.hammered(f.ask(ctx, "turns", span.Milliseconds()))
		if err != nil {
			return nil, err
		}
		metered(s, int(s[mDone]))
		return s, nil
	}
}

// A ledger knows which items were put, and how often each was taken. An item is its number,
// with zeros up to its size.
type ledger struct {
	size int

	mu    sync.Mutex
	taken []bool // by number; its length is the number of items that were put
}

// put returns n new items.
func (l *ledger) put(n int) []string {
	l.mu.Lock()
	first := len(l.taken)
	l.taken = append(l.taken, make([]bool, n)...)
	l.mu.Unlock()
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf("%0*d", l.size, first+i)
	}
	return items
}

// take fails if an item was never put, or was taken before.
func (l *ledger) take(items []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, it := range items {
		k, err := strconv.Atoi(it)
		switch {
		case err != nil || len(it) != l.size || k < 0 || k >= len(l.taken):
			return fmt.Errorf("%q was taken and never put", it)
		case l.taken[k]:
			return fmt.Errorf("item %d was taken twice", k)
		}
		l.taken[k] = true
	}
	return nil
}

// check fails if an item was not taken, or if some are left in the queue.
func (l *ledger) check(left int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := slices.Index(l.taken, false); k >= 0 {
		return fmt.Errorf("item %d was put and not taken", k)
	}
	if left != 0 {
		return fmt.Errorf("%d items are in the queue, and all %d were taken", left, len(l.taken))
	}
	return nil
}

// perItem converts figures of batches, except times, to figures of items.
func (s sample) perItem(batch int) sample {
	if v, ok := s[mRate]; ok {
		s[mRate] = v * float64(batch)
	}
	for _, m := range []metric{mPackets, mAllocs, mAllocated, mCPU, mServerCPU} {
		if v, ok := s[m]; ok {
			s[m] = v / float64(batch)
		}
	}
	return s
}

// coordQueue is the putting side of a consumer of coord.
type coordQueue struct{ q *coord.Queue[string] }

func (x coordQueue) put(ctx context.Context, items []string) error {
	_, err := x.q.PutAll(ctx, items...)
	return err
}

func (x coordQueue) giveBack() {}

func (x coordQueue) left(ctx context.Context) (int, error) { return x.q.Len(ctx) }

// coordQueues opens a queue of coord with each of n clients.
func (p *place) coordQueues(who *contestant, prefetches bool, consumerOf func(coordQueue) consumer) opener {
	return func(ctx context.Context, path string, n, batch int) ([]consumer, error) {
		conns, err := p.conns(ctx, who, n)
		if err != nil {
			return nil, err
		}
		o := &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: 1}
		if prefetches {
			o.Prefetch = batch
		}
		var consumers []consumer
		for _, c := range conns {
			consumers = append(consumers, consumerOf(coordQueue{coord.NewQueue(c.(*coordConn).c, path, o)}))
		}
		return consumers, nil
	}
}

// taker takes items one by one and acknowledges each.
type taker struct{ coordQueue }

func (p *place) takers(who *contestant) opener {
	return p.coordQueues(who, false, func(q coordQueue) consumer { return taker{q} })
}

func (x taker) take(ctx context.Context, n int) ([]string, error) {
	return repeated(n, func() (string, error) {
		it, err := x.q.Take(ctx)
		if err != nil {
			return "", err
		}
		return it.Value, it.Ack()
	})
}

// popper takes items one by one, at most once.
type popper struct{ coordQueue }

func (p *place) poppers(who *contestant) opener {
	return p.coordQueues(who, false, func(q coordQueue) consumer { return popper{q} })
}

func (x popper) take(ctx context.Context, n int) ([]string, error) {
	return repeated(n, func() (string, error) { return x.q.Pop(ctx) })
}

// repeated takes n items.
func repeated(n int, take func() (string, error)) ([]string, error) {
	items := make([]string, n)
	for i := range items {
		var err error
		if items[i], err = take(); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// prefetcher claims and acknowledges a batch of items together. Its loop over the items goes
// on from one batch to the next.
type prefetcher struct {
	coordQueue
	next func() (*coord.Item[string], error, bool)
	stop func()
}

func (p *place) prefetchers(who *contestant) opener {
	return p.coordQueues(who, true, func(q coordQueue) consumer { return &prefetcher{coordQueue: q} })
}

func (x *prefetcher) take(ctx context.Context, n int) ([]string, error) {
	if x.next == nil {
		x.next, x.stop = iter.Pull2(x.q.All(ctx))
	}
	var items []*coord.Item[string]
	values := make([]string, n)
	for i := range values {
		it, err, more := x.next()
		if !more {
			err = errors.Join(context.Cause(ctx), errors.New("the items have ended"))
		}
		if err != nil {
			return nil, err
		}
		items = append(items, it)
		values[i] = it.Value
	}
	return values, x.q.AckAll(items...)
}

func (x *prefetcher) giveBack() {
	if x.stop != nil {
		x.stop()
		x.next, x.stop = nil, nil
	}
}

// etcdQueue is etcd's recipe.
type etcdQueue struct {
	c    *clientv3.Client
	path string
	q    *recipe.Queue
}

// consumers returns n consumers of a queue at a place.
func (x *etcdCluster) consumers(ctx context.Context, p *place, path string, n int) ([]consumer, error) {
	conns, err := p.conns(ctx, x.contestant(), n)
	if err != nil {
		return nil, err
	}
	var consumers []consumer
	for _, conn := range conns {
		c := conn.(*etcdConn).c
		consumers = append(consumers, etcdQueue{c, path, recipe.NewQueue(c, path)})
	}
	return consumers, nil
}

func (x etcdQueue) put(_ context.Context, items []string) error {
	for _, it := range items {
		if err := x.q.Enqueue(it); err != nil {
			return err
		}
	}
	return nil
}

func (x etcdQueue) take(_ context.Context, n int) ([]string, error) {
	return repeated(n, x.q.Dequeue)
}

func (x etcdQueue) giveBack() {}

func (x etcdQueue) left(ctx context.Context) (int, error) {
	r, err := x.c.Get(ctx, x.path+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return int(r.Count), nil
}
