package coord_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
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
	case <-time.After(30 * time.Second):
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
	case <-time.After(30 * time.Second):
		w.T.Fatalf("never happened: %s", what)
		panic("not reached")
	}
}

func TestWorkAcknowledgesWhatItsHandlersHaveDone(t *testing.T) {
	for _, prefetch := range []int{1, 4} {
		t.Run(fmt.Sprint("prefetch ", prefetch), func(t *testing.T) {
			onEach(t, func(w *world) { workAcknowledges(w, prefetch) })
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
func TestWorkClaimsNoItemWithoutAFreeHandler(t *testing.T) {
	for prefetch, first := range map[int]int{1: 3, 3: 5} {
		t.Run(fmt.Sprint("prefetch ", prefetch), func(t *testing.T) {
			onEach(t, func(w *world) { workClaims(w, prefetch, first) })
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

// The handlers that are free when Work asks get their items in one commit.
func TestWorkClaimsForAllFreeHandlersAtOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		var commits atomic.Int32
		q := w.hookedQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if claims(c) {
				commits.Add(1)
			}
			return nil
		}}, nil)
		mustPut(w.T, q, 1, 4)
		begun, proceed := make(chan int, 10), make(chan struct{})
		x := w.work(q, 4, func(_ context.Context, it *coord.Item[int]) error {
			begun <- it.Value
			<-proceed
			return nil
		})
		for range 4 {
			receive(w, "a handler begins", begun)
		}
		if n := commits.Load(); n != 1 {
			w.T.Errorf("%d commits claim four items", n)
		}
		close(proceed)
		w.Settle()
		x.finish()
		w.drained(&q.Consumer)
	})
}

func TestWorkGivesAFailedItemBackWithAGrowingDelay(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 12})
		mustPut(w.T, q, 1, 1)
		var waits []time.Duration
		last := time.Now()
		x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
			waits = append(waits, time.Since(last))
			last = time.Now()
			return errors.New("failed")
		})
		dead := coord.NewQueue[int](w.Open("b", nil), "/q/dead", nil)
		it, err := dead.Take(context.Background())
		if err != nil || it.Value != 1 {
			w.T.Fatal(it, err)
		}
		mustAck(w.T, it)
		x.finish()
		want := []time.Duration{0}
		for d := 100 * time.Millisecond; d < time.Minute; d *= 2 {
			want = append(want, d)
		}
		want = append(want, time.Minute)
		// Late by what is not known of the service's clock: twice the drift, and its milliseconds.
		onTime := func(got, want time.Duration) bool { return got >= want && got <= want+want/2500+4*time.Millisecond }
		if !slices.EqualFunc(waits, want, onTime) {
			w.T.Errorf("the attempts came after\n%v, want\n%v", waits, want)
		}
		w.drained(&q.Consumer)
	})
}

