package etcd

import (
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/go-coord/coord/backend"
)

// interest is one Watch passed to one call.
type interest struct {
	hub      *hub
	watch    *backend.Watch
	path     string
	children bool
	node     *watcher
	kids     *watcher // for children, unless the node is ephemeral: it has none
	order    int64

	armed   bool
	gone    bool
	early   []early // before it was armed
	existed bool
	after   int64 // events after this revision fire it
	czxid   int64 // of the node, when it was armed
	mod     int64 // likewise
	count   int64 // of its children, likewise
}

// place is the interests of one path, and those of all nodes below it.
type place struct{ here, below map[*interest]struct{} }

// existing returns the number of children of a path that existed when watches were armed for them, or
// for nodes below them, before a revision.
func (p *place) existing(path string, rev int64) int64 {
	names := make(map[string]struct{}, len(p.below))
	for i := range p.below {
		if i.existed && i.after < rev {
			name, _ := toward(path, i.path)
			names[name] = struct{}{}
		}
	}
	return int64(len(names))
}

// toward returns the name of the child of top on the way to a path below it, and whether that child is
// the end of the path.
func toward(top, path string) (name string, last bool) {
	name, _, deeper := strings.Cut(strings.TrimPrefix(path[len(top):], "/"), "/")
	return name, !deeper
}

// index adds an interest to the places, or removes it.
func (h *hub) index(i *interest, add bool) {
	set := func(path string, of func(*place) map[*interest]struct{}) {
		p := h.places[path]
		if p == nil {
			p = &place{make(map[*interest]struct{}), make(map[*interest]struct{})}
			h.places[path] = p
		}
		if add {
			of(p)[i] = struct{}{}
		} else if delete(of(p), i); len(p.here)+len(p.below) == 0 {
			delete(h.places, path)
		}
	}
	set(i.path, func(p *place) map[*interest]struct{} { return p.here })
	for path := i.path; path != "/"; {
		path, _ = split(path)
		set(path, func(p *place) map[*interest]struct{} { return p.below })
	}
}

type early struct {
	rev  int64
	kind backend.Kind
}

func (h *hub) fireOne(i *interest, kind backend.Kind) {
	if kind == backend.Deleted && !i.existed {
		kind = backend.LookAgain
	}
	i.watch.Fire(kind)
	h.drop(i)
}

// kind returns how an event of a watcher fires the watch, or zero.
func (i *interest) kind(from *watcher, e *mvccpb.Event) backend.Kind {
	if e.Type == mvccpb.DELETE {
		if from == i.node {
			return backend.Deleted
		}
		return backend.LookAgain // a child
	}
	if !i.children {
		return backend.LookAgain
	}
	// Of a child, or of the node itself, only the creation counts.
	if r, err := decode(e.Kv); err != nil || r.newborn() {
		return backend.LookAgain
	}
	return 0
}

// begin requests the watchers for some watches. keys has the keys of their nodes. The caller reads,
// and then settles or drops each interest.
//
// A node that the session has seen as an ephemeral one gets no watcher of its children. If the
// read shows another node, the caller begins again: see fits.
func (h *hub) begin(l *link, keys map[string]string, targets ...backend.Target) ([]*interest, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link != l || h.ended {
		return nil, errBroken
	}
	before := h.next
	interests := make([]*interest, len(targets))
	for n, t := range targets {
		h.order++
		i := &interest{hub: h, watch: t.Watch, path: t.Path, children: t.Children, order: h.order}
		i.node = h.watcherLocked(watchKey{nodeRange, keys[t.Path]})
		i.node.users[i] = struct{}{}
		if t.Children && !h.s.known.ephemeral(t.Path) {
			i.kids = h.watcherLocked(watchKey{kidsRange, h.s.cfg.kids(t.Path)})
			i.kids.users[i] = struct{}{}
		}
		h.index(i, true)
		interests[n] = i
	}
	if h.next > before && l.ordered {
		h.byID[h.next].last = true
	}
	return interests, nil
}

