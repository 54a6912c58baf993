package coord

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The delays after which an item can be taken again whose handler has failed.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
)

// Work takes items and calls handle with each of them, in a goroutine of its own, at
// most n at a time. It returns when ctx ends, or on a failure, after all handlers have
// returned. With n = 1, the handlers run in the order in which the items are taken.
//
// If handle returns nil, Work acknowledges the item. If it returns an error, Work gives
// the item back as a failed attempt (Nack): it can be taken again after 100 ms, and
// after twice as long with each further attempt, at most a minute, until MaxAttempts is
// reached. The error itself is not logged, since it can contain data of the item; its text
// is stored with the item if that becomes a dead letter, see NackCause and Dead. If
// handle has ended the claim itself, with Ack, Nack or Release, Work leaves it at that,
// whatever handle returns.
//
// A handler that panics, or that ends its goroutine, has failed as one that returns an
// error. The type of the panic's value and the stack are logged, but not the value. The
// panic ends neither Work nor the program, as in net/http: the item is delivered again
// whatever happens, and would end one consumer after the other, each with all its other
// handlers. (A panic of the Codec is one of Work.)
//
// The context of a handler is that of Item.Context: it ends when the claim is lost, and
// has the values of ctx. It does not end with ctx, nor with a hold from which ctx
// derives.
//
// When ctx ends, Work takes nothing more, gives back what no handler has received, as
// All does, and waits for the handlers. It returns nil when they have returned. To bound
// that wait, let the handlers obey a second context that ends later, or close the
// client, which ends the claims and so the contexts of all handlers. A handler that does
// not return keeps Work from returning.
//
// On a failure for which All would end (ErrClosed, ErrDecode, ErrDenied, ErrBadPath), Work waits
// for the handlers in the same way and returns the error. ErrInvalid: n is less than 1,
// or handle is nil.
//
// Work claims an item only if a handler is free for it, except the items that Prefetch
// claims in advance. If several handlers are free, it claims items for all of them in one
// commit.
//
// If the session is lost while a handler runs, or before its item is acknowledged, the
// item goes to another consumer, and Work continues with the next session. If the
// service refuses the Ack or the Nack, the item stays claimed, and the client retries in
// the background, see Item.Ack; the handler is free for another item. Both are logged,
// and Trace reports the end of each claim (trace.ItemSettled).
func (q *Consumer[T]) Work(ctx context.Context, n int, handle func(ctx context.Context, it *Item[T]) error) error {
	const op = "work"
	if err := q.q.path.check(op); err != nil {
		return err
	}
	switch {
	case n < 1:
		return opError(op, q.q.path.full, fmt.Errorf("%w: %d handlers", ErrInvalid, n))
	case handle == nil:
		return opError(op, q.q.path.full, fmt.Errorf("%w: no handler", ErrInvalid))
	}
	var running sync.WaitGroup
	defer running.Wait()
	busy := make(chan struct{}, n) // an element for each running handler, and one for the item that is awaited
	busy <- struct{}{}
	want := func() int { return max(q.prefetch, min(1+n-len(busy), maxBatch)) }
	handlers := context.WithoutCancel(ctx)
	for it, err := range q.each(ctx, op, want) {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			it.claim.later(verbGiveBack)
			break
		}
		if !it.claim.receive() {
			continue
		}
		running.Go(func() {
			defer func() { <-busy }()
			it.process(handlers, handle)
		})
		select {
		case busy <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// process calls handle with the item, and ends the claim by the result. All of it is
// deferred, for the handler can end the goroutine.
func (it *Item[T]) process(ctx context.Context, handle func(context.Context, *Item[T]) error) {
	err := errUnfinished
	defer func() {
		if v := recover(); v != nil {
			it.s.c.log.Error("coord: a handler panicked, its item counts as a failed attempt",
				"path", it.claim.e.Path(), "attempt", it.Attempt, "type", fmt.Sprintf("%T", v), "stack", stack())
		}
		it.settle(err)
	}()
	err = handle(it.Context(ctx), it)
}

// settle ends the claim of an item whose handler has returned err, unless it has ended.
func (it *Item[T]) settle(err error) {
	if it.Err() != nil {
		return
	}
	op := "ack"
	if err == nil {
		err = it.Ack()
	} else {
		op = "nack"
		err = it.NackCause(retryDelay(it.Attempt), err)
	}
	if err != nil && !isClosed(err) && !errors.Is(err, ErrReleased) {
		it.s.c.log.Warn("coord: cannot end the claim of an item", "operation", op, "path", it.claim.e.Path(), "error", err)
	}
}

// retryDelay returns the delay after a failed attempt, counted from 1.
func retryDelay(attempt int) time.Duration {
	return min(firstRetry<<min(attempt-1, 10), lastRetry)
}
