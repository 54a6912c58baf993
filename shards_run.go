package coord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/core"
)

// All makes the caller a member and yields each shard that it acquires, until ctx ends or the
// body breaks off. The body must release a shard, itself or later by another goroutine, when
// Revoked is closed and the work is finished. A shard that is released while it is still
// assigned to the member is acquired and yielded again. The body should not block for long: a
// shard that waits to be yielded is owned, and nothing works on it.
//
// When the loop ends, the member leaves and gives back the shards that were not yielded;
// without contact that takes at most as long as the session can last. The owner is asked to
// release the other shards, as when they move, and ForceAfter ends their holds, also after the
// loop. To stop at once, close the client. A lost session ends all holds but not the loop: shards are
// yielded again.
//
// If ctx ends, the loop just ends. Otherwise the last pair is nil and the error: ErrClosed;
// ErrDenied; ErrBadPath; ErrInvalid for options or another number of shards; ErrDuplicate for
// an ID in use; ErrDecode for data of a member; those of Mutex.Lock.
func (s *Shards) All(ctx context.Context) iter.Seq2[*Shard, error] { return s.each(ctx, "all") }

func (s *Shards) each(ctx context.Context, op string) iter.Seq2[*Shard, error] {
	core.NeedContext(ctx)
	return func(yield func(*Shard, error) bool) {
		r, err := s.join(ctx, op)
		if err != nil {
			if ctx.Err() == nil || !core.OfContext(err) {
				yield(nil, err)
			}
			return
		}
		over := func() {
			r.leave()
			<-r.gone
		}
		defer over()
		for sh := range r.out {
			if !yield(sh, nil) {
				return
			}
		}
		over()
		if err := r.failure(); err != nil {
			yield(nil, err)
		}
	}
}

// Run makes the caller a member and calls f for each shard that it acquires, each in a
// goroutine of its own. It returns when ctx ends or on a failure, after all calls have
// returned.
//
// The context of f ends when the shard has to move, when its hold is lost, and when ctx ends;
// context.Cause says why (*[HandOverError], ErrLost, or the cause of ctx). f must return
// then. The hold lasts until f returns, so f can write with
// sh.Context(context.WithoutCancel(ctx)). ForceAfter ends the hold earlier, but not the call:
// the call can still run when f is called again.
//
// If f returns nil earlier, Run keeps the shard without a further call. If f fails, panics or
// ends its goroutine, Run logs it and calls f again after the pause of ShardsOptions.Restart.
// After the end of ctx the result is nil, or the latest 16 errors that f returned after its
// context had ended; the context's own error does not count. Otherwise the result has an
// error of All, or the one with which Restart ended Run. ErrInvalid: f is nil.
func (s *Shards) Run(ctx context.Context, f func(ctx context.Context, sh *Shard) error) error {
	core.NeedContext(ctx)
	const op = "run"
	if err := s.path.Check(op); err != nil {
		return err
	}
	if f == nil {
		return core.OpError(op, s.path.Full(), core.ErrNoFunction)
	}
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	r := &shardWork{f: f, restart: s.o.Restart, leave: leave}
	var running sync.WaitGroup
	var ended error
	for sh, err := range s.each(ctx, op) {
		if err != nil {
			ended = err
			leave(err)
			break
		}
		running.Go(func() { r.run(ctx, sh) })
	}
	running.Wait()
	return r.result(ended, op, s.path.Full())
}

// A HandOverError is the cause with which the context of a function of Run ends because the member is
// asked to give the shard up. The hold has not ended. The Revocation names the requester and the
// reason: the member to which the shard moves, or a Revoke of its Mutex.
type HandOverError struct {
	Shard int // its Index
	Revocation
}

// Error names the shard, and by whom and why it was asked for.
func (e *HandOverError) Error() string {
	text := fmt.Sprintf("shard %d must be released", e.Shard)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if e.By != "" {
		text += fmt.Sprintf(" (requested by %q)", e.By)
	}
	return text
}

// mostLast bounds the errors of the hand-overs that Run returns.
const mostLast = 16

