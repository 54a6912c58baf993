package recipetest

import (
	"context"
	"fmt"
	"maps"
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
	"github.com/go-coord/coord/trace"
)

// After a pause of the process nothing has fired yet. The first call sees that the time has
// passed.
func TestQueue_AnEndOfAClaimAfterItsTimeIsNone(t *testing.T) {
	for name, end := range map[string]func(q *coord.Queue[int], it *coord.Item[int]) error{
		"Ack":     func(_ *coord.Queue[int], it *coord.Item[int]) error { return it.Ack() },
		"AckAll":  func(q *coord.Queue[int], it *coord.Item[int]) error { return q.AckAll(it) },
		"Nack":    func(_ *coord.Queue[int], it *coord.Item[int]) error { return it.Nack(time.Hour) },
		"Release": func(_ *coord.Queue[int], it *coord.Item[int]) error { return it.Release() },
		"Err":     func(_ *coord.Queue[int], it *coord.Item[int]) error { return it.Err() },
		"Verify":  func(_ *coord.Queue[int], it *coord.Item[int]) error { return it.Verify(context.Background()) },
		"Done":    func(_ *coord.Queue[int], it *coord.Item[int]) error { <-it.Done(); return it.Err() },
		"Context": func(_ *coord.Queue[int], it *coord.Item[int]) error {
			return context.Cause(it.Context(context.Background()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				q, b := w.queue("a", &coord.QueueOptions[int]{ClaimTimeout: claimTime}), w.queue("b", nil)
				mustPut(w.T, q, 1, 1)
				it := mustTake(w.T, q, 1)
				coordtest.StopClaimTimer(it)
				time.Sleep(claimTime)
				coordtest.WantErr(w.T, end(q, it), coord.ErrLost, coord.ErrClaimTimeout)
				timedOut(w, it)
				again := mustTake(w.T, b, 1)
				if again.Attempt != 2 {
					w.T.Errorf("attempt %d", again.Attempt)
				}
				mustAck(w.T, again)
				w.drained(&b.Consumer)
			})
		})
	}
}

// An Ack that began in time counts, although it takes longer.
func TestQueue_AnAckThatBeganInTimeCounts(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, &coord.QueueOptions[int]{ClaimTimeout: claimTime})
		mustPut(w.T, q, 1, 1)
		it := mustTake(w.T, q, 1)
		time.Sleep(claimTime - time.Millisecond)
		x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			time.Sleep(2 * claimTime)
			return nil
		})
		mustAck(w.T, it)
		coordtest.WantErr(w.T, it.Err(), coord.ErrReleased)
		w.drained(&q.Consumer)
	})
}

// Each request of the removal is lost, or its reply is. The item is moved once, or given back
// once, and nothing touches the claim of the next consumer.
func TestQueue_TheRemovalOfATimedOutClaimHasOneEffect(t *testing.T) {
	for _, attempts := range []int{0, 1} {
		for _, fault := range []string{"request", "reply", "refused"} {
			for n := 1; ; n++ {
				hit := false
				onMemory(t, func(w *world) { hit = removedOnce(w, attempts, fault, n) })
				if !hit {
					if n < 2 {
						t.Errorf("%s: no request was hit", fault)
					}
					break
				}
			}
		}
	}
}

