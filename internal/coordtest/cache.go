package coordtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// NodeState is the node at a path: which incarnation, and what it holds.
type NodeState struct {
	Czxid, Mzxid int64
	Version      int32
	Owner        int64
	Data         string
}

// StateOf returns the state of a node that was read.
func StateOf(data []byte, s backend.Stat) NodeState {
	return NodeState{s.Czxid, s.Mzxid, s.Version, s.EphemeralOwner, string(data)}
}

// CopyOf returns what a cache has, by paths.
func CopyOf(k *coord.Cache, root string) map[string]NodeState {
	all := make(map[string]NodeState)
	for path, n := range k.Walk(root) {
		all[path] = StateOf(n.Data, n.Stat)
	}
	return all
}

// TreeOf returns what the service has, by paths without the namespace.
func TreeOf(t *testing.T, s backend.Session, namespace, root string) map[string]NodeState {
	t.Helper()
	all, err := ReadTree(context.Background(), s, namespace, root, 1)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// ReadTree reads what TreeOf returns, with neither watches nor batches, and so many nodes at once.
func ReadTree(ctx context.Context, s backend.Session, namespace, root string, atOnce int) (map[string]NodeState, error) {
	if err := s.Sync(ctx, namespace+root); err != nil {
		return nil, err
	}
	type answer struct {
		is    NodeState
		names []string
		gone  bool // also an ephemeral node of a session that expires only now
	}
	read := func(p string, a *answer) error {
		data, stat, err := s.Get(ctx, namespace+p, nil)
		if err == nil {
			a.is = StateOf(data, stat)
			a.names, _, err = s.Children(ctx, namespace+p, nil)
		}
		if a.gone = errors.Is(err, backend.ErrNotFound); a.gone {
			return nil
		}
		return err
	}
	all := make(map[string]NodeState)
	for level := []string{root}; len(level) > 0; {
		answers := make([]answer, len(level))
		var reads errgroup.Group
		reads.SetLimit(atOnce)
		for i, p := range level {
			if atOnce > 1 {
				reads.Go(func() error { return read(p, &answers[i]) })
			} else if err := read(p, &answers[i]); err != nil {
				return nil, err
			}
		}
		if err := reads.Wait(); err != nil {
			return nil, err
		}
		var next []string
		for i, a := range answers {
			if a.gone {
				continue
			}
			all[level[i]] = a.is
			for _, name := range a.names {
				if p := path.Join(level[i], name); namespace+p != "/zookeeper" { // which is reserved
					next = append(next, p)
				}
			}
		}
		level = next
	}
	return all, nil
}

// CompareServers describes how the trees of servers, each with a backend of its own, differ from the
// tree of the first server, or returns "". No client can cause that: servers that are killed have had such defects.
func CompareServers(ctx context.Context, servers []backend.Backend, namespace string, atOnce int, roots ...string) (difference string, err error) {
	var first map[string]NodeState
	for i, b := range servers {
		all, err := readTrees(ctx, b, namespace, atOnce, roots)
		if err != nil {
			return "", fmt.Errorf("server %d: %w", i+1, err)
		}
		if i == 0 {
			first = all
		} else if d := Difference(all, first); d != "" {
			return fmt.Sprintf("server %d, by server 1: %s", i+1, d), nil
		}
	}
	return "", nil
}

func readTrees(ctx context.Context, b backend.Backend, namespace string, atOnce int, roots []string) (map[string]NodeState, error) {
	s, err := b.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	all := make(map[string]NodeState)
	for _, root := range roots {
		tree, err := ReadTree(ctx, s, namespace, root, atOnce)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, tree)
	}
	return all, nil
}

// Difference describes how a copy differs from the tree, or returns "".
func Difference(copied, tree map[string]NodeState) string {
	for path, n := range tree {
		if c, ok := copied[path]; !ok {
			return fmt.Sprintf("it lacks %s, %+v", path, n)
		} else if c != n {
			return fmt.Sprintf("it has %+v at %s, the tree %+v", c, path, n)
		}
	}
	for path, n := range copied {
		if _, ok := tree[path]; !ok {
			return fmt.Sprintf("it has %s, %+v, which the tree does not have", path, n)
		}
	}
	return ""
}

// A flash is a pair of events, the deletion and the creation of a node that the service has not
// deleted. Flash says which flashes a Fold accepts. A Fold counts all of them.
type Flash int

const (
	FlashAlways     Flash = iota
	FlashWithParent       // only those of nodes whose parent was created again, as caches do without trees
	FlashNever
)

// A Fold is a reader of Cache.Events that applies the events to a tree, and checks that
// they can be applied: a node is created once and under its parent, and deleted without
// children, and no event has an older state than an earlier event of the same path.
type Fold struct {
	root  string
	Flash Flash
	Older func(path string, is NodeState, before int64) // judges an older state instead; before is the greatest Mzxid of earlier events of the path
	Pace  func()                                        // called after each batch
	Judge func(path string, is NodeState) (why string)  // returns why the state of an event is wrong, or ""

	Mu      sync.Mutex
	Tree    map[string]NodeState
	kids    map[string]int
	latest  map[string]reported
	states  int // number of events with a state
	Counts  map[coord.CacheEventKind]int
	Seen    map[string]int // events of each path
	Batches int
	Flashes int // deletions of nodes that had not been deleted
	Wrong   []string
	Err     error // of the end
}

