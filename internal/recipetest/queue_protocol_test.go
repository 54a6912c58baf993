package recipetest

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// Each test here stops one client at the worst moment of a rule of the protocol,
// and lets others act.

// P1: a producer is paused before its put. Meanwhile the bucket is closed, or also emptied and
// removed.
func TestQueue_APutNeverLandsInAClosedBucket(t *testing.T) {
	for _, removed := range []bool{false, true} {
		t.Run(map[bool]string{false: "closed", true: "removed"}[removed], func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x coordtest.Nth
				a, b, c := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil), w.queue("b", nil), w.queue("c", nil)
				mustPut(w.T, a, 1, 1)
				x.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
					mustPut(w.T, b, 2, 9)
					if removed {
						for n := 1; n <= 8; n++ {
							mustAck(w.T, mustTake(w.T, c, n))
						}
					}
					return nil
				})
				mustPut(w.T, a, 10, 10)
				first := 1
				if removed {
					first = 9
				}
				for n := first; n <= 10; n++ {
					mustAck(w.T, mustTake(w.T, c, n))
				}
				w.drained(&c.Consumer)
			})
		})
	}
}

// P2: a producer is paused before it creates the first bucket of a key. Meanwhile others create
// it and the next one, and remove the first.
func TestQueue_ThereIsNeverASecondOpenBucket(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		a, b := w.priorityQueue("a", &backendtest.Hooks{Before: x.Before}), w.priorityQueue("b", nil)
		mustPutAt(w.T, b, 9, 99)
		x.Arm(1, coordtest.Creates, func(_ context.Context, c backendtest.Call, _ error) error {
			mustPutAt(w.T, b, 1, 11, 12, 13, 14)
			mustPutAt(w.T, b, 1, 15)
			for n := 11; n <= 14; n++ {
				mustAck(w.T, mustTake(w.T, b, n))
			}
			mustTake(w.T, b, 15).Release() // after the first bucket was removed
			if _, err := c.Session.Exists(context.Background(), w.Path("/q/items/b-1-0"), nil); err == nil {
				w.T.Error("the first bucket is there: this tests nothing")
			}
			return nil
		})
		if _, err := a.Put(context.Background(), 1, 16); err != nil {
			w.T.Fatal(err)
		}
		mustAck(w.T, mustTake(w.T, b, 15))
		mustAck(w.T, mustTake(w.T, b, 16))
		mustAck(w.T, mustTake(w.T, b, 99))
		w.drained(&b.Consumer)
	})
}

// P2: the server that a producer reads from shows a closed bucket as the last one, until a
// sync. The bucket after it was created and removed meanwhile.
func TestQueue_APutOnALaggingServerGoesToTheOpenBucket(t *testing.T) {
	onMemory(t, func(w *world) {
		var lag atomic.Bool
		a := w.hookedQueue("a", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				lag.Store(lag.Load() && c.Op != "sync")
				return nil
			},
			Names: func(c backendtest.Call, names []string) []string {
				if !lag.Load() {
					return names
				}
				return slices.DeleteFunc(names, func(name string) bool { return name == "b-0-2" })
			},
		}, nil)
		b, c := w.queue("b", nil), w.queue("c", nil)
		mustPut(w.T, a, 1, 1)
		mustPut(w.T, b, 2, 14)
		first := mustTake(w.T, c, 1)
		for n := 2; n <= 12; n++ {
			mustAck(w.T, mustTake(w.T, c, n))
		}
		mustAck(w.T, mustTake(w.T, c, 13))
		if names := w.Children("/q/items"); len(names) != 2 || slices.Contains(names, "b-0-1") {
			w.T.Fatalf("%v: this tests nothing", names)
		}
		lag.Store(true)
		mustPut(w.T, a, 15, 15)
		if lag.Load() {
			w.T.Error("the producer did not sync")
		}
		mustAck(w.T, first)
		mustAck(w.T, mustTake(w.T, c, 14))
		mustAck(w.T, mustTake(w.T, c, 15))
		w.drained(&c.Consumer)
	})
}