func removedOnce(w *world, attempts int, fault string, n int) (hit bool) {
	var before, after coordtest.Nth
	q := w.hookedQueue("a", &backendtest.Hooks{Before: before.Before, After: after.After},
		&coord.QueueOptions[int]{ClaimTimeout: claimTime, MaxAttempts: attempts})
	b := w.queue("b", nil)
	mustPut(w.T, q, 1, 1)
	it := mustTake(w.T, q, 1)
	time.Sleep(claimTime / 2) // the watch on the claim is armed
	all := func(backendtest.Call) bool { return true }
	switch fault {
	case "request":
		before.Arm(n, all, coordtest.Lose)
	case "reply":
		after.Arm(n, all, coordtest.Lose)
	case "refused":
		before.Arm(n, all, func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
	}
	<-it.Done()
	from := b
	if attempts > 0 {
		from = coord.NewQueue[int](w.Open("c", nil), "/q/dead", nil)
	}
	again := mustTake(w.T, from, 1)
	if want := 2 - attempts; again.Attempt != want {
		w.T.Errorf("%s %d: attempt %d, want %d", fault, n, again.Attempt, want)
	}
	hit = before.Idle() && after.Idle()
	before.Arm(0, all, nil)
	after.Arm(0, all, nil)
	time.Sleep(10 * time.Second) // all repetitions are done
	if err := again.Verify(context.Background()); err != nil {
		w.T.Errorf("%s %d: the next claim: %v", fault, n, err)
	}
	mustAck(w.T, again)
	if n := mustLen(w.T, &from.Consumer); n != 0 {
		w.T.Errorf("%s %d: %d items are left", fault, n, n)
	}
	w.drained(&q.Consumer)
	return hit
}

// A codec that takes longer than the time, and than a session without contact lasts, does not cost an attempt, and hands out no lost item.
func TestQueue_AnItemThatIsDecodedTooLateIsNotHandedOut(t *testing.T) {
	for _, pop := range []bool{false, true} {
		onMemory(t, func(w *world) {
			slow := true
			q := coord.NewQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{ClaimTimeout: claimTime, Codec: coord.Codec[int]{
				Encode: func(v int) ([]byte, error) { return []byte(fmt.Sprint(v)), nil },
				Decode: func(data []byte) (v int, err error) {
					if slow {
						time.Sleep(2 * w.Timeout)
					}
					slow = false
					_, err = fmt.Sscan(string(data), &v)
					return v, err
				},
			}})
			mustPut(w.T, q, 1, 1)
			if pop {
				if v, err := q.Pop(context.Background()); v != 1 || err != nil {
					w.T.Error(v, err)
				}
			} else {
				it := mustTake(w.T, q, 1)
				if it.Attempt != 1 {
					w.T.Errorf("attempt %d", it.Attempt)
				}
				mustAck(w.T, it)
			}
			w.drained(&q.Consumer)
		})
	}
}

// A handler of Work that hangs loses its item to another handler, of the same Work; its context ends.
func TestQueue_AHandlerThatHangsLosesItsItem(t *testing.T) {
	onMemory(t, func(w *world) {
		x, c := w.taped("a", nil)
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{ClaimTimeout: claimTime})
		mustPut(w.T, q, 1, 1)
		causes, proceed := make(chan error, 1), make(chan struct{})
		again, done := make(chan *coord.Item[int], 1), make(chan struct{})
		wk := w.work(q, 1, func(ctx context.Context, it *coord.Item[int]) error {
			if it.Attempt == 2 {
				again <- it
				<-done
				return nil
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			<-proceed // hangs
			return nil
		})
		coordtest.WantErr(w.T, receive(w, "the context ends", causes), coord.ErrLost, coord.ErrClaimTimeout)
		it := receive(w, "the item is delivered again", again)
		close(proceed)
		w.Settle()
		if err := it.Verify(context.Background()); err != nil {
			w.T.Error(err)
		}
		close(done)
		w.Settle()
		wk.finish()
		w.drained(&q.Consumer)
		if settled := eventsOf[trace.ItemSettled](x); len(settled) != 2 || settled[0].Reason != trace.ReasonTimeout || settled[1].Outcome != trace.ItemAcked {
			w.T.Errorf("reported %+v", settled)
		}
	})
}

// hanging is a Work whose handlers run until the test lets them return.
type hanging struct {
	*working
	mu      sync.Mutex
	proceed map[*coord.Item[int]]chan struct{} // closed when the handler of the item shall return
}

func (w *world) hanging(q *coord.Queue[int], n int) *hanging {
	x := &hanging{proceed: make(map[*coord.Item[int]]chan struct{})}
	x.working = w.work(q, n, func(_ context.Context, it *coord.Item[int]) error {
		proceed := make(chan struct{})
		x.mu.Lock()
		x.proceed[it] = proceed
		x.mu.Unlock()
		<-proceed
		return nil
	})
	return x
}

// run checks which items the running handlers have, each as 10 * value + attempt.
func (x *hanging) run(want ...int) {
	x.w.T.Helper()
	x.w.Settle()
	if got := slices.Sorted(maps.Keys(x.running())); !slices.Equal(got, want) {
		x.w.T.Errorf("the handlers of %v run, want %v", got, want)
	}
}