// A handler that panics, or ends its goroutine, fails, and no other handler notices. The log
// says where, and nothing of the item.
func TestAPanicOfAHandlerIsAFailedAttempt(t *testing.T) {
	const secret = 770055990011
	var none []int
	for name, fail := range map[string]func(v int){
		"panic":         func(v int) { panic(fmt.Sprint("cannot handle ", v)) },
		"runtime error": func(v int) { none[v]++ },
		"nil":           func(int) { panic(nil) },
		"Goexit":        func(int) { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var mu sync.Mutex
				var log bytes.Buffer
				c := coordtest.Open(w.T, w.Link("a"), &coord.Options{Logger: slog.New(slog.NewTextHandler(&lockedWriter{mu: &mu, to: &log}, nil))})
				q := coord.NewQueue[int](c, "/q", nil)
				mustPut(w.T, q, secret, secret)
				mustPut(w.T, q, 2, 2)
				type call struct{ value, attempt int }
				calls := make(chan call, 10)
				x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
					calls <- call{it.Value, it.Attempt}
					if it.Attempt == 1 && it.Value == secret {
						fail(it.Value)
					}
					return nil
				})
				for _, want := range []call{{secret, 1}, {2, 1}, {secret, 2}} {
					if got := receive(w, "a call", calls); got != want {
						w.T.Errorf("handled %v, want %v", got, want)
					}
				}
				w.Settle()
				x.finish()
				w.drained(&q.Consumer)
				c.Close() // the log is complete
				text := log.String()
				if strings.Contains(text, fmt.Sprint(secret)) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
					w.T.Errorf("the log shows the item:\n%s", text)
				}
				if !strings.Contains(text, "TestAPanicOfAHandlerIsAFailedAttempt") || !strings.Contains(text, "queue_work_test.go:") {
					w.T.Errorf("the log does not say where it failed:\n%s", text)
				}
			})
		})
	}
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
func TestTheEndOfWorkWaitsForItsHandlers(t *testing.T) {
	type key struct{}
	onEach(t, func(w *world) {
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

func TestAHandlersContextEndsWithItsClaim(t *testing.T) {
	onEach(t, func(w *world) {
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

// The context of a handler says under which holds it runs: Work itself waits for the handler,
// so a handler that locks what Work's caller holds would wait for itself.
func TestAHandlerCannotLockWhatTheCallerOfWorkHolds(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		q, m := coord.NewQueue[int](c, "/q", nil), coord.NewMutex(c, "/lock", nil)
		mustPut(w.T, q, 1, 1)
		err := m.Do(context.Background(), func(ctx context.Context, _ *coord.Hold) error {
			ctx, cancel := context.WithCancel(ctx)
			return q.Work(ctx, 1, func(ctx context.Context, _ *coord.Item[int]) error {
				defer cancel()
				_, err := m.Lock(ctx)
				coordtest.WantErr(w.T, err, coord.ErrHeld)
				return nil
			})
		})
		if err != nil {
			w.T.Error(err)
		}
		w.drained(&q.Consumer)
	})
}

func TestWorkLeavesAClaimThatItsHandlerHasEnded(t *testing.T) {
	failed := errors.New("failed")
	for name, test := range map[string]struct {
		end     func(it *coord.Item[int]) error
		left    int
		attempt int // of the next Take
	}{
		"Ack":     {(*coord.Item[int]).Ack, 0, 0},
		"Nack":    {func(it *coord.Item[int]) error { return it.Nack(time.Hour) }, 1, 2},
		"Release": {func(it *coord.Item[int]) error { return it.Release() }, 1, 1},
	} {
		for _, result := range []error{nil, failed} {
			onMemory(t, func(w *world) {
				q := w.queue("a", nil)
				mustPut(w.T, q, 1, 1)
				ctx, cancel := context.WithCancel(context.Background())
				if err := q.Work(ctx, 1, func(_ context.Context, it *coord.Item[int]) error {
					defer cancel()
					if err := test.end(it); err != nil {
						w.T.Error(name, err)
					}
					return result
				}); err != nil {
					w.T.Error(name, err)
				}
				if n := mustLen(w.T, &q.Consumer); n != test.left {
					w.T.Fatalf("%s: %d items are left, want %d", name, n, test.left)
				}
				if test.left == 0 {
					return
				}
				began := time.Now()
				ctx, cancel = context.WithTimeout(context.Background(), 2*time.Hour)
				defer cancel()
				it, err := q.Take(ctx)
				if err != nil || it.Attempt != test.attempt {
					w.T.Fatal(name, it, err)
				}
				want := time.Duration(0)
				if name == "Nack" {
					want = time.Hour
				}
				if d := time.Since(began).Round(time.Second); d != want {
					w.T.Errorf("%s: it came after %v, want %v", name, d, want)
				}
				mustAck(w.T, it)
			})
		}
	}
}

// An Ack or Nack that is refused is repeated in the background. Meanwhile Work goes on.
func TestWorkGoesOnWhenTheEndOfAClaimIsRefused(t *testing.T) {
	for _, result := range []error{nil, errors.New("failed")} {
		onMemory(t, func(w *world) {
			var x coordtest.Nth
			logged := make(chan string, 10)
			c := coordtest.Open(w.T, backendtest.Intercept(w.Link("a"), backendtest.Hooks{Before: x.Before}),
				&coord.Options{Logger: slog.New(onWarn(func(text string) { logged <- text }))})
			q := coord.NewQueue[int](c, "/q", nil)
			mustPut(w.T, q, 1, 2)
			type call struct{ value, attempt int }
			calls := make(chan call, 10)
			wk := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
				calls <- call{it.Value, it.Attempt}
				if it.Value == 1 && it.Attempt == 1 {
					x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
					return result
				}
				return nil
			})
			want := []call{{1, 1}, {2, 1}}
			if result != nil {
				want = append(want, call{1, 2})
			}
			for _, want := range want {
				if got := receive(w, "a call", calls); got != want {
					w.T.Errorf("handled %v, want %v", got, want)
				}
			}
			w.Eventually("all is acknowledged", func() bool { return mustLen(w.T, &q.Consumer) == 0 })
			wk.finish()
			if text := receive(w, "it is logged", logged); !strings.Contains(text, "claim") {
				w.T.Error(text)
			}
			if len(calls) > 0 {
				w.T.Errorf("handled again: %v", <-calls)
			}
			w.drained(&q.Consumer)
		})
	}
}

// The claim is deleted while its handler runs, and only the Ack learns of it: the item is
// delivered again.
func TestAnItemWhoseAckIsTooLateIsHandledAgain(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		s := w.Session("x")
		attempts := make(chan int, 10)
		x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
			attempts <- it.Attempt
			if it.Attempt == 1 {
				if _, err := s.Commit(context.Background(), backend.Delete(it.Path(), backend.AnyVersion)); err != nil {
					w.T.Error(err)
				}
			}
			return nil
		})
		for want := 1; want <= 2; want++ {
			if got := receive(w, "an attempt", attempts); got != want {
				w.T.Errorf("attempt %d, want %d", got, want)
			}
		}
		w.Settle()
		x.finish()
		w.drained(&q.Consumer)
	})
}

