package coord

import (
	"context"
	"errors"

	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-coord/coord/trace"
)

// tale is an event that is about to be told, and the context of the call that it
// is a part of.
type tale struct {
	ctx context.Context
	e   trace.Event
}

// newTrace returns the queue of the client's events. Trace is told of them by a
// goroutine of its own: nothing waits for it.
func newTrace(told func(context.Context, trace.Event)) *outbox.Box[tale] {
	return outbox.New(
		func(x tale) { told(x.ctx, x.e) },
		func(n int) { told(context.Background(), trace.EventsDropped{Events: n}) })
}

// tell has the client's Trace told of an event. It never waits, and may be called
// anywhere. It is a function of the type of the event so that the event becomes an
// interface value, which is allocated, behind the check.
func tell[E trace.Event](ctx context.Context, c *Client, e E) {
	if c.trace != nil {
		c.trace.Put(tale{ctx, e})
	}
}

// reasonOf returns why something was lost.
func reasonOf(err error) trace.Reason {
	switch {
	case errors.Is(err, ErrRevoked): // matches ErrDeleted too
		return trace.ReasonRevoked
	case errors.Is(err, ErrDeleted):
		return trace.ReasonDeleted
	case errors.Is(err, ErrSuspended):
		return trace.ReasonSuspended
	case errors.Is(err, ErrSessionLost):
		return trace.ReasonSessionLost
	case errors.Is(err, ErrClosed):
		return trace.ReasonClosed
	}
	return trace.ReasonOther
}
