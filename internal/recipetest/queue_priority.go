package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func (w *world) priorityQueue(name string, hooks *backendtest.Hooks) *coord.PriorityQueue[int] {
	q := coord.NewPriorityQueue[int](w.Open(name, hooks), "/q", nil)
	*coordtest.Inside(&q.Consumer).BucketSize = 4
	return q
}

func mustPutAt(t *testing.T, q *coord.PriorityQueue[int], priority int64, vs ...int) {
	t.Helper()
	if _, err := q.PutAll(context.Background(), priority, vs...); err != nil {
		t.Fatal(err)
	}
}

// queuePriorityTests are tests of PriorityQueue on each service.
type queuePriorityTests struct{ Services }

func (on queuePriorityTests) ThePriorityQueueTakesTheLowestFirst(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, b := w.priorityQueue("a", nil), w.priorityQueue("b", nil)
		mustPutAt(w.T, a, 5, 51, 52)
		mustPutAt(w.T, b, math.MaxInt64, 99)
		for n := 53; n <= 59; n++ { // across buckets
			mustPutAt(w.T, b, 5, n)
		}
		mustPutAt(w.T, a, -3, 1, 2)
		mustPutAt(w.T, b, math.MinInt64, 0)
		if _, err := a.Put(ctx, -3, 3); err != nil {
			w.T.Fatal(err)
		}
		mustAck(w.T, mustTake(w.T, a, 0))
		it := mustTake(w.T, b, 1)
		mustAck(w.T, mustTake(w.T, a, 2))
		if err := it.Nack(0); err != nil { // it keeps its place
			w.T.Fatal(err)
		}
		mustAck(w.T, mustTake(w.T, a, 1))
		mustAck(w.T, mustTake(w.T, a, 3))
		mustAck(w.T, mustTake(w.T, a, 51))
		mustPutAt(w.T, b, -3, 4) // a priority whose buckets were removed is used again
		mustAck(w.T, mustTake(w.T, a, 4))
		for n := 52; n <= 59; n++ {
			mustAck(w.T, mustTake(w.T, b, n))
		}
		mustAck(w.T, mustTake(w.T, b, 99))
		w.drained(&a.Consumer)
	})
}

// A Take lists the buckets and the first of them, and a third one only if the first is another one
// than at the Take before.
func (on queuePriorityTests) ATakeByPriorityListsTwoNodes(t *testing.T) {
	on.each(t, func(w *world) {
		var mu sync.Mutex
		var calls []string
		a := w.priorityQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if c.Op != "get" || !strings.Contains(c.Path, "/m-") { // the watch on a claim, some time after the grant
				calls = append(calls, c.Op)
			}
			return nil
		}})
		*coordtest.Inside(&a.Consumer).BucketSize = 100
		b := w.priorityQueue("b", nil)
		*coordtest.Inside(&b.Consumer).BucketSize = 100
		mustPutAt(w.T, b, 3, 31, 32, 33, 34, 35)
		costs := func(value int, want ...string) {
			mu.Lock()
			calls = nil
			mu.Unlock()
			it := mustTake(w.T, a, value)
			mu.Lock()
			slices.Sort(calls)
			if !slices.Equal(calls, want) {
				w.T.Errorf("to take %d costs the calls %v, want %v", value, calls, want)
			}
			mu.Unlock()
			mustAck(w.T, it)
		}
		mustAck(w.T, mustTake(w.T, a, 31))
		usual := []string{"children", "children", "commit", "get", "sync"}
		costs(32, usual...)
		costs(33, usual...)
		mustPutAt(w.T, b, 2, 21, 22, 23)
		costs(21, append([]string{"children"}, usual...)...)
		costs(22, usual...)
		costs(23, usual...)
		mustAck(w.T, mustTake(w.T, a, 34)) // which removes the bucket of 2
		costs(35, usual...)
	})
}

func (on queuePriorityTests) PrioritiesThatAreNotUsedLeaveNoNodes(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.priorityQueue("a", nil)
		for n := range 60 {
			mustPutAt(w.T, q, int64(n*n), n)
		}
		for n := range 60 {
			mustAck(w.T, mustTake(w.T, q, n))
		}
		w.drained(&q.Consumer)
	})
}

