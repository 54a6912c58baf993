package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
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

// Each commit with the counts is hit in turn, on the first put, on later ones and on repairs.
func TestQueue_ALimitedPutOverAnyLostCall(t *testing.T) {
	for _, kind := range []string{"request", "reply"} {
		for hit := 1; hit <= 12; hit++ {
			t.Run(fmt.Sprint(kind, " ", hit), func(t *testing.T) {
				onMemories(t, func(w *world) {
					var x coordtest.Nth
					hooks := &backendtest.Hooks{Before: x.Before}
					if kind == "reply" {
						hooks = &backendtest.Hooks{After: x.After}
					}
					q := w.hookedQueue("a", hooks, full(2))
					x.Arm(hit, func(c backendtest.Call) bool { return c.Op == "commit" }, coordtest.Lose)
					mustPut(w.T, q, 1, 2)
					wantFull(w.T, q)
					w.remove("/q/items/out")
					wantFull(w.T, q)
					mustAck(w.T, mustTake(w.T, q, 1))
					mustPut(w.T, q, 3, 3)
					wantFull(w.T, q)
					w.wantCounted(2)
				})
			})
		}
	}
}

// An item is deleted before or after the list that counts it. The counts are true all the same.
func TestQueue_ItemsThatLeaveDuringACount(t *testing.T) {
	for _, broken := range []bool{false, true} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprintf("broken %v, before the list %v", broken, before), func(t *testing.T) {
				onMemories(t, func(w *world) {
					var x coordtest.Nth
					hooks := &backendtest.Hooks{After: x.After}
					if before {
						hooks = &backendtest.Hooks{Before: x.Before}
					}
					c := w.queue("c", nil)
					mustPut(w.T, w.queue("b", full(3)), 1, 3)
					it := mustTake(w.T, c, 1)
					if broken {
						w.remove("/q/items/in")
					}
					a := w.hookedQueue("a", hooks, full(3))
					left := false
					x.Arm(1, func(c backendtest.Call) bool {
						return c.Op == "children" && strings.HasSuffix(c.Path, "/b-0-0")
					}, func(_ context.Context, _ backendtest.Call, err error) error {
						mustAck(w.T, it)
						left = true
						return err
					})
					_, err := a.Put(context.Background(), 4)
					if !left {
						w.T.Fatal("there was no list")
					}
					if err != nil && (!broken || before) {
						w.T.Error(err)
					}
					if n, listed := counted(w.T, w.Session("s"), w.Path("/q")); n < listed || n > listed && !(broken && !before) {
						w.T.Errorf("the nodes count %d items, a list shows %d", n, listed)
					}
					mustAck(w.T, mustTake(w.T, c, 2))
					for range 3 {
						a.Put(context.Background(), 5)
					}
					w.wantCounted(3)
				})
			})
		}
	}
}

// An item that leaves after a producer has read out, and before it watches it, wakes the producer.
func TestQueue_RoomThatIsMadeBeforeAProducerWatchesIsSeen(t *testing.T) {
	onMemories(t, func(w *world) {
		var x coordtest.Nth
		q := w.queue("b", full(6))
		mustPut(w.T, q, 1, 6)
		mustTake(w.T, q, 1)
		it := mustTake(w.T, q, 2) // none of those that the producer watches
		// The producer reads out before it takes a slot.
		x.Arm(1, func(c backendtest.Call) bool {
			return coordtest.Creates(c) && strings.Contains(c.Path, "/producers/slot-")
		}, func(context.Context, backendtest.Call, error) error {
			mustAck(w.T, it)
			return nil
		})
		watched := false
		hooks := &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			if c.Op == "arm" && c.Path == w.Path("/q/items/out") {
				watched = true
				for _, t := range c.Targets {
					if strings.Contains(t.Path, it.ID) {
						w.T.Errorf("it watches %s, so this tests nothing", t.Path)
					}
				}
			}
			return x.Before(ctx, c)
		}}
		w.putWaits(w.hookedQueue("a", hooks, &coord.QueueOptions[int]{MaxLen: 6}), 7).done()
		if !watched || !x.Idle() {
			w.T.Error("the producer has not waited")
		}
		w.wantCounted(6)
	})
}

