package coord

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// CacheOptions may be nil.
type CacheOptions struct {
	// MaxNodes is the maximum number of nodes in the copy, including the root. If
	// there are more, Run ends with ErrLimit. Zero means no limit. Nodes that have
	// just been deleted may still be counted. While Run reads the tree again after a
	// reconnection, the copy can contain new nodes beside deleted nodes; it may then have
	// twice as many nodes.
	MaxNodes int
}

// A Cache is a live copy, in the memory of this process, of a node and everything below it.
// Run maintains the copy; Get, Children and Walk read it without a round trip; Events
// reports its changes. A Cache only reads, so it works on any tree. It is safe for
// concurrent use and needs no closing: to stop it, end Run.
//
// The copy consists of the service's answers about each node. It is not a snapshot: changes
// that two clients make to two nodes can appear in another order. The state of each node
// only moves forward, and lags by the time of events and replies. Every node of the copy
// has its parent in the copy. If changes stop and there is contact, the copy becomes
// exactly equal to the tree. That also holds after lost contact and lost sessions, and for
// nodes that were deleted and created again, whatever their versions. Without contact the
// copy stays unchanged, as Client.WatchState reports, and Run continues by itself.
//
// Paths are absolute, without the client's namespace. The root is one of the nodes: the
// children of a cache on "/config" are "/config/a" and so on. The root may be missing, be
// created, be deleted and come back. It may be "/", which with a namespace is the
// namespace's node. A node whose path the service refuses is left out with everything below
// it (see Session.CheckPath of package backend), such as ZooKeeper's /zookeeper. So are the
// pins of Values, see layout.md.
//
// If the service has trees and batches (see Features of package backend), one watch serves
// the whole tree, and 128 reads share a request. Otherwise each node takes two watches. No
// node needs a goroutine. sizing.md lists requests and memory.
type Cache struct {
	c      *core.Client
	path   core.Path
	limit  int
	synced chan struct{}

	passes uint32 // of the current Run, see mirror

	mu      sync.RWMutex // short sections; only Run changes the copy
	running bool
	nodes   map[string]*cacheNode // the copy, by path without the namespace
	readers map[*cacheReader]struct{}
}

// CachedNode is the state of a node in a Cache.
type CachedNode struct {
	// Data is shared with the Cache and all its readers: it must not be changed.
	// The Cache never changes it either; a change of the node makes new data.
	Data []byte

	// Stat belongs to the data, except for its fields about children. NumChildren
	// counts the children in the copy. Pzxid, Cversion and AsOf can be older than the
	// copy. Events does not report changes of these fields.
	Stat backend.Stat

	history int32 // see cacheNode
}

// NewCache returns a cache of the node at root and everything below it. It does no
// I/O; a bad path or option is reported by Run and Events.
func NewCache(c *Client, root string, o *CacheOptions) *Cache {
	k := &Cache{
		c:       c.core(),
		path:    c.core().TreePath(root),
		synced:  make(chan struct{}),
		nodes:   make(map[string]*cacheNode),
		readers: make(map[*cacheReader]struct{}),
	}
	if o != nil {
		k.limit = o.MaxNodes
	}
	return k
}

// Run maintains the copy until ctx ends, over lost contact and lost sessions. It
// returns the error of ctx; ErrClosed if the client is closed; ErrLimit; or the
// error with which the service refuses to show a node, such as ErrDenied, which
// names the node. Only one Run can be active; a second Run fails with ErrInvalid.
//
// Services with trees can keep the changes of a node from a client that may not read it
// (see the manual on permissions). Run finds such a node, and ends, only when it reads the
// tree again, after a reconnection. Until then a node that can no longer be read stays in
// the copy as it was.
//
// After Run has ended, the copy stays as it is and can be read. Another Run
// continues from it: changes in the meantime are found and reported like any other
// change.
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
		return core.OpError(op, k.path.Full(), fmt.Errorf("%w: the cache is already running", ErrInvalid))
	}
	defer func() {
		k.mu.Lock()
		k.running = false
		k.mu.Unlock()
	}()
	err := k.c.FollowLive(ctx, func(ctx context.Context, v *core.WatchLoop) error { return k.mirror(ctx, v.S) })
	err = core.OpError(op, k.path.Full(), err)
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
		return core.OpError(op, k.path.Full(), fmt.Errorf("%w: MaxNodes %d is negative", ErrInvalid, k.limit))
	}
	return nil
}

// Synced returns a channel that is closed when the first complete copy exists:
// every node found from the root downward has been read, or there is no root.
// Before that the copy is partial. The channel is closed once; a later Run or
// another session does not reopen it.
func (k *Cache) Synced() <-chan struct{} { return k.synced }

// Len returns the number of nodes in the copy.
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

// Children returns the sorted names of the children of the node at path, and
// whether the node is in the copy. The caller owns the slice.
func (k *Cache) Children(path string) ([]string, bool) {
	k.mu.RLock()
	n := k.nodes[path]
	var names []string
	if n != nil {
		for child := n.first; child != nil; child = child.next {
			names = append(names, core.Base(child.path))
		}
	}
	k.mu.RUnlock()
	slices.Sort(names)
	return names, n != nil
}

// Walk returns an iterator over the node at path and all nodes below it, in the
// order of their paths, so parents come before their children. The loop sees the
// copy as it was at one moment, when the loop began. Its body may take its time and
// use the cache. Walk needs memory for a list of the nodes.
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
	if path == k.path.Given() {
		list = make([]CacheEvent, 0, len(k.nodes))
	}
	for n := range top.all {
		list = append(list, CacheEvent{Kind: NodeCreated, Path: k.given(n.path), Node: n.cached()})
	}
	return list
}

