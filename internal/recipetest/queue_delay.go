package recipetest

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// wrongClocks are what the clocks of clients are wrong by.
var wrongClocks = []time.Duration{5 * time.Minute, -5 * time.Minute, 0}

// serviceAhead is by how much the clock of a store in memory is ahead of that of the process.
const serviceAhead = 3 * time.Hour

// serviceTime returns the time by the service's clock. On a real server it is that of the
// machine.
func (w *world) serviceTime() time.Time {
	if m, ok := w.Service.(coordtest.MemoryService); ok {
		m.Store.SetClock(serviceAhead)
		return time.Now().Add(serviceAhead)
	}
	return time.Now()
}

// delays returns the DelayQueue at /q of a client whose clock is wrong by that. The test is
// skipped if the clocks of clients count.
func (w *world) delays(name string, wrong time.Duration, hooks *backendtest.Hooks) *coord.DelayQueue[int] {
	w.T.Helper()
	w.Skew = wrong
	c := w.Open(name, hooks)
	w.Skew = 0
	if wrong != 0 && !w.hasClock(c) {
		w.T.Skip("the service has no clock")
	}
	return coord.NewDelayQueue[int](c, "/q", nil)
}

// hasClock reports whether the times of the service are those of its own clock.
func (w *world) hasClock(c *coord.Client) bool {
	w.T.Helper()
	s, err := c.Session(context.Background())
	if err != nil {
		w.T.Fatal(err)
	}
	return s.Features().Has(backend.Clock)
}

// lateness is by how much an item may be late by the clock of a store without latency: the width
// of the interval when the latest write of the client was some minutes ago.
const lateness = 53 * time.Millisecond

// claimed returns when an item was claimed, by the service's clock.
func claimed(w *world, it *coord.Item[int]) time.Time {
	w.T.Helper()
	stat, err := w.Session("x").Exists(context.Background(), it.Path(), nil)
	if err != nil {
		w.T.Fatal(err)
	}
	return time.UnixMilli(stat.Ctime)
}

// takenOn checks that an item was claimed when it was due, by the service's clock.
func takenOn(w *world, it *coord.Item[int], due time.Time) {
	w.T.Helper()
	late := claimed(w, it).Sub(due.Add(time.Millisecond - 1).Truncate(time.Millisecond))
	switch {
	case late < 0:
		w.T.Errorf("%d was taken %v before it was due", it.Value, -late)
	case w.Fake && late > lateness, late > time.Minute:
		w.T.Errorf("%d was taken %v after it was due", it.Value, late)
	}
}

// takeDelayed starts a Take, which takes the item of value want when it is due.
func takeDelayed(w *world, q *coord.DelayQueue[int], want int, due time.Time) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		it := mustTakeOrLog(w, q)
		if it == nil {
			return
		}
		if it.Value != want {
			w.T.Errorf("took %d, want %d", it.Value, want)
		}
		takenOn(w, it, due)
		if err := it.Ack(); err != nil {
			w.T.Error(err)
		}
	}()
	return done
}

func mustTakeOrLog(w *world, q *coord.DelayQueue[int]) *coord.Item[int] {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	it, err := q.Take(ctx)
	if err != nil {
		w.T.Error(err)
		return nil
	}
	return it
}

// queueDelayTests are tests of DelayQueue on each service.
type queueDelayTests struct{ Services }

// A consumer whose clock is fast takes nothing early, and one whose clock is slow delays nothing.
func (on queueDelayTests) TheClockOfAConsumerDoesNotMatter(t *testing.T) {
	t.Parallel()
	for _, wrong := range wrongClocks {
		t.Run(wrong.String(), func(t *testing.T) {
			on.each(t, func(w *world) {
				ctx := context.Background()
				now := w.serviceTime()
				p := w.delays("producer", 0, nil)
				soon, late := now.Add(700*time.Millisecond), now.Add(1300*time.Millisecond)
				for n, due := range map[int]time.Time{1: soon, 2: late} {
					if _, err := p.Put(ctx, due, n); err != nil {
						w.T.Fatal(err)
					}
				}
				// One that asks, one that looks, and one that waits; each on a session that knows nothing.
				if it, err := w.delays("trying", wrong, nil).TryTake(ctx); err == nil {
					takenOn(w, it, soon) // a real server can have been slow
					w.T.Skip("the machine is too slow")
				} else {
					coordtest.WantErr(w.T, err, coord.ErrEmpty)
				}
				q := w.delays("consumer", wrong, nil)
				<-takeDelayed(w, q, 1, soon)
				<-takeDelayed(w, q, 2, late)
				// An item that is due is found without a wait for another clock.
				due := w.serviceTime().Add(-time.Second)
				if _, err := p.Put(ctx, due, 3); err != nil {
					w.T.Fatal(err)
				}
				if v, err := w.delays("looking", wrong, nil).Peek(ctx); v != 3 || err != nil {
					w.T.Errorf("Peek: %d, %v, want 3", v, err)
				}
				began := time.Now()
				it := mustTakeWithin(w.T, w.delays("late", wrong, nil), 3, coordtest.Limit)
				if waited := time.Since(began); w.Fake && waited > time.Millisecond {
					w.T.Errorf("an item that is due was taken after %v", waited)
				}
				// The delay of a Nack.
				began = claimed(w, it)
				const delay = 400 * time.Millisecond
				if err := it.Nack(delay); err != nil {
					w.T.Fatal(err)
				}
				it = mustTakeWithin(w.T, w.delays("again", -wrong, nil), 3, coordtest.Limit)
				passed := claimed(w, it).Sub(began)
				if passed < delay || w.Fake && passed > delay+4*time.Millisecond {
					w.T.Errorf("an item that was put off for %v was taken after %v", delay, passed)
				}
				mustAck(w.T, it)
			})
		})
	}
}

// PutAfter counts from the call by the service's clock, whatever the clock of the producer shows.
func (on queueDelayTests) PutAfterCountsByTheClockOfTheService(t *testing.T) {
	t.Parallel()
	for _, wrong := range wrongClocks {
		t.Run(wrong.String(), func(t *testing.T) {
			on.each(t, func(w *world) {
				ctx := context.Background()
				w.serviceTime()
				p, c := w.delays("producer", wrong, nil), w.delays("consumer", -wrong, nil)
				put := func(d time.Duration, n int) time.Time {
					w.T.Helper()
					before := w.serviceTime()
					id, err := p.PutAfter(ctx, d, n)
					if err != nil || id == "" {
						w.T.Fatal(id, err)
					}
					return before
				}
				for n, d := range map[int]time.Duration{1: 500 * time.Millisecond, 2: time.Nanosecond, 3: 0, 4: -time.Hour} {
					before := put(d, n)
					it := mustTakeWithin(w.T, c, n, coordtest.Limit)
					passed := claimed(w, it).Sub(before)
					if passed < d-time.Millisecond || w.Fake && passed > max(d, 0)+4*time.Millisecond { // claimed is truncated
						w.T.Errorf("an item put for after %v was taken after %v", d, passed)
					}
					mustAck(w.T, it)
				}
				put(1<<63-1, 5)
				_, err := c.TryTake(ctx)
				coordtest.WantErr(w.T, err, coord.ErrEmpty)
			})
		})
	}
}
