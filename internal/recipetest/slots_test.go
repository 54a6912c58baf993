package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// A consumer that knows of a line, and comes to it, takes a free slot, although the first of the
// line is dead, and no client fills the slots, since their holders died: S3.
func TestQueue_ANewcomerTakesASlotBehindADeadWaiter(t *testing.T) {
	onMemory(t, func(w *world) {
		x := newPausedCrew(w, "/q", "paused")
		ctx, cancel := context.WithCancel(context.Background())
		var gone []*taking
		for i := range idleSlots {
			gone = append(gone, w.takeWaits(ctx, w.queue(fmt.Sprint("gone", i), nil)))
			w.Eventually("it has a slot", func() bool { slots, _ := standing(w, "/q"); return len(slots) == i+1 })
		}
		x.join("paused")
		q := w.queue("good", nil)
		before, leave := context.WithCancel(context.Background())
		early := w.takeWaits(before, q)
		w.Eventually("it has a waiter", func() bool { _, waiters := standing(w, "/q"); return len(waiters) == 2 })
		leave()
		<-early.done
		w.Eventually("it has left", func() bool { _, waiters := standing(w, "/q"); return len(waiters) == 1 })
		x.pause()
		for i := range idleSlots {
			w.Link(fmt.Sprint("gone", i)).Partition()
		}
		w.Eventually("all slots are free", func() bool { slots, _ := standing(w, "/q"); return len(slots) == 0 })
		good := w.takeWaits(context.Background(), q)
		mustPut(w.T, w.queue("producer", nil), 7, 7)
		mustAck(w.T, good.item(7))
		cancel()
		for i, x := range gone {
			w.Link(fmt.Sprint("gone", i)).Heal()
			<-x.done
			coordtest.WantErr(w.T, x.err, context.Canceled)
		}
	})
}

// A slot whose number is too high, which a client of another version can have made, harms no
// consumer.
func TestQueue_SlotsThatThisVersionDoesNotHaveAreIgnored(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		x := w.takeWaits(context.Background(), q)
		for _, name := range []string{"slot-6", "slot-7", "slot-1000000000000"} {
			w.commit(backend.Create(w.Path("/q/waiters/"+name), nil, backend.Persistent))
		}
		mustPut(w.T, q, 1, 1)
		mustAck(w.T, x.item(1))
		w.Settle()
		x = w.takeWaits(context.Background(), q)
		mustPut(w.T, q, 2, 2)
		mustAck(w.T, x.item(2))
	})
}

// The reply to the creation of a slot is lost, and an outsider deletes the node that proves its
// commit: no slot stays taken by a client that does not know of it.
func TestQueue_ASlotThatCannotBeResolvedIsGivenUp(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{After: after.After}, nil)
		x := w.takeWaits(ctx, q)
		mustPut(w.T, q, 1, 1)
		mustAck(w.T, x.item(1)) // so that there is a directory of slots
		outsider := w.Session("x")
		takes := func(c backendtest.Call) bool {
			return slices.ContainsFunc(c.Ops, func(op backend.Op) bool {
				return op.Kind == backend.OpCreate && strings.HasPrefix(op.Path, w.Path("/q/waiters/slot-"))
			})
		}
		after.Arm(1, takes, func(_ context.Context, c backendtest.Call, err error) error {
			_, derr := outsider.Commit(ctx, backend.Delete(c.Ops[len(c.Ops)-1].Path, backend.AnyVersion))
			if err != nil || derr != nil {
				w.T.Error(err, derr)
			}
			return backend.ErrUncertain
		})
		_, err := q.Take(ctx)
		coordtest.WantErr(w.T, err, coord.ErrUncertain)
		w.Eventually("the slot is given up", func() bool { slots, _ := standing(w, "/q"); return len(slots) == 0 })
	})
}

