package coord_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zkservice"
)

func TestACacheFollowsEveryKindOfChange(t *testing.T) {
	onAll(t, func(w *world) {
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

func TestTheRootOfACacheMayComeAndGo(t *testing.T) {
	onAll(t, func(w *world) {
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
func TestACacheSeesARecreationWithEqualVersion(t *testing.T) {
	onAll(t, func(w *world) {
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

func TestACacheCatchesUpAfterLostContactAndLostSessions(t *testing.T) {
	onAll(t, func(w *world) {
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

func TestHowACacheEnds(t *testing.T) {
	onAll(t, func(w *world) {
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

// When a loop body returns, changes can be waiting and the client can be closed. The end comes
// first, in each loop.
func TestALoopOverEventsEndsBeforeItsNextBatchWhenItsClientIsClosed(t *testing.T) {
	onMemory(t, func(w *world) {
		const loops = 30
		x := w.caching("/c", nil, nil)
		x.create("/c")
		goOn := make(chan struct{})
		var turns [loops][]error
		var group sync.WaitGroup
		for i := range loops {
			group.Go(func() {
				for _, err := range x.k.Events(context.Background()) {
					turns[i] = append(turns[i], err)
					<-goOn
				}
			})
		}
		x.run().synced()
		w.Settle() // each loop has its first batch
		x.create("/c/a")
		x.equal()
		x.c.Close()
		close(goOn)
		group.Wait()
		for i, errs := range turns {
			if len(errs) != 2 || errs[0] != nil || !errors.Is(errs[1], coord.ErrClosed) {
				w.T.Errorf("loop %d: %v, want one batch and the end", i, errs)
			}
		}
	})
}

func TestACacheRefusesBadInput(t *testing.T) {
	onMemories(t, func(w *world) {
		t := w.T
		c := coordtest.Open(t, coordtest.Ruled(w.Link("a")), nil)
		for _, path := range []string{"", "relative", "/a/", "/a//b", "/a\x00", "/_coord", "/zookeeper/quota"} {
			k := coord.NewCache(c, path, nil)
			coordtest.WantErr(t, k.Run(t.Context()), coord.ErrBadPath)
			turns := 0
			for batch, err := range k.Events(t.Context()) {
				coordtest.WantErr(t, err, coord.ErrBadPath)
				if turns++; batch != nil {
					t.Errorf("%v with an error", batch)
				}
			}
			if turns != 1 {
				t.Errorf("%d turns of a loop over a bad path", turns)
			}
		}
		coordtest.WantErr(t, coord.NewCache(c, "/a", &coord.CacheOptions{MaxNodes: -1}).Run(t.Context()), coord.ErrInvalid)
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

func TestACacheLeavesOutTheNodesThatTheServiceKeepsToItself(t *testing.T) {
	onMemories(t, func(w *world) {
		t, s := w.T, w.Session("writer")
		for _, path := range []string{"/a", "/zookeeper", "/zookeeper/quota"} {
			if _, err := s.Commit(t.Context(), backend.Create(path, nil, backend.Persistent)); err != nil {
				t.Fatal(err)
			}
		}
		c := coordtest.Open(t, coordtest.Ruled(w.Link("a")), nil)
		x := &caching{w: w, c: c, k: coord.NewCache(c, "/", nil), root: "/", done: make(chan struct{})}
		x.ctx, x.stop = context.WithCancel(context.Background())
		x.run().synced()
		if got := slices.Sorted(maps.Keys(coordtest.CopyOf(x.k, "/"))); !slices.Equal(got, []string{"/", "/a"}) {
			t.Errorf("the copy has %v", got)
		}
		x.stop()
		<-x.done
	})
}

func TestACacheOfTheRootHasTheWholeTree(t *testing.T) {
	onAll(t, func(w *world) {
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
			return coordtest.NodeState{Czxid: stat.Czxid, Mzxid: stat.Mzxid, Data: string(data)}
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

// On ZooKeeper a cache sends few requests as well. How many nodes a request reads depends on
// the replies before, and so on their order.
func TestACacheOfAServerTakesFewRequests(t *testing.T) {
	t.Parallel()
	w := &world{coordtest.OnServer(t, zookeeper.Options{})}
	x := w.caching("/c", nil, nil)
	x.create("/c")
	for i := range 400 {
		x.create(fmt.Sprint("/c/", i))
	}
	link := w.Service.(*zkservice.Service).ZooKeeper("cache")
	requests, contacts := link.Requests(), link.Contacts()
	// count returns the requests and the new contacts since the last call.
	count := func() (n, again int) {
		n, again = link.Requests()-requests, link.Contacts()-contacts
		requests, contacts = requests+n, contacts+again
		return n, again
	}
	x.run().synced()
	x.equal()
	// Sync, the tree, the data and the children of the root, and 400 reads in four batches;
	// as many again for each contact that was lost on the way.
	const most = 4 + 4*4
	first, again := count()
	if first < 8 || first > most*(1+again) {
		t.Errorf("%d requests for the first copy, with %d contacts lost on the way", first, again)
	}
	t.Logf("figure: the first copy of 401 nodes takes %d requests on ZooKeeper", first)
	for _, sc := range []struct {
		what string
		do   func()
		want int
	}{
		{"a change of data", func() { x.do(backend.SetData("/c/0", nil, -1)) }, 1},
		{"the creation of a node", func() { x.create("/c/new") }, 1},
		{"its deletion", func() { x.delete("/c/new") }, 0},
		{"the creation of an ephemeral node", func() { x.do(backend.Create("/c/e", nil, backend.Ephemeral)) }, 1},
		{"its deletion", func() { x.delete("/c/e") }, 0},
	} {
		sc.do()
		x.equal()
		if n, again := count(); n < sc.want || n > sc.want+most*again {
			t.Errorf("%s takes %d requests, want %d, and up to %d for each of %d new contacts", sc.what, n, sc.want, most, again)
		}
	}
}

// A watch can fire before the reply to its read shows another node. It must not be registered
// again: it would keep that node, with its data, until the next reconnection.
func TestAFiredWatchIsNotKept(t *testing.T) {
	onMemories(t, func(w *world) {
		var before, after coordtest.Nth
		x := w.caching("/c", nil, &backendtest.Hooks{Before: before.Before, After: after.After})
		data := make([]byte, 64<<10)
		x.create("/c")
		x.do(backend.Create("/c/e", data, backend.Ephemeral))
		x.run().synced()
		x.equal()
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		cycle := func() {
			before.Arm(1, at("get", "/c/e"), func(context.Context, backendtest.Call, error) error {
				x.delete("/c/e")
				x.do(backend.Create("/c/e", data, backend.Ephemeral))
				time.Sleep(time.Millisecond)
				return nil
			})
			after.Arm(1, at("get", "/c/e"), func(_ context.Context, _ backendtest.Call, err error) error {
				x.do(backend.SetData("/c/e", data, backend.AnyVersion))
				time.Sleep(time.Millisecond)
				return err
			})
			x.do(backend.SetData("/c/e", data, backend.AnyVersion))
			w.Settle()
			time.Sleep(10 * time.Millisecond)
			x.equal()
		}
		for range 5 {
			cycle()
		}
		was := heap()
		for range 100 {
			cycle()
		}
		grown := heap() - was
		w.T.Logf("100 changes: heap grown by %d", grown)
		if grown > 1<<20 {
			w.T.Errorf("grown by %d", grown)
		}
	})
}

func TestACacheHasALimit(t *testing.T) {
	onAll(t, func(w *world) {
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
		coordtest.WantErr(t, coord.NewCache(x.c, "/c", &coord.CacheOptions{MaxNodes: 4}).Run(context.Background()), coord.ErrLimit)
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

// Nodes beyond the limit are not read.
func TestALimitHoldsDuringTheFirstRead(t *testing.T) {
	onMemories(t, func(w *world) {
		var mu sync.Mutex
		reads := 0
		x := w.caching("/c", &coord.CacheOptions{MaxNodes: 10}, &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if c.Op != "sync" {
				reads++
			}
			return nil
		}})
		x.create("/c")
		for i := range 1000 {
			x.create(fmt.Sprint("/c/", i))
		}
		coordtest.WantErr(w.T, x.k.Run(context.Background()), coord.ErrLimit)
		if n := x.k.Len(); n > 10 || reads > 40 {
			w.T.Errorf("%d nodes and %d reads with a limit of 10", n, reads)
		}
	})
}

// pace lets a reader continue once for each value sent on it, and always once it is closed.
type pace chan struct{}

func (p pace) wait() { <-p }

func TestReadersOfEventsAreIndependent(t *testing.T) {
	onAll(t, func(w *world) {
		t := w.T
		x := w.caching("/c", nil, nil)
		x.create("/c", "/c/a", "/c/b")
		slowly := make(pace)
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

// What is kept for a reader that does not read grows with the number of nodes, not with the
// number of changes.
func TestAReaderThatSleepsCostsNothingPerChange(t *testing.T) {
	onMemories(t, func(w *world) {
		x := w.caching("/c", nil, nil)
		x.create("/c")
		slowly := make(pace)
		f := x.reader(slowly.wait)
		x.run().synced()
		x.equal(f)
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		changes := 0
		churn := func(n int) {
			for range n {
				p := fmt.Sprintf("/c/some-name-of-some-length-%d", changes)
				changes++
				x.create(p)
				w.Settle()
				x.delete(p)
				w.Settle()
			}
		}
		churn(500)
		before := heap()
		churn(3000)
		grown := heap() - before
		w.T.Logf("figure: a reader that sleeps over %d nodes that come and go: the heap grows by %d bytes", 3000, grown)
		if grown > 150<<10 { // 50 bytes for each
			w.T.Errorf("the heap grows by %d bytes", grown)
		}
		close(slowly)
		x.equal(f)
		if len(f.Seen) != 1 {
			w.T.Errorf("events of %d paths", len(f.Seen))
		}
	})
}

func TestANodeOfACacheTakesLittleMemory(t *testing.T) {
	onMemory(t, func(w *world) {
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		const dirs, each, nodes = 100, 99, 1 + 100*100
		x := w.caching("/c", nil, nil)
		x.create("/c")
		data := []byte("0123456789abcdef")
		own := 0 // bytes of data and paths
		for i := range dirs {
			dir := fmt.Sprintf("/c/%02d", i)
			ops := []backend.Op{backend.Create(dir, data, backend.Persistent)}
			for k := range each {
				ops = append(ops, backend.Create(fmt.Sprintf("%s/%08d", dir, k), data, backend.Persistent))
			}
			for _, op := range ops {
				own += len(op.Path) + len(op.Data)
			}
			x.do(ops...)
		}
		was := heap()
		x.run().synced()
		w.Settle()
		grown := heap() - was
		if n := x.k.Len(); n != nodes {
			w.T.Errorf("%d nodes, want %d", n, nodes)
		}
		a := (grown - int64(own)) / nodes
		w.T.Logf("figure: a node of a cache of %d takes %d bytes of heap, without its data and path", nodes, a)
		if a > 500 {
			w.T.Errorf("%d bytes a node", a)
		}
	})
}

// A loop body may end the loop, use the cache or take its time: it blocks neither the cache nor
// other readers.
func TestTheBodyOfALoopOverEventsBlocksNothing(t *testing.T) {
	onMemories(t, func(w *world) {
		t := w.T
		x := w.caching("/c", nil, nil)
		x.create("/c", "/c/a")
		x.run().synced()
		x.equal()
		for batch, err := range x.k.Events(t.Context()) {
			if err != nil || len(batch) != 2 {
				t.Errorf("%v, %v", batch, err)
			}
			x.create("/c/b")
			x.equal() // while the loop body runs
			for range x.k.Walk("/c") {
				x.k.Get("/c/a")
				x.k.Children("/c")
			}
			for inner, err := range x.k.Events(t.Context()) {
				if err != nil || len(inner) != 3 {
					t.Errorf("inside: %v, %v", inner, err)
				}
				break
			}
			break
		}
	})
}

func TestACacheTakesFewRequests(t *testing.T) {
	onMemories(t, func(w *world) {
		t := w.T
		var mu sync.Mutex
		reads := make(map[string]int)
		flying, most := 0, 0
		count := func() (n int) {
			w.Settle()
			mu.Lock()
			defer mu.Unlock()
			for op, k := range reads {
				if op != "sync" {
					n += k
				}
			}
			clear(reads)
			return n
		}
		x := w.caching("/c", nil, &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				mu.Lock()
				defer mu.Unlock()
				reads[c.Op]++
				flying++
				most = max(most, flying)
				return nil
			},
			After: func(_ context.Context, _ backendtest.Call, err error) error {
				mu.Lock()
				defer mu.Unlock()
				flying--
				return err
			},
		})
		x.create("/c")
		const persistent, ephemeral = 300, 100
		for i := range persistent {
			x.create(fmt.Sprint("/c/", i))
		}
		for i := range ephemeral {
			x.do(backend.Create(fmt.Sprint("/c/e", i), nil, backend.Ephemeral))
		}
		link := w.Service.(coordtest.MemoryService).Store.Link("cache")
		link.SetLatency(10 * time.Millisecond)
		began := time.Now()
		x.run().synced()
		took := time.Since(began)
		link.SetLatency(0)
		// Without trees: two reads for each node that can have children. With them: one watch,
		// one read of the data of each node, and one list, as no other node has children.
		want, wantMost := 2*(persistent+1)+ephemeral, 32
		cost := struct{ change, creation, deletion, ephemeral int }{1, 3, 1, 2}
		if !w.Without.Has(backend.Trees) {
			want = 1 + (1 + persistent + ephemeral) + 1
			cost.creation, cost.deletion, cost.ephemeral = 1, 0, 1
		}
		if !w.Without.Has(backend.Batches) {
			want, wantMost = 1+2+(persistent+ephemeral+127)/128, 4
		}
		if n := count(); n != want {
			t.Errorf("%d requests for the first copy, want %d", n, want)
		}
		if most != wantMost {
			t.Errorf("%d requests under way at once, want %d", most, wantMost)
		}
		for _, sc := range []struct {
			what string
			do   func()
			most int
		}{
			{"a change of data", func() { x.do(backend.SetData("/c/0", nil, -1)) }, cost.change},
			{"the creation of a node", func() { x.create("/c/new") }, cost.creation},
			{"its deletion", func() { x.delete("/c/new") }, cost.deletion},
			{"the creation of an ephemeral node", func() { x.do(backend.Create("/c/e", nil, backend.Ephemeral)) }, cost.ephemeral},
			{"its deletion", func() { x.delete("/c/e") }, cost.deletion},
		} {
			sc.do()
			x.equal()
			if n := count(); n != sc.most {
				t.Errorf("%s takes %d requests, want %d", sc.what, n, sc.most)
			}
		}
		w.Link("cache").Partition()
		w.Link("cache").Heal()
		n := count()
		// At most the reads that were under way are repeated.
		if n < want || n > want+32 {
			t.Errorf("%d requests after a reconnection, want %d", n, want)
		}
		t.Logf("figure: the first copy of %d nodes over a link with 10 ms takes %v, %d requests at a time", persistent+ephemeral+1, took, most)
	})
}
