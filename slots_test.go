package coord_test

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

// idleSlots is the number of consumers that watch the items.
const idleSlots = 6

// standing returns the slots and the waiters of a queue.
func standing(w *world, path string) (slots, waiters []string) {
	for _, name := range w.Children(path + "/waiters") {
		if strings.HasPrefix(name, "slot-") {
			slots = append(slots, name)
		} else {
			waiters = append(waiters, name)
		}
	}
	return slots, waiters
}

// pausedCrew is a crew of which some consumers are paused, while their sessions live on.
type pausedCrew struct {
	*idleCrew
	path   string
	hired  map[string]*coord.Consumer[int]
	pauses []*pause
}

// newPausedCrew hires consumers. Those whose names begin with "paused" can be paused.
func newPausedCrew(w *world, path string, names ...string) *pausedCrew {
	return newHookedCrew(w, path, nil, names...)
}

// newHookedCrew is newPausedCrew with hooks for some of those that cannot be paused.
func newHookedCrew(w *world, path string, hooked map[string]*backendtest.Hooks, names ...string) *pausedCrew {
	x := &pausedCrew{path: path, hired: make(map[string]*coord.Consumer[int])}
	x.idleCrew = newIdleCrew(w, func(c *coord.Client) (*coord.Consumer[int], func(n int)) {
		q := coord.NewQueue[int](c, path, nil)
		return &q.Consumer, func(n int) { mustPut(w.T, q, n, n) }
	})
	for _, name := range names {
		hooks := hooked[name]
		if strings.HasPrefix(name, "paused") {
			p := &pause{open: make(chan struct{})}
			x.pauses = append(x.pauses, p)
			hooks = &backendtest.Hooks{Before: p.before}
		}
		x.hired[name] = x.hire(name, hooks)
	}
	w.T.Cleanup(func() {
		for _, p := range x.pauses {
			close(p.open)
		}
	})
	return x
}

// numbered returns n names.
func numbered(name string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(name, i))
	}
	return names
}

// join lets consumers wait, one after the other.
func (x *pausedCrew) join(names ...string) {
	x.w.T.Helper()
	for _, name := range names {
		n := len(x.w.Children(x.path + "/waiters"))
		x.start(name, x.hired[name])
		x.w.Eventually(name+" has a place", func() bool { return len(x.w.Children(x.path+"/waiters")) == n+1 })
		x.w.Settle()
	}
}

func (x *pausedCrew) pause() {
	for _, p := range x.pauses {
		p.shut.Store(true)
	}
}

// Consumers that are paused do not come to watch the items in place of others, however many of
// them wait first, and whatever is taken: S1, S6.
func TestDeadConsumersDoNotCollectAmongThoseThatWatch(t *testing.T) {
	onEachLong(t, func(w *world) {
		names := append(append([]string{"first"}, numbered("paused", 15)...), numbered("last", 3)...)
		x := newPausedCrew(w, "/q", names...)
		x.join(names...)
		if slots, waiters := standing(w, "/q"); len(slots) != idleSlots || len(waiters) != 19-idleSlots {
			w.T.Fatalf("%d slots and %d waiters of 19 consumers", len(slots), len(waiters))
		}
		x.pause()
		_, put := x.queue(w.Open("producer", nil))
		took := make(map[string]int)
		for n := range 30 {
			began := time.Now()
			put(n)
			select {
			case d := <-x.came:
				took[d.who]++
				if w.Fake && d.at.Sub(began) > 2*time.Second {
					w.T.Errorf("item %d waited for %v", n, d.at.Sub(began))
				}
			case <-time.After(time.Minute):
				w.T.Fatalf("item %d was not taken: %v", n, w.Children("/q/waiters"))
			}
		}
		w.T.Logf("figure: 30 items, 15 of 19 consumers paused: taken by %v", took)
		w.Eventually("all waiters that are left act", func() bool {
			slots, waiters := standing(w, "/q")
			return len(slots) == idleSlots && len(waiters) == 3
		})
	})
}

// If all holders of slots are dead, the wait ends with the session of the first of them, and
// needs nothing else: S7.
func TestDeadHoldersArePassedWhenASessionEnds(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		var dead []*taking
		for i := range idleSlots {
			name := fmt.Sprint("dead", i)
			dead = append(dead, w.takeWaits(ctx, w.queue(name, nil)))
			w.Eventually(name+" has a slot", func() bool { slots, _ := standing(w, "/q"); return len(slots) == i+1 })
			w.Settle()
		}
		live := []*taking{w.takeWaits(context.Background(), w.queue("a", nil)), w.takeWaits(context.Background(), w.queue("b", nil))}
		w.Eventually("the others have waiters", func() bool { _, waiters := standing(w, "/q"); return len(waiters) == 2 })
		for i := range idleSlots {
			w.Link(fmt.Sprint("dead", i)).Partition()
		}
		p := w.queue("p", nil)
		mustPut(w.T, p, 1, 2)
		var got []int
		for _, x := range live {
			<-x.done
			if x.err != nil {
				w.T.Fatal(x.err)
			}
			got = append(got, x.it.Value)
			mustAck(w.T, x.it)
		}
		if slices.Sort(got); !slices.Equal(got, []int{1, 2}) {
			w.T.Errorf("got %v", got)
		}
		for i := range dead {
			w.Link(fmt.Sprint("dead", i)).Heal()
		}
		cancel()
		for _, x := range dead {
			<-x.done
			coordtest.WantErr(w.T, x.err, context.Canceled)
		}
		w.drained(&p.Consumer)
	})
}

