package recipetest

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

// The handlers that are free when Work asks get their items in one commit.
func TestQueue_WorkClaimsForAllFreeHandlersAtOnce(t *testing.T) {
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

func TestQueue_WorkGivesAFailedItemBackWithAGrowingDelay(t *testing.T) {
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
func TestQueue_APanicOfAHandlerIsAFailedAttempt(t *testing.T) {
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
				if !strings.Contains(text, "TestQueue_APanicOfAHandlerIsAFailedAttempt") || !strings.Contains(text, "queue_work_test.go:") {
					w.T.Errorf("the log does not say where it failed:\n%s", text)
				}
			})
		})
	}
}

// The context of a handler says under which holds it runs: Work itself waits for the handler,
// so a handler that locks what Work's caller holds would wait for itself.
func TestQueue_AHandlerCannotLockWhatTheCallerOfWorkHolds(t *testing.T) {
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

func TestQueue_WorkLeavesAClaimThatItsHandlerHasEnded(t *testing.T) {
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

// An Ack or Nack that is refused is repeated in the background. Meanwhile Work takes further items.
func TestQueue_WorkGoesOnWhenTheEndOfAClaimIsRefused(t *testing.T) {
	for _, result := range []error{nil, errors.New("failed")} {
		onMemory(t, func(w *world) {
			var on atomic.Bool
			logged := make(chan string, 10)
			c := coordtest.Open(w.T, backendtest.Intercept(w.Link("a"), *refuse(&on, coordtest.Deletes)),
				&coord.Options{Logger: slog.New(onWarn(func(text string) {
					on.Store(false)
					logged <- text
				}))})
			q := coord.NewQueue[int](c, "/q", nil)
			mustPut(w.T, q, 1, 2)
			type call struct{ value, attempt int }
			calls := make(chan call, 10)
			wk := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
				calls <- call{it.Value, it.Attempt}
				if it.Value == 1 && it.Attempt == 1 {
					on.Store(true)
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
			// The repetition in the background can be refused too, before Work writes its line.
			for !strings.Contains(receive(w, "Work says that a claim did not end", logged), "claim") {
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
func TestQueue_AnItemWhoseAckIsTooLateIsHandledAgain(t *testing.T) {
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

func TestQueue_WorkReturnsTheErrorForWhichAllEnds(t *testing.T) {
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

// Work returns nothing about its items, so Trace reports the end of each claim.
func TestQueue_TheEventsOfWork(t *testing.T) {
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
