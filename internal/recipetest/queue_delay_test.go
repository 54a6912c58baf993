package recipetest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/hook"
)

func TestDelayQueue_PutAfterIsRefusedAsPutIs(t *testing.T) {
	onMemory(t, func(w *world) {
		var r callCount
		c := w.Open("a", r.hooks())
		_, err := coord.NewDelayQueue[int](c, "bad", nil).PutAfter(context.Background(), 0, 1)
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
		_, err = coord.NewDelayQueue[int](c, "/q", nil).PutAfterWith(context.Background(), 0, 1, &coord.PutOptions{KeyFor: time.Hour})
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		if n := r.reset(); n != 0 {
			w.T.Errorf("%d requests", n)
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		id, err := coord.NewDelayQueue[int](c, "/q", nil).PutAfter(ended, 0, 1)
		coordtest.WantErr(w.T, err, context.Canceled)
		if id != "" {
			w.T.Errorf("id %q of an item that was not put", id)
		}
		c.Close()
		_, err = coord.NewDelayQueue[int](c, "/q", nil).PutAfter(context.Background(), 0, 1)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
	})
}

// When another server with another clock takes over, the time of its clock counts at once, for a
// consumer that waits too.
func TestDelayQueue_TheServiceGetsAnotherClock(t *testing.T) {
	for _, jump := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		for _, waits := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, waits: %v", jump, waits), func(t *testing.T) {
				onMemory(t, func(w *world) {
					ctx := context.Background()
					due := w.serviceTime().Add(8 * time.Minute)
					q := w.delays("a", 0, nil)
					if _, err := q.Put(ctx, due, 1); err != nil {
						w.T.Fatal(err)
					}
					var done chan struct{}
					if waits {
						done = takeDelayed(w, q, 1, due)
						time.Sleep(time.Minute)
					}
					l := w.Link("a").(*memory.Link)
					l.Partition()
					w.Service.(coordtest.MemoryService).Store.SetClock(serviceAhead + jump)
					l.Heal()
					if jump > 0 && !waits {
						time.Sleep(4 * time.Minute)
						mustAck(w.T, mustTakeWithin(w.T, q, 1, time.Millisecond))
						return
					}
					if !waits {
						time.Sleep(8*time.Minute + time.Second)
						_, err := q.TryTake(ctx)
						coordtest.WantErr(w.T, err, coord.ErrEmpty)
						done = takeDelayed(w, q, 1, due)
					}
					<-done
				})
			})
		}
	}
}

// When the service's clock is set, the time that it shows counts from the next write on.
func TestDelayQueue_TheClockOfTheServiceIsSet(t *testing.T) {
	for _, jump := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		t.Run(jump.String(), func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				due := w.serviceTime().Add(8 * time.Minute)
				q := w.delays("a", 0, nil)
				if _, err := q.Put(ctx, due, 1); err != nil {
					w.T.Fatal(err)
				}
				w.Service.(coordtest.MemoryService).Store.SetClock(serviceAhead + jump)
				if _, err := q.Put(ctx, due.Add(time.Hour), 2); err != nil {
					w.T.Fatal(err)
				}
				time.Sleep(8*time.Minute - jump - 10*time.Second)
				_, err := q.TryTake(ctx)
				coordtest.WantErr(w.T, err, coord.ErrEmpty)
				<-takeDelayed(w, q, 1, due)
			})
		})
	}
}

