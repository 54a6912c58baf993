//go:build linux

package faulttest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/zkproxy"
)

// takeCost is the cost of items from their Take to the end of their Ack, at one length of the
// queue.
type takeCost struct {
	length            int
	took              figures[time.Duration] // time of Take alone
	requests          float64                // requests for each item
	prefetched        float64                // requests for each item, with a prefetch of 64
	largest           int64                  // the largest frame from the server, in bytes
	putting, fetching time.Duration          // time for each item
}

func costOfTakes(t *testing.T, length int) takeCost {
	t.Helper()
	const n, prefetch = 64, 64
	s := newService(t)
	x := newContender(t, s, "a")
	path := fmt.Sprint("/queues/of-", length)
	q := coord.NewQueue(x.c, path, &coord.QueueOptions[string]{Codec: coord.Text()})
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	values := make([]string, length)
	for i := range values {
		values[i] = fmt.Sprintf("%8d%s", i, strings.Repeat(".", 192))
	}
	began := time.Now()
	if ids, err := q.PutAll(ctx, values...); err != nil || len(ids) != length {
		t.Fatalf("%d of %d put: %v", len(ids), length, err)
	}
	c := takeCost{length: length, putting: time.Since(began) / time.Duration(length)}

	// A client that was not open when the items were put.
	y := newContender(t, s, "b")
	var largest atomic.Int64
	y.link.Proxies[0].OnFrame(func(f zkproxy.Frame) {
		if f.Dir == zkproxy.Down && int64(f.Size) > largest.Load() {
			largest.Store(int64(f.Size)) // the frames of one direction come one by one
		}
	})
	q = coord.NewQueue(y.c, path, &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: prefetch})
	check := func(i int, it *coord.Item[string]) {
		if it.Value != values[i] || it.Attempt != 1 {
			t.Fatalf("item %d is %.8s, attempt %d", i, it.Value, it.Attempt)
		}
		if err := it.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	before := y.link.Requests()
	for i := range n {
		began := time.Now()
		it, err := q.Take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		c.took.add(time.Since(began))
		check(i, it)
	}
	c.requests = float64(y.link.Requests()-before) / n

	// At the end of 100 items fewer are left than a prefetch.
	more := min(4*prefetch, length-n)
	i := n
	before, began = y.link.Requests(), time.Now()
	for it, err := range q.All(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		check(i, it)
		if i++; i == n+more {
			break
		}
	}
	c.prefetched = float64(y.link.Requests()-before) / float64(more)
	c.fetching = time.Since(began) / time.Duration(more)
	c.largest = largest.Load()
	return c
}

// A take reads the list of one bucket only. It stays far below a client's usual limit for a
// packet, 1 MB.
func TestATakeCostsTheSameHoweverManyItemsWait(t *testing.T) {
	var least, most takeCost
	lengths := []int{100, 10_000}
	if long() {
		lengths = append(lengths, 50_000)
	}
	for i, length := range lengths {
		c := costOfTakes(t, length)
		t.Logf("figure: %d items of 200 bytes in a queue: a Take %v, with its Ack %.2f requests; with prefetch 64, Take and Ack %v and %.2f requests; PutAll %v an item; largest answer %d bytes",
			length, c.took, c.requests, c.fetching.Round(time.Microsecond), c.prefetched, c.putting.Round(time.Microsecond), c.largest)
		if i == 0 {
			least, most = c, c
		}
		if c.requests < least.requests {
			least = c
		}
		if c.requests > most.requests {
			most = c
		}
		// A list, a claim, a read and an Ack; the list of buckets once. A longer hold has a
		// watch armed, and on a busy machine many holds are longer. With prefetch the items of
		// a claim are read in one request.
		if c.requests < 2 || c.requests > 5.5 || c.prefetched < 1 || c.prefetched > 2.5 {
			t.Errorf("%d items: %.2f requests an item, %.2f with prefetch; want 4 and 1.5, and 1 more at most", length, c.requests, c.prefetched)
		}
		if c.largest == 0 || c.largest > 1<<20/4 {
			t.Errorf("%d items: an answer of %d bytes", length, c.largest)
		}
	}
	if most.requests > 2*least.requests {
		t.Errorf("%.2f requests an item at %d items, %.2f at %d", most.requests, most.length, least.requests, least.length)
	}
}
