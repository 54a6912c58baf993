package group

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/follow"
	"github.com/go-coord/coord/internal/latest"
	"github.com/go-coord/coord/internal/layout"
)

// An Update is an element of a Watch: the members, and the changes since the previous element that the
// reader received. Members is shared with other readers.
type Update struct {
	Members []Member // all members, sorted by ID

	// Joined are the incarnations in Members that were not in the previous Members, and Left those that
	// were there and are gone. Both are sorted by ID.
	Joined []Member
	Left   []Member

	Err error // why the watch has ended, in its last element
}

// Watch returns a latest-wins channel with the members and then every change, until ctx ends. The changes
// of elements that the reader did not receive are merged into the next one. as converts an element.
func Watch[E any](ctx context.Context, g *Group, as func(Update) E) <-chan E {
	core.NeedContext(ctx)
	out := latest.NewSignal[E]()
	fail := func(err error) <-chan E {
		out.Put(as(Update{Err: err}))
		close(out.Ch)
		return out.Ch
	}
	if err := g.path.Check("watch"); err != nil {
		return fail(err)
	}
	v, err := g.attach()
	if err != nil {
		return fail(errs.Op("watch", g.path.Full(), err))
	}
	if !g.c.GoWork(func() {
		defer g.detach(v)
		send(ctx, g, v, out, as)
	}) {
		g.detach(v)
		return fail(errs.Op("watch", g.path.Full(), backend.ErrClosed))
	}
	return out.Ch
}

