package recipetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// claimTime is the ClaimTimeout of the tests.
const claimTime = time.Second

// timedOut checks that the claim has ended by ClaimTimeout, for every call.
func timedOut(w *world, it *coord.Item[int]) {
	w.T.Helper()
	for name, err := range map[string]error{
		"Err": it.Err(), "Ack": it.Ack(), "Nack": it.Nack(0), "Release": it.Release(),
		"the context": context.Cause(it.Context(context.Background())),
	} {
		if !errors.Is(err, coord.ErrLost) || !errors.Is(err, coord.ErrClaimTimeout) {
			w.T.Errorf("%s: %v, want ErrLost and ErrClaimTimeout", name, err)
		}
	}
}

// queueTimeoutTests are tests of Queue on each service.
type queueTimeoutTests struct{ Services }

// The hold ends first, then the mark is removed.
func (on queueTimeoutTests) AConsumerThatHangsLosesItsItem(t *testing.T) {
	on.each(t, func(w *world) {
		var x coordtest.Nth
		a, b := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, &coord.QueueOptions[int]{ClaimTimeout: claimTime}), w.queue("b", nil)
		mustPut(w.T, a, 1, 1)
		began := time.Now()
		it := mustTake(w.T, a, 1)
		done := it.Done() // a later call would end the hold itself
		standing := make(chan bool, 1)
		x.Arm(1, func(c backendtest.Call) bool {
			return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return op.Kind == backend.OpDelete && op.Path == it.Path() })
		}, func(context.Context, backendtest.Call, error) error {
			select {
			case <-done:
				standing <- false
			default:
				standing <- true
			}
			return nil
		})
		again := mustTake(w.T, b, 1)
		if d := time.Since(began); d < claimTime || w.Fake && d > claimTime {
			w.T.Errorf("it was taken again after %v", d)
		}
		if receive(w, "the removal", standing) {
			w.T.Error("the claim was removed while its hold stood")
		}
		if again.Attempt != 2 || again.Token() <= it.Token() {
			w.T.Errorf("attempt %d, token %d after %d", again.Attempt, again.Token(), it.Token())
		}
		timedOut(w, it)
		if err := again.Verify(context.Background()); err != nil {
			w.T.Error("the next claim:", err)
		}
		mustAck(w.T, again)
		w.drained(&b.Consumer)
	})
}

func (on queueTimeoutTests) AttemptsThatTimeOutEndWithTheDeadLetters(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{ClaimTimeout: claimTime, MaxAttempts: 2})
		mustPut(w.T, q, 1, 1)
		for n := 1; n <= 2; n++ {
			it := mustTake(w.T, q, 1)
			if it.Attempt != n {
				w.T.Errorf("attempt %d, want %d", it.Attempt, n)
			}
			<-it.Done()
			timedOut(w, it)
		}
		// No consumer looks at the queue, which would move the item.
		dead := coord.NewQueue[int](w.Open("b", nil), "/q/dead", nil)
		mustAck(w.T, mustTake(w.T, dead, 1))
		w.drained(&q.Consumer)
	})
}

// The client that has lost an item takes no later one before it is back.
func (on queueTimeoutTests) AClientDoesNotPassOverItsItemThatTimedOut(t *testing.T) {
	on.each(t, func(w *world) {
		var x coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, &coord.QueueOptions[int]{ClaimTimeout: claimTime})
		mustPut(w.T, q, 1, 2)
		it := mustTake(w.T, q, 1)
		proceed := make(chan struct{})
		x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
			<-proceed
			return nil
		})
		<-it.Done()
		next := w.take(context.Background(), q)
		w.Settle() // the Take does what it can before the removal
		close(proceed)
		mustAck(w.T, next.item(1))
		mustAck(w.T, mustTake(w.T, q, 2))
		w.drained(&q.Consumer)
	})
}

// What is only prefetched goes back when the time has passed, and that is no attempt. What is
// handed out has the whole time.
func (on queueTimeoutTests) APrefetchedItemThatIsNotReceivedInTimeIsGivenBack(t *testing.T) {
	on.each(t, func(w *world) {
		claimTime, wait := claimTime, claimTime-time.Millisecond // almost as long as the stock may wait
		if !w.Fake {
			claimTime, wait = 12*time.Second, 6*time.Second // a busy machine takes its time
		}
		q, b := w.queue("a", &coord.QueueOptions[int]{ClaimTimeout: claimTime, Prefetch: 4}), w.queue("b", nil)
		mustPut(w.T, b, 1, 4)
		for it, err := range q.All(context.Background()) {
			if err != nil {
				w.T.Fatal(err)
			}
			if it.Value == 1 {
				time.Sleep(wait) // the passing of time is what is tested
				mustAck(w.T, it)
				continue
			}
			began := time.Now()
			// 3 and 4 go back while this body hangs, before its own item does.
			var back []int
			for range 2 { // in the order in which they come back
				other, err := b.Take(context.Background())
				if err != nil || other.Attempt != 1 {
					w.T.Fatalf("%v, %v, want an item that nobody has received", other, err)
				}
				back = append(back, other.Value)
				mustAck(w.T, other)
			}
			if slices.Sort(back); !slices.Equal(back, []int{3, 4}) {
				w.T.Errorf("%v came back", back)
			}
			<-it.Done()
			if d := time.Since(began); w.Fake && d < claimTime {
				w.T.Errorf("the item was lost after %v, want %v", d, claimTime)
			}
			timedOut(w, it)
			break
		}
		it := mustTake(w.T, b, 2)
		if it.Attempt != 2 {
			w.T.Errorf("attempt %d", it.Attempt)
		}
		mustAck(w.T, it)
		w.drained(&b.Consumer)
	})
}

// So does an item that is offered on the channel of Items.
func (on queueTimeoutTests) AnItemThatIsOfferedInVainIsGivenBackInTime(t *testing.T) {
	on.each(t, func(w *world) {
		q, b := w.queue("a", &coord.QueueOptions[int]{ClaimTimeout: claimTime}), w.queue("b", nil)
		if l, ok := w.Link("a").(interface{ SetLatency(time.Duration) }); ok {
			l.SetLatency(tripTime / 2) // otherwise a takes the item again that it has given back, before b gets the event
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		mustPut(w.T, b, 1, 1)
		ch := q.Items(ctx)
		w.Eventually("the item is claimed", func() bool {
			st, err := b.Stats(ctx)
			w.must(err)
			return st.Claimed == 1
		})
		it := mustTake(w.T, b, 1) // offered, and given back
		if it.Attempt != 1 {
			w.T.Errorf("attempt %d of an item that nobody has received", it.Attempt)
		}
		if err := it.Release(); err != nil {
			w.T.Fatal(err)
		}
		late := <-ch
		// On a busy machine the test itself can come too late.
		if err := late.Err(); err != nil && (w.Fake || !errors.Is(err, coord.ErrClaimTimeout)) {
			w.T.Errorf("an item was handed over after its time: %v", err)
		}
		<-late.Done()
		timedOut(w, late)
		again := mustTake(w.T, b, 1)
		if again.Attempt != 2 {
			w.T.Errorf("attempt %d", again.Attempt)
		}
		mustAck(w.T, again)
		cancel()
		for range ch {
			w.T.Error("another item")
		}
		w.drained(&b.Consumer)
	})
}