// fits reports whether the interest has the watchers that it needs for the node that a read shows.
func (i *interest) fits(v *view) bool {
	switch {
	case v.found == nil:
		return v.key == i.node.key.key
	case v.key != i.node.key.key:
		return false
	}
	return !i.children || i.kids != nil || v.found.ephemeral()
}

// settle arms the watch for the events after a read.
func (h *hub) settle(i *interest, v *view) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i.gone {
		// Contact broke, or the session ended, after the read.
		if i.watch.Arm(nil) {
			i.watch.Fire(backend.LookAgain)
		}
		return
	}
	if !i.watch.Arm(i.disarm) {
		h.drop(i)
		return
	}
	i.armed = true
	h.armed++
	i.existed, i.after, i.count = v.found != nil, v.rev, v.children
	if v.found != nil {
		i.czxid, i.mod = v.found.czxid(), v.found.mod
	}
	for _, e := range i.early {
		if e.rev > i.after {
			h.fireOne(i, e.kind)
			break
		}
	}
	i.early = nil
}

// abandon drops an interest that was not settled.
func (h *hub) abandon(i *interest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(i)
}

// disarm runs when a watch is stopped.
func (i *interest) disarm(*backend.Watch) {
	i.hub.mu.Lock()
	defer i.hub.mu.Unlock()
	i.hub.drop(i)
}

func (h *hub) drop(i *interest) {
	if i.gone {
		return
	}
	i.gone = true
	h.index(i, false)
	if i.armed {
		h.armed--
	}
	for _, w := range []*watcher{i.node, i.kids} {
		if w != nil {
			delete(w.users, i)
			h.release(w)
		}
	}
}

// need returns the revision up to which events must have fired before a read returns what it
// shows, or zero. A watch that still waits for an event that the read does not show needs none.
func (h *hub) need(v *view, listed bool) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	certain := h.certain()
	if h.armed == 0 || v.rev <= certain {
		return 0
	}
	var need int64
	want := func(i *interest, rev int64) {
		if i.armed && rev > i.after {
			need = max(need, rev)
		}
	}
	if p := h.places[v.path]; p != nil {
		for i := range p.here {
			want(i, i.shown(v, listed))
		}
		var names map[string]bool
		if listed && v.found != nil && len(p.below) > 0 {
			names = make(map[string]bool, len(v.names))
			for _, name := range v.names {
				names[name] = true
			}
		}
		// The read shows fewer children than there were.
		fewer := v.children < int64(len(p.below)) && v.children < p.existing(v.path, v.rev)
		for i := range p.below {
			name, child := toward(v.path, i.path)
			switch {
			case i.existed && (v.found == nil || v.found.czxid() > i.after || fewer):
				want(i, v.rev)
			case names != nil && names[name] != i.existed && (i.existed || child):
				want(i, v.rev)
			}
		}
	}
	for path := v.path; path != "/"; {
		parent := path == v.path // of the node
		path, _ = split(path)
		p := h.places[path]
		if p == nil {
			continue
		}
		for i := range p.here {
			switch {
			case v.found != nil && (i.children || !i.existed):
				// It exists by now, and so do the nodes between them.
				want(i, v.found.czxid())
			case v.found == nil && i.children && parent:
				want(i, v.rev)
			}
		}
	}
	for _, t := range h.trees {
		if t.armed && covers(t.path, v.path) && v.rev > t.after {
			need = max(need, v.rev)
		}
	}
	if need <= certain {
		return 0
	}
	return need
}

// shown returns the revision of a change that a read of the node shows, and that the interest
// is for, or zero.
func (i *interest) shown(v *view, listed bool) int64 {
	switch {
	case v.found == nil && !i.existed:
		return 0
	case v.found == nil || !i.existed || v.found.czxid() != i.czxid:
		return v.rev
	case i.children && (listed || v.children != i.count):
		return v.rev
	case i.children || v.found.mod == i.mod:
		return 0
	}
	return v.found.mod
}
