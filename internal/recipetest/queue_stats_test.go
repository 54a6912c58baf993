package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zkservice"
)

// Consumers take the oldest items while the figures are read.
func TestQueue_StatsFindTheOldestOfItemsThatAreTakenMeanwhile(t *testing.T) {
	onMemories(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 40)
		time.Sleep(time.Minute)
		var once sync.Once
		p := w.hookedQueue("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "exists" && strings.Contains(c.Path, "/items/") {
				once.Do(func() {
					for n := range 9 {
						mustAck(w.T, mustTake(w.T, q, n+1))
					}
				})
			}
			return nil
		}}, nil)
		if st, oldest := mustStats(w.T, p); st.Ready != 40 || oldest < time.Minute-lateness || oldest > time.Minute+lateness {
			w.T.Errorf("%+v, oldest %v", st, oldest)
		}
		wantStats(w.T, p, coord.QueueStats{Ready: 31, Buckets: len(w.Children("/q/items"))})
	})
}

// The number of requests grows with the length by the lists of buckets only, and the figures are
// exact.
func TestQueue_StatsCostFewRequestsHoweverLongTheQueueIs(t *testing.T) {
	coordtest.CountsCost(t)
	for name, without := range map[string]backend.Features{"with batches": 0, "without batches": backend.Batches} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { statsCost(t, without) })
		})
	}
}

func statsCost(t *testing.T, without backend.Features) {
	var r callCount
	st := memory.New(&memory.Options{Without: without})
	put, c := coordtest.Open(t, st, nil), coordtest.Open(t, backendtest.Intercept(st, *r.hooks()), nil)
	for _, length := range []int{100, 10_000, 50_000} {
		path := fmt.Sprint("/q", length)
		putMany(t, coord.NewQueue[int](put, path, nil), length)
		q := coord.NewQueue[int](c, path, nil)
		mustStats(t, q) // the first ones learn the time
		r.reset()
		got, _ := mustStats(t, q)
		n := r.reset()
		t.Logf("figure: Stats of %d items, batches %t: %d calls, %d buckets", length, without == 0, n, got.Buckets)
		if want := (coord.QueueStats{Ready: length - 2, Claimed: 1, Delayed: 1, Buckets: got.Buckets}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		most := 4 // Sync, directories, buckets, the oldest item
		if without != 0 {
			most = 1 + 4 + got.Buckets + 1
		}
		if n > most || got.Buckets > length/256+2 {
			t.Errorf("%d calls for %d items in %d buckets, want %d", n, length, got.Buckets, most)
		}
	}
}

// putMany puts that many items, of which one is claimed and one put off.
func putMany(t *testing.T, q *coord.Queue[int], length int) {
	t.Helper()
	if ids, err := q.PutAll(context.Background(), make([]int, length)...); err != nil || len(ids) != length {
		t.Fatal(len(ids), err)
	}
	mustTake(t, q, 0)
	if err := mustTake(t, q, 0).Nack(time.Hour); err != nil {
		t.Fatal(err)
	}
}

// As TestQueue_StatsCostFewRequestsHoweverLongTheQueueIs, on the wire.
func TestQueue_StatsCostFewRequestsOnARealServer(t *testing.T) {
	t.Parallel()
	w := services.server(t)
	put, c := w.Open("a", nil), w.Open("b", nil)
	link := w.Link("b").(*zkservice.Link)
	for _, length := range []int{100, 10_000, 50_000} {
		path := fmt.Sprint("/q", length)
		putMany(t, coord.NewQueue[int](put, path, nil), length)
		q := coord.NewQueue[int](c, path, nil)
		before := link.Requests()
		got, _ := mustStats(t, q)
		n := link.Requests() - before
		t.Logf("figure: Stats of %d items: %d requests, %d buckets", length, n, got.Buckets)
		if want := (coord.QueueStats{Ready: length - 2, Claimed: 1, Delayed: 1, Buckets: got.Buckets}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		// A request asks for 16 nodes until the session has seen how long a list is. The first
		// figures cost two writes, to learn the time.
		if most := 6 + got.Buckets/16 + 1; n > most {
			t.Errorf("%d requests for %d items in %d buckets, want %d at most", n, length, got.Buckets, most)
		}
	}
}

// Of a queue with more buckets than Stats reads, and of such dead letters, the figures are lower
// bounds, and say so.
func TestQueue_StatsReadABoundedNumberOfBuckets(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx := context.Background()
		var r callCount
		const most, more = 256, 44
		c := w.Open("a", r.hooks())
		p := coord.NewPriorityQueue(c, "/p", &coord.QueueOptions[int]{DeadLetterPath: "/dead"})
		dead := coord.NewPriorityQueue[int](c, "/dead", nil) // so that it has many buckets
		for i := range most + more {
			mustPutAt(w.T, p, int64(i), i)
			if i < most+more/2 {
				mustPutAt(w.T, dead, int64(i), i)
			}
		}
		for i := range 3 {
			if it, err := p.Take(ctx); err != nil || it.Value != i {
				w.T.Fatal(it, err)
			}
		}
		r.reset()
		wantStats(w.T, p, coord.QueueStats{Ready: most - 3, Claimed: 3, Dead: most, Buckets: most + more, Unread: more + more/2})
		// 16 priorities are read to find the oldest item.
		wanted := 1 + 1 + 1 + 16
		if w.Without&backend.Batches != 0 {
			wanted = 1 + 3 + 2*most + 16
		}
		if n := r.reset(); n != wanted {
			w.T.Errorf("%d requests, want %d", n, wanted)
		}
	})
}

