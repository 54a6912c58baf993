package recipetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/pace"
)

// clientTests are tests of Client on each service.
type clientTests struct{ Services }

func (on clientTests) CloseEndsEverything(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: after.After})
		states := c.WatchState(context.Background())
		held := coord.NewMutex(c, "/held", nil)
		h := coordtest.MustLock(w.T, held)
		ctx := h.Context(context.Background())
		local := w.Lock(context.Background(), held)

		other := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/taken", nil))
		outside := w.Lock(context.Background(), coord.NewMutex(c, "/taken", nil))
		w.Eventually("the waiter is in the queue", func() bool { return len(w.Children("/taken")) == 2 })

		create := coord.NewMutex(c, "/create", nil)
		coordtest.Prime(w.T, create)
		flying, let := make(chan struct{}), make(chan struct{})
		after.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
			close(flying)
			<-let
			return err
		})
		creating := w.Lock(context.Background(), create)
		<-flying

		// Close may be called while a function works under a hold.
		closed := make(chan struct{})
		working := make(chan error)
		go func() {
			working <- coord.NewMutex(c, "/do", nil).Do(context.Background(), func(ctx context.Context, _ *coord.Hold) error {
				if err := c.Close(); err != nil {
					w.T.Error(err)
				}
				close(closed)
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		<-closed
		close(let)
		err := <-working
		coordtest.WantErr(w.T, err, coord.ErrLost, coord.ErrClosed)

		<-ctx.Done()
		coordtest.WantErr(w.T, context.Cause(ctx), coord.ErrLost, coord.ErrClosed)
		coordtest.WantErr(w.T, h.Release(), coord.ErrClosed)
		for name, l := range map[string]*coordtest.Locking{"local": local, "outside": outside, "creating": creating} {
			<-l.Done
			if !errors.Is(l.Err, coord.ErrClosed) {
				w.T.Errorf("%s waiter: %v, want ErrClosed", name, l.Err)
			}
		}
		_, err = held.Lock(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		_, err = c.Session(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		_, err = held.Contenders(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		var last coord.State
		for last = range states {
		}
		if last.Phase != coord.PhaseClosed || !errors.Is(last.Err, coord.ErrClosed) {
			w.T.Errorf("last state %+v", last)
		}
		if st, ok := <-c.WatchState(context.Background()); !ok || st.Phase != coord.PhaseClosed {
			w.T.Errorf("state after Close: %+v, %v", st, ok)
		}
		if err := c.Close(); err != nil {
			w.T.Error(err)
		}
		coordtest.MustRelease(w.T, other)
		w.Empty("/held")
		w.Empty("/create")
		w.Empty("/taken")
	})
}

func (on clientTests) CloseWhilePartitionedReturnsInTime(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		coordtest.MustLock(w.T, coord.NewMutex(c, "/l", nil))
		w.Link("a").Partition()
		m := pace.Start(w.T, nil)
		c.Close()
		m.Within(w.Timeout+5*time.Second, "Close")
		w.Empty("/l") // the service ends the session after its timeout
		w.Link("a").Heal()
	})
}
