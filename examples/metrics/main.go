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
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
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
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/oteltrace"
)

func main() {
	log.SetFlags(0)
	listen := flag.String("listen", "127.0.0.1:9464", "the `address` to serve at")
	kind := flag.String("backend", "memory", "the service: memory, zookeeper, etcd or postgres")
	servers := flag.String("servers", "", "the servers of -backend zookeeper or etcd, as `host:port,…`, or the connection string of -backend postgres")
	flag.Parse()
	b, err := newBackend(*kind, *servers)
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("metrics serves http://%s/metrics\n", l.Addr())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, b, l); err != nil {
		log.Fatal(err)
	}
}

// run is the program, until ctx ends. The metrics are served from the beginning, also while the client
// waits for the service.
func run(ctx context.Context, b backend.Backend, l net.Listener) error {
	o, handler, err := prometheusOptions()
	if err != nil {
		return errors.Join(err, l.Close())
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", handler)
	server := &http.Server{Handler: mux}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		err := work(ctx, b, o)
		if ctx.Err() != nil {
			err = nil // stopped by a signal
		}
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return errors.Join(err, server.Shutdown(ending))
	})
	return g.Wait()
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

// newBackend returns the service that the flags name. A service in memory serves this process only.
func newBackend(kind, servers string) (backend.Backend, error) {
	list := strings.Split(servers, ",")
	switch kind {
	case "memory":
		return memory.New(nil), nil
	case "zookeeper":
		return zookeeper.New(list, nil), nil
	case "etcd":
		return etcd.New(list, nil), nil
	case "postgres":
		return postgres.New(servers, nil), nil
	}
	return nil, fmt.Errorf("-backend %q: want memory, zookeeper, etcd or postgres", kind)
}
