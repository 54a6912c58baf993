package recipetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// call is a function that runs in the background.
type call struct {
	w    *world
	done chan struct{}
	err  error
}

func (w *world) call(f func() error) *call {
	c := &call{w: w, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = f()
	}()
	return c
}

// end waits for the call to return.
func (c *call) end() error {
	c.w.T.Helper()
	select {
	case <-c.done:
	case <-time.After(coordtest.Limit):
		c.w.T.Fatal("the call never returned")
	}
	return c.err
}

// pending fails the test if the call has returned.
func (c *call) pending(why string) {
	c.w.T.Helper()
	c.w.Settle()
	select {
	case <-c.done:
		c.w.T.Fatalf("it returned %v although %s", c.err, why)
	default:
	}
}

func (w *world) must(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

func (w *world) commit(ops ...backend.Op) {
	w.T.Helper()
	_, err := w.Session("outsider").Commit(context.Background(), ops...)
	w.must(err)
}

// collected deletes an empty directory, as the service does, which may have been faster.
func (w *world) collected(path string) {
	w.T.Helper()
	_, err := w.Session("service").Commit(context.Background(), backend.Delete(w.Path(path), backend.AnyVersion))
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		w.T.Fatal(err)
	}
}

// looking returns hooks, and a channel that receives an element for each completed call of op
// on path.
func looking(op, path string) (<-chan struct{}, *backendtest.Hooks) {
	looked := make(chan struct{}, 1000)
	return looked, &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
		if c.Op == op && c.Path == path {
			looked <- struct{}{}
		}
		return err
	}}
}

// barrierTests are tests of Barrier on each service.
type barrierTests struct{ Services }

func (on barrierTests) ABarrierBlocksAllWaitersUntilItIsRemoved(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		setter := coord.NewBarrier(w.Open("setter", nil), "/b/deep/down", nil)
		w.must(setter.Wait(ctx)) // there is none
		w.must(setter.Remove(ctx))
		w.must(setter.Set(ctx))
		w.must(coord.NewBarrier(w.Open("other", nil), "/b/deep/down", nil).Set(ctx)) // it is set already

		var waiters []*call
		for i := range 5 {
			l, hooks := looking("get", w.Path("/b/deep/down"))
			b := coord.NewBarrier(w.Open(fmt.Sprint(i), hooks), "/b/deep/down", nil)
			waiters = append(waiters, w.call(func() error { return b.Wait(ctx) }))
			<-l
		}
		for _, c := range waiters {
			c.pending("the barrier is set")
		}
		w.must(setter.Remove(ctx))
		for _, c := range waiters {
			w.must(c.end())
		}
		w.must(setter.Wait(ctx))
		w.must(setter.Set(ctx)) // again
		giveUp, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		coordtest.WantErr(w.T, setter.Wait(giveUp), context.DeadlineExceeded)
		w.must(setter.Remove(ctx))
		w.Empty("/b/deep")
	})
}

// Curator passed a barrier on any wake-up; etcd's Wait returns when its watch
// closes.
func (on barrierTests) ASpuriousWakeUpDoesNotPassABarrier(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		setter := coord.NewBarrier(w.Open("setter", nil), "/b", nil)
		w.must(setter.Set(ctx))
		l, hooks := looking("get", w.Path("/b"))
		c := w.Open("waiter", hooks)
		waiting := w.call(func() error { return coord.NewBarrier(c, "/b", nil).Wait(ctx) })
		<-l
		w.commit(backend.SetData(w.Path("/b"), []byte("coord recipe: barrier"), backend.AnyVersion))
		<-l
		waiting.pending("only data has changed")
		w.Link("waiter").Partition()
		w.Link("waiter").Heal()
		<-l
		waiting.pending("only contact was lost")
		w.Link("waiter").Expire((<-c.WatchState(ctx)).Session)
		<-l
		waiting.pending("only a session was lost")
		w.Link("waiter").Partition()
		w.must(setter.Remove(ctx))
		w.must(setter.Set(ctx)) // before the waiter has looked
		w.Link("waiter").Heal()
		<-l
		waiting.pending("the barrier is set again")
		w.must(setter.Remove(ctx))
		w.must(waiting.end())
	})
}

