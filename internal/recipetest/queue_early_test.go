package recipetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// setClock makes the clock of a store in memory show that much more than serviceTime returns.
func (w *world) setClock(jump time.Duration) {
	w.Service.(coordtest.MemoryService).Store.SetClock(serviceAhead + jump)
}

// clockStep is what happens to the clock of the service, and when.
type clockStep struct {
	first, then time.Duration // what it is ahead when the client learns its time, and later
	when        clockMoment
	putOff      bool // the item was put off by a Nack; else it has a due time
}

type clockMoment string

const (
	beforeRead    clockMoment = "before the read"
	duringWait    clockMoment = "during a wait"
	beforeClaim   clockMoment = "between the read and the claim"
	lostReply     clockMoment = "before a claim whose reply is lost"
	anotherLeader clockMoment = "before a claim that is sent again to another leader"
)

// No step of the service's clock makes an item early, large or small, whenever it comes.
func TestDelayQueue_AClockThatIsSetBackMakesNothingEarly(t *testing.T) {
	for _, when := range []clockMoment{beforeRead, duringWait, beforeClaim, lostReply, anotherLeader} {
		for _, jump := range [][2]time.Duration{{0, -5 * time.Minute}, {0, -20 * time.Millisecond}, {5 * time.Minute, 0}} {
			for _, putOff := range []bool{false, true} {
				x := clockStep{jump[0], jump[1], when, putOff}
				t.Run(fmt.Sprintf("%v to %v %s, put off: %t", x.first, x.then, x.when, x.putOff), func(t *testing.T) { onMemory(t, x.play) })
			}
		}
	}
}

func (x clockStep) play(w *world) {
	ctx := context.Background()
	const delay = 10 * time.Second
	now := w.serviceTime().Add(x.first)
	w.setClock(x.first)
	due, attempt := now.Add(delay), 1
	var armed atomic.Bool
	step := func() {
		if x.when == anotherLeader {
			l := w.Link("a").(*memory.Link)
			l.Partition()
			defer l.Heal()
		}
		w.setClock(x.then)
	}
	q := w.delays("a", 0, &backendtest.Hooks{
		Before: func(_ context.Context, c backendtest.Call) error {
			if x.when == lostReply || !claims(c) || !armed.CompareAndSwap(true, false) {
				return nil
			}
			step()
			if x.when == anotherLeader {
				return backend.ErrUncertain
			}
			return nil
		},
		After: func(_ context.Context, c backendtest.Call, err error) error {
			if x.when == lostReply && claims(c) && armed.CompareAndSwap(true, false) {
				return backend.ErrUncertain
			}
			return err
		},
	})
	if x.putOff {
		if _, err := q.Put(ctx, now, 1); err != nil {
			w.T.Fatal(err)
		}
		if err := mustTakeWithin(w.T, q, 1, time.Second).Nack(delay); err != nil {
			w.T.Fatal(err)
		}
		attempt = 2
	} else if _, err := q.Put(ctx, due, 1); err != nil {
		w.T.Fatal(err)
	}
	if x.when == duringWait {
		done := takeDelayed(w, q, 1, due)
		time.Sleep(delay / 2)
		step()
		<-done
		return
	}
	time.Sleep(delay + 5*time.Millisecond) // the client's estimate says that the item is due
	if x.when == beforeRead || x.when == lostReply {
		step()
	}
	armed.Store(x.when != beforeRead)
	_, err := q.TryTake(ctx)
	coordtest.WantErr(w.T, err, coord.ErrEmpty)
	if armed.Load() {
		w.T.Fatal("the client has made no claim: the test shows nothing")
	}
	it := mustTakeWithin(w.T, q, 1, time.Hour)
	takenOn(w, it, due)
	if it.Attempt != attempt {
		w.T.Errorf("attempt %d, want %d: a claim that was early counts", it.Attempt, attempt)
	}
	mustAck(w.T, it)
}

// A consumer whose claim was early gives up its slot with the claim. It takes another one, and does not
// take the item for one that the service does not have.
func TestDelayQueue_AConsumerWhoseClaimWasEarlyWaitsInASlot(t *testing.T) {
	onMemory(t, func(w *world) {
		due := w.serviceTime().Add(10 * time.Second)
		q := w.delays("a", 0, nil)
		if _, err := q.Put(context.Background(), due, 1); err != nil {
			w.T.Fatal(err)
		}
		done := takeDelayed(w, q, 1, due)
		time.Sleep(time.Second)
		// Twice, since the client ignores an item that has vanished twice for a minute.
		for i, pause := range []time.Duration{10 * time.Second, 5 * time.Second} {
			w.setClock(-time.Duration(i+1) * 5 * time.Second)
			time.Sleep(pause) // the client's estimate says that the item is due
			w.Settle()
			if slots, waiters := standing(w, "/q"); len(slots) != 1 || len(waiters) > 0 {
				w.T.Errorf("slots %q, waiters %q, want one slot", slots, waiters)
			}
		}
		<-done
	})
}