// If the service's clock is set ahead, a client that waits and does not write takes an item late by the step
// and not more. With a write the client knows the step: a Take that begins, or looks at the queue again, is in
// time. A Take that waits does not look again because of a write to another path.
func TestDelayQueue_AClockThatIsSetAheadMakesAnItemLateUntilTheNextWrite(t *testing.T) {
	const step, wide = 5 * time.Minute, 2 * lateness // the client does not know the time better after minutes
	for name, c := range map[string]struct {
		first       bool // Take begins before the step
		put         string
		least, most time.Duration
	}{
		"no write":               {first: true, least: step - wide, most: step + lateness},
		"a Put into the queue":   {first: true, put: "/q", most: lateness},
		"a Put into another one": {first: true, put: "/other", least: step - wide, most: step + lateness},
		"the slot of a new Take": {most: lateness},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				due := w.serviceTime().Add(8 * time.Minute)
				client := w.Open("a", nil)
				q := coord.NewDelayQueue[int](client, "/q", nil)
				if _, err := q.Put(ctx, due, 1); err != nil {
					w.T.Fatal(err)
				}
				taken := make(chan *coord.Item[int], 1)
				take := func() { taken <- mustTakeOrLog(w, q) }
				if c.first {
					go take()
				}
				time.Sleep(time.Minute)
				w.setClock(step)
				if c.put != "" {
					if _, err := coord.NewDelayQueue[int](client, c.put, nil).Put(ctx, due.Add(time.Hour), 2); err != nil {
						w.T.Fatal(err)
					}
				}
				if !c.first {
					go take()
				}
				it := <-taken
				if it == nil {
					return
				}
				if late := claimed(w, it).Sub(due); late < c.least || late > c.most {
					w.T.Errorf("late by %v, want %v to %v", late, c.least, c.most)
				}
				mustAck(w.T, it)
			})
		})
	}
}

// A request that is long on its way, or whose answer is, makes nothing due early.
func TestDelayQueue_ASlowRequestMakesNothingDueEarly(t *testing.T) {
	for _, way := range []string{"there", "back"} {
		t.Run(way, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				w.serviceTime()
				const pause = 20 * time.Second
				var slow atomic.Bool
				hooks := &backendtest.Hooks{
					Before: func(_ context.Context, c backendtest.Call) error {
						if c.Op == "commit" && way == "there" && slow.Load() {
							time.Sleep(pause)
						}
						return nil
					},
					After: func(_ context.Context, c backendtest.Call, err error) error {
						if c.Op == "commit" && way == "back" && slow.Load() {
							time.Sleep(pause)
						}
						return err
					},
				}
				// The first samples of a session are slow.
				q := w.delays("a", 0, hooks)
				slow.Store(true)
				before := w.serviceTime()
				if _, err := q.PutAfter(ctx, time.Minute, 1); err != nil {
					w.T.Fatal(err)
				}
				slow.Store(false)
				again := w.serviceTime() // what the client knows now is from slow requests only
				if _, err := q.PutAfter(ctx, 5*time.Minute, 2); err != nil {
					w.T.Fatal(err)
				}
				b := w.delays("b", 0, nil)
				for n, due := range []time.Time{before.Add(time.Minute), again.Add(5 * time.Minute)} {
					it := mustTakeWithin(w.T, b, n+1, 10*time.Minute)
					if early := due.Sub(claimed(w, it)); early >= time.Millisecond {
						w.T.Errorf("PutAfter made an item due %v early", early)
					}
					mustAck(w.T, it)
				}

				due := w.serviceTime().Add(time.Minute)
				if _, err := w.delays("p", 0, nil).Put(ctx, due, 3); err != nil {
					w.T.Fatal(err)
				}
				c := w.delays("c", 0, hooks)
				slow.Store(true)
				_, err := c.TryTake(ctx)
				coordtest.WantErr(w.T, err, coord.ErrEmpty)
				slow.Store(false)
				it := mustTakeWithin(w.T, c, 3, 2*time.Minute)
				switch late := claimed(w, it).Sub(due); {
				case late < 0:
					w.T.Errorf("an item was taken %v before it was due", -late)
				case late > 2*pause+time.Second:
					w.T.Errorf("an item was taken %v after it was due", late)
				}
				mustAck(w.T, it)
			})
		})
	}
}

// learnCost counts the calls of a client on a store.
type learnCost struct {
	calls, commits int
}

