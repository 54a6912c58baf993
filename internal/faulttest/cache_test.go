//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkservice"
	"github.com/go-coord/coord/internal/zktest"
)

// nodeIs identifies the node at a path, and its data.
type nodeIs struct {
	czxid, mzxid int64
	data         string
}

// cachedTree returns the content of a cache.
func cachedTree(k *coord.Cache, root string) map[string]nodeIs {
	all := make(map[string]nodeIs)
	for path, n := range k.Walk(root) {
		all[path] = nodeIs{n.Stat.Czxid, n.Stat.Mzxid, string(n.Data)}
	}
	return all
}

// realTree reads the servers' tree without watches.
func realTree(t *testing.T, s backend.Session, namespace, root string) map[string]nodeIs {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := s.Sync(ctx, namespace+root); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]nodeIs)
	var read func(path string)
	read = func(path string) {
		data, stat, err := s.Get(ctx, namespace+path, nil)
		names, _, err2 := s.Children(ctx, namespace+path, nil)
		if err := errors.Join(err, err2); errors.Is(err, backend.ErrNotFound) {
			return // an ephemeral node of a session that expires only now
		} else if err != nil {
			t.Fatal(err)
		}
		all[path] = nodeIs{stat.Czxid, stat.Mzxid, string(data)}
		for _, name := range names {
			read(path + "/" + name)
		}
	}
	read(root)
	return all
}

// folded is the tree folded from the events of a cache.
type folded struct {
	mu     sync.Mutex
	tree   map[string]nodeIs
	counts map[coord.CacheEventKind]int
	wrong  int // events that do not follow from earlier ones
}

func (f *folded) follow(ctx context.Context, k *coord.Cache, pause time.Duration) {
	for batch, err := range k.Events(ctx) {
		if err != nil {
			return
		}
		f.mu.Lock()
		for _, e := range batch {
			f.counts[e.Kind]++
			old, there := f.tree[e.Path]
			switch {
			case there != (e.Kind != coord.NodeCreated), e.Kind == coord.NodeChanged && old.czxid != e.Node.Stat.Czxid:
				f.wrong++
			case e.Kind == coord.NodeDeleted:
				delete(f.tree, e.Path)
				continue
			}
			f.tree[e.Path] = nodeIs{e.Node.Stat.Czxid, e.Node.Stat.Mzxid, string(e.Node.Data)}
		}
		f.mu.Unlock()
		time.Sleep(pause)
	}
}

func (f *folded) equals(tree map[string]nodeIs) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wrong == 0 && maps.Equal(f.tree, tree)
}

const churned = "/churn"

