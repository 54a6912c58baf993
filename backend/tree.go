package backend

import (
	"fmt"
	"slices"
	"sync"
)

// TreeKind is the kind of a TreeChange.
type TreeKind int8

// The kinds of changes. TreeChanged is a change of a node's data.
const (
	TreeCreated TreeKind = iota + 1
	TreeChanged
	TreeDeleted
)

// String returns the kind as a word.
func (k TreeKind) String() string {
	switch k {
	case TreeCreated:
		return "created"
	case TreeChanged:
		return "changed"
	case TreeDeleted:
		return "deleted"
	}
	return "unknown"
}

// A TreeChange is a change of one node, or several changes of it in one: see TreeWatch.
type TreeChange struct {
	Path string
	Kind TreeKind
	Zxid int64 // the latest commit that the change stands for, or zero if the service does not report it
}

const defaultTreeLimit = 65536

// A TreeWatch reports the changes of a node and of everything below it. The caller makes it
// with NewTreeWatch, passes it to one Session.WatchTree, waits on Ready, and takes the changes
// with Take. It has one consumer. It needs no goroutine.
//
// A change is recorded before any read of the session returns a state that shows it, and
// before any Watch of the session fires for a later change. So a caller that has armed the
// watch, then reads, and after each reply takes the changes, knows every change after the
// state that it has read. The changes may include some that the read has seen already.
//
// Changes that were not taken yet are coalesced, so that memory is bounded by the number of
// nodes and not of changes. Each path then has at most one TreeDeleted and, after it, one
// TreeCreated or TreeChanged:
//
//   - A deletion replaces the earlier changes of its path. It is reported even if the
//     creation before it was not taken, since a read may have shown the node.
//   - A creation after a deletion is kept beside it: the node is another one.
//   - Any other change is included in an earlier creation or change of its path.
//
// The changes are in the order of the commits, except that a creation or change stands in the
// place of the earliest one that it includes. So a node is created after its parent. The
// deletion of a node means that everything below it is deleted too; the deletions of those
// nodes can come before it or, where later ones replace them, after it.
//
// The watch is over when contact breaks or the session ends, when the backend cannot be sure
// of a change, or when more changes are waiting than its limit. Then changes may have been
// missed. Nothing more is recorded, and Take returns no changes; the caller arms a new
// TreeWatch and reads everything again. After a reconnect the watches that were armed before
// are over before any read on the new connection returns. When a session ends, Err is set
// first.
//
// If an Arm of the session finds that a node is missing or has changed, the watch may report
// that deletion or change again. A service may keep the changes of nodes that the session may
// not read to itself. If it does, it writes the data of a Carry, so that a creation beside
// the Carry shows as a change of the parent.
type TreeWatch struct {
	ready chan struct{} // capacity 1; holds a value while there is something to take
	limit int

	mu      sync.Mutex
	told    []TreeChange         // those of Kind zero were withdrawn
	waiting int                  // in told, without those
	places  map[string]treePlace // in told, by path
	over    bool
	stopped bool
	armed   bool
	disarm  func(*TreeWatch)
}

// treePlace is where the changes of a path are in told: the index plus one, zero for none.
type treePlace struct{ deleted, there int }

// NewTreeWatch returns a watch that is not armed yet. If more than limit changes wait to be
// taken, the watch is over; zero means 65536.
func NewTreeWatch(limit int) *TreeWatch {
	if limit <= 0 {
		limit = defaultTreeLimit
	}
	return &TreeWatch{ready: make(chan struct{}, 1), limit: limit}
}

// Ready returns a channel that delivers a value when there are changes that were not taken,
// or when the watch is over.
func (w *TreeWatch) Ready() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.ready
}

// Take returns the changes since the latest Take, and whether the watch is over. The caller
// owns the slice. After Stop there is nothing to take.
func (w *TreeWatch) Take() (changes []TreeChange, over bool) {
	if w == nil {
		return nil, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.ready:
	default:
	}
	if w.stopped {
		return nil, false
	}
	if w.waiting > 0 {
		changes = slices.DeleteFunc(w.told, withdrawn)
	}
	w.clear()
	return changes, w.over
}

func withdrawn(c TreeChange) bool { return c.Kind == 0 }

