package zookeeper

import (
	"sync"

	"github.com/go-coord/coord/backend"
)

// watchKind distinguishes the server's two tables of watches. Exists and getData share one.
type watchKind int8

const (
	dataWatch watchKind = iota + 1
	childWatch
)

// hub holds the watches of a session. The reader of the connection arms them when it sees the
// reply to the request, and so in the order in which the server sent replies and events. The
// server keeps a set of watches per connection, so all watches of one path and kind share one
// watch on the server, and arming again costs nothing.
//
// Under the lock the hub only marks watches: no I/O, and no foreign code except Arm and Fire
// of backend.Watch, which call none.
type hub struct {
	mu      sync.Mutex
	ended   bool
	arming  interests // of Arms that have not been answered
	armed   interests
	trees   map[string]*tree // by path
	longest int              // no tree had a longer path

	unwanted []*tree     // to be removed
	remove   func(*tree) // queues the removal; called without mu
}

type interests map[watchKey]map[*interest]struct{}

func (s interests) add(i *interest) {
	set := s[i.key]
	if set == nil {
		set = make(map[*interest]struct{})
		s[i.key] = set
	}
	set[i] = struct{}{}
}

func (s interests) remove(i *interest) {
	set := s[i.key]
	delete(set, i)
	if len(set) == 0 {
		delete(s, i.key)
	}
}

type watchKey struct {
	path string
	kind watchKind
}

// interest is one Watch passed to one call.
type interest struct {
	hub    *hub
	watch  *backend.Watch
	key    watchKey
	exists bool  // the node existed when the watch was armed
	tree   *tree // of the node when the request of an Arm was written, or nil
	early  bool  // an event came before the reply to an Arm
}

// armList holds the watches of an Arm. It is announced before each request.
type armList struct {
	all  []*interest
	over bool // the request has been answered, or forgotten
}

func newHub() *hub {
	return &hub{arming: make(interests), armed: make(interests), trees: make(map[string]*tree), remove: func(*tree) {}}
}

func keyOf(t backend.Target) watchKey {
	if t.Children {
		return watchKey{t.Path, childWatch}
	}
	return watchKey{t.Path, dataWatch}
}

func (h *hub) newArmList(targets []backend.Target) *armList {
	x := &armList{all: make([]*interest, len(targets))}
	for n, t := range targets {
		x.all[n] = &interest{hub: h, watch: t.Watch, key: keyOf(t), exists: true}
	}
	return x
}

// announce notes the events that come from now on for the watches of an Arm.
func (h *hub) announce(x *armList) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x.over = false
	for _, i := range x.all {
		i.tree, i.early = nil, false
		h.arming.add(i)
	}
}

// replied handles the reply to a call that arms watches.
func (h *hub) replied(c *call, code int32) {
	if c.many != nil && code == codeOK {
		h.armMany(c.many)
	} else if kind, exists, ok := watchedBy(c.op, code); ok && c.watch != nil {
		h.arm(watchKey{c.path, kind}, c.watch, exists, c.tree)
	} else if c.treeWatch != nil {
		h.added(c.tree, c.treeWatch, code == codeOK)
	}
}

// arm arms the watch of a read whose reply has arrived. It does nothing if the watch was
// stopped, as that of a call is that was given up. t is the tree of the node when the read was
// written, or nil.
func (h *hub) arm(key watchKey, w *backend.Watch, exists bool, t *tree) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t != nil && t.gone {
		w.Fire(backend.LookAgain) // the tree may have ended before, and the watch with it
		return
	}
	h.stand(&interest{hub: h, watch: w, key: key, exists: exists})
}

// armMany arms the watches of an Arm whose reply has arrived. Before the reply the server
// sends an event for each node that is missing or has changed. The kind of the event does not
// matter, since it can belong to an older watch.
func (h *hub) armMany(x *armList) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x.over {
		return
	}
	x.over = true
	for _, i := range x.all {
		h.arming.remove(i)
		if i.early || i.tree != nil && i.tree.gone {
			i.watch.Fire(backend.LookAgain)
		} else {
			h.stand(i)
		}
	}
}

// stand arms the watch of i, or fires it if the session is over. The caller holds mu.
func (h *hub) stand(i *interest) {
	if h.ended {
		i.watch.Fire(backend.LookAgain)
	} else if i.watch.Arm(i.disarm) {
		h.armed.add(i)
	}
}

// hand replaces from, the watch that a read has armed, by w. If from has fired, hand fires w
// in the same way.
func (h *hub) hand(key watchKey, from, w *backend.Watch) {
	h.mu.Lock()
	defer h.unlock()
	for i := range h.armed[key] {
		if i.watch != from {
			continue
		}
		if i.watch = w; !w.Arm(i.disarm) {
			h.armed.remove(i)
			h.settle(key.path)
		}
		return
	}
	w.Fire(from.Kind())
}

// disarm runs when a watch is stopped.
func (i *interest) disarm(*backend.Watch) {
	i.hub.mu.Lock()
	defer i.hub.unlock()
	i.hub.armed.remove(i)
	i.hub.settle(i.key.path)
}

// forget drops an Arm whose request has failed. A watch that its reply has armed stays armed:
// its caller stops it.
func (h *hub) forget(x *armList) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x.over = true
	for _, i := range x.all {
		h.arming.remove(i)
	}
}

// event fires the watches that an event of the server affects, those of trees first: their
// changes are recorded before a watch fires for a later one.
func (h *hub) event(e event) {
	data, child, as := firedBy(e.kind)
	h.mu.Lock()
	defer h.unlock()
	if len(h.trees) > 0 {
		h.tell(e)
	}
	if data {
		h.fire(watchKey{e.path, dataWatch}, as)
	}
	if child {
		h.fire(watchKey{e.path, childWatch}, as)
	}
}

func (h *hub) fire(key watchKey, as backend.Kind) {
	for i := range h.arming[key] {
		i.early = true
	}
	for i := range h.armed[key] {
		if as == backend.Deleted && !i.exists {
			// This watch waited for the node's creation and missed it.
			i.watch.Fire(backend.LookAgain)
		} else {
			i.watch.Fire(as)
		}
	}
	delete(h.armed, key)
	h.settle(key.path)
}

// startle fires the watches at the node of a target that an Arm was too late for, as the
// events do with which servers answer setWatches.
func (h *hub) startle(t backend.Target, missing bool) {
	h.mu.Lock()
	defer h.unlock()
	if missing || !t.Children {
		h.fire(watchKey{t.Path, dataWatch}, backend.LookAgain)
	}
	if missing || t.Children {
		h.fire(watchKey{t.Path, childWatch}, backend.LookAgain)
	}
}

// reconnected fires all watches, and ends those of trees: the server's watches of the old connection are lost, and
// events may be lost.
func (h *hub) reconnected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropTrees()
	h.fireAll()
}

// end fires all watches, and each one that is armed later. It ends those of trees.
func (h *hub) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.dropTrees()
	h.fireAll()
}

func (h *hub) fireAll() {
	for _, set := range h.armed {
		for i := range set {
			i.watch.Fire(backend.LookAgain)
		}
	}
	h.armed = make(interests)
}
