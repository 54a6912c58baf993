package oteltrace

import (
	"context"
	"errors"
	"log"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// observe makes the queues the only source of the metrics of x.
func (x *scene) observe(o Options, sources ...QueueSource) (stop func() error) {
	x.t.Helper()
	x.reader = sdkmetric.NewManualReader()
	o.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(x.reader))
	stop, err := ObserveQueues(&o, sources...)
	if err != nil {
		x.t.Fatal(err)
	}
	return stop
}

func TestTheFiguresOfAQueueAreGauges(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		ctx := x.t.Context()
		q := coord.NewQueue[int](x.c, "/mail", &coord.QueueOptions[int]{MaxAttempts: 2})
		stop := x.observe(Options{Path: strings.ToUpper}, QueueSource{Path: "/mail", Stats: q.Stats})
		x.want(x.points(),
			"coord.queue.items{path=/MAIL,state=claimed} 0",
			"coord.queue.items{path=/MAIL,state=dead} 0",
			"coord.queue.items{path=/MAIL,state=delayed} 0",
			"coord.queue.items{path=/MAIL,state=ready} 0",
			"coord.queue.oldest{path=/MAIL} 0",
			"coord.queue.unread{path=/MAIL} 0",
			"coord.queue.waiting{path=/MAIL} 0")
		if _, err := q.PutAll(ctx, 1, 2, 3, 4, 5, 6, 7); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for _, end := range []func(*coord.Item[int]) error{
			func(it *coord.Item[int]) error { return it.Nack(0) },
			func(it *coord.Item[int]) error { return it.Nack(0) }, // the last attempt
			func(it *coord.Item[int]) error { return it.Nack(time.Hour) },
			func(it *coord.Item[int]) error { return it.Nack(time.Hour) },
			func(*coord.Item[int]) error { return nil },
			func(*coord.Item[int]) error { return nil },
		} {
			it, err := q.Take(ctx)
			if err == nil {
				err = end(it)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		x.want(x.points(),
			"coord.queue.items{path=/MAIL,state=claimed} 2",
			"coord.queue.items{path=/MAIL,state=dead} 1",
			"coord.queue.items{path=/MAIL,state=delayed} 2",
			"coord.queue.items{path=/MAIL,state=ready} 2",
			"coord.queue.oldest{path=/MAIL} 60",
			"coord.queue.unread{path=/MAIL} 0",
			"coord.queue.waiting{path=/MAIL} 0")
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		x.want(x.points())
	})
}

// A queue that cannot be read has no values, and takes none from the others.
func TestAQueueThatCannotBeReadLeavesTheOthers(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		errs := make(chan error, 10)
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { errs <- err }))
		defer otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Print(err) })) // as the default
		far, near := coord.NewQueue[int](x.c, "/q", nil), coord.NewQueue[int](x.other, "/q", nil)
		if _, err := near.Put(x.t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		defer x.observe(Options{}, QueueSource{Path: "/far", Stats: far.Stats}, QueueSource{Path: "/near", Stats: near.Stats}, QueueSource{Path: "/farther", Stats: far.Stats})()
		if got := x.points(); len(got) != 3*7 {
			t.Fatalf("%q", got)
		}
		x.st.Link("a").Partition()
		began := time.Now()
		x.want(x.points(), // fails if Collect does, as a PeriodicReader then exports nothing
			"coord.queue.items{path=/near,state=claimed} 0",
			"coord.queue.items{path=/near,state=dead} 0",
			"coord.queue.items{path=/near,state=delayed} 0",
			"coord.queue.items{path=/near,state=ready} 1",
			"coord.queue.oldest{path=/near} 0",
			"coord.queue.unread{path=/near} 0",
			"coord.queue.waiting{path=/near} 0")
		if d := time.Since(began); d != statsLimit {
			t.Errorf("the collection took %v, want %v", d, statsLimit)
		}
		for range 2 {
			if err := <-errs; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the handler got %v", err)
			}
		}
		x.st.Link("a").Heal()
		time.Sleep(time.Minute)
		if got := x.points(); len(got) != 3*7 {
			t.Errorf("after the partition:\n%s", strings.Join(got, "\n"))
		}
	})
}

// With its client a queue is observed under the path that the events of the queue have.
func TestObserveQueues_TheNamespaceOfTheClient(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		c, err := coord.Open(x.t.Context(), x.st.Link("ns"), &coord.Options{Namespace: "/app"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		q := coord.NewQueue[int](c, "/q", nil)
		full, err := c.FullPath("/q")
		if err != nil {
			t.Fatal(err)
		}
		for _, src := range []QueueSource{{Path: "/q", Stats: q.Stats, Client: c}, {Path: full, Stats: q.Stats}} {
			stop := x.observe(Options{}, src)
			got := x.points()
			if len(got) != 7 || !strings.Contains(got[0], "{path=/app/q,") {
				t.Errorf("%+v: %q", src.Path, got)
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ObserveQueues(nil, QueueSource{Path: "q", Stats: q.Stats, Client: c}); !errors.Is(err, coord.ErrBadPath) {
			t.Errorf("a bad path: %v", err)
		}
	})
}

func TestSourcesThatMakeNoSense(t *testing.T) {
	stats := func(context.Context) (coord.QueueStats, error) { return coord.QueueStats{}, nil }
	o := &Options{Path: func(string) string { return "/tenant" }}
	if _, err := ObserveQueues(o, QueueSource{Path: "/a", Stats: stats}, QueueSource{Path: "/b", Stats: stats}); err == nil || !strings.Contains(err.Error(), "/tenant") {
		t.Errorf("two sources with one path: %v", err)
	}
	if _, err := ObserveQueues(nil, QueueSource{Path: "/a"}); err == nil || !strings.Contains(err.Error(), "/a") {
		t.Errorf("a source without Stats: %v", err)
	}
}
