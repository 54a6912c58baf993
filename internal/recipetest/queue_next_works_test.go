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
		for _, b := range w.Children("/q/items") {
			for _, name := range w.Children("/q/items/" + b) {
				if strings.HasPrefix(name, "m-") {
					w.T.Errorf("%s/%s is there when Work has returned", b, name)
				}
			}
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
