package recipetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// serveSite serves the site a over c until the test ends, or until the returned function is called.
func (w *world) serveSite(c *coord.Client, h coord.Handler[string]) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		coord.NewParticipant(c, "/tx", "a", h).Serve(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	w.T.Cleanup(stop)
	return stop
}

// twophaseSiteTests are tests of TwoPhase on each service.
type twophaseSiteTests struct{ Services }

// A site that was paused in Prepare cannot reserve for a transaction that its successor has aborted:
// the service refuses the Guard of its Branch, and a resource of its own the Token.
func (on twophaseSiteTests) APausedSiteCannotReserveForAnAbortedTransaction(t *testing.T) {
	on.each(t, func(w *world) {
		paused, proceed := make(chan coord.Branch[string], 1), make(chan struct{})
		first := w.Open("first", nil)
		done := make(chan error, 3)
		stopFirst := w.serveSite(first, coord.Handler[string]{
			Prepare: func(_ context.Context, tx coord.Branch[string]) error {
				paused <- tx
				<-proceed
				other := w.Open("reserves", nil) // the session of the site is over
				_, err := coord.NewTxn(other).Under(tx.Guard()).Create("/reserved", nil, backend.Persistent).Commit(context.Background())
				done <- err
				done <- tx.Verify(context.Background())
				return nil
			},
			Commit: nothing, Abort: nothing,
		})
		w.served("a")
		co := coord.NewCoordinator(w.Open("co", nil), "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
		p := w.proposal("t1", "a")
		p.Deadline = time.Now().Add(time.Minute) // the second site aborts it
		decided := make(chan coord.Decision, 1)
		go func() { decided <- mustPropose(w.T, co, p) }()
		old := receive(w, "a Prepare", paused)
		if err := old.Verify(context.Background()); err != nil && !errors.Is(err, coord.ErrConflict) {
			w.T.Errorf("before the loss: %v", err)
		}
		w.Link("first").Expire(sessionOf(w.T, first))
		aborted := make(chan coord.Branch[string], 1)
		w.serveSite(w.Open("second", nil), coord.Handler[string]{
			Prepare: func(context.Context, coord.Branch[string]) error { return errors.New("no") },
			Commit:  nothing,
			Abort:   func(_ context.Context, tx coord.Branch[string]) error { aborted <- tx; return nil },
		})
		now := receive(w, "an Abort", aborted)
		if d := <-decided; d.Commit {
			w.T.Errorf("%+v", d)
		}
		if old.Token() == 0 || old.Token() >= now.Token() {
			w.T.Errorf("tokens %d and then %d, want them to grow", old.Token(), now.Token())
		}
		close(proceed)
		coordtest.WantErr(w.T, receive(w, "the reservation", done), coord.ErrConflict, coord.ErrNotFound)
		coordtest.WantErr(w.T, receive(w, "the question", done), coord.ErrLost)
		if _, err := w.stat("/reserved"); !errors.Is(err, coord.ErrNotFound) {
			w.T.Errorf("the reservation of an aborted transaction: %v", err)
		}
		stopFirst()
	})
}

// A site that was paused in Prepare and has lost its lock cannot reserve, though no other process has
// acted on the transaction: the lock alone refuses it.
func (on twophaseSiteTests) ASiteWithoutItsLockCannotReserve(t *testing.T) {
	on.each(t, func(w *world) {
		paused, proceed := make(chan coord.Branch[string]), make(chan struct{})
		done := make(chan error, 2)
		var calls atomic.Int32
		first := w.Open("first", nil)
		w.serveSite(first, coord.Handler[string]{
			Prepare: func(_ context.Context, tx coord.Branch[string]) error {
				if calls.Add(1) > 1 {
					return errors.New("no")
				}
				paused <- tx
				<-proceed
				other := w.Open("reserves", nil) // the session of the site is over
				_, err := coord.NewTxn(other).Under(tx.Guard()).Create("/reserved", nil, backend.Persistent).Commit(context.Background())
				done <- err
				done <- tx.Verify(context.Background())
				return nil
			},
			Commit: nothing, Abort: nothing,
		})
		w.served("a")
		p := w.proposal("t1", "a")
		p.Deadline = time.Now().Add(time.Hour)
		decided := proposeLater(coord.NewCoordinator(w.Open("co", nil), "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved}), p)
		receive(w, "a Prepare", paused)
		w.Link("first").Expire(sessionOf(w.T, first))
		w.Empty("/tx/serving/a")
		close(proceed)
		coordtest.WantErr(w.T, receive(w, "the reservation", done), coord.ErrFenced)
		coordtest.WantErr(w.T, receive(w, "the question", done), coord.ErrLost)
		if got := receive(w, "a decision", decided); got.err != nil || got.d.Commit {
			w.T.Errorf("%+v, %v", got.d, got.err)
		}
		if _, err := w.stat("/reserved"); !errors.Is(err, coord.ErrNotFound) {
			w.T.Errorf("the reservation of a site without its lock: %v", err)
		}
	})
}

// The Guard of a Branch holds during the call that got it, and not when the transaction has come further.
func (on twophaseSiteTests) TheGuardOfABranchEndsWithItsStep(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		other := w.Open("other", nil)
		n := 0
		write := func(tx coord.Branch[string]) error {
			n++
			_, err := coord.NewTxn(other).Under(tx.Guard()).Create(fmt.Sprint("/w", n), nil, backend.Persistent).Commit(ctx)
			return err
		}
		var late []coord.Branch[string]
		step := func(tx coord.Branch[string]) error {
			w.must(write(tx))
			w.must(tx.Verify(ctx))
			if tx.Token() == 0 {
				w.T.Error("no token")
			}
			for _, old := range late {
				if old.ID != tx.ID {
					continue
				}
				coordtest.WantErr(w.T, write(old), coord.ErrConflict)
				coordtest.WantErr(w.T, old.Verify(ctx), coord.ErrConflict)
			}
			late = append(late, tx)
			return nil
		}
		f := func(_ context.Context, tx coord.Branch[string]) error { return step(tx) }
		w.serveSite(w.Open("site", nil), coord.Handler[string]{
			Prepare: func(ctx context.Context, tx coord.Branch[string]) error {
				f(ctx, tx)
				if tx.ID == "t2" {
					return errors.New("no")
				}
				return nil
			},
			Commit: f, Abort: f,
		})
		w.served("a")
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		for _, id := range []string{"t1", "t2"} {
			mustPropose(w.T, co, w.proposal(id, "a"))
			w.over("a")
		}
		if len(late) != 4 {
			w.T.Errorf("%d calls, want 4", len(late))
		}
		for _, old := range late {
			coordtest.WantErr(w.T, write(old), coord.ErrConflict)
			coordtest.WantErr(w.T, old.Verify(ctx), coord.ErrConflict)
		}
		var none coord.Branch[string]
		if none.Token() != 0 {
			w.T.Error("a Branch of the program's own has a token")
		}
		coordtest.WantErr(w.T, write(none), coord.ErrInvalid)
		coordtest.WantErr(w.T, none.Verify(ctx), coord.ErrInvalid)
	})
}
