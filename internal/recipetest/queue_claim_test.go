package recipetest

import (
	"context"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestQueue_EachEndOfAClaimLeavesItInItsState(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(sc *ackScene, it *coord.Item[int]) error
		want error
		left int // items in the queue
	}{
		"Ack":     {func(_ *ackScene, it *coord.Item[int]) error { return it.Ack() }, nil, 0},
		"AckAll":  {func(sc *ackScene, it *coord.Item[int]) error { return sc.q.AckAll(it, it) }, nil, 0},
		"Nack":    {func(_ *ackScene, it *coord.Item[int]) error { return it.Nack(0) }, nil, 1},
		"Release": {func(_ *ackScene, it *coord.Item[int]) error { return it.Release() }, nil, 1},
		"an Ack that finds the mark gone": {func(sc *ackScene, it *coord.Item[int]) error {
			sc.outsider(backend.Delete(it.Path(), backend.AnyVersion))
			return it.Ack()
		}, coord.ErrDeleted, 1},
		"an Ack that finds the session over": {func(sc *ackScene, it *coord.Item[int]) error {
			sc.before.Arm(1, coordtest.Deletes, func(_ context.Context, c backendtest.Call, _ error) error {
				sc.w.Link("a").Expire(c.Session.ID())
				return nil
			})
			return it.Ack()
		}, coord.ErrSessionLost, 1},
		"a loss": {func(sc *ackScene, it *coord.Item[int]) error {
			sc.outsider(backend.Delete(it.Path(), backend.AnyVersion))
			if err := it.Verify(context.Background()); err == nil {
				sc.w.T.Error("Verify accepts a claim without its mark")
			}
			return it.Ack()
		}, coord.ErrDeleted, 1},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc := newAckScene(w)
				it := sc.take(1)[0]
				err := test.end(sc, it)
				if test.want != nil {
					coordtest.WantErr(w.T, err, test.want)
				} else if err != nil {
					w.T.Error(err)
				}
				if n := mustLen(w.T, &sc.q.Consumer); n != test.left {
					w.T.Errorf("%d items are left, want %d", n, test.left)
				}
				// No later call moves it.
				it.Release()
				it.Nack(0)
				sc.q.AckAll(it)
				if n := mustLen(w.T, &sc.q.Consumer); n != test.left {
					w.T.Errorf("%d items are left after further calls, want %d", n, test.left)
				}
			})
		})
	}
}

// The service refuses an Ack, and again its first repetition: the claim insists until the
// service accepts, or its session ends.
func TestQueue_ARefusedEndOfAClaimInsists(t *testing.T) {
	for _, accepts := range []bool{true, false} {
		onMemory(t, func(w *world) {
			sc := newAckScene(w)
			it := sc.take(1)[0]
			repeats, answer := make(chan struct{}), make(chan error)
			sc.before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
				sc.before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
					repeats <- struct{}{}
					return <-answer
				})
				return backend.ErrDenied
			})
			coordtest.WantErr(w.T, it.Ack(), backend.ErrDenied)
			<-repeats
			left := 0
			if !accepts {
				w.Link("a").Expire(it.Session())
				left = 1
			}
			answer <- nil
			w.Eventually("the repetition is done", func() bool {
				return mustLen(w.T, &sc.q.Consumer) == left
			})
			if !accepts {
				again := mustTake(w.T, sc.q, 0)
				if again.Attempt != 2 {
					w.T.Errorf("attempt %d", again.Attempt)
				}
				mustAck(w.T, again)
			}
			w.drained(&sc.q.Consumer)
		})
	}
}
