package coord

import (
	"context"
	"errors"

	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-coord/coord/trace"
)

// tale is an event to be delivered, and the context of the call to which it belongs.
type tale struct {
	ctx context.Context
	e   trace.Event
}

// newTrace returns the queue of the client's events. A goroutine of the queue delivers
// them to Trace, and only Close waits for it.
func newTrace(told func(context.Context, trace.Event)) *outbox.Box[tale] {
	return outbox.New(
		func(x tale) { told(x.ctx, x.e) },
		func(n int) { told(context.Background(), trace.EventsDropped{Events: n}) })
}

// tell queues an event for the client's Trace. It never blocks, and may be called
// anywhere. It is generic in the type of the event so that the conversion to an
// interface value, which allocates, happens after the check.
func tell[E trace.Event](ctx context.Context, c *Client, e E) {
	if c.trace != nil {
		c.trace.Put(tale{ctx, e})
	}
}

// reasonOf returns the reason of a loss.
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
