package recipetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// backlog returns the number of items of the tests of a backlog: COORD_BACKLOG, or a few thousand.
func (w *world) backlog() int {
	w.T.Helper()
	text := os.Getenv("COORD_BACKLOG")
	if text == "" {
		return 2_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		w.T.Fatalf("COORD_BACKLOG is %q", text)
	}
	return n
}

// heap returns the bytes of reachable objects of this process.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// serversMemory returns the resident memory, in bytes, of the processes that this one has started, and of those that they have
// started: the servers of a real service. It is 0 where the system does not tell.
func serversMemory() (sum int64) {
	parents := make(map[int]int)
	resident := make(map[int]int64)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		if len(fields) < 22 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		parents[pid], _ = strconv.Atoi(string(fields[1]))
		pages, _ := strconv.ParseInt(string(fields[21]), 10, 64)
		resident[pid] = pages * int64(os.Getpagesize())
	}
	for pid, n := range resident {
		for p := parents[pid]; p > 0; p = parents[p] {
			if p == os.Getpid() {
				sum += n
				break
			}
		}
	}
	return sum
}

// putOffAll puts n items at the tail, numbered from first on if the size of the buckets is small, and puts them off for d.
func (w *world) putOffAll(name string, size, first, n int, d time.Duration) {
	w.T.Helper()
	q := w.hookedQueue(name, nil, &coord.QueueOptions[int]{Prefetch: 128})
	*coordtest.Inside(&q.Consumer).BucketSize = size
	if vs := make([]int, n); size > 100 {
		if _, err := q.PutAll(context.Background(), vs...); err != nil {
			w.T.Fatal(err)
		}
	} else { // since a PutAll of so few fills one bucket
		mustPut(w.T, q, first, first+n-1)
	}
	var held []*coord.Item[int]
	for it, err := range q.All(context.Background()) {
		if err != nil {
			w.T.Fatal(err)
		}
		if held = append(held, it); len(held) == n {
			break
		}
	}
	for _, it := range held {
		w.must(it.Nack(d))
	}
}

