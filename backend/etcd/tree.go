package etcd

import (
	"context"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/go-coord/coord/backend"
)

// armedTree is a tree watch: a watcher of all keys below a node, and one of the node itself. The
// first covers the root.
type armedTree struct {
	watch *backend.TreeWatch
	path  string
	node  *watcher // nil for the root
	later *watcher // of another node of the path, if node is of a sequential one
	below *watcher
	shown int64 // the revision of the read beside it
	after int64
	over  bool // node's key is not that of the tree's node any more
	armed bool
	gone  bool
	early []*batch
}

// covers reports whether a node is in the tree, or whether a read of it shows that tree.
func covers(top, path string) bool {
	return top == "/" || path == top || strings.HasPrefix(path, top+"/") || strings.HasPrefix(top, path+"/") || path == "/"
}

func (s *session) WatchTree(ctx context.Context, path string, w *backend.TreeWatch) error {
	if !s.cfg.has.Has(backend.Trees) {
		w.Stop()
		return &backend.Error{Op: "watch", Path: path, Err: backend.ErrUnsupported}
	}
	if err := backend.CheckTree(path, w); err != nil {
		w.Stop()
		return err
	}
	err := s.read(ctx, func(ctx context.Context, l *link) error {
		key, err := s.keyOf(ctx, l, path)
		if err != nil {
			return err
		}
		t, err := s.hub.beginTree(l, path, key, w)
		if err != nil {
			return err
		}
		rev, err := s.lookBesideTree(ctx, l, t, key)
		if err != nil {
			s.hub.abandonTree(t)
			return err
		}
		s.hub.settleTree(t, rev)
		return nil
	})
	if err != nil {
		w.Stop()
		return &backend.Error{Op: "watch", Path: path, Err: err}
	}
	return nil
}

// lookBesideTree reads the node of a tree while the server makes the watchers. It returns the revision of a
// read that is no older than they are, and that shows the key that they are for.
func (s *session) lookBesideTree(ctx context.Context, l *link, t *armedTree, key string) (int64, error) {
	for {
		v, err := s.look(ctx, l, t.path, false)
		if err != nil {
			return 0, err
		}
		if v.key != key {
			return 0, errAgain
		}
		start, err := s.hub.wait(ctx, t.node, t.later, t.below)
		if err != nil {
			return 0, err
		}
		if v.rev >= start {
			return v.rev, nil
		}
	}
}

func (h *hub) beginTree(l *link, path, key string, w *backend.TreeWatch) (*armedTree, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link != l || h.ended {
		return nil, errBroken
	}
	t := &armedTree{watch: w, path: path}
	if path != "/" {
		t.node = h.watcherLocked(watchKey{nodeRange, key})
		t.node.trees[t] = struct{}{}
	}
	if literal := h.s.cfg.literalKey(path); key != literal {
		t.later = h.watcherLocked(watchKey{nodeRange, literal})
		t.later.trees[t] = struct{}{}
	}
	t.below = h.watcherLocked(watchKey{belowRange, h.s.cfg.below(path)})
	t.below.trees[t] = struct{}{}
	h.trees = append(h.trees, t)
	if l.ordered {
		h.ask()
	}
	return t, nil
}

// settleTree arms the tree watch for the events after rev, and after those that other watches have fired
// for: the tree watch must not report an earlier one later.
func (h *hub) settleTree(t *armedTree, rev int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case t.gone:
		if t.watch.Arm(nil) {
			t.watch.Over()
		}
		return
	case !t.watch.Arm(func(*backend.TreeWatch) { h.abandonTree(t) }):
		h.dropTree(t)
		return
	}
	t.armed = true
	h.armed++
	t.shown, t.after = rev, max(rev, h.fired)
	for _, b := range t.early {
		if !t.gone {
			h.tell(t, b)
		}
	}
	t.early = nil
}

func (h *hub) abandonTree(t *armedTree) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropTree(t)
}

func (h *hub) dropTree(t *armedTree) {
	if t.gone {
		return
	}
	t.gone = true
	if t.armed {
		h.armed--
	}
	h.trees = slices.DeleteFunc(h.trees, func(other *armedTree) bool { return other == t })
	for _, w := range []*watcher{t.node, t.later, t.below} {
		if w != nil {
			delete(w.trees, t)
			h.release(w)
		}
	}
}

// tell reports events to a tree watch.
func (h *hub) tell(t *armedTree, b *batch) {
	if t.gone {
		return
	}
	if !t.armed {
		t.early = append(t.early, b)
		return
	}
	if b.rev <= t.shown {
		return
	}
	if b.from == t.node && t.later != nil {
		// Of a sequential node: another one can have the key by now, even before t.after.
		if t.over {
			return
		}
		deleted := b.events[0].Type == mvccpb.DELETE
		path, _ := h.s.cfg.pathOf(b.events[0].Kv)
		if t.over = deleted || path != t.path; t.over && !deleted {
			return
		}
	}
	replaced := b.from == t.later && t.later != nil && !t.over && isCreation(b.events[0])
	if replaced { // in one commit, and the deletion may come after this
		t.over = true
	}
	if b.rev <= t.after {
		return
	}
	if replaced && !t.watch.Tell(backend.TreeChange{Path: t.path, Kind: backend.TreeDeleted, Zxid: b.rev}) {
		h.dropTree(t)
		return
	}
	path := ""
	if b.from != t.below {
		path = t.path
	}
	for _, e := range b.events {
		changes, ok := h.changes(e, path)
		if !ok {
			t.watch.Over()
			h.dropTree(t)
			return
		}
		for _, c := range changes {
			if !t.watch.Tell(c) {
				h.dropTree(t)
				return
			}
		}
	}
}

// isCreation reports whether an event is the creation of a node.
func isCreation(e *mvccpb.Event) bool {
	if e.Type == mvccpb.DELETE {
		return false
	}
	r, err := decode(e.Kv)
	return err == nil && r.newborn()
}

// changes returns what an event changed. It returns false if the event does not show it. path is
// that of the node, if it is known.
func (h *hub) changes(e *mvccpb.Event, path string) ([]backend.TreeChange, bool) {
	if path == "" {
		kv := e.Kv
		if e.Type == mvccpb.DELETE && isNumbered(string(kv.Key)) {
			if kv = e.PrevKv; kv == nil {
				return nil, false // compacted, and with it the number of the node
			}
		}
		var ok bool
		if path, ok = h.s.cfg.pathOf(kv); !ok {
			return nil, true // not a node
		}
	}
	change := func(kind backend.TreeKind) backend.TreeChange {
		return backend.TreeChange{Path: path, Kind: kind, Zxid: e.Kv.ModRevision}
	}
	if e.Type == mvccpb.DELETE {
		return []backend.TreeChange{change(backend.TreeDeleted)}, true
	}
	switch r, err := decode(e.Kv); {
	case err != nil:
		return nil, true
	case r.created == r.mod:
		return []backend.TreeChange{change(backend.TreeCreated)}, true
	case r.newborn():
		return []backend.TreeChange{change(backend.TreeDeleted), change(backend.TreeCreated)}, true
	}
	return []backend.TreeChange{change(backend.TreeChanged)}, true
}
