package coord

import (
	"context"
	"iter"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/mirror"
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
// only moves forward, and lags by the time of events and replies; it goes back only if the
// service does, which was restored or has lost a commit. Every node of the copy has its
// parent in the copy. If changes stop and there is contact, the copy becomes
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
type Cache struct{ m *mirror.Cache }

// CachedNode is the state of a node in a Cache.
type CachedNode struct {
	// Data is shared with the Cache and all its readers: it must not be changed.
	// The Cache never changes it either; a change of the node makes new data.
	Data []byte

	// Stat belongs to the data, except for its fields about children. NumChildren
	// counts the children in the copy. Pzxid, Cversion and AsOf can be older than the
	// copy. Events does not report changes of these fields.
	Stat backend.Stat
}

func cachedNode(n mirror.Node) CachedNode { return CachedNode{Data: n.Data, Stat: n.Stat} }

// NewCache returns a cache of the node at root and everything below it. It does no
// I/O; a bad path or option is reported by Run and Events.
func NewCache(c *Client, root string, o *CacheOptions) *Cache {
	limit := 0
	if o != nil {
		limit = o.MaxNodes
	}
	return &Cache{mirror.New(c.core(), root, limit)}
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
func (k *Cache) Run(ctx context.Context) error { return k.m.Run(ctx) }

// Synced returns a channel that is closed when the first complete copy exists:
// every node found from the root downward has been read, or there is no root.
// Before that the copy is partial. The channel is closed once; a later Run or
// another session does not reopen it.
func (k *Cache) Synced() <-chan struct{} { return k.m.Synced() }

// Len returns the number of nodes in the copy.
func (k *Cache) Len() int { return k.m.Len() }

// Get returns the node at path, and whether it is in the copy.
func (k *Cache) Get(path string) (CachedNode, bool) {
	n, ok := k.m.Get(path)
	return cachedNode(n), ok
}

// Children returns the sorted names of the children of the node at path, and
// whether the node is in the copy. The caller owns the slice.
func (k *Cache) Children(path string) ([]string, bool) { return k.m.Children(path) }

// Walk returns an iterator over the node at path and all nodes below it, in the
// order of their paths, so parents come before their children. The loop sees the
// copy as it was at one moment, when the loop began. Its body may take its time and
// use the cache. Walk needs memory for a list of the nodes.
func (k *Cache) Walk(path string) iter.Seq2[string, CachedNode] {
	return func(yield func(string, CachedNode) bool) {
		for path, n := range k.m.Walk(path) {
			if !yield(path, cachedNode(n)) {
				return
			}
		}
	}
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
	return mirror.Events(ctx, k.m, func(e mirror.Event) CacheEvent {
		return CacheEvent{Kind: CacheEventKind(e.Kind), Path: e.Path, Node: cachedNode(e.Node)}
	}, func(a, b CacheEvent) int {
		return mirror.CompareEvents(mirror.Kind(a.Kind), a.Path, mirror.Kind(b.Kind), b.Path)
	})
}

// A CacheView reads the nodes of a Cache as values of type T, without a round trip. It decodes
// the data of a node once, at the first read of each version, and not at each read. It has no
// goroutine and holds nothing that needs closing: it is current as long as its Cache runs, and
// a node that is not read is not decoded. Any number of views, of different types, can use one
// Cache.
//
// If the codec refuses the data of a node, Get and All return that node with ErrDecode in Err and
// a zero Value. To keep the last good value of a single node over a bad change, use Value.Load.
//
// All readers share the memory that a Value refers to, so it must not be changed. Decode runs in
// the goroutine of the first reader of a version; other readers of that version wait for it. A
// CacheView is safe for concurrent use. A decoded value stays in memory with its node, and for
// some time after the node is deleted. The view keeps at most twice as many values as the Cache
// has nodes, and 64 more.
type CacheView[T any] struct {
	v *mirror.View[Versioned[T]]
}

// NewCacheView returns a view of the cache. The zero Codec is JSON.
func NewCacheView[T any](k *Cache, codec Codec[T]) *CacheView[T] {
	codec = codec.orJSON()
	return &CacheView[T]{mirror.NewView(k.m, func(path string, n mirror.Node) Versioned[T] {
		val, err := codec.decode(n.Data)
		return Versioned[T]{
			Value: val, Czxid: n.Stat.Czxid, Version: n.Stat.Version, Mzxid: n.Stat.Mzxid,
			Err: errs.Op("decode", k.m.Full(path), err),
		}
	})}
}

// Get returns the value of the node at path, and whether the copy has one. A directory without a
// value has none. Cache describes the paths, and how far the copy can lag behind.
func (v *CacheView[T]) Get(path string) (Versioned[T], bool) { return v.v.Get(path) }

// All returns an iterator over the values of the node at path and of all nodes below it, in the
// order of their paths. The loop sees the copy as it was at one moment, as with Cache.Walk. Like
// Get it leaves out directories.
func (v *CacheView[T]) All(path string) iter.Seq2[string, Versioned[T]] { return v.v.All(path) }
