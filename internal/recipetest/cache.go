package recipetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// cacheTests are tests of Cache on each service.
type cacheTests struct{ Services }

func (on cacheTests) ACacheFollowsEveryKindOfChange(t *testing.T) {
	on.all(t, func(w *world) {
		t := w.T
		x := w.caching("/jobs", nil, nil)
		x.create("/jobs", "/jobs/a", "/jobs/a/x", "/jobs/a-b", "/jobs2", "/jobs2/a", "/job")
		x.do(backend.Create("/jobs/e", nil, backend.Ephemeral))
		f := x.reader(nil)
		x.run().synced()
		x.equal(f)
		n, ok := x.k.Get("/jobs/a/x")
		if !ok || string(n.Data) != "data of /jobs/a/x" || n.Stat.Version != 0 || n.Stat.DataLength != int32(len(n.Data)) {
			t.Errorf("%+v, %t", n, ok)
		}
		if names, ok := x.k.Children("/jobs"); !ok || !slices.Equal(names, []string{"a", "a-b", "e"}) {
			t.Errorf("children %v, %t", names, ok)
		}
		for _, path := range []string{"/jobs2", "/jobs2/a", "/job", "/jobs/b", "/jobs/", "", "/"} {
			if n, ok := x.k.Get(path); ok {
				t.Errorf("Get(%q) found %+v", path, n)
			}
			if names, ok := x.k.Children(path); ok || names != nil {
				t.Errorf("Children(%q) are %v", path, names)
			}
			for below := range x.k.Walk(path) {
				t.Errorf("Walk(%q) came to %s", path, below)
			}
		}
		var walked []string
		for path := range x.k.Walk("/jobs") {
			walked = append(walked, path)
		}
		if want := []string{"/jobs", "/jobs/a", "/jobs/a-b", "/jobs/a/x", "/jobs/e"}; !slices.Equal(walked, want) {
			t.Errorf("walked %v, want %v", walked, want)
		}
		for range x.k.Walk("/jobs") {
			break
		}
		if all := maps.Collect(x.k.Walk("/jobs/a")); len(all) != 2 {
			t.Errorf("below /jobs/a: %v", all)
		}

		before := n
		x.do(backend.SetData("/jobs/a/x", []byte("other"), 0))
		x.equal(f)
		if n, _ := x.k.Get("/jobs/a/x"); string(n.Data) != "other" || n.Stat.Version != 1 || string(before.Data) != "data of /jobs/a/x" {
			t.Errorf("%+v, before %+v", n, before)
		}
		x.do(backend.SetData("/jobs", nil, 0))
		x.create("/jobs/b", "/jobs/b/1", "/jobs/b/1/2", "/jobs3")
		x.delete("/jobs/e", "/jobs/a/x", "/jobs/a")
		x.do(backend.Delete("/jobs/a-b", 0), backend.Create("/jobs/a-b", []byte("new"), backend.Persistent), backend.Create("/jobs/a-b/c", nil, backend.Persistent))
		x.equal(f)
		w.Eventually("the list of children shows in the Stat", func() bool { n, _ := x.k.Get("/jobs"); return n.Stat.NumChildren == 2 })
		for path := range f.Seen {
			if !strings.HasPrefix(path, "/jobs/") && path != "/jobs" {
				t.Errorf("an event of %s", path)
			}
		}
		if names, ok := x.k.Children("/jobs/b/1/2"); !ok || len(names) != 0 {
			t.Errorf("children of a leaf: %v, %t", names, ok)
		}
	})
}