// T2: between the list that showed an item free, and the read of its state, another consumer
// claims it.
func TestQueue_AClaimBetweenTheListAndTheStateIsSeen(t *testing.T) {
	for _, write := range []bool{false, true} {
		onMemory(t, func(w *world) {
			ctx := context.Background()
			var x coordtest.Nth
			a, b := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil), w.queue("b", nil)
			mustPut(w.T, a, 1, 1)
			first := mustTake(w.T, b, 1)
			if err := first.Nack(0); err != nil {
				w.T.Fatal(err)
			}
			state := w.Path("/q/items/b-0-0/s-" + first.ID)
			if write { // an outsider's write does not make the item stuck
				if _, err := w.Session("x").Commit(ctx, backend.SetData(state, []byte("what?"), backend.AnyVersion)); err != nil {
					w.T.Fatal(err)
				}
			}
			var other *coord.Item[int]
			x.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/s-") },
				func(context.Context, backendtest.Call, error) error {
					other = mustTake(w.T, b, 1)
					return nil
				})
			_, err := a.TryTake(ctx)
			coordtest.WantErr(w.T, err, coord.ErrEmpty)
			mustAck(w.T, other)
			w.drained(&b.Consumer)
		})
	}
}

// T2: both consumers have seen the item free. It was claimed before, or not.
func TestQueue_OfTwoConsumersThatSawAnItemFreeOneGetsIt(t *testing.T) {
	for _, before := range []int{0, 1} {
		for _, end := range []string{"holds", "acked", "gave back"} {
			onMemory(t, func(w *world) {
				var x coordtest.Nth
				claimed := 0
				a, b := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before, After: func(_ context.Context, c backendtest.Call, err error) error {
					if claims(c) && err == nil {
						claimed++
					}
					return err
				}}, nil), w.queue("b", nil)
				mustPut(w.T, a, 1, 1)
				for range before {
					if err := mustTake(w.T, b, 1).Nack(0); err != nil {
						w.T.Fatal(err)
					}
				}
				var other *coord.Item[int]
				x.Arm(1, claims, func(context.Context, backendtest.Call, error) error {
					other = mustTake(w.T, b, 1)
					switch end {
					case "acked":
						mustAck(w.T, other)
					case "gave back":
						if err := other.Release(); err != nil {
							w.T.Error(err)
						}
					}
					return nil
				})
				it, err := a.TryTake(context.Background())
				if end == "gave back" {
					if err != nil || it.Attempt != before+1 {
						w.T.Fatal(it, err)
					}
					mustAck(w.T, it)
				} else {
					coordtest.WantErr(w.T, err, coord.ErrEmpty)
					if claimed > 0 {
						w.T.Error("both have claimed it")
					}
				}
				if end == "holds" {
					if err := other.Verify(context.Background()); err != nil {
						w.T.Error(err)
					}
					mustAck(w.T, other)
				}
				w.drained(&b.Consumer)
			})
		}
	}
}