func TestWorkGoesOnWithTheNextSession(t *testing.T) {
	onEach(t, func(w *world) {
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

func TestWorkReturnsTheErrorForWhichAllEnds(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		nothing := func(context.Context, *coord.Item[int]) error { return nil }
		c := w.Open("a", nil)
		q := coord.NewQueue[int](c, "/q", nil)
		coordtest.WantErr(w.T, q.Work(ctx, 0, nothing), coord.ErrInvalid)
		coordtest.WantErr(w.T, q.Work(ctx, 1, nil), coord.ErrInvalid)
		coordtest.WantErr(w.T, coord.NewQueue[int](c, "q", nil).Work(ctx, 1, nothing), coord.ErrBadPath)
		denied := w.hookedQueue("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "children" {
				return backend.ErrDenied
			}
			return nil
		}}, nil)
		coordtest.WantErr(w.T, denied.Work(ctx, 1, nothing), coord.ErrDenied)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := q.Work(ended, 1, nothing); err != nil {
			w.T.Error("with a ctx that has ended:", err)
		}
		c.Close()
		coordtest.WantErr(w.T, q.Work(ctx, 1, nothing), coord.ErrClosed)
	})
}

// Close ends the claims, and with them the contexts of the handlers: so a caller bounds the
// drain. What no handler has received goes back before.
func TestCloseEndsTheHandlersOfWork(t *testing.T) {
	onEach(t, func(w *world) {
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

// Work returns nothing about its items, so Trace reports the end of each claim.
func TestTheEventsOfWork(t *testing.T) {
	onMemory(t, func(w *world) {
		x, c := w.taped("a", nil)
		q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{MaxAttempts: 2})
		ctx, cancel := context.WithCancel(context.Background())
		wk := &working{w: w, stop: cancel, done: make(chan struct{})}
		go func() {
			defer close(wk.done)
			wk.err = q.Work(ctx, 1, func(_ context.Context, it *coord.Item[int]) error {
				if it.Value == 1 {
					return errors.New("failed")
				}
				return nil
			})
		}()
		const item = "node=/items/b-0-0/i-*-0-* "
		x.want("#1 WaitBegan queue /q work ahead=-1")
		mustPut(w.T, w.queue("b", nil), 1, 1)
		x.want("#1 WaitEnded queue /q work err=nil",
			"#2 ItemClaimed queue /q take "+item+"item=1 attempt=1 token=true",
			"#2 ItemSettled queue /q take "+item+"item=1 attempt=1 nacked delay=100ms err=nil",
			"#3 WaitBegan queue /q work ahead=-1",
			"#3 WaitEnded queue /q work err=nil",
			"#4 ItemClaimed queue /q take "+item+"item=1 attempt=2 token=true",
			"#4 ItemSettled queue /q take "+item+"item=1 attempt=2 dead delay=0s err=nil",
			"#5 WaitBegan queue /q work ahead=-1")
		mustPut(w.T, w.queue("c", nil), 2, 2)
		x.want("#5 WaitEnded queue /q work err=nil",
			"#6 ItemClaimed queue /q take "+item+"item=2 attempt=1 token=true",
			"#6 ItemSettled queue /q take "+item+"item=2 attempt=1 acked delay=0s err=nil",
			"#7 WaitBegan queue /q work ahead=-1")
		wk.finish()
	})
}