// What a put costs all consumers together does not grow with the number of those that are idle.
func TestQueue_TheCostOfAPutDoesNotGrowWithTheIdleConsumers(t *testing.T) {
	coordtest.CountsCost(t)
	type cost struct{ awake, requests, commits float64 }
	of := make(map[int]cost)
	for _, consumers := range []int{1, 10, 100, 1000} {
		synctest.Test(t, func(t *testing.T) {
			const puts = 20
			st := memory.New(&memory.Options{SessionTimeout: time.Hour})
			all := make([]callCount, consumers)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range consumers {
				l := st.Link(fmt.Sprint(i))
				q := coord.NewQueue[int](coordtest.Open(t, backendtest.Intercept(l, *all[i].hooks()), nil), "/q", nil)
				l.SetLatency(tripTime / 2)
				wg.Go(func() {
					for ctx.Err() == nil {
						it, err := q.Take(ctx)
						if err != nil {
							if !errors.Is(err, context.Canceled) {
								t.Error(err)
							}
							return
						}
						if err := it.Ack(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			time.Sleep(5 * time.Minute) // all have a place
			p := coord.NewQueue[int](coordtest.Open(t, st, nil), "/q", nil)
			mustPut(t, p, -1, -1)
			time.Sleep(time.Minute)
			for i := range all {
				all[i].reset()
			}
			var c cost
			for n := range puts {
				mustPut(t, p, n, n)
				time.Sleep(time.Second)
				for i := range all {
					c.commits += float64(all[i].writes())
					if k := all[i].reset(); k > 0 {
						c.awake++
						c.requests += float64(k)
					}
				}
			}
			c.awake, c.requests, c.commits = c.awake/puts, c.requests/puts, c.commits/puts
			of[consumers] = c
			t.Logf("figure: a put into a queue with %d idle consumers wakes %.1f of them, which make %.1f requests together, %.1f of them commits", consumers, c.awake, c.requests, c.commits)
			cancel()
			wg.Wait()
		})
	}
	if many, ten := of[1000], of[10]; many.awake > ten.awake+1 || many.requests > ten.requests*1.25 {
		t.Errorf("it grows: %v", of)
	}
	if of[1000].awake > idleSlots+2 {
		t.Errorf("%v clients are awake", of[1000].awake)
	}
	// Four of them are a claim, an Ack, and those of a slot and a waiter. The others are claims
	// that fail: one or two of them, if most of the holders of slots yield, and five if none does.
	if of[1000].commits > 8 || of[100].commits > 8 {
		t.Errorf("the holders of slots compete: %v", of)
	}
}

// A consumer that waits has an item two round trips after the event of a change: one to list the
// items, and one to claim.
func TestQueue_AnItemReachesAnIdleConsumerInTwoRoundTrips(t *testing.T) {
	for name, open := range map[string]func(c *coord.Client) (*coord.Consumer[int], func() error){
		"Queue": func(c *coord.Client) (*coord.Consumer[int], func() error) {
			q := coord.NewQueue[int](c, "/q", nil)
			return &q.Consumer, func() error { _, err := q.Put(context.Background(), 1); return err }
		},
		"PriorityQueue": func(c *coord.Client) (*coord.Consumer[int], func() error) {
			q := coord.NewPriorityQueue[int](c, "/q", nil)
			return &q.Consumer, func() error { _, err := q.Put(context.Background(), 5, 1); return err }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New(&memory.Options{SessionTimeout: time.Hour})
				_, put := open(coordtest.Open(t, st, nil))
				far := st.Link("far")
				q, _ := open(coordtest.Open(t, far, nil))
				if err := put(); err != nil {
					t.Fatal(err)
				}
				mustAck(t, mustTake(t, q, 1)) // so it knows the first bucket
				far.SetLatency(tripTime / 2)
				for range 3 {
					var took time.Time
					var wg sync.WaitGroup
					wg.Go(func() {
						it, err := q.Take(t.Context())
						took = time.Now()
						if err != nil {
							t.Error(err)
							return
						}
						mustAck(t, it)
					})
					time.Sleep(time.Minute)
					began := time.Now()
					if err := put(); err != nil {
						t.Fatal(err)
					}
					wg.Wait()
					trips := float64(took.Sub(began)) / float64(tripTime)
					t.Logf("figure: an item of a %s reaches an idle consumer %.1f round trips after its Put", name, trips)
					want := 2.0
					if name == "PriorityQueue" {
						want++ // the Sync before the lists
					}
					if trips > want {
						t.Errorf("%v round trips, want %v", trips, want)
					}
				}
			})
		})
	}
}

// A producer that waits for room wakes only if it has a slot, however many wait; one that is
// paused does not keep the others from putting.
func TestQueue_FewOfTheProducersThatWaitForRoomAreWoken(t *testing.T) {
	of := make(map[int]float64)
	for _, producers := range []int{5, 50} {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(&memory.Options{SessionTimeout: time.Hour})
			o := &coord.QueueOptions[int]{MaxLen: 3}
			q := coord.NewQueue(coordtest.Open(t, st, nil), "/q", o)
			mustPut(t, q, 1, 3)
			paused := &pause{open: make(chan struct{})}
			all := make([]callCount, producers)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var done, ended atomic.Int32
			for i := range producers {
				hooks := all[i].hooks()
				if i == 0 {
					hooks = &backendtest.Hooks{Before: paused.before}
				}
				l := st.Link(fmt.Sprint(i))
				p := coord.NewQueue(coordtest.Open(t, backendtest.Intercept(l, *hooks), nil), "/q", o)
				l.SetLatency(tripTime / 2)
				put := make(chan error, 1)
				wg.Go(func() { _, err := p.Put(ctx, 100+i); put <- err })
				wg.Go(func() {
					err := <-put
					if i == 0 {
						ended.Add(1)
						return
					}
					if err != nil {
						t.Error(err)
					}
					done.Add(1)
				})
				time.Sleep(time.Second)
			}
			time.Sleep(time.Minute)
			paused.shut.Store(true) // it has a slot
			for i := range all {
				if n := all[i].reset(); n > 40 {
					t.Errorf("producer %d has made %d requests", i, n)
				}
			}
			awake, most := 0, 0
			for n := range producers - 1 {
				it, err := q.Take(ctx)
				if err != nil {
					t.Fatal(err)
				}
				mustAck(t, it)
				time.Sleep(time.Minute)
				if done.Load() != int32(n+1) {
					t.Fatalf("%d of the producers have put after %d items have left", done.Load(), n+1)
				}
				k := 0
				for i := range all {
					if all[i].reset() > 0 {
						k++
					}
				}
				awake, most = awake+k, max(most, k)
			}
			of[producers] = float64(awake) / float64(producers-1)
			t.Logf("figure: %d producers wait for room, one of them paused with a slot: an item that leaves wakes %.1f, %d at most", producers, of[producers], most)
			if most > 4 {
				t.Errorf("%d producers woke for one item", most)
			}
			close(paused.open)
			cancel()
			wg.Wait()
			if ended.Load() != 1 {
				t.Error("the paused producer has not ended")
			}
		})
	}
	if of[50] > of[5]+1 {
		t.Errorf("it grows: %v", of)
	}
}

