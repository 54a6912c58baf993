package memory

import (
	"slices"

	"github.com/go-coord/coord/backend"
)

// watches is the store's table of armed watches. All methods need the store's mutex.
type watches struct {
	paths map[string]*pathWatches
	last  int64
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
func (ws *watches) fire(events []event) {
	if len(ws.paths) == 0 {
		return
	}
	for _, e := range events {
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

// lookAgain fires all watches of s in the order of their arming.
func (ws *watches) lookAgain(s *session) {
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