func (on cacheTests) TheRootOfACacheMayComeAndGo(t *testing.T) {
	on.all(t, func(w *world) {
		x := w.caching("/deep/root", nil, nil)
		f := x.reader(nil)
		x.run().synced()
		w.Eventually("the first batch, of nothing", func() bool { f.Mu.Lock(); defer f.Mu.Unlock(); return f.Batches == 1 })
		x.equal(f)
		x.create("/deep")
		x.equal(f)
		for range 3 {
			x.create("/deep/root", "/deep/root/a", "/deep/root/a/b")
			x.equal(f)
			x.delete("/deep/root/a/b", "/deep/root/a", "/deep/root")
			x.equal(f)
			x.create("/deep/root")
			x.equal(f)
			x.delete("/deep/root")
			x.delete("/deep")
			x.equal(f)
			x.create("/deep")
		}
		x.create("/deep/root", "/deep/root/a")
		x.do(
			backend.Delete("/deep/root/a", 0), backend.Delete("/deep/root", 0),
			backend.Create("/deep/root", nil, backend.Persistent), backend.Create("/deep/root/c", nil, backend.Persistent),
		)
		x.equal(f)
	})
}

// A version number does not distinguish a recreated node from the one before it.
func (on cacheTests) ACacheSeesARecreationWithEqualVersion(t *testing.T) {
	on.all(t, func(w *world) {
		t := w.T
		x := w.caching("/c", nil, nil)
		again := func() {
			x.do(
				backend.Delete("/c/a/x", 0), backend.Delete("/c/a", 0),
				backend.Create("/c/a", []byte("data of /c/a"), backend.Persistent), backend.Create("/c/a/x", []byte("data of /c/a/x"), backend.Persistent),
			)
		}
		x.create("/c", "/c/a", "/c/a/x", "/c/b")
		f := x.reader(nil)
		x.run().synced()
		x.equal(f)
		first, _ := x.k.Get("/c/a")
		again()
		x.equal(f)
		second, _ := x.k.Get("/c/a")
		w.Link("cache").Partition()
		again()
		w.Link("cache").Heal()
		x.equal(f)
		third, _ := x.k.Get("/c/a")
		if first.Stat.Version != 0 || second.Stat.Version != 0 || third.Stat.Version != 0 ||
			first.Stat.Czxid >= second.Stat.Czxid || second.Stat.Czxid >= third.Stat.Czxid {
			t.Errorf("%+v, %+v, %+v", first.Stat, second.Stat, third.Stat)
		}
		if n, m := f.EventsOf("/c/a"), f.EventsOf("/c/b"); n != 5 || m != 1 {
			t.Errorf("%d events of the node that was deleted and created twice, %d of its neighbour", n, m)
		}
	})
}

