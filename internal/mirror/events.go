package mirror

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
)

// Kind is the kind of a change of a node.
type Kind int8

// The kinds of changes, with the numbers of the kinds of package coord. Changed is a change of
// data.
const (
	Created Kind = iota + 1
	Changed
	Deleted
)

// An Event is a change of the copy.
type Event struct {
	Kind Kind
	Path string
	Node Node // zero for Deleted
}

// Events returns an iterator over the changes of the copy, in batches. The first batch is the
// whole copy, as creations. event converts an event to the type of the caller at once, so that
// a batch is one list. order compares two of these by CompareEvents.
func Events[E any](ctx context.Context, k *Cache, event func(Event) E, order func(a, b E) int) iter.Seq2[[]E, error] {
	return func(yield func([]E, error) bool) {
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
				yield(nil, errs.Op(op, k.path.Full(), backend.ErrClosed))
				return false
			}
			return true
		}
		if !await(k.synced) {
			return
		}
		r, batch := subscribe(k, event)
		defer k.unsubscribe(r)
		for {
			slices.SortFunc(batch, order)
			if !yield(batch, nil) {
				return
			}
			for batch = nil; len(batch) == 0; batch = takeChanges(k, r, event) {
				if !await(r.ready) {
					return
				}
			}
		}
	}
}

// CompareEvents is the order of the events in a batch, by their kinds and paths: deletions first,
// children before parents, and then the others, parents before children.
func CompareEvents(a Kind, pathA string, b Kind, pathB string) int {
	// A parent's path is a prefix of its children's, so it sorts before them.
	switch {
	case a == Deleted && b == Deleted:
		return strings.Compare(pathB, pathA)
	case a == Deleted:
		return -1
	case b == Deleted:
		return 1
	}
	return strings.Compare(pathA, pathB)
}

// reader is a loop over the events. It stores no nodes and no events, only the paths that
// have changed and the versions of those nodes that its loop knows. Of every other path its
// loop knows the state in the copy.
type reader struct {
	ready chan struct{}      // of capacity 1: known may not be empty
	known map[string]Version // guarded by Cache.mu
}

// subscribe registers a reader, and returns it with the current copy.
func subscribe[E any](k *Cache, event func(Event) E) (*reader, []E) {
	r := &reader{ready: make(chan struct{}, 1)}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.readers[r] = struct{}{}
	return r, list(k, k.path.Given(), event)
}

func (k *Cache) unsubscribe(r *reader) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.readers, r)
}

// list returns the nodes at and below path as events of their creation. The caller holds mu.
func list[E any](k *Cache, path string, event func(Event) E) []E {
	top := k.nodes[path]
	if top == nil {
		return nil
	}
	var list []E
	if path == k.path.Given() {
		list = make([]E, 0, len(k.nodes))
	}
	for n := range top.all {
		list = append(list, event(Event{Created, k.given(n.path), n.Node}))
	}
	return list
}

// noteChange records a change of the node at path for all readers. was is the version before
// the change, and exists reports whether a node exists now. The caller holds mu.
func (k *Cache) noteChange(path string, was Version, exists bool) {
	for r := range k.readers {
		known, noted := r.known[path]
		switch {
		case !noted:
			if r.known == nil {
				r.known = make(map[string]Version)
			}
			r.known[path] = was
		case !exists && known == Version{}:
			delete(r.known, path) // created and deleted: the reader need not know
		}
		select {
		case r.ready <- struct{}{}:
		default:
		}
	}
}

// takeChanges returns the changes that the reader does not know yet. A node that was deleted and
// created again has two events.
func takeChanges[E any](k *Cache, r *reader, event func(Event) E) []E {
	// Only Run, under the write lock, and the loop that takes the changes use r.
	k.mu.RLock()
	defer k.mu.RUnlock()
	known := r.known
	r.known = nil // maps do not shrink
	batch := make([]E, 0, len(known))
	for path, was := range known {
		n := k.nodes[path]
		var is Version
		if n != nil {
			is = n.Version()
		}
		if was.exists && (!is.exists || was.czxid != is.czxid) {
			batch = append(batch, event(Event{Kind: Deleted, Path: path}))
		}
		switch {
		case n == nil || was == is:
		case was.exists && was.czxid == is.czxid:
			batch = append(batch, event(Event{Changed, path, n.Node}))
		default:
			batch = append(batch, event(Event{Created, path, n.Node}))
		}
	}
	return batch
}
