package recipetest

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// putWords puts texts that are no numbers.
func putWords(t *testing.T, q *coord.Queue[string], n int) {
	t.Helper()
	for i := range n {
		if _, err := q.Put(context.Background(), fmt.Sprint("word ", i)); err != nil {
			t.Fatal(err)
		}
	}
}

// queueUndecodableTests are tests of Queue on each service.
type queueUndecodableTests struct{ Services }

// An item that can be decoded ends the row, and the items before the one that is too many are
// handed out, with Prefetch or without.
func (on queueUndecodableTests) UndecodableItemsAmongOthersAreDeadLetters(t *testing.T) {
	for _, prefetch := range []int{1, 20} {
		t.Run(fmt.Sprint(prefetch), func(t *testing.T) {
			on.each(t, func(w *world) {
				ctx := context.Background()
				text := coord.NewQueue[string](w.Open("c", nil), "/q", nil)
				q := w.queue("a", &coord.QueueOptions[int]{Prefetch: prefetch})
				for n := 1; n <= 3; n++ {
					putWords(w.T, text, 5)
					mustPut(w.T, q, n, n)
				}
				putWords(w.T, text, 7)
				mustPut(w.T, q, 4, 4)
				want := 1
				for it, err := range q.All(ctx) {
					if err != nil {
						coordtest.WantErr(w.T, err, coord.ErrDecode)
						break
					}
					if it.Value != want || it.Attempt != 1 {
						w.T.Errorf("%+v, want %d", it, want)
					}
					want++
					mustAck(w.T, it)
				}
				if n := len(letters(w.T, &q.Consumer)); want != 4 || n != 20 {
					w.T.Errorf("stopped before %d, with %d dead letters", want, n)
				}
				if n := mustLen(w.T, &q.Consumer); n != 3 {
					w.T.Errorf("%d items left", n)
				}
				// Another consumer value, as after a restart, continues.
				b := w.queue("b", nil)
				it := mustTake(w.T, b, 4)
				if it.Attempt != 1 {
					w.T.Errorf("attempt %d", it.Attempt)
				}
				mustAck(w.T, it)
				w.drained(&b.Consumer)
			})
		})
	}
}

// The items of one claim: those before the item that is too many are handed out, and those
// behind it are given back.
func (on queueUndecodableTests) ItemsBehindThoseThatCannotBeDecodedUseNoAttempt(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		all := coord.NewQueue[any](w.Open("a", nil), "/q", nil)
		if _, err := all.PutAll(ctx, 1, "a", "b", "c", "d", "e", "f", "g", 2); err != nil {
			w.T.Fatal(err)
		}
		n := 0
		for it, err := range coord.NewQueue(w.Open("b", nil), "/q", &coord.QueueOptions[int]{Prefetch: 20}).All(ctx) {
			if n++; n == 2 {
				coordtest.WantErr(w.T, err, coord.ErrDecode)
				break
			}
			if err != nil || it.Value != 1 {
				w.T.Fatal(it, err)
			}
			mustAck(w.T, it)
		}
		for _, v := range []any{"f", "g", 2.0} {
			it, err := all.Take(ctx)
			if err != nil || it.Value != v || it.Attempt != 1 {
				w.T.Fatalf("%+v, %v, want %v", it, err, v)
			}
			if err := it.Ack(); err != nil {
				w.T.Error(err)
			}
		}
	})
}