// shardWork is one Run.
type shardWork struct {
	f       func(context.Context, *Shard) error
	restart func(int, error) time.Duration
	leave   context.CancelCauseFunc

	mu      sync.Mutex
	failure error   // with which Restart has ended Run
	last    []error // the latest errors with which f has returned after its context had ended
	more    int     // of these, earlier ones
}

// result returns the result of Run. ended is the error of All.
func (r *shardWork) result(ended error, op, path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []error{core.OpError(op, path, cmp.Or(ended, r.failure))}
	for _, err := range r.last {
		all = append(all, core.OpError(op, path, err))
	}
	if r.more > 0 {
		all = append(all, core.OpError(op, path, fmt.Errorf("%d earlier errors of released shards are not shown", r.more)))
	}
	if all = slices.DeleteFunc(all, func(err error) bool { return err == nil }); len(all) == 1 {
		return all[0]
	}
	return errors.Join(all...)
}

// run calls f until the shard is to move, and releases it.
func (r *shardWork) run(ctx context.Context, sh *Shard) {
	defer sh.Release()
	whole := ctx
	ctx, stop := context.WithCancelCause(sh.Context(ctx))
	defer stop(nil)
	var stopping sync.WaitGroup
	defer stopping.Wait()
	defer stop(nil)
	stopping.Go(func() {
		select {
		case <-sh.Revoked():
			if whole.Err() != nil { // the member gives up all shards, since Run ends
				stop(context.Cause(whole))
				return
			}
			q, _ := sh.Revocation()
			stop(&HandOverError{sh.Index, q})
		case <-ctx.Done():
		}
	})
	pause, failures := core.NewPauses(sh.h.On().Client()), 0
	for ctx.Err() == nil {
		began := time.Now()
		err, over := r.call(ctx, sh)
		if err == nil {
			<-ctx.Done()
		}
		if err == nil || over {
			return
		}
		late := ctx.Err() != nil
		sh.h.On().Client().Log().Error("coord: the function of a shard failed", "path", sh.Path(), "shard", sh.Index, "ended", late, "error", err)
		if time.Since(began) > core.MostPause {
			failures = 0
			pause.Reset()
		}
		failures++
		after, decided := r.ask(sh, failures, err)
		switch {
		case decided && after < 0:
			r.fail(sh, err) // before the Release, so that the member does not ask for the shard again
			return
		case late:
			r.keep(sh, err)
		case !decided:
			pause.Wait(ctx.Done(), nil)
		default:
			core.Sleep(ctx, after)
		}
	}
}

// call calls f once. over reports that the error is nothing but the end of the context.
func (r *shardWork) call(ctx context.Context, sh *Shard) (err error, over bool) {
	err = sh.h.On().Client().Call("the function of a shard", []any{"path", sh.Path(), "shard", sh.Index}, func() error {
		err := r.f(ctx, sh)
		over = err != nil && ctx.Err() != nil && isOnly(err, ctx.Err(), context.Cause(ctx)) // calls methods of err
		return err
	})
	return err, over
}

// ask asks Restart for the pause. If there is none, or if it does not return, the pause is the usual.
func (r *shardWork) ask(sh *Shard, failures int, err error) (after time.Duration, decided bool) {
	if r.restart == nil {
		return 0, false
	}
	failed := sh.h.On().Client().Call("Restart", []any{"path", sh.Path(), "shard", sh.Index}, func() error {
		after = r.restart(failures, err)
		return nil
	})
	return after, failed == nil
}

// fail ends Run, unless it ends already.
func (r *shardWork) fail(sh *Shard, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == nil {
		r.failure = fmt.Errorf("shard %d: %w", sh.Index, err)
		r.leave(r.failure)
	}
}

// keep notes an error for the result of Run.
func (r *shardWork) keep(sh *Shard, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.last) == mostLast {
		r.last = slices.Delete(r.last, 0, 1)
		r.more++
	}
	r.last = append(r.last, fmt.Errorf("shard %d, while it was released: %w", sh.Index, err))
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