// Producers and consumers of few priorities work at the same time: no item is lost, and none is
// delivered twice.
func (on queuePriorityTests) ThePriorityQueueUnderLoad(t *testing.T) {
	on.each(t, func(w *world) {
		const producers, consumers, each = 3, 3, 30
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var mu sync.Mutex
		seen := make(map[int]bool)
		all := make(chan struct{})
		var wg sync.WaitGroup
		for i := range consumers {
			q := w.priorityQueue(fmt.Sprint("c", i), nil)
			wg.Go(func() {
				for it, err := range q.All(ctx) {
					if err != nil {
						w.T.Error(err)
						return
					}
					mu.Lock()
					if seen[it.Value] || it.Attempt != 1 {
						w.T.Errorf("%d came twice", it.Value)
					}
					seen[it.Value] = true
					if len(seen) == producers*each {
						close(all)
					}
					mu.Unlock()
					if err := it.Ack(); err != nil {
						w.T.Error(err)
					}
				}
			})
		}
		for i := range producers {
			q := w.priorityQueue(fmt.Sprint("p", i), nil)
			wg.Go(func() {
				for n := range each {
					if _, err := q.Put(ctx, int64(n%4), i*1000+n); err != nil {
						w.T.Error(err)
					}
				}
			})
		}
		select {
		case <-all:
		case <-time.After(60 * time.Second):
			w.T.Error("not all was delivered")
		}
		cancel()
		wg.Wait()
		w.drained(&w.priorityQueue("x", nil).Consumer)
	})
}

func (w *world) delayQueue(name string) *coord.DelayQueue[int] {
	q := coord.NewDelayQueue[int](w.Open(name, nil), "/q", nil)
	*coordtest.Inside(&q.Consumer).BucketSize = 4
	return q
}

func (on queuePriorityTests) TheDelayQueueGivesNothingBeforeItIsDue(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, b := w.delayQueue("a"), w.delayQueue("b")
		start := time.Now()
		late, soon := start.Add(900*time.Millisecond), start.Add(400*time.Millisecond)
		if !w.Fake { // the puts below must be over by then
			late, soon = start.Add(13*time.Second), start.Add(12*time.Second)
		}
		if _, err := a.Put(ctx, late, 9); err != nil {
			w.T.Fatal(err)
		}
		if _, err := a.Put(ctx, start.Add(24*time.Hour), 24); err != nil {
			w.T.Fatal(err)
		}
		_, err := b.TryTake(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		got := make(chan *coord.Item[int])
		n := w.Waits.Load()
		go func() {
			for range 3 {
				it, err := b.Take(ctx)
				if err != nil {
					w.T.Error(err)
				}
				got <- it
			}
		}()
		w.Eventually("the Take waits", func() bool { return w.Waits.Load() > n })
		// An item that is due sooner overtakes, and one that is due already.
		if _, err := a.Put(ctx, soon, 4); err != nil {
			w.T.Fatal(err)
		}
		if _, err := a.Put(ctx, start.Add(-time.Hour), 0); err != nil {
			w.T.Fatal(err)
		}
		for _, want := range []struct {
			n   int
			due time.Time
		}{{0, start}, {4, soon}, {9, late}} {
			it := <-got
			now := time.Now()
			if it.Value != want.n || now.UnixMilli() < want.due.UnixMilli() {
				w.T.Errorf("took %d at %v, want %d at %v", it.Value, now.Sub(start), want.n, want.due.Sub(start))
			}
			if w.Fake && want.n > 0 && now.Sub(want.due) > 2*time.Millisecond {
				w.T.Errorf("took %d %v late", it.Value, now.Sub(want.due))
			}
			mustAck(w.T, it)
		}
		if n, err := a.Len(ctx); n != 1 || err != nil {
			w.T.Errorf("%d left, %v, want the one of tomorrow", n, err)
		}
		if n, err := a.Purge(ctx); n != 1 || err != nil {
			w.T.Errorf("purged %d, %v", n, err)
		}
	})
}

func mustTakeWithin(t *testing.T, q *coord.DelayQueue[int], want int, d time.Duration) *coord.Item[int] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	it, err := q.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if it.Value != want {
		t.Fatalf("took %d, want %d", it.Value, want)
	}
	return it
}

func (on queuePriorityTests) PurgeRemovesMinutesThatAreNotDue(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewDelayQueue[int](w.Open("a", nil), "/q", nil)
		for n := range 50 {
			if _, err := q.Put(ctx, time.Now().Add(time.Duration(n+10)*time.Hour), n); err != nil {
				w.T.Fatal(err)
			}
		}
		if n, err := q.Purge(ctx); n != 50 || err != nil {
			w.T.Fatal(n, err)
		}
		if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
			w.T.Fatal(err)
		}
		if n := len(w.Children("/q/items")); n > 2 {
			w.T.Errorf("%d empty buckets stay until they are due", n)
		}
	})
}

func (on queuePriorityTests) AnItemThatWasDueLongAgoIsDue(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewDelayQueue[int](w.Open("a", nil), "/q", nil)
		for _, at := range []time.Time{{}, time.Unix(0, 0), time.Date(-290_000_000, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(-36028797018963968, 0)} {
			if _, err := q.Put(ctx, at, 1); err != nil {
				w.T.Error(err)
			}
			if it, err := q.TryTake(ctx); err != nil {
				w.T.Errorf("due in %d: %v", at.Year(), err)
			} else {
				mustAck(w.T, it)
			}
		}
	})
}

