package zookeeper

import (
	"context"
	"strings"

	"github.com/go-coord/coord/backend"
)

// WatchTree arms a watch with a persistent recursive watch of the server. Each call asks the
// server for one, which changes nothing if this session has one at the path already.
func (s *session) WatchTree(ctx context.Context, path string, w *backend.TreeWatch) error {
	err := backend.CheckTree(path, w)
	if err == nil {
		err = checkRead("watch", path)
	}
	if err == nil && !s.Features().Has(backend.Trees) {
		err = &backend.Error{Op: "watch", Path: path, Err: backend.ErrUnsupported}
	}
	if err == nil {
		c := s.newCall(opAddWatch)
		defer s.release(c)
		c.frame = encodeAddWatch(c.frame, path, modeTree)
		c.path, c.treeWatch = path, w
		err = s.read(ctx, c, "watch", path)
		s.refusedFeature(backend.Trees, err)
	}
	if err != nil {
		w.Stop() // the reply may have armed it just as the call was given up
	}
	return err
}

// tree is a persistent recursive watch of the server. All tree watches of the session at its
// path share it. The hub has it from the moment at which its request is written until
// its removal is written or the connection has ended. Servers handle requests in the order of
// writing, so the requests that are written in between find it on the server.
//
// Before version 3.9 the server keeps one mode for the watches of a session at a path
// (ZOOKEEPER-4466). A one-shot watch for data there ends a recursive one, and a recursive one
// replaces a one-shot watch. So while there is a tree, reads of its path do not arm the
// server's watch for data; the events of the tree fire the watches of its path, those for
// children too. As a removal ends all of them, a tree stays as long as one of them is armed.
// A read of its path that is answered after the removal was written fires its watch at once.
//
// Below its path a tree changes nothing for one-shot watches.
type tree struct {
	path    string
	adding  int // requests for it that have no answer
	watches map[*backend.TreeWatch]struct{}
	held    bool // the server has granted it
	leaving bool // its removal is queued
	gone    bool // it is not in the hub any more
}

// sending handles a call that is about to be written, and reports whether it may be. It is
// called in the order of writing.
func (h *hub) sending(c *call) bool {
	if c.watch == nil && c.many == nil && c.op != opAddWatch && c.op != opRemoveWatches {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case c.watch != nil:
		c.tree = h.trees[c.path]
		setWatch(c.frame, c.tree == nil || c.op == opChildren)
	case c.many != nil && len(h.trees) > 0:
		for _, i := range c.many.all {
			if i.tree = h.trees[i.key.path]; i.tree != nil && i.key.kind == dataWatch {
				return false
			}
		}
	case c.treeWatch != nil:
		t := h.trees[c.path]
		if t == nil {
			t = &tree{path: c.path, watches: make(map[*backend.TreeWatch]struct{})}
			h.trees[c.path] = t
			h.longest = max(h.longest, len(c.path))
		}
		t.adding++
		c.tree = t
	case c.op == opRemoveWatches && c.tree != nil:
		c.tree.leaving = false
		if c.tree.gone || h.wanted(c.tree) {
			return false
		}
		h.drop(c.tree)
	}
	return true
}

// added handles the answer to a request for a tree: if it was granted, w is armed.
func (h *hub) added(t *tree, w *backend.TreeWatch, granted bool) {
	h.mu.Lock()
	defer h.unlock()
	t.adding--
	t.held = t.held || granted
	switch {
	case granted && h.ended:
		w.Over()
	case granted && w.Arm(func(w *backend.TreeWatch) { h.disarmTree(t, w) }):
		t.watches[w] = struct{}{}
	case !t.held && t.adding == 0:
		h.drop(t) // there is nothing to remove
		h.fire(watchKey{t.path, dataWatch}, backend.LookAgain)
	}
	h.settle(t.path)
}

// disarmTree runs when a tree watch is stopped.
func (h *hub) disarmTree(t *tree, w *backend.TreeWatch) {
	h.mu.Lock()
	defer h.unlock()
	delete(t.watches, w)
	h.settle(t.path)
}

// The methods below need mu.

// wanted reports whether a tree is needed.
func (h *hub) wanted(t *tree) bool {
	return t.adding > 0 || len(t.watches) > 0 ||
		len(h.armed[watchKey{t.path, dataWatch}]) > 0 || len(h.armed[watchKey{t.path, childWatch}]) > 0
}

// settle begins the removal of the tree at path, if there is one that is not needed any more.
func (h *hub) settle(path string) {
	if t := h.trees[path]; t != nil && !t.leaving && !h.wanted(t) {
		t.leaving = true
		h.unwanted = append(h.unwanted, t)
	}
}

// unlock unlocks mu, and then queues the removals that settle has begun.
func (h *hub) unlock() {
	unwanted := h.unwanted
	h.unwanted = nil
	h.mu.Unlock()
	for _, t := range unwanted {
		h.remove(t)
	}
}

// drop forgets a tree. The server has no watch for a read that was written before and is
// answered later.
func (h *hub) drop(t *tree) {
	t.gone = true
	if h.trees[t.path] == t {
		delete(h.trees, t.path)
	}
}

// dropTrees ends all tree watches.
func (h *hub) dropTrees() {
	for _, t := range h.trees {
		for w := range t.watches {
			w.Over()
		}
		clear(t.watches)
		h.drop(t)
	}
}

// ancestor returns path if it has at most so many bytes, and otherwise its lowest ancestor that
// has.
func ancestor(path string, most int) string {
	if len(path) <= most {
		return path
	}
	return path[:max(1, strings.LastIndexByte(path[:most+1], '/'))]
}

// tell reports an event to the tree watches at and above its path.
func (h *hub) tell(e event) {
	change := backend.TreeChange{Path: e.path, Zxid: e.zxid}
	switch e.kind {
	case eventCreated:
		change.Kind = backend.TreeCreated
	case eventDataChanged:
		change.Kind = backend.TreeChanged
	case eventDeleted:
		change.Kind = backend.TreeDeleted
	default:
		return
	}
	// Only the ancestors that can be the top of a tree are looked up: the path of an event can be
	// much longer and deeper than those.
	for top := ancestor(e.path, h.longest); ; top = ancestor(top, len(top)-1) {
		if t := h.trees[top]; t != nil {
			for w := range t.watches {
				if !w.Tell(change) {
					delete(t.watches, w)
				}
			}
			h.settle(top)
		}
		if top == "/" {
			break
		}
	}
	if parent := ancestor(e.path, len(e.path)-1); change.Kind != backend.TreeChanged && h.trees[parent] != nil {
		h.fire(watchKey{parent, childWatch}, backend.LookAgain)
	}
}
