package oteltrace

import (
	"context"
	"errors"
	"sync"

	coordtrace "github.com/go-coord/coord/trace"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// openSpans are spans that have not ended, by the ID of the acquisition.
type openSpans struct {
	most int

	mu    sync.Mutex
	spans map[uint64]trace.Span
}

func (o *openSpans) get(id uint64) trace.Span {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spans[id]
}

// take removes the span and returns it, if there is one.
func (o *openSpans) take(id uint64) trace.Span {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.spans[id]
	delete(o.spans, id)
	return s
}

// put keeps a span, if there is room. A caller that checked the room earlier may be one too
// many; then its span ends at once.
func (o *openSpans) put(id uint64, s trace.Span) {
	o.mu.Lock()
	full := len(o.spans) >= o.most
	if !full {
		o.spans[id] = s
	}
	o.mu.Unlock()
	if full {
		s.End()
	}
}

func (o *openSpans) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.spans) >= o.most
}

// begin begins a span, if it is recorded.
func (a *adapter) begin(ctx context.Context, in *openSpans, name string, at coordtrace.Subject, more ...attribute.KeyValue) {
	if in.full() {
		return
	}
	attrs := append([]attribute.KeyValue{
		keyRecipe.String(at.Recipe), keyPath.String(at.Path), keyOp.String(at.Op),
	}, more...)
	if at.Node != "" {
		attrs = append(attrs, keyNode.String(at.Node))
	}
	_, s := a.tracer.Start(ctx, name, trace.WithAttributes(attrs...))
	if s.IsRecording() {
		in.put(at.ID, s)
	}
}

// note adds an event to an open span.
func (o *openSpans) note(at coordtrace.Subject, name string, attrs ...attribute.KeyValue) {
	if s := o.get(at.ID); s != nil {
		if at.Node != "" {
			attrs = append(attrs, keyNode.String(at.Node))
		}
		s.AddEvent(name, trace.WithAttributes(attrs...))
	}
}

// end ends a span that may be open. It records err, as the span's status if bad says that it
// is an error.
func (o *openSpans) end(at coordtrace.Subject, err error, bad bool, attrs ...attribute.KeyValue) {
	s := o.take(at.ID)
	if s == nil {
		return
	}
	s.SetAttributes(attrs...)
	if err != nil {
		s.RecordError(err)
		if bad {
			s.SetStatus(codes.Error, err.Error())
		}
	}
	s.End()
}

// endAll ends every open span: the event that would end one may be missing.
func (o *openSpans) endAll() {
	o.mu.Lock()
	spans := o.spans
	o.spans = make(map[uint64]trace.Span)
	o.mu.Unlock()
	for _, s := range spans {
		s.SetAttributes(keyOutcome.String("unknown"))
		s.End()
	}
}

// span records an event in spans.
func (a *adapter) span(ctx context.Context, e coordtrace.Event) {
	switch e := e.(type) {
	case coordtrace.WaitBegan:
		if a.waits.get(e.ID) == nil {
			a.begin(ctx, &a.waits, "coord.wait", e.Subject, keyAhead.Int(e.Ahead))
		} else {
			a.waits.note(e.Subject, "waits", keyAhead.Int(e.Ahead))
		}
	case coordtrace.PositionChanged:
		a.waits.note(e.Subject, "position changed", keyAhead.Int(e.Ahead))
	case coordtrace.WaiterRequeued:
		a.waits.note(e.Subject, "requeued", keyReason.String(string(e.Reason)))
	case coordtrace.WaitEnded:
		a.waits.end(e.Subject, e.Err, !canceled(e.Err), keyOutcome.String(ended(e.Err)))
	case coordtrace.HoldGranted:
		a.waits.end(e.Subject, nil, false, keyOutcome.String("granted"))
		a.begin(ctx, &a.holds, "coord.hold", e.Subject, keyToken.Int64(e.Token), keyWeight.Int(e.Weight))
	case coordtrace.HoldReleased:
		a.holds.end(e.Subject, e.Err, true, keyOutcome.String("released"))
	case coordtrace.HoldLost:
		a.holds.end(e.Subject, e.Err, true, keyOutcome.String("lost"), keyReason.String(string(e.Reason)))
	case coordtrace.HoldDowngraded:
		a.holds.note(e.Subject, "downgraded")
	case coordtrace.LeaderAnnounced:
		a.holds.note(e.Subject, "announced")
	case coordtrace.RevocationRead:
		a.holds.note(e.Subject, "revocation read", keyBy.String(e.By), keyForce.Bool(e.Force))
	case coordtrace.ItemClaimed:
		a.begin(ctx, &a.holds, "coord.hold", e.Subject, keyToken.Int64(e.Token), keyItem.String(e.Item), keyAttempt.Int(e.Attempt))
	case coordtrace.ItemSettled:
		attrs := []attribute.KeyValue{keyOutcome.String(e.Outcome.String())}
		if e.Reason != "" {
			attrs = append(attrs, keyReason.String(string(e.Reason)))
		}
		a.holds.end(e.Subject, e.Err, true, attrs...)
	case coordtrace.RunBegan:
		a.begin(ctx, &a.holds, "coord.hold", e.Subject, keyToken.Int64(e.Token), keyAttempt.Int(e.Attempt))
	case coordtrace.RunEnded:
		attrs := []attribute.KeyValue{keyOutcome.String(string(e.Outcome))}
		if e.Reason != "" {
			attrs = append(attrs, keyReason.String(string(e.Reason)))
		}
		a.holds.end(e.Subject, e.Err, true, attrs...)
	case coordtrace.EventsDropped:
		a.waits.endAll()
		a.holds.endAll()
	}
}

// canceled reports whether a wait ended because its caller gave up.
func canceled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// ended returns the outcome of a wait without a grant.
func ended(err error) string {
	switch {
	case err == nil:
		return "done"
	case canceled(err):
		return "canceled"
	}
	return "failed"
}
