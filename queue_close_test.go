package coord_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// untouched takes the numbers from first to last and checks that each is taken for the
// first time.
func untouched(w *world, q *coord.Queue[int], first, last int) {
	w.t.Helper()
	for n := first; n <= last; n++ {
		it := mustTake(w.t, q, n)
		if it.Attempt != 1 {
			w.t.Errorf("item %d: attempt %d, want 1", n, it.Attempt)
		}
		mustAck(w.t, it)
	}
	if n, err := coord.NewQueue[int](w.open("dead", nil), "/q/dead", nil).Len(context.Background()); n != 0 || err != nil {
		w.t.Errorf("%d dead letters, %v", n, err)
	}
}

// An item that no handler has received is no attempt when a client closes in order.
func TestAnOrderlyEndGivesBackWhatNoHandlerReceived(t *testing.T) {
	for _, how := range []string{"cancel and close", "close"} {
		end := func(cancel context.CancelFunc, c *coord.Client) {
			if how != "close" {
				cancel()
			}
			c.Close()
		}
		t.Run(how+", prefetched, in the loop", func(t *testing.T) {
			onEach(t, func(w *world) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				c := w.open("a", nil)
				q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{Prefetch: 10, MaxAttempts: 1})
				mustPut(w.t, q, 1, 10)
				for it, err := range q.All(ctx) {
					if err != nil {
						wantErr(w.t, err, coord.ErrClosed)
						break
					}
					if it.Value > 1 {
						w.t.Errorf("got %d after Close", it.Value)
					}
					mustAck(w.t, it)
					end(cancel, c)
				}
				untouched(w, w.queue("b", &coord.QueueOptions[int]{MaxAttempts: 1}), 2, 10)
			})
		})
		t.Run(how+", waits in Items", func(t *testing.T) {
			onEach(t, func(w *world) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				c := w.open("a", nil)
				q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{Prefetch: 3, MaxAttempts: 1})
				mustPut(w.t, q, 1, 5)
				ch := q.Items(ctx)
				w.eventually("three are claimed", func() bool {
					return len(slices.DeleteFunc(w.children("/q/items/b-0-0"), func(name string) bool { return !strings.HasPrefix(name, "m-") })) == 3
				})
				w.settle()
				end(cancel, c)
				if it, ok := <-ch; ok {
					w.t.Errorf("got %v after Close", it)
				}
				untouched(w, w.queue("b", &coord.QueueOptions[int]{MaxAttempts: 1}), 1, 5)
			})
		})
		// The end comes at each step of a Take.
		for step, match := range map[string]func(backendtest.Call) bool{
			"the claim": claims,
			"the read":  func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/i-") },
		} {
			for _, late := range []bool{false, true} {
				t.Run(fmt.Sprint(how, ", a Take before ", step, " or its reply: ", late), func(t *testing.T) {
					onEach(t, func(w *world) {
						ctx, cancel := context.WithCancel(context.Background())
						defer cancel()
						var x nth
						hooks := &backendtest.Hooks{Before: x.before}
						if late {
							hooks = &backendtest.Hooks{After: x.after}
						}
						c := w.open("a", hooks)
						q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
						mustPut(w.t, q, 1, 2)
						closed := make(chan struct{})
						x.arm(1, match, func(_ context.Context, _ backendtest.Call, err error) error {
							go func() {
								defer close(closed)
								end(cancel, c)
							}()
							// Close has begun: it refuses new calls.
							for !closing(c) {
								time.Sleep(time.Millisecond)
							}
							return err
						})
						_, err := q.Take(ctx)
						if how == "close" || !errors.Is(err, context.Canceled) {
							wantErr(w.t, err, coord.ErrClosed)
						}
						<-closed
						untouched(w, w.queue("b", &coord.QueueOptions[int]{MaxAttempts: 1}), 1, 2)
					})
				})
			}
		}
	}
}

// closing reports whether the client refuses new calls.
func closing(c *coord.Client) bool {
	_, err := coord.NewQueue[int](c, "/other", nil).Len(context.Background())
	return errors.Is(err, coord.ErrClosed)
}

// What cannot be given back does not hold up Close for long.
func TestCloseIsBoundedWhenNothingCanBeGivenBack(t *testing.T) {
	for _, how := range []string{"refused", "no answer", "cut off"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				var x nth
				c := w.open("a", &backendtest.Hooks{Before: x.before})
				q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{Prefetch: 3})
				mustPut(w.t, q, 1, 3)
				for range q.All(ctx) {
					x.arm(1, deletes, func(ctx context.Context, call backendtest.Call, _ error) error {
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
						w.settle()
					}
					began := time.Now()
					c.Close()
					if d := time.Since(began); d > 5*time.Second {
						w.t.Errorf("Close took %v", d)
					}
					break
				}
				w.Link("a").Heal()
				b := w.queue("b", nil)
				for n := 1; n <= 3; n++ {
					mustAck(w.t, mustTake(w.t, b, n))
				}
			})
		})
	}
}
