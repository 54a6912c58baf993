package coord

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strings"
)

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

// Events returns an iterator over the changes of the copy. Each turn gets a batch
// of the changes since the previous turn: applying a batch leads from one state of
// the copy to a later one. The first batch is the whole copy, as creations. It
// comes when the copy is complete (see Synced), and is empty if there is no node.
//
// Batches are net. However many changes a node had since the previous turn, it has
// one event, or none if the result is the same. But a node that was deleted and
// created again has a deletion and a creation, in one batch or in two. (If its
// parent was deleted and created again with it, it can have those twice.) So a slow
// loop loses nothing, and the memory kept for it is bounded by the number of nodes,
// not of changes. In a batch the deletions come first, children before their
// parents; then creations and changes, parents before their children.
//
// Loops are independent of each other and may begin at any time. The body runs in
// the goroutine of its loop, delays no other loop, and may use the cache. Events
// come while a Run is active; the loop continues when Run ends, in case there is
// another. If ctx ends, the loop just ends. On a failure (ErrClosed, ErrBadPath,
// ErrInvalid) it ends with one last pair of nil and the error.
func (k *Cache) Events(ctx context.Context) iter.Seq2[[]CacheEvent, error] {
	return func(yield func([]CacheEvent, error) bool) {
		const op = "events"
		if err := k.check(op); err != nil {
			yield(nil, err)
			return
		}
		await := func(what <-chan struct{}) (goOn bool) {
			if ctx.Err() != nil {
				return false
			}
			select {
			case <-what:
				return true
			case <-ctx.Done():
			case <-k.c.closing:
				yield(nil, opError(op, k.path.full, ErrClosed))
			}
			return false
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
	list := k.listLocked(k.path.given)
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
