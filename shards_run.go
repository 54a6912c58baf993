package coord

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"
)

// All makes the caller a member and yields each shard that it comes to own, until ctx ends or the
// body breaks off. It does not end by itself while the caller owns all that it ought to own. A
// shard belongs to the body, which must release it, or have another goroutine do so: when its work
// is finished after Revoked is closed. A shard that is released while the member still ought to
// own it is acquired, and yielded, again. The body should not block for long: a shard that waits to
// be yielded is owned, and nothing works on it.
//
// When the loop ends, the member leaves the group, and gives back the shards that were not
// yielded. The end of the loop waits for that: without contact, not longer than the session can
// last. All other shards are asked for, as when they move: their owners release them, or
// ForceAfter ends them, also after the loop. To stop at once, close the client.
//
// If ctx ends, the loop just ends. Otherwise the last pair is nil and the error: ErrClosed;
// ErrDenied; ErrBadPath; ErrInvalid for the options, or if an older member has another number of
// shards; ErrDuplicate if another process has joined with the same ID; ErrDecode if the data of an
// older member is not that of a member; those of Mutex.Lock for the lock of a shard.
//
// A lost session does not end the loop: the holds of all shards end, the member joins again, and
// shards that are still assigned to it are yielded again, as new holds.
func (s *Shards) All(ctx context.Context) iter.Seq2[*Shard, error] { return s.each(ctx, "all") }

func (s *Shards) each(ctx context.Context, op string) iter.Seq2[*Shard, error] {
	return func(yield func(*Shard, error) bool) {
		r, err := s.join(ctx, op)
		if err != nil {
			if ctx.Err() == nil || !ofContext(err) {
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

// Run makes the caller a member and calls f for each shard that it comes to own, each in a
// goroutine of its own. It returns when ctx ends, or on a failure, after all calls have returned.
//
// The context of f ends when the shard is to move, when its hold is lost, and when ctx ends. f
// should finish then, and return; after that Run releases the shard, and the next member is
// granted. Until then the hold stands, so f can still write under it: with
// sh.Context(context.WithoutCancel(ctx)), which ends with the hold alone. ForceAfter bounds that
// time: it ends the hold, and not the call. A call that does not return then can still run when this
// member owns the shard again, and Run calls f for it once more.
//
// If f returns nil earlier, the work on the shard is done as far as this process is concerned: Run
// keeps the shard without a further call. If f returns an error, or panics, Run logs that and calls
// it again after a pause, of which ShardsOptions.Restart decides; without that it grows to one
// second. (An error does not end Run by itself: the shard would move to the next member, and end
// that too.) The value of a panic is not logged, but its type and the stack.
//
// When ctx ends, the result is nil. Otherwise it is an error of All; ErrInvalid also if f is nil; or
// the error of f with which Restart ends Run. A call that does not return keeps Run from returning.
func (s *Shards) Run(ctx context.Context, f func(ctx context.Context, sh *Shard) error) error {
	const op = "run"
	if err := s.path.check(op); err != nil {
		return err
	}
	if f == nil {
		return opError(op, s.path.full, fmt.Errorf("%w: no function", ErrInvalid))
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	var end sync.Once
	var failure error // with which Restart ends Run
	fail := func(sh *Shard, err error) {
		end.Do(func() {
			failure = opError(op, s.path.full, fmt.Errorf("shard %d: %w", sh.Index, err))
			leave()
		})
	}
	var running sync.WaitGroup
	defer running.Wait()
	for sh, err := range s.each(ctx, op) {
		if err != nil {
			return err
		}
		running.Go(func() { sh.run(ctx, f, s.o.Restart, fail) })
	}
	running.Wait()
	return failure
}

// run calls f until the shard is to move, and releases it.
func (sh *Shard) run(ctx context.Context, f func(context.Context, *Shard) error, restart func(int, error) time.Duration, fail func(*Shard, error)) {
	// Deferred, for f can end the goroutine.
	defer sh.Release()
	ctx, stop := context.WithCancel(sh.Context(ctx))
	defer stop()
	var stopping sync.WaitGroup
	defer stopping.Wait()
	defer stop()
	stopping.Go(func() {
		select {
		case <-sh.Revoked():
			stop()
		case <-ctx.Done():
		}
	})
	pause, failures := pauses{c: sh.s.c}, 0
	for ctx.Err() == nil {
		began := time.Now()
		err := sh.call(ctx, f)
		if err == nil {
			<-ctx.Done()
		}
		if ctx.Err() != nil {
			return
		}
		sh.s.c.log.Error("coord: the function of a shard failed", "path", sh.Path(), "shard", sh.Index, "error", err)
		if time.Since(began) > mostPause {
			failures = 0
			pause.reset()
		}
		failures++
		if restart == nil {
			pause.wait(ctx.Done(), nil)
			continue
		}
		after := restart(failures, err)
		if after < 0 {
			fail(sh, err) // before the Release, so that the member does not ask for the shard again
			return
		}
		sleep(ctx, after)
	}
}

// call calls f once.
func (sh *Shard) call(ctx context.Context, f func(context.Context, *Shard) error) (err error) {
	err = errUnfinished
	defer func() {
		if v := recover(); v != nil {
			sh.s.c.log.Error("coord: the function of a shard panicked", "path", sh.Path(), "shard", sh.Index, "type", fmt.Sprintf("%T", v), "stack", stack())
		}
	}()
	return f(ctx, sh)
}