func (on cacheTests) ACacheCatchesUpAfterLostContactAndLostSessions(t *testing.T) {
	on.all(t, func(w *world) {
		t := w.T
		x := w.caching("/c", nil, nil)
		x.create("/c")
		for i := range 10 {
			p := fmt.Sprint("/c/", i)
			x.create(p, p+"/a", p+"/b")
		}
		f := x.reader(nil)
		x.run().synced()
		x.equal(f)
		much := func() {
			x.do(backend.SetData("/c/0", []byte("changed"), backend.AnyVersion))
			x.delete("/c/1/a", "/c/1/b", "/c/1", "/c/2/a", "/c/3/a", "/c/3/b", "/c/3")
			x.create("/c/2/a", "/c/3", "/c/3/b", "/c/3/c", "/c/new", "/c/new/1")
			x.do(backend.Create("/c/ephemeral", nil, backend.Ephemeral))
		}
		back := func() {
			x.delete("/c/ephemeral", "/c/new/1", "/c/new", "/c/3/c")
			x.create("/c/1", "/c/1/a", "/c/1/b", "/c/3/a")
		}
		link := w.Link("cache")
		for range 2 {
			link.Partition()
			much()
			if _, ok := x.k.Get("/c/1/a"); !ok || x.k.Len() != 31 {
				t.Errorf("without contact the copy has %d nodes", x.k.Len())
			}
			link.Heal()
			x.equal(f)

			session, err := x.c.Session(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			link.Partition()
			back()
			link.Expire(session.ID())
			if x.k.Len() != 31 {
				t.Errorf("between two sessions the copy has %d nodes", x.k.Len())
			}
			link.Heal()
			x.equal(f)
		}
		if n := f.EventsOf("/c/9/a"); n != 1 {
			t.Errorf("%d events of a node that never changed", n)
		}
		if names, _ := x.k.Children("/c/3"); !slices.Equal(names, []string{"a", "b"}) {
			t.Errorf("children %v", names)
		}
	})
}

func (on cacheTests) HowACacheEnds(t *testing.T) {
	on.all(t, func(w *world) {
		t := w.T
		x := w.caching("/c", nil, nil)
		x.create("/c", "/c/a")
		f := x.reader(nil)
		x.run().synced()
		x.equal(f)
		if err := x.k.Run(context.Background()); !errors.Is(err, coord.ErrInvalid) {
			t.Errorf("a second Run: %v", err)
		}
		x.stop()
		<-x.done
		coordtest.WantErr(t, x.err, context.Canceled)
		var e *backend.Error
		if !errors.As(x.err, &e) || e.Op != "run" || e.Path != w.Path("/c") {
			t.Errorf("the error is %#v", x.err)
		}

		// The copy is kept, and the next Run continues from it.
		x.do(backend.SetData("/c/a", []byte("later"), 0))
		x.create("/c/b")
		if n, ok := x.k.Get("/c/a"); !ok || string(n.Data) != "data of /c/a" {
			t.Errorf("after Run %+v", n)
		}
		reason := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		x.done = make(chan struct{})
		go func() {
			defer close(x.done)
			x.err = x.k.Run(ctx)
		}()
		x.equal(f)
		cancel(reason)
		<-x.done
		coordtest.WantErr(t, x.err, context.Canceled, reason)
		if err := x.k.Run(ctx); !errors.Is(err, reason) {
			t.Errorf("with a context that has ended: %v", err)
		}
		for batch, err := range x.k.Events(ctx) {
			t.Errorf("a loop whose context has ended: %v, %v", batch, err)
		}

		x.done = make(chan struct{})
		go func() {
			defer close(x.done)
			x.err = x.k.Run(context.Background())
		}()
		x.do(backend.SetData("/c", []byte("more"), 0))
		x.equal(f)
		x.c.Close()
		<-x.done
		coordtest.WantErr(t, x.err, coord.ErrClosed)
		w.Eventually("the reader receives the error of Close", func() bool { f.Mu.Lock(); defer f.Mu.Unlock(); return f.Err != nil })
		coordtest.WantErr(t, f.Err, coord.ErrClosed)
		coordtest.WantErr(t, x.k.Run(context.Background()), coord.ErrClosed)
		if x.k.Len() != 3 {
			t.Errorf("%d nodes after Close", x.k.Len())
		}
	})
}

// rootCache returns a cache of "/" for a client with a namespace. It hides the nodes that other
// tests create below the service's own root.
func (w *world) rootCache(link, namespace string) *caching {
	w.T.Helper()
	first, _, _ := strings.Cut(strings.TrimPrefix(w.Path("/ns"), "/"), "/")
	hide := func(path string) error {
		if top, _, _ := strings.Cut(path[1:], "/"); top == "" || top == first {
			return nil
		}
		return &backend.Error{Op: "get", Path: path, Err: backend.ErrNotFound}
	}
	b := backendtest.Intercept(w.Link(link), backendtest.Hooks{
		Names: func(c backendtest.Call, names []string) []string {
			if c.Path != "/" {
				return names
			}
			return slices.DeleteFunc(names, func(name string) bool { return name != first && name != "zookeeper" })
		},
		// A tree watch reports their creation.
		After: func(_ context.Context, c backendtest.Call, err error) error {
			if c.Op != "get" || hide(c.Path) == nil {
				return err
			}
			return hide(c.Path)
		},
		Results: func(c backendtest.Call, results []backend.ReadResult) {
			for i, r := range c.Reads {
				if err := hide(r.Path); err != nil {
					results[i] = backend.ReadResult{Err: err}
				}
			}
		},
	})
	c := coordtest.Open(w.T, b, &coord.Options{Namespace: namespace})
	x := &caching{w: w, c: c, k: coord.NewCache(c, "/", nil), root: "/", done: make(chan struct{})}
	x.ctx, x.stop = context.WithCancel(context.Background())
	return x
}

func (on cacheTests) ACacheOfTheRootHasTheWholeTree(t *testing.T) {
	on.all(t, func(w *world) {
		t, ns := w.T, w.Path("/ns")
		s := w.Session("writer")
		do := func(ops ...backend.Op) {
			t.Helper()
			if _, err := s.Commit(context.Background(), ops...); err != nil {
				t.Fatal(err)
			}
		}
		// The tree below the namespace, and the nodes above it.
		below, above := make(map[string]coordtest.NodeState), make(map[string]coordtest.NodeState)
		look := func(path string) coordtest.NodeState {
			data, stat, err := s.Get(context.Background(), path, nil)
			if err != nil {
				t.Fatal(err)
			}
			return coordtest.StateOf(data, stat)
		}
		for path := "/"; path != ns; {
			above[path] = look(path)
			next, _, _ := strings.Cut(strings.TrimPrefix(ns[len(path):], "/"), "/")
			path = strings.TrimSuffix(path, "/") + "/" + next
		}
		in, out := w.rootCache("in", ns), w.rootCache("out", "")
		fin, fout := in.reader(nil), out.reader(nil)
		in.run().synced()
		out.run().synced()
		check := func(what string, paths ...string) {
			t.Helper()
			clear(below)
			for _, path := range paths {
				below[path] = look(ns + strings.TrimSuffix(path, "/"))
			}
			all := maps.Clone(above)
			for path, is := range below {
				all[ns+strings.TrimSuffix(path, "/")] = is
			}
			w.Eventually(what+", in the namespace", func() bool { return maps.Equal(coordtest.CopyOf(in.k, "/"), below) && fin.Equals(below) })
			w.Eventually(what+", in all", func() bool { return maps.Equal(coordtest.CopyOf(out.k, "/"), all) && fout.Equals(all) })
		}
		check("no namespace yet")
		do(backend.Create(ns, []byte("root"), backend.Persistent), backend.Create(ns+"/a", nil, backend.Persistent), backend.Create(ns+"/a/b", nil, backend.Persistent))
		do(backend.Create(ns+"/zookeeper", []byte("an ordinary name"), backend.Persistent))
		check("created", "/", "/a", "/a/b", "/zookeeper")
		if names, ok := in.k.Children("/"); !ok || !slices.Equal(names, []string{"a", "zookeeper"}) {
			t.Errorf("children %v, %t", names, ok)
		}
		if n, ok := in.k.Get("/"); !ok || string(n.Data) != "root" || in.k.Len() != 4 {
			t.Errorf("%+v, %t, %d nodes", n, ok, in.k.Len())
		}
		var walked []string
		for path := range in.k.Walk("/") {
			walked = append(walked, path)
		}
		if !slices.Equal(walked, []string{"/", "/a", "/a/b", "/zookeeper"}) {
			t.Errorf("walked %v", walked)
		}
		do(backend.SetData(ns, []byte("changed"), 0), backend.SetData(ns+"/a", []byte("x"), 0), backend.Delete(ns+"/a/b", 0), backend.Create(ns+"/c", nil, backend.Ephemeral))
		check("changed", "/", "/a", "/c", "/zookeeper")
		if w.Fake { // the root of a shared server is not changed
			do(backend.SetData("/", []byte("first"), backend.AnyVersion))
			above["/"] = look("/")
			check("the root changed", "/", "/a", "/c", "/zookeeper")
		}
		w.Link("in").Partition()
		w.Link("out").Partition()
		again := func() {
			do(backend.Delete(ns+"/zookeeper", 0), backend.Delete(ns+"/c", 0), backend.Delete(ns+"/a", 1), backend.Delete(ns, 1))
			do(backend.Create(ns, nil, backend.Persistent), backend.Create(ns+"/d", nil, backend.Persistent))
		}
		again()
		w.Link("in").Heal()
		w.Link("out").Heal()
		check("created again without contact", "/", "/d")
		do(backend.Delete(ns+"/d", 0), backend.Delete(ns, 0))
		check("gone")
		fin.Check(t)
		fout.Check(t)
	})
}

func (on cacheTests) ACacheHasALimit(t *testing.T) {
	on.all(t, func(w *world) {
		t := w.T
		x := w.caching("/c", &coord.CacheOptions{MaxNodes: 5}, nil)
		x.create("/c", "/c/a", "/c/b", "/c/b/1", "/c/b/2")
		x.run().synced()
		x.equal()
		x.delete("/c/a")
		x.equal()
		x.create("/c/d")
		x.equal()
		x.create("/c/e")
		<-x.done
		coordtest.WantErr(t, x.err, coord.ErrLimit)
		if n := x.k.Len(); n != 5 {
			t.Errorf("%d nodes after the limit", n)
		}
		x.delete("/c/d", "/c/b/1", "/c/b/2")
		x.create("/c/f", "/c/f/1")
		for _, most := range []int{1, 4} {
			coordtest.WantErr(t, coord.NewCache(x.c, "/c", &coord.CacheOptions{MaxNodes: most}).Run(context.Background()), coord.ErrLimit)
		}
		x.done = make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			defer close(x.done)
			x.err = x.k.Run(ctx)
		}()
		x.w.Eventually("the next Run continues from the copy", func() bool { _, gone := x.k.Get("/c/d"); _, come := x.k.Get("/c/e"); return !gone && come })
		x.equal()
		cancel()
		<-x.done
	})
}

