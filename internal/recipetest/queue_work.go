package recipetest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// working is a Work under way.
type working struct {
	w    *world
	stop context.CancelFunc
	done chan struct{}
	err  error
}

func (w *world) work(q *coord.Queue[int], n int, handle func(context.Context, *coord.Item[int]) error) *working {
	ctx, cancel := context.WithCancel(context.Background())
	x := &working{w: w, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(x.done)
		defer cancel()
		x.err = q.Work(ctx, n, handle)
	}()
	return x
}

// ended waits for the end of Work and returns its error.
func (x *working) ended() error {
	x.w.T.Helper()
	select {
	case <-x.done:
	case <-time.After(coordtest.Limit):
		x.w.T.Fatal("Work does not end")
	}
	return x.err
}

// finish ends ctx and checks that Work returns nil.
func (x *working) finish() {
	x.w.T.Helper()
	x.stop()
	if err := x.ended(); err != nil {
		x.w.T.Error(err)
	}
}

// receive waits for an element of ch.
func receive[E any](w *world, what string, ch <-chan E) E {
	w.T.Helper()
	select {
	case e := <-ch:
		return e
	case <-time.After(coordtest.Limit):
		w.T.Fatalf("never happened: %s", what)
		panic("not reached")
	}
}

// queueWorkTests are tests of Queue on each service.
type queueWorkTests struct{ Services }

func (on queueWorkTests) WorkAcknowledgesWhatItsHandlersHaveDone(t *testing.T) {
	for _, prefetch := range []int{1, 4} {
		t.Run(fmt.Sprint("prefetch ", prefetch), func(t *testing.T) {
			on.each(t, func(w *world) { workAcknowledges(w, prefetch) })
		})
	}
}

func workAcknowledges(w *world, prefetch int) {
	q := w.queue("a", &coord.QueueOptions[int]{Prefetch: prefetch})
	const items = 20
	done := make(chan int, 2*items)
	x := w.work(q, 3, func(_ context.Context, it *coord.Item[int]) error {
		done <- it.Value
		return nil
	})
	mustPut(w.T, w.queue("b", nil), 1, items)
	var got []int
	for range items {
		got = append(got, receive(w, "the next item", done))
	}
	x.finish()
	slices.Sort(got)
	for i, v := range got {
		if v != i+1 {
			w.T.Fatalf("handled %v", got)
		}
	}
	if len(done) > 0 {
		w.T.Error("an item was handled twice")
	}
	w.drained(&q.Consumer)
}

// Other consumers get each item for which no handler is free, except those of Prefetch.
func (on queueWorkTests) WorkClaimsNoItemWithoutAFreeHandler(t *testing.T) {
	for prefetch, first := range map[int]int{1: 3, 3: 5} {
		t.Run(fmt.Sprint("prefetch ", prefetch), func(t *testing.T) {
			on.each(t, func(w *world) { workClaims(w, prefetch, first) })
		})
	}
}

// workClaims lets another consumer take what the two handlers of Work, with this Prefetch, leave:
// the items from first on.
func workClaims(w *world, prefetch, first int) {
	q, b := w.queue("a", &coord.QueueOptions[int]{Prefetch: prefetch}), w.queue("b", nil)
	mustPut(w.T, b, 1, 1)
	begun, proceed := make(chan int, 10), make(chan struct{})
	x := w.work(q, 2, func(context.Context, *coord.Item[int]) error {
		begun <- 0
		<-proceed
		return nil
	})
	receive(w, "a handler begins", begun)
	w.Settle() // Work asks for the other one
	if _, err := b.PutAll(context.Background(), 2, 3, 4, 5, 6); err != nil {
		w.T.Fatal(err)
	}
	receive(w, "a handler begins", begun)
	w.Settle()
	var others []*coord.Item[int]
	for n := first; n <= 6; n++ {
		it, err := b.TryTake(context.Background())
		if err != nil || it.Value != n {
			w.T.Fatalf("%v, %v, want %d", it, err, n)
		}
		others = append(others, it)
	}
	x.stop()
	close(proceed)
	x.finish()
	for _, it := range others {
		mustAck(w.T, it)
	}
	for n := 3; n < first; n++ { // were prefetched
		it := mustTake(w.T, b, n)
		if it.Attempt != 1 {
			w.T.Errorf("attempt %d of an item that no handler has received", it.Attempt)
		}
		mustAck(w.T, it)
	}
	w.drained(&b.Consumer)
}

// lockedWriter serializes writes.
type lockedWriter struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}

