package coord_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// cacheSim is random changes of a small tree, so that they meet, and a cache.
type cacheSim struct {
	t     *testing.T
	seed  uint64
	k     *coord.Cache
	mu    sync.Mutex
	count map[string]int
}

const simRoot = "/sim/r"

func (x *cacheSim) note(what string) {
	x.mu.Lock()
	x.count[what]++
	x.mu.Unlock()
}

func randomPath(r *rand.Rand) string {
	p := simRoot
	for range r.IntN(4) {
		p += "/" + string("abc"[r.IntN(3)])
	}
	return p
}

// below lists a node and what is below it, parents first.
func below(s backend.Session, path string) []string {
	names, _, err := s.Children(context.Background(), path, nil)
	if err != nil {
		return nil
	}
	list := []string{path}
	for _, name := range names {
		list = append(list, below(s, path+"/"+name)...)
	}
	return list
}

// change makes one random change.
func (x *cacheSim) change(r *rand.Rand, s backend.Session) {
	ctx := context.Background()
	p := randomPath(r)
	commit := func(what string, ops ...backend.Op) {
		if len(ops) == 0 {
			return
		}
		if _, err := s.Commit(ctx, ops...); err == nil {
			x.note(what)
		}
	}
	kill := func(list []string) (ops []backend.Op) {
		for _, q := range slices.Backward(list) {
			ops = append(ops, backend.Delete(q, backend.AnyVersion))
		}
		return ops
	}
	what := r.IntN(12)
	if what > 8 && p == simRoot && r.IntN(4) > 0 {
		return // or the tree would be gone most of the time
	}
	switch what {
	case 0, 1, 2, 3, 4, 5:
		if r.IntN(4) == 0 {
			commit("ephemeral", backend.Create(p, []byte("e"), backend.Ephemeral))
		} else {
			commit("create", backend.Create(p, []byte{byte(r.IntN(256))}, backend.Persistent))
		}
	case 6, 7:
		commit("set", backend.SetData(p, []byte{byte(r.IntN(256))}, backend.AnyVersion))
	case 8:
		commit("delete", backend.Delete(p, backend.AnyVersion))
	case 9:
		commit("recreation", backend.Delete(p, backend.AnyVersion), backend.Create(p, nil, backend.Persistent))
	case 10:
		commit("deletion of a subtree", kill(below(s, p))...)
	case 11:
		list := below(s, p)
		ops := kill(list)
		for _, q := range list {
			if r.IntN(3) > 0 || q == p {
				ops = append(ops, backend.Create(q, []byte{1}, backend.Persistent))
			}
		}
		commit("recreation of a subtree", ops...) // fails if a parent is left out
	}
}

func (x *cacheSim) sameAs(tree map[string]nodeIs, root string, readers ...*fold) {
	x.t.Helper()
	if got := copyOf(x.k, root); !maps.Equal(got, tree) {
		x.t.Errorf("seed %d: the copy is %v\nwant %v", x.seed, got, tree)
	}
	for i, f := range readers {
		if !f.equals(tree) {
			x.t.Errorf("seed %d: reader %d has %v\nwant %v", x.seed, i, f.tree, tree)
		}
		for _, s := range f.wrong {
			x.t.Errorf("seed %d: reader %d: %s", x.seed, i, s)
		}
		x.mu.Lock()
		x.count["false deletion"] += f.flashes
		for kind, n := range f.counts {
			x.count["event: "+kind.String()] += n
		}
		x.mu.Unlock()
	}
	x.count["nodes at the end"] += len(tree)
}

// nodeIs is which node stands at a path, and what it holds.
type nodeIs struct {
	czxid, mzxid int64
	data         string
}

func isOf(n coord.CachedNode) nodeIs { return nodeIs{n.Stat.Czxid, n.Stat.Mzxid, string(n.Data)} }

// copyOf is what a cache has.
func copyOf(k *coord.Cache, root string) map[string]nodeIs {
	all := make(map[string]nodeIs)
	for path, n := range k.Walk(root) {
		all[path] = isOf(n)
	}
	return all
}