// turns lets a reader continue once for each value sent on it, and always once it is closed.
type turns chan struct{}

func (x turns) wait() { <-x }

func (on cacheTests) ReadersOfEventsAreIndependent(t *testing.T) {
	on.all(t, func(w *world) {
		t := w.T
		x := w.caching("/c", nil, nil)
		x.create("/c", "/c/a", "/c/b")
		slowly := make(turns)
		slow, quick := x.reader(slowly.wait), x.reader(nil)
		x.run().synced()
		x.equal(slow, quick)

		const rounds = 50
		for i := range rounds {
			x.create("/c/new", "/c/new/x")
			x.do(backend.SetData("/c/a", fmt.Append(nil, i), backend.AnyVersion))
			if i%10 == 0 {
				x.equal(quick)
			}
			x.delete("/c/new/x", "/c/new")
		}
		x.do(backend.Delete("/c/b", 0), backend.Create("/c/b", nil, backend.Persistent))
		x.equal(quick)
		late := x.reader(nil)
		x.equal(late)
		close(slowly)
		x.equal(slow, quick, late)
		// The slow reader received all changes in one batch, without the nodes that were
		// created and deleted in between.
		if slow.Batches != 2 || slow.Seen["/c/new"] != 0 || slow.Seen["/c/a"] != 2 || slow.Seen["/c/b"] != 3 {
			t.Errorf("the slow reader had %d batches, events %v", slow.Batches, slow.Seen)
		}
		if late.Batches != 1 || late.Counts[coord.NodeCreated] != 3 || len(late.Counts) != 1 {
			t.Errorf("the late reader had %d batches, of kinds %v", late.Batches, late.Counts)
		}
		if quick.Seen["/c/new"] < 2 {
			t.Errorf("the quick reader had events %v", quick.Seen)
		}
	})
}
