package recipetest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// A change costs each client requests for the shards that it gets or gives up, and for the members
// that have changed. The number of all shards does not matter.
func TestShards_AChangeOfMembersCostsWhatMoves(t *testing.T) {
	coordtest.CountsCost(t)
	onMemories(t, func(w *world) {
		for _, n := range []int{60, 600} {
			x := newCrew(w, n)
			var members []*countedMember
			step := func(what string, change func()) {
				w.T.Helper()
				before := make(map[*countedMember][3]int64)
				for _, m := range members {
					before[m] = [3]int64{m.requests.Load(), m.gained.Load(), m.lost.Load()}
				}
				change()
				x.evenly(members)
				text := ""
				for _, m := range members {
					b := before[m]
					requests, gained, lost := m.requests.Load()-b[0], m.gained.Load()-b[1], m.lost.Load()-b[2]
					text += fmt.Sprintf(" %s: %d for %d gained and %d lost;", m.id, requests, gained, lost)
					most := 7*gained + 2*lost
					if b[0] == 0 {
						most += 24 // opens, joins, and makes directories
					}
					if w.Without == 0 {
						most += 4 // the list of the members
					} else {
						most += 4 + 2*int64(len(members))
					}
					if requests > most {
						w.T.Errorf("%d shards, %s: %s makes %d requests for %d shards gained and %d lost, want at most %d", n, what, m.id, requests, gained, lost, most)
					}
				}
				w.T.Logf("figure: %d shards, %s:%s", n, what, text)
			}
			for i := range 5 {
				step(fmt.Sprint("member ", i+1, " joins"), func() { members = append(members, x.counted(fmt.Sprintf("%d-%d", n, i))) })
			}
			step("the first member leaves", func() {
				if err := members[0].leave(); err != nil {
					w.T.Error(err)
				}
				members = members[1:]
			})
			for _, m := range members {
				m.leave()
			}
			w.Destroy(w.Path("/s"))
		}
	})
}

// Members with random weights come and go: each change moves the share of the member and a few
// shards, and each of these is granted once.
func TestShards_RandomChangesMoveFewShards(t *testing.T) {
	onMemory(t, func(w *world) {
		const n = 150
		changes, all, shares := 0, 0, 0
		for seed := range uint64(3) {
			r := rand.New(rand.NewPCG(seed, 21))
			x := newCrew(w, n)
			var members []*crewMember
			weight := make(map[*crewMember]int)
			for step := range 14 {
				var before []string
				if len(members) > 0 {
					before = x.ids()
				}
				grants, total := x.granted(), 0
				var m *crewMember
				what := "joins"
				if len(members) > 1 && (len(members) == 7 || r.IntN(5) < 2) {
					at := r.IntN(len(members))
					m, what = members[at], "leaves"
					members = slices.Delete(members, at, at+1)
					total += weight[m]
					if err := m.leave(); err != nil {
						w.T.Error(err)
					}
				} else {
					id, k := fmt.Sprintf("%d-%d", seed, step), 1+r.IntN(3)
					m = x.start(id, coord.ShardsOptions{Weight: k})
					weight[m] = k
					members = append(members, m)
				}
				w.Settle()
				want := make(map[*crewMember]bool)
				for _, m := range members {
					total += weight[m]
					want[m] = true
				}
				x.mu.Lock()
				for i, owner := range x.owners {
					if !want[owner] {
						w.T.Fatalf("seed %d, step %d: shard %d is not owned", seed, step, i)
					}
				}
				x.mu.Unlock()
				if before == nil {
					continue
				}
				moved, most := moves(before, x.ids()), (n*weight[m]+total-1)/total+int(2*math.Sqrt(n))+2 // as NewShards promises
				if moved == 0 || moved > most || x.granted()-grants != moved {
					w.T.Errorf("seed %d: a member of weight %d of %d %s: %d shards move with %d grants, want at most %d, each once", seed, weight[m], total, what, moved, x.granted()-grants, most)
				}
				changes, all, shares = changes+1, all+moved, shares+n*weight[m]/total
			}
			for _, m := range members {
				m.leave()
			}
			w.Destroy(w.Path("/s"))
		}
		w.T.Logf("figure: %d shards, %d random joins and leaves with weights: %d shards move, each once; the shares are %d", n, changes, all, shares)
	})
}

