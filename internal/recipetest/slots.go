package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
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

// slotsTests are tests of Queue on each service.
type slotsTests struct{ Services }

// Consumers that are paused do not come to watch the items in place of others, however many of
// them wait first, and whatever is taken: S1, S6.
func (on slotsTests) DeadConsumersDoNotCollectAmongThoseThatWatch(t *testing.T) {
	on.eachLong(t, func(w *world) {
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
func (on slotsTests) DeadHoldersArePassedWhenASessionEnds(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on slotsTests) ASlotThatIsLeftIsTakenPastDeadWaiters(t *testing.T) {
	for _, how := range []string{"the context ends", "the client closes"} {
		t.Run(how, func(t *testing.T) {
			on.eachLong(t, func(w *world) {
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

// A consumer whose slot another program has deleted takes items as the others do, and a claim
// that finds its slot gone sees that it is taken.
func (on slotsTests) ConsumersWhoseSlotsAreDeletedTakeItems(t *testing.T) {
	on.eachLong(t, func(w *world) {
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

// A slot that was vacated on a session is filled, also while the work for an earlier session of the
// same client is not over.
func (on slotsTests) ASlotIsFilledWhileTheWorkForALostSessionEnds(t *testing.T) {
	on.eachLong(t, func(w *world) {
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

// far makes the round trips of a client under fake time take d.
func (w *world) far(name string, d time.Duration) {
	w.Service.(coordtest.MemoryService).Store.Link(name).SetLatency(d / 2)
}

// A client does not wait for ever if another program has made persistent nodes with the names of
// all slots.
func (on slotsTests) SlotsOfAnotherProgramEndAWait(t *testing.T) {
	on.each(t, func(w *world) {
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
