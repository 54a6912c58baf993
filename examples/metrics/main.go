// Metrics is a program that Prometheus scrapes: what its client does, what its calls to the service
// take, and the figures of its queue.
//
//	go run ./examples/metrics
//	go run ./examples/metrics -backend zookeeper -servers host1:2181
//	curl http://127.0.0.1:9464/metrics
//
// docs/alerts.yaml has alert rules for these metrics, docs/grafana-dashboard.json is a dashboard. The
// test of the example runs every recipe, and checks both against what the program serves.
package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/examples/internal/service"
	"github.com/go-coord/coord/oteltrace"
)

func main() { service.ServeMain("metrics", &site) }

var site = service.Site{
	Listen: "127.0.0.1:9464",
	Page:   "/metrics",
	New: func(b backend.Backend) (http.Handler, func(ctx context.Context) error, error) {
		o, handler, err := prometheusOptions()
		mux := http.NewServeMux()
		mux.Handle("/metrics", handler)
		return mux, func(ctx context.Context) error { return work(ctx, b, o) }, err
	},
}

// prometheusOptions returns the options of oteltrace, and the handler that serves its metrics. A
// program that has a MeterProvider already uses that one.
func prometheusOptions() (*oteltrace.Options, http.Handler, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return nil, nil, err
	}
	o := &oteltrace.Options{
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)),
		TracerProvider: noop.NewTracerProvider(),
	}
	return o, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), nil
}

// open is coord.Open with metrics: those of the calls to the service, and those of the events.
func open(ctx context.Context, b backend.Backend, o *oteltrace.Options) (*coord.Client, error) {
	return coord.Open(ctx, oteltrace.Backend(b, o), &coord.Options{Namespace: "/coord-examples-metrics", Trace: oteltrace.New(o)})
}

// work is what the program does: it puts items into a queue, and takes them. It ends with ctx.
func work(ctx context.Context, b backend.Backend, o *oteltrace.Options) error {
	c, err := open(ctx, b, o)
	if err != nil {
		return err
	}
	defer c.Close()
	queue := coord.NewQueue(c, "/mail", &coord.QueueOptions[string]{MaxAttempts: 3})
	stop, err := oteltrace.ObserveQueues(o, oteltrace.QueueSource{Path: "/mail", Stats: queue.Stats, Client: c})
	if err != nil {
		return err
	}
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := queue.Put(ctx, "hello"); err != nil {
				return err
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	group.Go(func() error {
		return queue.Work(ctx, 2, func(ctx context.Context, _ *coord.Item[string]) error {
			select {
			case <-time.After(rand.N(200 * time.Millisecond)):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	return group.Wait()
}