// reported is what the events have reported about a path.
type reported struct {
	czxid, mzxid int64 // of the latest node, and of its latest state
	shown        int   // the number of the latest state
	created      int   // the number of the latest creation
}

// NewFold returns a reader of the events at root and below.
func NewFold(root string) *Fold {
	return &Fold{root: root, Tree: make(map[string]NodeState), kids: make(map[string]int), latest: make(map[string]reported),
		Counts: make(map[coord.CacheEventKind]int), Seen: make(map[string]int)}
}

// Follow applies the events until ctx or the cache ends.
func (f *Fold) Follow(ctx context.Context, k *coord.Cache) {
	for batch, err := range k.Events(ctx) {
		if err != nil {
			f.Mu.Lock()
			f.Err = err
			f.Mu.Unlock()
			continue
		}
		f.Apply(batch)
		if f.Pace != nil {
			f.Pace()
		}
	}
}

// Apply applies a batch.
func (f *Fold) Apply(batch []coord.CacheEvent) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	f.Batches++
	for _, e := range batch {
		f.Counts[e.Kind]++
		f.Seen[e.Path]++
		if why := f.event(e); why != "" {
			f.Wrong = append(f.Wrong, fmt.Sprintf("batch %d: %v %s: %s", f.Batches, e.Kind, e.Path, why))
		}
	}
}

// event applies an event, and returns why it does not follow from the earlier ones.
func (f *Fold) event(e coord.CacheEvent) (wrong string) {
	parent := path.Dir(e.Path)
	if e.Path == "/" {
		parent = ""
	}
	old, there := f.Tree[e.Path]
	is := StateOf(e.Node.Data, e.Node.Stat)
	switch e.Kind {
	case coord.NodeDeleted:
		if there {
			f.kids[parent]--
			delete(f.Tree, e.Path)
		}
		switch {
		case !there:
			return "there is none"
		case f.kids[e.Path] != 0:
			return "it has children"
		case is.Czxid != 0:
			return fmt.Sprintf("it has the state %+v", is)
		}
		return ""
	case coord.NodeCreated, coord.NodeChanged:
	default:
		return "no such kind"
	}
	created := e.Kind == coord.NodeCreated
	f.states++
	before := f.latest[e.Path]
	after := reported{is.Czxid, max(before.mzxid, is.Mzxid), f.states, before.created}
	if created {
		after.created = f.states
	}
	_, below := f.Tree[parent]
	if !there {
		f.kids[parent]++
	}
	f.Tree[e.Path], f.latest[e.Path] = is, after
	switch {
	case created && there:
		return fmt.Sprintf("it is there as %+v", old)
	case !created && !there:
		return "there is none"
	case !below && e.Path != f.root:
		return "it has no parent"
	case !created && is.Czxid != old.Czxid:
		return fmt.Sprintf("%+v is another node than %+v", is, old)
	case created && is.Czxid == before.czxid && is.Mzxid >= before.mzxid:
		f.Flashes++
		if f.Flash == FlashNever || f.Flash == FlashWithParent && f.latest[parent].created <= before.shown {
			return f.older(e.Path, is, before.mzxid, "it had not been deleted")
		}
	case created && is.Czxid <= before.mzxid, !created && is.Mzxid <= before.mzxid:
		return f.older(e.Path, is, before.mzxid, "which had ended")
	}
	if f.Judge != nil {
		return f.Judge(e.Path, is)
	}
	return ""
}

// older returns why a state that is not later than those of earlier events is wrong.
func (f *Fold) older(path string, is NodeState, before int64, how string) (wrong string) {
	if f.Older != nil {
		f.Older(path, is, before)
		return ""
	}
	return fmt.Sprintf("%+v is not later than the state of an earlier event, as of %#x: %s", is, before, how)
}

// Equals reports whether the events add up to tree.
func (f *Fold) Equals(tree map[string]NodeState) bool { return f.Difference(tree) == "" }

// Difference describes how what the events add up to differs from the tree, or returns "".
func (f *Fold) Difference(tree map[string]NodeState) string {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return Difference(f.Tree, tree)
}

// Sum returns what the events add up to, and those that do not follow from earlier ones.
func (f *Fold) Sum() (tree map[string]NodeState, wrong []string) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return maps.Clone(f.Tree), f.Wrong[:len(f.Wrong):len(f.Wrong)]
}

// Check reports what could not be applied.
func (f *Fold) Check(t *testing.T) {
	t.Helper()
	_, wrong := f.Sum()
	for _, s := range wrong {
		t.Error(s)
	}
}

// EventsOf returns the number of events of the node at path.
func (f *Fold) EventsOf(path string) int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.Seen[path]
}
