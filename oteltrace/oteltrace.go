// Package oteltrace reports the events of package coord to OpenTelemetry: as spans of waits
// and holds, and as metrics.
//
//	c, err := coord.Open(ctx, b, &coord.Options{Trace: oteltrace.New(nil)})
//
// # Spans
//
// Both are children of the span in the context of the call that caused them, and can end
// shortly after the call: coord reports events asynchronously.
//
//   - coord.wait lasts from when a call begins to wait until it is granted, is done or gives
//     up. A call that need not wait has none. Its events report a lost place in the queue,
//     and progress.
//   - coord.hold lasts from a grant to the release or the loss: of a lock, permits, a term,
//     an entry, an item, a run of a schedule. A loss has status Error and the error. It can outlast its parent
//     span.
//
// Their attributes are coord.recipe, coord.path, coord.op and coord.node, and where they
// apply coord.token, coord.weight, coord.item, coord.attempt, coord.outcome and coord.reason.
//
// Handler adds a span around each call of a handler of a queue, which is the parent of the handler's own spans.
//
// # Metrics
//
// All have the attributes coord.recipe and coord.path, except those marked with *. Durations
// are histograms in seconds.
//
//	coord.wait.duration        of calls that were granted or waited, by coord.op and coord.outcome:
//	                           granted, done, canceled, failed
//	coord.hold.duration        by coord.outcome: released, lost; of items acked, nacked, returned, lost, dead
//	coord.holds                up-down counter: holds of this process at the moment
//	coord.waiters              up-down counter: calls of this process that wait at the moment, by coord.op
//	coord.losses               by coord.reason: session_lost, deleted, revoked, suspended, timeout, closed, other
//	coord.requeues             places in the queue that were lost
//	coord.revocations          by coord.outcome: sent, forced, read
//	coord.queue.puts           items
//	coord.queue.claims         items, by coord.redelivered
//	coord.queue.settled        items, by coord.outcome as above
//	coord.group.changes        of own members, by coord.outcome: joined, rejoined, lost, left, ended
//	coord.shards.assigned      up-down counter: shards that members of this process ought to own
//	coord.shards.owned         up-down counter: shards that they own
//	coord.shards.moving        up-down counter: of those, shards that they were asked to give up
//	coord.shards.moves         shards that a member of this process ought to own, or not to own any
//	                           more, by coord.outcome: gained, lost
//	coord.schedule.late        from the planned time to the call of the function, of runs of this process
//	coord.schedule.duration    of runs of this process, by coord.outcome: done, failed, abandoned, lost
//	coord.schedule.runs        that have ended, by coord.outcome. The leader counts the runs of dead
//	                           processes as abandoned.
//	coord.schedule.missed      planned times that were left out
//	coord.schedule.success     gauge: when a run of this process was done last, in seconds since 1970.
//	                           Alert on the maximum over all processes.
//	coord.rounds               that this process has opened at double barriers
//	coord.cache.sync.duration  of reading a tree, by coord.again
//	coord.twophase.votes             by coord.yes
//	coord.twophase.decisions         by coord.commit and coord.role: proposer, site, recovery
//	coord.twophase.doubt.duration    of sites, from their vote to the decision
//	coord.twophase.in_doubt          decisions that were destroyed
//	coord.twophase.undone            up-down counter: decided transactions that sites of this process
//	                                 have not carried out
//	coord.twophase.failing           up-down counter: of those, those whose Commit or Abort has failed
//	coord.uncertain *          requests whose reply was lost, by coord.applied
//	coord.sessions *           up-down counter: clients of this process by coord.phase, the phase of
//	                           their session: connected, suspended, lost. A closed client is none.
//	coord.session.changes *    by coord.phase, closed too
//	coord.dropped *            events that coord has dropped, since the span processor is too
//	                           slow; the other figures lack them. All open spans end, with
//	                           coord.outcome unknown, since the event that ends them may be missing;
//	                           coord.holds and coord.waiters begin again with what comes later. The
//	                           figures of shards and of what is undone are right again with the next
//	                           event of their member or site.
//
// ObserveQueues adds gauges of whole queues, with the attribute coord.path:
//
//	coord.queue.items          items, by coord.state: ready, claimed, delayed, dead
//	coord.queue.oldest         how long the oldest ready item has been in the queue, in seconds
//	coord.queue.waiting        clients that wait for an item
//	coord.queue.unread         nodes with items that the other gauges leave out, see coord.QueueStats
//
// Backend measures the calls that the client makes to the service:
//
//	coord.backend.duration     by coord.op: get, exists, children, arm, watch, read, sync, commit, open;
//	                           and by coord.outcome: ok, refused, canceled, lost, uncertain, failed
package oteltrace

import (
	"context"

	coordtrace "github.com/go-coord/coord/trace"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the name of the instrumentation scope.
const Scope = "github.com/go-coord/coord/oteltrace"

// Options may be nil. New uses all of them; the other functions name those that they use.
type Options struct {
	// TracerProvider makes the tracer. The default is the global one.
	TracerProvider trace.TracerProvider

	// MeterProvider makes the meter. The default is the global one.
	MeterProvider metric.MeterProvider

	// Path maps the path of a recipe to the attribute coord.path of metrics. A program that
	// makes a lock for each of its users, for example, has too many paths, and returns their
	// common part. Nil means the path as it is. It must be fast, and safe for concurrent use.
	Path func(path string) string

	// MaxSpans limits the open spans, for waits and for holds separately. Beyond it no spans
	// are made; metrics count all events. The default is 10,000 of each.
	MaxSpans int
}

// New returns a function for coord.Options.Trace. Several clients can share it. It is safe
// for concurrent use and does not block, unless the span processor blocks. Its state for a
// wait or hold is dropped when that ends, and the rest when the clients are closed.
func New(o *Options) func(context.Context, coordtrace.Event) {
	return newAdapter(o).trace
}

type adapter struct {
	path    func(string) string
	tracer  trace.Tracer
	metrics *metrics
	waits   openSpans
	holds   openSpans

	// What the up-down counters count.
	waiting, holding acquisitions
	sessions         sessions
	shards           shards
	undone           undone
}

// orDefaults returns a copy of the options with their defaults.
func (o *Options) orDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.TracerProvider == nil {
		opts.TracerProvider = otel.GetTracerProvider()
	}
	if opts.MeterProvider == nil {
		opts.MeterProvider = otel.GetMeterProvider()
	}
	if opts.Path == nil {
		opts.Path = func(path string) string { return path }
	}
	if opts.MaxSpans <= 0 {
		opts.MaxSpans = 10_000
	}
	return opts
}

func newAdapter(o *Options) *adapter {
	opts := o.orDefaults()
	return &adapter{
		path:    opts.Path,
		tracer:  opts.TracerProvider.Tracer(Scope),
		metrics: newMetrics(opts.MeterProvider.Meter(Scope)),
		waits:   openSpans{most: opts.MaxSpans, spans: make(map[uint64]trace.Span)},
		holds:   openSpans{most: opts.MaxSpans, spans: make(map[uint64]trace.Span)},

		waiting:  acquisitions{set: make(map[uint64]metric.MeasurementOption)},
		holding:  acquisitions{set: make(map[uint64]metric.MeasurementOption)},
		sessions: sessions{phases: make(map[int64]string)},
		shards:   shards{members: make(map[shardMember]shardTotals)},
		undone:   undone{sites: make(map[siteKey]siteTotals)},
	}
}

func (a *adapter) trace(ctx context.Context, e coordtrace.Event) {
	a.span(ctx, e)
	a.count(ctx, e)
}