// W5: the server of a consumer shows an item that the service does not have any more,
// also after a Sync: its tree differs from those of the other servers for good.
func TestQueue_AnItemThatOnlyOneServerHasDelaysNoOther(t *testing.T) {
	onMemory(t, func(w *world) {
		const most = 20 // a consumer that repeats its claim comes to an end
		ghost, refused := "", 0
		a, b := w.hookedQueue("a", &backendtest.Hooks{
			Names: func(c backendtest.Call, names []string) []string {
				if ghost != "" && refused < most && strings.HasSuffix(c.Path, "/b-0-0") {
					names = append(names, ghost)
				}
				return names
			},
			After: func(_ context.Context, c backendtest.Call, err error) error {
				if claims(c) && err != nil {
					refused++
				}
				return err
			},
		}, nil), w.queue("b", nil)
		mustPut(w.T, b, 1, 1)
		first := w.Children("/q/items/b-0-0")[0]
		mustPut(w.T, b, 2, 3)
		mustAck(w.T, mustTake(w.T, b, 1))
		ghost = first
		mustAck(w.T, mustTake(w.T, a, 2))
		mustAck(w.T, mustTake(w.T, a, 3))
		_, err := a.TryTake(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		waiting := w.takeWaits(context.Background(), a)
		mustPut(w.T, b, 4, 4)
		mustAck(w.T, waiting.item(4))
		if refused != 3 { // the list of the first was not read after a Sync
			w.T.Errorf("%d claims were refused, want 3", refused)
		}
		w.drained(&b.Consumer)
	})
}

// T7: an item that cannot be moved to the dead letters is on each server. The client logs why
// it ignores the item, each time that it does, and nothing else.
func TestQueue_AnItemThatCannotBeMovedIsNotTakenForOneThatOnlyOneServerHas(t *testing.T) {
	onMemory(t, func(w *world) {
		o := &coord.QueueOptions[int]{MaxAttempts: 1}
		coordtest.MustLock(w.T, coord.NewMutex(w.Open("x", nil), "/q/dead", nil)) // held: an unused one goes in time
		b := w.queue("b", o)
		mustPut(w.T, b, 1, 1)
		it := mustTake(w.T, b, 1)
		w.Link("b").Expire(it.Session())
		<-it.Done()
		moves := 0
		c := coordtest.Open(w.T, w.Link("a"), &coord.Options{Logger: slog.New(onWarn(func(text string) {
			if text == "coord: cannot move an item to the dead letters, skipping it for a minute" {
				moves++
			} else {
				w.T.Errorf("logged: %s", text)
			}
		}))})
		a := coord.NewQueue[int](c, "/q", o)
		taken := make(chan *coord.Item[int], 1)
		go func() {
			it, err := a.Take(context.Background())
			if err != nil {
				w.T.Error(err)
			}
			taken <- it
		}()
		time.Sleep(3 * time.Minute)
		w.Settle()
		if moves < 3 {
			w.T.Errorf("%d attempts to move the item in three minutes", moves)
		}
		mustPut(w.T, b, 2, 2)
		mustAck(w.T, <-taken)
	})
}

// A consumer moves an item to the dead letters, and each time another consumer, which may take
// the item more often, claims it first and gives it back. The item lives: the first consumer does
// not ignore it.
func TestQueue_AnItemWhoseMoveIsOvertakenIsNotTakenForOneThatOnlyOneServerHas(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		b := w.queue("b", &coord.QueueOptions[int]{MaxAttempts: 100})
		mustPut(w.T, b, 1, 1)
		fails := func() {
			if err := mustTake(w.T, b, 1).Nack(0); err != nil {
				w.T.Error(err)
			}
		}
		fails()
		const times = 3
		overtaken := 0 // only the feeder of the consumer moves items
		hooks := backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			moves := coordtest.Deletes(c) && slices.ContainsFunc(c.Ops, func(op backend.Op) bool {
				return op.Kind == backend.OpCreate && strings.HasPrefix(op.Path, "/q/dead/items/")
			})
			if moves && overtaken < times {
				overtaken++
				fails()
			}
			return nil
		}}
		c := coordtest.Open(w.T, backendtest.Intercept(w.Link("a"), hooks), &coord.Options{Logger: slog.New(onWarn(func(text string) {
			if text != "coord: an item was moved to the dead letters" {
				w.T.Errorf("logged: %s", text)
			}
		}))})
		x := w.take(ctx, coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{MaxAttempts: 1}))
		time.Sleep(10 * time.Second) // far less than an item is ignored
		w.Settle()
		if overtaken != times {
			w.T.Errorf("overtaken %d times, want %d", overtaken, times)
		}
		dead := coord.NewQueue[int](w.Open("d", nil), "/q/dead", nil)
		it, err := dead.TryTake(ctx)
		if err != nil || it.Value != 1 {
			w.T.Fatalf("dead letter %+v, %v", it, err)
		}
		mustAck(w.T, it)
		cancel()
		<-x.done
		coordtest.WantErr(w.T, x.err, context.Canceled)
	})
}

// T6: a consumer has seen a bucket empty, and an item is put before it removes the bucket.
func TestQueue_ABucketIsNotRemovedUnderAPut(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		a, b := w.priorityQueue("a", &backendtest.Hooks{Before: x.Before}), w.priorityQueue("b", nil)
		mustPutAt(w.T, b, 1, 11)
		mustPutAt(w.T, b, 2, 21)
		mustAck(w.T, mustTake(w.T, b, 11))
		hit := false
		x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			hit = true
			mustPutAt(w.T, b, 1, 12)
			return nil
		})
		it, err := a.TryTake(context.Background()) // 12 came after the call began
		if err != nil || it.Value != 21 || !hit {
			w.T.Fatal(it, err, hit)
		}
		mustAck(w.T, mustTake(w.T, a, 12))
		mustAck(w.T, it)
		w.drained(&b.Consumer)
	})
}

// W5: the server that a consumer reads from shows a claimed item as free, until a sync.
func TestQueue_ALostRaceOnALaggingServerIsLostOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		var lag atomic.Bool
		var tried atomic.Int32
		a := w.hookedQueue("a", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				if c.Op == "sync" {
					lag.Store(false)
				}
				if claims(c) && tried.Add(1) > 3 {
					lag.Store(false) // else the test would never end
				}
				return nil
			},
			Names: func(c backendtest.Call, names []string) []string {
				if !lag.Load() {
					return names
				}
				return slices.DeleteFunc(names, func(name string) bool { return name[0] == 's' || name[0] == 'm' })
			},
		}, nil)
		b := w.queue("b", nil)
		mustPut(w.T, b, 1, 1)
		first := mustTake(w.T, b, 1)
		lag.Store(true)
		x := w.takeWaits(context.Background(), a)
		mustPut(w.T, b, 2, 2)
		it := x.item(2)
		if n := tried.Load(); n != 2 {
			w.T.Errorf("%d claims were tried, want one that fails and one that does not", n)
		}
		mustAck(w.T, first)
		mustAck(w.T, it)
		w.drained(&b.Consumer)
	})
}

