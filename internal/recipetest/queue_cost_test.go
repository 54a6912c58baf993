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
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

func text200(n int) string { return fmt.Sprintf("%6d%s", n, strings.Repeat(".", 194)) }

func TestQueue_ATakeCostsTheSameHoweverLongTheQueueIs(t *testing.T) {
	coordtest.CountsCost(t)
	synctest.Test(t, aTakeCostsTheSameHoweverLongTheQueueIs)
}

func aTakeCostsTheSameHoweverLongTheQueueIs(t *testing.T) {
	ctx := context.Background()
	var r callCount
	c := coordtest.Open(t, backendtest.Intercept(memory.New(nil), *r.hooks()), nil)
	perTake := make(map[int]float64)
	for _, length := range []int{100, 10_000, 50_000} {
		path := fmt.Sprint("/q", length)
		q := coord.NewQueue(c, path, &coord.QueueOptions[string]{Codec: coord.Text()})
		prefetching := coord.NewQueue(c, path, &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: 50})
		vs := make([]string, length)
		for n := range vs {
			vs[n] = text200(n)
		}
		r.reset()
		ids, err := q.PutAll(ctx, vs...)
		if err != nil || len(ids) != length {
			t.Fatal(len(ids), err)
		}
		put := float64(r.reset()) / float64(length)
		if length > 1_000 && put > 1.0/50 {
			t.Errorf("PutAll of %d: %.4f requests an item, want 1/50 at most", length, put)
		}
		const takes = 40
		for n := range takes {
			it, err := q.Take(ctx)
			if err != nil || it.Value != text200(n) {
				t.Fatal(it, err)
			}
			if err := it.Ack(); err != nil {
				t.Fatal(err)
			}
		}
		perTake[length] = float64(r.reset()) / takes
		n := takes
		for it, err := range prefetching.All(ctx) {
			if err != nil || it.Value != text200(n) {
				t.Fatal(it, err)
			}
			if err := it.Ack(); err != nil {
				t.Fatal(err)
			}
			if n++; n == 2*takes {
				break
			}
		}
		t.Logf("figure: queue of %d items of 200 bytes: %.4f requests an item to put, %.2f to take and acknowledge one by one, %.2f with prefetch; the longest list %d bytes",
			length, put, perTake[length], float64(r.reset())/takes, r.longest)
		if perTake[length] > 2*perTake[100] {
			t.Errorf("%.2f requests per Take of %d, %.2f of 100", perTake[length], length, perTake[100])
		}
	}
	if r.longest > 200_000 {
		t.Errorf("a list of %d bytes", r.longest)
	}
}

func TestQueue_AllOfALongQueueIsTakenInOrder(t *testing.T) {
	synctest.Test(t, allOfALongQueueIsTakenInOrder)
}

func allOfALongQueueIsTakenInOrder(t *testing.T) {
	ctx := context.Background()
	length := 5_000
	if coordtest.Long() {
		length = 50_000
	}
	var r callCount
	c := coordtest.Open(t, backendtest.Intercept(memory.New(nil), *r.hooks()), nil)
	q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{Prefetch: 50})
	vs := make([]int, length)
	for n := range vs {
		vs[n] = n
	}
	if _, err := q.PutAll(ctx, vs...); err != nil {
		t.Fatal(err)
	}
	r.reset()
	n := 0
	for it, err := range q.All(ctx) {
		if err != nil || it.Value != n || it.Attempt != 1 {
			t.Fatal(it, err)
		}
		if err := it.Ack(); err != nil {
			t.Fatal(err)
		}
		if n++; n == length {
			break
		}
	}
	t.Logf("figure: %d items taken with a prefetch of 50: %.3f requests an item", length, float64(r.reset())/float64(length))
	if n, err := q.Len(ctx); n != 0 || err != nil {
		t.Error(n, err)
	}
}

