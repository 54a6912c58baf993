package recipetest

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// loggedQueue is w.queue, and returns what its client has logged when it is closed.
func (w *world) loggedQueue(name string, o *coord.QueueOptions[int]) (q *coord.Queue[int], c *coord.Client, log func() string) {
	w.T.Helper()
	var mu sync.Mutex
	var text bytes.Buffer
	c = coordtest.Open(w.T, w.Link(name), &coord.Options{Logger: slog.New(slog.NewTextHandler(&lockedWriter{mu: &mu, to: &text}, nil))})
	return coord.NewQueue(c, "/q", o), c, func() string {
		c.Close() // the log is complete
		mu.Lock()
		defer mu.Unlock()
		return text.String()
	}
}

// queueDrainTests are tests of Queue on each service.
type queueDrainTests struct{ Services }

// An attempt that was counted before stays counted, and the delay of a failed one is over at once.
func (on queueDrainTests) EndOfItsContextKeepsEarlierAttempts(t *testing.T) {
	on.each(t, func(w *world) {
		q, b := w.queue("a", nil), w.queue("b", nil)
		mustPut(w.T, b, 1, 1)
		for range 3 {
			if err := mustTake(w.T, b, 1).Nack(0); err != nil {
				w.T.Fatal(err)
			}
		}
		for range 5 { // deployments
			ctx, cancel := context.WithCancel(context.Background())
			if err := q.Work(ctx, 1, func(_ context.Context, it *coord.Item[int]) error {
				if it.Attempt != 4 {
					w.T.Errorf("attempt %d, want 4", it.Attempt)
				}
				cancel()
				return ctx.Err()
			}); err != nil {
				w.T.Fatal(err)
			}
		}
		it := mustTake(w.T, b, 1)
		if it.Attempt != 4 {
			w.T.Errorf("attempt %d, want 4", it.Attempt)
		}
		mustAck(w.T, it)
		w.drained(&b.Consumer)
	})
}
