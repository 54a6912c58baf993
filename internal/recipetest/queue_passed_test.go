package recipetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// deaf is a backend that reports no change of a bucket, as a service whose events are late.
type deaf struct{ backend.Backend }

type deafSession struct{ backend.Session }

func (d deaf) Open(ctx context.Context) (backend.Session, error) {
	s, err := d.Backend.Open(ctx)
	return deafSession{s}, err
}

func (s deafSession) Children(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
	if strings.Contains(path, "/items/b-") {
		w = nil
	}
	return s.Session.Children(ctx, path, w)
}

func (w *world) deafQueue(name string) *coord.Queue[int] {
	w.T.Helper()
	q := coord.NewQueue[int](coordtest.Open(w.T, deaf{w.Link(name)}, nil), "/q", nil)
	*coordtest.Inside(&q.Consumer).BucketSize = 6
	return q
}

// Items that were put off add some lists to the first walk of a consumer, and none to the next ones.
func TestQueue_ItemsThatArePutOffCostNoLists(t *testing.T) {
	coordtest.CountsCost(t)
	onMemories(t, func(w *world) {
		const n, size, more = 5120, 256, 4
		w.putOffAll("first", size, 1, n, time.Hour)
		var r callCount
		lists := 0
		h := r.hooks()
		before := h.Before
		h.Before = func(ctx context.Context, c backendtest.Call) error {
			if c.Op == "children" {
				r.mu.Lock()
				lists++
				r.mu.Unlock()
			}
			return before(ctx, c)
		}
		reset := func() (calls, listed int) {
			calls = r.reset()
			r.mu.Lock()
			defer r.mu.Unlock()
			listed, lists = lists, 0
			return calls, listed
		}
		q := w.hookedQueue("consumer", h, nil)
		*coordtest.Inside(&q.Consumer).BucketSize = size
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		taken := make(chan *coord.Item[int], 10)
		var over sync.WaitGroup
		over.Go(func() {
			for it, err := range q.All(ctx) {
				if err != nil {
					w.T.Error(err)
					return
				}
				taken <- it
			}
		})
		w.Settle()
		time.Sleep(10 * time.Second)
		calls, listed := reset()
		w.T.Logf("figure: %d items that were put off: %d requests of a consumer until it waits, %d of them lists", n, calls, listed)
		producer := w.hookedQueue("producer", nil, nil)
		*coordtest.Inside(&producer.Consumer).BucketSize = size
		for i := range more {
			mustPut(w.T, producer, -1-i, -1-i)
			it := receive(w, "a new item", taken)
			if it.Value != -1-i {
				w.T.Errorf("%d came, want %d", it.Value, -1-i)
			}
			mustAck(w.T, it)
			w.Settle()
			time.Sleep(10 * time.Second)
			calls, listed = reset()
			w.T.Logf("figure: beside %d items that were put off, a new item costs an idle consumer %d requests, %d of them lists", n, calls, listed)
			if calls > 25 || listed > 20 {
				w.T.Errorf("a new item costs %d requests, %d of them lists", calls, listed)
			}
		}
		cancel()
		over.Wait()
		mustPut(w.T, producer, 10_001, 10_640)
		reset()
		const backlog = 320
		for i := range backlog {
			mustAck(w.T, mustTake(w.T, q, 10_001+i))
		}
		calls, listed = reset()
		w.T.Logf("figure: beside %d items that were put off, %d items of a backlog cost %d requests, %d of them lists", n, backlog, calls, listed)
		if listed > 60 {
			w.T.Errorf("%d lists for %d items", listed, backlog)
		}
	})
}

// An item that was put off comes when its time has come, before later items, although the consumer does
// not list its bucket before, and although no change of the bucket is reported.
func TestQueue_WhatWasPutOffComesAtItsTime(t *testing.T) {
	for _, how := range []string{"idle", "busy"} {
		t.Run(how, func(t *testing.T) {
			onMemories(t, func(w *world) {
				w.putOffAll("first", 6, 1, 24, 10*time.Second)
				at := time.Now().Add(10 * time.Second)
				q := w.deafQueue("a")
				mustPut(w.T, q, 101, 200)
				next := 101
				for time.Until(at) > 0 || next < 103 {
					mustAck(w.T, mustTake(w.T, q, next))
					next++
					time.Sleep(200 * time.Millisecond)
				}
				if how == "idle" {
					if _, err := w.queue("b", nil).Purge(context.Background()); err != nil {
						w.T.Fatal(err)
					}
					w.putOffAll("second", 6, 1, 24, 10*time.Second)
					at = time.Now().Add(10 * time.Second)
					mustPut(w.T, q, 300, 300)
					mustAck(w.T, mustTake(w.T, q, 300))
				} else {
					time.Sleep(1100 * time.Millisecond)
				}
				for n := 1; n <= 24; n++ {
					mustAck(w.T, mustTake(w.T, q, n))
					if late := time.Since(at); late < 0 || late > 3*time.Second {
						w.T.Errorf("item %d came %v late", n, late)
					}
				}
			})
		})
	}
}

