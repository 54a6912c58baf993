package coord_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// Each test here stops one client at the worst moment of a rule of the protocol,
// and lets others act.

// P1: a producer sleeps before its put, and the bucket is closed, emptied and
// removed meanwhile.
func TestAPutNeverLandsInAClosedBucket(t *testing.T) {
	for _, removed := range []bool{false, true} {
		t.Run(map[bool]string{false: "closed", true: "removed"}[removed], func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x nth
				a, b, c := w.hookedQueue("a", &backendtest.Hooks{Before: x.before}, nil), w.queue("b", nil), w.queue("c", nil)
				mustPut(w.t, a, 1, 1)
				x.arm(1, creates, func(context.Context, backendtest.Call, error) error {
					mustPut(w.t, b, 2, 9)
					if removed {
						for n := 1; n <= 8; n++ {
							mustAck(w.t, mustTake(w.t, c, n))
						}
					}
					return nil
				})
				mustPut(w.t, a, 10, 10)
				first := 1
				if removed {
					first = 9
				}
				for n := first; n <= 10; n++ {
					mustAck(w.t, mustTake(w.t, c, n))
				}
				w.drained(&c.Consumer)
			})
		})
	}
}

// P2: a producer sleeps before it makes the first bucket of a key. Others have
// made it meanwhile, and the next one, and the first has gone again.
func TestThereIsNeverASecondOpenBucket(t *testing.T) {
	onMemory(t, func(w *world) {
		var x nth
		a, b := w.priorityQueue("a", &backendtest.Hooks{Before: x.before}), w.priorityQueue("b", nil)
		mustPutAt(w.t, b, 9, 99)
		x.arm(1, creates, func(_ context.Context, c backendtest.Call, _ error) error {
			mustPutAt(w.t, b, 1, 11, 12, 13, 14)
			mustPutAt(w.t, b, 1, 15)
			for n := 11; n <= 14; n++ {
				mustAck(w.t, mustTake(w.t, b, n))
			}
			mustTake(w.t, b, 15).Release() // after the first bucket was removed
			if _, err := c.Session.Exists(context.Background(), w.path("/q/items/b-1-0"), nil); err == nil {
				w.t.Error("the first bucket is there: this tests nothing")
			}
			return nil
		})
		if _, err := a.Put(context.Background(), 1, 16); err != nil {
			w.t.Fatal(err)
		}
		mustAck(w.t, mustTake(w.t, b, 15))
		mustAck(w.t, mustTake(w.t, b, 16))
		mustAck(w.t, mustTake(w.t, b, 99))
		w.drained(&b.Consumer)
	})
}

// P2: the server that a producer reads from shows a closed bucket as the last one,
// until it is told to catch up. The next one has come and gone.
func TestAPutOnALaggingServerGoesToTheOpenBucket(t *testing.T) {
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
		mustPut(w.t, a, 1, 1)
		mustPut(w.t, b, 2, 14)
		first := mustTake(w.t, c, 1)
		for n := 2; n <= 12; n++ {
			mustAck(w.t, mustTake(w.t, c, n))
		}
		mustAck(w.t, mustTake(w.t, c, 13))
		if names := w.children("/q/items"); len(names) != 2 || slices.Contains(names, "b-0-1") {
			w.t.Fatalf("%v: this tests nothing", names)
		}
		lag.Store(true)
		mustPut(w.t, a, 15, 15)
		if lag.Load() {
			w.t.Error("it did not ask for what is new")
		}
		mustAck(w.t, first)
		mustAck(w.t, mustTake(w.t, c, 14))
		mustAck(w.t, mustTake(w.t, c, 15))
		w.drained(&c.Consumer)
	})
}

// An outsider has closed the last bucket, and nobody made a next one.
func TestAQueueGoesOnWhenItsLastBucketWasClosedByHand(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := w.queue("a", nil), w.queue("b", nil)
		mustPut(w.t, a, 1, 2)
		if _, err := w.session("x").Commit(context.Background(), backend.SetData(w.path("/q/items/b-0-0"), nil, backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		mustPut(w.t, a, 3, 4)
		mustPut(w.t, b, 5, 6)
		for n := 1; n <= 6; n++ {
			mustAck(w.t, mustTake(w.t, b, n))
		}
		w.drained(&b.Consumer)
	})
}

