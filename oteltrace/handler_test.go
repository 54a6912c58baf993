package oteltrace

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// processed returns the ended spans of handlers.
func (x *scene) processed() (list []string) {
	for _, s := range x.ended("messaging.destination.name", "coord.attempt", "error.type") {
		if strings.HasPrefix(s, "process ") {
			list = append(list, s)
		}
	}
	return list
}

func TestHandler_ASpanForEachItem(t *testing.T) {
	play(t, Options{}, sdktrace.AlwaysSample(), func(x *scene) {
		// The link "c" has no Trace: a handler needs none.
		c := x.open("c", nil)
		defer c.Close()
		q := coord.NewQueue[string](c, "/q", &coord.QueueOptions[string]{MaxAttempts: 1})
		ids, err := q.PutAll(x.t.Context(), "good", "bad", "panic", "exit", "lost")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(x.t.Context())
		ctx, parent := x.tracer.Start(ctx, "parent")
		left := len(ids)
		o := &Options{TracerProvider: parent.TracerProvider(), Path: strings.ToUpper}
		err = q.Work(ctx, 1, Handler(o, func(ctx context.Context, it *coord.Item[string]) error {
			if left--; left == 0 {
				defer stop()
			}
			_, inner := x.tracer.Start(ctx, "inner "+it.Value)
			time.Sleep(time.Second)
			inner.End()
			switch it.Value {
			case "bad":
				return errors.New("no such host")
			case "panic":
				panic("secret")
			case "exit":
				runtime.Goexit()
			case "lost":
				x.st.Link("c").Expire(it.Session())
				<-it.Done()
			}
			return nil
		}))
		parent.End()
		if err != nil {
			t.Fatal(err)
		}
		x.want(x.processed(),
			"process /APP/Q 1s messaging.destination.name=/app/q attempt=1",
			"process /APP/Q 1s messaging.destination.name=/app/q attempt=1 error.type=*errors.errorString [exception] error",
			"process /APP/Q 1s messaging.destination.name=/app/q attempt=1 error.type=panic error",
			"process /APP/Q 1s messaging.destination.name=/app/q attempt=1 error.type=panic error",
			"process /APP/Q 1s messaging.destination.name=/app/q attempt=1 error.type=*errs.Loss [exception] error")
		spans := x.spans.GetSpans()
		of := make(map[string]sdktrace.ReadOnlySpan)
		for _, s := range spans.Snapshots() {
			of[s.Name()] = s
			if s.Name() != "process /APP/Q" {
				continue
			}
			if s.SpanKind() != trace.SpanKindConsumer || s.Parent().SpanID() != parent.SpanContext().SpanID() {
				t.Errorf("kind %v, parent %v", s.SpanKind(), s.Parent().SpanID())
			}
			if strings.Contains(s.Status().Description, "secret") {
				t.Errorf("%+v", s.Status())
			}
		}
		if in, last := of["inner lost"], of["process /APP/Q"]; in == nil || in.Parent().SpanID() != last.SpanContext().SpanID() {
			t.Error("the span of the handler's work is no child of its item's")
		}
	})
}

// The span of the handler has the item and token of the span that has the outcome of the item.
func TestHandler_TheOutcomeIsThatOfTheHold(t *testing.T) {
	play(t, Options{}, sdktrace.AlwaysSample(), func(x *scene) {
		q := coord.NewQueue[int](x.c, "/q", &coord.QueueOptions[int]{MaxAttempts: 2})
		if _, err := q.Put(x.t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(x.t.Context())
		ctx, parent := x.tracer.Start(ctx, "parent")
		handle := Handler(&Options{TracerProvider: parent.TracerProvider()}, func(_ context.Context, it *coord.Item[int]) error {
			if it.Attempt == 2 {
				stop()
				return coord.Bury(errors.New("no such customer"))
			}
			return errors.New("busy")
		})
		if err := q.Work(ctx, 1, handle); err != nil {
			t.Fatal(err)
		}
		parent.End()
		outcome := make(map[string]string) // of a hold, by item and token
		var handled []string
		x.ended()
		for _, s := range x.spans.GetSpans() {
			set := attribute.NewSet(s.Attributes...)
			text := func(k attribute.Key) string { v, _ := set.Value(k); return v.Emit() }
			switch claim := text(keyItem) + " " + text(keyToken); s.Name {
			case "coord.hold":
				outcome[claim] = text(keyOutcome)
			case "process /app/q":
				handled = append(handled, claim)
			}
		}
		if len(handled) != 2 || len(outcome) != 2 || outcome[handled[0]] != "nacked" || outcome[handled[1]] != "dead" {
			t.Errorf("%q, %q", handled, outcome)
		}
		x.want(slices.DeleteFunc(x.points(), func(s string) bool { return !strings.HasPrefix(s, "coord.queue.settled") }),
			"coord.queue.settled{outcome=dead,path=/app/q,recipe=queue} 1",
			"coord.queue.settled{outcome=nacked,path=/app/q,recipe=queue} 1")
	})
}

// The span of the handler has a link to the span in which the item was put. It is a child of the span of Work, or of that span
// if there is none.
func TestHandler_ContinuesTheTraceOfTheProducer(t *testing.T) {
	play(t, Options{}, sdktrace.AlwaysSample(), func(x *scene) {
		q := coord.NewQueue(x.c, "/q", &coord.QueueOptions[int]{TraceParent: TraceParent})
		produce, producer := x.tracer.Start(x.t.Context(), "producer")
		if _, err := q.PutAll(produce, 1, 2); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Put(x.t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		producer.End()
		own, parent := x.tracer.Start(x.t.Context(), "parent")
		defer parent.End()
		o := &Options{TracerProvider: parent.TracerProvider()}
		var handled []trace.SpanContext
		for i, ctx := range []context.Context{x.t.Context(), own, x.t.Context()} {
			ctx, stop := context.WithCancel(ctx)
			if err := q.Work(ctx, 1, Handler(o, func(ctx context.Context, it *coord.Item[int]) error {
				defer stop()
				if it.Value != i+1 {
					t.Errorf("item %d, want %d", it.Value, i+1)
				}
				handled = append(handled, trace.SpanContextFromContext(ctx))
				return nil
			})); err != nil {
				t.Fatal(err)
			}
		}
		from := producer.SpanContext()
		want := []struct {
			parent trace.SpanID
			trace  trace.TraceID
			links  int
		}{{from.SpanID(), from.TraceID(), 1}, {parent.SpanContext().SpanID(), parent.SpanContext().TraceID(), 1}, {trace.SpanID{}, handled[2].TraceID(), 0}}
		seen := 0
		for _, s := range x.spans.GetSpans().Snapshots() {
			i := slices.IndexFunc(handled, func(h trace.SpanContext) bool { return h.SpanID() == s.SpanContext().SpanID() })
			if i < 0 {
				continue
			}
			seen++
			if s.Parent().SpanID() != want[i].parent || s.SpanContext().TraceID() != want[i].trace || len(s.Links()) != want[i].links {
				t.Errorf("item %d: parent %v, trace %v, links %v", i+1, s.Parent().SpanID(), s.SpanContext().TraceID(), s.Links())
			}
			for _, l := range s.Links() {
				if l.SpanContext.SpanID() != from.SpanID() || l.SpanContext.TraceID() != from.TraceID() || !l.SpanContext.IsSampled() {
					t.Errorf("item %d: link to %+v", i+1, l.SpanContext)
				}
			}
		}
		if seen != 3 {
			t.Errorf("%d spans of handlers", seen)
		}
	})
	if s := TraceParent(t.Context()); s != "" {
		t.Errorf("%q without a span", s)
	}
}
