package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/internal/usercode"
)

// Work is Consumer.Work of package coord.
func (t *Taker[I]) Work(ctx context.Context, n int, handle func(ctx context.Context, item I) error) error {
	core.NeedContext(ctx)
	const op = "work"
	q := t.q
	if err := q.path.Check(op); err != nil {
		return err
	}
	switch {
	case n < 1:
		return errs.Op(op, q.path.Full(), fmt.Errorf("%w: %d handlers, want at least 1", backend.ErrInvalid, n))
	case handle == nil:
		return errs.Op(op, q.path.Full(), fmt.Errorf("%w: the handler is nil", backend.ErrInvalid))
	}
	var running sync.WaitGroup
	x := &crew{ctx: ctx, q: q, in: &intake{q: q, done: ctx.Done(), over: make(chan struct{})}, busy: make(map[*Claim]bool)}
	defer x.disbandLater(x.in.done, x.in.over, q.drainTimeout)()
	defer q.awaitGivenBack() // what Acks have claimed, or have tried to
	defer running.Wait()
	busy := make(chan struct{}, n) // an element for each running handler, and one for the item that is awaited
	busy <- struct{}{}
	want := func() int { return max(q.prefetch, min(1+n-len(busy), maxBatch)) }
	handlers := context.WithoutCancel(ctx)
	for it, err := range t.each(ctx, op, want, x.in) {
		if err != nil {
			return err
		}
		if !it.receive() || !x.enter(it.Claim) {
			continue
		}
		running.Go(func() {
			defer func() { <-busy }()
			x.process(handlers, it.Claim, func(ctx context.Context) error { return handle(ctx, it.item) })
		})
		select {
		case busy <- struct{}{}:
		case <-x.in.done:
			return nil
		}
	}
	return nil
}

// crew is the running handlers of one Work.
type crew struct {
	ctx context.Context // of Work
	q   *Queue
	in  *intake

	mu   sync.Mutex
	busy map[*Claim]bool // the items that handlers have; whether disband has ended the claim
	over bool            // disband was called: no handler begins
}

// enter adds the handler of an item. After disband it gives the item back instead, and reports false.
func (x *crew) enter(cl *Claim) bool {
	x.mu.Lock()
	over := x.over
	if !over {
		x.busy[cl] = false
	}
	x.mu.Unlock()
	if over {
		cl.later(verbGiveBack)
	}
	return !over
}

// leave removes the handler of an item, and reports whether disband has ended its claim.
func (x *crew) leave(cl *Claim) (disbanded bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	disbanded = x.busy[cl]
	delete(x.busy, cl)
	return disbanded
}

// disband ends the claims of all handlers that run, by end, and returns their number.
func (x *crew) disband(end func(*Claim)) int {
	x.mu.Lock()
	x.over = true
	var claims []*Claim
	for cl := range x.busy {
		x.busy[cl] = true
		claims = append(claims, cl)
	}
	x.mu.Unlock()
	for _, cl := range claims {
		end(cl)
	}
	return len(claims)
}

// disbandLater gives back the items of the running handlers when the client closes, and when drain has
// passed since done or ending was closed. The returned function ends that.
func (x *crew) disbandLater(done, ending <-chan struct{}, drain time.Duration) (over func()) {
	c := x.q.c
	return c.Beside(func(over <-chan struct{}) {
		var late <-chan time.Time
		for {
			select {
			case <-c.Closing():
				x.disband(func(cl *Claim) { cl.hold.Lose(backend.ErrClosed) }) // see Claim.Leftovers
				return
			case <-over:
				return
			case <-done:
			case <-ending:
			case <-late:
				if n := x.disband(func(cl *Claim) { cl.later(verbGiveBack) }); n > 0 {
					c.Log().Warn("coord: handlers have not returned within DrainTimeout, returning their items to the queue", "path", x.q.path.Full(), "items", n)
				}
				late = nil
			}
			if done, ending = nil, nil; drain > 0 {
				late, drain = time.After(drain), 0
			}
		}
	})
}

// process calls handle with the item, and ends the claim by the result. The end is deferred, since the
// handler, or RetryDelay, can end its goroutine.
func (x *crew) process(ctx context.Context, cl *Claim, handle func(context.Context) error) {
	var err error
	var out outcome
	defer func() {
		// Close waits for the commit: after leave, disband does not give the item back, and if the session
		// ended first, the attempt would count.
		u := cl.q.c.BeginCleanUp()
		defer u.End()
		x.settle(cl, err, out, x.leave(cl))
	}()
	defer func() {
		cl.q.c.LogFailure("the handler of Work", []any{"path", cl.e.Path(), "attempt", cl.attempt}, err)
		if out.verb == 0 {
			out.verb = verbNack
			cl.retryIn(&out.delay, err)
		}
	}()
	usercode.Guard(&err, func() error {
		err := handle(cl.hold.Context(ctx))
		out = x.outcomeOf(err)
		return err
	})
}

// endsWith reports whether Work is ending, and err is that of a handler that has given up for
// this reason.
func (x *crew) endsWith(err error) bool {
	ended, closing := x.ctx.Err(), x.q.c.IsClosing()
	switch {
	case err == nil, ended == nil && !closing:
		return false
	case errors.Is(err, context.Canceled), closing && errors.Is(err, backend.ErrClosed):
		return true
	}
	return ended != nil && (errors.Is(err, ended) || errors.Is(err, context.Cause(x.ctx)))
}

// settle ends the claim of an item whose handler has returned err, unless it has ended. disbanded: Work has ended
// the claim.
func (x *crew) settle(cl *Claim, err error, out outcome, disbanded bool) {
	if ended := cl.hold.Err(); ended != nil {
		if err == nil && !cl.ackedInTxn() && (disbanded || errors.Is(ended, errs.ErrLost)) {
			cl.q.c.Log().Warn("coord: a handler succeeded after its claim had ended, its item is not acknowledged and can be delivered again",
				"path", cl.e.Path(), "attempt", cl.attempt, "error", ended)
		}
		return
	}
	op := "nack"
	switch out.verb {
	case verbAck:
		op, err = "ack", x.ack(cl)
	case verbGiveBack:
		op, err = "release", cl.hold.Release()
	case verbBury:
		op, err = "bury", cl.bury(err)
	default:
		err = cl.Nack(out.delay, err)
	}
	if err != nil && !errs.IsClosed(err) && !errors.Is(err, errs.ErrReleased) {
		cl.q.c.Log().Warn("coord: cannot end the claim of an item after its handler, retrying unless the claim is lost", "operation", op, "path", cl.e.Path(), "error", err)
	}
}

// ack acknowledges the item of a handler that has succeeded. If the commit has claimed the next item, the loop
// of Work gets that item before this handler is counted as free.
func (x *crew) ack(cl *Claim) error {
	next, err := cl.ackFor(x.in)
	if next != nil {
		x.in.hand(next)
	}
	return err
}
