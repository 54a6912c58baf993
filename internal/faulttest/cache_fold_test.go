//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// nodeIs identifies the node at a path, and its data.
type nodeIs struct {
	czxid, mzxid int64
	version      int32
	owner        int64
	data         string
}

func isNode(data []byte, s backend.Stat) nodeIs {
	return nodeIs{s.Czxid, s.Mzxid, s.Version, s.EphemeralOwner, string(data)}
}

// cachedTree returns the content of a cache, and fails if its counts of children do not
// belong to it.
func cachedTree(k *coord.Cache, root string) (map[string]nodeIs, error) {
	all, below := make(map[string]nodeIs), make(map[string]int32)
	counts := make(map[string]int32)
	for p, n := range k.Walk(root) {
		all[p] = isNode(n.Data, n.Stat)
		below[path.Dir(p)]++
		counts[p] = n.Stat.NumChildren
	}
	for p, n := range counts {
		if n != below[p] {
			return all, fmt.Errorf("the copy of %s has %d children and counts %d", p, below[p], n)
		}
	}
	return all, nil
}

// realTree reads the servers' tree with neither watches nor batches.
func realTree(ctx context.Context, s backend.Session, namespace, root string) (map[string]nodeIs, error) {
	const atOnce = 32
	if err := s.Sync(ctx, namespace+root); err != nil {
		return nil, err
	}
	all := make(map[string]nodeIs)
	for level := []string{root}; len(level) > 0; {
		type answer struct {
			data  []byte
			stat  backend.Stat
			names []string
			err   error
		}
		answers := make([]answer, len(level))
		var reads errgroup.Group
		reads.SetLimit(atOnce)
		for i, p := range level {
			reads.Go(func() error {
				a := &answers[i]
				var err error
				a.data, a.stat, a.err = s.Get(ctx, namespace+p, nil)
				a.names, _, err = s.Children(ctx, namespace+p, nil)
				a.err = errors.Join(a.err, err)
				if errors.Is(a.err, backend.ErrNotFound) {
					return nil // an ephemeral node of a session that expires only now
				}
				return a.err
			})
		}
		if err := reads.Wait(); err != nil {
			return nil, err
		}
		var next []string
		for i, a := range answers {
			if a.err != nil {
				continue
			}
			all[level[i]] = isNode(a.data, a.stat)
			for _, name := range a.names {
				next = append(next, level[i]+"/"+name)
			}
		}
		level = next
	}
	return all, nil
}

// differs describes how a copy differs from the tree, or returns "".
func differs(copied, tree map[string]nodeIs) string {
	for p, n := range tree {
		if c, ok := copied[p]; !ok {
			return fmt.Sprintf("it lacks %s, %+v", p, n)
		} else if c != n {
			return fmt.Sprintf("%s is %+v, and in the tree %+v", p, c, n)
		}
	}
	for p, n := range copied {
		if _, ok := tree[p]; !ok {
			return fmt.Sprintf("it has %s, %+v, which the tree does not have", p, n)
		}
	}
	return ""
}

// sightings are the states of nodes that caches have shown. All caches show one commit of a
// node in the same way.
type sightings struct {
	mu   sync.Mutex
	seen map[sighting]nodeIs
}

type sighting struct {
	path  string
	mzxid int64
}

// add returns the earlier sighting that contradicts this one.
func (s *sightings) add(p string, is nodeIs) (other nodeIs, wrong bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := sighting{p, is.mzxid}
	other, known := s.seen[at]
	if !known {
		s.seen[at] = is
	}
	return other, known && other != is
}

// folded is the tree folded from the events of a cache. Data of a node begins with its path.
type folded struct {
	all *sightings
	// repeats: a node whose parent was deleted and created again can be told twice. Only a
	// service without trees makes a cache do so.
	repeats bool

	mu      sync.Mutex
	tree    map[string]nodeIs
	below   map[string]int // number of children
	told    map[string]telling
	events  int
	counts  map[coord.CacheEventKind]int
	batches int
	wrong   []string // events that do not follow from earlier ones
}

