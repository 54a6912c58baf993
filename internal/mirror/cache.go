package mirror

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/follow"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// A Cache is a copy of the node at a path and of everything below it. Paths are without the
// namespace, except where a comment says otherwise.
type Cache struct {
	c      *core.Client
	path   nodepath.Path
	limit  int
	synced chan struct{}

	passes uint32 // of the current Run, see syncer

	mu      sync.RWMutex // short sections; only Run changes the copy
	running bool
	nodes   map[string]*node // the copy, by path
	readers map[*reader]struct{}
}

// New returns a cache of the tree at root. A bad root or limit is reported by Run and Events.
// limit is the maximum number of nodes, zero for no limit.
func New(c *core.Client, root string, limit int) *Cache {
	return &Cache{
		c:       c,
		path:    c.TreePath(root),
		limit:   limit,
		synced:  make(chan struct{}),
		nodes:   make(map[string]*node),
		readers: make(map[*reader]struct{}),
	}
}

// Run maintains the copy, until ctx ends or for as long as there is no error.
func (k *Cache) Run(ctx context.Context) error {
	const op = "run"
	if err := k.check(op); err != nil {
		return err
	}
	k.mu.Lock()
	second := k.running
	k.running = true
	k.mu.Unlock()
	if second {
		return errs.Op(op, k.path.Full(), fmt.Errorf("%w: the cache is already running", backend.ErrInvalid))
	}
	defer func() {
		k.mu.Lock()
		k.running = false
		k.mu.Unlock()
	}()
	err := follow.Live(ctx, k.c, func(ctx context.Context, v *follow.Loop) error { return k.syncWith(ctx, v.S) })
	err = errs.Op(op, k.path.Full(), err)
	if ctx.Err() == nil {
		core.Emit(ctx, k.c, trace.CacheStopped{Subject: k.subject(), Err: err})
	}
	return err
}

func (k *Cache) subject() trace.Subject {
	return trace.Subject{Recipe: "cache", Path: k.path.Full(), Op: "run", Node: k.path.Full()}
}

func (k *Cache) check(op string) error {
	if err := k.path.Check(op); err != nil {
		return err
	}
	if k.limit < 0 {
		return errs.Op(op, k.path.Full(), fmt.Errorf("%w: MaxNodes %d is negative", backend.ErrInvalid, k.limit))
	}
	return nil
}

// Synced returns a channel that is closed when the first complete copy exists.
func (k *Cache) Synced() <-chan struct{} { return k.synced }

// Len returns the number of nodes in the copy.
func (k *Cache) Len() int {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return len(k.nodes)
}

// Full returns the path with the namespace.
func (k *Cache) Full(path string) string { return k.c.TreePath(path).Full() }

// Get returns the node at path, and whether it is in the copy.
func (k *Cache) Get(path string) (Node, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	n := k.nodes[path]
	if n == nil {
		return Node{}, false
	}
	return n.Node, true
}

// Children returns the sorted names of the children of the node at path, and whether the
// node is in the copy.
func (k *Cache) Children(path string) ([]string, bool) {
	k.mu.RLock()
	n := k.nodes[path]
	var names []string
	if n != nil {
		for child := n.first; child != nil; child = child.next {
			names = append(names, nodepath.Base(child.path))
		}
	}
	k.mu.RUnlock()
	slices.Sort(names)
	return names, n != nil
}

// Walk returns an iterator over the node at path and all nodes below it, as they are when the
// loop begins, in the order of their paths.
func (k *Cache) Walk(path string) iter.Seq2[string, Node] {
	return func(yield func(string, Node) bool) {
		k.mu.RLock()
		list := list(k, path, func(e Event) Event { return e })
		k.mu.RUnlock()
		slices.SortFunc(list, func(a, b Event) int { return strings.Compare(a.Path, b.Path) })
		for _, e := range list {
			if !yield(e.Path, e.Node) {
				return
			}
		}
	}
}

// given returns the path without the namespace.
func (k *Cache) given(full string) string {
	if len(full) == len(k.c.Root()) {
		return "/" // the node of the namespace
	}
	return full[len(k.c.Root()):]
}