// A consumer that leaves a slot sees that another one takes it, also if the first of the line
// is dead, whether its call ends or its client closes: S6.
func TestASlotThatIsLeftIsTakenPastDeadWaiters(t *testing.T) {
	for _, how := range []string{"the context ends", "the client closes"} {
		t.Run(how, func(t *testing.T) {
			onEachLong(t, func(w *world) {
				names := append(numbered("paused", 3), "good")
				x := newPausedCrew(w, "/q", names...)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				var leaving []*taking
				var clients []*coord.Client
				for i := range idleSlots {
					name := fmt.Sprint("leaving", i)
					c := w.Open(name, nil)
					clients = append(clients, c)
					leaving = append(leaving, w.takeWaits(ctx, coord.NewQueue[int](c, "/q", nil)))
					w.Eventually("it has a slot", func() bool { slots, _ := standing(w, "/q"); return len(slots) == i+1 })
				}
				x.join(names...)
				x.pause()
				want := error(context.Canceled)
				if how == "the context ends" {
					cancel()
				} else {
					want = coord.ErrClosed
					for _, c := range clients {
						c.Close()
					}
				}
				for _, l := range leaving {
					<-l.done
					coordtest.WantErr(w.T, l.err, want)
				}
				_, put := x.queue(w.Open("producer", nil))
				put(7)
				select {
				case d := <-x.came:
					if d.who != "good" || d.value != 7 {
						w.T.Errorf("%s got %d", d.who, d.value)
					}
				case <-time.After(time.Minute):
					w.T.Errorf("the item was not taken: %v", w.Children("/q/waiters"))
				}
			})
		})
	}
}