func TestQueue_StatsSurviveTheSessionAndEndWithTheContext(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 3)
		for nth := 1; nth <= 4; nth++ {
			var hook coordtest.Nth
			p := w.hookedQueue(fmt.Sprint("b", nth), &backendtest.Hooks{Before: hook.Before}, nil)
			mustStats(w.T, p)
			hook.Arm(nth, func(c backendtest.Call) bool { return true }, func(_ context.Context, c backendtest.Call, _ error) error {
				w.Link(fmt.Sprint("b", nth)).Expire(c.Session.ID())
				return nil
			})
			wantStats(w.T, p, coord.QueueStats{Ready: 3, Buckets: 1})
			ctx, cancel := context.WithCancelCause(context.Background())
			cause := fmt.Errorf("%w: a cause", backend.ErrNotFound)
			hook.Arm(nth, func(c backendtest.Call) bool { return true }, func(context.Context, backendtest.Call, error) error {
				cancel(cause)
				return nil
			})
			st, err := p.Stats(ctx)
			if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || st != (coord.QueueStats{}) {
				w.T.Errorf("canceled at call %d: %+v, %v", nth, st, err)
			}
		}
	})
}

func TestQueue_StatsReportWhatTheyMayNotRead(t *testing.T) {
	t.Parallel()
	w := services.server(t)
	coordtest.WithPermissions(t, w.Path("/q"), zk.PermAll)
	coordtest.WithPermissions(t, w.Path("/q/items"), zk.PermAll)
	coordtest.WithPermissions(t, w.Path("/q/items/b-0-1"), zk.PermCreate)
	_, err := w.queue("a", nil).Stats(context.Background())
	var e *backend.Error
	if !errors.Is(err, coord.ErrDenied) || !errors.As(err, &e) || e.Op != "stats" || e.Path != w.Path("/q") {
		t.Error(err)
	}
}

// A client that may only read has the figures, by its own clock.
func TestQueue_StatsOfAClientThatMayNotWrite(t *testing.T) {
	onMemory(t, func(w *world) {
		mustPut(w.T, w.queue("a", nil), 1, 3)
		time.Sleep(time.Minute)
		reader := w.hookedQueue("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "commit" {
				return backend.ErrDenied
			}
			return nil
		}}, nil)
		if st, oldest := mustStats(w.T, reader); st != (coord.QueueStats{Ready: 3, Buckets: 1}) || oldest != time.Minute {
			w.T.Errorf("%+v, oldest %v", st, oldest)
		}
	})
}

// Each priority has items that were dead letters, behind others. One read suffices for each of them.
func TestQueue_TheOldestOfManyPrioritiesWithRedrivenItems(t *testing.T) {
	onMemories(t, func(w *world) {
		q := coord.NewPriorityQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
		*coordtest.Inside(&q.Consumer).BucketSize = 4
		const priorities = 10
		for p := range int64(priorities) {
			for v := range 2 {
				mustPutAt(w.T, q, p, v)
				if err := mustTake(w.T, q, v).Nack(0); err != nil {
					w.T.Fatal(err)
				}
			}
		}
		for p := range int64(priorities) { // behind them, in node after node
			for range 8 {
				mustPutAt(w.T, q, p, 2)
			}
			time.Sleep(time.Minute)
		}
		_, before := mustStats(w.T, q)
		time.Sleep(time.Minute)
		if n, err := q.Redrive(context.Background()); n != 2*priorities || err != nil {
			w.T.Fatal(n, err)
		}
		for p := range int64(priorities) {
			mustPutAt(w.T, q, p, 3, 4, 5)
		}
		if _, oldest := mustStats(w.T, q); oldest < before+time.Minute-lateness {
			w.T.Errorf("oldest %v, and %v a minute ago", oldest, before)
		}
	})
}

// Items that were dead letters come first in their priority, although they were put back last.
func TestQueue_TheOldestItemStandsBehindRedrivenOnes(t *testing.T) {
	onMemories(t, func(w *world) {
		q := coord.NewPriorityQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
		mustPutAt(w.T, q, 5, 1, 2, 3, 4, 5)
		for n := 1; n <= 3; n++ {
			if err := mustTake(w.T, q, n).Nack(0); err != nil {
				w.T.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		for range 2 { // the second time one has died twice
			if n, err := q.Redrive(context.Background()); n == 0 || err != nil {
				w.T.Fatal(n, err)
			}
			if _, oldest := mustStats(w.T, q); oldest < time.Minute-lateness || oldest > time.Minute+lateness {
				w.T.Errorf("oldest %v", oldest)
			}
			if err := mustTake(w.T, q, 1).Nack(0); err != nil {
				w.T.Fatal(err)
			}
		}
	})
}
