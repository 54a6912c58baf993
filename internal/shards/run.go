package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/backoff"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
)

// Work is what a Run does with its shards.
type Work struct {
	// Begin returns the function that Run calls for a shard, again after a failure.
	Begin func(h *core.Hold, index int) func(ctx context.Context) error

	// Restart is coord.ShardsOptions.Restart, or nil.
	Restart func(failures int, err error) time.Duration

	// HandOver returns the cause with which the context of the function ends when its holder is asked
	// to release the shard.
	HandOver func(index int, r core.Revocation) error
}

// Run makes the caller a member and calls the function for each shard that it acquires, each on a
// goroutine of its own. It returns when ctx ends or on a failure, after all calls have returned.
func (s *Shards) Run(ctx context.Context, work Work) error {
	core.NeedContext(ctx)
	const op = "run"
	if err := s.path.Check(op); err != nil {
		return err
	}
	if work.Begin == nil {
		return errs.Op(op, s.path.Full(), errs.ErrNoFunction)
	}
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	w := &worker{Work: work, leave: leave}
	var running sync.WaitGroup
	var ended error
	for g, err := range All(ctx, s, op, func(h *core.Hold, index int) grant { return grant{h, index} }) {
		if err != nil {
			ended = err
			leave(err)
			break
		}
		running.Go(func() { w.run(ctx, g) })
	}
	running.Wait()
	return w.result(ended, op, s.path.Full())
}

// mostLast bounds the errors of the hand-overs that Run returns.
const mostLast = 16

// worker is one Run.
type worker struct {
	Work
	leave context.CancelCauseFunc

	mu      sync.Mutex
	failure error   // with which Restart has ended Run
	last    []error // the latest errors with which the function has returned after its context had ended
	more    int     // the number of earlier such errors
}

// result returns the result of Run. ended is the error of All.
func (w *worker) result(ended error, op, path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := []error{errs.Op(op, path, cmp.Or(ended, w.failure))}
	for _, err := range w.last {
		all = append(all, errs.Op(op, path, err))
	}
	if w.more > 0 {
		all = append(all, errs.Op(op, path, fmt.Errorf("%d earlier errors of released shards are not shown", w.more)))
	}
	if all = slices.DeleteFunc(all, func(err error) bool { return err == nil }); len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}

// run calls f until the shard is to move, and releases it.
func (w *worker) run(ctx context.Context, g grant) {
	defer g.hold.Release()
	f := w.Begin(g.hold, g.index)
	whole := ctx
	ctx, stop := context.WithCancelCause(g.hold.Context(ctx))
	defer stop(nil)
	var stopping sync.WaitGroup
	defer stopping.Wait()
	defer stop(nil)
	stopping.Go(func() {
		select {
		case <-g.hold.Revoked():
			if whole.Err() != nil { // the member gives up all shards, since Run ends
				stop(context.Cause(whole))
				return
			}
			q, _ := g.hold.Revocation()
			stop(w.HandOver(g.index, q))
		case <-ctx.Done():
		}
	})
	pause, failures := core.NewPauses(g.hold.On().Client()), 0
	for ctx.Err() == nil {
		began := time.Now()
		err, over := w.call(ctx, f, g)
		if err == nil {
			<-ctx.Done()
		}
		if err == nil || over {
			return
		}
		late := ctx.Err() != nil
		g.hold.On().Client().Log().Error("coord: the function of a shard failed, it is called again unless the shard has moved or Restart ends Run", "path", g.hold.Path(), "shard", g.index, "ended", late, "error", err)
		if time.Since(began) > backoff.Most {
			failures = 0
			pause.Reset()
		}
		failures++
		after, decided := w.ask(g, failures, err)
		switch {
		case decided && after < 0:
			w.fail(g, err) // before the Release, so that the member does not ask for the shard again
			return
		case late:
			w.keep(g, err)
		case !decided:
			pause.Wait(ctx.Done(), nil)
		default:
			backoff.Sleep(ctx, after)
		}
	}
}

// call calls f once. over reports that the error is nothing but the end of the context.
func (w *worker) call(ctx context.Context, f func(context.Context) error, g grant) (err error, over bool) {
	err = g.hold.On().Client().Call("the function of a shard", []any{"path", g.hold.Path(), "shard", g.index}, func() error {
		err := f(ctx)
		over = err != nil && ctx.Err() != nil && isOnly(err, ctx.Err(), context.Cause(ctx)) // calls methods of err
		return err
	})
	return err, over
}

// ask asks Restart for the pause. If there is no Restart, or if it does not return, decided is false, and the
// usual pause applies.
func (w *worker) ask(g grant, failures int, err error) (after time.Duration, decided bool) {
	if w.Restart == nil {
		return 0, false
	}
	failed := g.hold.On().Client().Call("Restart", []any{"path", g.hold.Path(), "shard", g.index}, func() error {
		after = w.Restart(failures, err)
		return nil
	})
	return after, failed == nil
}

// fail ends Run, unless it ends already.
func (w *worker) fail(g grant, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		w.failure = fmt.Errorf("shard %d: %w", g.index, err)
		w.leave(w.failure)
	}
}

// keep notes an error for the result of Run.
func (w *worker) keep(g grant, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.last) == mostLast {
		w.last = slices.Delete(w.last, 0, 1)
		w.more++
	}
	w.last = append(w.last, fmt.Errorf("shard %d, while it was released: %w", g.index, err))
}

// isOnly reports whether err is nothing but one of the errors of: each error that it joins is one.
func isOnly(err error, of ...error) bool {
	for err != nil && !slices.Contains(of, err) {
		switch e := err.(type) {
		case interface{ Unwrap() []error }:
			all := e.Unwrap()
			return len(all) > 0 && !slices.ContainsFunc(all, func(err error) bool { return !isOnly(err, of...) })
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		default:
			return false
		}
	}
	return true
}
