package oteltrace

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const keyState = attribute.Key("coord.state")

// A QueueSource is a queue whose figures are gauges.
type QueueSource struct {
	// Path is the path of the queue, as its constructor got it if Client is given, else as FullPath of the client
	// returns it: with the namespace, as in the other metrics. It is the attribute coord.path of the gauges, after
	// Options.Path. No two sources may have the same.
	Path string

	// Stats is the method Stats of the queue.
	Stats func(context.Context) (coord.QueueStats, error)

	// Client is the client of the queue, whose namespace is put before Path. Without it Path stays as it is.
	Client *coord.Client
}

// statsLimit is how long a collection waits for the figures of all queues. It is well below
// the 30 s that a PeriodicReader gives a collection as a whole.
const statsLimit = 5 * time.Second

// ObserveQueues makes the figures of queues gauges, which each collection of the metrics reads
// anew, until stop is called:
//
//	q := coord.NewQueue[Email](c, "/mail", nil)
//	stop, err := oteltrace.ObserveQueues(nil, oteltrace.QueueSource{Path: "/mail", Stats: q.Stats, Client: c})
//
// One process suffices for a queue. Its figures are those of the whole queue, so several
// processes report the same.
//
// A collection costs the requests of one Stats for each queue, and reads all queues at the
// same time. It waits at most 5 s for them, or as long as its context lasts if that is shorter.
// A queue that cannot be read, or not in that time, has no values in that collection, so that
// an old value never looks like a new one; the error goes to the handler of package otel, and
// the other queues and instruments are not affected. stop returns when no collection uses
// the sources any more, and may be called before or after the client is closed.
//
// Of the options only MeterProvider and Path count. The error is that of the meter, or says
// that a source lacks Stats, that its Path is none for its Client, or that two have one path.
func ObserveQueues(o *Options, sources ...QueueSource) (stop func() error, err error) {
	opts := o.orDefaults()
	all := make([]queueGauge, len(sources))
	paths := make(map[string]bool)
	for i, src := range sources {
		if src.Client != nil {
			if src.Path, err = src.Client.FullPath(src.Path); err != nil {
				return nil, fmt.Errorf("oteltrace: %w", err)
			}
		}
		path := opts.Path(src.Path)
		switch {
		case src.Stats == nil:
			return nil, fmt.Errorf("oteltrace: the source of queue %q has no Stats", src.Path)
		case paths[path]:
			return nil, fmt.Errorf("oteltrace: two sources have the path %q", path)
		}
		paths[path] = true
		all[i] = newQueueGauge(path, src.Stats)
	}
	m := opts.MeterProvider.Meter(Scope)
	gauge := func(name, unit, what string) metric.Int64ObservableGauge {
		g, e := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what))
		if err == nil {
			err = e
		}
		return g
	}
	items := gauge("coord.queue.items", "{item}", "Items in a queue, and its dead letters.")
	waiting := gauge("coord.queue.waiting", "{client}", "Clients that wait for an item.")
	unread := gauge("coord.queue.unread", "{node}", "Nodes with items that the other figures leave out.")
	oldest, e := m.Float64ObservableGauge("coord.queue.oldest", metric.WithUnit("s"),
		metric.WithDescription("How long the oldest ready item has been in a queue."))
	if err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	r, err := m.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		ctx, cancel := context.WithTimeout(ctx, statsLimit)
		defer cancel()
		read := make([]queueReading, len(all))
		var reading sync.WaitGroup
		for i, q := range all {
			reading.Add(1)
			go func() {
				defer reading.Done()
				read[i].QueueStats, read[i].err = q.stats(ctx)
			}()
		}
		reading.Wait()
		for i, q := range all {
			st := read[i]
			if st.err != nil {
				// Returned, it would keep the reader from exporting anything.
				otel.Handle(fmt.Errorf("oteltrace: %w", st.err))
				continue
			}
			to.ObserveInt64(items, int64(st.Ready), q.ready)
			to.ObserveInt64(items, int64(st.Claimed), q.claimed)
			to.ObserveInt64(items, int64(st.Delayed), q.delayed)
			to.ObserveInt64(items, int64(st.Dead), q.dead)
			to.ObserveFloat64(oldest, st.Oldest.Seconds(), q.whole)
			to.ObserveInt64(waiting, int64(st.Waiting), q.whole)
			to.ObserveInt64(unread, int64(st.Unread), q.whole)
		}
		return nil
	}, items, waiting, unread, oldest)
	if err != nil {
		return nil, err
	}
	return r.Unregister, nil
}

// queueReading is what a collection has read of a queue.
type queueReading struct {
	coord.QueueStats
	err error
}

// queueGauge is a queue with the attributes of its gauges.
type queueGauge struct {
	stats                                func(context.Context) (coord.QueueStats, error)
	whole, ready, claimed, delayed, dead metric.MeasurementOption
}

func newQueueGauge(path string, stats func(context.Context) (coord.QueueStats, error)) queueGauge {
	with := func(more ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(append(more, keyPath.String(path))...))
	}
	state := func(s string) metric.MeasurementOption { return with(keyState.String(s)) }
	return queueGauge{stats, with(), state("ready"), state("claimed"), state("delayed"), state("dead")}
}
