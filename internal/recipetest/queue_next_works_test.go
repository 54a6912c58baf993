package recipetest

import (
	"context"
	"runtime"
	"strings"
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

// claimNames returns the names of the claims in the queue.
func claimNames(w *world) (all []string) {
	for _, b := range w.Children("/q/items") {
		for _, name := range w.Children("/q/items/" + b) {
			if strings.HasPrefix(name, "m-") {
				all = append(all, name)
			}
		}
	}
	return all
}

// Two calls of Work with one handler each share a commit, and the first one ends during it. Its item goes back, and
// the other Work must not have passed over it.
func TestQueue_AnotherWorkDoesNotPassOverAnItemThatGoesBack(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h1, h2 := newNextScene(w, nil), newHandled(), newHandled()
		putTogether(w.T, sc.q, 1, 8)
		one := mustTake(w.T, sc.q, 1)
		gate1, gate2 := make(chan struct{}), make(chan struct{})
		w1 := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h1.note(it); <-gate1; return nil })
		h1.await(w, 1) // item 2
		w2 := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h2.note(it); <-gate2; return nil })
		h2.await(w, 1) // item 3
		held, goOn := make(chan struct{}), make(chan struct{})
		sc.before.Arm(1, acknowledges, func(context.Context, backendtest.Call, error) error {
			close(held)
			<-goOn
			return nil
		})
		go one.Ack()
		<-held
		waiting := coordtest.Inside(&sc.q.Consumer).AcksWaiting
		close(gate1)
		w.Eventually("the first waits", func() bool { return waiting() == 1 })
		close(gate2)
		w.Eventually("both wait", func() bool { return waiting() == 2 })
		sc.after.Arm(1, claims, func(_ context.Context, _ backendtest.Call, err error) error {
			w1.stop() // the commit is applied
			synctest.Wait()
			return err
		})
		close(goOn)
		h2.await(w, 5)
		w.Settle()
		w1.finish()
		w2.finish()
		if got, want := h1.String()+" | "+h2.String(), "2/1 | "+inOrder(3, 8); got != want {
			w.T.Errorf("delivered %s, want %s", got, want)
		}
	})
}

// An Ack that waits in line behind a refused commit of an Ack and a claim is not refused itself for its own claim.
func TestQueue_AnAckWaitsForOneRefusalAtMost(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h1, h2, b := newNextScene(w, nil), newHandled(), newHandled(), w.queue("b", nil)
		putTogether(w.T, sc.q, 1, 8)
		gate1, gate2 := make(chan struct{}), make(chan struct{})
		w1 := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h1.note(it); <-gate1; return nil })
		h1.await(w, 1) // item 1
		w2 := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h2.note(it); <-gate2; return nil })
		h2.await(w, 1) // item 2
		three, four, five := mustTake(w.T, b, 3), mustTake(w.T, b, 4), mustTake(w.T, b, 5)
		if err := four.Release(); err != nil {
			w.T.Fatal(err)
		}
		held, goOn := make(chan struct{}), make(chan struct{})
		sc.before.Arm(1, acksAndClaims, func(context.Context, backendtest.Call, error) error {
			close(held)
			<-goOn
			return nil
		})
		sc.sent()
		close(gate1)
		<-held // with a claim on 3
		close(gate2)
		w.Eventually("the second Ack waits", func() bool { return coordtest.Inside(&sc.q.Consumer).AcksWaiting() == 1 })
		take := w.take(context.Background(), sc.q)
		synctest.Wait()
		alone, proceed := make(chan struct{}), make(chan struct{})
		sc.after.Arm(1, func(c backendtest.Call) bool { return acknowledges(c) && !claims(c) }, func(_ context.Context, _ backendtest.Call, err error) error {
			close(alone)
			<-proceed
			return err
		})
		second, end := make(chan struct{}), make(chan struct{})
		close(goOn)
		<-alone
		other := take.item(4)
		w1.stop() // so that it does not ask the feeder
		synctest.Wait()
		sc.after.Arm(1, func(c backendtest.Call) bool { return acknowledges(c) && !claims(c) }, func(_ context.Context, _ backendtest.Call, err error) error {
			close(second)
			<-end
			return err
		})
		close(proceed)
		<-second // the Ack of the second handler
		_, acks, both, _ := sc.sent()
		close(end)
		if both > 1 {
			w.T.Errorf("the second Ack has waited for %d refused commits (%d sent alone), want 1 at most", both, acks)
		}
		for _, it := range []*coord.Item[int]{three, other, five} {
			mustAck(w.T, it)
		}
		h2.await(w, 3)
		w.Settle()
		w1.finish()
		w2.finish()
	})
}

