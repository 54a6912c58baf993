// Package tracing reports the events of a client to its Trace: those of one acquisition by a Span.
package tracing

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-coord/coord/internal/usercode"
	"github.com/go-coord/coord/trace"
)

// tracedEvent is an event to be delivered, and the context of the call to which it belongs.
type tracedEvent struct {
	ctx context.Context
	e   trace.Event
}

// A Tracer is the queue of a client's events. A goroutine of the queue delivers them to Trace. A nil
// Tracer is that of a client without Trace.
type Tracer struct {
	box    *outbox.Box[tracedEvent]
	latest atomic.Uint64 // the latest ID of an acquisition
}

// NewTracer returns a queue that calls deliver for each event. The first acquisition has the ID id+1.
func NewTracer(deliver func(context.Context, trace.Event), log *outbox.Logger, id uint64) *Tracer {
	t := &Tracer{box: outbox.New(
		func(x tracedEvent) { deliver(x.ctx, x.e) },
		func(n int) { deliver(context.Background(), trace.EventsDropped{Events: n}) },
		func(f *usercode.Failure, n int) {
			log.Error("coord: Trace panicked or ended its goroutine, events are lost", "events", n, "type", f.Type, "stack", f.Stack)
		})}
	t.latest.Store(id)
	return t
}

// Drain waits until the pending events are delivered, for d at most.
func (t *Tracer) Drain(d time.Duration) bool { return t.box.Drain(d) }

// Emit queues an event. It never blocks, so it may be called under a lock. It is generic in the type of
// the event so that the conversion to an interface value, which allocates, happens after the check.
func Emit[E trace.Event](ctx context.Context, t *Tracer, e E) {
	if t != nil {
		t.box.Put(tracedEvent{ctx, e})
	}
}

// ReasonOf returns the reason of a loss.
func ReasonOf(err error) trace.Reason {
	switch {
	case errors.Is(err, errs.ErrRevoked): // matches ErrDeleted too
		return trace.ReasonRevoked
	case errors.Is(err, errs.ErrDeleted):
		return trace.ReasonDeleted
	case errors.Is(err, errs.ErrSuspended):
		return trace.ReasonSuspended
	case errors.Is(err, errs.ErrClaimTimeout):
		return trace.ReasonTimeout
	case errors.Is(err, backend.ErrSessionLost):
		return trace.ReasonSessionLost
	case errors.Is(err, backend.ErrClosed):
		return trace.ReasonClosed
	}
	return trace.ReasonOther
}

// Span reports the events of one acquisition, from the call to the end of the hold. It
// is nil without Trace, and its methods do nothing then.
//
// The events of a hold come from many goroutines: of its Release, of the watch on its
// node, of the session. No event of a hold is reported before its grant. A hold can be
// lost before the caller reports the grant; such events wait here until then.
type Span struct {
	t     *Tracer
	where trace.Subject
	began time.Time

	// Used only by the goroutine that acquires.
	waited bool   // WaitBegan was reported
	stands bool   // it was reported for this place:
	place  string // the node
	ahead  int    // the contenders before it

	item Item // the subject of the span, if it has events of its own

	mu      sync.Mutex
	granted bool
	ended   bool          // the end was reported, or is in early
	early   []tracedEvent // events before the grant
	since   time.Time     // of the grant
}

// Item is the owner of a hold that has events of its own in place of HoldGranted, HoldLost and
// HoldReleased: the claim on an item of a queue. at is the subject without a node.
type Item interface {
	Granted(at trace.Subject, token int64, waited time.Duration) trace.Event
	Settled(at trace.Subject, lost bool, held time.Duration, err error) trace.Event
}

// Begin begins the span of an acquisition.
func (t *Tracer) Begin(recipe, path, op string) *Span {
	if t == nil {
		return nil
	}
	return &Span{
		t:     t,
		where: trace.Subject{Recipe: recipe, Path: path, Op: op, ID: t.latest.Add(1)},
		began: time.Now(),
	}
}

// SetItem makes the events of the hold those of item: Granted and Settled. The hold counts as granted
// since the beginning of the span.
func (t *Span) SetItem(item Item) {
	if t != nil {
		t.item, t.since = item, t.began
	}
}