func (on queuePriorityTests) ItemsThatWereDueLongAgoAreTakenInOrder(t *testing.T) {
	on.each(t, func(w *world) {
		q := coord.NewDelayQueue[int](w.Open("a", nil), "/q", nil)
		base := time.Date(1969, 12, 31, 23, 58, 30, 0, time.UTC)
		for _, n := range []int{150, 3, 20, 1, 200, 2} { // seconds, across minutes and 1970
			if _, err := q.Put(context.Background(), base.Add(time.Duration(n)*time.Second), n); err != nil {
				w.T.Fatal(err)
			}
		}
		if _, err := q.Put(context.Background(), time.Time{}, 0); err != nil {
			w.T.Fatal(err)
		}
		for _, n := range []int{0, 1, 2, 3, 20, 150, 200} {
			mustAck(w.T, mustTake(w.T, q, n))
		}
		w.drained(&q.Consumer)
	})
}

// fairQueue is priorityQueue with FairEvery.
func (w *world) fairQueue(name string, hooks *backendtest.Hooks, fairEvery, bucketSize int) *coord.PriorityQueue[int] {
	q := coord.NewPriorityQueue(w.Open(name, hooks), "/q", &coord.QueueOptions[int]{FairEvery: fairEvery})
	*coordtest.Inside(&q.Consumer).BucketSize = bucketSize
	return q
}

// mustTakeNext takes and acknowledges the next item.
func mustTakeNext(t *testing.T, q *coord.PriorityQueue[int]) int {
	t.Helper()
	it, err := q.TryTake(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	mustAck(t, it)
	return it.Value
}

// One of three takes is a turn of the other priorities, although there are always items with a lower number.
func (on queuePriorityTests) NoPriorityStarvesWithFairEvery(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.fairQueue("a", nil, 3, 100)
		for priority := 1; priority <= 3; priority++ {
			vs := make([]int, 90)
			for i := range vs {
				vs[i] = priority*1000 + i
			}
			mustPutAt(w.T, q, int64(priority)-2, vs...)
		}
		next := map[int]int{1: 1000, 2: 2000, 3: 3000} // by priority: in the order in which they were put
		first := 0
		for n := 1; n <= 84; n++ {
			v := mustTakeNext(w.T, q)
			if v != next[v/1000] {
				w.T.Fatalf("take %d: %d, want %d", n, v, next[v/1000])
			}
			next[v/1000]++
			if v >= 2000 && first == 0 {
				first = n
			}
			if turn := first > 0 && (n-first)%3 == 0; turn != (v >= 2000) || first == 0 && n > 4 {
				w.T.Fatalf("take %d: %d; the first turn was %d", n, v, first)
			}
		}
		if next[2] == 2000 || next[3] == 3000 {
			w.T.Error("the turns leave a priority out")
		}
	})
}

// Turns deliver each item once, keep the order within a priority, and leave no empty buckets.
func (on queuePriorityTests) TurnsKeepTheOrderWithinAPriority(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.fairQueue("a", nil, 2, 4), w.priorityQueue("b", nil)
		const each = 24
		for n := range each {
			for priority := range 3 {
				mustPutAt(w.T, b, int64(priority), 100*priority+n)
			}
		}
		next := []int{0, 100, 200}
		others := 0 // before the items of the first priority are used up
		for range 3 * each {
			v := mustTakeNext(w.T, a)
			if v != next[v/100] {
				w.T.Fatalf("%d, want %d", v, next[v/100])
			}
			if next[v/100]++; v >= 100 && next[0] < each {
				others++
			}
		}
		if others < 12 {
			w.T.Errorf("the turns have taken %d items, but two full buckets hold 8", others)
		}
		_, err := a.TryTake(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		w.drained(&a.Consumer)
	})
}

// A turn costs one list more than another take.
func (on queuePriorityTests) ATurnCostsOneListMore(t *testing.T) {
	on.each(t, func(w *world) {
		var mu sync.Mutex
		var calls []string
		a := w.fairQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if c.Op != "get" || !strings.Contains(c.Path, "/m-") { // the watch on a claim, some time after the grant
				calls = append(calls, c.Op)
			}
			return nil
		}}, 2, 100)
		mustPutAt(w.T, a, 1, 11, 12, 13, 14, 15, 16, 17, 18)
		mustPutAt(w.T, a, 2, 21, 22, 23, 24, 25, 26, 27, 28)
		mustTakeNext(w.T, a)
		mustTakeNext(w.T, a)
		for range 8 {
			mu.Lock()
			calls = nil
			mu.Unlock()
			it, err := a.Take(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			want := []string{"children", "children", "commit", "get", "sync"}
			if it.Value > 20 {
				want = append([]string{"children"}, want...)
			}
			mu.Lock()
			slices.Sort(calls)
			if !slices.Equal(calls, want) {
				w.T.Errorf("to take %d costs the calls %v, want %v", it.Value, calls, want)
			}
			mu.Unlock()
			mustAck(w.T, it)
		}
	})
}
