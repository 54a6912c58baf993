package recipetest

import (
	"context"
	"errors"
	"fmt"
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

// The removal of an item does not let a single consumer with Prefetch get later items first.
func TestQueue_ARemovedItemDoesNotChangeTheOrderOfRemembered(t *testing.T) {
	for _, by := range []string{"this client", "another client"} {
		t.Run(by, func(t *testing.T) {
			onMemory(t, func(w *world) {
				q := coord.NewQueue[int](w.Open("a", nil), "/q", &coord.QueueOptions[int]{Prefetch: 4})
				var ids []string
				for n := range 16 {
					id, err := q.Put(context.Background(), n)
					if err != nil {
						w.T.Fatal(err)
					}
					ids = append(ids, id)
				}
				remover := q
				if by != "this client" {
					remover = w.queue("b", nil)
				}
				var got []int
				for it, err := range q.All(context.Background()) {
					if err != nil {
						w.T.Fatal(err)
					}
					got = append(got, it.Value)
					if it.Value == 3 { // the next claim is of 4, 5, 6 and 7
						if err := remover.Remove(context.Background(), ids[6]); err != nil {
							w.T.Fatal(err)
						}
					}
					mustAck(w.T, it)
					if len(got) == 15 {
						break
					}
				}
				for i := 1; i < len(got); i++ {
					if got[i] < got[i-1] {
						w.T.Fatalf("a single consumer got %v", got)
					}
				}
			})
		})
	}
}

// An item whose claim was lost is the first for a single consumer.
func TestQueue_ALostClaimIsSeenByItsOwnClient(t *testing.T) {
	onMemory(t, func(w *world) {
		q := coord.NewQueue[int](w.Open("a", nil), "/q", nil)
		mustPut(w.T, q, 1, 5)
		it := mustTake(w.T, q, 1)
		var mark string
		bucket := "/q/items/" + w.Children("/q/items")[0]
		for _, name := range w.Children(bucket) {
			if strings.HasPrefix(name, "m-") {
				mark = bucket + "/" + name
			}
		}
		if _, err := w.Session("outsider").Commit(context.Background(), backend.Delete(w.Path(mark), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-it.Done()
		mustTake(w.T, q, 1)
	})
}

// Redrive does not wait for room, also if a Put of the same queue value does.
func TestQueue_ARedriveDoesNotWaitBehindAPutThatWaits(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{MaxLen: 1, MaxAttempts: 1})
		w.bury(q, 1, 1)
		mustPut(w.T, q, 2, 2)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			_, err := q.Put(ctx, 3)
			done <- err
		}()
		w.Settle()
		short, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		n, err := q.Redrive(short)
		if !errors.Is(err, coord.ErrFull) || n != 0 {
			w.T.Errorf("%d moved, %v; want %v", n, err, coord.ErrFull)
		}
		cancel()
		coordtest.WantErr(w.T, <-done, context.Canceled)
	})
}

// An item of a DelayQueue that is due sooner is taken first, at once if the same queue value has
// put it, and after a second at the latest if not.
func TestQueue_AnItemThatIsDueSoonerIsTakenBeforeThoseRemembered(t *testing.T) {
	for _, how := range []string{"Put", "PutOp of a Txn", "Put of another value", "Put of another client"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				c := w.Open("a", nil)
				q := coord.NewDelayQueue[int](c, "/q", nil)
				now := time.Now().Truncate(time.Minute).Add(-time.Hour)
				for n := 1; n <= 4; n++ {
					if _, err := q.Put(ctx, now.Add(time.Duration(n)*time.Second), n); err != nil {
						w.T.Fatal(err)
					}
				}
				mustAck(w.T, mustTake(w.T, q, 1))
				switch how {
				case "Put":
					q.Put(ctx, now, 0)
				case "PutOp of a Txn":
					if _, err := coord.NewTxn(c).Add(q.PutOp(now, 0)).Commit(ctx); err != nil {
						w.T.Fatal(err)
					}
				case "Put of another value":
					coord.NewDelayQueue[int](c, "/q", nil).Put(ctx, now, 0)
				default:
					coord.NewDelayQueue[int](w.Open("b", nil), "/q", nil).Put(ctx, now, 0)
				}
				if strings.HasPrefix(how, "Put of") {
					time.Sleep(time.Second + time.Millisecond)
				}
				mustTake(w.T, q, 0)
			})
		})
	}
}

