package recipetest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A DelayQueue takes items of more minutes than it can have buckets. Each comes when it is due.
func TestDelayQueue_MoreMinutesThanBuckets(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"Put", "PutOp"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				const step, day, span = 22 * time.Minute, 24 * time.Hour, 45 * 24 * time.Hour
				most := coordtest.Count(450, 1_400)
				c := w.Open("a", nil)
				q := coord.NewDelayQueue[int](c, "/q", nil)
				*coordtest.Inside(&q.Consumer).BucketLimit = most
				var dues []time.Time
				for at := time.Duration(0); at < span; at += step {
					if !coordtest.Long() && at%(15*day) >= 5*day {
						continue // near minutes, hours and days all the same
					}
					dues = append(dues, time.Now().Add(at+1500*time.Millisecond).Truncate(time.Second))
				}
				if len(dues) < 2*most {
					w.T.Fatalf("%d minutes", len(dues))
				}
				for n, due := range dues {
					var err error
					if how == "Put" {
						_, err = q.Put(ctx, due, n)
					} else {
						_, err = coord.NewTxn(c).Add(q.PutOp(due, n)).Commit(ctx)
					}
					if err != nil {
						w.T.Fatalf("item %d of %d: %v", n, len(dues), err)
					}
				}
				w.T.Logf("figure: %d minutes of %v in %d buckets", len(dues), span, len(w.Children("/q/items")))
				consumer := coord.NewDelayQueue[int](w.Open("b", nil), "/q", nil)
				for n, due := range dues {
					it, err := consumer.Take(ctx)
					if err != nil {
						w.T.Fatal(err)
					}
					late := time.Since(due)
					if n > 0 && (late < 0 || late > 10*time.Second) { // the clock of the service is learned on the way
						w.T.Errorf("item %d was taken %v late", it.Value, late)
					}
					if it.Value != n {
						w.T.Fatalf("item %d was taken, want %d", it.Value, n)
					}
					mustAck(w.T, it)
				}
				w.drained(&consumer.Consumer)
			})
		})
	}
}

// Near minutes keep nodes of their own, and the order of due times holds there, also beside items
// that were put a long time before, under the key of a longer span.
func TestDelayQueue_NearMinutesKeepTheirOrder(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewDelayQueue[int](w.Open("a", nil), "/q", nil)
		*coordtest.Inside(&q.Consumer).BucketLimit = 1000
		start := time.Now().Truncate(24 * time.Hour).Add(48 * time.Hour)
		time.Sleep(time.Until(start.Add(-time.Hour)))
		for n := range 500 {
			if _, err := q.Put(ctx, start.Add(400*24*time.Hour+time.Duration(n)*time.Minute), 1000+n); err != nil {
				w.T.Fatal(err)
			}
		}
		before := len(w.Children("/q/items"))
		for n := 59; n >= 0; n-- { // the minutes of an hour, the last first
			if _, err := q.Put(ctx, start.Add(10*time.Hour+time.Duration(n)*time.Minute), n); err != nil {
				w.T.Fatal(err)
			}
		}
		if n := len(w.Children("/q/items")) - before; n != 60 {
			w.T.Errorf("%d nodes for sixty near minutes", n)
		}
		before = len(w.Children("/q/items"))
		for n := range 60 { // of an hour in two days
			if _, err := q.Put(ctx, start.Add(50*time.Hour+time.Duration(n)*time.Minute), 100+n); err != nil {
				w.T.Fatal(err)
			}
		}
		if n := len(w.Children("/q/items")) - before; n != 1 {
			w.T.Errorf("%d nodes for an hour in two days", n)
		}
		time.Sleep(time.Until(start.Add(12 * time.Hour)))
		for n := range 60 {
			mustAck(w.T, mustTakeWithin(w.T, q, n, time.Minute))
		}
		time.Sleep(time.Until(start.Add(52 * time.Hour)))
		for n := range 60 {
			mustAck(w.T, mustTakeWithin(w.T, q, 100+n, time.Minute))
		}
	})
}

