package recipetest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// Between the list and the claim another consumer takes the item, and an item of a better
// priority is put: the call lists again, and takes the better one.
func TestPriorityQueue_ABetterItemWinsAfterALostRace(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		a, b := w.priorityQueue("a", &backendtest.Hooks{Before: x.Before}), w.priorityQueue("b", nil)
		mustPutAt(w.T, b, 2, 21, 22)
		var other *coord.Item[int]
		x.Arm(1, claims, func(context.Context, backendtest.Call, error) error {
			other = mustTake(w.T, b, 21)
			mustPutAt(w.T, b, 1, 11)
			return nil
		})
		mustAck(w.T, mustTake(w.T, a, 11))
		mustAck(w.T, other)
		mustAck(w.T, mustTake(w.T, a, 22))
		w.drained(&b.Consumer)
	})
}

// The server that a consumer reads from lags behind until a sync.
func TestPriorityQueue_ABetterItemWinsOnALaggingServer(t *testing.T) {
	onMemory(t, func(w *world) {
		var mu sync.Mutex
		lag := false
		a := w.priorityQueue("a", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				mu.Lock()
				defer mu.Unlock()
				lag = lag && c.Op != "sync"
				return nil
			},
			Names: func(_ backendtest.Call, names []string) []string {
				mu.Lock()
				defer mu.Unlock()
				if !lag {
					return names
				}
				return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "b-1-") })
			},
		})
		b := w.priorityQueue("b", nil)
		mustPutAt(w.T, b, 2, 21)
		mustPutAt(w.T, b, 1, 11)
		mu.Lock()
		lag = true
		mu.Unlock()
		mustAck(w.T, mustTake(w.T, a, 11))
		mustAck(w.T, mustTake(w.T, a, 21))
	})
}

// At a turn no item of the other priority can be taken: one is claimed, and another one is put off.
func TestPriorityQueue_ATurnWithoutAFreeItemIsAUsualTake(t *testing.T) {
	onMemory(t, func(w *world) {
		a, b := w.fairQueue("a", nil, 2, 100), w.priorityQueue("b", nil)
		mustPutAt(w.T, b, 2, 21, 22)
		held := mustTake(w.T, b, 21)
		if err := mustTake(w.T, b, 22).Nack(time.Minute); err != nil {
			w.T.Fatal(err)
		}
		mustPutAt(w.T, b, 1, 11, 12, 13, 14, 15, 16, 17, 18)
		for v := 11; v <= 18; v++ {
			if got := mustTakeNext(w.T, a); got != v {
				w.T.Errorf("%d, want %d", got, v)
			}
		}
		mustAck(w.T, held)
		time.Sleep(time.Minute)
		mustAck(w.T, mustTake(w.T, a, 22))
		w.drained(&a.Consumer)
	})
}

// The item of a turn is removed before the claim. The call lists again, and takes by priority.
func TestPriorityQueue_TheItemOfATurnVanishes(t *testing.T) {
	onMemory(t, func(w *world) {
		var mu sync.Mutex
		lost := false
		b := w.priorityQueue("b", nil)
		id, err := b.Put(context.Background(), 2, 21)
		w.must(err)
		a := w.fairQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			mu.Lock()
			race := !lost && claims(c) && slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return strings.Contains(op.Path, "/b-2-") })
			lost = lost || race
			mu.Unlock()
			if race {
				w.must(b.Remove(context.Background(), id))
			}
			return nil
		}}, 2, 100)
		mustPutAt(w.T, b, 2, 22)
		mustPutAt(w.T, b, 1, 11, 12, 13, 14, 15, 16)
		last := 10
		for range 7 {
			v := mustTakeNext(w.T, a)
			if v < 20 {
				if v != last+1 {
					w.T.Errorf("%d after %d", v, last)
				}
				last = v
			}
		}
		if !lost || last != 16 {
			w.T.Errorf("an item vanished: %t; %d is the last one", lost, last)
		}
		w.drained(&a.Consumer)
	})
}

func TestPriorityQueue_TheDelayQueueIsOrderedByDueTime(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		a := w.delayQueue("a")
		*coordtest.Inside(&a.Consumer).BucketSize = 100
		start := time.Now().Truncate(time.Minute)
		for _, n := range []int{40, 7, 190, 65, 8, 400, 6, 130, 59, 60} {
			if _, err := a.Put(ctx, start.Add(time.Duration(n)*time.Second), n); err != nil {
				w.T.Fatal(err)
			}
		}
		for _, n := range []int{6, 7, 8, 40, 59, 60, 65, 130, 190, 400} {
			it := mustTakeWithin(w.T, a, n, time.Hour)
			if at := time.Now(); at.Before(start.Add(time.Duration(n) * time.Second)) {
				w.T.Errorf("%d came at %v", n, at.Sub(start))
			}
			mustAck(w.T, it)
		}
		_, err := a.Put(ctx, time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC), 1)
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		w.drained(&a.Consumer)
	})
}

func TestPriorityQueue_EmptyMinutesMakeRoomBeforeALimitRefuses(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewDelayQueue[int](w.Open("a", nil), "/q", nil)
		*coordtest.Inside(&q.Consumer).BucketLimit = 10
		hour := func(n int) time.Time { return time.Now().Add(time.Duration(n) * time.Hour) }
		for n := range 10 {
			if _, err := q.Put(ctx, hour(n+1), n); err != nil {
				w.T.Fatal(err)
			}
		}
		_, err := q.Put(ctx, hour(11), 11)
		coordtest.WantErr(w.T, err, coord.ErrLimit)
		// An outsider empties two buckets.
		s := w.Session("x")
		buckets := w.Children("/q/items")
		for _, b := range buckets[3:5] {
			for _, n := range w.Children("/q/items/" + b) {
				if _, err := s.Commit(ctx, backend.Delete(w.Path("/q/items/"+b+"/"+n), backend.AnyVersion)); err != nil {
					w.T.Fatal(err)
				}
			}
		}
		_, err = q.Put(ctx, hour(11), 11)
		coordtest.WantErr(w.T, err, coord.ErrLimit) // the queue has looked for empty buckets just now
		time.Sleep(time.Minute)
		for n := 11; n <= 12; n++ {
			if _, err := q.Put(ctx, hour(n), n); err != nil {
				w.T.Error(err)
			}
		}
		_, err = q.Put(ctx, hour(13), 13)
		coordtest.WantErr(w.T, err, coord.ErrLimit)
	})
}

// Due times are stored in milliseconds. A fraction of one must not make an item due early.
func TestPriorityQueue_NothingIsTakenBeforeItIsDue(t *testing.T) {
	for _, put := range []string{"put", "putall"} {
		for _, d := range []time.Duration{1, 999_999, time.Millisecond, 1_500_000} {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				q := coord.NewDelayQueue[int](w.Open("a", nil), "/q", nil)
				due := time.Now().Truncate(time.Millisecond).Add(d)
				var err error
				if put == "put" {
					_, err = q.Put(ctx, due, 1)
				} else {
					_, err = q.PutAll(ctx, due, 1)
				}
				if err != nil {
					w.T.Fatal(err)
				}
				_, err = q.TryTake(ctx)
				coordtest.WantErr(w.T, err, coord.ErrEmpty)
				it := mustTake(w.T, q, 1)
				if late := time.Since(due); late < 0 || late > 2*time.Millisecond {
					w.T.Errorf("%s %v: taken %v after it was due", put, d, late)
				}
				mustAck(w.T, it)
			})
		}
	}
}