// A consumer that waits learns the time from its waiter's node, so it makes the requests that it
// would make without. A client that does not wait writes once, and only if it has to.
func TestDelayQueue_WhatItCostsToLearnTheTime(t *testing.T) {
	type step struct {
		name string
		do   func(t *testing.T, p, q *coord.DelayQueue[int])
		more learnCost // than on a service without a clock
	}
	put := func(t *testing.T, p *coord.DelayQueue[int], d time.Duration) {
		t.Helper()
		// Within a minute, so that the consumer looks at the item only when it lists the minute.
		if _, err := p.Put(context.Background(), time.Now().Add(d).Truncate(time.Minute).Add(30*time.Second), 1); err != nil {
			t.Fatal(err)
		}
	}
	take := func(t *testing.T, q *coord.DelayQueue[int]) {
		t.Helper()
		mustAck(t, mustTakeWithin(t, q, 1, time.Hour))
	}
	try := func(t *testing.T, q *coord.DelayQueue[int]) {
		t.Helper()
		_, err := q.TryTake(context.Background())
		coordtest.WantErr(t, err, coord.ErrEmpty)
	}
	for _, steps := range [][]step{
		{
			{"a wait for an item that is put off", func(t *testing.T, p, q *coord.DelayQueue[int]) {
				put(t, p, 3*time.Minute)
				take(t, q)
			}, learnCost{}},
			{"the next one", func(t *testing.T, p, q *coord.DelayQueue[int]) {
				put(t, p, 2*time.Minute)
				try(t, q)
				take(t, q)
			}, learnCost{}},
			{"a long wait", func(t *testing.T, p, q *coord.DelayQueue[int]) {
				put(t, p, 50*time.Minute)
				take(t, q)
			}, learnCost{calls: 2, commits: 1}}, // it also looks once more
			{"the next one", func(t *testing.T, p, q *coord.DelayQueue[int]) {
				put(t, p, time.Minute)
				take(t, q)
			}, learnCost{}},
		},
		{
			{"an item that is not due, and one that is", func(t *testing.T, p, q *coord.DelayQueue[int]) {
				put(t, p, time.Minute)
				try(t, q)
				time.Sleep(2 * time.Minute)
				take(t, q)
			}, learnCost{1, 1}}, // the receipt is one that the take needs
		},
		{
			{"an item that is due", func(t *testing.T, p, q *coord.DelayQueue[int]) {
				put(t, p, -time.Minute)
				take(t, q)
			}, learnCost{1, 1}},
			{"the next one", func(t *testing.T, p, q *coord.DelayQueue[int]) {
				put(t, p, -time.Minute)
				take(t, q)
			}, learnCost{}},
		},
		{
			{"a first PutAfter", func(t *testing.T, p, _ *coord.DelayQueue[int]) {
				if _, err := p.PutAfter(context.Background(), time.Minute, 1); err != nil {
					t.Fatal(err)
				}
			}, learnCost{1, 1}},
			{"the next one", func(t *testing.T, p, _ *coord.DelayQueue[int]) {
				if _, err := p.PutAfter(context.Background(), time.Minute, 1); err != nil {
					t.Fatal(err)
				}
			}, learnCost{}},
		},
		{
			{"an empty queue", func(t *testing.T, _, q *coord.DelayQueue[int]) { try(t, q) }, learnCost{}},
		},
	} {
		// A consumer that learns early enough of the bucket that it has removed itself saves a
		// list: the most of three plays counts.
		costs := func(without backend.Features) []learnCost {
			most := make([]learnCost, len(steps))
			for range 3 {
				synctest.Test(t, func(t *testing.T) {
					var r callCount
					st := memory.New(&memory.Options{SessionTimeout: time.Hour, Without: without})
					b := backendtest.Intercept(st, *r.hooks())
					p, q := coord.NewDelayQueue[int](coordtest.Open(t, b, nil), "/q", nil), coord.NewDelayQueue[int](coordtest.Open(t, b, nil), "/q", nil)
					for i, s := range steps {
						r.reset()
						s.do(t, p, q)
						synctest.Wait() // the consumer sees that nobody waits for its slot
						r.mu.Lock()
						if r.n > most[i].calls {
							most[i] = learnCost{r.n, r.commits}
						}
						r.mu.Unlock()
					}
				})
			}
			return most
		}
		with, without := costs(0), costs(backend.Clock)
		for i, s := range steps {
			more := learnCost{with[i].calls - without[i].calls, with[i].commits - without[i].commits}
			t.Logf("%s: %+v, without a clock of the service %+v", s.name, with[i], without[i])
			if more != s.more {
				t.Errorf("%s costs %+v more, want %+v", s.name, more, s.more)
			}
		}
	}
}

