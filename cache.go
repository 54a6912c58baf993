package coord

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// CacheOptions may be nil.
type CacheOptions struct {
	// MaxNodes is the most nodes that the copy may have, the root included. When
	// there are more, Run ends with ErrLimit. Zero means no limit. Nodes that were
	// deleted a moment ago can still be counted. While the tree is read anew, after
	// a reconnection, what is new can stand beside what was there before: for that
	// time the copy may have twice as many.
	MaxNodes int
}

// A Cache is a live copy of a node and everything below it, in the memory of this
// process. Run keeps it; Get, Children and Walk read it without a round trip; Events
// tells what changes.
//
// The copy is made of what the service said of each node. It is not a picture of
// one moment: what two clients do to two nodes can show in another order. For each
// node it goes only forward, and it is behind by the time that events and replies
// take. Every node of the copy has its parent in the copy. When nothing changes any
// more and there is contact, the copy comes to equal the tree exactly. That holds
// after lost contact and lost sessions too, for nodes that were deleted and created
// again meanwhile, with whatever version: nodes are told apart by the commits that
// made and changed them. Without contact the copy stands as it was; Client.WatchState
// tells of that.
//
// Paths are as recipes take them: absolute, without the client's namespace. The root
// is one of the nodes; the children of the cache on "/config" are "/config/a" and so
// on. The root may be missing, be created, be deleted and come back; it may be "/", which
// with a namespace is the namespace's node. A node whose path CheckPath of package backend
// refuses is left out, with all below it: so is the service's own /zookeeper.
//
// It costs, per node, two requests at the start and after each reconnection, and two
// watches; one of each for an ephemeral node, which has no children. A change of data
// costs one request, a creation three, one of which reads the names of all children
// of its parent, and a deletion that one. Up to 32 requests are under way at once. A
// node takes about 250 bytes besides its data and path, and each watch about 500. No
// node needs a goroutine.
//
// A Cache only reads, so it has no layout: any tree will do. It is safe for
// concurrent use. There is nothing to close but to end Run, and without contact
// Run goes on by itself.
type Cache struct {
	c      *Client
	path   recipePath
	limit  int
	synced chan struct{}

	passes uint32 // of the Run at work, see mirror

	mu      sync.RWMutex // short sections; only Run changes the copy
	running bool
	nodes   map[string]*cacheNode // the copy, by path as users see it
	readers map[*cacheReader]struct{}
}

// CachedNode is a node as a Cache has it.
type CachedNode struct {
	// Data is shared with the Cache and everybody who reads it: it must not be
	// changed. It never changes by itself; a change of the node makes new data.
	Data []byte

	// Stat belongs to the data. What it says of children (Pzxid, Cversion,
	// NumChildren) is as of the latest list of them and no part of what Events
	// tells.
	Stat backend.Stat
}

// NewCache returns a cache of the node at root and all below it. It does no I/O; a
// bad path or option is reported by Run and Events.
func NewCache(c *Client, root string, o *CacheOptions) *Cache {
	k := &Cache{
		c:       c,
		path:    c.treePath(root),
		synced:  make(chan struct{}),
		nodes:   make(map[string]*cacheNode),
		readers: make(map[*cacheReader]struct{}),
	}
	if o != nil {
		k.limit = o.MaxNodes
	}
	return k
}

// Run keeps the copy until ctx ends, over lost contact and lost sessions. It returns
// the error of ctx; ErrClosed when the client is closed; ErrLimit; ErrDenied and the
// like when the service refuses to show a node, which the error names. One Run works
// at a time, a second fails with ErrInvalid.
//
// When Run has ended the copy stays as it is and can be read. Another Run goes on
// from there: what has changed meanwhile is found and told as any other change.
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
		return opError(op, k.path.full, fmt.Errorf("%w: the cache runs already", ErrInvalid))
	}
	defer func() {
		k.mu.Lock()
		k.running = false
		k.mu.Unlock()
	}()
	err := k.c.followLive(ctx, func(ctx context.Context, v *vigil) error { return k.mirror(ctx, v.s) })
	err = opError(op, k.path.full, err)
	if ctx.Err() == nil {
		tell(ctx, k.c, trace.CacheStopped{Subject: k.subject(), Err: err})
	}
	return err
}

func (k *Cache) subject() trace.Subject {
	return trace.Subject{Recipe: "cache", Path: k.path.full, Op: "run", Node: k.path.full}
}

func (k *Cache) check(op string) error {
	if err := k.path.check(op); err != nil {
		return err
	}
	if k.limit < 0 {
		return opError(op, k.path.full, fmt.Errorf("%w: MaxNodes %d", ErrInvalid, k.limit))
	}
	return nil
}

// Synced is closed when the first complete copy is there: every node has been read
// that was found on the way from the root, or it was found that there is no root.
// Before that the copy is a part. It is closed once for all; a later Run, or another
// session, does not open it again.
func (k *Cache) Synced() <-chan struct{} { return k.synced }

// Len is the number of nodes in the copy.
func (k *Cache) Len() int {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return len(k.nodes)
}

// Get returns the node at path, and whether it is in the copy.
func (k *Cache) Get(path string) (CachedNode, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	n := k.nodes[path]
	if n == nil {
		return CachedNode{}, false
	}
	return n.cached(), true
}

// Children returns the names of the children of the node at path, in order, and
// whether the node is in the copy. The slice is the caller's own.
func (k *Cache) Children(path string) ([]string, bool) {
	k.mu.RLock()
	n := k.nodes[path]
	var names []string
	if n != nil {
		for child := n.first; child != nil; child = child.next {
			names = append(names, base(child.path))
		}
	}
	k.mu.RUnlock()
	slices.Sort(names)
	return names, n != nil
}

// Walk is for a loop over the node at path and all nodes below it, in the order of
// their paths, so parents come before their children. The loop sees the copy as it was
// at one moment, when it began; its body may take its time and use the cache. It
// needs the memory for a list of the nodes.
func (k *Cache) Walk(path string) iter.Seq2[string, CachedNode] {
	return func(yield func(string, CachedNode) bool) {
		for _, e := range k.list(path) {
			if !yield(e.Path, e.Node) {
				return
			}
		}
	}
}

// list returns the nodes at and below path as events of their creation.
func (k *Cache) list(path string) []CacheEvent {
	k.mu.RLock()
	list := k.listLocked(path)
	k.mu.RUnlock()
	slices.SortFunc(list, func(a, b CacheEvent) int { return strings.Compare(a.Path, b.Path) })
	return list
}

func (k *Cache) listLocked(path string) []CacheEvent {
	top := k.nodes[path]
	if top == nil {
		return nil
	}
	var list []CacheEvent
	if path == k.path.given {
		list = make([]CacheEvent, 0, len(k.nodes))
	}
	for n := range top.all {
		list = append(list, CacheEvent{Kind: NodeCreated, Path: k.given(n.path), Node: n.cached()})
	}
	return list
}

// given is a path without the namespace.
func (k *Cache) given(full string) string {
	if len(full) == len(k.c.root) {
		return "/" // that is the namespace itself
	}
	return full[len(k.c.root):]
}
