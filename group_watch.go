package coord

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// GroupUpdate is an element of a Watch: the members, and the changes since the
// previous element that the reader received.
type GroupUpdate[T any] struct {
	Members []Member[T] // all members, sorted by ID

	// Joined are the incarnations in Members that were not in the Members of the previous
	// element. Left are the incarnations that were there and are not in Members. Both
	// are sorted by ID. A member with a new incarnation is in both. If only values
	// have changed, both are empty.
	Joined []Member[T]
	Left   []Member[T]

	// Err is the reason why the watch has ended, set only in the last element:
	// ErrClosed, ErrDenied, ErrBadPath. Members are the last known ones.
	Err error
}

// Watch reports the members, and then every change. The first element has all members in
// Joined, and comes also if the group is empty. While another Watch or a Picker of this Group
// is in use, the first element is the latest state that they have seen.
//
// The channel is latest-wins: a slow reader misses intermediate states but never the newest,
// and the changes of elements that it did not receive are merged into the next one. Watch
// continues over lost sessions, during which Members stay unchanged, and over a missing
// directory. The channel is closed when ctx ends, and after an element with Err.
//
// If the service has trees and batches (see Features of package backend) and all members can
// be read, a join or a change of a value costs one request, and a leave none. Otherwise each
// join or leave costs a list of all members besides.
func (g *Group[T]) Watch(ctx context.Context) <-chan GroupUpdate[T] {
	core.NeedContext(ctx)
	out := core.NewSignal[GroupUpdate[T]]()
	fail := func(err error) <-chan GroupUpdate[T] {
		out.Put(GroupUpdate[T]{Err: err})
		close(out.Ch)
		return out.Ch
	}
	if err := g.path.Check("watch"); err != nil {
		return fail(err)
	}
	v, err := g.attach()
	if err != nil {
		return fail(core.OpError("watch", g.path.Full(), err))
	}
	if !g.c.GoWork(func() {
		defer g.detach(v)
		g.tell(ctx, v, out)
	}) {
		g.detach(v)
		return fail(core.OpError("watch", g.path.Full(), ErrClosed))
	}
	return out.Ch
}

// Changes is Watch as a loop: it yields the elements of Watch until ctx ends, the watch fails
// for good, or the body breaks off. The end of the loop ends the watch, and waits for that. A
// slow body misses intermediate states, never the newest, and gets their changes in one element.
func (g *Group[T]) Changes(ctx context.Context) iter.Seq[GroupUpdate[T]] {
	return core.Each(ctx, g.Watch)
}