// A client that waits longer than its samples are good for takes the item on time.
func TestDelayQueue_ALongWaitEndsOnTime(t *testing.T) {
	onMemory(t, func(w *world) {
		due := w.serviceTime().Add(30 * 24 * time.Hour)
		q := w.delays("a", 0, nil)
		if _, err := q.Put(context.Background(), due, 1); err != nil {
			w.T.Fatal(err)
		}
		done := make(chan *coord.Item[int])
		go func() {
			it, err := q.Take(context.Background())
			if err != nil {
				w.T.Error(err)
			}
			done <- it
		}()
		it := <-done
		takenOn(w, it, due)
		mustAck(w.T, it)
	})
}

// A client that may not write to the journal goes by its own clock, and says so once.
func TestDelayQueue_AClientThatMayNotLearnTheTimeUsesItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		st := memory.New(nil)
		p := coord.NewDelayQueue[int](coordtest.Open(t, st, nil), "/q", nil)
		if _, err := p.Put(ctx, time.Now().Add(time.Minute), 1); err != nil {
			t.Fatal(err)
		}
		var on atomic.Bool
		on.Store(true)
		var log bytes.Buffer
		c := coordtest.Open(t, backendtest.Intercept(st, *refuse(&on, func(c backendtest.Call) bool { return c.Op == "commit" })),
			&coord.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		q := coord.NewDelayQueue[int](c, "/q", nil)
		for range 2 {
			_, err := q.Peek(ctx)
			coordtest.WantErr(t, err, coord.ErrEmpty)
		}
		time.Sleep(2 * time.Minute)
		if v, err := q.Peek(ctx); v != 1 || err != nil {
			t.Errorf("Peek: %d, %v, want 1", v, err)
		}
		synctest.Wait()
		if n := strings.Count(log.String(), "cannot learn the time of the service"); n != 1 {
			t.Errorf("%d lines say so:\n%s", n, log.String())
		}
	})
}

// On a service without a clock, the clocks of the clients count.
func TestDelayQueue_WithoutAClockOfTheServiceTheConsumersCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		st := memory.New(&memory.Options{Without: backend.Clock})
		st.SetClock(serviceAhead)
		open := func(wrong time.Duration) *coord.DelayQueue[int] {
			c := coordtest.OpenWith(t, st, nil, hook.Hooks{Skew: wrong})
			return coord.NewDelayQueue[int](c, "/q", nil)
		}
		p := open(0)
		if _, err := p.PutAfter(ctx, 4*time.Minute, 1); err != nil {
			t.Fatal(err)
		}
		for _, wrong := range []time.Duration{0, -5 * time.Minute} {
			_, err := open(wrong).TryTake(ctx)
			coordtest.WantErr(t, err, coord.ErrEmpty)
		}
		fast, err := open(5 * time.Minute).TryTake(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := fast.Nack(10 * time.Minute); err != nil { // for its own clock
			t.Fatal(err)
		}
		began := time.Now()
		mustAck(t, mustTakeWithin(t, p, 1, time.Hour))
		if waited := time.Since(began); waited < 15*time.Minute || waited > 15*time.Minute+time.Second {
			t.Errorf("taken after %v, want the 15m of the clock that put it off", waited)
		}
	})
}