// Work ends during a commit that claims an item too early by the service's clock. The item is back when Work
// returns.
func TestDelayQueue_WorkThatEndsGivesAnEarlyItemBackBeforeItReturns(t *testing.T) {
	onMemory(t, func(w *world) {
		var step, after coordtest.Nth
		q := w.delays("a", 0, &backendtest.Hooks{Before: step.Before, After: after.After})
		base := w.serviceTime()
		for n := 1; n <= 3; n++ {
			if _, err := q.Put(context.Background(), base.Add(time.Duration(n)*time.Second), n); err != nil {
				w.T.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		step.Arm(2, acksAndClaims, func(context.Context, backendtest.Call, error) error {
			w.setClock(-time.Minute + 2*time.Second)
			return nil
		})
		ctx, cancel := context.WithCancel(context.Background())
		after.Arm(2, acksAndClaims, func(_ context.Context, _ backendtest.Call, err error) error {
			w.Link("a").(*memory.Link).SetLatency(time.Second / 8)
			cancel()
			synctest.Wait() // the loop of Work ends, and Work waits for the handler
			return err
		})
		if err := q.Work(ctx, 1, func(context.Context, *coord.Item[int]) error { return nil }); err != nil {
			w.T.Error(err)
		}
		if all := claimNames(w); len(all) > 0 {
			w.T.Errorf("%v are there when Work has returned", all)
		}
		synctest.Wait()
	})
}

// The outcome of a commit stays unknown, and Work ends during it. The next item is not claimed any more when Work
// returns.
func TestQueue_WorkThatEndsRemovesAClaimOfUnknownOutcomeBeforeItReturns(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, s := newNextScene(w, nil), w.Session("x")
		putTogether(w.T, sc.q, 1, 3)
		ctx, cancel := context.WithCancel(context.Background())
		sc.after.Arm(1, acksAndClaims, func(_ context.Context, c backendtest.Call, _ error) error {
			if _, err := s.Commit(context.Background(), backend.Delete(c.Ops[len(c.Ops)-1].Path, backend.AnyVersion)); err != nil {
				w.T.Error(err)
			}
			w.Link("a").(*memory.Link).SetLatency(time.Second / 8)
			cancel()
			synctest.Wait() // the loop of Work ends, and Work waits for the handler
			return backend.ErrUncertain
		})
		if err := sc.q.Work(ctx, 1, func(context.Context, *coord.Item[int]) error { return nil }); err != nil {
			w.T.Error(err)
		}
		if all := claimNames(w); len(all) > 0 {
			w.T.Errorf("%v are there when Work has returned", all)
		}
		it, err := w.queue("b", nil).TryTake(context.Background())
		if err != nil || it.Value != 2 {
			w.T.Errorf("%+v, %v, want item 2", it, err)
		}
		synctest.Wait()
	})
}

