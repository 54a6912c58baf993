package coord

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-coord/coord/internal/usercode"
	"github.com/go-coord/coord/trace"
)

// tracedEvent is an event to be delivered, and the context of the call to which it belongs.
type tracedEvent struct {
	ctx context.Context
	e   trace.Event
}

// newTrace returns the queue of the client's events. A goroutine of the queue delivers
// them to Trace, and only Close waits for it.
func newTrace(told func(context.Context, trace.Event), log *outbox.Logger) *outbox.Box[tracedEvent] {
	return outbox.New(
		func(x tracedEvent) { told(x.ctx, x.e) },
		func(n int) { told(context.Background(), trace.EventsDropped{Events: n}) },
		func(f *usercode.Failure, n int) {
			log.Error("coord: Trace panicked or ended its goroutine, events are lost", "events", n, "type", f.Type, "stack", f.Stack)
		})
}

// emit queues an event for the client's Trace. It never blocks, and may be called
// anywhere. It is generic in the type of the event so that the conversion to an
// interface value, which allocates, happens after the check.
func emit[E trace.Event](ctx context.Context, c *Client, e E) {
	if c.trace != nil {
		c.trace.Put(tracedEvent{ctx, e})
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
	case errors.Is(err, ErrClaimTimeout):
		return trace.ReasonTimeout
	case errors.Is(err, ErrSessionLost):
		return trace.ReasonSessionLost
	case errors.Is(err, ErrClosed):
		return trace.ReasonClosed
	}
	return trace.ReasonOther
}

// span reports the events of one acquisition, from the call to the end of the hold. It
// is nil without Trace, and its methods do nothing then.
//
// The events of a hold come from many goroutines: of its Release, of the watch on its
// node, of the session. No event of a hold is reported before its grant. A hold can be
// lost before the caller reports the grant; such events wait here until then.
type span struct {
	c     *Client
	where trace.Subject
	began time.Time

	// Used only by the goroutine that acquires.
	waited bool   // WaitBegan was reported
	stands bool   // and for this place:
	place  string // the node
	ahead  int

	item spanSubject // the subject of the span, if it has events of its own

	mu      sync.Mutex
	granted bool
	ended   bool          // the end was reported, or is in early
	early   []tracedEvent // events before the grant
	since   time.Time     // of the grant
}

// spanSubject is a subject that has events of its own in place of HoldGranted, HoldLost and
// HoldReleased: an item of a queue.
type spanSubject interface {
	granted(token int64, waited time.Duration) trace.Event
	settled(lost bool, held time.Duration, err error) trace.Event
}

// newSpan begins the span of an acquisition.
func (c *Client) newSpan(recipe, path, op string) *span {
	if c.trace == nil {
		return nil
	}
	return &span{
		c:     c,
		where: trace.Subject{Recipe: recipe, Path: path, Op: op, ID: c.traced.Add(1)},
		began: time.Now(),
	}
}

// next returns the span of another call on the subject of t.
func (t *span) next(op string) *span {
	if t == nil {
		return nil
	}
	n := &span{c: t.c, where: t.where, began: time.Now()}
	n.where.Op = op
	return n
}

// id returns the ID of the events of t.
func (t *span) id() uint64 {
	if t == nil {
		return 0
	}
	return t.where.ID
}

func (t *span) at(node string) trace.Subject {
	w := t.where
	w.Node = node
	return w
}

// waiting reports, unless it was reported before, that the call waits at node, with
// ahead contenders before it, or -1.
func (t *span) waiting(ctx context.Context, node string, ahead int) {
	switch {
	case t == nil:
	case !t.stands || node != t.place:
		t.waited, t.stands, t.place, t.ahead = true, true, node, ahead
		emit(ctx, t.c, trace.WaitBegan{Subject: t.at(node), Ahead: ahead})
	case ahead != t.ahead:
		t.ahead = ahead
		emit(ctx, t.c, trace.PositionChanged{Subject: t.at(node), Ahead: ahead})
	}
}

// requeued reports that the call takes another place.
func (t *span) requeued(ctx context.Context, err error) {
	if t == nil {
		return
	}
	emit(ctx, t.c, trace.WaiterRequeued{Subject: t.at(t.place), Reason: reasonOf(err), Err: err})
	t.stands, t.place = false, ""
}

// over reports that the wait, if there was one, has ended without a hold.
func (t *span) over(ctx context.Context, err error) {
	if t == nil || !t.waited {
		return
	}
	t.waited = false
	emit(ctx, t.c, trace.WaitEnded{Subject: t.at(t.place), Waited: time.Since(t.began), Err: err})
}

// grant reports the grant, and then the events of the hold that came before.
func (t *span) grant(ctx context.Context, h *Hold, weight int) {
	if t == nil {
		return
	}
	now := time.Now()
	waited := now.Sub(t.began)
	var e trace.Event
	if t.item != nil {
		e = t.item.granted(h.token, waited)
	} else {
		e = trace.HoldGranted{Subject: t.at(h.Path()), Token: h.token, Weight: weight, Waited: waited}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.granted = true
	if t.since.IsZero() {
		t.since = now
	}
	t.c.trace.Put(tracedEvent{ctx, e})
	for _, x := range t.early {
		t.c.trace.Put(x)
	}
	t.early = nil
}

// put reports x, or keeps it until the grant is reported. The caller holds mu.
func (t *span) put(x tracedEvent) {
	if t.granted {
		t.c.trace.Put(x)
	} else {
		t.early = append(t.early, x)
	}
}

// emit reports an event of the hold while it stands. It ignores events after the end
// was reported.
func (t *span) emit(ctx context.Context, e trace.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.put(tracedEvent{ctx, e})
	}
}

// end reports the end of the hold.
func (t *span) end(e trace.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.put(tracedEvent{context.Background(), e})
}

// held returns the time since the grant.
func (t *span) held() time.Duration {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		return 0 // lost before the grant was reported
	}
	return time.Since(t.since)
}

// lost reports that the hold has ended early.
func (t *span) lost(node string, token int64, err error) {
	switch {
	case t == nil:
	case t.item != nil:
		t.end(t.item.settled(true, t.held(), err))
	default:
		t.end(trace.HoldLost{Subject: t.at(node), Token: token, Held: t.held(), Reason: reasonOf(err), Err: err})
	}
}

// released reports that the hold was released, or the item settled, after it was held
// for the given time.
func (t *span) released(node string, token int64, held time.Duration, err error) {
	switch {
	case t == nil:
	case t.item != nil:
		t.end(t.item.settled(false, held, err))
	default:
		t.end(trace.HoldReleased{Subject: t.at(node), Token: token, Held: held, Err: err})
	}
}