// Stop cancels the watch: it reports nothing any more. Stop is idempotent. It waits for no
// request; the service's side of the watch may stay for a while.
func (w *TreeWatch) Stop() {
	if w == nil {
		return
	}
	w.mu.Lock()
	disarm := w.disarm
	w.disarm = nil
	w.stopped = true
	w.clear()
	w.mu.Unlock()
	if disarm != nil {
		disarm(w)
	}
}

// Arm is for backends: it marks the watch as armed. Stop then calls disarm, at most once and
// without holding a lock of the watch, unless the watch is over by then. Arm returns false,
// and does nothing, if the watch was stopped, is over, or is armed already. disarm may be nil.
func (w *TreeWatch) Arm(disarm func(*TreeWatch)) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.over || w.armed {
		return false
	}
	w.armed = true
	w.disarm = disarm
	return true
}

// Tell is for backends: it records a change. It reports whether the watch takes any more; the
// backend forgets a watch that does not. It calls no foreign code, so it may be called with
// locks held.
func (w *TreeWatch) Tell(c TreeChange) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.over {
		return false
	}
	at := w.places[c.Path]
	switch {
	case c.Kind == TreeDeleted:
		w.withdraw(at.deleted)
		w.withdraw(at.there)
		at = treePlace{deleted: w.put(c)}
	case at.there > 0:
		w.told[at.there-1].Zxid = c.Zxid
		return true
	default:
		at.there = w.put(c)
	}
	if w.waiting > w.limit {
		w.end()
		return false
	}
	if w.places == nil {
		w.places = make(map[string]treePlace)
	}
	w.places[c.Path] = at
	if len(w.told) > 2*w.waiting+64 {
		w.compact()
	}
	w.wake()
	return true
}

// Over is for backends: it marks the watch as over. It has no effect after Stop. It may be
// called with locks held.
func (w *TreeWatch) Over() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped && !w.over {
		w.end()
	}
}

// The methods below need the mutex.

func (w *TreeWatch) end() {
	w.over = true
	w.armed = true // never again
	w.disarm = nil
	w.clear()
	w.wake()
}

func (w *TreeWatch) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// put appends a change and returns its place.
func (w *TreeWatch) put(c TreeChange) int {
	w.told = append(w.told, c)
	w.waiting++
	return len(w.told)
}

func (w *TreeWatch) withdraw(place int) {
	if place > 0 {
		w.told[place-1] = TreeChange{}
		w.waiting--
	}
}

// compact removes the withdrawn changes, which a path that comes and goes leaves behind.
func (w *TreeWatch) compact() {
	w.told = slices.DeleteFunc(w.told, withdrawn)
	clear(w.places)
	for i, c := range w.told {
		at := w.places[c.Path]
		if c.Kind == TreeDeleted {
			at.deleted = i + 1
		} else {
			at.there = i + 1
		}
		w.places[c.Path] = at
	}
}

func (w *TreeWatch) clear() { w.told, w.waiting, w.places = nil, 0, nil }

// CheckTree checks the arguments of Session.WatchTree, for backends.
func CheckTree(path string, w *TreeWatch) error {
	if reason := badPath(path); reason != "" {
		return &Error{Op: "watch", Path: path, Err: fmt.Errorf("%w: %s", ErrBadPath, reason)}
	}
	if w == nil {
		return &Error{Op: "watch", Path: path, Err: fmt.Errorf("%w: the watch is nil", ErrInvalid)}
	}
	return nil
}

// A Read is one read of Session.ReadMany: of the data of the node at Path, or of the names of
// its children.
type Read struct {
	Path     string
	Children bool
}

// A ReadResult is the answer to a Read.
type ReadResult struct {
	Data  []byte   // of a node whose data was read
	Stat  Stat     // of a node whose data was read; zero if its children were
	Names []string // of the children, in no particular order
	Err   error    // that of Session.Get or Session.Children for this node, or nil
}

// CheckReads checks the arguments of Session.ReadMany, for backends: there is at least one
// read, and the paths are good.
func CheckReads(reads []Read) error {
	if len(reads) == 0 {
		return &Error{Op: "read", Err: fmt.Errorf("%w: no read given", ErrInvalid)}
	}
	for _, r := range reads {
		if reason := badPath(r.Path); reason != "" {
			return &Error{Op: "read", Path: r.Path, Err: fmt.Errorf("%w: %s", ErrBadPath, reason)}
		}
	}
	return nil
}