// treeOf is what the service has, by paths without the namespace.
func treeOf(t *testing.T, s backend.Session, namespace, root string) map[string]nodeIs {
	t.Helper()
	all := make(map[string]nodeIs)
	if err := s.Sync(context.Background(), namespace+root); err != nil {
		t.Fatal(err)
	}
	var read func(path string)
	read = func(path string) {
		data, stat, err := s.Get(context.Background(), namespace+path, nil)
		if errors.Is(err, backend.ErrNotFound) {
			return
		}
		names, _, err2 := s.Children(context.Background(), namespace+path, nil)
		if errors.Is(err2, backend.ErrNotFound) {
			return
		}
		if err := errors.Join(err, err2); err != nil {
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

// fold is a reader that applies events, and checks that they can be applied: a node
// is created once and under its parent, and deleted without children.
type fold struct {
	root string
	pace func() // called after each batch

	mu      sync.Mutex
	tree    map[string]nodeIs
	kids    map[string]int
	newest  map[string]int64 // czxid of the latest node at a path
	counts  map[coord.CacheEventKind]int
	seen    map[string]int // events of each path
	batches int
	most    int // events in one batch
	flashes int // deletions of nodes that had not been deleted
	wrong   []string
	err     error // of the end
}

func newFold(root string) *fold {
	return &fold{root: root, tree: make(map[string]nodeIs), kids: make(map[string]int), newest: make(map[string]int64),
		counts: make(map[coord.CacheEventKind]int), seen: make(map[string]int)}
}

func (f *fold) follow(ctx context.Context, k *coord.Cache) {
	for batch, err := range k.Events(ctx) {
		f.mu.Lock()
		if err != nil {
			f.err = err
		} else {
			f.apply(batch)
		}
		f.mu.Unlock()
		if f.pace != nil && err == nil {
			f.pace()
		}
	}
}

func (f *fold) apply(batch []coord.CacheEvent) {
	fail := func(e coord.CacheEvent, why string) {
		f.wrong = append(f.wrong, fmt.Sprintf("batch %d: %v %s: %s", f.batches, e.Kind, e.Path, why))
	}
	f.batches++
	f.most = max(f.most, len(batch))
	for _, e := range batch {
		f.counts[e.Kind]++
		f.seen[e.Path]++
		parent := path.Dir(e.Path)
		if e.Path == "/" {
			parent = ""
		}
		old, there := f.tree[e.Path]
		is := isOf(e.Node)
		switch e.Kind {
		case coord.NodeCreated:
			if there {
				fail(e, "it is there")
			}
			if _, ok := f.tree[parent]; !ok && e.Path != f.root {
				fail(e, "it has no parent")
			}
			switch last := f.newest[e.Path]; {
			case is.czxid < last:
				fail(e, "an older node came back")
			case is.czxid == last:
				f.flashes++
			}
			f.newest[e.Path] = is.czxid
			f.kids[parent]++
			f.tree[e.Path] = is
		case coord.NodeChanged:
			if !there || old.czxid != is.czxid || is.mzxid <= old.mzxid {
				fail(e, fmt.Sprintf("%+v after %+v", is, old))
			}
			f.tree[e.Path] = is
		case coord.NodeDeleted:
			if !there || f.kids[e.Path] != 0 || is.czxid != 0 {
				fail(e, fmt.Sprintf("there: %t, children: %d", there, f.kids[e.Path]))
			}
			f.kids[parent]--
			delete(f.tree, e.Path)
		default:
			fail(e, "no such kind")
		}
	}
}

func (f *fold) equals(tree map[string]nodeIs) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Equal(f.tree, tree)
}

// check reports what could not be applied.
func (f *fold) check(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.wrong {
		t.Error(s)
	}
}

func (f *fold) eventsOf(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[path]
}

// caching is a cache that runs, over the link "cache", and a session that changes
// the tree.
type caching struct {
	w    *world
	c    *coord.Client
	k    *coord.Cache
	s    backend.Session
	root string
	ctx  context.Context
	stop context.CancelFunc
	done chan struct{}
	err  error // of Run
}

func (w *world) caching(root string, o *coord.CacheOptions, hooks *backendtest.Hooks) *caching {
	w.T.Helper()
	c := w.Open("cache", hooks)
	x := &caching{w: w, c: c, k: coord.NewCache(c, root, o), s: w.Session("writer"), root: root, done: make(chan struct{})}
	x.ctx, x.stop = context.WithCancel(context.Background())
	return x
}

// run begins to keep the copy.
func (x *caching) run() *caching {
	go func() {
		defer close(x.done)
		x.err = x.k.Run(x.ctx)
	}()
	x.w.T.Cleanup(func() {
		x.stop()
		<-x.done
	})
	return x
}

// do commits operations on paths without the namespace.
func (x *caching) do(ops ...backend.Op) {
	x.w.T.Helper()
	ops = slices.Clone(ops)
	for i := range ops {
		ops[i].Path = x.w.Path(ops[i].Path)
	}
	if _, err := x.s.Commit(context.Background(), ops...); err != nil {
		x.w.T.Fatal(err)
	}
}

func (x *caching) create(paths ...string) {
	x.w.T.Helper()
	for _, p := range paths {
		x.do(backend.Create(p, []byte("data of "+p), backend.Persistent))
	}
}

func (x *caching) delete(paths ...string) {
	x.w.T.Helper()
	for _, p := range paths {
		x.do(backend.Delete(p, backend.AnyVersion))
	}
}

func (x *caching) synced() {
	x.w.T.Helper()
	select {
	case <-x.k.Synced():
	case <-time.After(30 * time.Second):
		x.w.T.Fatal("never synced")
	}
}

func (x *caching) tree() map[string]nodeIs { return treeOf(x.w.T, x.s, x.w.Path(""), x.root) }

// equal waits until the copy equals the tree, and so do the readers.
func (x *caching) equal(readers ...*fold) {
	x.w.T.Helper()
	tree := x.tree()
	x.w.Eventually(fmt.Sprintf("the copy equals the tree %v", tree), func() bool { return maps.Equal(copyOf(x.k, x.root), tree) })
	if n := x.k.Len(); n != len(tree) {
		x.w.T.Errorf("%d nodes, want %d", n, len(tree))
	}
	for _, f := range readers {
		x.w.Eventually("the events add up to the tree", func() bool { return f.equals(tree) })
		f.check(x.w.T)
	}
}

// reader follows the events until the test ends.
func (x *caching) reader(pace func()) *fold {
	f := newFold(x.root)
	f.pace = pace
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		f.follow(ctx, x.k)
	}()
	x.w.T.Cleanup(func() {
		cancel()
		<-done
		f.check(x.w.T)
	})
	return f
}