// An item goes through a queue in three round trips: one each for Put, Take and Ack, and one more
// for a list in 32 takes. A PriorityQueue lists for each Take. A Pop takes
// one, and two more for a list and a claim. The clock of the test counts them, since nothing but the
// link takes time.
func TestQueue_AnItemTakesThreeRoundTrips(t *testing.T) {
	for _, kind := range []string{"Queue", "DelayQueue", "PriorityQueue", "Queue with Pop", "Queue with MaxLen"} {
		synctest.Test(t, func(t *testing.T) {
			const waiting, items = 100, 64
			ctx := t.Context()
			st := memory.New(&memory.Options{SessionTimeout: time.Hour})
			link := st.Link("a")
			c := coordtest.Open(t, link, nil)
			var q *coord.Consumer[int]
			var put func(n int)
			switch kind {
			case "DelayQueue":
				d := coord.NewDelayQueue[int](c, "/q", nil)
				q, put = &d.Consumer, func(n int) { sure(d.Put(ctx, time.Now().Add(time.Duration(n-2*waiting)*time.Millisecond), n)) }
			case "PriorityQueue":
				d := coord.NewPriorityQueue[int](c, "/q", nil)
				q, put = &d.Consumer, func(n int) { sure(d.Put(ctx, 1, n)) }
			default:
				o := &coord.QueueOptions[int]{}
				if kind == "Queue with MaxLen" {
					o.MaxLen = 10 * waiting
				}
				d := coord.NewQueue(c, "/q", o)
				q, put = &d.Consumer, func(n int) { sure(d.Put(ctx, n)) }
			}
			for n := range waiting {
				put(n)
			}
			mustAck(t, sure(q.Take(ctx)))
			link.SetLatency(tripTime / 2)
			trips := func(do func()) float64 {
				began := time.Now()
				do()
				return float64(time.Since(began)) / float64(tripTime)
			}
			var puts, takes, acks float64
			for n := range items {
				puts += trips(func() { put(waiting + n) })
				if kind == "Queue with Pop" {
					takes += trips(func() { sure(q.Pop(ctx)) })
					continue
				}
				var it *coord.Item[int]
				takes += trips(func() { it = sure(q.Take(ctx)) })
				acks += trips(func() { mustAck(t, it) })
			}
			t.Logf("figure: round trips in a %s: Put %.2f, Take %.2f, Ack %.2f", kind, puts/items, takes/items, acks/items)
			want := 1.1
			if kind == "PriorityQueue" {
				want = 3 // a Sync, and the lists behind it
			}
			if puts > 1.1*items || takes > want*items || acks > items {
				t.Errorf("that is too much, want 1.1, %v and 1", want)
			}
		})
	}
}