// A consumer that knows of a line, and comes to it, takes a free slot, although the first of the
// line is dead, and no client fills the slots, since their holders died: S3.
func TestANewcomerTakesASlotBehindADeadWaiter(t *testing.T) {
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
func TestSlotsThatThisVersionDoesNotHaveAreIgnored(t *testing.T) {
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
func TestASlotThatCannotBeResolvedIsGivenUp(t *testing.T) {
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

// A consumer whose slot another program has deleted takes items as the others do, and a claim
// that finds its slot gone sees that it is taken.
func TestConsumersWhoseSlotsAreDeletedTakeItems(t *testing.T) {
	onEachLong(t, func(w *world) {
		names := numbered("good", idleSlots+3)
		x := newPausedCrew(w, "/q", names...)
		x.join(names...)
		s := w.Session("outsider")
		for n := range 20 {
			slots, _ := standing(w, "/q")
			for _, name := range slots {
				if _, err := s.Commit(context.Background(), backend.Delete(w.Path("/q/waiters/"+name), backend.AnyVersion)); err != nil && !errors.Is(err, backend.ErrNotFound) {
					w.T.Fatal(err)
				}
			}
			_, put := x.queue(w.Open(fmt.Sprint("producer", n), nil))
			put(n)
			select {
			case <-x.came:
			case <-time.After(time.Minute):
				w.T.Fatalf("item %d was not taken: %v", n, w.Children("/q/waiters"))
			}
		}
		w.Eventually("no slot is free, or no waiter is left", func() bool {
			slots, waiters := standing(w, "/q")
			return len(slots) == idleSlots || len(waiters) == 0
		})
	})
}

// What a put costs all consumers together does not grow with the number of those that are idle.
func TestTheCostOfAPutDoesNotGrowWithTheIdleConsumers(t *testing.T) {
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

// A consumer that waits has an item two round trips after it was told of a change: one to list the
// items, and one to claim.
func TestAnItemReachesAnIdleConsumerInTwoRoundTrips(t *testing.T) {
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
func TestFewOfTheProducersThatWaitForRoomAreWoken(t *testing.T) {
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

// A slot that was vacated on a session is filled, also while the work for an earlier session of the
// same client is not over.
func TestASlotIsFilledWhileTheWorkForALostSessionEnds(t *testing.T) {
	onEachLong(t, func(w *world) {
		ctx := context.Background()
		stop, cancel := context.WithCancel(ctx)
		gate := make(chan struct{})
		var x coordtest.Nth
		a := coord.NewQueue[int](w.Open("a", &backendtest.Hooks{After: x.After}), "/q", nil)
		first := w.takeWaits(ctx, a)
		w.Eventually("a has a slot", func() bool { slots, _ := standing(w, "/q"); return len(slots) == 1 })
		w.Settle()
		p := w.queue("p", nil)
		reached := make(chan struct{})
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "children" && strings.HasSuffix(c.Path, "/waiters") }, func(_ context.Context, c backendtest.Call, err error) error {
			close(reached)
			<-c.Session.Done()
			<-gate
			return c.Session.Err()
		})
		mustPut(w.T, p, 1, 1)
		it := first.item(1)
		<-reached
		w.Link("a").Expire(it.Session())
		<-it.Done()
		mustAck(w.T, mustTake(w.T, p, 1))
		second := w.takeWaits(ctx, a)
		w.Eventually("a has a slot again", func() bool { slots, _ := standing(w, "/q"); return len(slots) == 1 })
		w.Settle()
		var others []*taking
		var pauses []*pause
		for i := range idleSlots { // five holders that die, and a waiter that does
			name := fmt.Sprint("dead", i)
			pauses = append(pauses, &pause{open: make(chan struct{})})
			others = append(others, w.takeWaits(stop, w.hookedQueue(name, &backendtest.Hooks{Before: pauses[i].before}, nil)))
			w.Eventually("it has a place", func() bool { s, l := standing(w, "/q"); return len(s)+len(l) == i+2 })
			w.Settle()
		}
		live := w.takeWaits(ctx, w.queue("live", nil))
		w.Settle()
		for i := range idleSlots {
			pauses[i].shut.Store(true)
		}
		mustPut(w.T, p, 2, 2)
		second.item(2)
		close(gate)
		w.Eventually("its slot is taken", func() bool { s, _ := standing(w, "/q"); return len(s) == idleSlots })
		mustPut(w.T, p, 3, 3)
		select {
		case <-live.done:
		case <-time.After(time.Minute):
			s, l := standing(w, "/q")
			w.T.Errorf("an item waits although a consumer does: %d slots, %d waiters", len(s), len(l))
		}
		for _, p := range pauses {
			close(p.open)
		}
		cancel()
		for _, x := range others {
			<-x.done
		}
	})
}

// An item goes through a queue in three round trips: one each for Put, Take and Ack, and one more
// for a list in 32 takes. A PriorityQueue lists for each Take. A Pop takes
// one, and two more for a list and a claim. The clock of the test counts them, since nothing but the
// link takes time.
func TestAnItemTakesThreeRoundTrips(t *testing.T) {
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

// far makes the round trips of a client under fake time take d.
func (w *world) far(name string, d time.Duration) {
	w.Service.(coordtest.MemoryService).Store.Link(name).SetLatency(d / 2)
}

// evicts reports whether a call is the eviction of a waiter.
func evicts(c backendtest.Call) bool {
	return c.Op == "commit" && len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpDelete && strings.Contains(c.Path, "/_c_")
}

// A slot is filled past dead waiters although requests or replies of evictions are lost: these are
// not taken for evictions of waiters that are gone.
func TestASlotIsFilledAlthoughEvictionsAreLost(t *testing.T) {
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
func TestAllFreeSlotsAreFilled(t *testing.T) {
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
func TestAClientTakesTheSlotThatItCannotFill(t *testing.T) {
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
func TestAFillThatIsRefusedIsRepeated(t *testing.T) {
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

// A client does not wait for ever if another program has made persistent nodes with the names of
// all slots.
func TestSlotsOfAnotherProgramEndAWait(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", full(1))
		mustPut(w.T, q, 1, 1)
		mustAck(w.T, mustTake(w.T, q, 1))
		var paths []string
		for dir, n := range map[string]int{"waiters": idleSlots, "producers": 2} {
			w.commit(backend.Create(w.Path("/q/"+dir), nil, backend.Persistent))
			for i := range n {
				paths = append(paths, fmt.Sprintf("/q/%s/slot-%d", dir, i))
				w.commit(backend.Create(w.Path(paths[len(paths)-1]), nil, backend.Persistent))
			}
		}
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err := q.Take(short)
		coordtest.WantErr(w.T, err, coord.ErrExists)
		if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
			w.T.Error(err)
		}
		mustPut(w.T, q, 2, 2)
		p := w.queue("b", &coord.QueueOptions[int]{MaxLen: 1})
		_, err = p.Put(short, 3)
		coordtest.WantErr(w.T, err, coord.ErrExists)
		mustAck(w.T, mustTake(w.T, q, 2))
		w.remove(paths...)
		x := w.takeWaits(ctx, q)
		mustPut(w.T, p, 4, 4)
		mustAck(w.T, x.item(4))
	})
}

// A client that closes gives its slot up past many dead waiters in the time that Close has, also far
// from the service: it does not pause between evictions then.
func TestAClientThatClosesDoesNotPauseBetweenEvictions(t *testing.T) {
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
func TestASlotIsTriedOnceOnALaggingServer(t *testing.T) {
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
func TestAReconnectDoesNotEndAFill(t *testing.T) {
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
