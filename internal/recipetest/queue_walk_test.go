package recipetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// What a client gives back while it takes another item is what it takes next: the list that the
// take has read is not relied on.
func TestQueue_WhatIsGivenBackDuringATakeIsNext(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil)
		mustPut(w.T, q, 1, 5)
		first := mustTake(w.T, q, 1)
		time.Sleep(2 * time.Second) // fake: the first list is too old
		claims := func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpCheck) }
		x.Arm(1, claims, func(context.Context, backendtest.Call, error) error {
			if err := first.Nack(0); err != nil {
				w.T.Error(err)
			}
			return nil
		})
		second := mustTake(w.T, q, 2)
		if !x.Idle() {
			w.T.Fatal("nothing was given back")
		}
		mustAck(w.T, mustTake(w.T, q, 1))
		mustAck(w.T, second)
	})
}

// A list that a client has read while a Nack of its own was under way shows the item as claimed.
// After the Nack, the client takes that item next.
func TestQueue_AListDuringANackIsForgotten(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil)
		mustPut(w.T, q, 1, 5)
		first := mustTake(w.T, q, 1)
		var second *coord.Item[int]
		x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			second = mustTake(w.T, q, 2)
			return nil
		})
		if err := first.Nack(0); err != nil {
			w.T.Fatal(err)
		}
		mustAck(w.T, mustTake(w.T, q, 1))
		mustAck(w.T, second)
	})
}

// A client passes over an item that another one has given back for a second at most, and for 32
// claims: T1, T15.
func TestQueue_WhatOthersGiveBackIsTakenSoon(t *testing.T) {
	for _, how := range []string{"after a second", "after 32 claims"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				q, other := w.queue("a", nil), w.queue("b", nil)
				*coordtest.Inside(&q.Consumer).BucketSize = 100
				mustPut(w.T, q, 1, 60)
				first := mustTake(w.T, other, 1)
				mustAck(w.T, mustTake(w.T, q, 2))
				if err := first.Nack(0); err != nil {
					w.T.Fatal(err)
				}
				if how == "after a second" {
					time.Sleep(1100 * time.Millisecond) // fake
					mustAck(w.T, mustTake(w.T, q, 1))
					mustAck(w.T, mustTake(w.T, q, 3))
					return
				}
				for next := 3; ; next++ {
					it, err := q.Take(context.Background())
					if err != nil {
						w.T.Fatal(err)
					}
					mustAck(w.T, it)
					if it.Value == 1 && next > 3 {
						return
					}
					if it.Value != next || next == 3+32 {
						w.T.Fatalf("took %d after %d others", it.Value, next-3)
					}
				}
			})
		})
	}
}

// A client takes an item of its own that is due before those that it has listed first.
func TestQueue_AnEarlierItemOfADelayQueueIsTakenFirst(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		q := w.delays("a", 0, nil)
		put := func(ago time.Duration, v int) {
			if _, err := q.Put(ctx, w.serviceTime().Add(-ago), v); err != nil {
				w.T.Fatal(err)
			}
		}
		for v := 2; v <= 4; v++ {
			put(time.Hour, v)
		}
		mustAck(w.T, mustTake(w.T, q, 2))
		put(2*time.Hour, 1)
		for _, v := range []int{1, 3, 4} {
			mustAck(w.T, mustTake(w.T, q, v))
		}
	})
}

// A Take whose ctx ends while the reply to its claim is lost costs the item no attempt.
func TestQueue_ATakeThatIsGivenUpDuringItsClaimCostsNoAttempt(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{After: x.After}, nil)
		mustPut(w.T, q, 1, 1)
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan error, 1)
		claims := func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpCheck) }
		ended := make(chan struct{})
		x.Arm(1, claims, func(context.Context, backendtest.Call, error) error {
			cancel()
			<-ended // no caller is left
			return backend.ErrUncertain
		})
		go func() {
			_, err := q.Take(ctx)
			over <- err
			close(ended)
		}()
		if err := <-over; !errors.Is(err, context.Canceled) {
			w.T.Fatal(err)
		}
		it := mustTake(w.T, w.queue("b", nil), 1)
		if it.Attempt != 1 {
			w.T.Errorf("attempt %d", it.Attempt)
		}
		mustAck(w.T, it)
		w.drained(&q.Consumer)
	})
}

// The item that Peek shows is the one that the next Take gets, also if another client has given it
// back since the list that this client goes by.
func TestQueue_ATakeGetsTheItemThatAPeekHasShown(t *testing.T) {
	onMemory(t, func(w *world) {
		a, b := w.queue("a", nil), w.queue("b", nil)
		mustPut(w.T, a, 1, 5)
		first := mustTake(w.T, b, 1)
		mustAck(w.T, mustTake(w.T, a, 2)) // and knows the others
		w.must(first.Release())
		if v, err := a.Peek(context.Background()); v != 1 || err != nil {
			w.T.Fatalf("Peek: %d, %v, want 1", v, err)
		}
		mustAck(w.T, mustTake(w.T, a, 1))
		mustAck(w.T, mustTake(w.T, a, 3))
	})
}