// T2: between the list that showed an item free, and the read of its state, another consumer
// claims it and delays it.
func TestQueue_ADelayBetweenTheListAndTheStateIsSeen(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var x coordtest.Nth
		a, b := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil), w.queue("b", nil)
		mustPut(w.T, a, 1, 1)
		if err := mustTake(w.T, b, 1).Nack(0); err != nil {
			w.T.Fatal(err)
		}
		hit := false
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/s-") },
			func(context.Context, backendtest.Call, error) error {
				hit = true
				return mustTake(w.T, b, 1).Nack(time.Hour)
			})
		began := time.Now()
		_, err := a.TryTake(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		if !hit {
			w.T.Error("its state was not read: this tests nothing")
		}
		ctx, cancel := context.WithTimeout(ctx, 2*time.Hour)
		defer cancel()
		it, err := a.Take(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		if d := time.Since(began); d < time.Hour || it.Attempt != 3 {
			w.T.Errorf("taken after %v, attempt %d", d, it.Attempt)
		}
		mustAck(w.T, it)
		w.drained(&b.Consumer)
	})
}

// P2: a producer is paused before it closes a full bucket and creates the next. Meanwhile
// others have done that, and the next bucket was removed again, so that its name is free.
func TestQueue_ABucketIsClosedOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		a, b, c := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil), w.queue("b", nil), w.queue("c", nil)
		mustPut(w.T, a, 1, 6) // it knows that the bucket is full
		var first []*coord.Item[int]
		x.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
			mustPut(w.T, b, 7, 16)
			for n := 1; n <= 16; n++ {
				it := mustTake(w.T, c, n)
				switch bucket := strings.Split(it.Path(), "/"); bucket[len(bucket)-2] {
				case "b-0-0":
					first = append(first, it)
				case "b-0-1":
					mustAck(w.T, it)
				default:
					it.Release()
					n = 16
				}
			}
			if _, err := c.TryTake(context.Background()); err != nil { // it removes empty buckets
				w.T.Error(err)
			}
			if names := w.Children("/q/items"); len(names) != 2 || slices.Contains(names, "b-0-1") {
				w.T.Errorf("%v: this tests nothing", names)
			}
			return nil
		})
		mustPut(w.T, a, 17, 17)
		if names := w.Children("/q/items"); slices.Contains(names, "b-0-1") {
			w.T.Errorf("a second open bucket: %v", names)
		}
		for _, it := range first {
			mustAck(w.T, it)
		}
	})
}

// T7: between the look at an item that was taken too often, and its move to the dead letters, a
// consumer that allows more attempts claims it.
func TestQueue_AnItemIsNotBuriedUnderItsClaim(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var x coordtest.Nth
		a := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, &coord.QueueOptions[int]{MaxAttempts: 1})
		b := w.queue("b", nil)
		mustPut(w.T, b, 1, 1)
		if err := mustTake(w.T, b, 1).Nack(0); err != nil {
			w.T.Fatal(err)
		}
		dead := coord.NewQueue[int](w.Open("d", nil), "/q/dead", nil)
		mustPut(w.T, dead, 2, 2) // creates the directories
		mustAck(w.T, mustTake(w.T, dead, 2))
		var it *coord.Item[int]
		x.Arm(1, func(c backendtest.Call) bool { return coordtest.Deletes(c) && coordtest.Creates(c) }, func(context.Context, backendtest.Call, error) error {
			it = mustTake(w.T, b, 1)
			return nil
		})
		_, err := a.TryTake(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		if it == nil {
			w.T.Fatal("no move to the dead letters was tried: this tests nothing")
		}
		if err := it.Verify(ctx); err != nil {
			w.T.Error(err)
		}
		mustAck(w.T, it)
		if n, err := dead.Len(ctx); n != 0 || err != nil {
			w.T.Errorf("%d dead letters, %v, of an item that was acknowledged", n, err)
		}
		w.drained(&b.Consumer)
	})
}