// T2: between the list that showed an item free, and the read of its state,
// somebody claims it.
func TestAClaimBetweenTheListAndTheStateIsSeen(t *testing.T) {
	for _, write := range []bool{false, true} {
		onMemory(t, func(w *world) {
			ctx := context.Background()
			var x nth
			a, b := w.hookedQueue("a", &backendtest.Hooks{Before: x.before}, nil), w.queue("b", nil)
			mustPut(w.t, a, 1, 1)
			first := mustTake(w.t, b, 1)
			if err := first.Nack(0); err != nil {
				w.t.Fatal(err)
			}
			state := w.path("/q/items/b-0-0/s-" + first.ID)
			if write { // an outsider's write does not make the item stuck
				if _, err := w.session("x").Commit(ctx, backend.SetData(state, []byte("what?"), backend.AnyVersion)); err != nil {
					w.t.Fatal(err)
				}
			}
			var other *coord.Item[int]
			x.arm(1, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/s-") },
				func(context.Context, backendtest.Call, error) error {
					other = mustTake(w.t, b, 1)
					return nil
				})
			_, err := a.TryTake(ctx)
			wantErr(w.t, err, coord.ErrEmpty)
			mustAck(w.t, other)
			w.drained(&b.Consumer)
		})
	}
}

// T2: both consumers have seen the item free, claimed before and not.
func TestOfTwoConsumersWithTheSamePictureOneGetsTheItem(t *testing.T) {
	for _, before := range []int{0, 1} {
		for _, end := range []string{"holds", "acked", "gave back"} {
			onMemory(t, func(w *world) {
				var x nth
				claimed := 0
				a, b := w.hookedQueue("a", &backendtest.Hooks{Before: x.before, After: func(_ context.Context, c backendtest.Call, err error) error {
					if claims(c) && err == nil {
						claimed++
					}
					return err
				}}, nil), w.queue("b", nil)
				mustPut(w.t, a, 1, 1)
				for range before {
					if err := mustTake(w.t, b, 1).Nack(0); err != nil {
						w.t.Fatal(err)
					}
				}
				var other *coord.Item[int]
				x.arm(1, claims, func(context.Context, backendtest.Call, error) error {
					other = mustTake(w.t, b, 1)
					switch end {
					case "acked":
						mustAck(w.t, other)
					case "gave back":
						if err := other.Release(); err != nil {
							w.t.Error(err)
						}
					}
					return nil
				})
				it, err := a.TryTake(context.Background())
				if end == "gave back" {
					if err != nil || it.Attempt != before+1 {
						w.t.Fatal(it, err)
					}
					mustAck(w.t, it)
				} else {
					wantErr(w.t, err, coord.ErrEmpty)
					if claimed > 0 {
						w.t.Error("both have claimed it")
					}
				}
				if end == "holds" {
					if err := other.Verify(context.Background()); err != nil {
						w.t.Error(err)
					}
					mustAck(w.t, other)
				}
				w.drained(&b.Consumer)
			})
		}
	}
}

// T6: a consumer saw a bucket empty, and before it removes it, something is put.
func TestABucketIsNotRemovedUnderAPut(t *testing.T) {
	onMemory(t, func(w *world) {
		var x nth
		a, b := w.priorityQueue("a", &backendtest.Hooks{Before: x.before}), w.priorityQueue("b", nil)
		mustPutAt(w.t, b, 1, 11)
		mustPutAt(w.t, b, 2, 21)
		mustAck(w.t, mustTake(w.t, b, 11))
		hit := false
		x.arm(1, deletes, func(context.Context, backendtest.Call, error) error {
			hit = true
			mustPutAt(w.t, b, 1, 12)
			return nil
		})
		it, err := a.TryTake(context.Background()) // 12 came after the call began
		if err != nil || it.Value != 21 || !hit {
			w.t.Fatal(it, err, hit)
		}
		mustAck(w.t, mustTake(w.t, a, 12))
		mustAck(w.t, it)
		w.drained(&b.Consumer)
	})
}

// W1, W2: an outsider deletes the nodes of those who wait.
func TestWaitersWhoseNodesAreDeletedStillGetWhatIsPut(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		var waiting []*taking
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			waiting = append(waiting, w.takeWaits(ctx, w.queue(name, nil)))
		}
		s := w.session("x")
		for _, name := range w.children("/q/waiters") {
			if _, err := s.Commit(ctx, backend.Delete(w.path("/q/waiters/"+name), backend.AnyVersion)); err != nil {
				w.t.Fatal(err)
			}
		}
		p := w.queue("p", nil)
		mustPut(w.t, p, 1, 5)
		sum := 0
		for _, x := range waiting {
			<-x.done
			if x.err != nil {
				w.t.Fatal(x.err)
			}
			sum += x.it.Value
			mustAck(w.t, x.it)
		}
		if sum != 15 {
			w.t.Errorf("the sum is %d, want 15", sum)
		}
		w.drained(&p.Consumer)
	})
}