// A consumer relies on a list for a second. Items of a list from before the clock was set are not early.
func TestDelayQueue_AListFromBeforeTheClockWasSetMakesNothingEarly(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		due := w.serviceTime().Add(10 * time.Second)
		q := w.delays("a", 0, nil)
		for n := range 3 {
			if _, err := q.Put(ctx, due, n); err != nil {
				w.T.Fatal(err)
			}
		}
		time.Sleep(11 * time.Second)
		mustAck(w.T, mustTakeWithin(w.T, q, 0, time.Millisecond))
		w.setClock(-5 * time.Second)
		_, err := q.TryTake(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		for n := 1; n < 3; n++ {
			it := mustTakeWithin(w.T, q, n, time.Minute)
			takenOn(w, it, due)
			mustAck(w.T, it)
		}
	})
}

// A Pop that deletes an item without a claim cannot give it back. So it does not delete an item with a due
// time in this way, also if the clock is set back after the list, or while the commit is under way.
func TestDelayQueue_APopAfterTheClockWasSetBackReturnsNothingEarly(t *testing.T) {
	for _, when := range []clockMoment{beforeRead, beforeClaim} {
		t.Run(string(when), func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				due := w.serviceTime().Add(10 * time.Second)
				var jump time.Duration
				var armed atomic.Bool
				step := func() {
					jump = -5 * time.Second
					w.setClock(jump)
				}
				q := w.delays("a", 0, &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					if c.Op == "commit" && armed.CompareAndSwap(true, false) {
						step()
					}
					return nil
				}})
				for n := range 2 {
					if _, err := q.Put(ctx, due, n); err != nil {
						w.T.Fatal(err)
					}
				}
				time.Sleep(11 * time.Second)
				if v, err := q.Pop(ctx); v != 0 || err != nil {
					w.T.Fatalf("popped %d, %v, want 0", v, err)
				}
				w.Settle() // the read of the next item has ended
				if when == beforeRead {
					step()
				} else {
					armed.Store(true)
				}
				v, err := q.Pop(ctx)
				if v != 1 || err != nil {
					w.T.Fatalf("popped %d, %v, want 1", v, err)
				}
				if early := due.Sub(w.serviceTime().Add(jump)); early > 0 {
					w.T.Errorf("popped %v before it was due", early)
				}
			})
		})
	}
}

// Of several items that one commit claims, those that are not due go back, without an attempt.
func TestDelayQueue_OfSeveralClaimedItemsThoseThatAreNotDueGoBack(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		now := w.serviceTime()
		var armed atomic.Bool
		_, c, heard := w.heardQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if claims(c) && armed.CompareAndSwap(true, false) {
				w.setClock(-time.Second)
			}
			return nil
		}}, nil)
		q := coord.NewDelayQueue(c, "/q", &coord.QueueOptions[int]{Prefetch: 3})
		due := []time.Time{now.Add(10 * time.Second), now.Add(10500 * time.Millisecond), now.Add(11500 * time.Millisecond)}
		for i := range due {
			if _, err := q.Put(ctx, due[i], i); err != nil {
				w.T.Fatal(err)
			}
		}
		time.Sleep(12 * time.Second)
		armed.Store(true)
		n := 0
		for it, err := range q.All(ctx) {
			if err != nil {
				w.T.Fatal(err)
			}
			if it.Value != n || it.Attempt != 1 {
				w.T.Fatalf("item %d, attempt %d, want item %d, attempt 1", it.Value, it.Attempt, n)
			}
			takenAfter(w, it, due[n])
			mustAck(w.T, it)
			if n++; n == len(due) {
				break
			}
		}
		events, log := heard()
		claimed, settled := 0, map[trace.ItemOutcome]int{}
		for _, e := range events {
			switch e := e.(type) {
			case trace.ItemClaimed:
				claimed++
			case trace.ItemSettled:
				settled[e.Outcome]++
			}
		}
		if claimed != 4 || settled[trace.ItemAcked] != 3 || settled[trace.ItemReturned] != 1 {
			w.T.Errorf("%d items were claimed, and settled as %v; want 4, 3 acked and 1 returned", claimed, settled)
		}
		if !strings.Contains(log, "were not due") {
			w.T.Errorf("the log does not say that an item was given back:\n%s", log)
		}
	})
}