// The codec panics at an item, while the read of another one hangs that an Ack has claimed. Work ends without that
// read.
func TestQueue_APanicOfTheCodecDoesNotWaitForTheReadOfTheNextItem(t *testing.T) {
	onMemory(t, func(w *world) {
		decoding, decoded := make(chan struct{}), make(chan struct{})
		sc := newNextScene(w, &coord.QueueOptions[int]{Codec: coord.Codec[int]{
			Encode: coord.JSON[int]().Encode,
			Decode: func(data []byte) (int, error) {
				if string(data) == "3" {
					close(decoding)
					<-decoded
					panic("cannot decode")
				}
				return coord.JSON[int]().Decode(data)
			},
		}})
		h := newHandled()
		putTogether(w.T, sc.q, 1, 6)
		gate, ended := make(chan struct{}), make(chan time.Time, 1)
		go func() {
			defer func() {
				recover()
				ended <- time.Now()
			}()
			sc.q.Work(context.Background(), 2, func(_ context.Context, it *coord.Item[int]) error {
				if h.note(it); it.Value == 1 {
					<-gate
					return nil
				}
				return it.Ack()
			})
		}()
		receive(w, "item 3 is decoded", decoding)
		hung, goOn := make(chan struct{}), make(chan struct{})
		sc.before.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/i-") }, func(context.Context, backendtest.Call, error) error {
			close(hung)
			<-goOn
			return backend.ErrUncertain
		})
		close(gate)
		<-hung
		synctest.Wait() // item 4 is claimed with the Ack of 1
		began := time.Now()
		close(decoded)
		if d := (<-ended).Sub(began); d > 0 {
			w.T.Errorf("Work has ended %v after the panic", d)
		}
		close(goOn)
	})
}

// The read of an item hangs that an Ack has claimed for one Work, and another Work continues with items behind it. The
// first Work ends, so the item goes back: the other Work, which has one handler, has passed over it.
func TestQueue_AnotherWorkDoesNotPassOverAnItemOnItsWay(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h1, h2 := newNextScene(w, nil), newHandled(), newHandled()
		putTogether(w.T, sc.q, 1, 8)
		gate1, gate2, five := make(chan struct{}), make(chan struct{}), make(chan struct{})
		w1 := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h1.note(it); <-gate1; return nil })
		h1.await(w, 1) // item 1
		w2 := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
			if h2.note(it); it.Value == 6 {
				<-five
			}
			<-gate2
			return nil
		})
		h2.await(w, 1) // item 2
		hung, goOn := make(chan struct{}), make(chan struct{})
		sc.before.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/i-") }, func(context.Context, backendtest.Call, error) error {
			close(hung)
			<-goOn
			return nil
		})
		close(gate1)
		<-hung // item 3 is claimed with the Ack of 1
		synctest.Wait()
		close(gate2)
		synctest.Wait()
		w1.stop()
		synctest.Wait()
		close(goOn)
		close(five)
		h2.await(w, 6)
		w.Settle()
		w1.finish()
		w2.finish()
		if got, want := h2.String(), inOrder(2, 8); got != want {
			w.T.Errorf("the second Work got %s, want %s", got, want)
		}
	})
}

// A Work waits for space. The service has space again, and an Ack of another handler of this Work claims an item: the
// free handler begins with it at once, and not after the pause.
func TestQueue_AClaimedItemDoesNotWaitForThePauseAfterErrNoSpace(t *testing.T) {
	onMemory(t, func(w *world) {
		var full coordtest.Nth
		began := make(chan struct{}, 100)
		c := w.Open("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			return full.Before(ctx, c)
		}})
		q := coord.NewQueue[int](c, "/q", nil)
		putTogether(w.T, q, 1, 8)
		var refusing func(context.Context, backendtest.Call, error) error
		over := false
		own := func(c backendtest.Call) bool { return claims(c) && !acknowledges(c) }
		refusing = func(context.Context, backendtest.Call, error) error {
			if over {
				return nil
			}
			full.Arm(1, own, refusing)
			began <- struct{}{}
			return backend.ErrNoSpace
		}
		h, gate := newHandled(), make(chan struct{})
		x := w.work(q, 2, func(_ context.Context, it *coord.Item[int]) error {
			h.note(it)
			switch it.Value {
			case 1:
				<-gate
				return nil
			case 2:
				full.Arm(1, own, refusing)
				return it.Ack()
			}
			return nil
		})
		h.await(w, 2)
		for range 10 {
			<-began
		}
		synctest.Wait()
		over = true // Work pauses
		mustAck(w.T, mustTake(w.T, q, 3))
		at := time.Now()
		close(gate)
		synctest.Wait()
		claimed := len(claimNames(w))
		h.await(w, 1)
		if d := time.Since(at); d > 0 && claimed > 0 {
			w.T.Errorf("an item was claimed for %v before its handler began", d)
		}
		w.Settle()
		x.finish()
	})
}