// A producer whose put is refused, since another one has put, and whose server does not show that
// yet, reads the counts after a Sync.
func TestQueue_ALimitedPutIsRefusedOnceOnALaggingServer(t *testing.T) {
	onMemory(t, func(w *world) {
		var lags atomic.Bool
		var puts atomic.Int64
		var old []byte // what the server shows of in
		var stat backend.Stat
		in := w.Path("/q/items/in")
		hooks := &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				if c.Op == "sync" {
					lags.Store(false)
				}
				if coordtest.Creates(c) && puts.Add(1) > 10 {
					return backend.ErrDenied // it would not end
				}
				return nil
			},
			Results: func(c backendtest.Call, results []backend.ReadResult) {
				if lags.Load() && c.Path == in {
					results[0].Data, results[0].Stat = old, stat
				}
			},
		}
		o := &coord.QueueOptions[int]{MaxLen: 9}
		a, b := w.hookedQueue("a", hooks, o), w.queue("b", o)
		mustPut(w.T, a, 1, 1)
		var err error
		old, stat, err = w.Session("observer").Get(context.Background(), in, nil)
		w.must(err)
		mustPut(w.T, b, 2, 2)
		puts.Store(0)
		lags.Store(true)
		mustPut(w.T, a, 3, 3)
		if n := puts.Load(); n != 2 || lags.Load() {
			w.T.Errorf("the put took %d commits, want 2, with a Sync between them", n)
		}
		w.wantCounted(3)
	})
}

// An Ack of a queue without counts is one commit, and so is one of a queue with counts. If the
// node has gone, one Ack pays for that.
func TestQueue_AnAckIsOneCommitWithAndWithoutCounts(t *testing.T) {
	onMemories(t, func(w *world) {
		var r callCount
		q := w.hookedQueue("a", r.hooks(), nil)
		ack := func(n, want int) {
			w.T.Helper()
			it := mustTake(w.T, q, n)
			r.reset()
			mustAck(w.T, it)
			if k := r.reset(); k != want {
				w.T.Errorf("the Ack of %d cost %d requests, want %d", n, k, want)
			}
		}
		mustPut(w.T, q, 1, 3)
		for n := 1; n <= 3; n++ {
			ack(n, 1)
		}
		learn := func() { // Len lists the directory, which shows the node out
			w.T.Helper()
			if _, err := q.Len(context.Background()); err != nil {
				w.T.Error(err)
			}
		}
		mustPut(w.T, w.queue("b", full(9)), 4, 9)
		learn()
		for n := 4; n <= 6; n++ {
			ack(n, 1)
		}
		w.remove("/q/items/out")
		ack(7, 2)
		for n := 8; n <= 9; n++ {
			ack(n, 1)
		}
		var items []*coord.Item[int]
		mustPut(w.T, w.queue("c", full(9)), 10, 13)
		learn()
		for n := 10; n <= 13; n++ {
			items = append(items, mustTake(w.T, q, n))
		}
		w.remove("/q/items/out")
		r.reset()
		if err := q.AckAll(items...); err != nil {
			w.T.Error(err)
		}
		if k := r.reset(); k != 2 {
			w.T.Errorf("AckAll cost %d requests, want 2", k)
		}
	})
}

// A put into a queue with a limit costs the same however long the queue is.
func TestQueue_ALimitedPutCostsTheSameHoweverLongTheQueueIs(t *testing.T) {
	coordtest.CountsCost(t)
	for _, length := range []int{100, 10_000, 50_000} {
		// In fake time: a list is made once in a second at most, and a call takes no time.
		synctest.Test(t, func(t *testing.T) { limitedPutCosts(t, length) })
	}
}

