package zookeeper_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
)

// The opcodes of the requests for trees.
const opAddWatch, opRemoveWatches = 106, 18

// tree arms a tree watch.
func (s *scene) tree(session backend.Session, path string, limit int) *backend.TreeWatch {
	s.Helper()
	w := backend.NewTreeWatch(limit)
	if err := session.WatchTree(s.ctx, path, w); err != nil {
		s.Fatalf("watch tree: %v", err)
	}
	return w
}

func (s *scene) sync(session backend.Session) {
	s.Helper()
	if err := session.Sync(s.ctx, s.service.Root()); err != nil {
		s.Fatalf("sync: %v", err)
	}
}

// asked returns the requests for trees and for their removal that the session of the link has
// sent so far, and the events that it got.
func (s *scene) asked(session backend.Session) (added, removed, events int) {
	s.Helper()
	s.sync(session) // behind the removals, for which no caller waits
	for _, p := range s.link.Proxies {
		n := p.Count()
		added, removed, events = added+n.Ops[opAddWatch], removed+n.Ops[opRemoveWatches], events+n.Events
	}
	return added, removed, events
}

// The server's watch of a tree is removed when nothing needs it any more, and not before.
func TestATreeIsRemovedWhenNothingNeedsIt(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c, o := s.open(s.link), s.other()
	n := s.path("n")
	s.commit(o, backend.Create(n, nil, backend.Persistent), backend.Create(n+"/x", nil, backend.Persistent))
	added, removed, events := s.asked(c)
	check := func(what string, moreAdded, moreRemoved, moreEvents int) {
		t.Helper()
		a, r, e := s.asked(c)
		if a-added != moreAdded || r-removed != moreRemoved || e-events != moreEvents {
			t.Errorf("%s: %d trees added, %d removed, %d events; want %d, %d, %d", what, a-added, r-removed, e-events, moreAdded, moreRemoved, moreEvents)
		}
		added, removed, events = a, r, e
	}
	change := func() { s.commit(o, backend.SetData(n+"/x", nil, backend.AnyVersion)) }

	first, second, nested := s.tree(c, n, 0), s.tree(c, n, 0), s.tree(c, n+"/x", 0)
	change()
	check("three watches", 3, 0, 1)
	first.Stop()
	change()
	check("the first is stopped", 0, 0, 1)
	second.Stop()
	change()
	check("the second is stopped", 0, 1, 1)
	nested.Stop()
	s.sync(c)
	change()
	check("the nested one is stopped", 0, 1, 0)

	// A watch of a read at its top needs the tree, whichever came first.
	before := backend.NewWatch()
	if _, _, err := c.Children(s.ctx, n, before); err != nil {
		t.Fatal(err)
	}
	top := s.tree(c, n, 0)
	after, stopped := backend.NewWatch(), backend.NewWatch()
	for _, w := range []*backend.Watch{after, stopped} {
		if _, _, err := c.Get(s.ctx, n, w); err != nil {
			t.Fatal(err)
		}
	}
	top.Stop()
	check("watches of reads are armed", 1, 0, 0)
	s.commit(o, backend.Create(n+"/y", nil, backend.Persistent))
	s.await(before.Fired(), "the watch for children")
	stopped.Stop()
	check("one is left", 0, 0, 2-1) // the creation alone: the server has dropped the watch for children
	s.commit(o, backend.SetData(n, nil, backend.AnyVersion))
	s.await(after.Fired(), "the watch for data")
	check("it has fired", 0, 1, 1)
	change()
	check("nothing is left", 0, 0, 0)

	small := s.tree(c, n, 1)
	change()
	s.commit(o, backend.SetData(n, nil, backend.AnyVersion))
	s.sync(c) // the session has the events, and sends the removal
	check("a watch has overflowed", 1, 1, 2)
	change()
	if _, over := small.Take(); !over {
		t.Error("the small watch is not over")
	}
	check("nothing is left again", 0, 0, 0)
	if left := zookeeper.Interests(c); left != 0 {
		t.Errorf("%d watches are left", left)
	}
}