// oddContext is a context of a program. Its Err panics once Done is closed, and notes a call by another goroutine
// than the one that made the context.
type oddContext struct {
	context.Context
	done    chan struct{}
	owner   string
	foreign *atomic.Bool
}

func (c oddContext) Done() <-chan struct{} { return c.done }

func (c oddContext) Err() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	if goroutine() != c.owner {
		c.foreign.Store(true)
		return context.Canceled
	}
	panic("a context of the program")
}

func (c oddContext) Value(any) any { return nil }

// goroutine returns the number of the goroutine, as a stack shows it.
func goroutine() string {
	b := make([]byte, 64)
	number, _, _ := strings.Cut(string(b[:runtime.Stack(b, false)]), " [")
	return number
}

// A method of the context of Work panics. The caller of Work gets the panic, since no other goroutine calls the
// context.
func TestQueue_APanicOfTheContextIsOneOfWork(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		ctx := oddContext{context.Background(), make(chan struct{}), goroutine(), new(atomic.Bool)}
		time.AfterFunc(time.Second, func() { close(ctx.done) })
		defer func() {
			if v := recover(); v != "a context of the program" {
				w.T.Errorf("recovered %v", v)
			}
			synctest.Wait()
			if ctx.foreign.Load() {
				w.T.Error("another goroutine has called the context of Work")
			}
		}()
		w.T.Error("Work has returned", q.Work(ctx, 1, func(context.Context, *coord.Item[int]) error { return nil }))
	})
}

// Work has got its items from Acks and handled them. Close waits for nothing of them.
func TestQueue_CloseDoesNotWaitForItemsThatWorkHasGotFromAcks(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h := newNextScene(w, nil), newHandled()
		putTogether(w.T, sc.q, 1, 5)
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
		h.await(w, 5)
		w.Settle()
		x.finish()
		if _, _, both, _ := sc.sent(); both != 4 {
			w.T.Errorf("%d commits acknowledge and claim, want 4", both)
		}
		began := time.Now()
		sc.c.Close()
		if d := time.Since(began); d > 0 {
			w.T.Errorf("Close has waited for %v", d)
		}
	})
}

// The codec takes long for one item that an Ack has claimed, another Ack claims the item behind it, and Work ends. Both
// items are back when Work returns.
func TestQueue_WorkThatEndsGivesBackTheItemsOfAcksThatItHasNotTaken(t *testing.T) {
	onMemory(t, func(w *world) {
		decoding, goOn := make(chan struct{}), make(chan struct{})
		sc := newNextScene(w, &coord.QueueOptions[int]{Codec: coord.Codec[int]{
			Encode: coord.JSON[int]().Encode,
			Decode: func(data []byte) (int, error) {
				if string(data) == "3" {
					close(decoding)
					<-goOn
				}
				return coord.JSON[int]().Decode(data)
			},
		}})
		putTogether(w.T, sc.q, 1, 5)
		gates := map[int]chan struct{}{1: make(chan struct{}), 2: make(chan struct{})}
		x := w.work(sc.q, 2, func(_ context.Context, it *coord.Item[int]) error { <-gates[it.Value]; return nil })
		w.Settle()
		close(gates[1])
		<-decoding
		close(gates[2])
		w.Settle() // item 4 is claimed
		if n := len(claimNames(w)); n != 2 {
			w.T.Errorf("%d items are claimed, want 2", n)
		}
		x.stop()
		close(goOn)
		if err := x.ended(); err != nil {
			w.T.Error(err)
		}
		b := w.queue("b", nil)
		for n := 3; n <= 5; n++ { // at once
			it, err := b.TryTake(context.Background())
			if err != nil || it.Value != n || it.Attempt != 1 {
				w.T.Fatalf("%+v, %v, want item %d, attempt 1", it, err, n)
			}
			mustAck(w.T, it)
		}
		w.drained(&b.Consumer)
	})
}
