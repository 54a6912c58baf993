package coord

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/queue"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/internal/usercode"
)

// The delays after which an item can be taken again whose handler has failed.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
)

// Work calls handle with one item after the other, each in a goroutine of its own, at most n at
// a time. It returns nil when ctx has ended and all handlers have returned. With n = 1 the
// handlers run in the order of the items.
//
// If handle returns nil, Work acknowledges the item. If handle fails, panics or ends its
// goroutine, Work gives the item back by Nack: for 100 ms, then twice as long with each attempt,
// up to a minute. If handle has ended the claim itself, Work does nothing more with the item.
// The context of a handler is that of Item.Context: it ends with the claim, and not with ctx.
//
// After ctx has ended, Work waits for the handlers; DrainTimeout limits how long they keep their
// items. A handler's error that matches context.Canceled, or the error or cause of ctx, counts
// no attempt then. Work continues after a lost session. Details: the guide queues.md.
//
// On ErrClosed, ErrDecode, ErrDenied and ErrBadPath, Work waits for the handlers and returns the
// error. ErrInvalid: n is less than 1, or handle is nil.
func (q *Consumer[T]) Work(ctx context.Context, n int, handle func(ctx context.Context, it *Item[T]) error) error {
	core.NeedContext(ctx)
	const op = "work"
	if err := q.q.CheckPath(op); err != nil {
		return err
	}
	switch {
	case n < 1:
		return errs.Op(op, q.q.FullPath(), fmt.Errorf("%w: %d handlers, want at least 1", ErrInvalid, n))
	case handle == nil:
		return errs.Op(op, q.q.FullPath(), fmt.Errorf("%w: the handler is nil", ErrInvalid))
	}
	var running sync.WaitGroup
	x := &crew[T]{ctx: ctx, q: q.q, busy: make(map[*Item[T]]bool)}
	ending := make(chan struct{})
	defer x.disbandLater(ctx.Done(), ending, q.drain)()
	defer running.Wait()
	defer close(ending)
	busy := make(chan struct{}, n) // an element for each running handler, and one for the item that is awaited
	busy <- struct{}{}
	want := func() int { return max(q.prefetch, min(1+n-len(busy), queue.MostPrefetched)) }
	handlers := context.WithoutCancel(ctx)
	for it, err := range q.each(ctx, op, want) {
		if err != nil {
			return err
		}
		if !it.claim.Receive() || !x.enter(it) {
			continue
		}
		running.Go(func() {
			defer func() { <-busy }()
			x.process(handlers, it, handle)
		})
		select {
		case busy <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// crew is the handlers of one Work that run.
type crew[T any] struct {
	ctx context.Context // of Work
	q   *queue.Queue

	mu   sync.Mutex
	busy map[*Item[T]]bool // the items that handlers have; whether disband has ended the claim
	over bool              // disband was called: no handler begins
}

// enter adds the handler of an item. If none begins any more, it gives the item back and
// reports false.
func (x *crew[T]) enter(it *Item[T]) bool {
	x.mu.Lock()
	over := x.over
	if !over {
		x.busy[it] = false
	}
	x.mu.Unlock()
	if over {
		it.claim.GiveBackLater()
	}
	return !over
}

// leave removes the handler of an item, and reports whether disband has ended its claim.
func (x *crew[T]) leave(it *Item[T]) (disbanded bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	disbanded = x.busy[it]
	delete(x.busy, it)
	return disbanded
}

// disband ends the claims of all handlers that run, by end, and returns their number.
func (x *crew[T]) disband(end func(*queue.Claim)) int {
	x.mu.Lock()
	x.over = true
	var claims []*queue.Claim
	for it := range x.busy {
		x.busy[it] = true
		claims = append(claims, it.claim)
	}
	x.mu.Unlock()
	for _, cl := range claims {
		end(cl)
	}
	return len(claims)
}

// disbandLater gives back what the handlers have when the client closes, and when drain has
// passed since done or ending was closed. The returned function ends that.
func (x *crew[T]) disbandLater(done, ending <-chan struct{}, drain time.Duration) (over func()) {
	c := x.q.Client()
	return c.Beside(func(over <-chan struct{}) {
		var late <-chan time.Time
		for {
			select {
			case <-c.Closing():
				x.disband(func(cl *queue.Claim) { cl.Held().Lose(ErrClosed) }) // see queue.Claim.Leftovers
				return
			case <-over:
				return
			case <-done:
			case <-ending:
			case <-late:
				if n := x.disband(func(cl *queue.Claim) { cl.GiveBackLater() }); n > 0 {
					c.Log().Warn("coord: handlers have not returned within DrainTimeout, returning their items to the queue", "path", x.q.FullPath(), "items", n)
				}
				late = nil
			}
			if done, ending = nil, nil; drain > 0 {
				late, drain = time.After(drain), 0
			}
		}
	})
}

// process calls handle with the item, and ends the claim by the result. All of it is
// deferred, for the handler can end the goroutine.
func (x *crew[T]) process(ctx context.Context, it *Item[T], handle func(context.Context, *Item[T]) error) {
	var err error
	gaveUp := false
	defer func() {
		it.h.On().Client().LogFailure("the handler of Work", []any{"path", it.claim.ItemPath(), "attempt", it.Attempt}, err)
		it.settle(err, gaveUp, x.leave(it))
	}()
	usercode.Guard(&err, func() error {
		err := handle(it.Context(ctx), it)
		gaveUp = x.endsWith(err) // it calls a method of the error, which can panic
		return err
	})
}

// endsWith reports whether Work is ending, and err is that of a handler that has given up for
// this reason.
func (x *crew[T]) endsWith(err error) bool {
	ended, closing := x.ctx.Err(), x.q.Client().IsClosing()
	switch {
	case err == nil, ended == nil && !closing:
		return false
	case errors.Is(err, context.Canceled), closing && errors.Is(err, ErrClosed):
		return true
	}
	return ended != nil && (errors.Is(err, ended) || errors.Is(err, context.Cause(x.ctx)))
}

// settle ends the claim of an item whose handler has returned err, unless it has ended. gaveUp:
// the handler has not failed, but Work ends. disbanded: Work has ended the claim.
func (it *Item[T]) settle(err error, gaveUp, disbanded bool) {
	if ended := it.Err(); ended != nil {
		if err == nil && (disbanded || errors.Is(ended, ErrLost)) {
			it.h.On().Client().Log().Warn("coord: a handler succeeded after its claim had ended, its item is not acknowledged and can be delivered again",
				"path", it.claim.ItemPath(), "attempt", it.Attempt, "error", ended)
		}
		return
	}
	op := "ack"
	switch {
	case err == nil:
		err = it.Ack()
	case gaveUp:
		op, err = "release", it.Release()
	default:
		op, err = "nack", it.NackCause(retryDelay(it.Attempt), err)
	}
	if err != nil && !errs.IsClosed(err) && !errors.Is(err, ErrReleased) {
		it.h.On().Client().Log().Warn("coord: cannot end the claim of an item after its handler", "operation", op, "path", it.claim.ItemPath(), "error", err)
	}
}

// retryDelay returns the delay after a failed attempt, counted from 1.
func retryDelay(attempt int) time.Duration {
	return min(firstRetry<<min(attempt-1, 10), lastRetry)
}