// running returns the items of the running handlers.
func (x *hanging) running() map[int]*coord.Item[int] {
	x.mu.Lock()
	defer x.mu.Unlock()
	items := make(map[int]*coord.Item[int])
	for it := range x.proceed {
		items[10*it.Value+it.Attempt] = it
	}
	return items
}

// back makes the handler of an item return nil.
func (x *hanging) back(item int) {
	it := x.running()[item]
	x.mu.Lock()
	proceed := x.proceed[it]
	delete(x.proceed, it)
	x.mu.Unlock()
	close(proceed)
	x.w.Settle()
}

// backAll ends Work and lets its handlers return.
func (x *hanging) backAll() {
	x.w.T.Helper()
	x.stop()
	for item := range x.running() {
		x.back(item)
	}
	x.finish()
}

// At most n handlers hang without a place, so that at most 2n run. Then Work takes nothing until one returns.
func TestWork_TheNumberOfHandlersThatHangIsBounded(t *testing.T) {
	onMemory(t, func(w *world) {
		q, _, log := w.loggedQueue("a", &coord.QueueOptions[int]{ClaimTimeout: claimTime})
		mustPut(w.T, w.queue("b", nil), 1, 4)
		x := w.hanging(q, 2)
		x.run(11, 21)
		time.Sleep(claimTime + claimTime/2)
		x.run(11, 12, 21, 22)
		time.Sleep(100 * claimTime)
		x.run(11, 12, 21, 22)
		x.back(11)
		x.run(12, 13, 21, 22)
		time.Sleep(100 * claimTime)
		x.run(12, 13, 21, 22)
		x.back(21)
		x.run(12, 13, 14, 22)
		x.back(14) // in time
		x.run(12, 13, 22, 23)
		x.back(12) // three hang, one of them in a place
		x.run(13, 22, 23, 31)
		x.back(22) // two hang, none of them in a place
		x.run(13, 23, 31)
		x.backAll()
		text := log()
		const free, keeps = "another handler can begin in its place", "keeps its place"
		if n, m := strings.Count(text, free), strings.Count(text, keeps); n != 2 || m != 3 {
			w.T.Errorf("%d and %d lines:\n%s", n, m, text)
		}
		if !strings.Contains(text, "attempt=1 after=1s") {
			w.T.Errorf("no attempt and time:\n%s", text)
		}
	})
}

// While Work ends, it waits for a handler that hangs, and logs that.
func TestWork_AHandlerThatHangsWhileWorkEndsIsLogged(t *testing.T) {
	onMemory(t, func(w *world) {
		q, _, log := w.loggedQueue("a", &coord.QueueOptions[int]{ClaimTimeout: claimTime})
		mustPut(w.T, w.queue("b", nil), 1, 1)
		x := w.hanging(q, 1)
		x.run(11)
		x.stop()
		time.Sleep(2 * claimTime)
		x.run(11)
		x.backAll()
		if text := log(); strings.Count(text, "a handler still runs after ClaimTimeout, Work waits for it before it returns") != 1 {
			w.T.Errorf("logged:\n%s", text)
		}
	})
}

// A handler that hung and returns frees no further place.
func TestWork_AHandlerThatHungHasNoPlaceToFree(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{ClaimTimeout: claimTime})
		mustPut(w.T, q, 1, 5)
		x := w.hanging(q, 2)
		x.run(11, 21)
		x.back(21)
		x.run(11, 31)
		x.back(31)
		time.Sleep(claimTime - time.Millisecond)
		x.run(11, 41)
		x.back(41)
		x.run(11, 51)
		time.Sleep(claimTime / 2)
		x.run(11, 12, 51)
		x.back(11)
		mustPut(w.T, q, 6, 7)
		x.run(12, 51)
		x.back(51)
		x.run(12, 61)
		x.backAll()
	})
}

