package recipetest

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// mustStats returns the figures of a queue without Oldest, and Oldest.
func mustStats(t *testing.T, q interface {
	Stats(context.Context) (coord.QueueStats, error)
}) (st coord.QueueStats, oldest time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), coordtest.Limit)
	defer cancel()
	st, err := q.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	oldest, st.Oldest = st.Oldest, 0
	return st, oldest
}

func wantStats(t *testing.T, q interface {
	Stats(context.Context) (coord.QueueStats, error)
}, want coord.QueueStats) {
	t.Helper()
	if got, _ := mustStats(t, q); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// queueStatsTests are tests of Queue on each service.
type queueStatsTests struct{ Services }

func (on queueStatsTests) StatsCountTheItemsOfEachState(t *testing.T) {
	on.all(t, func(w *world) {
		o := &coord.QueueOptions[int]{MaxAttempts: 1}
		q := w.queue("a", o)
		wantStats(w.T, q, coord.QueueStats{})
		mustPut(w.T, q, 1, 20)
		if err := mustTake(w.T, q, 1).Nack(0); err != nil { // the only attempt
			w.T.Fatal(err)
		}
		if err := mustTake(w.T, q, 2).Nack(time.Hour); err != nil {
			w.T.Fatal(err)
		}
		open := w.queue("b", nil)
		if err := mustTake(w.T, open, 3).Nack(time.Hour); err != nil {
			w.T.Fatal(err)
		}
		claimed := mustTake(w.T, open, 4)
		mustAck(w.T, mustTake(w.T, open, 5))
		it := mustTake(w.T, q, 6)
		buckets := len(w.Children("/q/items"))
		if buckets < 3 {
			w.T.Fatalf("%d buckets: this tests too little", buckets)
		}
		wantStats(w.T, q, coord.QueueStats{Ready: 14, Claimed: 2, Delayed: 1, Dead: 2, Buckets: buckets})
		wantStats(w.T, w.delayQueue("c"), coord.QueueStats{Ready: 14, Claimed: 2, Delayed: 1, Dead: 2, Buckets: buckets})
		mustAck(w.T, claimed)
		if err := it.Release(); err != nil {
			w.T.Fatal(err)
		}
		wantStats(w.T, q, coord.QueueStats{Ready: 15, Delayed: 1, Dead: 2, Buckets: buckets})
	})
}

// A client that waits has a node in one of two directories. The dead, the busy and the callers
// that share a client do not count more.
func (on queueStatsTests) StatsCountTheClientsThatWait(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		busy := mustTake(w.T, q, 1)
		ctx, cancel := context.WithCancel(context.Background())
		var waits []*taking
		for _, name := range []string{"b", "c"} {
			q := w.queue(name, nil)
			waits = append(waits, w.takeWaits(ctx, q), w.takeWaits(ctx, q))
		}
		w.Settle()
		wantStats(w.T, q, coord.QueueStats{Claimed: 1, Waiting: 2, Buckets: 1})
		s := w.Session("outsider")
		for _, op := range []backend.Op{
			backend.Create(w.Path("/q/waiters/slot-7"), nil, backend.Ephemeral),
			backend.Create(w.Path("/q/waiters/slot-8"), nil, backend.Ephemeral),
			backend.Create(w.Path("/q/waiters/slot-x"), nil, backend.Ephemeral),
			backend.Create(w.Path("/q/waiters/readme"), nil, backend.Persistent),
		} {
			if _, err := s.Commit(ctx, op); err != nil {
				w.T.Fatal(err)
			}
		}
		wantStats(w.T, q, coord.QueueStats{Claimed: 1, Waiting: 4, Buckets: 1})
		cancel()
		for _, x := range waits {
			<-x.done
		}
		mustAck(w.T, busy)
	})
}

// The clock of the client is wrong, and that of the service is ahead.
func (on queueStatsTests) StatsTellTheAgeOfTheOldestReadyItem(t *testing.T) {
	on.all(t, func(w *world) {
		w.serviceTime()
		const slack = time.Minute // of a real server, on a busy machine
		pass := func(d time.Duration) {
			if w.Fake {
				time.Sleep(d)
			} else {
				time.Sleep(d / 1000)
			}
		}
		scale := func(d time.Duration) time.Duration {
			if w.Fake {
				return d
			}
			return d / 1000
		}
		check := func(what string, q interface {
			Stats(context.Context) (coord.QueueStats, error)
		}, want time.Duration) {
			w.T.Helper()
			tolerance := lateness
			if !w.Fake {
				tolerance = slack
			}
			_, got := mustStats(w.T, q)
			if want = scale(want); got < want-lateness || got > want+tolerance || got == 0 && want > lateness {
				w.T.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		ctx := context.Background()

		wrong := 5 * time.Minute
		if !w.hasClock(w.Open("any", nil)) {
			wrong = 0 // the clocks of clients count
		}
		w.Skew = -wrong
		q := coord.NewQueue[int](w.Open("a", nil), "/fifo", nil)
		w.Skew = 0
		check("an empty queue", q, 0)
		mustPut(w.T, q, 1, 1)
		pass(time.Minute)
		mustPut(w.T, q, 2, 40)
		pass(time.Minute)
		check("a queue", q, 2*time.Minute)
		it := mustTake(w.T, q, 1)
		check("the oldest is claimed", q, time.Minute)
		if err := it.Nack(0); err != nil {
			w.T.Fatal(err)
		}
		check("the oldest was given back", q, 2*time.Minute)

		p := coord.NewPriorityQueue[int](w.Open("b", nil), "/priority", nil)
		mustPutAt(w.T, p, 7, 1)
		pass(time.Minute)
		mustPutAt(w.T, p, -3, 2, 3)
		mustPutAt(w.T, p, 7, 4)
		pass(time.Minute)
		check("a priority that starves", p, 2*time.Minute)

		w.Skew = wrong
		d := coord.NewDelayQueue[int](w.Open("c", nil), "/delay", nil)
		w.Skew = 0
		now := w.serviceTime()
		if _, err := d.Put(ctx, now.Add(-time.Hour), 1); err != nil { // due when it is put
			w.T.Fatal(err)
		}
		for i, due := range []time.Duration{scale(time.Minute), scale(time.Minute) + time.Millisecond, 24 * time.Hour} {
			if _, err := d.Put(ctx, now.Add(due), 2+i); err != nil {
				w.T.Fatal(err)
			}
		}
		pass(3 * time.Minute)
		check("a DelayQueue with an item that was put late", d, 3*time.Minute)
		mustAck(w.T, mustTake(w.T, d, 1))
		check("a DelayQueue", d, 2*time.Minute)
	})
}