// A backlog is put, counted, taken, buried and put back, and each item comes once. With -v the test prints the requests
// and rates. Those of docs/sizing.md are with COORD_BACKLOG=1000000.
func (on queueTests) ABacklogIsPutTakenAndRedriven(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		n := w.backlog()
		figure := func(what string, calls int, took time.Duration, items int) {
			rate := "in fake time"
			if !w.Fake {
				rate = fmt.Sprintf("%v, %.0f a second", took.Round(time.Millisecond), float64(items)/took.Seconds())
			}
			w.T.Logf("figure: backlog of %d: %s: %.3f requests an item, %s", n, what, float64(calls)/float64(items), rate)
		}
		var r callCount
		p := coord.NewQueue(w.Open("producer", r.hooks()), "/q", &coord.QueueOptions[string]{Codec: coord.Text()})
		servers, own := serversMemory(), heap()
		r.reset()
		began := time.Now()
		const batch = 1024
		for first := 0; first < n; first += batch {
			vs := make([]string, min(batch, n-first))
			for i := range vs {
				vs[i] = fmt.Sprintf("%100d", first+i)
			}
			if ids, err := p.PutAll(ctx, vs...); err != nil || len(ids) != len(vs) {
				w.T.Fatalf("%d items put of %d, then %v", first+len(ids), n, err)
			}
		}
		figure("PutAll of 1,024 items of 100 bytes", r.reset(), time.Since(began), n)
		w.T.Logf("figure: backlog of %d: memory of the servers: %d bytes an item; of this process: %d", n, (serversMemory()-servers)/int64(n), (heap()-own)/int64(n))

		began = time.Now()
		st, err := p.Stats(ctx)
		if err != nil || st.Unread == 0 && st.Ready != n {
			w.T.Errorf("%+v, %v", st, err)
		}
		figure("Stats", r.reset(), time.Since(began), n)
		w.T.Logf("figure: backlog of %d: Stats: ready %d in %d nodes, %d not read, oldest %v", n, st.Ready, st.Buckets, st.Unread, st.Oldest)
		began = time.Now()
		if k, err := p.Len(ctx); k != n || err != nil {
			w.T.Error(k, err)
		}
		figure("Len", r.reset(), time.Since(began), n)

		// One by one, with the first items of the backlog.
		var c callCount
		client := w.Open("consumer", c.hooks())
		own = heap()
		q := coord.NewQueue(client, "/q", &coord.QueueOptions[string]{Codec: coord.Text()})
		ones := min(n/4, 2_000)
		c.reset()
		began = time.Now()
		for i := range ones {
			it, err := q.Take(ctx)
			if err != nil || it.Value != fmt.Sprintf("%100d", i) {
				w.T.Fatal(it, err)
			}
			w.must(it.Ack())
			if i == 0 {
				w.T.Logf("figure: backlog of %d: memory of a consumer with the names of a list: %d bytes", n, heap()-own)
			}
		}
		figure("Take and Ack one by one", c.reset(), time.Since(began), ones)

		// work handles some items, or a few more, and returns how many.
		work := func(what string, q *coord.Queue[string], items int, err error) int {
			w.T.Helper()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			var mu sync.Mutex
			seen := make(map[string]bool, items)
			c.reset()
			began := time.Now()
			if err := q.Work(ctx, 64, func(_ context.Context, it *coord.Item[string]) error {
				mu.Lock()
				defer mu.Unlock()
				if seen[it.ID] {
					w.T.Errorf("%s: item %s came twice", what, it.ID)
				}
				if seen[it.ID] = true; len(seen) == items {
					cancel()
				}
				return err
			}); err != nil || len(seen) < items {
				w.T.Fatalf("%s: %d items of %d, %v", what, len(seen), items, err)
			}
			figure(what, c.reset(), time.Since(began), len(seen))
			return len(seen)
		}
		failing := coord.NewQueue(client, "/q", &coord.QueueOptions[string]{Codec: coord.Text(), MaxAttempts: 1})
		work("Work with 64 handlers that fail, and MaxAttempts 1", failing, min(n/5, 20_000), errors.New("bad"))
		// Not all of them were handled: the item of a lost session is buried without its handler.
		dead, err := coord.NewQueue[int](w.Open("dead", nil), "/q/dead", nil).Len(ctx)
		w.must(err)
		if k := work("Work with 64 handlers", q, n-ones-dead, nil); k != n-ones-dead {
			w.T.Errorf("%d items handled, want %d", k, n-ones-dead)
		}
		c.reset()
		began = time.Now()
		if k, err := q.Redrive(ctx); k != dead || err != nil {
			w.T.Errorf("%d items moved, want %d: %v", k, dead, err)
		}
		figure("Redrive", c.reset(), time.Since(began), dead)
		work("Work after the Redrive", q, dead, nil)
		w.drained(&coord.NewQueue[int](w.Open("last", nil), "/q", nil).Consumer)
	})
}

// A backlog that is put off costs a consumer two walks, and the items behind it no more than others.
func (on queueTests) ABacklogThatIsPutOffIsPassedOver(t *testing.T) {
	on.each(t, func(w *world) {
		n := w.backlog()
		size := 256
		if n < 10_000 {
			size = 101 // so that there are many buckets
		}
		w.putOffAll("first", size, 1, n, 10*time.Hour)
		var r callCount
		q := w.hookedQueue("consumer", r.hooks(), nil)
		own := heap()
		for i := range 5 {
			mustPut(w.T, q, n+1, n+1)
			r.reset()
			began := time.Now()
			it, err := q.Take(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			mustAck(w.T, it)
			took := time.Since(began)
			calls := r.reset()
			w.T.Logf("figure: %d items that were put off: Take and Ack of new item %d: %d requests, %v", n, i, calls, took.Round(time.Millisecond))
			if i > 1 && calls > 15 { // the second walk still lists, to watch what it passes over
				w.T.Errorf("the new item %d costs %d requests", i, calls)
			}
		}
		w.T.Logf("figure: %d items that were put off: memory of a consumer: %.1f bytes an item", n, float64(heap()-own)/float64(n))
	})
}