// A Put for a minute that has no node costs the consumers that wait no list. An item that is due
// before those that they know still comes at once, and so does the first one of all.
func TestDelayQueue_PutOfANewMinuteCostsNoList(t *testing.T) {
	coordtest.CountsCost(t)
	onMemories(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		const minutes, consumers = 300, 3
		producer := w.delayQueue("producer")
		base := time.Now().Add(24 * time.Hour)
		put := func(n int) {
			if _, err := producer.Put(ctx, base.Add(time.Duration(n)*time.Minute), n); err != nil {
				w.T.Fatal(err)
			}
		}
		for n := range minutes {
			put(2 * n)
		}
		var lists, calls atomic.Int32
		taken := make(chan *coord.Item[int], 10)
		var over sync.WaitGroup
		for i := range consumers {
			q := coord.NewDelayQueue[int](w.Open(fmt.Sprint("consumer", i), &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
				calls.Add(1)
				if c.Op == "children" && c.Path == w.Path("/q/items") {
					lists.Add(1)
				}
				return nil
			}}), "/q", nil)
			over.Go(func() {
				for it, err := range q.All(ctx) {
					if err != nil {
						w.T.Error(err)
						return
					}
					taken <- it
				}
			})
		}
		w.Settle()
		lists.Store(0)
		calls.Store(0)
		const more = 50
		for n := range more {
			put(2*n + 1)
			w.Settle()
		}
		w.T.Logf("figure: %d puts of new minutes beside %d idle consumers: %d lists of %d minutes, %d calls of the consumers", more, consumers, lists.Load(), minutes, calls.Load())
		if lists.Load() != 0 || calls.Load() > 2*more*consumers {
			w.T.Errorf("%d lists, %d calls, want none and %d at most", lists.Load(), calls.Load(), 2*more*consumers)
		}
		came := func(what string, want int, at time.Time) {
			w.T.Helper()
			it := receive(w, what, taken)
			if late := time.Since(at); it.Value != want || late < 0 || late > time.Second {
				w.T.Errorf("%s: %d came %v late, want %d", what, it.Value, late, want)
			}
			mustAck(w.T, it)
			w.Settle()
		}
		// An earlier minute, alone and among later ones, and one that another client removes.
		soon := time.Now().Add(10 * time.Minute)
		if _, err := producer.Put(ctx, soon, -1); err != nil {
			w.T.Fatal(err)
		}
		put(1001)
		time.Sleep(time.Until(soon))
		came("an earlier minute", -1, soon)
		put(1003)
		put(1005)
		soon = time.Now()
		if _, err := producer.Put(ctx, soon, -2); err != nil {
			w.T.Fatal(err)
		}
		put(1007)
		came("what is due at once", -2, soon)
		time.Sleep(time.Until(base.Add(time.Second)))
		came("the first of all", 0, base)
		time.Sleep(time.Until(base.Add(time.Minute + time.Second)))
		came("one of the minutes that were put during the wait", 1, base.Add(time.Minute))
		cancel()
		over.Wait()
	})
}

// A Put for a new minute costs a consumer that waits as many requests with many minutes as with few, also beside an
// item that is due and claimed by another consumer. The bytes grow: the consumer lists the minutes.
func TestDelayQueue_PutOfANewMinuteBesideAClaimedItem(t *testing.T) {
	t.Parallel()
	counts := []int{100}
	if os.Getenv("COORD_LONG") != "" {
		counts = append(counts, 1_000, 5_000)
	}
	for _, claimed := range []bool{false, true} {
		for _, minutes := range counts {
			t.Run(fmt.Sprintf("claimed %t, %d minutes", claimed, minutes), func(t *testing.T) {
				onMemory(t, func(w *world) {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					producer, other := w.delayQueue("producer"), w.delayQueue("other")
					put := func(due time.Time) {
						w.T.Helper()
						if _, err := producer.Put(ctx, due, 0); err != nil {
							w.T.Fatal(err)
						}
					}
					if claimed {
						put(time.Now())
						mustTake(w.T, other, 0)
					}
					base := time.Now().Add(time.Hour)
					for n := range minutes {
						put(base.Add(time.Duration(2*n) * time.Minute))
					}
					var calls, lists, bytes atomic.Int64
					idle := coord.NewDelayQueue[int](w.Open("idle", &backendtest.Hooks{
						Before: func(_ context.Context, c backendtest.Call) error {
							calls.Add(1)
							return nil
						},
						Names: func(_ backendtest.Call, names []string) []string {
							lists.Add(1)
							for _, name := range names {
								bytes.Add(int64(4 + len(name)))
							}
							return names
						},
					}), "/q", nil)
					var over sync.WaitGroup
					over.Go(func() {
						if it, err := idle.Take(ctx); err == nil {
							w.T.Errorf("took item %s", it.ID)
						}
					})
					w.Settle()
					nodes := len(w.Children("/q/items"))
					calls.Store(0)
					lists.Store(0)
					bytes.Store(0)
					const more = 10
					for n := range more {
						put(base.Add(time.Duration(2*n+1) * time.Minute))
						w.Settle()
					}
					w.T.Logf("figure: %d minutes in %d nodes, earlier item claimed %t: a put of a new minute costs an idle consumer %.1f requests, %.1f of them lists, and %d bytes of names",
						minutes, nodes, claimed, float64(calls.Load())/more, float64(lists.Load())/more, bytes.Load()/more)
					if most := int64(3 * more); calls.Load() > most || !claimed && lists.Load() > 0 {
						w.T.Errorf("%d requests, %d lists, want %d requests at most", calls.Load(), lists.Load(), most)
					}
					cancel()
					over.Wait()
				})
			})
		}
	}
}