func limitedPutCosts(t *testing.T, length int) {
	ctx := context.Background()
	st := memory.New(nil)
	var r, r2 callCount
	a := coordtest.Open(t, backendtest.Intercept(st, *r.hooks()), nil)
	b := coordtest.Open(t, backendtest.Intercept(st, *r2.hooks()), nil)
	const puts = 40
	o := full(length + 4*puts)
	q, q2 := coord.NewQueue(a, "/q", o), coord.NewQueue(b, "/q", o)
	if _, err := q.PutAll(ctx, make([]int, length)...); err != nil {
		t.Fatal(err)
	}
	put := r.reset()
	if most := length/80 + 20; put > most {
		t.Errorf("PutAll of %d cost %d requests, want %d at most", length, put, most)
	}
	mustPut(t, q2, 0, 0)
	mustPut(t, q, 0, 0)
	r.reset()
	mustPut(t, q, 1, puts)
	alone := float64(r.reset()) / puts
	for range puts {
		mustPut(t, q2, 1, 1)
		mustPut(t, q, 1, 1)
	}
	turns := float64(r.reset()) / puts
	var acked int
	for range puts {
		it, err := q.Take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		r.reset()
		mustAck(t, it)
		acked += r.reset()
	}
	// At the limit: room for one, again and again.
	for {
		if _, err := q.Put(ctx, 0); err != nil {
			coordtest.WantErr(t, err, coord.ErrFull)
			break
		}
	}
	r.reset()
	limit := 0
	for range puts {
		it, err := q2.Take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		mustAck(t, it)
		r.reset()
		mustPut(t, q, 1, 1)
		limit += r.reset()
	}
	r.reset()
	const refused = 400
	for range refused {
		wantFull(t, q)
	}
	none := float64(r.reset()) / refused
	t.Logf("figure: a queue of %d items with a limit: PutAll %.4f requests an item; Put %.2f requests, %.2f in turns with another producer, %.2f at the limit; ErrFull %.2f; Ack %.2f",
		length, float64(put)/float64(length), alone, turns, float64(limit)/puts, none, float64(acked)/puts)
	if alone > 1.1 || turns > 3.2 || float64(limit)/puts > 2.2 || none > 9.1 || acked != puts {
		t.Error("that is too much")
	}
	if n, listed := counted(t, sure(st.Open(ctx)), "/q"); n != listed || n != o.MaxLen {
		t.Errorf("the nodes count %d items, a list shows %d, the limit is %d", n, listed, o.MaxLen)
	}
}

// A producer that waits costs a few requests for each item that leaves, however long the queue
// is, and none while nothing happens. The callers of one queue value share one watch.
func TestQueue_AProducerThatWaitsForRoomCostsLittle(t *testing.T) {
	coordtest.CountsCost(t)
	for _, length := range []int{20, 5_000} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			st := memory.New(nil)
			var r callCount
			a := coordtest.Open(t, backendtest.Intercept(st, *r.hooks()), nil)
			q := coord.NewQueue(a, "/q", &coord.QueueOptions[int]{MaxLen: length})
			c := coord.NewQueue[int](coordtest.Open(t, st, nil), "/q", nil)
			if _, err := q.PutAll(ctx, make([]int, length)...); err != nil {
				t.Fatal(err)
			}
			const callers = 30
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					if _, err := q.Put(ctx, 1); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			r.reset()
			time.Sleep(time.Hour)
			if n := r.reset(); n != 0 {
				t.Errorf("%d requests in an hour of waiting", n)
			}
			for n := range callers {
				it := sure(c.Take(ctx))
				mustAck(t, it)
				synctest.Wait()
				if got := sure(c.Len(ctx)); got != length {
					t.Fatalf("%d items after %d Acks, want %d", got, n+1, length)
				}
			}
			per := float64(r.reset()) / callers
			t.Logf("figure: %d callers of one queue value wait for room in a queue of %d: %.2f requests for each item that leaves", callers, length, per)
			// Two reads, the put, and the list of a full queue; and for the slot: it is taken, given
			// up, and seen to be taken, all of it in the background of the next put.
			if per > 16 {
				t.Error("that is too much")
			}
			wg.Wait()
		})
	}
}