// However many consumers wait, a put wakes those that have slots, and the claim of the item the
// first two of the line.
func TestQueue_APutWakesFewOfManyWaitingConsumers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const consumers = 40
		st := memory.New(nil)
		var all [consumers]callCount
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		took := make(chan int, consumers)
		for i := range consumers {
			l := st.Link(fmt.Sprint(i))
			c := coordtest.Open(t, backendtest.Intercept(l, *all[i].hooks()), nil)
			l.SetLatency(tripTime / 2)
			q := coord.NewQueue[int](c, "/q", nil)
			for range 3 { // callers of one client wait together
				wg.Go(func() {
					it, err := q.Take(ctx)
					if err != nil {
						if !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
						return
					}
					took <- i
					if err := it.Ack(); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		p := coord.NewQueue[int](coordtest.Open(t, st, nil), "/q", nil)
		var most, sum, busy int
		for n := range 30 {
			for i := range all {
				all[i].reset()
			}
			synctest.Wait()
			for i := range all {
				if k := all[i].reset(); k != 0 {
					t.Errorf("a waiting consumer made %d requests", k)
				}
			}
			mustPut(t, p, n, n)
			time.Sleep(time.Second)
			awake, calls := 0, 0
			for i := range all {
				if k := all[i].reset(); k > 0 {
					awake++
					calls += k
				}
			}
			if len(took) != n+1 {
				t.Fatalf("%d taken after %d puts", len(took), n+1)
			}
			most, sum, busy = max(most, awake), sum+awake, busy+calls
		}
		t.Logf("figure: %d clients with 3 waiting callers each, 30 puts: %.1f clients wake for a put, %d at most, with %.1f requests together", consumers, float64(sum)/30, most, float64(busy)/30)
		// The holders of slots look for the item, the first waiter takes the slot of the winner, and
		// the second waiter becomes the first.
		if most > 8 {
			t.Errorf("%d clients woke for one put", most)
		}
		cancel()
		wg.Wait()
		close(took)
		var who []int
		for i := range took {
			who = append(who, i)
		}
		slices.Sort(who)
		if k := len(slices.Compact(who)); k < 15 {
			t.Errorf("only %d of %d clients got something of 30 puts", k, consumers)
		}
	})
}

// Items that are not due, or of less priority, add nothing to the cost of a Take, however many
// there are.
func TestQueue_ATakeDoesNotReadItemsThatAreNotDueOrOfLessPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		var r callCount
		c := coordtest.Open(t, backendtest.Intercept(memory.New(nil), *r.hooks()), nil)
		d, p := coord.NewDelayQueue[int](c, "/d", nil), coord.NewPriorityQueue[int](c, "/p", nil)
		for n := range 40 {
			if _, err := d.PutAll(ctx, time.Now().Add(time.Duration(n+2)*time.Minute), make([]int, 500)...); err != nil {
				t.Fatal(err)
			}
			if _, err := p.PutAll(ctx, int64(n), make([]int, 500)...); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.Put(ctx, time.Now(), 1); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Put(ctx, -1, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for name, q := range map[string]*coord.Consumer[int]{"delay": &d.Consumer, "priority": &p.Consumer} {
			r.reset()
			it, err := q.Take(ctx)
			if err != nil || it.Value != 1 {
				t.Fatal(name, it, err)
			}
			if err := it.Ack(); err != nil {
				t.Fatal(err)
			}
			n := r.reset()
			t.Logf("figure: a Take and its Ack in a %s queue of 20,000 items cost %d requests", name, n)
			if n > 8 {
				t.Errorf("%s: %d requests", name, n)
			}
		}
		r.reset()
		if _, err := d.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
			t.Fatal(err)
		}
		if n := r.reset(); n > 4 {
			t.Errorf("to find nothing due cost %d requests", n)
		}
		if r.longest > 50_000 {
			t.Errorf("a list of %d bytes", r.longest)
		}
	})
}

// Idle consumers with a slot list the bucket into which an item is put, and not the directory of buckets.
func TestQueue_AnItemForIdleConsumersCostsFewLists(t *testing.T) {
	coordtest.CountsCost(t)
	for _, test := range []struct {
		consumers int
		small     bool    // buckets, so that each third put makes one
		most      float64 // lists of the directory of an item
	}{{1, false, 1}, {4, false, 4}, {8, false, 5}, {4, true, 7}} {
		consumers := test.consumers
		t.Run(fmt.Sprintf("%d, small %t", consumers, test.small), func(t *testing.T) {
			onMemory(t, func(w *world) {
				const items = 60
				var calls, lists atomic.Int32
				p, came := w.queue("p", nil), make(chan int, 1)
				if !test.small {
					wide(p)
				}
				mustPut(w.T, p, 0, 0)
				var works []*working
				for i := range consumers {
					name := fmt.Sprint("c", i)
					q := wide(w.hookedQueue(name, &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
						calls.Add(1)
						if c.Op == "children" && c.Path == w.Path("/q/items") {
							lists.Add(1)
						}
						return nil
					}}, nil))
					w.Link(name).(*memory.Link).SetLatency(time.Millisecond)
					works = append(works, w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error { came <- it.Value; return nil }))
				}
				for n := range items {
					if n == 10 {
						calls.Store(0)
						lists.Store(0)
					}
					if got := receive(w, "an item comes", came); got != n {
						w.T.Errorf("got %d, want %d", got, n)
					}
					time.Sleep(time.Second) // all wait again
					mustPut(w.T, p, n+1, n+1)
				}
				got := float64(lists.Load()) / (items - 10)
				w.T.Logf("figure: %d idle consumers: %.1f requests an item, %.1f of them list the directory of buckets", consumers, float64(calls.Load())/(items-10), got)
				if got > test.most {
					w.T.Errorf("%.1f lists of the directory an item, want %.0f at most", got, test.most)
				}
				receive(w, "the last item comes", came)
				for _, x := range works {
					x.finish()
				}
			})
		})
	}
}
