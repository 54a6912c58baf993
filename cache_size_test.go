package coord_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

func TestACacheHasALimit(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		x := w.caching("/c", &coord.CacheOptions{Limit: 5}, nil)
		x.create("/c", "/c/a", "/c/b", "/c/b/1", "/c/b/2")
		x.run().synced()
		x.equal()
		x.delete("/c/a")
		x.equal()
		x.create("/c/d")
		x.equal()
		x.create("/c/e")
		<-x.done
		wantErr(t, x.err, coord.ErrLimit)
		if n := x.k.Len(); n != 5 {
			t.Errorf("%d nodes after the limit", n)
		}
		x.delete("/c/d", "/c/b/1", "/c/b/2")
		x.create("/c/f", "/c/f/1")
		wantErr(t, coord.NewCache(x.c, "/c", &coord.CacheOptions{Limit: 4}).Run(context.Background()), coord.ErrLimit)
		x.done = make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			defer close(x.done)
			x.err = x.k.Run(ctx)
		}()
		x.w.eventually("the next Run takes the copy up", func() bool { _, gone := x.k.Get("/c/d"); _, come := x.k.Get("/c/e"); return !gone && come })
		x.equal()
		cancel()
		<-x.done
	})
}

// What is beyond the limit is not read.
func TestALimitIsKeptOnTheWay(t *testing.T) {
	onMemory(t, func(w *world) {
		var mu sync.Mutex
		reads := 0
		x := w.caching("/c", &coord.CacheOptions{Limit: 10}, &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
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
		wantErr(w.t, x.k.Run(context.Background()), coord.ErrLimit)
		if n := x.k.Len(); n > 10 || reads > 40 {
			w.t.Errorf("%d nodes and %d reads with a limit of 10", n, reads)
		}
	})
}

// pace lets a reader go on once for each value sent on it, or always once closed.
type pace chan struct{}

func (p pace) wait() { <-p }

func TestReadersOfEventsAreIndependent(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
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
		// The slow one had one batch of all, with nothing of what came and went.
		if slow.batches != 2 || slow.seen["/c/new"] != 0 || slow.seen["/c/a"] != 2 || slow.seen["/c/b"] != 3 {
			t.Errorf("the slow reader had %d batches, events %v", slow.batches, slow.seen)
		}
		if late.batches != 1 || late.counts[coord.NodeCreated] != 3 || len(late.counts) != 1 {
			t.Errorf("the late reader had %d batches, of kinds %v", late.batches, late.counts)
		}
		if quick.seen["/c/new"] < 2 {
			t.Errorf("the quick reader had events %v", quick.seen)
		}
	})
}

// What is kept for a reader that does not read is bounded by the nodes, not by the
// changes.
func TestAReaderThatSleepsCostsNothingPerChange(t *testing.T) {
	onMemory(t, func(w *world) {
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
				w.settle()
				x.delete(p)
				w.settle()
			}
		}
		churn(500)
		before := heap()
		churn(3000)
		grown := heap() - before
		w.t.Logf("figure: a reader that sleeps over %d nodes that come and go: the heap grows by %d bytes", 3000, grown)
		if grown > 150<<10 { // 50 bytes for each
			w.t.Errorf("the heap grows by %d bytes", grown)
		}
		close(slowly)
		x.equal(f)
		if len(f.seen) != 1 {
			w.t.Errorf("events of %d paths", len(f.seen))
		}
	})
}

// A body that ends the loop, or uses the cache, or takes its time holds nobody up.
func TestTheBodyOfALoopOverEventsIsFree(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.t
		x := w.caching("/c", nil, nil)
		x.create("/c", "/c/a")
		x.run().synced()
		x.equal()
		for batch, err := range x.k.Events(t.Context()) {
			if err != nil || len(batch) != 2 {
				t.Errorf("%v, %v", batch, err)
			}
			x.create("/c/b")
			x.equal() // while this turn goes on
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
	onMemory(t, func(w *world) {
		t := w.t
		var mu sync.Mutex
		reads := make(map[string]int)
		flying, most := 0, 0
		count := func() (n int) {
			w.settle()
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
		link := w.Service.(memoryService).Store.Link("cache")
		link.SetLatency(10 * time.Millisecond)
		began := time.Now()
		x.run().synced()
		took := time.Since(began)
		link.SetLatency(0)
		want := 2*(persistent+1) + ephemeral
		if n := count(); n != want {
			t.Errorf("%d requests for the first copy, want %d", n, want)
		}
		if most != 32 {
			t.Errorf("%d requests under way at once, want 32", most)
		}
		for _, sc := range []struct {
			what string
			do   func()
			most int
		}{
			{"a change of data", func() { x.do(backend.SetData("/c/0", nil, -1)) }, 1},
			{"the creation of a node", func() { x.create("/c/new") }, 3},
			{"its deletion", func() { x.delete("/c/new") }, 1},
			{"the creation of an ephemeral node", func() { x.do(backend.Create("/c/e", nil, backend.Ephemeral)) }, 2},
			{"its deletion", func() { x.delete("/c/e") }, 1},
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
		// At the most the reads that were under way are made twice.
		if n < want || n > want+32 {
			t.Errorf("%d requests after a reconnection, want %d", n, want)
		}
		t.Logf("figure: the first copy of %d nodes over a link with 10 ms takes %v, 32 requests at a time", persistent+ephemeral+1, took)
	})
}