// The items of one bucket can be put off until different times. The first one comes when its time has come.
func TestQueue_TheFirstOfABucketIsNotLate(t *testing.T) {
	onMemories(t, func(w *world) {
		q := w.deafQueue("a")
		other := w.queue("other", nil)
		const n = 24
		mustPut(w.T, other, 1, n)
		var held []*coord.Item[int]
		for i := 1; i <= n; i++ {
			held = append(held, mustTake(w.T, other, i))
		}
		began := time.Now()
		for i, it := range held {
			d := time.Hour
			if i == 6 { // the first of the second bucket
				d = 10 * time.Second
			}
			w.must(it.Nack(d))
		}
		mustPut(w.T, other, n+1, n+1)
		mustAck(w.T, mustTake(w.T, q, n+1))
		// It waits once before, so that it remembers the buckets when it waits again.
		during, cancel := context.WithTimeout(context.Background(), time.Second)
		if it, err := q.Take(during); err == nil {
			w.T.Fatalf("took %d", it.Value)
		}
		cancel()
		mustAck(w.T, mustTake(w.T, q, 7))
		if late := time.Since(began) - 10*time.Second; late < 0 || late > 5*time.Second {
			w.T.Errorf("the item came %v late", late)
		}
	})
}

// A consumer that remembers buckets sees an item that is put into the last one, and an item that another consumer
// gives back.
func TestQueue_ItemsOfPassedBucketsAreSeen(t *testing.T) {
	for _, how := range []string{"put", "given back"} {
		t.Run(how, func(t *testing.T) {
			onMemories(t, func(w *world) {
				ctx := context.Background()
				w.putOffAll("first", 6, 1, 12, time.Hour)
				other := w.queue("other", nil)
				mustPut(w.T, other, 13, 13)
				held := mustTake(w.T, other, 13)
				w.putOffAll("second", 6, 14, 14, time.Hour) // the last bucket has three of them
				q := w.deafQueue("a")
				mustPut(w.T, other, 28, 28)
				mustAck(w.T, mustTake(w.T, q, 28))
				// It waits once as the holder of a slot, which remembers all that can be remembered.
				during, cancel := context.WithTimeout(ctx, 10*time.Second)
				if it, err := q.Take(during); err == nil {
					w.T.Fatalf("took %d", it.Value)
				}
				cancel()
				want := 29
				if how == "put" {
					mustPut(w.T, other, want, want)
				} else {
					want = 13
					w.must(held.Release())
				}
				if it, err := q.TryTake(ctx); err != nil || it.Value != want {
					w.T.Errorf("%v, %v, want %d", it, err, want)
				}
			})
		})
	}
}

// If an outsider ends the delay of an item, an idle consumer gets the item at once, and Peek shows it.
func TestQueue_TheEndOfADelayIsSeen(t *testing.T) {
	for _, how := range []string{"Take", "Peek"} {
		t.Run(how, func(t *testing.T) {
			onMemories(t, func(w *world) {
				ctx := context.Background()
				w.putOffAll("first", 6, 1, 24, time.Hour)
				q := w.queue("a", nil)
				mustPut(w.T, q, 25, 25)
				mustAck(w.T, mustTake(w.T, q, 25))
				if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
					w.T.Fatal(err)
				}
				var x *taking
				if how == "Take" {
					x = w.takeWaits(ctx, q)
					time.Sleep(time.Second)
				}
				began := time.Now()
				var ops []backend.Op
				for _, name := range w.Children("/q/items/b-0-1") {
					if strings.HasPrefix(name, "d-") {
						ops = append(ops, backend.Delete(w.Path("/q/items/b-0-1/"+name), backend.AnyVersion))
					}
				}
				w.commit(ops...) // all at once, so that the first item is the first that can be taken
				if how == "Take" {
					mustAck(w.T, x.item(7))
				} else if v, err := q.Peek(ctx); v != 7 || err != nil {
					w.T.Error(v, err)
				}
				if d := time.Since(began); d > 5*time.Second {
					w.T.Errorf("it came after %v", d)
				}
			})
		})
	}
}

// A consumer that remembers a bucket lists a new bucket of the same name.
func TestPriorityQueue_ABucketThatIsMadeAnewIsListed(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx := context.Background()
		other, q := w.priorityQueue("other", nil), coord.NewPriorityQueue[int](coordtest.Open(w.T, deaf{w.Link("a")}, nil), "/q", nil)
		for n := 1; n <= 30; n++ {
			mustPutAt(w.T, other, 0, n)
		}
		var held []*coord.Item[int]
		for n := 1; n <= 30; n++ {
			held = append(held, mustTake(w.T, other, n))
		}
		for _, it := range held {
			w.must(it.Nack(time.Hour))
		}
		mustPutAt(w.T, other, 5, 50)
		mustAck(w.T, mustTake(w.T, q, 50))
		before := len(w.Children("/q/items"))
		if n, err := other.Purge(ctx); n != 30 || err != nil {
			w.T.Fatal(n, err)
		}
		for n := 101; n <= 130; n++ {
			mustPutAt(w.T, other, 0, n)
		}
		if n := len(w.Children("/q/items")); n != before {
			w.T.Fatalf("%d buckets, want %d", n, before)
		}
		for n := 101; n <= 130; n++ {
			mustAck(w.T, mustTake(w.T, q, n))
		}
	})
}
