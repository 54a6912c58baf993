package recipetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// A consumer with the wrong codec moves five items to the dead letters and stops, whatever call
// takes them, and the others are as they were. It stops at once if it is asked again.
func TestQueue_AConsumerWithTheWrongCodecStops(t *testing.T) {
	for name, call := range map[string]func(context.Context, *coord.Queue[int]) error{
		"take":    func(ctx context.Context, q *coord.Queue[int]) error { _, err := q.Take(ctx); return err },
		"trytake": func(ctx context.Context, q *coord.Queue[int]) error { _, err := q.TryTake(ctx); return err },
		"pop":     func(ctx context.Context, q *coord.Queue[int]) error { _, err := q.Pop(ctx); return err },
		"all": func(ctx context.Context, q *coord.Queue[int]) error {
			for it, err := range q.All(ctx) {
				if it != nil {
					return fmt.Errorf("got %v", it.Value)
				}
				return err
			}
			return nil
		},
		"work": func(ctx context.Context, q *coord.Queue[int]) error {
			return q.Work(ctx, 3, func(context.Context, *coord.Item[int]) error { return errors.New("handled") })
		},
		"items": func(ctx context.Context, q *coord.Queue[int]) error {
			for it := range q.Items(ctx) {
				return fmt.Errorf("got %v", it.Value)
			}
			return coord.ErrDecode // the error is logged
		},
	} {
		for _, prefetch := range []int{1, 4, 20} {
			t.Run(fmt.Sprint(name, prefetch), func(t *testing.T) {
				onMemory(t, func(w *world) {
					ctx := context.Background()
					const items = 12
					text := coord.NewQueue[string](w.Open("b", nil), "/q", nil)
					putWords(w.T, text, items)
					q := w.queue("a", &coord.QueueOptions[int]{Prefetch: prefetch, MaxAttempts: 1})
					for range 3 {
						coordtest.WantErr(w.T, call(ctx, q), coord.ErrDecode)
						l := letters(w.T, &q.Consumer)
						if len(l) != 5 {
							w.T.Fatalf("%d dead letters, want 5", len(l))
						}
						for _, d := range l {
							coordtest.WantErr(w.T, d.Err, coord.ErrDecode)
						}
					}
					// The others have used no attempt.
					for i := 5; i < items; i++ {
						it, err := text.Take(ctx)
						if err != nil {
							w.T.Fatal(err)
						}
						if it.Value != fmt.Sprint("word ", i) || it.Attempt != 1 {
							w.T.Errorf("%+v", it)
						}
						if err := it.Ack(); err != nil {
							w.T.Error(err)
						}
					}
					w.drained(&q.Consumer)
				})
			})
		}
	}
}
