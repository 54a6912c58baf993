package recipetest

import (
	"context"
	"errors"
	"fmt"
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

// One item kills each process that works on it. The items that this process had only claimed in
// advance are handled by another one: none of them becomes a dead letter.
func TestQueue_PoisonItemIsClaimedAlone(t *testing.T) {
	const items, poison = 20, 3
	for _, how := range []string{"Work 1", "Work 4", "All"} {
		for _, attempts := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%s, %d attempts", how, attempts), func(t *testing.T) {
				onMemory(t, func(w *world) {
					o := &coord.QueueOptions[int]{MaxAttempts: attempts, Prefetch: items}
					producer := w.queue("producer", o)
					*coordtest.Inside(&producer.Consumer).BucketSize = 2 * items
					if _, err := producer.PutAll(w.T.Context(), 1, 2, poison, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, items); err != nil {
						w.T.Fatal(err)
					}
					var mu sync.Mutex
					received := make(map[int]int)
					for life := range attempts + 2 {
						name := fmt.Sprint("life ", life)
						q := w.queue(name, o)
						ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
						begin := func(v int) (dead bool) {
							mu.Lock()
							defer mu.Unlock()
							if ctx.Err() != nil {
								return true
							}
							received[v]++
							if v == poison {
								w.Link(name).Partition() // the process is killed: it sends nothing more
								cancel()
							}
							return ctx.Err() != nil
						}
						n := 0
						switch fmt.Sscanf(how, "Work %d", &n); n {
						case 0:
							for it, err := range q.All(ctx) {
								if err != nil {
									w.T.Fatal(err)
								}
								if begin(it.Value) {
									break
								}
								mustAck(w.T, it)
							}
						default:
							_ = q.Work(ctx, n, func(hctx context.Context, it *coord.Item[int]) error { // cannot end well when it is killed
								if begin(it.Value) {
									<-hctx.Done()
									return errors.New("killed")
								}
								return nil
							})
						}
						cancel()
						w.Eventually("the session has ended", func() bool {
							st, _ := mustStats(w.T, producer)
							return st.Claimed == 0
						})
					}
					// A process that is killed costs each item that it has claimed for another handler
					// an attempt, and each of these items is the same in every life.
					others, handlers := 0, 1
					fmt.Sscanf(how, "Work %d", &handlers)
					for _, l := range letters(w.T, &producer.Consumer) {
						if l.Value != poison {
							others++
							received[l.Value]++
						}
					}
					if others >= handlers {
						w.T.Errorf("%d items besides the poison are dead letters, with %d handlers", others, handlers)
					}
					if received[poison] != attempts {
						w.T.Errorf("the poison item was handled %d times, want %d", received[poison], attempts)
					}
					for v := 1; v <= items; v++ {
						if received[v] == 0 {
							w.T.Errorf("no handler has received %d", v)
						}
					}
					if n := mustLen(w.T, &producer.Consumer); n != 0 {
						w.T.Errorf("%d items are left", n)
					}
				})
			})
		}
	}
}

// A consumer that prefetches claims items that were never taken with one commit, and each redelivered
// item with a commit of its own, in their order, also by a remembered list.
func TestQueue_ClaimsOfRedeliveredItemsAreAlone(t *testing.T) {
	for _, test := range []struct {
		attempts int
		failed   []int // were taken before
		want     string
	}{
		{0, nil, "5 5"},
		{9, []int{1}, "1 5 4"},
		{9, []int{3}, "2 1 5 2"},
		{9, []int{5, 6}, "4 1 1 4"},
		{9, []int{10}, "5 4 1"},
		{1, nil, "1 1 1 1 1 1 1 1 1 1"},
	} {
		t.Run(fmt.Sprint(test.attempts, test.failed), func(t *testing.T) {
			onMemories(t, func(w *world) {
				var mu sync.Mutex
				var sizes []string
				hooks := &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					n := 0
					for _, op := range c.Ops {
						if op.Kind == backend.OpCreate && strings.Contains(op.Path, "/m-") {
							n++
						}
					}
					if mu.Lock(); n > 0 {
						sizes = append(sizes, fmt.Sprint(n))
					}
					mu.Unlock()
					return nil
				}}
				other := w.queue("other", nil)
				*coordtest.Inside(&other.Consumer).BucketSize = 20
				mustPut(w.T, other, 1, 10)
				var held []*coord.Item[int]
				for n := 1; n <= 10; n++ {
					held = append(held, mustTake(w.T, other, n))
				}
				for _, it := range held {
					if slices.Contains(test.failed, it.Value) {
						if err := it.Nack(0); err != nil {
							w.T.Fatal(err)
						}
					} else if err := it.Release(); err != nil {
						w.T.Fatal(err)
					}
				}
				q := w.hookedQueue("a", hooks, &coord.QueueOptions[int]{MaxAttempts: test.attempts, Prefetch: 5})
				n := 0
				for it, err := range q.All(context.Background()) {
					if n++; err != nil || it.Value != n {
						w.T.Fatal(it, err, "want", n)
					}
					if want := 1; it.Attempt != want && !slices.Contains(test.failed, n) {
						w.T.Errorf("attempt %d of %d", it.Attempt, n)
					}
					mustAck(w.T, it)
					if n == 10 {
						break
					}
				}
				if got := strings.Join(sizes, " "); got != test.want {
					w.T.Errorf("commits that claim %s items, want %s", got, test.want)
				}
				w.drained(&q.Consumer)
			})
		})
	}
}