// A caller that gives up while another one of its queue value waits for room does not disturb
// that one, and the other way round.
func TestQueue_CallersThatWaitForRoomGiveUpIndependently(t *testing.T) {
	for _, gone := range []int{0, 1} {
		t.Run(fmt.Sprint(gone), func(t *testing.T) {
			onMemory(t, func(w *world) {
				q := w.queue("a", &coord.QueueOptions[int]{MaxLen: 1})
				mustPut(w.T, q, 0, 0)
				errs := [2]chan error{make(chan error, 1), make(chan error, 1)}
				var cancels [2]context.CancelFunc
				for i := range errs {
					ctx, cancel := context.WithCancel(context.Background())
					cancels[i] = cancel
					defer cancel()
					n := w.Waits.Load()
					go func() {
						_, err := q.Put(ctx, i+1)
						errs[i] <- err
					}()
					w.Eventually("it waits", func() bool { return w.Waits.Load() > n })
				}
				cancels[gone]()
				coordtest.WantErr(w.T, <-errs[gone], context.Canceled)
				mustAck(w.T, mustTake(w.T, q, 0))
				if err := <-errs[1-gone]; err != nil {
					w.T.Error(err)
				}
				mustAck(w.T, mustTake(w.T, q, 2-gone))
				w.drained(&q.Consumer)
			})
		})
	}
}

// Versions and counts are finite. A queue keeps working when they have wrapped.
func TestQueue_ALimitedQueueOutlivesTheVersionsOfItsNodes(t *testing.T) {
	for name, first := range map[string]struct{ in, out int32 }{
		"in":                       {math.MaxInt32 - 3, 5},
		"out":                      {5, math.MaxInt32 - 3},
		"both":                     {math.MaxInt32 - 3, math.MaxInt32 - 3},
		"out, to zero":             {5, -3},
		"out, of an outsider's in": {math.MinInt32 + 5, -3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				b := &aged{Backend: memory.New(nil), by: make(map[int64]int32)}
				c := coordtest.Open(t, b, nil)
				s := sure(b.Open(ctx))
				defer s.Close()
				q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{MaxLen: 2})
				// In commits of their own, so that they age alone.
				old := coord.NewQueue[int](c, "/q", nil)
				mustPut(t, old, 1, 1)
				for name, data := range map[string]string{"in": "1", "out": ""} {
					if _, err := s.Commit(ctx, backend.Create("/q/items/"+name, []byte(data), backend.Persistent)); err != nil {
						t.Fatal(err)
					}
				}
				mustAck(t, mustTake(t, old, 1))
				age := func(path string, version int32) int64 {
					synctest.Wait() // no clean-up reads
					stat := sure(s.Exists(ctx, path, nil))
					b.by[stat.Czxid] += version - stat.Version
					return stat.Czxid
				}
				n := 0
				play := func() {
					for range 8 {
						mustPut(t, q, n, n+1)
						if k, listed := counted(t, s, "/q"); k != 2 || listed != 2 {
							t.Fatalf("the nodes count %d items, a list shows %d, want 2", k, listed)
						}
						short, cancel := context.WithTimeout(ctx, time.Minute)
						_, err := q.Put(short, 99)
						cancel()
						coordtest.WantErr(t, err, context.DeadlineExceeded)
						mustAck(t, mustTake(t, q, n))
						mustAck(t, mustTake(t, q, n+1))
						if k, listed := counted(t, s, "/q"); k != 0 || listed != 0 {
							t.Fatalf("the nodes count %d items, a list shows %d, want none", k, listed)
						}
						n += 2
					}
				}
				play()
				if _, err := s.Commit(ctx, backend.SetData("/q/items/in", strconv.AppendUint(nil, uint64(uint32(first.out)), 10), backend.AnyVersion)); err != nil {
					t.Fatal(err)
				}
				was := age("/q/items/in", first.in)
				age("/q/items/out", first.out)
				play()
				if renewed := age("/q/items/in", 0) != was; renewed != (first.in != 5) {
					t.Errorf("another node in: %v", renewed)
				}
			})
		})
	}
}