func (on barrierTests) ABarrierOutlivesItsSetterUnlessItIsEphemeral(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, b := w.Open("a", nil), w.Open("b", nil)
		lasting, bound := coord.NewBarrier(a, "/lasting", nil), coord.NewBarrier(a, "/bound", &coord.BarrierOptions{Ephemeral: true})
		w.must(lasting.Set(ctx))
		w.must(bound.Set(ctx))
		w.must(bound.Set(ctx)) // its own

		// The existing barrier is of the other kind, or of another session.
		coordtest.WantErr(w.T, coord.NewBarrier(b, "/bound", nil).Set(ctx), coord.ErrExists)
		coordtest.WantErr(w.T, coord.NewBarrier(b, "/bound", &coord.BarrierOptions{Ephemeral: true}).Set(ctx), coord.ErrExists)
		coordtest.WantErr(w.T, coord.NewBarrier(b, "/lasting", &coord.BarrierOptions{Ephemeral: true}).Set(ctx), coord.ErrExists)

		waitLasting := w.call(func() error { return coord.NewBarrier(b, "/lasting", nil).Wait(ctx) })
		waitBound := w.call(func() error { return coord.NewBarrier(b, "/bound", nil).Wait(ctx) })
		w.Link("a").Partition() // until the service ends the session
		w.must(waitBound.end())
		w.Link("a").Heal()
		waitLasting.pending("the barrier outlives its setter")
		w.must(coord.NewBarrier(b, "/lasting", nil).Remove(ctx))
		w.must(waitLasting.end())
	})
}

// The node of the client's lost session, which the service has not ended yet, is no barrier of
// the new session.
func (on barrierTests) SetWaitsForTheBarrierOfALostSession(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		b := coord.NewBarrier(c, "/b", &coord.BarrierOptions{Ephemeral: true})
		w.must(b.Set(ctx))
		states := c.WatchState(ctx)
		old := (<-states).Session
		w.Link("a").Partition()
		for st := range states {
			if st.Phase == coord.PhaseLost {
				break
			}
		}
		w.Link("a").Heal()
		w.must(b.Set(ctx))
		stat, err := w.Session("x").Exists(ctx, w.Path("/b"), nil)
		w.must(err)
		if stat.EphemeralOwner == old {
			w.T.Error("the barrier is that of the lost session")
		}
	})
}

// A repetition after a lost reply must not undo what other clients did in between.
func (on barrierTests) ALostReplyAtABarrierIsResolved(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		var after coordtest.Nth
		b := coord.NewBarrier(w.Open("a", &backendtest.Hooks{After: after.After}), "/b", nil)
		other := coord.NewBarrier(w.Open("b", nil), "/b", nil)
		onPath := func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == w.Path("/b") }
		w.must(b.Remove(ctx)) // the journal is known

		after.Arm(1, onPath, func(context.Context, backendtest.Call, error) error {
			w.must(other.Remove(ctx))
			return backend.ErrUncertain
		})
		w.must(b.Set(ctx))
		w.must(other.Wait(ctx)) // not set again after the Remove

		w.must(b.Set(ctx))
		after.Arm(1, onPath, func(context.Context, backendtest.Call, error) error {
			w.must(other.Set(ctx))
			return backend.ErrUncertain
		})
		w.must(b.Remove(ctx))
		waiting := w.call(func() error { return b.Wait(ctx) })
		waiting.pending("it was set again")
		w.must(other.Remove(ctx))
		w.must(waiting.end())

		// If the session ends first, the outcome cannot be determined.
		after.Arm(1, onPath, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			return backend.ErrUncertain
		})
		coordtest.WantErr(w.T, b.Set(ctx), coord.ErrUncertain, coord.ErrSessionLost)
	})
}

func (on barrierTests) ABarrierRefusesBadUse(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		b := coord.NewBarrier(c, "/b", nil)
		w.must(b.Set(ctx))
		w.commit(backend.Create(w.Path("/b/child"), nil, backend.Persistent))
		waiting := w.call(func() error { return b.Wait(ctx) })
		ended, cancel := context.WithCancel(ctx)
		cancel()
		bad := coord.NewBarrier(c, "bad", nil)
		for op, f := range map[string]func(*coord.Barrier, context.Context) error{
			"set": (*coord.Barrier).Set, "remove": (*coord.Barrier).Remove, "wait": (*coord.Barrier).Wait,
		} {
			var e *backend.Error
			if err := f(bad, ctx); !errors.Is(err, coord.ErrBadPath) || !errors.As(err, &e) || e.Op != op {
				w.T.Errorf("%s of a bad path: %v", op, err)
			}
			coordtest.WantErr(w.T, f(b, ended), context.Canceled)
		}
		waiting.pending("the barrier is set")
		c.Close()
		coordtest.WantErr(w.T, waiting.end(), coord.ErrClosed)
		coordtest.WantErr(w.T, b.Set(ctx), coord.ErrClosed)
		coordtest.WantErr(w.T, b.Remove(ctx), coord.ErrClosed)
		coordtest.WantErr(w.T, b.Wait(ctx), coord.ErrClosed)
	})
}
