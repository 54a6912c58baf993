package recipetest

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// An item that was claimed when ctx ends is not handed out, and costs no attempt.
func TestQueue_NoItemAfterTheEndOfContext(t *testing.T) {
	for _, prefetch := range []int{1, 3} {
		for _, how := range []string{"Work", "All", "Items"} {
			t.Run(fmt.Sprint(how, prefetch), func(t *testing.T) {
				onMemories(t, func(w *world) {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					codec := coord.JSON[int]()
					q := coord.NewQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{Prefetch: prefetch, Codec: coord.Codec[int]{
						Encode: codec.Encode,
						Decode: func(data []byte) (int, error) { cancel(); return codec.Decode(data) },
					}})
					b := w.queue("b", nil)
					mustPut(w.T, b, 1, 3)
					switch how {
					case "Work":
						if err := q.Work(ctx, 2, func(_ context.Context, it *coord.Item[int]) error {
							w.T.Errorf("%d was handled", it.Value)
							return nil
						}); err != nil {
							w.T.Error(err)
						}
					case "All":
						for it, err := range q.All(ctx) {
							w.T.Error("handed out", it, err)
						}
					case "Items":
						for it := range q.Items(ctx) {
							w.T.Error("handed out", it.Value)
						}
					}
					if ctx.Err() == nil {
						w.T.Error("nothing was claimed")
					}
					for n := 1; n <= 3; n++ {
						it := mustTake(w.T, b, n)
						if it.Attempt != 1 {
							w.T.Errorf("%d: attempt %d", n, it.Attempt)
						}
						mustAck(w.T, it)
					}
					w.drained(&b.Consumer)
				})
			})
		}
	}
}

// At its end a loop waits for the release of its items only as long as a reply can be expected.
func TestQueue_TheEndOfALoopIsBounded(t *testing.T) {
	for how, want := range map[string]time.Duration{"refused": 0, "no answer": time.Second, "cut off": 0} {
		onMemory(t, func(w *world) {
			var x coordtest.Nth
			c := w.Open("a", &backendtest.Hooks{Before: x.Before})
			q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{Prefetch: 3})
			mustPut(w.T, q, 1, 3)
			var began time.Time
			for range q.All(context.Background()) {
				switch how {
				case "cut off":
					w.Link("a").Partition()
					time.Sleep(w.Timeout / 2) // until it is noticed
				default:
					x.Arm(1, coordtest.Deletes, func(ctx context.Context, call backendtest.Call, _ error) error {
						if how == "no answer" {
							select {
							case <-call.Session.Done():
							case <-ctx.Done():
							}
						}
						return backend.ErrDenied
					})
				}
				began = time.Now()
				break
			}
			if d := time.Since(began); d != want {
				w.T.Errorf("%s: the loop ended after %v, want %v", how, d, want)
			}
			w.Link("a").Heal()
			c.Close()
			b := w.queue("b", nil)
			for n := 1; n <= 3; n++ {
				mustAck(w.T, mustTake(w.T, b, n))
			}
		})
	}
}

func TestQueue_ItemsOfAClosedClientAreClosed(t *testing.T) {
	onMemory(t, func(w *world) {
		c := coordtest.Open(w.T, w.Link("a"), &coord.Options{Logger: slog.New(onWarn(func(text string) {
			w.T.Errorf("a warning is logged: %s", text)
		}))})
		q := coord.NewQueue[int](c, "/q", nil)
		waiting := q.Items(context.Background())
		mustPut(w.T, q, 1, 2)
		blocked := q.Items(context.Background()) // offers an item that is not received
		w.Settle()
		first := <-waiting
		c.Close()
		for it := range waiting {
			w.T.Errorf("%d from a closed client", it.Value)
		}
		for it := range blocked {
			w.T.Errorf("%d from a closed client", it.Value)
		}
		coordtest.WantErr(w.T, first.Ack(), coord.ErrLost, coord.ErrClosed)
		if _, ok := <-q.Items(context.Background()); ok {
			w.T.Error("an item from a closed client")
		}
		for _, err := range q.All(context.Background()) {
			coordtest.WantErr(w.T, err, coord.ErrClosed)
		}
	})
}

func TestQueue_APurgeDoesNotDeleteAnItemThatIsClaimedMeanwhile(t *testing.T) {
	for _, state := range []string{"new", "nacked"} {
		t.Run(state, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x coordtest.Nth
				a, b := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil), w.queue("b", nil)
				mustPut(w.T, a, 1, 3)
				if state == "nacked" {
					if err := mustTake(w.T, b, 1).Nack(0); err != nil {
						w.T.Fatal(err)
					}
				}
				var it *coord.Item[int]
				x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
					it = mustTake(w.T, b, 1)
					return nil
				})
				if n, err := a.Purge(context.Background()); n != 2 || err != nil {
					w.T.Errorf("purged %d, %v, want 2", n, err)
				}
				mustAck(w.T, it)
				w.drained(&b.Consumer)
			})
		})
	}
}

// Items that cannot be given back delay Close only for a bounded time.
func TestQueue_CloseIsBoundedWhenNothingCanBeGivenBack(t *testing.T) {
	for _, how := range []string{"refused", "no answer", "cut off"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				var x coordtest.Nth
				c := w.Open("a", &backendtest.Hooks{Before: x.Before})
				q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{Prefetch: 3})
				mustPut(w.T, q, 1, 3)
				for range q.All(ctx) {
					x.Arm(1, coordtest.Deletes, func(ctx context.Context, call backendtest.Call, _ error) error {
						if how == "no answer" {
							select {
							case <-call.Session.Done():
							case <-ctx.Done():
							}
						}
						return backend.ErrDenied
					})
					if how == "cut off" {
						w.Link("a").Partition()
						w.Settle()
					}
					began := time.Now()
					c.Close()
					if d := time.Since(began); d > 5*time.Second {
						w.T.Errorf("Close took %v", d)
					}
					break
				}
				w.Link("a").Heal()
				b := w.queue("b", nil)
				for n := 1; n <= 3; n++ {
					mustAck(w.T, mustTake(w.T, b, n))
				}
			})
		})
	}
}