// fillScene is a queue with a client, the filler, whose Take has a slot and is about to get an
// item. The other holders of slots are paused. Behind them the clients of a line wait.
type fillScene struct {
	*pausedCrew
	c     *coord.Client     // of the filler
	q     *coord.Queue[int] // of the filler
	first *taking
	p     *coord.Queue[int] // of a producer
}

// newFillScene makes the scene with a line of clients with the given names. Those whose names
// begin with "paused" are paused.
func newFillScene(w *world, hooks map[string]*backendtest.Hooks, line ...string) *fillScene {
	w.T.Helper()
	holders := numbered("pausedHolder", idleSlots-1)
	x := &fillScene{pausedCrew: newHookedCrew(w, "/q", hooks, append(slices.Clone(holders), line...)...)}
	x.c = w.Open("filler", hooks["filler"])
	x.q, x.p = coord.NewQueue[int](x.c, "/q", nil), w.queue("producer", nil)
	x.first = w.takeWaits(context.Background(), x.q)
	w.Eventually("it has a slot", func() bool { slots, _ := standing(w, "/q"); return len(slots) == 1 })
	x.join(append(holders, line...)...)
	x.pause()
	return x
}

// wantFilled waits until all slots are taken.
func (x *fillScene) wantFilled() {
	x.w.T.Helper()
	x.w.Eventually("all slots are taken", func() bool { slots, _ := standing(x.w, "/q"); return len(slots) == idleSlots })
}

// evicts reports whether a call is the eviction of a waiter.
func evicts(c backendtest.Call) bool {
	return c.Op == "commit" && len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpDelete && strings.Contains(c.Path, "/_c_")
}

// A slot is filled past dead waiters although requests or replies of evictions are lost: these are
// not taken for evictions of waiters that are gone.
func TestQueue_ASlotIsFilledAlthoughEvictionsAreLost(t *testing.T) {
	for what, want := range map[string]int32{"request": 7, "reply": 4} { // three rounds of the evictions
		t.Run(what, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var lost atomic.Int32
				lose := func(c backendtest.Call, err error) error {
					if err == nil && evicts(c) && lost.Add(1) <= want {
						return backend.ErrUncertain
					}
					return err
				}
				hooks := &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error { return lose(c, err) }}
				if what == "request" {
					hooks = &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error { return lose(c, nil) }}
				}
				x := newFillScene(w, map[string]*backendtest.Hooks{"filler": hooks}, append(numbered("paused", 5), "good")...)
				mustPut(w.T, x.p, 1, 1)
				mustAck(w.T, x.first.item(1))
				x.wantFilled()
				if n := lost.Load(); n < want {
					w.T.Errorf("%d evictions were lost, want %d", n, want)
				}
			})
		})
	}
}

