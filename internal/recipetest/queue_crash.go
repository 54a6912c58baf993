package recipetest

import (
	"context"
	"maps"
	"testing"

	"github.com/go-coord/coord"
)

// queueCrashTests are tests of Queue on each service.
type queueCrashTests struct{ Services }

// TestQueue/WhatACrashCostsAQueue is the table of the comment of Consumer: a consumer that dies has claimed what the
// table says, and those items are redelivered as a second attempt.
func (on queueCrashTests) WhatACrashCostsAQueue(t *testing.T) {
	t.Parallel()
	const items = 6
	type consumer struct {
		w   *world
		q   *coord.Queue[int]
		ctx context.Context // ends after the crash
	}
	run := func(x *consumer, f func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		x.w.T.Cleanup(func() { <-done })
	}
	for _, c := range []struct {
		name     string
		o        coord.QueueOptions[int]
		consume  func(x *consumer)
		claimed  int  // the first items of the queue
		consumed int  // the first items of the queue, which are lost
		real     bool // on a real server too
	}{
		{name: "Take", claimed: 1, consume: func(x *consumer) { mustTake(x.w.T, x.q, 1) }},
		{name: "Take and Ack", claimed: 1, consumed: 1, consume: func(x *consumer) {
			mustAck(x.w.T, mustTake(x.w.T, x.q, 1))
			mustTake(x.w.T, x.q, 2)
		}},
		{name: "All", claimed: 1, consume: func(x *consumer) {
			run(x, func() {
				for range x.q.All(x.ctx) {
					<-x.ctx.Done()
				}
			})
		}},
		{name: "All with Prefetch", real: true, o: coord.QueueOptions[int]{Prefetch: 4}, claimed: 4, consume: func(x *consumer) {
			run(x, func() {
				for range x.q.All(x.ctx) {
					<-x.ctx.Done()
				}
			})
		}},
		{name: "Items", claimed: 2, consume: func(x *consumer) { <-x.q.Items(x.ctx) }},
		{name: "Items with Prefetch", o: coord.QueueOptions[int]{Prefetch: 3}, claimed: 3, consume: func(x *consumer) { <-x.q.Items(x.ctx) }},
		{name: "Work", claimed: 3, consume: func(x *consumer) {
			run(x, func() {
				_ = x.q.Work(x.ctx, 3, func(context.Context, *coord.Item[int]) error { // ends with x.ctx
					<-x.ctx.Done()
					return nil
				})
			})
		}},
		{name: "Pop", real: true, consumed: 1, consume: func(x *consumer) {
			if v, err := x.q.Pop(x.ctx); err != nil || v != 1 {
				x.w.T.Fatal(v, err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			each := onMemory
			if c.real {
				each = on.each // a session takes its time to expire
			}
			each(t, func(w *world) {
				other := w.queue("other", nil)
				mustPut(w.T, other, 1, items)
				ctx, cancel := context.WithCancel(context.Background())
				w.T.Cleanup(cancel)
				c.consume(&consumer{w, w.queue("dying", &c.o), ctx})
				claimed := func() int {
					st, _ := mustStats(w.T, other)
					return st.Claimed
				}
				w.Eventually("the items are claimed", func() bool { return claimed() == c.claimed })
				w.Link("dying").Partition()
				w.Eventually("the session has ended", func() bool { return claimed() == 0 })
				got, want := make(map[int]int), make(map[int]int)
				for n := c.consumed + 1; n <= items; n++ {
					want[n] = 1
					if n <= c.consumed+c.claimed {
						want[n] = 2
					}
					it := mustTake(w.T, other, n)
					got[it.Value] = it.Attempt
					mustAck(w.T, it)
				}
				if !maps.Equal(got, want) {
					w.T.Errorf("the attempts are %v, want %v", got, want)
				}
				w.drained(&other.Consumer)
				cancel()
				w.Link("dying").Heal()
			})
		})
	}
}