// An earlier minute is seen also if the producer is of a version that says nothing in the directory,
// and if the directory is made anew.
func TestDelayQueue_AnEarlierMinuteIsSeenWhoeverMakesIt(t *testing.T) {
	for _, how := range []string{"an older producer", "two producers", "a new directory", "after a reconnect"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				q, other := w.delayQueue("a"), w.delayQueue("b")
				later := func(n int) {
					if _, err := other.Put(ctx, time.Now().Add(time.Duration(n)*time.Hour), n); err != nil {
						w.T.Fatal(err)
					}
				}
				later(1)
				done := make(chan *coord.Item[int], 1)
				go func() {
					it, err := q.Take(ctx)
					if err != nil {
						w.T.Error(err)
					}
					done <- it
				}()
				w.Settle()
				later(2) // the consumer has read the directory once
				w.Settle()
				s := w.Session("outsider")
				items := w.Path("/q/items")
				names := w.Children("/q/items")
				slices.Sort(names)
				id := strings.Repeat("0", 8) + "-0000-4000-8000-" + strings.Repeat("0", 12)
				minute := time.Now().Truncate(time.Minute).UnixMilli()
				bucket := fmt.Sprintf("%s/b-%d-0", items, minute)
				ops := []backend.Op{
					backend.SetData(items, nil, backend.AnyVersion), backend.Create(bucket, nil, backend.Persistent),
					backend.Create(fmt.Sprintf("%s/i-%s-%d-", bucket, id, time.Now().UnixMilli()), []byte("7"), backend.PersistentSequential),
				}
				switch how {
				case "two producers":
					ops = append(ops, backend.SetData(items, []byte(fmt.Sprint(minute+1e8)), backend.AnyVersion))
				case "a new directory":
					var all []backend.Op
					for _, b := range names {
						for _, n := range w.Children("/q/items/" + b) {
							all = append(all, backend.Delete(items+"/"+b+"/"+n, backend.AnyVersion))
						}
						all = append(all, backend.Delete(items+"/"+b, backend.AnyVersion))
					}
					ops = append(append(all, backend.Delete(items, backend.AnyVersion), backend.Create(items, nil, backend.Persistent)), ops[1:]...)
					for range 2 { // to the version that the consumer has seen
						ops = append(ops, backend.SetData(items, []byte(fmt.Sprint(minute+1e8)), backend.AnyVersion))
					}
				case "after a reconnect":
					w.Link("a").Partition()
				}
				if _, err := s.Commit(ctx, ops...); err != nil {
					w.T.Fatal(err)
				}
				if how == "after a reconnect" {
					time.Sleep(100 * time.Millisecond)
					w.Link("a").Heal()
				}
				began := time.Now()
				it := receive(w, "the earlier item comes", done)
				if it.Value != 7 || time.Since(began) > 5*time.Second {
					w.T.Errorf("%d came after %v", it.Value, time.Since(began))
				}
				mustAck(w.T, it)
			})
		})
	}
}