// A client that has vacated a slot fills all that are free, also one whose holder has expired.
func TestQueue_AllFreeSlotsAreFilled(t *testing.T) {
	onMemory(t, func(w *world) {
		// The first client that is not paused sees the first free slot only.
		hooks := &backendtest.Hooks{Names: func(c backendtest.Call, names []string) []string {
			if !strings.HasSuffix(c.Path, "/waiters") {
				return names
			}
			for i, free := 0, false; i < idleSlots; i++ {
				name := fmt.Sprint("slot-", i)
				missing := !slices.Contains(names, name)
				if free && missing {
					names = append(names, name)
				}
				free = free || missing
			}
			return names
		}}
		x := newFillScene(w, map[string]*backendtest.Hooks{"good0": hooks}, "paused0", "good0", "paused1", "good1")
		w.far("good0", tripTime) // so that the filler lists the slots before it
		gone := w.Link("pausedHolder0")
		gone.Partition()
		w.T.Cleanup(gone.Heal)
		w.Eventually("a holder has expired", func() bool { slots, _ := standing(w, "/q"); return len(slots) == idleSlots-1 })
		mustPut(w.T, x.p, 1, 1)
		mustAck(w.T, x.first.item(1))
		x.wantFilled()
	})
}

// A client that has vacated a slot, and waits again behind a dead waiter, takes the slot when it
// cannot fill it: its waiter waits for the end of that.
func TestQueue_AClientTakesTheSlotThatItCannotFill(t *testing.T) {
	refused := func(on *atomic.Bool) *backendtest.Hooks { return refuse(on, evicts) }
	t.Run("consumer", func(t *testing.T) {
		onMemory(t, func(w *world) {
			var on atomic.Bool
			on.Store(true)
			x := newFillScene(w, map[string]*backendtest.Hooks{"filler": refused(&on)}, "paused0")
			mustPut(w.T, x.p, 1, 1)
			mustAck(w.T, x.first.item(1))
			again := w.takeWaits(context.Background(), x.q)
			if _, line := standing(w, "/q"); len(line) != 2 {
				w.T.Fatalf("%d waiters, want one behind that which is dead", len(line))
			}
			x.wantFilled()
			mustPut(w.T, x.p, 2, 2)
			mustAck(w.T, again.item(2))
		})
	})
	t.Run("producer", func(t *testing.T) {
		onMemory(t, func(w *world) {
			var on atomic.Bool
			on.Store(true)
			o := &coord.QueueOptions[int]{MaxLen: 1}
			q := w.queue("consumer", o)
			mustPut(w.T, q, 0, 0)
			a := w.hookedQueue("filler", refused(&on), o)
			first := w.putWaits(a, 1)
			stopped := &pause{open: make(chan struct{})}
			var others []*putting
			for i := range 2 { // one has the other slot
				others = append(others, w.putWaits(w.hookedQueue(fmt.Sprint("paused", i), &backendtest.Hooks{Before: stopped.before}, o), 10+i))
			}
			stopped.shut.Store(true)
			mustAck(w.T, mustTake(w.T, q, 0))
			first.done()
			w.Eventually("its slot is vacated", func() bool { return len(w.Children("/q/producers")) == 2 })
			second := w.putWaits(a, 2)
			if line := w.Children("/q/producers"); len(line) != 3 {
				w.T.Fatalf("%v, want a slot, and a waiter behind one that is dead", line)
			}
			w.Eventually("both slots are taken", func() bool {
				names := w.Children("/q/producers")
				return slices.Contains(names, "slot-0") && slices.Contains(names, "slot-1")
			})
			mustAck(w.T, mustTake(w.T, q, 1))
			second.done()
			mustAck(w.T, mustTake(w.T, q, 2))
			stopped.shut.Store(false)
			close(stopped.open)
			for range others {
				mustAck(w.T, sure(q.Take(context.Background())))
			}
			for _, x := range others {
				x.done()
			}
		})
	})
}