// After a change of the members each shard has its owner within a few round trips, however many
// shards there are. Fake time: what a client does costs none, and a round trip tripTime.
func TestShards_HaveTheirOwnersAFewRoundTripsAfterAChange(t *testing.T) {
	onMemory(t, func(w *world) {
		for _, n := range []int{30, 300} {
			x := newCrew(w, n)
			id := func(name string) string { return fmt.Sprint(name, n) }
			var joined time.Time
			start := func(name string) *crewMember {
				c := coordtest.Open(w.T, w.Link(id(name)), &coord.Options{Namespace: w.Path(""), Trace: func(_ context.Context, e trace.Event) {
					if _, ok := e.(trace.MemberJoined); ok {
						x.mu.Lock()
						defer x.mu.Unlock()
						joined = time.Now()
					}
				}})
				w.Service.(coordtest.MemoryService).Store.Link(id(name)).SetLatency(tripTime / 2)
				return x.startOn(c, id(name), coord.ShardsOptions{})
			}
			a, b := start("a"), start("b")
			x.loads(map[*crewMember]int{a: n / 2, b: n / 2})
			time.Sleep(time.Minute)
			var c *crewMember
			for _, change := range []struct {
				what string
				do   func()
				want func() map[*crewMember]int
				most float64 // round trips
			}{
				// From the reply to its join: it reads the members, and asks for its shards while
				// the owners read its node and release them.
				{"a member joins", func() { c = start("c") }, func() map[*crewMember]int { return map[*crewMember]int{a: n / 3, b: n / 3, c: n / 3} }, 7},
				// It leaves the group while it releases its shards, and the others ask for them.
				{"it leaves", func() { c.stop() }, func() map[*crewMember]int { return map[*crewMember]int{a: n / 2, b: n / 2} }, 4},
				{"the session of a member ends", func() { b.c.Close() }, func() map[*crewMember]int { return map[*crewMember]int{a: n} }, 4},
			} {
				began := time.Now()
				change.do()
				x.loads(change.want())
				x.mu.Lock()
				if joined.After(began) {
					w.T.Logf("figure: %d shards: it joins in %.1f round trips", n, float64(joined.Sub(began))/float64(tripTime))
					began = joined
				}
				x.mu.Unlock()
				trips := float64(time.Since(began)) / float64(tripTime)
				w.T.Logf("figure: %d shards: %s: each has its owner after %.1f round trips", n, change.what, trips)
				if trips > change.most {
					w.T.Errorf("%d shards: %s: each has its owner after %.1f round trips, want at most %.0f", n, change.what, trips, change.most)
				}
				time.Sleep(time.Minute)
			}
			a.leave()
			w.Destroy(w.Path("/s"))
		}
	})
}

// A client watches its own shards and the members, and nothing else.
func TestShards_AMemberWatchesWhatItOwns(t *testing.T) {
	onMemories(t, func(w *world) {
		const n, each = 90, 3
		x := newCrew(w, n)
		var members []*crewMember
		var counters []*watchCounter
		want := make(map[*crewMember]int)
		for i := range each {
			counter := &watchCounter{Backend: w.Link(fmt.Sprint(i))}
			counters = append(counters, counter)
			members = append(members, x.startOn(coordtest.Open(w.T, counter, &coord.Options{Namespace: w.Path("")}), fmt.Sprint(i), coord.ShardsOptions{}))
			want[members[i]] = n / each
		}
		x.loads(want)
		time.Sleep(time.Second) // the watch on the node of a hold is armed a while after the grant
		w.Settle()
		for i, counter := range counters {
			got := counter.standing()
			if got < n/each || got > n/each+each+3 {
				w.T.Errorf("member %d has %d watches, for %d shards of its own and %d members", i, got, n/each, each)
			}
			w.T.Logf("figure: %d watches for %d shards of its own of %d, and %d members", got, n/each, n, each)
		}
	})
}

// The figures of the changelog: how long members need until they own all shards, on memory and in
// real time.
func TestShards_FiguresOfShards(t *testing.T) {
	sizes := [][2]int{{64, 3}}
	if coordtest.Long() {
		sizes = [][2]int{{64, 3}, {64, 10}, {1000, 3}, {1000, 10}, {1000, 100}, {10_000, 3}, {10_000, 10}, {10_000, 100}}
	}
	for _, size := range sizes {
		n, members := size[0], size[1]
		store := memory.New(nil)
		var requests, owned atomic.Int64
		ended := make(chan error, members+1)
		start := func(id string) (c *coord.Client, stop context.CancelFunc) {
			ctx, stop := context.WithCancel(context.Background())
			c, err := coord.Open(ctx, backendtest.Intercept(store.Link(id), backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
				requests.Add(1)
				return nil
			}}), nil)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				ended <- coord.NewShards(c, "/s", n, &coord.ShardsOptions{ID: id}).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
					owned.Add(1)
					<-ctx.Done()
					owned.Add(-1)
					return nil
				})
			}()
			return c, stop
		}
		s, err := store.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		// settled waits until all shards are owned, and have been for some time.
		settled := func(what string, began time.Time) {
			t.Helper()
			was := requests.Load()
			last, still := time.Now(), 0
			for still < 5 {
				time.Sleep(20 * time.Millisecond)
				now := requests.Load()
				if owned.Load() == int64(n) && now == was {
					still++
					continue
				}
				was, last, still = now, time.Now(), 0
				if time.Since(began) > 3*time.Minute {
					t.Fatalf("%s: %d of %d shards are owned", what, owned.Load(), n)
				}
			}
			t.Logf("figure: %d shards, %d members on memory: %s: %d ms, %d requests of all", n, members, what, last.Sub(began).Milliseconds(), requests.Swap(0))
		}
		clients, stops := make([]*coord.Client, members), make([]context.CancelFunc, members)
		began := time.Now()
		for i := range members {
			clients[i], stops[i] = start(fmt.Sprint("m", i))
		}
		settled("all members start", began)
		began = time.Now()
		extra, stop := start("one more")
		settled("one more joins", began)
		began = time.Now()
		stop()
		settled("it leaves", began)
		extra.Close()
		for i := range members {
			stops[i]()
		}
		for range members + 1 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		for _, c := range clients {
			c.Close()
		}
	}
}
