package recipetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/trace"
)

// Blocker is a Logger and a Trace of which every call blocks, from stop until let.
type Blocker struct {
	slog.Handler
	stopped, lets chan struct{}
	once          sync.Once
}

func newBlocker() *Blocker {
	return &Blocker{Handler: slog.DiscardHandler, stopped: make(chan struct{}), lets: make(chan struct{})}
}

func (b *Blocker) stop() { close(b.stopped) }

func (b *Blocker) let() { b.once.Do(func() { close(b.lets) }) }

func (b *Blocker) wait() {
	select {
	case <-b.stopped:
		<-b.lets
	default:
	}
}

func (b *Blocker) Enabled(context.Context, slog.Level) bool {
	b.wait()
	return true
}

func (b *Blocker) Handle(context.Context, slog.Record) error {
	b.wait()
	return nil
}

func (b *Blocker) trace(context.Context, trace.Event) { b.wait() }

// traceSlowTests are tests of Trace on each service.
type traceSlowTests struct{ Services }

// However long the Logger and Trace block: every hold of a lost session ends before another
// client is granted any of them, and no call waits.
func (on traceSlowTests) ALoggerAndATraceThatBlockDelayNothing(t *testing.T) {
	on.each(t, func(w *world) {
		const holds = 400
		b := newBlocker()
		defer b.let()
		c := coordtest.Open(w.T, w.Link("a"), &coord.Options{Namespace: w.Path(""), Logger: slog.New(b), Trace: b.trace})
		other := w.Open("b", nil)
		type held struct {
			h    *coord.Hold
			done <-chan struct{}
			ctx  context.Context
		}
		var list []held
		for i := range holds {
			h := coordtest.MustLock(w.T, coord.NewMutex(c, fmt.Sprintf("/l%d", i), nil))
			list = append(list, held{h, h.Done(), h.Context(context.Background())})
		}
		// The waiters are spread over the locks, since any of them can be granted first.
		granted := make(chan *coord.Hold)
		const waiters = 8
		for i := range waiters {
			go func() {
				h, err := coord.NewMutex(other, fmt.Sprintf("/l%d", i*holds/waiters), nil).Lock(context.Background())
				if err != nil {
					w.T.Error(err)
				}
				granted <- h
			}()
		}
		w.Eventually("all wait", func() bool { return int(w.Waits.Load()) >= waiters })
		b.stop()

		// The client's calls continue.
		spare := coord.NewMutex(c, "/spare", nil)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, spare))
		last := coordtest.MustLock(w.T, spare)

		m := pace.Start(w.T, nil)
		w.Link("a").Partition()
		for i := range waiters {
			next := <-granted
			if i == 0 && m.Lost() > w.Timeout/4 {
				w.T.Logf("not judged: the loss before the next grant; the machine did other work for %v", m.Lost())
			} else if i == 0 {
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
					w.T.Errorf("%d of %d channels and contexts were open when the next holder was granted", untold, 2*holds)
				}
			}
			coordtest.MustRelease(w.T, next)
		}
		for _, x := range list {
			coordtest.WantErr(w.T, x.h.Err(), coord.ErrLost, coord.ErrSessionLost)
		}
		coordtest.WantErr(w.T, last.Release(), coord.ErrLost)

		m.Stop()
		w.Link("a").Heal()
		if _, err := c.Session(context.Background()); err != nil {
			w.T.Error(err)
		}
		start := time.Now()
		if err := c.Close(); err != nil {
			w.T.Error(err)
		}
		if took := time.Since(start); took > time.Minute || w.Fake && took > 5*time.Second {
			w.T.Errorf("Close took %v", took)
		}
	})
}

// A Logger and a Trace may call the client: neither runs inside a call of the client.
func (on traceSlowTests) AndLoggerMayUseTheClient(t *testing.T) {
	on.each(t, func(w *world) {
		got := make(chan error, 1)
		var m *coord.Mutex
		ready := make(chan struct{})
		c := coordtest.Open(w.T, w.Link("a"), &coord.Options{Namespace: w.Path(""), Trace: func(ctx context.Context, e trace.Event) {
			if e, ok := e.(trace.HoldLost); ok {
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
		w.Link("a").Expire(coordtest.MustLock(w.T, m).Session())
		if err := <-got; !errors.Is(err, coord.ErrSessionLost) && !errors.Is(err, coord.ErrDeleted) {
			w.T.Errorf("from Trace: %v, want the cause of the loss", err)
		}
	})
}