// A client that may not evict waiters for a while fills its slot when it may.
func TestQueue_AFillThatIsRefusedIsRepeated(t *testing.T) {
	onMemory(t, func(w *world) {
		var on atomic.Bool
		on.Store(true)
		x := newFillScene(w, map[string]*backendtest.Hooks{"filler": refuse(&on, evicts)}, "paused0", "good")
		mustPut(w.T, x.p, 1, 1)
		mustAck(w.T, x.first.item(1))
		time.Sleep(time.Minute)
		if slots, _ := standing(w, "/q"); len(slots) == idleSlots {
			w.T.Error("all slots are taken, so this tests nothing")
		}
		on.Store(false)
		x.wantFilled()
		began := time.Now()
		x.c.Close()
		if d := time.Since(began); d > time.Second {
			w.T.Errorf("Close took %v", d)
		}
	})
}

// A client that closes gives its slot up past many dead waiters in the time that Close has, also far
// from the service: it does not pause between evictions then.
func TestQueue_AClientThatClosesDoesNotPauseBetweenEvictions(t *testing.T) {
	onMemory(t, func(w *world) {
		x := newFillScene(w, nil, "paused0", "paused1", "good")
		w.far("filler", 150*time.Millisecond)
		x.c.Close()
		<-x.first.done
		coordtest.WantErr(w.T, x.first.err, coord.ErrClosed)
		x.wantFilled()
	})
}

// A client whose list of the slots comes from a server that lags behind tries one slot, and lists
// again after a Sync: S8.
func TestQueue_ASlotIsTriedOnceOnALaggingServer(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		var holders []*taking
		for i := range idleSlots {
			holders = append(holders, w.takeWaits(ctx, w.queue(fmt.Sprint("holder", i), nil)))
			w.Eventually("it has a slot", func() bool { slots, _ := standing(w, "/q"); return len(slots) == i+1 })
		}
		var lags atomic.Bool
		var tries atomic.Int64
		hooks := &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				switch {
				case c.Op == "sync":
					lags.Store(false)
				case coordtest.Creates(c) && strings.Contains(c.Path, "/waiters/slot-") && tries.Add(1) > 10:
					return backend.ErrDenied // it would not end
				}
				return nil
			},
			Names: func(c backendtest.Call, names []string) []string {
				if !lags.Load() || !strings.HasSuffix(c.Path, "/waiters") {
					return names
				}
				return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "slot-") })
			},
		}
		q := w.hookedQueue("a", hooks, nil)
		lags.Store(true)
		x := w.takeWaits(context.Background(), q)
		if n := tries.Load(); n != 1 || lags.Load() {
			w.T.Errorf("%d slots were tried, want one and a Sync", n)
		}
		cancel()
		for _, h := range holders {
			<-h.done
			coordtest.WantErr(w.T, h.err, context.Canceled)
		}
		mustPut(w.T, q, 1, 1)
		mustAck(w.T, x.item(1))
	})
}

// The client that fills the slot that it has vacated loses contact meanwhile. That is not a client
// that takes the slot: S6 holds.
func TestQueue_AReconnectDoesNotEndAFill(t *testing.T) {
	onMemory(t, func(w *world) {
		var x *pausedCrew
		var once sync.Once
		cut := func(name string) *backendtest.Hooks {
			return &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
				if c.Op == "exists" && strings.Contains(c.Path, "/slot-") {
					once.Do(func() { w.Link(name).Partition(); w.Link(name).Heal() })
				}
				return err
			}}
		}
		hooks := make(map[string]*backendtest.Hooks)
		names := numbered("holder", idleSlots)
		for _, name := range names {
			hooks[name] = cut(name)
		}
		names = append(names, "paused", "last")
		x = newHookedCrew(w, "/q", hooks, names...)
		x.join(names...)
		x.pause()
		_, put := x.queue(w.Open("producer", nil))
		put(1)
		receive(w, "the item", x.came)
		w.Eventually("the paused waiter is evicted", func() bool {
			slots, waiters := standing(w, "/q")
			return len(slots) == idleSlots && len(waiters) == 1
		})
		time.Sleep(time.Minute)
		if slots, waiters := standing(w, "/q"); len(slots) != idleSlots || len(waiters) > 1 {
			w.T.Errorf("%d slots, %d waiters", len(slots), len(waiters))
		}
		cutOff := true
		once.Do(func() { cutOff = false })
		if !cutOff {
			w.T.Error("nobody was cut off: this tests nothing")
		}
	})
}
