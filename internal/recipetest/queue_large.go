package recipetest

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/layout"
)

// queueLargeTests are tests of puts of many items on each service.
type queueLargeTests struct{ Services }

// numbers returns the numbers from first to last.
func numbers(first, last int) (all []int) {
	for n := first; n <= last; n++ {
		all = append(all, n)
	}
	return all
}

// stored returns the ids of the items of the queue at /q in order, and how many there are in each bucket.
func (w *world) stored() (ids []string, sizes []int) {
	w.T.Helper()
	for _, b := range layout.Buckets("/q/items", w.Children("/q/items")) {
		entries := layout.ParseBucket(b.Path, w.Children(b.Path), 0).Items
		sizes = append(sizes, len(entries))
		for _, e := range entries {
			ids = append(ids, e.ID)
		}
	}
	return ids, sizes
}

// The values of a large put are in its order, whatever other clients put at the same time, and buckets keep their size.
func (on queueLargeTests) ALargePutKeepsItsOrderAndTheSizeOfBuckets(t *testing.T) {
	on.each(t, func(w *world) {
		const size, each = 60, 400
		var all [2][]string
		var wg sync.WaitGroup
		for i, name := range []string{"a", "b"} {
			q := w.queue(name, nil)
			*coordtest.Inside(&q.Consumer).BucketSize = size
			wg.Go(func() {
				var err error
				if all[i], err = q.PutAll(context.Background(), numbers(1, each)...); err != nil || len(all[i]) != each {
					w.T.Errorf("%d of %d values were put: %v", len(all[i]), each, err)
				}
			})
		}
		wg.Wait()
		ids, sizes := w.stored()
		if len(ids) != 2*each || slices.Max(sizes) > size+2*128 {
			w.T.Errorf("%d items, in buckets of %v", len(ids), sizes)
		}
		for i := range all {
			others := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !slices.Contains(all[i], id) })
			if !slices.Equal(others, all[i]) {
				w.T.Errorf("the values of put %d are not in its order", i)
			}
		}
		q := w.queue("c", &coord.QueueOptions[int]{Prefetch: 10})
		for n := range 5 {
			it, err := q.Take(context.Background())
			if err != nil || it.ID != ids[n] {
				w.T.Fatalf("took %+v, want item %s: %v", it, ids[n], err)
			}
			mustAck(w.T, it)
		}
	})
}