// A session arms and stops tree watches and watches of reads on one node, on its child and on
// its parent, in a random order. Each armed watch fires at the next change that concerns it,
// and at no other.
func TestWatchesBesideTreesMissNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c, o := s.open(s.link), s.other()
	nodes := []string{s.path("n"), s.path("n/x"), s.path("n/x/y")}
	var there [3]bool
	type armed struct {
		*backend.Watch
		node     int
		children bool
	}
	var ones []armed
	type told struct {
		*backend.TreeWatch
		node int
	}
	var trees []told
	r := rand.New(rand.NewPCG(7, 7))
	version := int64(0)
	const turns = 800
	changes, fired := 0, 0
	for turn := range turns {
		i := r.IntN(3)
		n := nodes[i]
		switch r.IntN(8) {
		case 0:
			trees = append(trees, told{s.tree(c, n, 0), i})
		case 1:
			if len(trees) > 0 {
				k := r.IntN(len(trees))
				trees[k].Stop()
				trees = append(trees[:k], trees[k+1:]...)
			}
		case 2:
			if len(ones) > 0 {
				k := r.IntN(len(ones))
				ones[k].Stop()
				ones = append(ones[:k], ones[k+1:]...)
			}
		case 3:
			w := backend.NewWatch()
			if _, err := c.Exists(s.ctx, n, w); err != nil && !errors.Is(err, backend.ErrNotFound) {
				t.Fatal(err)
			}
			ones = append(ones, armed{w, i, false})
		case 4:
			w := backend.NewWatch()
			if _, _, err := c.Children(s.ctx, n, w); err == nil {
				ones = append(ones, armed{w, i, true})
			}
		case 5:
			if there[i] {
				w, v := backend.NewWatch(), backend.NewWatch()
				if err := c.Arm(s.ctx, version, backend.Target{Path: n, Watch: w}, backend.Target{Path: n, Children: true, Watch: v}); err != nil {
					t.Fatal(err)
				}
				ones = append(ones, armed{w, i, false}, armed{v, i, true})
			}
		default:
			op := backend.SetData(n, nil, backend.AnyVersion)
			kind := backend.TreeChanged
			switch {
			case !there[i] && (i == 0 || there[i-1]):
				op, kind = backend.Create(n, nil, backend.Persistent), backend.TreeCreated
			case !there[i]:
				continue
			case r.IntN(2) == 0 && (i == 2 || !there[i+1]):
				op, kind = backend.Delete(n, backend.AnyVersion), backend.TreeDeleted
			}
			s.commit(o, op)
			changes++
			there[i] = kind != backend.TreeDeleted
			s.sync(c)
			for _, p := range nodes {
				if stat, err := c.Exists(s.ctx, p, nil); err == nil {
					version = max(version, stat.AsOf)
				}
			}
			kept := ones[:0]
			for _, one := range ones {
				same := one.node == i
				concerns := same && (!one.children || kind == backend.TreeDeleted) || one.children && one.node == i-1 && kind != backend.TreeChanged
				if got := one.Kind() != 0; got != concerns {
					t.Fatalf("turn %d: after %v of %s the watch of %s (children: %v) has fired: %v", turn, kind, n, nodes[one.node], one.children, got)
				}
				if concerns {
					fired++
				} else {
					kept = append(kept, one)
				}
			}
			ones = kept
			for _, tree := range trees {
				got, over := tree.Take()
				want := tree.node <= i
				if over || len(got) != map[bool]int{true: 1}[want] || want && (got[0].Path != n || got[0].Kind != kind) {
					t.Fatalf("turn %d: after %v of %s the tree at %s told %v, over: %v", turn, kind, n, nodes[tree.node], got, over)
				}
			}
		}
	}
	t.Logf("figure: %d changes, %d watches of reads fired", changes, fired)
	for _, one := range ones {
		one.Stop()
	}
	for _, tree := range trees {
		tree.Stop()
	}
	s.sync(c)
	if left := zookeeper.Interests(c); left != 0 {
		t.Errorf("%d watches are left", left)
	}
	added, removed, _ := s.asked(c)
	if removed == 0 || added <= removed {
		t.Errorf("%d trees added, %d removed", added, removed)
	}
}
