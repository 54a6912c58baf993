package recipetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// queueLimitTests are tests of Queue on each service.
type queueLimitTests struct{ Services }

func (on queueLimitTests) AFullQueueRefusesOrBlocks(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a := w.queue("a", &coord.QueueOptions[int]{MaxLen: 3, FailWhenFull: true})
		b := w.queue("b", &coord.QueueOptions[int]{MaxLen: 3})
		mustPut(w.T, a, 1, 2)
		ids, err := a.PutAll(ctx, 3, 4, 5)
		coordtest.WantErr(w.T, err, coord.ErrFull)
		if len(ids) != 1 {
			w.T.Errorf("%d were put, want one", len(ids))
		}
		_, err = a.Put(ctx, 4)
		coordtest.WantErr(w.T, err, coord.ErrFull)
		reason := errors.New("no time")
		short, cancel := context.WithCancelCause(ctx)
		time.AfterFunc(50*time.Millisecond, func() { cancel(reason) })
		_, err = b.Put(short, 4)
		coordtest.WantErr(w.T, err, context.Canceled, reason)
		if n, err := a.Len(ctx); n != 3 || err != nil {
			w.T.Errorf("%d items, %v", n, err)
		}
		put := make(chan error)
		go func() {
			_, err := b.PutAll(ctx, 4, 5, 6, 7)
			put <- err
		}()
		for n := 1; n <= 7; n++ {
			it := mustTake(w.T, a, n) // it counts while it is claimed
			if n := mustLen(w.T, &a.Consumer); n > 3 {
				w.T.Errorf("%d items", n)
			}
			mustAck(w.T, it)
		}
		if err := <-put; err != nil {
			w.T.Error(err)
		}
		w.drained(&a.Consumer)
	})
}

func mustLen(t *testing.T, q *coord.Consumer[int]) int {
	t.Helper()
	n, err := q.Len(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (on queueLimitTests) CompetingProducersNeverOverfillAQueue(t *testing.T) {
	on.each(t, func(w *world) {
		const producers, each, limit = 4, 12, 5
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var producing, rest sync.WaitGroup
		for i := range producers {
			q := w.queue(fmt.Sprint("p", i), &coord.QueueOptions[int]{MaxLen: limit})
			*coordtest.Inside(&q.Consumer).BucketSize = 1_000 // one bucket, so that Len is exact
			producing.Go(func() {
				for n := range each {
					if _, err := q.Put(ctx, i*100+n); err != nil {
						w.T.Error(err)
					}
				}
			})
		}
		look := w.queue("look", nil)
		most := 0
		rest.Go(func() {
			for ctx.Err() == nil {
				if n, err := look.Len(ctx); err == nil {
					most = max(most, n)
				}
				time.Sleep(time.Millisecond)
			}
		})
		c := w.queue("c", nil)
		seen := make(map[int]bool)
		for it, err := range c.All(ctx) {
			if err != nil {
				w.T.Fatal(err)
			}
			seen[it.Value] = true
			mustAck(w.T, it)
			if len(seen) == producers*each {
				break
			}
		}
		producing.Wait()
		cancel()
		rest.Wait()
		if most > limit {
			w.T.Errorf("%d items, limit %d", most, limit)
		}
		w.drained(&look.Consumer)
	})
}

func (on queueLimitTests) AnItemThatFailsTooOftenBecomesADeadLetter(t *testing.T) {
	on.each(t, func(w *world) {
		o := &coord.QueueOptions[int]{MaxAttempts: 2}
		a, b := w.queue("a", o), w.queue("b", o)
		mustPut(w.T, a, 1, 3)
		// By Nack, and by the death of its consumers.
		first := mustTake(w.T, a, 1)
		second := mustTake(w.T, b, 2)
		w.Link("b").Expire(second.Session())
		if err := first.Nack(0); err != nil {
			w.T.Fatal(err)
		}
		first = mustTake(w.T, a, 1)
		if err := first.Nack(time.Hour); err != nil {
			w.T.Fatal(err)
		}
		second = mustTake(w.T, b, 2)
		if second.Attempt != 2 {
			w.T.Errorf("attempt %d", second.Attempt)
		}
		w.Link("b").Expire(second.Session())
		<-second.Done()
		mustAck(w.T, mustTake(w.T, a, 3))
		w.drained(&a.Consumer)
		dead := coord.NewQueue[int](w.Open("d", nil), "/q/dead", nil)
		for i, old := range []*coord.Item[int]{first, second} {
			it := mustTake(w.T, dead, i+1)
			if it.ID != old.ID || it.Attempt != 1 {
				w.T.Errorf("dead letter %+v of %+v", it, old)
			}
			mustAck(w.T, it)
		}
		_, err := dead.TryTake(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
	})
}

func (on queueLimitTests) AnItemThatCannotBeDecodedBecomesADeadLetter(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		words := coord.NewQueue[string](c, "/q", nil)
		if _, err := words.Put(ctx, "not a number"); err != nil {
			w.T.Fatal(err)
		}
		q := w.queue("b", &coord.QueueOptions[int]{DeadLetterPath: "/elsewhere"})
		mustPut(w.T, q, 1, 1)
		_, err := q.Peek(ctx)
		coordtest.WantErr(w.T, err, coord.ErrDecode)
		mustAck(w.T, mustTake(w.T, q, 1))
		w.drained(&q.Consumer)
		if v, err := coord.NewQueue[string](c, "/elsewhere", nil).Pop(ctx); v != "not a number" || err != nil {
			w.T.Errorf("%q, %v", v, err)
		}
	})
}

// Peek skips an item that a take would move to the dead letters.
func (on queueLimitTests) PeekSkipsItemsThatWereTakenTooOften(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		o := &coord.QueueOptions[int]{MaxAttempts: 1}
		a, b := w.queue("a", o), w.queue("b", o)
		mustPut(w.T, a, 1, 2)
		it := mustTake(w.T, b, 1)
		w.Link("b").Expire(it.Session())
		<-it.Done()
		if v, err := a.Peek(ctx); v != 2 || err != nil {
			w.T.Errorf("Peek: %d, %v, want 2", v, err)
		}
		mustAck(w.T, mustTake(w.T, a, 2))
		_, err := a.Peek(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
	})
}

// The largest item that can be put can also be moved to the dead letters.
func (on queueLimitTests) TheLargestItemFitsIntoTheDeadLetters(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewQueue(w.Open("a", nil), "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes(), MaxAttempts: 1})
		size := backend.MaxRequest
		for {
			_, err := q.Put(ctx, make([]byte, size))
			if err == nil {
				break
			}
			coordtest.WantErr(w.T, err, coord.ErrTooLarge)
			size -= 1_000
		}
		w.T.Logf("figure: the largest item has some %d bytes", size)
		if size < 900_000 {
			w.T.Errorf("an item of more than %d bytes is refused", size)
		}
		it, err := q.Take(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		if err := it.Nack(0); err != nil {
			w.T.Fatal(err)
		}
		dead, err := coord.NewQueue(w.Open("b", nil), "/q/dead", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()}).Pop(ctx)
		if err != nil || len(dead) != size {
			w.T.Errorf("a dead letter of %d bytes, %v", len(dead), err)
		}
	})
}
