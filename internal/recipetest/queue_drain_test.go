package recipetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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

var errTerm = errors.New("SIGTERM")

// strangeError is an error whose method panics.
type strangeError struct{}

func (strangeError) Error() string { return "strange" }

func (strangeError) Is(error) bool { panic("no answer") }

// A handler that gives up since its Work ends has not failed, and any other one has. With
// MaxAttempts 1 the latter makes a dead letter.
func TestWork_EndOfItsContextCostsNoAttempt(t *testing.T) {
	failed := errors.New("failed")
	type scene struct {
		name    string
		end     func(cancel context.CancelCauseFunc) // nil: the ctx of Work does not end
		give    func(ctx context.Context) error      // by the ctx of Work
		counted bool
	}
	term := func(cancel context.CancelCauseFunc) { cancel(errTerm) }
	var scenes []scene
	add := func(name string, end func(context.CancelCauseFunc), counted bool, give func(ctx context.Context) error) {
		scenes = append(scenes, scene{name, end, give, counted})
	}
	add("the error of ctx", term, false, func(ctx context.Context) error { return ctx.Err() })
	add("the cause of ctx", term, false, context.Cause)
	add("wrapped", term, false, func(ctx context.Context) error { return fmt.Errorf("cannot send: %w", ctx.Err()) })
	add("joined", term, false, func(ctx context.Context) error { return errors.Join(failed, context.Cause(ctx)) })
	add("the end of another context", term, false, func(context.Context) error { return context.Canceled })
	add("Bury of the error of ctx", term, false, func(ctx context.Context) error { return coord.Bury(ctx.Err()) })
	add("RetryAfter of the cause of ctx", term, false, func(ctx context.Context) error {
		return fmt.Errorf("cannot send: %w", coord.RetryAfter(time.Hour, context.Cause(ctx)))
	})
	add("Bury of a failure", term, true, func(context.Context) error { return coord.Bury(failed) })
	add("Bury without a cause", term, true, func(context.Context) error { return coord.Bury(nil) })
	add("RetryAfter of a failure", term, true, func(context.Context) error { return coord.RetryAfter(time.Hour, failed) })
	add("a deadline of its own", term, true, func(context.Context) error { return context.DeadlineExceeded })
	add("a failure", term, true, func(context.Context) error { return failed })
	add("a panic with the error of ctx", term, true, func(ctx context.Context) error { panic(ctx.Err()) })
	add("Goexit", term, true, func(context.Context) error { runtime.Goexit(); return nil })
	add("an error that panics", term, true, func(context.Context) error { return strangeError{} })
	add("the end of ctx by a deadline", func(context.CancelCauseFunc) {}, false, func(ctx context.Context) error { return ctx.Err() })
	add("no end", nil, true, func(context.Context) error { return context.Canceled })
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			onMemories(t, func(w *world) {
				q, b := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1}), w.queue("b", &coord.QueueOptions[int]{MaxAttempts: 1})
				mustPut(w.T, b, 1, 1)
				parent, stop := context.WithTimeout(context.Background(), time.Minute)
				defer stop()
				ctx, cancel := context.WithCancelCause(parent)
				defer cancel(nil)
				err := q.Work(ctx, 1, func(context.Context, *coord.Item[int]) error {
					if sc.end == nil {
						defer time.AfterFunc(time.Second, func() { cancel(nil) })
					} else {
						sc.end(cancel)
						<-ctx.Done()
					}
					return sc.give(ctx)
				})
				if err != nil {
					w.T.Error(err)
				}
				dead := letters(w.T, &b.Consumer)
				if counted := len(dead) == 1; counted != sc.counted {
					w.T.Fatalf("%d dead letters, counted: want %t", len(dead), sc.counted)
				}
				if !sc.counted {
					if it := mustTake(w.T, b, 1); it.Attempt != 1 {
						w.T.Errorf("attempt %d", it.Attempt)
					} else {
						mustAck(w.T, it)
					}
				}
				w.drained(&b.Consumer)
			})
		})
	}
}

