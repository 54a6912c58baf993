package coord_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// blocker is a Logger and a Trace that block, in all that they are asked, from stop
// until let.
type blocker struct {
	slog.Handler
	stopped, lets chan struct{}
	once          sync.Once
}

func newBlocker() *blocker {
	return &blocker{Handler: slog.DiscardHandler, stopped: make(chan struct{}), lets: make(chan struct{})}
}

func (b *blocker) stop() { close(b.stopped) }
func (b *blocker) let()  { b.once.Do(func() { close(b.lets) }) }

func (b *blocker) wait() {
	select {
	case <-b.stopped:
		<-b.lets
	default:
	}
}

func (b *blocker) Enabled(context.Context, slog.Level) bool {
	b.wait()
	return true
}

func (b *blocker) Handle(context.Context, slog.Record) error {
	b.wait()
	return nil
}

func (b *blocker) trace(context.Context, coord.Event) { b.wait() }

// However long the Logger and Trace block: every hold of a session that is lost is
// told so before another client is granted any of them, and no call waits.
func TestALoggerAndATraceThatBlockDelayNothing(t *testing.T) {
	onEach(t, func(w *world) {
		const holds = 400
		b := newBlocker()
		defer b.let()
		c := open(w.t, w.Link("a"), &coord.Options{Namespace: w.path(""), Logger: slog.New(b), Trace: b.trace})
		other := w.open("b", nil)
		type held struct {
			h    *coord.Hold
			done <-chan struct{}
			ctx  context.Context
		}
		var list []held
		for i := range holds {
			h := mustLock(w.t, coord.NewMutex(c, fmt.Sprintf("/l%d", i), nil))
			list = append(list, held{h, h.Done(), h.Context(context.Background())})
		}
		// Of the first ones, wherever the first grant comes.
		granted := make(chan *coord.Hold)
		const waiters = 8
		for i := range waiters {
			go func() {
				h, err := coord.NewMutex(other, fmt.Sprintf("/l%d", i*holds/waiters), nil).Lock(context.Background())
				if err != nil {
					w.t.Error(err)
				}
				granted <- h
			}()
		}
		w.eventually("all wait", func() bool { return int(w.waits.Load()) >= waiters })
		b.stop()

		// The calls of those who hold go on.
		spare := coord.NewMutex(c, "/spare", nil)
		mustRelease(w.t, mustLock(w.t, spare))
		last := mustLock(w.t, spare)

		w.Link("a").Partition()
		for i := range waiters {
			next := <-granted
			if i == 0 {
				untold := 0
				for _, x := range list {
					select {
					case <-x.done:
					default:
						untold++
					}
					if x.ctx.Err() == nil {
						untold++
					}
				}
				if untold > 0 {
					w.t.Errorf("%d of %d channels and contexts were open when the next holder was granted", untold, 2*holds)
				}
			}
			mustRelease(w.t, next)
		}
		for _, x := range list {
			wantErr(w.t, x.h.Err(), coord.ErrLost, coord.ErrSessionLost)
		}
		wantErr(w.t, last.Release(), coord.ErrLost)

		w.Link("a").Heal()
		if _, err := c.Session(context.Background()); err != nil {
			w.t.Error(err)
		}
		start := time.Now()
		if err := c.Close(); err != nil {
			w.t.Error(err)
		}
		if took := time.Since(start); took > 5*time.Second {
			w.t.Errorf("Close took %v", took)
		}
	})
}

// blockingContext is a Context of a user's own that blocks when it is asked.
type blockingContext struct {
	context.Context
	b *blocker
}

func (c blockingContext) Done() <-chan struct{} { return make(chan struct{}) }

func (c blockingContext) Value(key any) any {
	c.b.wait()
	return c.Context.Value(key)
}

