package recipetest

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// heardQueue is w.loggedQueue, and returns the events of its client as well.
func (w *world) heardQueue(name string, hooks *backendtest.Hooks, o *coord.QueueOptions[int]) (q *coord.Queue[int], c *coord.Client, heard func() (events []trace.Event, log string)) {
	w.T.Helper()
	var mu sync.Mutex
	var text strings.Builder
	var events []trace.Event
	var link backend.Backend = w.Link(name)
	if hooks != nil {
		link = backendtest.Intercept(link, *hooks)
	}
	c = coordtest.Open(w.T, link, &coord.Options{
		Logger: slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return text.Write(p)
		}), nil)),
		Trace: func(_ context.Context, e trace.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		},
	})
	return coord.NewQueue(c, "/q", o), c, func() ([]trace.Event, string) {
		c.Close() // everything is delivered
		mu.Lock()
		defer mu.Unlock()
		return events, text.String()
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// queueRedeliveryTests are tests of Queue on each service.
type queueRedeliveryTests struct{ Services }

// The sign in the state of an item does not change what a version without it reads.
func (on queueRedeliveryTests) AttemptsGrowOverAllKindsOfEnds(t *testing.T) {
	on.all(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		for attempt := 1; attempt <= 9; attempt++ {
			it := mustTake(w.T, q, 1)
			if it.Attempt != attempt {
				w.T.Fatalf("attempt %d, want %d", it.Attempt, attempt)
			}
			end := it.Nack
			switch attempt % 3 {
			case 1:
				end = func(time.Duration) error { return it.Nack(time.Millisecond) }
			case 2:
				end = func(time.Duration) error { // as if it had not been taken
					if err := it.Release(); err != nil {
						return err
					}
					again := mustTake(w.T, q, 1)
					if again.Attempt != attempt {
						w.T.Errorf("attempt %d after a Release, want %d", again.Attempt, attempt)
					}
					return again.Nack(0)
				}
			}
			if err := end(0); err != nil {
				w.T.Fatal(err)
			}
		}
		mustAck(w.T, mustTake(w.T, q, 1))
		w.drained(&q.Consumer)
	})
}
