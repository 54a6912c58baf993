package coordtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// NodeState is the node at a path: which incarnation, and what it holds.
type NodeState struct {
	Czxid, Mzxid int64
	Data         string
}

func isOf(n coord.CachedNode) NodeState { return NodeState{n.Stat.Czxid, n.Stat.Mzxid, string(n.Data)} }

// CopyOf returns what a cache has, by paths.
func CopyOf(k *coord.Cache, root string) map[string]NodeState {
	all := make(map[string]NodeState)
	for path, n := range k.Walk(root) {
		all[path] = isOf(n)
	}
	return all
}

// TreeOf returns what the service has, by paths without the namespace.
func TreeOf(t *testing.T, s backend.Session, namespace, root string) map[string]NodeState {
	t.Helper()
	all := make(map[string]NodeState)
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
		all[path] = NodeState{stat.Czxid, stat.Mzxid, string(data)}
		for _, name := range names {
			read(path + "/" + name)
		}
	}
	read(root)
	return all
}

// A Fold is a reader of Cache.Events that applies the events to a tree, and checks that
// they can be applied: a node is created once and under its parent, and deleted without
// children.
type Fold struct {
	root string
	Pace func() // called after each batch

	Mu      sync.Mutex
	Tree    map[string]NodeState
	kids    map[string]int
	newest  map[string]int64 // czxid of the latest node at a path
	Counts  map[coord.CacheEventKind]int
	Seen    map[string]int // events of each path
	Batches int
	Flashes int // deletions of nodes that had not been deleted
	Wrong   []string
	Err     error // of the end
}

// NewFold returns a reader of the events at root and below.
func NewFold(root string) *Fold {
	return &Fold{root: root, Tree: make(map[string]NodeState), kids: make(map[string]int), newest: make(map[string]int64),
		Counts: make(map[coord.CacheEventKind]int), Seen: make(map[string]int)}
}

// Follow applies the events until ctx or the cache ends.
func (f *Fold) Follow(ctx context.Context, k *coord.Cache) {
	for batch, err := range k.Events(ctx) {
		f.Mu.Lock()
		if err != nil {
			f.Err = err
		} else {
			f.apply(batch)
		}
		f.Mu.Unlock()
		if f.Pace != nil && err == nil {
			f.Pace()
		}
	}
}

func (f *Fold) apply(batch []coord.CacheEvent) {
	fail := func(e coord.CacheEvent, why string) {
		f.Wrong = append(f.Wrong, fmt.Sprintf("batch %d: %v %s: %s", f.Batches, e.Kind, e.Path, why))
	}
	f.Batches++
	for _, e := range batch {
		f.Counts[e.Kind]++
		f.Seen[e.Path]++
		parent := path.Dir(e.Path)
		if e.Path == "/" {
			parent = ""
		}
		old, there := f.Tree[e.Path]
		is := isOf(e.Node)
		switch e.Kind {
		case coord.NodeCreated:
			if there {
				fail(e, "it is there")
			}
			if _, ok := f.Tree[parent]; !ok && e.Path != f.root {
				fail(e, "it has no parent")
			}
			switch last := f.newest[e.Path]; {
			case is.Czxid < last:
				fail(e, "an older node came back")
			case is.Czxid == last:
				f.Flashes++
			}
			f.newest[e.Path] = is.Czxid
			f.kids[parent]++
			f.Tree[e.Path] = is
		case coord.NodeChanged:
			if !there || old.Czxid != is.Czxid || is.Mzxid <= old.Mzxid {
				fail(e, fmt.Sprintf("%+v after %+v", is, old))
			}
			f.Tree[e.Path] = is
		case coord.NodeDeleted:
			if !there || f.kids[e.Path] != 0 || is.Czxid != 0 {
				fail(e, fmt.Sprintf("there: %t, children: %d", there, f.kids[e.Path]))
			}
			f.kids[parent]--
			delete(f.Tree, e.Path)
		default:
			fail(e, "no such kind")
		}
	}
}

// Equals reports whether the events add up to tree.
func (f *Fold) Equals(tree map[string]NodeState) bool {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return maps.Equal(f.Tree, tree)
}

// Check reports what could not be applied.
func (f *Fold) Check(t *testing.T) {
	t.Helper()
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for _, s := range f.Wrong {
		t.Error(s)
	}
}

// EventsOf returns the number of events of the node at path.
func (f *Fold) EventsOf(path string) int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.Seen[path]
}