// The version of the directory of items is used up by the buckets of new priorities. The node
// tally continues the count.
func TestQueue_AQueueOutlivesTheVersionsOfItsDirectory(t *testing.T) {
	for _, first := range []int32{math.MaxInt32 - 3, math.MinInt32 + 5} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			b := &aged{Backend: memory.New(nil), by: make(map[int64]int32)}
			q := coord.NewPriorityQueue(coordtest.Open(t, b, nil), "/q", full(2))
			s := sure(b.Backend.Open(ctx))
			defer s.Close()
			age := func(path string, version int32) int64 {
				stat, err := s.Exists(ctx, path, nil)
				if err != nil {
					t.Fatal(err)
				}
				b.by[stat.Czxid] += version - (stat.Version + b.by[stat.Czxid])
				return stat.Czxid
			}
			priority := 0
			play := func() {
				for range 8 {
					for range 2 {
						priority++
						if _, err := q.Put(ctx, int64(priority), priority); err != nil {
							t.Fatal(err)
						}
					}
					_, err := q.Put(ctx, 0, 99)
					coordtest.WantErr(t, err, coord.ErrFull)
					mustAck(t, mustTake(t, q, priority-1))
					mustAck(t, mustTake(t, q, priority))
				}
			}
			play()
			age("/q/items", first)
			play()
			next := age("/q/items/tally", math.MaxInt32-3)
			play()
			if age("/q/items/tally", 0) == next {
				t.Error("the second node has the versions that were used up")
			}
			if n := mustLen(t, &q.Consumer); n != 0 {
				t.Errorf("%d items", n)
			}
		})
	}
}