// Two producers share the nodes of an hour and of a day. Each finds closed what the other has filled,
// and what a purge has removed.
func TestDelayQueue_ProducersShareASpan(t *testing.T) {
	for _, how := range []string{"Put", "PutOp"} {
		t.Run(how, func(t *testing.T) {
			onMemories(t, func(w *world) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				var queues [2]*coord.DelayQueue[int]
				var clients [2]*coord.Client
				var calls atomic.Int32
				for i := range queues {
					clients[i] = w.Open(fmt.Sprint("producer", i), &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
						if calls.Add(1) > 20_000 {
							return backend.ErrDenied // it tries the same for ever
						}
						return nil
					}})
					queues[i] = coord.NewDelayQueue[int](clients[i], "/q", nil)
					*coordtest.Inside(&queues[i].Consumer).BucketSize = 3
					*coordtest.Inside(&queues[i].Consumer).BucketLimit = 200
				}
				put := func(i int, due time.Time, n int) {
					w.T.Helper()
					var err error
					if how == "Put" {
						_, err = queues[i].Put(ctx, due, n)
					} else {
						_, err = coord.NewTxn(clients[i]).Add(queues[i].PutOp(due, n)).Commit(ctx)
					}
					if err != nil {
						w.T.Fatal(err)
					}
				}
				day := time.Now().Truncate(24 * time.Hour)
				near, hour, later := day.Add(25*time.Hour), day.Add(100*time.Hour), day.Add(100*24*time.Hour)
				for round := range 2 {
					for n := range 100 { // so many that spans are shared
						put(n%2, near.Add(-time.Duration(n)*10*time.Minute), -1)
					}
					for n := range 40 {
						put(n%2, hour.Add(time.Duration(n)*time.Minute), n)
						put((n+1)%2, later.Add(time.Duration(n)*time.Minute), 100+n)
					}
					if n := len(w.Children("/q/items")); n > 160 {
						w.T.Errorf("%d buckets", n)
					}
					if n, err := queues[0].Purge(ctx); err != nil || n != 180 {
						w.T.Fatalf("round %d: purged %d, %v, want 180", round, n, err)
					}
				}
			})
		})
	}
}

// An idle consumer that has passed claimed items of a minute that is due sees when one of them comes
// back, although an item of a later minute is put meanwhile.
func TestDelayQueue_ALaterMinuteHidesNoItemThatComesBack(t *testing.T) {
	for _, put := range []bool{false, true} {
		t.Run(fmt.Sprintf("put %t", put), func(t *testing.T) {
			onMemories(t, func(w *world) {
				ctx := context.Background()
				a, b := w.delayQueue("a"), w.delayQueue("b")
				now := time.Now()
				for n, due := range []time.Time{now, now.Add(time.Hour)} {
					if _, err := a.Put(ctx, due, n); err != nil {
						w.T.Fatal(err)
					}
				}
				it := mustTake(w.T, a, 0)
				taken := make(chan *coord.Item[int], 1)
				ended := make(chan error, 1)
				go func() {
					it, err := b.Take(ctx)
					ended <- err
					taken <- it
				}()
				time.Sleep(10 * time.Second)
				if put {
					if _, err := a.Put(ctx, now.Add(2*time.Hour), 2); err != nil {
						w.T.Fatal(err)
					}
					time.Sleep(10 * time.Second)
				}
				back := time.Now()
				w.must(it.Release())
				w.must(<-ended)
				got := <-taken
				if d := time.Since(back); got.Value != 0 || d > 2*time.Second {
					w.T.Errorf("item %d came after %v", got.Value, d)
				}
				mustAck(w.T, got)
			})
		})
	}
}

// No name of an item of a DelayQueue is used twice, however often the item is put back, alone or
// together with others.
func TestDelayQueue_RedrivenItemsGetNewNames(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewDelayQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
		dues := make(map[string][]string) // by id
		look := func() {
			for _, b := range w.Children("/q/items") {
				for _, name := range w.Children("/q/items/" + b) {
					if rest, ok := strings.CutPrefix(name, "i-"); ok {
						for id := range dues {
							if due, ok := strings.CutPrefix(rest, id+"-"); ok {
								due = due[:strings.LastIndex(due, "-")]
								if slices.Contains(dues[id], due) {
									w.T.Errorf("the item %s is due at %s again", id, due)
								}
								dues[id] = append(dues[id], due)
							}
						}
					}
				}
			}
		}
		put := func(v int) {
			id, err := q.Put(ctx, time.Now(), v)
			if err != nil {
				w.T.Fatal(err)
			}
			dues[id] = nil
		}
		put(1)
		look()
		for round := range 4 {
			if round == 2 {
				put(2)
			}
			var items []*coord.Item[int]
			for range len(dues) {
				it, err := q.Take(ctx)
				if err != nil {
					w.T.Fatal(err)
				}
				items = append(items, it)
			}
			for _, it := range slices.Backward(items) { // so the one that was put back less often is the first
				w.must(it.Nack(0))
			}
			if n, err := q.Redrive(ctx); n != len(dues) || err != nil {
				w.T.Fatal(n, err)
			}
			look()
		}
		for id, all := range dues {
			if len(all) < 2 {
				w.T.Errorf("the item %s was seen %d times", id, len(all))
			}
		}
	})
}
