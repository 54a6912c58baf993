package zookeeper

import (
	"strconv"
	"sync"

	"github.com/go-coord/coord/backend"
)

// watchKind tells the server's two tables of watches apart. Exists and getData
// share one.
type watchKind int8

const (
	dataWatch watchKind = iota + 1
	childWatch
)

// hub knows the watches of a session. A watching read is expected before it is
// sent, and its watch is armed when its reply is seen, by the reader of the
// connection and so in the order in which the server sent replies and events.
// The server keeps a set of watches per connection, so the watches of one path
// and kind share the server's, and arming again costs nothing.
//
// Everything done under the lock is marking: no I/O, no foreign code but
// backend.Watch's Arm and Fire, which call none.
type hub struct {
	mu       sync.Mutex
	ended    bool
	lastID   uint64
	expected map[uint64]*interest
	armed    map[watchKey]map[*interest]struct{}
}

type watchKey struct {
	path string
	kind watchKind
}

// interest is one Watch given to one read.
type interest struct {
	hub    *hub
	watch  *backend.Watch
	id     uint64
	path   string
	key    watchKey // once armed
	exists bool     // the node existed when the watch was armed
}

func newHub() *hub {
	return &hub{
		expected: make(map[uint64]*interest),
		armed:    make(map[watchKey]map[*interest]struct{}),
	}
}

// expect announces a read of path with a watch.
func (h *hub) expect(path string, w *backend.Watch) *interest {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastID++
	i := &interest{hub: h, watch: w, id: h.lastID, path: path}
	h.expected[i.id] = i
	return i
}

// sent returns the interest that a mark speaks of, nil if it has been forgotten
// by now.
func (h *hub) sent(said string) *interest {
	id, err := strconv.ParseUint(said, 36, 64)
	if err != nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.expected[id]
}

// arm arms the watch of a read whose reply has come. It does nothing if the read
// was forgotten, or the watch stopped.
func (h *hub) arm(i *interest, kind watchKind, exists bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.expected[i.id] != i {
		return
	}
	delete(h.expected, i.id)
	if h.ended {
		i.watch.Fire(backend.LookAgain)
		return
	}
	if !i.watch.Arm(i.disarm) {
		return
	}
	i.key = watchKey{i.path, kind}
	i.exists = exists
	set := h.armed[i.key]
	if set == nil {
		set = make(map[*interest]struct{})
		h.armed[i.key] = set
	}
	set[i] = struct{}{}
}

// disarm is called by Stop.
func (i *interest) disarm(*backend.Watch) { i.hub.forget(i) }

// forget gives up a read that failed, or a watch that was armed.
func (h *hub) forget(i *interest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.expected, i.id)
	set := h.armed[i.key]
	delete(set, i)
	if len(set) == 0 {
		delete(h.armed, i.key)
	}
}

// event marks the watches that an event of the server fires.
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
	for i := range h.armed[key] {
		if as == backend.Deleted && !i.exists {
			// It waited for the node to be created, and missed that.
			i.watch.Fire(backend.LookAgain)
		} else {
			i.watch.Fire(as)
		}
	}
	delete(h.armed, key)
}

// reconnected fires everything: the watches of the old connection are gone, and
// so may be events.
func (h *hub) reconnected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fireAll()
}

// end fires everything, now and from now on.
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
	h.armed = make(map[watchKey]map[*interest]struct{})
}