// Producers and consumers lose sessions, replies and requests. The queue is never longer than
// its limit, the counts are never wrong, and at the end the queue is not blocked.
func TestQueue_ALimitHoldsWhateverIsLost(t *testing.T) {
	seeds := uint64(30)
	if coordtest.Long() {
		seeds = 1_000
	}
	var steps, longest, lost atomic.Int64
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			const most, producers, consumers, each = 5, 3, 3, 12
			st := memory.New(&memory.Options{SessionTimeout: 2 * time.Second})
			look := sure(st.Open(t.Context()))
			defer look.Close()
			var mu sync.Mutex // a commit and its check are one step
			sessions := make(map[*memory.Link]int64)
			step := func(l *memory.Link, c backendtest.Call) {
				mu.Lock()
				defer mu.Unlock()
				sessions[l] = c.Session.ID()
				names, _, err := look.Children(t.Context(), "/q/items/b-0-0", nil)
				if err != nil {
					return
				}
				n := 0
				for _, name := range names {
					if strings.HasPrefix(name, "i-") {
						n++
					}
				}
				steps.Add(1)
				longest.Store(max(longest.Load(), int64(n)))
				if n > most {
					t.Errorf("seed %d: %d items, limit %d", seed, n, most)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			var put, took atomic.Int64
			var producing, rest sync.WaitGroup
			links := make([]*memory.Link, 0, producers+consumers)
			open := func(name string) *coord.Queue[int] {
				l := st.Link(name)
				l.SetLatency(time.Duration(1+len(links)%3) * time.Millisecond)
				links = append(links, l)
				hooks := backendtest.Hooks{
					Before: func(_ context.Context, c backendtest.Call) error {
						step(l, c)
						return nil
					},
					After: func(_ context.Context, c backendtest.Call, err error) error {
						step(l, c)
						return err
					},
				}
				q := coord.NewQueue[int](coordtest.Open(t, backendtest.Intercept(l, hooks), nil), "/q", &coord.QueueOptions[int]{MaxLen: most, Prefetch: 1 + len(links)%2})
				*coordtest.Inside(&q.Consumer).BucketSize = 10_000 // one bucket, so that a list is exact
				return q
			}
			for i := range producers {
				q := open(fmt.Sprint("p", i))
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				producing.Go(func() {
					for range each {
						ids, err := q.PutAll(ctx, make([]int, 1+r.IntN(3))...)
						put.Add(int64(len(ids)))
						if err != nil {
							lost.Add(1)
							if !errors.Is(err, coord.ErrUncertain) {
								t.Errorf("seed %d: %v", seed, err)
							}
						}
						time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
					}
				})
			}
			for i := range consumers {
				q := open(fmt.Sprint("c", i))
				r := rand.New(rand.NewPCG(seed, 100+uint64(i)))
				rest.Go(func() {
					for it, err := range q.All(ctx) {
						if err != nil {
							t.Error(err)
							return
						}
						time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
						switch r.IntN(5) {
						case 0:
							err = it.Nack(0)
						case 1:
							err = it.Release()
						default:
							if err = it.Ack(); err == nil {
								took.Add(1)
							}
						}
						if err != nil {
							lost.Add(1)
						}
					}
				})
			}
			rest.Go(func() {
				r := rand.New(rand.NewPCG(seed, 1_000))
				for ctx.Err() == nil {
					l := links[r.IntN(len(links))]
					switch r.IntN(4) {
					case 0:
						l.DropNextReply()
					case 1:
						l.DropNextRequest()
					case 2:
						mu.Lock()
						id := sessions[l]
						mu.Unlock()
						l.Expire(id)
					}
					time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
				}
			})
			producing.Wait()
			for listedItems(t, look, "/q") > 0 {
				time.Sleep(10 * time.Millisecond)
			}
			cancel()
			rest.Wait()
			synctest.Wait()
			if n, listed := counted(t, look, "/q"); n != 0 || listed != 0 {
				t.Errorf("seed %d: in the end the nodes count %d items, a list shows %d", seed, n, listed)
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("figure: %d seeds, %d steps checked, at most %d items, %d calls lost", seeds, steps.Load(), longest.Load(), lost.Load())
	if longest.Load() != 5 || lost.Load() == 0 {
		t.Error("this tests too little")
	}
}

// An outsider deletes the last item of a full queue. A producer that waits watches that one too,
// however many items there are.
func TestQueue_AProducerWatchesTheLastItem(t *testing.T) {
	for _, most := range []int{1, 4, 7, 9, 10, 23} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			onMemories(t, func(w *world) {
				q := w.queue("a", full(most))
				*coordtest.Inside(&q.Consumer).BucketSize = 100
				mustPut(w.T, q, 1, most)
				wantFull(w.T, q)
				put := w.putWaits(w.queue("b", &coord.QueueOptions[int]{MaxLen: most}), 100)
				bucket := "/q/items/" + w.Children("/q/items")[0]
				names := itemNames(w, bucket)
				w.remove(bucket + "/" + slices.MaxFunc(names, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) }))
				put.done()
			})
		})
	}
}

// All watches fire after a reconnect. A producer that waits does not count the items for that.
func TestQueue_AProducerDoesNotCountTheItemsAfterAReconnect(t *testing.T) {
	onMemories(t, func(w *world) {
		const most = 9
		q := w.queue("a", full(most))
		mustPut(w.T, q, 1, most)
		var lists, arms atomic.Int64
		b := w.hookedQueue("b", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			switch {
			case c.Op == "children" && strings.Contains(c.Path, "/items"):
				lists.Add(1)
			case c.Op == "arm" && c.Path == w.Path("/q/items/out"):
				arms.Add(1)
			}
			return err
		}}, &coord.QueueOptions[int]{MaxLen: most})
		put := w.putWaits(b, 100)
		w.Eventually("the producer watches", func() bool { return arms.Load() > 0 })
		for range 3 {
			lists.Store(0)
			n := arms.Load()
			w.Link("b").Partition()
			w.Link("b").Heal()
			w.Eventually("the producer watches again", func() bool { return arms.Load() > n })
			w.Settle()
			if n := lists.Load(); n > 0 {
				w.T.Errorf("%d lists after a reconnect", n)
			}
		}
		mustAck(w.T, mustTake(w.T, q, 1))
		put.done()
	})
}