// send sends the elements of one Watch.
func send[E any](ctx context.Context, g *Group, v *view, out latest.Signal[E], as func(Update) E) {
	defer close(out.Ch)
	var taken, sent []Member // the list that the reader received last, and the list that was sent last
	for {
		r, changed, final := v.seen.Get()
		if ctx.Err() != nil {
			return
		}
		if r.known || final {
			if _, untaken := out.Untaken(); !untaken {
				taken = sent
			}
			u := Update{Members: r.list}
			u.Joined, u.Left = memberChanges(taken, r.list)
			if final {
				u.Err = errs.Op("watch", g.path.Full(), r.err)
			}
			out.Put(as(u))
			sent = r.list
		}
		if final {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// memberChanges compares two lists that are sorted by id.
func memberChanges(old, list []Member) (joined, left []Member) {
	for len(old) > 0 || len(list) > 0 {
		order := 0
		switch {
		case len(old) == 0:
			order = 1
		case len(list) == 0:
			order = -1
		default:
			order = strings.Compare(old[0].ID, list[0].ID)
		}
		same := order == 0 && old[0].Path == list[0].Path
		if order <= 0 {
			if !same {
				left = append(left, old[0])
			}
			old = old[1:]
		}
		if order >= 0 {
			if !same {
				joined = append(joined, list[0])
			}
			list = list[1:]
		}
	}
	return joined, left
}

// Wait waits until at least n members are present, and returns them, sorted by ID.
// All of them were present at one moment after the call; some may have gone since.
// Wait ends with ctx, or for the reasons for which a Watch ends.
func (g *Group) Wait(ctx context.Context, n int) ([]Member, error) {
	const op = "wait"
	if err := g.path.Check(op); err != nil {
		return nil, err
	}
	// Wait does not use the shared view, which can be older than the call.
	f := follower{g: g}
	var list []Member
	err := follow.Live(ctx, g.c, func(ctx context.Context, v *follow.Loop) error {
		if v.First {
			if err := v.S.Backend().Sync(ctx, g.path.Full()); err != nil {
				return err
			}
		}
		// The only watch is that on the directory; each look needs a new one.
		if err := f.list(ctx, v); err != nil {
			return err
		}
		if len(layout.PresentMembers(f.names)) < n {
			return nil
		}
		read, err := g.readMembers(ctx, v.S, func(layout.MemberNode) bool { return true })
		if err != nil || len(read) < n {
			return err // a member that has gone since has fired the watch
		}
		list = read
		return errEnough
	})
	if !errors.Is(err, errEnough) {
		return nil, errs.Op(op, g.path.Full(), err)
	}
	return list, nil
}

// errEnough ends the loop of Wait.
var errEnough = errors.New("enough members")

// view is the live copy of a group that its Watches and Pickers share. All of them read the same roster, so a
// Picker does not pick a member that a Watch has reported as gone. The view ends with its last user.
type view struct {
	seen  *latest.Value[roster]
	stop  context.CancelFunc
	users int // guarded by the group's mu
}

// roster is the state of a group as a view has seen it. The lists are never
// changed.
type roster struct {
	list     []Member
	readable []Member // the members of list whose value could be read
	known    bool     // the group was read
	err      error    // why no further roster follows
}

// attach returns the view. The caller must release it with detach.
func (g *Group) attach() (*view, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.live == nil {
		ctx, stop := context.WithCancel(context.Background())
		v := &view{seen: latest.NewValue(roster{}), stop: stop}
		if !g.c.GoWork(func() { g.follow(ctx, v) }) {
			stop()
			return nil, backend.ErrClosed
		}
		g.live = v
	}
	g.live.users++
	return g.live, nil
}

func (g *Group) detach(v *view) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v.users--
	if v.users > 0 {
		return
	}
	v.stop()
	if g.live == v {
		g.live = nil
	}
}

// follow updates a view until ctx ends, which the detach of the last user causes,
// or until following fails for good.
func (g *Group) follow(ctx context.Context, v *view) {
	defer v.stop()
	f := follower{g: g, seen: v.seen, nodes: make(map[string]reading)}
	err := follow.Live(ctx, g.c, f.look)
	// Later users get a new view.
	g.mu.Lock()
	if g.live == v {
		g.live = nil
	}
	g.mu.Unlock()
	last, _, _ := v.seen.Get()
	last.err = err
	v.seen.Set(last, true)
}

// follower follows a group. It reads again only those nodes, of the directory and the members, that have changed.
//
// If the service has trees, one watch of the directory's tree reports the changes,
// with which the follower keeps the list of names up to date. A service may withhold the changes
// of nodes that the session may not read. Two rules keep such members in the list:
//
//   - Each join changes the data of the directory, which the session may read. After
//     such a change, and together with each new member, the follower reads the directory. If
//     the number of its children differs from the number of names, it lists the directory.
//   - The leave of a member changes no data. If a member cannot be read, the follower
//     continues without trees: with a watch on the children of the directory and a watch
//     on each member.
type follower struct {
	g     *Group
	seen  *latest.Value[roster]
	known bool // the group was read once

	// A member has come, gone or changed since the roster was set. It stays true if an error ends the look
	// that has found the change.
	changed bool

	trees   bool               // this session follows a tree
	names   []string           // of the directory
	listed  bool               // names are up to date, except for events that were not handled yet
	counted bool               // the number of names was compared with that of the directory; for a tree
	asOf    int64              // the position of the latest read of the directory
	nodes   map[string]reading // the nodes of members

	// Without a tree:
	dir     *backend.Watch            // on the children of the directory, or on its creation
	watched map[*backend.Watch]string // the names of the nodes whose watch is armed
}

// look implements a look of follow.Live.
func (f *follower) look(ctx context.Context, v *follow.Loop) error {
	if v.First {
		f.trees = v.S.Backend().Features().Has(backend.Trees)
		f.forget()
		// Another server may lag behind the state that an earlier session has seen,
		// and a member that was reported as gone must not come back.
		if err := v.S.Backend().Sync(ctx, f.g.path.Full()); err != nil {
			return err
		}
	}
	for _, w := range v.Fired {
		if w == f.dir {
			f.listed = false
		}
		if name, ok := f.watched[w]; ok {
			delete(f.watched, w)
			f.expire(name)
		}
	}
	f.takeTree(v)
	list, err := f.readMembers(ctx, v)
	if err != nil {
		return err
	}
	if f.changed || !f.known {
		f.known, f.changed = true, false
		readable := list
		if unreadable := func(m Member) bool { return m.Err != nil }; slices.ContainsFunc(list, unreadable) {
			readable = slices.DeleteFunc(slices.Clone(list), unreadable)
		}
		f.seen.Set(roster{list: list, readable: readable, known: true}, false)
	}
	return nil
}

// forget makes the next look read the directory and all members again. It keeps the readings, which the look
// compares with the new ones.
func (f *follower) forget() {
	f.dir, f.listed = nil, false
	f.watched = make(map[*backend.Watch]string)
	for name := range f.nodes {
		f.expire(name)
	}
}

// expire makes the next look read the node again if it is that of a known member.
func (f *follower) expire(name string) {
	if r, ok := f.nodes[name]; ok {
		r.w, r.stale = nil, true
		f.nodes[name] = r
	}
}

// dropTree stops the watch of the tree.
func (f *follower) dropTree(v *follow.Loop) {
	v.Tree.Stop()
	v.Tree = nil
	f.forget()
}

// takeTree applies the changes of the tree since the latest call to the names.
func (f *follower) takeTree(v *follow.Loop) {
	changes, over := v.Tree.Take()
	if over {
		f.dropTree(v)
		return
	}
	for _, c := range changes {
		if c.Path == f.g.path.Full() {
			if c.Kind == backend.TreeDeleted {
				f.names = nil
			} else if c.Zxid == 0 || c.Zxid > f.asOf {
				f.counted = false
			}
			continue
		}
		name, ok := strings.CutPrefix(c.Path, f.g.path.Full()+"/")
		if !ok || strings.Contains(name, "/") {
			continue
		}
		if c.Kind == backend.TreeDeleted {
			f.names = slices.DeleteFunc(f.names, func(other string) bool { return other == name })
			continue
		}
		if c.Kind == backend.TreeCreated && !slices.Contains(f.names, name) {
			f.names = append(f.names, name)
			f.counted = false
		}
		if c.Zxid == 0 || c.Zxid > f.nodes[name].mzxid {
			f.expire(name)
		}
	}
}

// list lists the directory. Without a tree, it arms a watch on the children of the directory, or on its
// creation if it is missing. With a tree, it arms the watch of the tree before the first listing.
func (f *follower) list(ctx context.Context, v *follow.Loop) error {
	if f.trees && v.Tree == nil {
		tree := backend.NewTreeWatch(0)
		err := v.S.Backend().WatchTree(ctx, f.g.path.Full(), tree)
		switch {
		case errors.Is(err, backend.ErrUnsupported):
			f.trees = false
		case err != nil:
			return err
		default:
			v.Tree = tree
		}
	}
	ws := v.Ws
	if f.trees {
		ws = nil
	}
	var names []string
	var stat backend.Stat
	w, err := follow.ReadOrAwait(ctx, v.S, ws, f.g.path.Full(), func(w *backend.Watch) (err error) {
		names, stat, err = v.S.Backend().Children(ctx, f.g.path.Full(), w)
		return err
	})
	if err == nil {
		f.dir, f.names, f.asOf = w, names, stat.AsOf
		f.listed, f.counted = true, true
	}
	return err
}

// readMembers reads the directory and those members that are not up to date, and returns all members.
func (f *follower) readMembers(ctx context.Context, v *follow.Loop) (list []Member, err error) {
	for lists := 0; ; {
		if !f.listed {
			if err := f.list(ctx, v); err != nil {
				return nil, err
			}
		}
		present := layout.PresentMembers(f.names)
		var unread []layout.MemberNode
		for _, n := range present {
			if r, ok := f.nodes[n.Name]; !ok || r.stale {
				unread = append(unread, n)
			}
		}
		if len(unread) == 0 && f.counted {
			gone := maps.Clone(f.nodes)
			for _, n := range present {
				list = append(list, f.nodes[n.Name].member)
				delete(gone, n.Name)
			}
			for name, r := range gone {
				f.changed = true
				r.w.Stop()
				delete(f.watched, r.w)
				delete(f.nodes, name)
			}
			return list, nil
		}
		got, count, err := f.read(ctx, v, unread)
		if err != nil {
			return nil, err
		}
		vanished := make(map[string]bool)
		for i, n := range unread {
			r := got[i]
			if r.gone {
				vanished[n.Name] = true
				continue
			}
			old, ok := f.nodes[n.Name]
			f.changed = f.changed || !ok || old.mzxid != r.mzxid || old.member.Token != r.member.Token || (old.member.Err == nil) != (r.member.Err == nil)
			f.nodes[n.Name] = r
			if r.w != nil {
				f.watched[r.w] = n.Name
			}
			f.trees = f.trees && !r.denied
		}
		f.names = slices.DeleteFunc(f.names, func(name string) bool { return vanished[name] })
		if !f.trees && v.Tree != nil {
			f.dropTree(v)
			continue
		}
		// A successor of a vanished member may have been created after the listing, and must be
		// reported in one update with the member that is gone. (By now the watch on the directory
		// has fired, or the tree has reported the successor.) The names can also be
		// older than the count.
		if len(vanished) > 0 || count >= 0 {
			if lists++; lists <= mostLists {
				f.listed = f.listed && f.dir.Kind() == 0
				f.takeTree(v)
			}
			// If a member has come after the count, it makes the follower count again.
			if count >= 0 && f.counted && (count != len(f.names) || lists > mostLists) {
				f.listed = false
			}
		}
	}
}

// read reads the nodes. Without a tree, it arms a watch on each of them. With a tree, it also reads
// the directory, unless its children were counted, and returns their number. Otherwise count is -1.
func (f *follower) read(ctx context.Context, v *follow.Loop, nodes []layout.MemberNode) (got []reading, count int, err error) {
	switch {
	case !f.trees:
		got, err = f.g.watch(ctx, v.S, nodes, v.Ws)
		return got, -1, err
	case f.counted:
		got, _, err = f.g.read(ctx, v.S, nodes)
		return got, -1, err
	}
	got, rest, err := f.g.read(ctx, v.S, nodes, f.g.path.Full())
	if err != nil {
		return nil, -1, err
	}
	dir := rest[0]
	if dir.Err != nil && !errs.IsNotFound(dir.Err) {
		return nil, -1, dir.Err
	}
	f.counted, f.asOf = true, max(f.asOf, dir.Stat.AsOf)
	return got, int(dir.Stat.NumChildren), nil
}
