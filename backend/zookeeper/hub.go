package zookeeper

import (
	"strconv"
	"sync"

	"github.com/go-coord/coord/backend"
)

// watchKind distinguishes the server's two tables of watches. Exists and getData share one.
type watchKind int8

const (
	dataWatch watchKind = iota + 1
	childWatch
)

// hub holds the watches of a session. A request that arms watches is announced before it is
// sent. The reader of the connection arms the watches when it sees the reply, and so in the
// order in which the server sent replies and events. The server keeps a set of watches per
// connection, so all watches of one path and kind share one watch on the server, and arming
// again costs nothing.
//
// Under the lock the hub only marks watches: no I/O, and no foreign code except Arm and Fire
// of backend.Watch, which call none.
type hub struct {
	mu       sync.Mutex
	ended    bool
	lastID   uint64
	expected map[uint64]*expectation
	arming   interests // of Arms that have not been answered
	armed    interests
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

// expectation holds the watches that one request, a read or an Arm, will arm.
type expectation struct {
	id    uint64
	read  interest
	many  []*interest // for an Arm
	since int64       // for an Arm
}

// interest is one Watch passed to one request.
type interest struct {
	hub    *hub
	watch  *backend.Watch
	key    watchKey // for a read, the kind is known once it is armed
	exists bool     // the node existed when the watch was armed
	early  bool     // an event came before the reply
}

func newHub() *hub {
	return &hub{
		expected: make(map[uint64]*expectation),
		arming:   make(interests),
		armed:    make(interests),
	}
}

// expect announces a read of path with a watch.
func (h *hub) expect(path string, w *backend.Watch) *expectation {
	return h.announce(&expectation{read: interest{hub: h, watch: w, key: watchKey{path: path}}})
}

// expectMany announces an Arm.
func (h *hub) expectMany(since int64, targets []backend.Target) *expectation {
	x := &expectation{since: since}
	for _, t := range targets {
		x.many = append(x.many, &interest{hub: h, watch: t.Watch, key: keyOf(t), exists: true})
	}
	return h.announce(x)
}

func keyOf(t backend.Target) watchKey {
	if t.Children {
		return watchKey{t.Path, childWatch}
	}
	return watchKey{t.Path, dataWatch}
}

func (h *hub) announce(x *expectation) *expectation {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastID++
	x.id = h.lastID
	h.expected[x.id] = x
	for _, i := range x.many {
		h.arming.add(i)
	}
	return x
}

// sent returns the expectation that a mark names, or nil if it has been forgotten.
func (h *hub) sent(said string) *expectation {
	id, err := strconv.ParseUint(said, 36, 64)
	if err != nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.expected[id]
}

// arm arms the watch of a read whose reply has arrived. It does nothing if the read
// was forgotten, or the watch stopped.
func (h *hub) arm(x *expectation, kind watchKind, exists bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.expected[x.id] != x {
		return
	}
	delete(h.expected, x.id)
	x.read.key.kind = kind
	x.read.exists = exists
	h.stand(&x.read)
}

// armMany arms the watches of an Arm whose reply has arrived. Before the reply the server
// sends an event for each node that is missing or has changed. The kind of the event does not
// matter, since it can belong to an older watch.
func (h *hub) armMany(x *expectation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.expected[x.id] != x {
		return
	}
	delete(h.expected, x.id)
	for _, i := range x.many {
		h.arming.remove(i)
		if i.early {
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
	defer h.mu.Unlock()
	for i := range h.armed[key] {
		if i.watch != from {
			continue
		}
		if i.watch = w; !w.Arm(i.disarm) {
			h.armed.remove(i)
		}
		return
	}
	w.Fire(from.Kind())
}

// disarm runs when a watch is stopped.
func (i *interest) disarm(*backend.Watch) {
	i.hub.mu.Lock()
	defer i.hub.mu.Unlock()
	i.hub.armed.remove(i)
}

// forget drops a request that failed. A watch that its reply has armed stays armed: if the
// request is repeated the watch is armed already, else the caller stops it.
func (h *hub) forget(x *expectation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.expected, x.id)
	for _, i := range x.many {
		h.arming.remove(i)
	}
}

// event fires the watches that an event of the server affects.
func (h *hub) event(e event) {
	data, child, as := firedBy(e.kind)
	h.mu.Lock()
	defer h.mu.Unlock()
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
}

// reconnected fires all watches: the server's watches of the old connection are lost, and
// events may be lost.
func (h *hub) reconnected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fireAll()
}

// end fires all watches, and each one that is armed later.
func (h *hub) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
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
