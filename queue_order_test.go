package coord_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

func TestAnItemThatVanishesDoesNotChangeTheOrder(t *testing.T) {
	wrong := 0
	for range 20 {
		onMemory(t, func(w *world) {
			var x nth
			a := w.hookedQueue("a", &backendtest.Hooks{Before: x.before}, nil)
			e := w.queue("e", &coord.QueueOptions[int]{Ephemeral: true})
			b := w.queue("b", nil)
			mustPut(w.t, e, 1, 1)
			mustPut(w.t, b, 2, 6)
			x.arm(1, claims, func(context.Context, backendtest.Call, error) error {
				ns := w.children("/q/items/b-0-0")
				slices.SortFunc(ns, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
				_, err := w.session("x").Commit(context.Background(), backend.Delete(w.path("/q/items/b-0-0/"+ns[0]), backend.AnyVersion))
				return err
			})
			it, err := a.Take(context.Background())
			if err != nil {
				w.t.Fatal(err)
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

func TestALaggingServerAfterALossDoesNotChangeTheOrder(t *testing.T) {
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
			coord.SetBucketSize(&a.Consumer, 100)
			mustPut(w.t, a, 1, 8)
			old = w.children("/q/items/b-0-0")
			first := mustTake(w.t, a, 1)
			mustAck(w.t, first)
			w.Link("a").Expire(first.Session())
			w.settle()
			mu.Lock()
			lag = true
			mu.Unlock()
			it, err := a.Take(ctx)
			if err != nil {
				w.t.Fatal(err)
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

func TestThereIsNoSecondOpenBucketWhenTheNumbersRestart(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var x nth
		a, b := w.priorityQueue("a", &backendtest.Hooks{Before: x.before}), w.priorityQueue("b", nil)
		mustPutAt(w.t, b, 9, 99)
		mustPutAt(w.t, a, 1, 11)
		mustPutAt(w.t, b, 1, 12, 13, 14)
		mustPutAt(w.t, b, 1, 15) // closes b-1-0
		x.arm(1, func(c backendtest.Call) bool { return c.Op == "sync" }, func(context.Context, backendtest.Call, error) error {
			// a has learned that b-1-0 is closed, and sleeps
			for n := 11; n <= 15; n++ {
				mustAck(w.t, mustTake(w.t, b, n))
			}
			mustTake(w.t, b, 99).Release()
			if n := len(w.children("/q/items")); n != 1 {
				w.t.Errorf("%d buckets: tests nothing", n)
			}
			mustPutAt(w.t, b, 1, 21)
			return nil
		})
		mustPutAt(w.t, a, 1, 16)
		mustPutAt(w.t, b, 1, 22) // begun after the Put of 16 has returned
		var got []int
		for range 3 {
			it, err := b.Take(ctx)
			if err != nil {
				w.t.Fatal(err)
			}
			got = append(got, it.Value)
			mustAck(w.t, it)
		}
		if !slices.Equal(got, []int{21, 16, 22}) {
			w.t.Errorf("took %v, want 21 16 22", got)
		}
	})
}

// The server still lists the first item without its state, and with a prefetch the
// rest could be claimed without it.
func TestAStalePictureIsNotClaimedWithoutItsHead(t *testing.T) {
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
		mustPut(w.t, a, 1, 3)
		old = w.children("/q/items/b-0-0")
		if err := mustTake(w.t, a, 1).Nack(0); err != nil {
			w.t.Fatal(err)
		}
		mu.Lock()
		lag = true
		mu.Unlock()
		want := 1
		for it, err := range a.All(ctx) {
			if err != nil {
				w.t.Fatal(err)
			}
			if it.Value != want || (want == 1) != (it.Attempt == 2) {
				w.t.Errorf("took %d, attempt %d, want %d", it.Value, it.Attempt, want)
			}
			mustAck(w.t, it)
			if want++; want > 3 {
				break
			}
		}
	})
}