// given returns the path without the namespace.
func (k *Cache) given(full string) string {
	if len(full) == len(k.c.Root()) {
		return "/" // the node of the namespace
	}
	return full[len(k.c.Root()):]
}

// CacheEventKind is the kind of a change of a node in a Cache.
type CacheEventKind int8

// The kinds of events. NodeChanged is a change of data.
const (
	NodeCreated CacheEventKind = iota + 1
	NodeChanged
	NodeDeleted
)

// String returns the kind as a word.
func (e CacheEventKind) String() string {
	switch e {
	case NodeCreated:
		return "created"
	case NodeChanged:
		return "changed"
	case NodeDeleted:
		return "deleted"
	}
	return "unknown"
}

// A CacheEvent is a change of a Cache's copy.
type CacheEvent struct {
	Kind CacheEventKind
	Path string
	Node CachedNode // the current state; zero for NodeDeleted
}

// Events returns an iterator over the changes of the copy. Each turn gets a batch of the
// changes since the previous turn. The first batch is the whole copy, as creations; it
// comes when the copy is complete (see Synced), and is empty if there is no node.
//
// A batch merges all changes of a node into one event, or none if the result is the same.
// But a node that was deleted and created again has two events, a deletion and a creation,
// in one batch or two. (If its parent was deleted and created again as well, the node can
// have both events twice.) So a slow loop misses no result, and its memory is bounded by
// the number of nodes. In a batch the deletions come first, children before parents; then
// creations and changes, parents before children.
//
// Loops are independent and may begin at any time. The body runs in the goroutine of its
// loop, delays no other loop, and may use the cache. The end of Run does not end the loop,
// since another Run can begin. If ctx ends, the loop just ends. On a failure (ErrClosed,
// ErrBadPath, ErrInvalid) the last pair is nil and the error.
func (k *Cache) Events(ctx context.Context) iter.Seq2[[]CacheEvent, error] {
	core.NeedContext(ctx)
	return func(yield func([]CacheEvent, error) bool) {
		const op = "events"
		if err := k.check(op); err != nil {
			yield(nil, err)
			return
		}
		await := func(what <-chan struct{}) (goOn bool) {
			select {
			case <-what:
			case <-ctx.Done():
			case <-k.c.Closing():
			}
			// Of several reasons select picks any: an end comes before a batch.
			if ctx.Err() != nil {
				return false
			}
			if k.c.IsClosing() {
				yield(nil, core.OpError(op, k.path.Full(), ErrClosed))
				return false
			}
			return true
		}
		if !await(k.synced) {
			return
		}
		r, batch := k.follow()
		defer k.unfollow(r)
		for yield(batch, nil) {
			for batch = nil; len(batch) == 0; batch = k.news(r) {
				if !await(r.ready) {
					return
				}
			}
		}
	}
}

// cacheReader is a loop over the events. It stores no nodes and no events, only the
// paths that have changed and the versions of those nodes that its loop knows. Of
// every other path its loop knows the state in the copy.
type cacheReader struct {
	ready chan struct{}          // of capacity 1: known may not be empty
	known map[string]nodeVersion // guarded by Cache.mu
}

// follow registers a reader, and returns it with the current copy.
func (k *Cache) follow() (*cacheReader, []CacheEvent) {
	r := &cacheReader{ready: make(chan struct{}, 1)}
	k.mu.Lock()
	k.readers[r] = struct{}{}
	list := k.listLocked(k.path.Given())
	k.mu.Unlock()
	slices.SortFunc(list, byPath)
	return r, list
}

func (k *Cache) unfollow(r *cacheReader) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.readers, r)
}

// mark notes a change of the node at path for all readers. was is the version
// before it, and there reports whether a node exists now. The caller holds mu.
func (k *Cache) mark(path string, was nodeVersion, there bool) {
	for r := range k.readers {
		known, marked := r.known[path]
		switch {
		case !marked:
			if r.known == nil {
				r.known = make(map[string]nodeVersion)
			}
			r.known[path] = was
		case !there && known == nodeVersion{}:
			delete(r.known, path) // created and deleted: the reader need not know
		}
		select {
		case r.ready <- struct{}{}:
		default:
		}
	}
}

// news returns the changes that the reader does not know yet.
func (k *Cache) news(r *cacheReader) []CacheEvent {
	// Only Run, under the write lock, and the loop that calls news use r.
	k.mu.RLock()
	known := r.known
	r.known = nil // maps do not shrink
	var deleted, others []CacheEvent
	for path, was := range known {
		n := k.nodes[path]
		var is nodeVersion
		if n != nil {
			is = n.version()
		}
		if was.there && (!is.there || was.czxid != is.czxid) {
			deleted = append(deleted, CacheEvent{Kind: NodeDeleted, Path: path})
		}
		switch {
		case n == nil || was == is:
		case was.there && was.czxid == is.czxid:
			others = append(others, CacheEvent{Kind: NodeChanged, Path: path, Node: n.cached()})
		default:
			others = append(others, CacheEvent{Kind: NodeCreated, Path: path, Node: n.cached()})
		}
	}
	k.mu.RUnlock()
	// A parent's path is a prefix of its children's, so it sorts before them.
	slices.SortFunc(deleted, func(a, b CacheEvent) int { return cmp.Compare(b.Path, a.Path) })
	slices.SortFunc(others, byPath)
	return append(deleted, others...)
}

func byPath(a, b CacheEvent) int { return strings.Compare(a.Path, b.Path) }
