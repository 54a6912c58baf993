package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	var running hands
	busy := make(chan struct{}, n) // an element for each handler that has a place, and one for the item that is awaited
	x := &crew{
		ctx: ctx, q: q, in: &intake{q: q, done: ctx.Done(), over: make(chan struct{}), came: make(chan struct{}, 1)}, places: busy,
		late: make(chan struct{}, q.prefetch-1), busy: make(map[*Claim]bool), hung: make(map[*Claim]bool),
	}
	defer x.disbandLater(x.in.done, x.in.over, q.drainTimeout)()
	defer q.awaitGivenBack() // what Acks have claimed, or have tried to
	defer running.wait()
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
		running.do(func(w *hand) {
			defer x.limit(it.Claim)()
			x.process(handlers, w, it.Claim, func(ctx context.Context) error { return handle(ctx, it.item) })
		})
		select {
		case busy <- struct{}{}:
		case <-x.in.done:
			return nil
		}
	}
	return nil
}

// crew is the running handlers of one Work(n). Each has one of n places, except up to n that hang: they
// exceed ClaimTimeout, so their items are back in the queue. So at most 2n handlers run, and at most n of them
// do not hang. The bound is for items at which every handler hangs: each delivery leaves a goroutine behind.
type crew struct {
	ctx    context.Context // of Work
	q      *Queue
	in     *intake
	places chan struct{} // a handler with a place has an element in it
	late   chan struct{} // an element for each Ack under way whose handler has left its place (T14)

	mu   sync.Mutex
	busy map[*Claim]bool // the items that handlers have; whether disband has ended the claim
	hung map[*Claim]bool // the items whose handlers hang; n of them have no place
	over bool            // disband was called: no handler begins
}

// limit calls hang after ClaimTimeout. The returned function ends that. The time begins after that of the hold,
// so hang finds the hold ended.
func (x *crew) limit(cl *Claim) (over func()) {
	d := x.q.claimTimeout
	if d == 0 {
		return func() {}
	}
	timer := time.AfterFunc(d, func() { x.q.c.GoWork(func() { x.hang(cl) }) })
	return func() { timer.Stop() }
}

// hang takes the place of a handler that has not returned within ClaimTimeout and has lost its claim, unless n
// handlers hang without a place. A handler that has ended its claim itself keeps its place: it is slow, but no
// other handler gets its item.
func (x *crew) hang(cl *Claim) {
	if !errors.Is(cl.hold.Err(), errs.ErrLost) {
		return
	}
	x.mu.Lock()
	_, runs := x.busy[cl]
	keeps := len(x.hung) >= cap(x.places)
	if runs {
		x.hung[cl] = true
		if !keeps {
			<-x.places
		}
	}
	x.mu.Unlock()
	if !runs {
		return
	}
	msg := "coord: a handler still runs after ClaimTimeout, another handler can begin in its place"
	switch {
	case x.in.isOver():
		msg = "coord: a handler still runs after ClaimTimeout, Work waits for it before it returns"
	case keeps:
		msg = "coord: a handler still runs after ClaimTimeout and keeps its place, since too many handlers hang; Work stops taking items when no place is left"
	}
	x.q.c.Log().Warn(msg, "path", cl.e.Path(), "attempt", cl.attempt, "after", x.q.claimTimeout)
}

// vacate is called when the handler of an item has returned, and Work has ended its claim or is about to (T14). If the
// handler has hung, it has no place to leave; but if more than n hung, another one leaves its place now.
func (x *crew) vacate(cl *Claim) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.hung[cl] {
		delete(x.hung, cl)
		if len(x.hung) < cap(x.places) {
			return
		}
	}
	<-x.places
}

// vacateEarly vacates the place of a handler before its Ack, unless as many Acks are under way as Prefetch allows, or the
// item has no attempt left (T14). It reports whether it did; then the caller takes an element out of late after the Ack.
func (x *crew) vacateEarly(cl *Claim) bool {
	if cl.failure() == verbBury {
		return false
	}
	select {
	case x.late <- struct{}{}:
		x.vacate(cl)
		return true
	default: // always, without Prefetch
		return false
	}
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

// disband ends the claims that the running handlers still have, by end, and returns their number.
func (x *crew) disband(end func(*Claim)) (n int) {
	x.mu.Lock()
	x.over = true
	claims := slices.Collect(maps.Keys(x.busy))
	x.mu.Unlock()
	for _, cl := range claims {
		if cl.hold.Err() == nil && x.takeOver(cl) {
			end(cl)
			n++
		}
	}
	return n
}

// takeOver makes disband end a claim, unless its handler has returned.
func (x *crew) takeOver(cl *Claim) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, runs := x.busy[cl]
	if runs {
		x.busy[cl] = true
	}
	return runs
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
				if n := x.disband(func(cl *Claim) { cl.giveBackFor("DrainTimeout of Work has passed") }); n > 0 {
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
// handler, or RetryDelay, can end its goroutine. The hand w, which runs it, is idle before the loop of Work
// continues, so the loop uses it again.
func (x *crew) process(ctx context.Context, w *hand, cl *Claim, handle func(context.Context) error) {
	var err error
	var out outcome
	defer func() {
		// Close waits for the commit: after leave, disband does not give the item back, and if the session
		// ended first, the attempt would count.
		u := cl.q.c.BeginCleanUp()
		defer u.End()
		disbanded := x.leave(cl)
		if out.verb == verbAck && x.vacateEarly(cl) {
			defer func() { <-x.late }()
		} else {
			defer x.vacate(cl)
			defer w.rest()
		}
		x.settle(cl, err, out, disbanded)
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
