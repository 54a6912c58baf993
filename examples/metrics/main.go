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
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
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

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("metrics", flag.ContinueOnError)
	var (
		listen  = flags.String("listen", "127.0.0.1:9464", "where to serve /metrics")
		kind    = flags.String("backend", "memory", "the service: memory, zookeeper or etcd")
		servers = flags.String("servers", "", "the servers of -backend zookeeper or etcd, as `host:port,…`")
		timeout = flags.Duration("session", 10*time.Second, "the session timeout")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	b, err := service.Backend(*kind, *servers, *timeout)
	if err != nil {
		return err
	}
	o, handler, err := prometheusOptions()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "metrics: http://%s/metrics\n", l.Addr())
	mux := http.NewServeMux()
	mux.Handle("/metrics", handler)
	server := &http.Server{Handler: mux}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return work(ctx, b, o) })
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return errors.Join(err, group.Wait())
	}
	return group.Wait()
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
func work(ctx context.Context, b backend.Backend, o *oteltrace.Options) (err error) {
	c, err := open(ctx, b, o)
	if err != nil {
		return ignore(ctx, err)
	}
	defer c.Close()
	queue := coord.NewQueue(c, "/mail", &coord.QueueOptions[string]{MaxAttempts: 3})
	stop, err := oteltrace.ObserveQueues(o, oteltrace.QueueSource{Path: "/mail", Stats: queue.Stats})
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
	return ignore(ctx, group.Wait())
}

// ignore drops the error of a program that has received a signal to stop.
func ignore(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