// BeginWith gives the span the beginning of the span of call, the call that receives the hold.
func (t *Span) BeginWith(call *Span) {
	if t != nil && call != nil {
		t.began = call.began
	}
}

// Next returns the span of another call on the subject of t.
func (t *Span) Next(op string) *Span {
	if t == nil {
		return nil
	}
	n := &Span{t: t.t, where: t.where, began: time.Now()}
	n.where.Op = op
	return n
}

// ID returns the ID of the events of t.
func (t *Span) ID() uint64 {
	if t == nil {
		return 0
	}
	return t.where.ID
}

// At returns the subject of the events of t at a node.
func (t *Span) At(node string) trace.Subject {
	w := t.where
	w.Node = node
	return w
}

// Waiting reports, unless it was reported before, that the call waits at node, with
// ahead contenders before it, or -1.
func (t *Span) Waiting(ctx context.Context, node string, ahead int) {
	switch {
	case t == nil:
	case !t.stands || node != t.place:
		t.waited, t.stands, t.place, t.ahead = true, true, node, ahead
		Emit(ctx, t.t, trace.WaitBegan{Subject: t.At(node), Ahead: ahead})
	case ahead != t.ahead:
		t.ahead = ahead
		Emit(ctx, t.t, trace.PositionChanged{Subject: t.At(node), Ahead: ahead})
	}
}

// Requeued reports that the call takes another place.
func (t *Span) Requeued(ctx context.Context, err error) {
	if t == nil {
		return
	}
	Emit(ctx, t.t, trace.WaiterRequeued{Subject: t.At(t.place), Reason: ReasonOf(err), Err: err})
	t.stands, t.place = false, ""
}

// Over reports that the wait, if there was one, has ended without a hold.
func (t *Span) Over(ctx context.Context, err error) {
	if t == nil || !t.waited {
		return
	}
	t.waited = false
	Emit(ctx, t.t, trace.WaitEnded{Subject: t.At(t.place), Waited: time.Since(t.began), Err: err})
}

// Grant reports the grant of a hold on node, and then the events of the hold that came before.
func (t *Span) Grant(ctx context.Context, node string, token int64, weight int) {
	if t == nil {
		return
	}
	now := time.Now()
	waited := now.Sub(t.began)
	var e trace.Event
	if t.item != nil {
		e = t.item.Granted(t.where, token, waited)
	} else {
		e = trace.HoldGranted{Subject: t.At(node), Token: token, Weight: weight, Waited: waited}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.granted = true
	if t.since.IsZero() {
		t.since = now
	}
	t.t.box.Put(tracedEvent{ctx, e})
	for _, x := range t.early {
		t.t.box.Put(x)
	}
	t.early = nil
}

// put reports x, or keeps it until the grant is reported. The caller holds mu.
func (t *Span) put(x tracedEvent) {
	if t.granted {
		t.t.box.Put(x)
	} else {
		t.early = append(t.early, x)
	}
}

// Emit reports an event of the hold while it stands. It ignores events after the end
// was reported.
func (t *Span) Emit(ctx context.Context, e trace.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.put(tracedEvent{ctx, e})
	}
}

// end reports the end of the hold.
func (t *Span) end(e trace.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	t.put(tracedEvent{context.Background(), e})
}

// Held returns the time since the grant.
func (t *Span) Held() time.Duration {
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

// Lost reports that the hold has ended early.
func (t *Span) Lost(node string, token int64, err error) {
	switch {
	case t == nil:
	case t.item != nil:
		t.end(t.item.Settled(t.where, true, t.Held(), err))
	default:
		t.end(trace.HoldLost{Subject: t.At(node), Token: token, Held: t.Held(), Reason: ReasonOf(err), Err: err})
	}
}

// Released reports that the hold was released, or the item settled, after it was held
// for the given time.
func (t *Span) Released(node string, token int64, held time.Duration, err error) {
	switch {
	case t == nil:
	case t.item != nil:
		t.end(t.item.Settled(t.where, false, held, err))
	default:
		t.end(trace.HoldReleased{Subject: t.At(node), Token: token, Held: held, Err: err})
	}
}