// W5: the server that a consumer reads from shows an item free that is claimed,
// until it is told to catch up.
func TestALostRaceOnALaggingServerIsLostOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		var lag atomic.Bool
		var tried atomic.Int32
		a := w.hookedQueue("a", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				if c.Op == "sync" {
					lag.Store(false)
				}
				if claims(c) && tried.Add(1) > 3 {
					lag.Store(false) // or the test would never end
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
		mustPut(w.t, b, 1, 1)
		first := mustTake(w.t, b, 1)
		lag.Store(true)
		x := w.takeWaits(context.Background(), a)
		mustPut(w.t, b, 2, 2)
		it := x.item(2)
		if n := tried.Load(); n != 2 {
			w.t.Errorf("%d claims were tried, want one that fails and one that does not", n)
		}
		mustAck(w.t, first)
		mustAck(w.t, it)
		w.drained(&b.Consumer)
	})
}

// T2: between the list that showed an item free, and the read of its state, somebody
// claims it and puts it off.
func TestAPutOffBetweenTheListAndTheStateIsSeen(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var x nth
		a, b := w.hookedQueue("a", &backendtest.Hooks{Before: x.before}, nil), w.queue("b", nil)
		mustPut(w.t, a, 1, 1)
		if err := mustTake(w.t, b, 1).Nack(0); err != nil {
			w.t.Fatal(err)
		}
		hit := false
		x.arm(1, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/s-") },
			func(context.Context, backendtest.Call, error) error {
				hit = true
				return mustTake(w.t, b, 1).Nack(time.Hour)
			})
		began := time.Now()
		_, err := a.TryTake(ctx)
		wantErr(w.t, err, coord.ErrEmpty)
		if !hit {
			w.t.Error("its state was not read: this tests nothing")
		}
		ctx, cancel := context.WithTimeout(ctx, 2*time.Hour)
		defer cancel()
		it, err := a.Take(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		if d := time.Since(began); d < time.Hour || it.Attempt != 3 {
			w.t.Errorf("taken after %v, attempt %d", d, it.Attempt)
		}
		mustAck(w.t, it)
		w.drained(&b.Consumer)
	})
}

// P2: a producer sleeps before it closes a full bucket and makes the next. Others have
// done that meanwhile, and that next one has gone again, so that its name is free.
func TestABucketIsClosedOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		var x nth
		a, b, c := w.hookedQueue("a", &backendtest.Hooks{Before: x.before}, nil), w.queue("b", nil), w.queue("c", nil)
		mustPut(w.t, a, 1, 6) // it knows that the bucket is full
		var first []*coord.Item[int]
		x.arm(1, creates, func(context.Context, backendtest.Call, error) error {
			mustPut(w.t, b, 7, 16)
			for n := 1; n <= 16; n++ {
				it := mustTake(w.t, c, n)
				switch bucket := strings.Split(it.Path(), "/"); bucket[len(bucket)-2] {
				case "b-0-0":
					first = append(first, it)
				case "b-0-1":
					mustAck(w.t, it)
				default:
					it.Release()
					n = 16
				}
			}
			if _, err := c.TryTake(context.Background()); err != nil { // it sweeps
				w.t.Error(err)
			}
			if names := w.children("/q/items"); len(names) != 2 || slices.Contains(names, "b-0-1") {
				w.t.Errorf("%v: this tests nothing", names)
			}
			return nil
		})
		mustPut(w.t, a, 17, 17)
		if names := w.children("/q/items"); slices.Contains(names, "b-0-1") {
			w.t.Errorf("a second open bucket: %v", names)
		}
		for _, it := range first {
			mustAck(w.t, it)
		}
	})
}

// T7: between the look at an item that was taken too often, and its move to the dead
// letters, a consumer that allows more attempts claims it.
func TestAnItemIsNotBuriedUnderItsClaim(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var x nth
		a := w.hookedQueue("a", &backendtest.Hooks{Before: x.before}, &coord.QueueOptions[int]{MaxAttempts: 1})
		b := w.queue("b", nil)
		mustPut(w.t, b, 1, 1)
		if err := mustTake(w.t, b, 1).Nack(0); err != nil {
			w.t.Fatal(err)
		}
		dead := coord.NewQueue[int](w.open("d", nil), "/q/dead", nil)
		mustPut(w.t, dead, 2, 2) // what is made once is made
		mustAck(w.t, mustTake(w.t, dead, 2))
		var it *coord.Item[int]
		x.arm(1, func(c backendtest.Call) bool { return deletes(c) && creates(c) }, func(context.Context, backendtest.Call, error) error {
			it = mustTake(w.t, b, 1)
			return nil
		})
		_, err := a.TryTake(ctx)
		wantErr(w.t, err, coord.ErrEmpty)
		if it == nil {
			w.t.Fatal("it was not to be buried: this tests nothing")
		}
		if err := it.Verify(ctx); err != nil {
			w.t.Error(err)
		}
		mustAck(w.t, it)
		if n, err := dead.Len(ctx); n != 0 || err != nil {
			w.t.Errorf("%d dead letters, %v, of an item that was acknowledged", n, err)
		}
		w.drained(&b.Consumer)
	})
}
