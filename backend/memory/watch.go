package memory

import (
	"slices"

	"github.com/go-coord/coord/backend"
)

// watches is the store's table of armed watches. All methods need the store's mutex.
type watches struct {
	paths map[string]*pathWatches
	last  int64
	trees map[string][]*armedTree // by the path of the top
}

// pathWatches are the watches on one path in the order of their arming. data is
// for Get and Exists, child for Children.
type pathWatches struct {
	data  []*armed
	child []*armed
}

type armed struct {
	w       *backend.Watch
	s       *session
	path    string
	child   bool
	existed bool  // the node existed when the watch was armed
	order   int64 // of arming
}

// arm arms w for s on path.
func (ws *watches) arm(s *session, w *backend.Watch, path string, child, existed bool) {
	ws.last++
	a := &armed{w: w, s: s, path: path, child: child, existed: existed, order: ws.last}
	if !w.Arm(func(*backend.Watch) { s.store.disarm(a) }) {
		return
	}
	pw := ws.paths[path]
	if pw == nil {
		pw = new(pathWatches)
		ws.paths[path] = pw
	}
	if child {
		pw.child = append(pw.child, a)
	} else {
		pw.data = append(pw.data, a)
	}
	if s.watches == nil {
		s.watches = make(map[*armed]struct{})
	}
	s.watches[a] = struct{}{}
}

// disarm is called by Watch.Stop.
func (st *Store) disarm(a *armed) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.watches.remove(a)
}

// remove removes a from the tables.
func (ws *watches) remove(a *armed) {
	delete(a.s.watches, a)
	pw := ws.paths[a.path]
	if pw == nil {
		return
	}
	list := &pw.data
	if a.child {
		list = &pw.child
	}
	if i := slices.Index(*list, a); i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
	if len(pw.data) == 0 && len(pw.child) == 0 {
		delete(ws.paths, a.path)
	}
}

// fire fires the watches that the events affect, in the order of the events and then of
// arming. A watch of a session without contact stays armed: it fires LookAgain when contact
// returns or the session ends.
func (ws *watches) fire(events []event, zxid int64) {
	if len(ws.paths) == 0 && len(ws.trees) == 0 {
		return
	}
	for _, e := range events {
		ws.tell(e, zxid)
		pw := ws.paths[e.path]
		if pw == nil {
			continue
		}
		if e.what != childrenChanged {
			pw.data = ws.fireList(pw.data, e.what)
		}
		if e.what == childrenChanged || e.what == deleted {
			pw.child = ws.fireList(pw.child, e.what)
		}
		if len(pw.data) == 0 && len(pw.child) == 0 {
			delete(ws.paths, e.path)
		}
	}
}

func (ws *watches) fireList(list []*armed, what eventType) []*armed {
	kept := list[:0]
	for _, a := range list {
		if a.s.suspended() {
			kept = append(kept, a)
			continue
		}
		kind := backend.LookAgain
		if what == deleted && a.existed {
			kind = backend.Deleted
		}
		delete(a.s.watches, a)
		a.w.Fire(kind)
	}
	clear(list[len(kept):])
	return kept
}

// startle fires the watches of s on path with LookAgain. ZooKeeper reports an Arm that came
// too late by an event, and a session cannot tell whether the event belongs to an older
// watch.
func (ws *watches) startle(s *session, path string, data, child bool) {
	pw := ws.paths[path]
	if pw == nil {
		return
	}
	var all []*armed
	if data {
		all = append(all, pw.data...)
	}
	if child {
		all = append(all, pw.child...)
	}
	for _, a := range all {
		if a.s == s {
			ws.remove(a)
			a.w.Fire(backend.LookAgain)
		}
	}
}

// armedTree is a tree watch.
type armedTree struct {
	w    *backend.TreeWatch
	s    *session
	path string
}

// armTree arms w for s on path and everything below it.
func (ws *watches) armTree(s *session, w *backend.TreeWatch, path string) {
	a := &armedTree{w: w, s: s, path: path}
	if !w.Arm(func(*backend.TreeWatch) { s.store.disarmTree(a) }) {
		return
	}
	if ws.trees == nil {
		ws.trees = make(map[string][]*armedTree)
	}
	ws.trees[path] = append(ws.trees[path], a)
	s.trees = append(s.trees, a)
}

// disarmTree is called by TreeWatch.Stop.
func (st *Store) disarmTree(a *armedTree) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.watches.removeTree(a)
}

func (ws *watches) removeTree(a *armedTree) {
	is := func(b *armedTree) bool { return a == b }
	a.s.trees = slices.DeleteFunc(a.s.trees, is)
	ws.trees[a.path] = slices.DeleteFunc(ws.trees[a.path], is)
	if len(ws.trees[a.path]) == 0 {
		delete(ws.trees, a.path)
	}
}

// tell reports an event to the tree watches on its path and on those above it. A session
// without contact learns nothing: its tree watches are over when contact returns or the
// session ends.
func (ws *watches) tell(e event, zxid int64) {
	if len(ws.trees) == 0 || e.what == childrenChanged {
		return
	}
	change := backend.TreeChange{Path: e.path, Zxid: zxid}
	switch e.what {
	case created:
		change.Kind = backend.TreeCreated
	case deleted:
		change.Kind = backend.TreeDeleted
	default:
		change.Kind = backend.TreeChanged
	}
	for top := e.path; ; top, _ = split(top) {
		for _, a := range slices.Clone(ws.trees[top]) {
			if !a.s.suspended() && !a.w.Tell(change) {
				ws.removeTree(a)
			}
		}
		if top == "/" {
			return
		}
	}
}

// lookAgain fires all watches of s in the order of their arming, and ends its tree watches.
func (ws *watches) lookAgain(s *session) {
	for _, a := range slices.Clone(s.trees) {
		ws.removeTree(a)
		a.w.Over()
	}
	all := make([]*armed, 0, len(s.watches))
	for a := range s.watches {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b *armed) int { return int(a.order - b.order) })
	for _, a := range all {
		ws.remove(a)
		a.w.Fire(backend.LookAgain)
	}
}