// churner changes a part of the tree at random until ctx ends, at most at a rate. Operations
// that do not fit the tree do not count; the cache suggests operations that fit.
func churner(ctx context.Context, t *testing.T, k *coord.Cache, b backend.Backend, root string, seed uint64, rate, width int, done map[string]*atomic.Int64) {
	r := rand.New(rand.NewPCG(seed, 1))
	s, err := b.Open(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { s.Close() }()
	began := time.Now()
	for n, try := 0, 0; ctx.Err() == nil; try++ {
		if due := began.Add(time.Duration(n) * time.Second / time.Duration(rate)); time.Until(due) > 0 {
			select {
			case <-time.After(time.Until(due)):
			case <-ctx.Done():
				return
			}
		} else if time.Since(due) > time.Second {
			began, n = time.Now(), 0 // no servers for a while; do not catch up
		}
		p := fmt.Sprintf("%s%s/%d", root, churned, r.IntN(8))
		if r.IntN(6) > 0 {
			p += fmt.Sprintf("/%d", r.IntN(width))
			if r.IntN(3) == 0 {
				p += fmt.Sprintf("/%d", r.IntN(3))
			}
		}
		data := fmt.Append(nil, seed, try)
		what, ops := "create", []backend.Op{backend.Create(p, data, backend.Persistent)}
		mode := r.IntN(6)
		if _, there := k.Get(p[len(root):]); !there {
			if mode == 0 {
				ops[0].Mode = backend.Ephemeral
			}
		} else if mode < 2 {
			what, ops = "set", []backend.Op{backend.SetData(p, data, backend.AnyVersion)}
		} else if mode < 4 {
			what, ops = "delete", []backend.Op{backend.Delete(p, backend.AnyVersion)}
		} else {
			what, ops = "recreate", append([]backend.Op{backend.Delete(p, backend.AnyVersion)}, ops...)
		}
		_, err := s.Commit(ctx, ops...)
		switch {
		case err == nil:
			done[what].Add(int64(len(ops)))
			n += len(ops)
		case errors.Is(err, backend.ErrSessionLost):
			// An election took too long. The session's ephemerals are deleted, which is a
			// change too.
			next, err := b.Open(ctx)
			if err != nil {
				return // ctx has ended
			}
			s.Close()
			s = next
		}
		// Otherwise the operation does not fit the tree, or an election is under way.
	}
}

// TestACacheIsExactAfterChurnAndKills changes a tree while servers are killed, and compares.
func TestACacheIsExactAfterChurnAndKills(t *testing.T) {
	zktest.Require(t)
	took, width := 3*time.Second, 12
	if long() {
		took, width = 40*time.Second, 800 // about 10,000 nodes at the end
	}
	e := ensemble(t, shortSync)
	s := zkservice.New(t, e, zookeeper.Options{SessionTimeout: killTimeout, LossMargin: shortMargin})
	x := newContender(t, s, "cache")
	plain, err := s.ZooKeeper("observer").Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := plain.Commit(t.Context(), backend.Create(s.Root()+churned, nil, backend.Persistent)); err != nil {
		t.Fatal(err)
	}

	k := coord.NewCache(x.c, churned, nil)
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	var runErr error
	following.Go(func() { runErr = k.Run(ctx) })
	readers := map[string]*folded{}
	for name, pause := range map[string]time.Duration{"quick": 0, "slow": 300 * time.Millisecond} {
		f := &folded{tree: make(map[string]nodeIs), counts: make(map[coord.CacheEventKind]int)}
		readers[name] = f
		following.Go(func() { f.follow(ctx, k, pause) })
	}
	defer following.Wait()
	defer cancel()
	receive(t, k.Synced(), "the first copy")

	const writers, rate = 20, 1200 // less the losses during elections
	done := map[string]*atomic.Int64{"create": new(atomic.Int64), "set": new(atomic.Int64), "delete": new(atomic.Int64), "recreate": new(atomic.Int64)}
	var writing sync.WaitGroup
	churn, stop := context.WithCancel(context.Background())
	defer writing.Wait()
	defer stop()
	for i := range writers {
		link := s.ZooKeeper(fmt.Sprint("writer ", i))
		writing.Go(func() { churner(churn, t, k, link, s.Root(), uint64(i), rate/writers, width, done) })
	}
	changes := func() (n int64) {
		for _, v := range done {
			n += v.Load()
		}
		return n
	}
	before, began := x.link.Requests(), time.Now()
	var still time.Duration // time without any server
	kills := 0
	kill := func(victim *zktest.Server) {
		x.moveTo(slices.Index(e.Servers(), victim))
		time.Sleep(took / 3)
		from := time.Now()
		victim.Kill()
		kills++
		seen := changes()
		eventually(t, "the writers continue without the server", func() bool { return changes() > seen+100 })
		still += time.Since(from)
		restart(t, victim)
	}
	kill(followersOf(t, e)[0])
	kill(leaderOf(t, e))
	session, err := x.c.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	x.link.Expire(session.ID()) // the cache goes on with another one
	time.Sleep(max(took/3, took-time.Since(began)))
	stop()
	writing.Wait()
	lasted := time.Since(began)
	requests := x.link.Requests() - before

	stopped := time.Now()
	reader, err := s.ZooKeeper("reader").Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var tree map[string]nodeIs
	eventually(t, "the copy and the folded events equal the tree", func() bool {
		tree = realTree(t, reader, s.Root(), churned)
		return maps.Equal(cachedTree(k, churned), tree) && readers["quick"].equals(tree) && readers["slow"].equals(tree)
	})
	settled := time.Since(stopped)
	cancel()
	following.Wait()
	if !errors.Is(runErr, context.Canceled) {
		t.Errorf("Run ended with %v", runErr)
	}
	for what, n := range done {
		if n.Load() == 0 {
			t.Errorf("no %s: not tested", what)
		}
	}
	if kills != 2 || len(tree) < 10 || readers["quick"].counts[coord.NodeDeleted] == 0 || readers["slow"].counts[coord.NodeChanged] == 0 {
		t.Errorf("%d kills, %d nodes at the end, events %v and %v: this tested nothing", kills, len(tree), readers["quick"].counts, readers["slow"].counts)
	}
	t.Logf("figure: cache under churn for %v with %d server kills (%v until the writers continued): %d changes, %.0f/s (%d creates, %d sets, %d deletes, %d in recreations), %d requests of the cache; copy and events equal the tree of %d nodes; compared after %v",
		lasted.Round(time.Millisecond), kills, still.Round(time.Millisecond), changes(), float64(changes())/lasted.Seconds(),
		done["create"].Load(), done["set"].Load(), done["delete"].Load(), done["recreate"].Load(), requests, len(tree), settled.Round(time.Millisecond))
	t.Logf("figure: events under churn: a quick reader had %v, a slow one (300 ms a batch) %v", readers["quick"].counts, readers["slow"].counts)
}

// This measures the cost of a large copy. A server from 3.6 on has one watch for it, and sends
// many nodes with each reply.
func TestACacheOfTenThousandNodes(t *testing.T) {
	const nodes, dirs, leaves, batch = 10_000, 99, 100, 100
	s := newService(t)
	plain, err := s.ZooKeeper("writer").Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	data := make([]byte, 64)
	root := s.Root() + "/big"
	ops := []backend.Op{backend.Create(root, nil, backend.Persistent)}
	count := 1
	for d := range dirs {
		dir := fmt.Sprintf("%s/service-%02d", root, d)
		ops = append(ops, backend.Create(dir, nil, backend.Persistent))
		for l := range leaves {
			ops = append(ops, backend.Create(fmt.Sprintf("%s/instance-%04d", dir, l), data, backend.Persistent))
		}
		count += 1 + leaves
		if _, err := plain.Commit(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
		ops = nil
	}
	for count < nodes {
		count++
		if _, err := plain.Commit(t.Context(), backend.Create(fmt.Sprintf("%s/setting-%d", root, count), nil, backend.Persistent)); err != nil {
			t.Fatal(err)
		}
	}

	x := newContender(t, s, "cache")
	x.verifyContact()
	before := measure(t)
	k := coord.NewCache(x.c, "/big", nil)
	run := func() (took time.Duration, requests int, stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		from := x.link.Requests()
		began := time.Now()
		go func() { done <- k.Run(ctx) }()
		receive(t, x.synced, "everything is read")
		took = time.Since(began)
		return took, x.link.Requests() - from, func() {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("Run ended with %v", err)
			}
		}
	}
	took, requests, stop := run()
	if n := k.Len(); n != nodes {
		t.Errorf("%d nodes, want %d", n, nodes)
	}
	with := measure(t)
	watches := with.watches - before.watches
	if watches < 1 || watches > 2 { // servers before 3.9 count it twice
		t.Errorf("%d watches on the server, want one for the tree", watches)
	}
	if requests < nodes/128 || requests > 300 {
		t.Errorf("%d requests for the first copy", requests)
	}
	stop()
	again, _, stop := run()
	n, found := k.Get("/big/service-98/instance-0099")
	if !found || len(n.Data) != len(data) || n.Stat.Czxid == 0 {
		t.Errorf("%+v, %t", n, found)
	}
	stop()
	perNode := (with.heap - before.heap) / nodes
	x.c.Close()
	alone := measure(t).heap
	k = nil
	perCopy := (alone - measure(t).heap) / nodes
	t.Logf("figure: a cache of %d nodes with %d bytes each: first copy in %v and %d requests, read again in %v; heap per node %d bytes, of which the copy is %d, with data and path; %d watches on the server; goroutines %d, without it %d",
		nodes, len(data), took.Round(time.Millisecond), requests, again.Round(time.Millisecond), perNode, perCopy, watches, with.goroutines, before.goroutines)
	if perCopy > 600 || perNode > 700 {
		t.Errorf("heap per node of %d bytes, the copy %d", perNode, perCopy)
	}
	if with.goroutines > before.goroutines+5 {
		t.Errorf("%d goroutines, %d without the cache", with.goroutines, before.goroutines)
	}
}
