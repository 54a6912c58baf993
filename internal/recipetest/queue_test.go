package recipetest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestQueue_AQueueReportsBadUse(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q := coord.NewQueue[int](c, "no/path", nil)
		_, err := q.Put(ctx, 1)
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
		_, err = q.Take(ctx)
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
		for _, o := range []coord.QueueOptions[int]{{MaxLen: -1}, {MaxAttempts: -1}, {Prefetch: -1}, {Prefetch: 129}, {ClaimTimeout: -1}, {FairEvery: 2}} {
			_, err = coord.NewQueue(c, "/q", &o).Len(ctx)
			coordtest.WantErr(w.T, err, coord.ErrInvalid)
		}
		_, err = coord.NewQueue(c, "/q", &coord.QueueOptions[int]{DeadLetterPath: "dead"}).Len(ctx)
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
		big := coord.NewQueue(c, "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()})
		_, err = big.Put(ctx, make([]byte, backend.MaxRequest))
		coordtest.WantErr(w.T, err, coord.ErrTooLarge)
		_, err = coord.NewQueue[func()](c, "/q", nil).Put(ctx, func() {})
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err = coord.NewQueue[int](c, "/q", nil).Take(ended)
		coordtest.WantErr(w.T, err, context.Canceled)
		c.Close()
		_, err = coord.NewQueue[int](c, "/q", nil).Take(ctx)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		_, err = coord.NewQueue[int](c, "/q", nil).Put(ctx, 1)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
	})
}

// The default path of the dead letters is longer than the queue's. If it is too long, the
// error says so, and another path will do.
func TestQueue_ALongQueueNeedsAPathForItsDeadLetters(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		path := "/" + strings.Repeat("q", 4091)
		_, err := coord.NewQueue[int](c, path, nil).Put(ctx, 1)
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
		if want := "no DeadLetterPath is set, and the default is not valid: "; err == nil || !strings.Contains(err.Error(), want) {
			w.T.Errorf("%.80v does not say %q", err, want)
		}
		_, err = coord.NewQueue(c, "/q", &coord.QueueOptions[int]{DeadLetterPath: path + "/dead/"}).Put(ctx, 1)
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
		for _, q := range []*coord.Queue[int]{
			coord.NewQueue[int](c, path[:4091], nil),
			coord.NewQueue(c, path, &coord.QueueOptions[int]{DeadLetterPath: "/dead"}),
		} {
			mustPut(w.T, q, 1, 1)
			mustAck(w.T, mustTake(w.T, q, 1))
		}
	})
}

func TestQueue_AnItemThatVanishesDoesNotChangeTheOrder(t *testing.T) {
	wrong := 0
	for range 20 {
		onMemory(t, func(w *world) {
			var x coordtest.Nth
			a := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil)
			e := w.queue("e", nil)
			b := w.queue("b", nil)
			mustPut(w.T, e, 1, 1)
			mustPut(w.T, b, 2, 6)
			x.Arm(1, claims, func(context.Context, backendtest.Call, error) error {
				ns := w.Children("/q/items/b-0-0")
				slices.SortFunc(ns, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
				_, err := w.Session("x").Commit(context.Background(), backend.Delete(w.Path("/q/items/b-0-0/"+ns[0]), backend.AnyVersion))
				return err
			})
			it, err := a.Take(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			if it.Value != 2 {
				wrong++
			}
		})
	}
	if wrong > 0 {
		t.Errorf("%d of 20 times the only consumer took a later item first", wrong)
	}
}

func TestQueue_ALaggingServerAfterALossDoesNotChangeTheOrder(t *testing.T) {
	wrong := 0
	for range 20 {
		onMemory(t, func(w *world) {
			ctx := context.Background()
			var mu sync.Mutex
			var old []string
			lag := false
			a := w.hookedQueue("a", &backendtest.Hooks{
				Before: func(_ context.Context, c backendtest.Call) error {
					mu.Lock()
					defer mu.Unlock()
					lag = lag && c.Op != "sync"
					return nil
				},
				Names: func(c backendtest.Call, names []string) []string {
					mu.Lock()
					defer mu.Unlock()
					if lag && strings.HasSuffix(c.Path, "/b-0-0") {
						return slices.Clone(old)
					}
					return names
				},
			}, nil)
			*coordtest.Inside(&a.Consumer).BucketSize = 100
			mustPut(w.T, a, 1, 8)
			old = w.Children("/q/items/b-0-0")
			first := mustTake(w.T, a, 1)
			mustAck(w.T, first)
			w.Link("a").Expire(first.Session())
			w.Settle()
			mu.Lock()
			lag = true
			mu.Unlock()
			it, err := a.Take(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			if it.Value != 2 {
				wrong++
			}
		})
	}
	if wrong > 0 {
		t.Errorf("%d of 20 times the only consumer took a later item first", wrong)
	}
}

func TestQueue_ThereIsNoSecondOpenBucketWhenTheNumbersRestart(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var x coordtest.Nth
		a, b := w.priorityQueue("a", &backendtest.Hooks{Before: x.Before}), w.priorityQueue("b", nil)
		mustPutAt(w.T, b, 9, 99)
		mustPutAt(w.T, a, 1, 11)
		mustPutAt(w.T, b, 1, 12, 13, 14)
		mustPutAt(w.T, b, 1, 15) // closes b-1-0
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "sync" }, func(context.Context, backendtest.Call, error) error {
			// Client a knows that b-1-0 is closed, and is paused.
			for n := 11; n <= 15; n++ {
				mustAck(w.T, mustTake(w.T, b, n))
			}
			mustTake(w.T, b, 99).Release()
			if n := len(w.Children("/q/items")); n != 1 {
				w.T.Errorf("%d buckets: tests nothing", n)
			}
			mustPutAt(w.T, b, 1, 21)
			return nil
		})
		mustPutAt(w.T, a, 1, 16)
		mustPutAt(w.T, b, 1, 22) // begun after the Put of 16 has returned
		var got []int
		for range 3 {
			it, err := b.Take(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			got = append(got, it.Value)
			mustAck(w.T, it)
		}
		if !slices.Equal(got, []int{21, 16, 22}) {
			w.T.Errorf("took %v, want 21 16 22", got)
		}
	})
}

// A server that lags lists the first item without its state. With a prefetch the items behind
// it could be claimed without it.
func TestQueue_AStaleListIsNotClaimedWithoutItsHead(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var mu sync.Mutex
		var old []string
		lag := false
		a := w.hookedQueue("a", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				mu.Lock()
				defer mu.Unlock()
				lag = lag && c.Op != "sync"
				return nil
			},
			Names: func(c backendtest.Call, names []string) []string {
				mu.Lock()
				defer mu.Unlock()
				if lag && strings.HasSuffix(c.Path, "/b-0-0") {
					return slices.Clone(old)
				}
				return names
			},
		}, &coord.QueueOptions[int]{Prefetch: 3})
		mustPut(w.T, a, 1, 3)
		old = w.Children("/q/items/b-0-0")
		if err := mustTake(w.T, a, 1).Nack(0); err != nil {
			w.T.Fatal(err)
		}
		mu.Lock()
		lag = true
		mu.Unlock()
		want := 1
		for it, err := range a.All(ctx) {
			if err != nil {
				w.T.Fatal(err)
			}
			if it.Value != want || (want == 1) != (it.Attempt == 2) {
				w.T.Errorf("took %d, attempt %d, want %d", it.Value, it.Attempt, want)
			}
			mustAck(w.T, it)
			if want++; want > 3 {
				break
			}
		}
	})
}