// The context package asks the parent of a context that is cancelled. Where that is
// a Context of the user's own and blocks, the other holds of the session end all the
// same.
func TestAContextThatBlocksDelaysNoOtherHold(t *testing.T) {
	onMemory(t, func(w *world) {
		b := newBlocker()
		defer b.let()
		c := w.open("a", nil)
		var done []<-chan struct{}
		for i := range 20 {
			h := mustLock(w.t, coord.NewMutex(c, fmt.Sprintf("/l%d", i), nil))
			done = append(done, h.Done())
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			h.Context(blockingContext{ctx, b})
		}
		b.stop()
		w.Link("a").Partition()
		mustRelease(w.t, mustLock(w.t, coord.NewMutex(w.open("b", nil), "/l7", nil)))
		for i, done := range done {
			select {
			case <-done:
			default:
				w.t.Errorf("hold %d stands", i)
			}
		}
		w.Link("a").Heal()
	})
}

// Close waits for what was told before, but for a Logger and a Trace that block no
// longer than a second together. What they have not taken then they never get.
func TestCloseWaitsForTheLoggerAndTraceForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow, told int
		st := memory.New(nil)
		c := open(t, st.Link("a"), &coord.Options{Trace: func(context.Context, coord.Event) {
			time.Sleep(100 * time.Millisecond)
			slow++
		}})
		start := time.Now()
		c.Close()
		if took := time.Since(start); slow != 2 || took != 200*time.Millisecond {
			t.Errorf("told of %d changes of state in %v, want 2 in 200ms", slow, took)
		}

		b := newBlocker()
		b.stop()
		c = open(t, st.Link("a"), &coord.Options{Logger: slog.New(b), Trace: func(context.Context, coord.Event) {
			told++
			b.wait()
		}})
		link := st.Link("a")
		link.Expire(mustLock(t, coord.NewMutex(c, "/l", nil)).Session())
		time.Sleep(time.Second)
		start = time.Now()
		c.Close()
		if took := time.Since(start); took != time.Second {
			t.Errorf("Close took %v, want a second", took)
		}
		b.let()
		synctest.Wait()
		if told != 1 {
			t.Errorf("Trace was called %d times, want 1: it blocked until after Close", told)
		}
	})
}

// What a slow Trace misses is counted in its place.
func TestEventsThatAreDroppedAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		let := make(chan struct{})
		var granted, released, states, dropped int
		c := open(t, memory.New(nil).Link("a"), &coord.Options{Trace: func(_ context.Context, e coord.Event) {
			<-let
			switch e := e.(type) {
			case coord.Granted:
				granted++
			case coord.HoldReleased:
				released++
			case coord.StateChanged:
				states++
			case coord.Dropped:
				dropped += e.Events
				if e.At() != (coord.Where{}) {
					t.Errorf("%+v", e)
				}
			}
		}})
		m := coord.NewMutex(c, "/l", nil)
		const turns = 10_000
		for range turns {
			mustRelease(t, mustLock(t, m))
		}
		close(let)
		synctest.Wait()
		if dropped == 0 || states != 1 || granted+released+dropped != 2*turns {
			t.Errorf("%d granted, %d released, %d states and %d dropped, want %d and a state", granted, released, states, dropped, 2*turns)
		}
		// Afterwards nothing is missed.
		before := dropped
		mustRelease(t, mustLock(t, m))
		c.Close()
		if dropped != before || granted+released+dropped != 2*turns+2 || states != 2 {
			t.Errorf("%d granted, %d released, %d states and %d dropped at the end", granted, released, states, dropped)
		}
	})
}

// A Logger and a Trace may call the client: none of them is in the middle of a call.
func TestTraceAndLoggerMayUseTheClient(t *testing.T) {
	onEach(t, func(w *world) {
		got := make(chan error, 1)
		var m *coord.Mutex
		ready := make(chan struct{})
		c := open(w.t, w.Link("a"), &coord.Options{Namespace: w.path(""), Trace: func(ctx context.Context, e coord.Event) {
			if e, ok := e.(coord.HoldLost); ok {
				<-ready
				h, err := m.Lock(context.Background()) // on the next session
				if err == nil {
					err = errors.Join(h.Release(), errors.Unwrap(e.Err))
				}
				got <- err
			}
		}})
		m = coord.NewMutex(c, "/l", nil)
		close(ready)
		w.Link("a").Expire(mustLock(w.t, m).Session())
		if err := <-got; !errors.Is(err, coord.ErrSessionLost) && !errors.Is(err, coord.ErrDeleted) {
			w.t.Errorf("from Trace: %v, want what the hold was lost of", err)
		}
	})
}