// tell sends the elements of one Watch.
func (g *Group[T]) tell(ctx context.Context, v *view[T], out core.Signal[GroupUpdate[T]]) {
	defer close(out.Ch)
	var taken, sent []Member[T] // the list that the reader received last, and the list that was sent last
	for {
		r, changed, final := v.seen.Get()
		if ctx.Err() != nil {
			return
		}
		if r.known || final {
			if _, untaken := out.Untaken(); !untaken {
				taken = sent
			}
			m := GroupUpdate[T]{Members: slices.Clone(r.list)}
			m.Joined, m.Left = memberChanges(taken, r.list)
			if final {
				m.Err = core.OpError("watch", g.path.Full(), r.err)
			}
			out.Put(m)
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
func memberChanges[T any](old, list []Member[T]) (joined, left []Member[T]) {
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
func (g *Group[T]) Wait(ctx context.Context, n int) ([]Member[T], error) {
	const op = "wait"
	if err := g.path.Check(op); err != nil {
		return nil, err
	}
	// The shared view is not used here: it may date from before contact was lost.
	f := follower[T]{g: g}
	var list []Member[T]
	err := g.c.FollowLive(ctx, func(ctx context.Context, v *core.WatchLoop) error {
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
		return nil, core.OpError(op, g.path.Full(), err)
	}
	return list, nil
}

// errEnough ends the looks of Wait.
var errEnough = errors.New("enough members")

// view is the live copy of a group that its Watches and Pickers share. It is
// changed before any of them reads it, so none of them is behind what another has
// reported. It lives as long as it has a user.
type view[T any] struct {
	seen  *core.Latest[roster[T]]
	stop  context.CancelFunc
	users int // guarded by the group's mu
}

// roster is the state of a group as a view has seen it. The lists are never
// changed.
type roster[T any] struct {
	list     []Member[T]
	readable []Member[T] // the members of list whose value could be read
	known    bool        // the group was read
	err      error       // why no further roster follows
}

// attach returns the view. The caller must release it with detach.
func (g *Group[T]) attach() (*view[T], error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.live == nil {
		ctx, stop := context.WithCancel(context.Background())
		v := &view[T]{seen: core.NewLatest(roster[T]{}), stop: stop}
		if !g.c.GoWork(func() { g.follow(ctx, v) }) {
			stop()
			return nil, ErrClosed
		}
		g.live = v
	}
	g.live.users++
	return g.live, nil
}

func (g *Group[T]) detach(v *view[T]) {
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
func (g *Group[T]) follow(ctx context.Context, v *view[T]) {
	defer v.stop()
	f := follower[T]{g: g, seen: v.seen, nodes: make(map[string]reading[T])}
	err := g.c.FollowLive(ctx, f.look)
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

// follower follows a group. Of the directory and the members, it reads again only
// what has changed.
//
// If the service has trees, one watch of the directory's tree tells what has changed,
// and the changes keep the list of names up to date. A service may keep the changes
// of a node that the session may not read to itself. Two rules keep such members in
// the list:
//
//   - Each join changes the data of the directory, which the session may read. After
//     such a change, and together with each new member, the directory is read. If it
//     has another number of children than there are names, it is listed again.
//   - The leave of a member changes no data. If a member cannot be read, the session
//     goes on as without trees: with a watch on the children of the directory and on
//     each member.
type follower[T any] struct {
	g     *Group[T]
	seen  *core.Latest[roster[T]]
	known bool // the group was read once

	// A member has come, gone or changed since the roster was set. An error can end a look
	// that has seen it.
	changed bool

	trees   bool                  // this session follows a tree
	names   []string              // of the directory
	listed  bool                  // names are up to date, but for changes and watches that were not handled yet
	counted bool                  // with a tree: their number was compared
	asOf    int64                 // the position of the latest read of the directory
	nodes   map[string]reading[T] // the nodes of members

	// Without a tree:
	dir     *backend.Watch            // on the children of the directory, or on its creation
	watched map[*backend.Watch]string // the names of the nodes whose watch is armed
}

// look implements a look of FollowLive.
func (f *follower[T]) look(ctx context.Context, v *core.WatchLoop) error {
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
		if unreadable := func(m Member[T]) bool { return m.Err != nil }; slices.ContainsFunc(list, unreadable) {
			readable = slices.DeleteFunc(slices.Clone(list), unreadable)
		}
		f.seen.Set(roster[T]{list: list, readable: readable, known: true}, false)
	}
	return nil
}

// forget makes everything be read again. It keeps the readings, to compare with.
func (f *follower[T]) forget() {
	f.dir, f.listed = nil, false
	f.watched = make(map[*backend.Watch]string)
	for name := range f.nodes {
		f.expire(name)
	}
}

// expire makes the node be read again if it is that of a member.
func (f *follower[T]) expire(name string) {
	if r, ok := f.nodes[name]; ok {
		r.w, r.stale = nil, true
		f.nodes[name] = r
	}
}

// dropTree stops the watch of the tree.
func (f *follower[T]) dropTree(v *core.WatchLoop) {
	v.Tree.Stop()
	v.Tree = nil
	f.forget()
}

// takeTree applies the changes of the tree since the latest call to the names.
func (f *follower[T]) takeTree(v *core.WatchLoop) {
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

// list lists the directory. Without a tree it does that with a watch, and watches for
// the creation of the directory if that is missing. With one, it arms the tree before
// it lists for the first time.
func (f *follower[T]) list(ctx context.Context, v *core.WatchLoop) error {
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
	w, err := v.S.ReadOrAwait(ctx, ws, f.g.path.Full(), func(w *backend.Watch) (err error) {
		names, stat, err = v.S.Backend().Children(ctx, f.g.path.Full(), w)
		return err
	})
	if err == nil {
		f.dir, f.names, f.asOf = w, names, stat.AsOf
		f.listed, f.counted = true, true
	}
	return err
}

// readMembers reads what is not up to date, and returns all members.
func (f *follower[T]) readMembers(ctx context.Context, v *core.WatchLoop) (list []Member[T], err error) {
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
		// A successor may have been made after the list, and must be reported in
		// one update with the member that is gone. (By now the watch on the directory
		// has fired, or the tree has reported the successor.) The names can also be
		// older than the count.
		if len(vanished) > 0 || count >= 0 {
			if lists++; lists <= mostLists {
				f.listed = f.listed && f.dir.Kind() == 0
				f.takeTree(v)
			}
			// If a member has come after the count, the next one counts it.
			if count >= 0 && f.counted && (count != len(f.names) || lists > mostLists) {
				f.listed = false
			}
		}
	}
}

// read reads the nodes. Without a tree it watches each of them. With one it also reads
// the directory, unless its children were counted, and returns their number, else -1.
func (f *follower[T]) read(ctx context.Context, v *core.WatchLoop, nodes []layout.MemberNode) (got []reading[T], count int, err error) {
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
	if dir.Err != nil && !core.IsNotFound(dir.Err) {
		return nil, -1, dir.Err
	}
	f.counted, f.asOf = true, max(f.asOf, dir.Stat.AsOf)
	return got, int(dir.Stat.NumChildren), nil
}