// telling is what was told of a path.
type telling struct {
	mzxid   int64 // the latest
	shown   int   // the number of the last event of a state
	created int   // and of the last creation
}

func newFolded(all *sightings, repeats bool) *folded {
	return &folded{
		all: all, repeats: repeats, tree: make(map[string]nodeIs), below: make(map[string]int),
		told: make(map[string]telling), counts: make(map[coord.CacheEventKind]int),
	}
}

// follow folds the events of a cache until ctx ends, with a pause after each batch.
func (f *folded) follow(ctx context.Context, k *coord.Cache, pause time.Duration) error {
	for batch, err := range k.Events(ctx) {
		if err != nil {
			return err
		}
		f.apply(batch)
		time.Sleep(pause)
	}
	return nil
}

func (f *folded) apply(batch []coord.CacheEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches++
	for _, e := range batch {
		f.counts[e.Kind]++
		if why := f.turn(e); why != "" {
			f.wrong = append(f.wrong, fmt.Sprintf("batch %d: %s was %v: %s", f.batches, e.Path, e.Kind, why))
		}
	}
}

// turn applies one event, and returns why it does not follow from those before it.
func (f *folded) turn(e coord.CacheEvent) (wrong string) {
	old, there := f.tree[e.Path]
	dir, is := path.Dir(e.Path), isNode(e.Node.Data, e.Node.Stat)
	if e.Kind == coord.NodeDeleted {
		if there {
			f.below[dir]--
			delete(f.tree, e.Path)
		}
		switch {
		case !there:
			return "there is none"
		case f.below[e.Path] > 0:
			return "it has children"
		}
		return ""
	}
	f.events++
	before := f.told[e.Path]
	after := telling{max(before.mzxid, is.mzxid), f.events, before.created}
	if e.Kind == coord.NodeCreated {
		after.created = f.events
	}
	_, parent := f.tree[dir]
	if !there {
		f.below[dir]++
	}
	f.tree[e.Path], f.told[e.Path] = is, after
	repeated := f.repeats && f.told[dir].created > before.shown && is.mzxid >= before.mzxid
	switch created := e.Kind == coord.NodeCreated; {
	case created && there:
		return fmt.Sprintf("it is there as %+v", old)
	case !created && !there:
		return "there is none"
	case !parent && dir != "/":
		return "it has no parent"
	case created && is.czxid <= before.mzxid && !repeated:
		return fmt.Sprintf("%+v is not later than what was told before, %#x", is, before.mzxid)
	case !created && is.czxid != old.czxid:
		return fmt.Sprintf("%+v is another node than %+v", is, old)
	case !created && is.mzxid <= before.mzxid:
		return fmt.Sprintf("%+v is not later than what was told before, %#x", is, before.mzxid)
	case !strings.HasPrefix(is.data, e.Path+" "):
		return fmt.Sprintf("%+v has the data of another node", is)
	}
	if other, differs := f.all.add(e.Path, is); differs {
		return fmt.Sprintf("%+v was told elsewhere as %+v", is, other)
	}
	return ""
}

// differs describes how the folded tree differs from the tree, or returns "". The second
// result are the events that were wrong, for ever.
func (f *folded) differs(tree map[string]nodeIs) (now string, ever []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return differs(f.tree, tree), f.wrong
}

func (f *folded) kinds() map[coord.CacheEventKind]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