// What a take costs all consumers together does not grow with the number of those that wait far
// from the service.
func TestQueue_TheCostOfAPutDoesNotGrowWithFarConsumers(t *testing.T) {
	coordtest.CountsCost(t)
	of := make(map[int]float64)
	for _, consumers := range []int{10, 100, 300} {
		synctest.Test(t, func(t *testing.T) {
			const puts = 10
			st := memory.New(&memory.Options{SessionTimeout: time.Hour})
			all := make([]callCount, consumers)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range consumers {
				l := st.Link(fmt.Sprint(i))
				q := coord.NewQueue[int](coordtest.Open(t, backendtest.Intercept(l, *all[i].hooks()), nil), "/q", nil)
				if i == 0 {
					l.SetLatency(time.Millisecond / 2)
				} else {
					l.SetLatency(20 * time.Millisecond)
				}
				wg.Go(func() {
					for ctx.Err() == nil {
						it, err := q.Take(ctx)
						if err != nil {
							return
						}
						if err := it.Ack(); err != nil {
							t.Error(err)
						}
					}
				})
				time.Sleep(time.Second) // the near one has a slot
			}
			time.Sleep(5 * time.Minute)
			p := coord.NewQueue[int](coordtest.Open(t, st, nil), "/q", nil)
			mustPut(t, p, -1, -1)
			time.Sleep(time.Minute)
			for i := range all {
				all[i].reset()
			}
			sum := 0
			awake := 0
			for n := range puts {
				mustPut(t, p, n, n)
				time.Sleep(10 * time.Second)
				for i := range all {
					k := all[i].reset()
					sum += k
					if k > 0 {
						awake++
					}
				}
			}
			of[consumers] = float64(awake) / puts
			t.Logf("figure: a put into a queue with %d idle consumers, all but one 40 ms away, wakes %.1f, which make %.1f requests", consumers, float64(awake)/puts, float64(sum)/puts)
			cancel()
			wg.Wait()
		})
	}
	if of[300] > of[10]+2 {
		t.Errorf("it grows: %v", of)
	}
}

// A Take that ends while it prepares a claim does not let the next one pass over the item.
func TestQueue_ATakeThatEndsBeforeItsClaimDoesNotChangeTheOrder(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		q := coord.NewQueue[int](w.Open("a", &backendtest.Hooks{Before: x.Before}), "/q", nil)
		mustPut(w.T, q, 1, 5)
		var items []*coord.Item[int]
		for n := 1; n <= 5; n++ {
			items = append(items, mustTake(w.T, q, n))
		}
		for _, it := range items {
			if err := it.Nack(0); err != nil {
				w.T.Fatal(err)
			}
		}
		mustAck(w.T, mustTake(w.T, q, 1))
		ctx, cancel := context.WithCancel(context.Background())
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/s-") }, func(ctx context.Context, _ backendtest.Call, _ error) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		_, err := q.Take(ctx)
		coordtest.WantErr(w.T, err, context.Canceled)
		mustTake(w.T, q, 2)
	})
}

// A consumer that reads the first bucket beside the list of buckets gets the items in order, although
// the bucket was filled, and the next one made, between the two.
func TestQueue_ABucketThatFillsDuringAListIsNotPassedOver(t *testing.T) {
	onMemory(t, func(w *world) {
		const last = 10
		p := w.queue("p", nil)
		*coordtest.Inside(&p.Consumer).BucketSize = 3
		var armed atomic.Bool
		var read, put sync.Once
		readHead := make(chan struct{})
		q := w.hookedQueue("a", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				if armed.Load() && c.Op == "children" && c.Path == w.Path("/q/items") {
					put.Do(func() {
						<-readHead
						mustPut(w.T, p, 2, last)
					})
				}
				return nil
			},
			After: func(_ context.Context, c backendtest.Call, err error) error {
				switch {
				case c.Op == "commit" && coordtest.Commits(c, backend.OpCreate) && strings.Contains(c.Ops[0].Path, "/slot-"):
					armed.Store(true)
				case armed.Load() && c.Op == "children" && strings.HasPrefix(c.Path, w.Path("/q/items/")):
					read.Do(func() { close(readHead) })
				}
				return err
			},
		}, nil)
		mustPut(w.T, p, 1, 1)
		mustAck(w.T, mustTake(w.T, q, 1))
		for n := 2; n <= last; n++ {
			mustAck(w.T, mustTake(w.T, q, n))
		}
	})
}