// A handler that returns in the time of the drain is acknowledged. Of one that does not, the item is
// given back when the time has passed, and its context ends then, not before.
func TestWork_DrainIsBounded(t *testing.T) {
	const drain = 20 * time.Second
	failed := errors.New("failed")
	for _, test := range []struct {
		name string
		late error // what the slow handler returns after that
	}{{"done", nil}, {"failed", failed}, {"given up", context.Canceled}} {
		t.Run(test.name, func(t *testing.T) {
			onMemories(t, func(w *world) {
				q, _, log := w.loggedQueue("a", &coord.QueueOptions[int]{MaxAttempts: 1, DrainTimeout: drain})
				b := w.queue("b", &coord.QueueOptions[int]{MaxAttempts: 1})
				mustPut(w.T, b, 1, 2)
				var begun atomic.Int32
				x := w.work(q, 2, func(ctx context.Context, it *coord.Item[int]) error {
					begun.Add(1)
					if it.Value == 1 {
						time.Sleep(2*time.Minute + drain - time.Millisecond)
						return ctx.Err()
					}
					start := time.Now()
					<-ctx.Done()
					if got := time.Since(start); got != 2*time.Minute+drain {
						w.T.Errorf("the context ends after %v", got)
					}
					coordtest.WantErr(w.T, context.Cause(ctx), coord.ErrReleased)
					if text := context.Cause(ctx).Error(); !strings.HasSuffix(text, "released: DrainTimeout of Work has passed") {
						w.T.Error(text)
					}
					time.Sleep(time.Minute) // it cleans up
					return test.late
				})
				w.Settle()
				time.Sleep(2 * time.Minute)
				if begun.Load() != 2 {
					w.T.Fatalf("%d handlers have begun", begun.Load())
				}
				x.stop()
				time.Sleep(drain + time.Second)
				it := mustTake(w.T, b, 2) // while the handler still runs
				if it.Attempt != 1 {
					w.T.Errorf("attempt %d", it.Attempt)
				}
				select {
				case <-x.done:
					w.T.Error("Work has returned before its handler")
				default:
				}
				time.Sleep(time.Minute)
				w.Settle()
				x.finish()
				mustAck(w.T, it) // the late handler has not touched the claim
				if n := len(letters(w.T, &b.Consumer)); n > 0 {
					w.T.Errorf("%d dead letters", n)
				}
				w.drained(&b.Consumer)
				text := log()
				for line, want := range map[string]bool{
					`msg="coord: handlers have not returned within DrainTimeout, returning their items to the queue" path=/q items=1`:             true,
					`msg="coord: a handler succeeded after its claim had ended, its item is not acknowledged and can be delivered again" path=/q`: test.late == nil,
				} {
					if strings.Contains(text, line) != want {
						w.T.Errorf("the log contains %q: want %t\n%s", line, want, text)
					}
				}
			})
		})
	}
}

// A handler acknowledges its item itself, and runs on beyond the drain. The log does not say that the item is given back.
func TestWork_DrainLeavesOutItemsThatTheirHandlersHaveEnded(t *testing.T) {
	for name, closes := range map[string]bool{"the drain": false, "Close": true} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				q, c, log := w.loggedQueue("a", &coord.QueueOptions[int]{DrainTimeout: time.Second})
				b := w.queue("b", nil)
				mustPut(w.T, b, 1, 1)
				acked, end := make(chan error, 1), make(chan struct{})
				x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
					acked <- it.Ack()
					<-end
					return nil
				})
				if err := receive(w, "the handler begins", acked); err != nil {
					w.T.Fatal(err)
				}
				if closes {
					c.Close()
				} else {
					x.stop()
					time.Sleep(2 * time.Second)
				}
				w.Settle()
				close(end)
				if err := x.ended(); err != nil && !errors.Is(err, coord.ErrClosed) {
					w.T.Error(err)
				}
				w.drained(&b.Consumer)
				if text := log(); strings.Contains(text, "level=WARN") {
					w.T.Errorf("the log says:\n%s", text)
				}
			})
		})
	}
}

// Without DrainTimeout, and if Work ends for a failure.
func TestWork_DrainAfterAFailure(t *testing.T) {
	for _, drain := range []time.Duration{0, time.Minute} {
		t.Run(drain.String(), func(t *testing.T) {
			onMemory(t, func(w *world) {
				var refused atomic.Bool
				o := &coord.QueueOptions[int]{DrainTimeout: drain}
				q := w.hookedQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					if refused.Load() && c.Op == "children" {
						return backend.ErrDenied
					}
					for _, op := range c.Ops {
						if op.Kind == backend.OpCreate && strings.HasPrefix(op.Path, "/q/items/b-") && op.Mode == backend.Ephemeral {
							refused.Store(true) // the item is being claimed, and no list for the next one has begun
						}
					}
					return nil
				}}, o)
				b := w.queue("b", nil)
				mustPut(w.T, b, 1, 1)
				begun, took := make(chan int, 1), make(chan time.Duration, 1)
				x := w.work(q, 2, func(ctx context.Context, it *coord.Item[int]) error {
					begun <- it.Value
					start := time.Now()
					select {
					case <-ctx.Done():
					case <-time.After(time.Hour):
					}
					took <- time.Since(start)
					return nil
				})
				receive(w, "the handler begins", begun)
				want := drain
				if drain == 0 {
					want = time.Hour
				}
				time.Sleep(want)
				if got := receive(w, "the handler ends", took); got != want {
					w.T.Errorf("the handler had %v, want %v", got, want)
				}
				coordtest.WantErr(w.T, x.ended(), coord.ErrDenied)
				if n, want := mustLen(w.T, &b.Consumer), int(min(drain, 1)); n != want {
					w.T.Errorf("%d items are left, want %d", n, want)
				}
			})
		})
	}
}

