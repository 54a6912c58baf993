package oteltrace

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/go-coord/coord"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Attributes of OpenTelemetry's semantic conventions.
const (
	keySystem        = attribute.Key("messaging.system")
	keyOperation     = attribute.Key("messaging.operation.name")
	keyOperationType = attribute.Key("messaging.operation.type")
	keyDestination   = attribute.Key("messaging.destination.name")
	keyMessage       = attribute.Key("messaging.message.id")
	keyErrorType     = attribute.Key("error.type")
)

// Handler returns handle with a span around each call, for the method Work of a queue:
//
//	err := q.Work(ctx, 4, oteltrace.Handler(nil, send))
//
// The span is the parent of those that the handler makes with its context, and a child of that in the context of
// Work, if there is one. Its kind is consumer and its name "process" and the path of the queue, after Options.Path. Its attributes
// are those of the semantic conventions for messaging, and coord.item, coord.attempt and coord.token.
//
// If the producer has the option TraceParent of coord.QueueOptions, the span has a link to the span in which the item was
// put. It is a child of that span if the context of Work has none.
//
// The span lasts as long as the handler. Its status is Error if the handler fails, panics or ends its goroutine, or
// if it succeeds after its claim was lost. The span then has the text of the error, which can quote the item.
//
// What becomes of the item is decided after the handler has returned. It is the coord.outcome of the span
// coord.hold of New, which has the same coord.item and coord.token, and is counted in coord.queue.settled and
// coord.hold.duration. So Handler counts nothing.
//
// Of the options only TracerProvider and Path count.
func Handler[T any](o *Options, handle func(context.Context, *coord.Item[T]) error) func(context.Context, *coord.Item[T]) error {
	if handle == nil {
		return nil // Work refuses it
	}
	opts := o.orDefaults()
	tracer := opts.TracerProvider.Tracer(Scope)
	return func(ctx context.Context, it *coord.Item[T]) error {
		queue := queueOf(it.Path())
		var links []trace.Link
		if from := producerOf(it.TraceParent); from.IsValid() {
			links = append(links, trace.Link{SpanContext: from})
			if !trace.SpanContextFromContext(ctx).IsValid() {
				ctx = trace.ContextWithRemoteSpanContext(ctx, from)
			}
		}
		ctx, s := tracer.Start(ctx, "process "+opts.Path(queue), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links...), trace.WithAttributes(
			keySystem.String("coord"), keyOperation.String("process"), keyOperationType.String("process"),
			keyDestination.String(queue), keyMessage.String(it.ID),
			keyItem.String(it.ID), keyAttempt.Int(it.Attempt), keyToken.Int64(it.Token())))
		returned := false
		defer func() {
			if !returned {
				s.SetAttributes(keyErrorType.String("panic"))
				s.SetStatus(codes.Error, "the handler panicked, or ended its goroutine")
			}
			s.End() // if it were deferred itself, it would record the value of a panic
		}()
		err := handle(ctx, it)
		returned = true
		failure := err
		if lost := it.Err(); err == nil && errors.Is(lost, coord.ErrLost) {
			failure = lost
		}
		if failure != nil {
			s.SetAttributes(keyErrorType.String(fmt.Sprintf("%T", failure)))
			s.RecordError(failure)
			s.SetStatus(codes.Error, failure.Error())
		}
		return err
	}
}

// TraceParent returns the traceparent of the span in ctx, or "" if there is none. It is for TraceParent of
// coord.QueueOptions, so that consumers know the span in which an item was put.
func TraceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceParent]
}

const traceParent = "traceparent" // the key of the W3C Trace Context

// producerOf returns the context of the span in which an item was put.
func producerOf(traceparent string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceParent: traceparent})
	return trace.SpanContextFromContext(ctx)
}

// queueOf returns the path of a queue from that of a claim: <queue>/items/<bucket>/<claim>.
func queueOf(claim string) string { return path.Dir(path.Dir(path.Dir(claim))) }