// A client that has not noticed a step of the service's clock counts the delays of PutAfter and Nack from the
// time that the clock would show without the step. With its write it has noticed.
func TestDelayQueue_ADelayIsWrongByAStepThatTheClientHasNotNoticed(t *testing.T) {
	const delay = time.Minute
	for _, jump := range []time.Duration{10 * time.Second, -10 * time.Second} {
		t.Run(jump.String(), func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				now := w.serviceTime()
				passed := func(q *coord.DelayQueue[int], n int, want time.Duration) *coord.Item[int] {
					began := time.Now()
					it := mustTakeWithin(w.T, q, n, time.Hour)
					if got := time.Since(began); got < want || got > want+lateness {
						w.T.Errorf("item %d was taken after %v, want %v", n, got, want)
					}
					return it
				}
				p, q := w.delays("p", 0, nil), w.delays("q", 0, nil)
				for i := range 2 {
					if _, err := p.Put(ctx, now, i); err != nil {
						w.T.Fatal(err)
					}
				}
				put := func(n int, want time.Duration) {
					if _, err := p.PutAfter(ctx, delay, n); err != nil {
						w.T.Fatal(err)
					}
					mustAck(w.T, passed(q, n, want))
				}
				it, next := passed(q, 0, 0), passed(q, 1, 0)
				w.setClock(jump)
				if err := it.Nack(delay); err != nil {
					w.T.Fatal(err)
				}
				mustAck(w.T, passed(q, 0, delay-jump))
				w.setClock(2 * jump)
				put(2, delay-2*jump)
				put(3, delay)
				if err := next.Nack(delay); err != nil {
					w.T.Fatal(err)
				}
				mustAck(w.T, passed(q, 1, delay))
			})
		})
	}
}

// takenAfter checks that an item was not claimed before a time, by the service's clock.
func takenAfter(w *world, it *coord.Item[int], due time.Time) {
	w.T.Helper()
	if early := due.Sub(claimed(w, it)); early > 0 {
		w.T.Errorf("%d was taken %v before it was due", it.Value, early)
	}
}

// The clock of the service is set again and again, by more or less than a request takes, while consumers on
// slow links wait. Each item is taken once, with its first attempt, and not before its time.
func TestDelayQueue_AClockThatIsSetAgainAndAgainMakesNothingEarly(t *testing.T) {
	const items = 20
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx, stop := context.WithCancel(context.Background())
				defer stop()
				var mu sync.Mutex
				r := rand.New(rand.NewPCG(seed, 11))
				random := func(most time.Duration) time.Duration {
					mu.Lock()
					defer mu.Unlock()
					return time.Duration(r.Int64N(int64(most)))
				}
				slow := &backendtest.Hooks{
					Before: func(context.Context, backendtest.Call) error { time.Sleep(random(40 * time.Millisecond)); return nil },
					After: func(_ context.Context, _ backendtest.Call, err error) error {
						time.Sleep(random(40 * time.Millisecond))
						return err
					},
				}
				now := w.serviceTime()
				due := make([]time.Time, items)
				p := w.delays("p", 0, nil)
				for i := range due {
					due[i] = now.Add(random(20 * time.Second)).Truncate(time.Millisecond)
					if _, err := p.Put(ctx, due[i], i); err != nil {
						w.T.Fatal(err)
					}
				}
				stamps := w.Session("stamps")
				taken := make(chan int)
				var all sync.WaitGroup
				for i := range 3 {
					q := w.delays(fmt.Sprint("consumer", i), 0, slow)
					all.Go(func() {
						for {
							it, err := q.Take(ctx)
							if err != nil {
								return
							}
							stat, err := stamps.Exists(context.Background(), it.Path(), nil)
							if early := due[it.Value].Sub(time.UnixMilli(stat.Ctime)); err != nil || early > 0 || it.Attempt != 1 {
								w.T.Errorf("item %d, attempt %d, was taken %v before it was due (%v)", it.Value, it.Attempt, early, err)
							}
							if err := it.Ack(); err != nil {
								w.T.Error(err)
							}
							taken <- it.Value
						}
					})
				}
				all.Go(func() {
					jump := time.Duration(0)
					for range 60 {
						time.Sleep(random(600 * time.Millisecond))
						most := []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 5 * time.Second}[random(3)]
						if jump += random(2*most) - most; jump.Abs() > 10*time.Second {
							jump = 0
						}
						w.setClock(jump)
					}
				})
				seen := make(map[int]bool)
				for range items {
					i := <-taken
					if seen[i] {
						w.T.Errorf("item %d was taken twice", i)
					}
					seen[i] = true
				}
				stop()
				all.Wait()
			})
		})
	}
}