// Without contact the contexts of the handlers end in time too. The items cannot be given back, so
// they come back with the session.
func TestWork_DrainWithoutContact(t *testing.T) {
	onMemory(t, func(w *world) {
		q, b := w.queue("a", &coord.QueueOptions[int]{DrainTimeout: time.Second}), w.queue("b", nil)
		mustPut(w.T, b, 1, 3)
		begun, ended := make(chan int, 3), make(chan time.Time, 3)
		x := w.work(q, 3, func(ctx context.Context, it *coord.Item[int]) error {
			begun <- it.Value
			<-ctx.Done()
			ended <- time.Now()
			return nil
		})
		for range 3 {
			receive(w, "a handler begins", begun)
		}
		w.Link("a").Partition()
		cut := time.Now()
		x.stop()
		for range 3 {
			if got := receive(w, "a context ends", ended).Sub(cut); got != time.Second {
				w.T.Errorf("the context ends after %v", got)
			}
		}
		x.finish()
		var attempts []int
		for n := 1; n <= 3; n++ {
			it := mustTake(w.T, b, n)
			attempts = append(attempts, it.Attempt)
			mustAck(w.T, it)
		}
		if !slices.Equal(attempts, []int{2, 2, 2}) {
			w.T.Errorf("attempts %v", attempts)
		}
		w.drained(&b.Consumer)
		w.Link("a").Heal()
	})
}

// A loss of the session while Work ends: its attempt counts, and nothing is given back twice.
func TestWork_SessionLostDuringTheDrain(t *testing.T) {
	onMemory(t, func(w *world) {
		q, b := w.queue("a", &coord.QueueOptions[int]{DrainTimeout: time.Hour}), w.queue("b", nil)
		mustPut(w.T, b, 1, 1)
		begun := make(chan int64, 1)
		x := w.work(q, 1, func(ctx context.Context, it *coord.Item[int]) error {
			begun <- it.Session()
			<-ctx.Done()
			coordtest.WantErr(w.T, context.Cause(ctx), coord.ErrLost)
			return context.Canceled
		})
		session := receive(w, "the handler begins", begun)
		x.stop()
		w.Link("a").Expire(session)
		x.finish()
		it := mustTake(w.T, b, 1)
		if it.Attempt != 2 {
			w.T.Errorf("attempt %d", it.Attempt)
		}
		mustAck(w.T, it)
		w.drained(&b.Consumer)
	})
}

// A program that is stopped by Close alone loses no attempt, whatever its handlers return.
func TestWork_CloseCostsNoAttempt(t *testing.T) {
	for name, give := range map[string]func(ctx context.Context, c *coord.Client) error{
		"the error of its context": func(ctx context.Context, _ *coord.Client) error { <-ctx.Done(); return ctx.Err() },
		"the cause":                func(ctx context.Context, _ *coord.Client) error { <-ctx.Done(); return context.Cause(ctx) },
		"nil":                      func(ctx context.Context, _ *coord.Client) error { <-ctx.Done(); return nil },
		"the error of a call": func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewMutex(c, "/m", nil).Lock(context.WithoutCancel(ctx))
			for err == nil {
				_, err = coord.NewMutex(c, "/m", nil).TryLock(context.WithoutCancel(ctx))
				if errors.Is(err, coord.ErrLocked) {
					err = nil
				}
				runtime.Gosched()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				c, b := w.Open("a", nil), w.queue("b", &coord.QueueOptions[int]{MaxAttempts: 1})
				q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
				mustPut(w.T, b, 1, 4)
				begun := make(chan int, 10)
				x := w.work(q, 4, func(ctx context.Context, it *coord.Item[int]) error {
					begun <- it.Value
					return give(ctx, c)
				})
				for range 4 {
					receive(w, "a handler begins", begun)
				}
				c.Close()
				coordtest.WantErr(w.T, x.ended(), coord.ErrClosed)
				for n := 1; n <= 4; n++ {
					it := mustTake(w.T, b, n)
					if it.Attempt != 1 {
						w.T.Errorf("%d: attempt %d", n, it.Attempt)
					}
					mustAck(w.T, it)
				}
				w.drained(&b.Consumer)
			})
		})
	}
}
