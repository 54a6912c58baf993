package recipetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zkservice"
)

// When a loop body returns, changes can be waiting and the client can be closed. The end comes
// first, in each loop.
func TestCache_ALoopOverEventsEndsBeforeItsNextBatchWhenItsClientIsClosed(t *testing.T) {
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

func TestCache_ACacheRefusesBadInput(t *testing.T) {
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

func TestCache_ACacheLeavesOutTheNodesThatTheServiceKeepsToItself(t *testing.T) {
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

// On ZooKeeper a cache sends few requests as well. How many nodes a request reads depends on
// the replies before, and so on their order.
func TestCache_ACacheOfAServerTakesFewRequests(t *testing.T) {
	t.Parallel()
	w := services.server(t)
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
func TestCache_AFiredWatchIsNotKept(t *testing.T) {
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

// Nodes beyond the limit are not read.
func TestCache_ALimitHoldsDuringTheFirstRead(t *testing.T) {
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

// The limit counts the nodes of the copy, also those that were counted before and are gone.
func TestCache_ALimitCountsTheNodesThatAreThere(t *testing.T) {
	for name, leave := range map[string]func(x *caching, h *holds){ // another node comes and goes
		"while it is read": func(x *caching, h *holds) {
			get := h.hold("get /c/b")
			x.create("/c/b")
			x.w.Settle() // the read is held back
			x.delete("/c/b")
			x.w.Settle() // the deletion is handled, if there is a watch that reports it
			get()
		},
		"without contact": func(x *caching, _ *holds) {
			x.create("/c/b")
			x.equal()
			x.w.Link("cache").Partition()
			x.delete("/c/b")
			x.w.Link("cache").Heal()
		},
	} {
		t.Run(name, func(t *testing.T) {
			onMemories(t, func(w *world) {
				var h holds
				x := w.caching("/c", &coord.CacheOptions{MaxNodes: 3}, &backendtest.Hooks{Before: h.before})
				x.create("/c", "/c/a")
				x.run().synced()
				x.equal()
				leave(x, &h)
				w.Settle()
				x.equal()
				x.create("/c/d")
				x.equal()
				x.create("/c/e")
				w.Settle()
				select {
				case <-x.done:
					coordtest.WantErr(w.T, x.err, coord.ErrLimit)
				default:
					w.T.Errorf("%d nodes with a limit of 3", x.k.Len())
				}
			})
		})
	}
}

// What is kept for a reader that does not read grows with the number of nodes, not with the
// number of changes.
func TestCache_AReaderThatSleepsCostsNothingPerChange(t *testing.T) {
	coordtest.CountsCost(t)
	onMemories(t, func(w *world) {
		x := w.caching("/c", nil, nil)
		x.create("/c")
		slowly := make(turns)
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

func TestCache_ANodeOfACacheTakesLittleMemory(t *testing.T) {
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
func TestCache_TheBodyOfALoopOverEventsBlocksNothing(t *testing.T) {
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

func TestCache_ACacheTakesFewRequests(t *testing.T) {
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