func TestTheFoldFindsWrongEvents(t *testing.T) {
	const created, changed, deleted = coord.NodeCreated, coord.NodeChanged, coord.NodeDeleted
	ev := func(kind coord.CacheEventKind, p string, czxid, mzxid int64) coord.CacheEvent {
		e := coord.CacheEvent{Kind: kind, Path: p}
		if kind != deleted {
			e.Node = coord.CachedNode{Data: fmt.Appendf(nil, "%s %d", p, mzxid), Stat: backend.Stat{Czxid: czxid, Mzxid: mzxid}}
		}
		return e
	}
	first := []coord.CacheEvent{ev(created, "/t", 1, 1), ev(created, "/t/a", 2, 5), ev(created, "/t/a/b", 3, 3)}
	stranger := ev(changed, "/t/a", 2, 6)
	stranger.Node.Data = []byte("/t/a/b 3")
	another := ev(changed, "/t/a", 2, 6)
	another.Node.Stat.Version = 7
	for name, test := range map[string]struct {
		events []coord.CacheEvent
		want   string
		may    bool // it is right where a node can be told twice
	}{
		"all is well":                        {[]coord.CacheEvent{ev(changed, "/t/a", 2, 6), ev(deleted, "/t/a/b", 0, 0), ev(deleted, "/t/a", 0, 0), ev(created, "/t/a", 8, 9), ev(changed, "/t", 1, 9)}, "", false},
		"a creation told twice":              {[]coord.CacheEvent{ev(created, "/t/a", 2, 5)}, "it is there", false},
		"a deletion told twice":              {[]coord.CacheEvent{ev(deleted, "/t/a/b", 0, 0), ev(deleted, "/t/a/b", 0, 0)}, "there is none", false},
		"a change told twice":                {[]coord.CacheEvent{ev(changed, "/t/a", 2, 5)}, "not later", false},
		"a change of the past":               {[]coord.CacheEvent{ev(changed, "/t/a", 2, 4)}, "not later", false},
		"a change of nothing":                {[]coord.CacheEvent{ev(changed, "/t/c", 4, 5)}, "there is none", false},
		"a change of another node":           {[]coord.CacheEvent{ev(changed, "/t/a", 7, 7)}, "another node", false},
		"a deletion above a node":            {[]coord.CacheEvent{ev(deleted, "/t/a", 0, 0)}, "children", false},
		"a creation below nothing":           {[]coord.CacheEvent{ev(created, "/t/c/d", 7, 7)}, "no parent", false},
		"a node that was deleted":            {[]coord.CacheEvent{ev(deleted, "/t/a/b", 0, 0), ev(created, "/t/a/b", 3, 3)}, "not later", false},
		"the data of another node":           {[]coord.CacheEvent{stranger}, "another node", false},
		"another state of one commit":        {[]coord.CacheEvent{another}, "told elsewhere", false},
		"a node told again with its parent":  {[]coord.CacheEvent{ev(deleted, "/t/a/b", 0, 0), ev(deleted, "/t/a", 0, 0), ev(created, "/t/a", 7, 7), ev(created, "/t/a/b", 3, 3)}, "not later", true},
		"the past of a node with its parent": {[]coord.CacheEvent{ev(changed, "/t/a/b", 3, 6), ev(deleted, "/t/a/b", 0, 0), ev(deleted, "/t/a", 0, 0), ev(created, "/t/a", 7, 7), ev(created, "/t/a/b", 3, 3)}, "not later", false},
	} {
		for _, repeats := range []bool{false, true} {
			want := test.want
			if repeats && test.may {
				want = ""
			}
			all := &sightings{seen: make(map[sighting]nodeIs)}
			all.add("/t/a", isNode([]byte("/t/a 6"), backend.Stat{Czxid: 2, Mzxid: 6})) // by another cache
			f := newFolded(all, repeats)
			f.apply(first)
			f.apply(test.events)
			if _, wrong := f.differs(nil); want == "" && len(wrong) > 0 || want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], want)) {
				t.Errorf("%s, repeats %t: %q, want %q", name, repeats, wrong, want)
			}
		}
	}
	tree := map[string]nodeIs{"/t": {1, 1, 0, 0, "x"}, "/t/a": {2, 5, 1, 0, "x"}}
	if d := differs(tree, tree); d != "" {
		t.Error(d)
	}
	for name, copied := range map[string]map[string]nodeIs{
		"a node too few":   {"/t": tree["/t"]},
		"a node too many":  {"/t": tree["/t"], "/t/a": tree["/t/a"], "/t/b": {3, 3, 0, 0, ""}},
		"old data":         {"/t": tree["/t"], "/t/a": {2, 4, 0, 0, "w"}},
		"another creation": {"/t": tree["/t"], "/t/a": {4, 5, 1, 0, "x"}},
	} {
		if differs(copied, tree) == "" {
			t.Errorf("%s: no difference", name)
		}
	}
}