// Which handlers free their places after ClaimTimeout: those that have lost their claims, for whatever reason.
func TestWork_OnlyAHandlerThatHasLostItsClaimFreesItsPlace(t *testing.T) {
	for _, test := range []struct {
		name    string
		timeout time.Duration
		end     func(w *world, it *coord.Item[int]) error
		frees   bool
	}{
		{"timeout", claimTime, func(*world, *coord.Item[int]) error { return nil }, true},
		{"acknowledged by the handler", claimTime, func(_ *world, it *coord.Item[int]) error { return it.Ack() }, false},
		{"lost session", claimTime, func(w *world, it *coord.Item[int]) error { w.Link("a").Expire(it.Session()); return nil }, true},
		{"lost session without ClaimTimeout", 0, func(w *world, it *coord.Item[int]) error { w.Link("a").Expire(it.Session()); return nil }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				q := w.queue("a", &coord.QueueOptions[int]{ClaimTimeout: test.timeout})
				mustPut(w.T, w.queue("b", nil), 1, 2)
				x := w.hanging(q, 1)
				x.run(11)
				w.must(test.end(w, x.running()[11]))
				time.Sleep(claimTime - time.Millisecond)
				x.run(11)
				time.Sleep(w.Timeout)
				if frees := len(x.running()) == 2; frees != test.frees {
					w.T.Errorf("it frees its place: %t", frees)
				}
				x.backAll()
			})
		})
	}
}

// The time ends with the claim: nothing happens afterwards.
func TestQueue_TheTimeOfAClaimEndsWithIt(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{ClaimTimeout: claimTime})
		for name, end := range map[string]func(*coord.Item[int]) error{
			"Ack": (*coord.Item[int]).Ack, "Nack": func(it *coord.Item[int]) error { return it.Nack(0) }, "Release": func(it *coord.Item[int]) error { return it.Release() },
		} {
			mustPut(w.T, q, 1, 1)
			it := mustTake(w.T, q, 1)
			if err := end(it); err != nil {
				w.T.Error(name, err)
			}
			time.Sleep(2 * claimTime)
			coordtest.WantErr(w.T, it.Err(), coord.ErrReleased)
			if err := end(it); err != nil || strings.Contains(it.Err().Error(), "timed out") {
				w.T.Error(name, err, it.Err())
			}
			if name != "Ack" {
				mustAck(w.T, mustTake(w.T, q, 1))
			}
		}
		w.drained(&q.Consumer)
	})
}

// A codec returns at the moment at which its item is given back. The call gets that item, and not
// the next one.
func TestQueue_AnItemThatIsGivenBackWhileItIsDecodedComesFirst(t *testing.T) {
	for range 100 {
		onMemory(t, func(w *world) {
			var slow atomic.Bool
			slow.Store(true)
			codec := coord.JSON[int]()
			decode := codec.Decode
			codec.Decode = func(data []byte) (int, error) {
				if slow.Swap(false) {
					time.Sleep(w.Timeout)
				}
				return decode(data)
			}
			q := coord.NewQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{ClaimTimeout: claimTime, Codec: codec})
			mustPut(w.T, q, 1, 2)
			it := mustTake(w.T, q, 1)
			mustAck(w.T, it)
			if it.Attempt != 1 {
				w.T.Errorf("attempt %d", it.Attempt)
			}
		})
	}
}

// The time to read an item is not the time of its handler: a short ClaimTimeout on a slow
// connection does not give the item back again and again.
func TestQueue_AClaimTimeoutShorterThanARoundTripDeliversItems(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{ClaimTimeout: time.Millisecond})
		mustPut(w.T, q, 1, 1)
		w.Link("a").(interface{ SetLatency(time.Duration) }).SetLatency(50 * time.Millisecond)
		it := mustTake(w.T, q, 1)
		if it.Attempt != 1 {
			w.T.Errorf("attempt %d", it.Attempt)
		}
		mustAck(w.T, it)
		w.drained(&q.Consumer)
	})
}

// The claim is made, and the read of the item, which goes with it, takes longer than ClaimTimeout. The item
// is handed out all the same, by the first attempt.
func TestQueue_AReadLongerThanClaimTimeoutDeliversItems(t *testing.T) {
	onMemories(t, func(w *world) {
		var slow atomic.Int32
		q := w.hookedQueue("a", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			if c.Op == "get" || c.Op == "read" {
				slow.Add(1)
				time.Sleep(w.Timeout / 2)
			}
			return err
		}}, &coord.QueueOptions[int]{ClaimTimeout: w.Timeout / 8})
		mustPut(w.T, w.queue("b", nil), 1, 3)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for n := 1; n <= 3; n++ {
			it, err := q.Take(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			if it.Value != n || it.Attempt != 1 {
				w.T.Errorf("%d in attempt %d, want %d in the first", it.Value, it.Attempt, n)
			}
			mustAck(w.T, it)
		}
		if slow.Load() == 0 {
			w.T.Error("no read was slow")
		}
	})
}