// The end of ctx gives back what no handler has received, at once, and disturbs no handler.
func (on queueWorkTests) TheEndOfWorkWaitsForItsHandlers(t *testing.T) {
	type key struct{}
	on.each(t, func(w *world) {
		q, b := w.queue("a", &coord.QueueOptions[int]{Prefetch: 4}), w.queue("b", nil)
		mustPut(w.T, b, 1, 4)
		ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), key{}, "value"), time.Hour)
		defer cancel()
		begun, proceed := make(chan context.Context, 10), make(chan struct{})
		x := &working{w: w, stop: cancel, done: make(chan struct{})}
		go func() {
			defer close(x.done)
			x.err = q.Work(ctx, 1, func(ctx context.Context, it *coord.Item[int]) error {
				begun <- ctx
				<-proceed
				return ctx.Err()
			})
		}()
		handler := receive(w, "the handler begins", begun)
		cancel()
		var back []int
		for range 3 { // in the order in which they come back
			it, err := b.Take(context.Background())
			if err != nil || it.Attempt != 1 {
				w.T.Fatalf("%v, %v, want an item that no handler has received", it, err)
			}
			back = append(back, it.Value)
			mustAck(w.T, it)
		}
		if slices.Sort(back); !slices.Equal(back, []int{2, 3, 4}) {
			w.T.Errorf("%v came back", back)
		}
		select {
		case <-x.done:
			w.T.Error("Work returned before its handler")
		default:
		}
		if _, bounded := handler.Deadline(); bounded || handler.Err() != nil || handler.Value(key{}) != "value" {
			w.T.Errorf("the context of the handler: bounded %t, %v, value %v", bounded, handler.Err(), handler.Value(key{}))
		}
		close(proceed)
		x.finish()
		coordtest.WantErr(w.T, context.Cause(handler), coord.ErrReleased) // the Ack has ended the claim
		w.drained(&b.Consumer)
		if len(begun) > 0 {
			w.T.Error("another handler began")
		}
	})
}

func (on queueWorkTests) AHandlersContextEndsWithItsClaim(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		begun, causes := make(chan *coord.Item[int], 10), make(chan error, 10)
		x := w.work(q, 1, func(ctx context.Context, it *coord.Item[int]) error {
			begun <- it
			if it.Attempt == 2 {
				return nil
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil // it is not acknowledged
		})
		it := receive(w, "the handler begins", begun)
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(it.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, receive(w, "the context ends", causes), coord.ErrLost, coord.ErrDeleted)
		if it := receive(w, "it is delivered again", begun); it.Attempt != 2 {
			w.T.Errorf("attempt %d", it.Attempt)
		}
		w.Eventually("it is acknowledged", func() bool { return mustLen(w.T, &q.Consumer) == 0 })
		x.finish()
		w.drained(&q.Consumer)
	})
}

func (on queueWorkTests) WorkGoesOnWithTheNextSession(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		begun := make(chan *coord.Item[int], 10)
		x := w.work(q, 2, func(ctx context.Context, it *coord.Item[int]) error {
			begun <- it
			if it.Attempt == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		w.Link("a").Expire(receive(w, "the handler begins", begun).Session())
		if it := receive(w, "it is delivered again", begun); it.Attempt != 2 {
			w.T.Errorf("attempt %d", it.Attempt)
		}
		w.Eventually("it is acknowledged", func() bool { return mustLen(w.T, &q.Consumer) == 0 })
		x.finish()
		w.drained(&q.Consumer)
	})
}

// Close ends the claims, and with them the contexts of the handlers: so a caller bounds the
// drain. What no handler has received goes back before.
func (on queueWorkTests) CloseEndsTheHandlersOfWork(t *testing.T) {
	on.each(t, func(w *world) {
		c, b := w.Open("a", nil), w.queue("b", nil)
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{Prefetch: 3})
		mustPut(w.T, b, 1, 3)
		begun := make(chan int, 10)
		x := w.work(q, 1, func(ctx context.Context, it *coord.Item[int]) error {
			begun <- it.Value
			<-ctx.Done()
			coordtest.WantErr(w.T, context.Cause(ctx), coord.ErrLost, coord.ErrClosed)
			return nil
		})
		receive(w, "the handler begins", begun)
		began := time.Now()
		c.Close()
		late := !w.Fake && time.Since(began) >= 2*time.Second // a busy machine: Close does not wait for longer
		coordtest.WantErr(w.T, x.ended(), coord.ErrClosed)
		for n := 1; n <= 3; n++ {
			it := mustTake(w.T, b, n)
			if it.Attempt != 1 && !(late && it.Attempt == 2) {
				w.T.Errorf("%d: attempt %d, want 1", n, it.Attempt)
			}
			mustAck(w.T, it)
		}
		w.drained(&b.Consumer)
	})
}

// A handler that hangs beyond ClaimTimeout frees its place: its item is delivered again, to the same Work, and so
// is the item behind it. Work still waits for the handler.
func (on queueWorkTests) AHandlerThatHangsFreesItsPlace(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{ClaimTimeout: claimTime})
		mustPut(w.T, q, 1, 3)
		type delivery struct{ value, attempt int }
		begun, proceed := make(chan delivery, 10), make(chan struct{})
		x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
			begun <- delivery{it.Value, it.Attempt}
			if it.Value == 1 && it.Attempt == 1 {
				<-proceed
			}
			return nil
		})
		for _, want := range []delivery{{1, 1}, {1, 2}, {2, 1}, {3, 1}} {
			if got := receive(w, "a handler begins", begun); got != want {
				w.T.Errorf("%+v, want %+v", got, want)
			}
		}
		w.Eventually("all items are acknowledged", func() bool { return mustLen(w.T, &q.Consumer) == 0 })
		x.stop()
		w.Settle()
		select {
		case <-x.done:
			w.T.Error("Work returned before the handler that hangs")
		default:
		}
		close(proceed)
		x.finish()
		w.drained(&q.Consumer)
	})
}