// The hook is what gives a process of internal/faulttest a wrong clock.
func TestDelayQueue_AHookMakesTheClocksOfAClientWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(&memory.Options{Without: backend.Clock})
		for _, tc := range []struct {
			wrong time.Duration
			err   error
		}{{-5 * time.Minute, coord.ErrEmpty}, {0, coord.ErrEmpty}, {5 * time.Minute, nil}} {
			c, err := coord.Open(hook.With(t.Context(), hook.Hooks{Skew: tc.wrong}), st, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			q := coord.NewDelayQueue[int](c, "/q", nil)
			if tc.wrong < 0 {
				if _, err := q.Put(t.Context(), time.Now().Add(4*time.Minute), 1); err != nil {
					t.Fatal(err)
				}
			}
			_, err = q.TryTake(t.Context())
			coordtest.WantErr(t, err, tc.err)
		}
	})
}

// Due times are stored in milliseconds. Without an interval to hide it, a fraction of one that is
// cut off would make an item due early.
func TestDelayQueue_DueTimesAreRoundedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		st := memory.New(&memory.Options{Without: backend.Clock})
		q := coord.NewDelayQueue[int](coordtest.Open(t, st, nil), "/q", nil)
		if _, err := q.Put(ctx, time.Now().Truncate(time.Millisecond).Add(1), 1); err != nil {
			t.Fatal(err)
		}
		_, err := q.TryTake(ctx)
		coordtest.WantErr(t, err, coord.ErrEmpty)
		time.Sleep(time.Millisecond)
		it, err := q.TryTake(ctx)
		if err != nil {
			t.Fatal(err)
		}
		mustAck(t, it)
	})
}

// On a service without a clock, consumers with slow clocks at the front delay nothing that another
// one could take.
func TestDelayQueue_SlowClocksDelayNothingWithoutAClockOfTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(&memory.Options{SessionTimeout: time.Hour, Without: backend.Clock})
		w := &world{&coordtest.World{Service: coordtest.MemoryService{Store: st}, T: t, Timeout: time.Hour, Fake: true}}
		const items = 25
		most := idleTrial{good: 9, bad: 3, when: 2, how: "slow clock", delay: true}.run(w, "/bad", items)
		usual := idleTrial{good: 9, delay: true}.run(w, "/control", items)
		if most > usual+tripTime {
			t.Errorf("an item waited for %v, without them %v", most, usual)
		}
	})
}

// The outcome of a transaction that puts an item is unknown to its caller, and the item is in the queue. The
// client does not take the later items of a list from before first.
func TestDelayQueue_AnItemOfAnUncertainTransactionComesInItsTurn(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var x coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: x.After})
		q := coord.NewDelayQueue(c, "/q", &coord.QueueOptions[int]{})
		due := w.serviceTime().Truncate(time.Minute).Add(-time.Hour) // one bucket has all items
		for n := range 3 {
			if _, err := q.Put(ctx, due.Add(time.Duration(n+1)*time.Second), n); err != nil {
				w.T.Fatal(err)
			}
		}
		mustAck(w.T, mustTakeWithin(w.T, q, 0, time.Second)) // the client remembers the others
		short, cancel := context.WithCancel(ctx)
		x.Arm(1, does(backend.OpCreate, "/q/"), func(context.Context, backendtest.Call, error) error {
			cancel()
			return backend.Uncertain(context.Canceled)
		})
		_, err := coord.NewTxn(c).Add(q.PutOp(due, 3)).Commit(short)
		coordtest.WantErr(w.T, err, coord.ErrUncertain)
		for _, n := range []int{3, 1, 2} {
			mustAck(w.T, mustTakeWithin(w.T, q, n, time.Second))
		}
	})
}
