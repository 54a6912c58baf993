package main

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/oteltrace"
	"github.com/go-coord/coord/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTheProgramServesItsMetrics runs the program, and scrapes it.
func TestTheProgramServesItsMetrics(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String() + "/metrics"
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, memory.New(nil), l) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		resp, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		e := parse(t, bufio.NewScanner(resp.Body))
		resp.Body.Close()
		if e["coord_queue_settled_total"]["coord_outcome"]["acked"] && e["coord_queue_oldest_seconds"] != nil {
			break
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case err := <-ended:
			t.Fatal(err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// An exposition has the names of the samples that Prometheus gets, with their labels and the values
// of these.
type exposition map[string]map[string]map[string]bool

var (
	sampleForm = regexp.MustCompile(`^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)`)
	labelForm  = regexp.MustCompile(`([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"`)
)

// parse reads the text format of Prometheus.
func parse(t *testing.T, text *bufio.Scanner) exposition {
	e := make(exposition)
	for text.Scan() {
		if strings.HasPrefix(text.Text(), "#") {
			continue
		}
		sample := sampleForm.FindStringSubmatch(text.Text())
		if sample == nil {
			t.Fatalf("no sample: %s", text.Text())
		}
		labels := e[sample[1]]
		if labels == nil {
			labels = make(map[string]map[string]bool)
			e[sample[1]] = labels
		}
		for _, l := range labelForm.FindAllStringSubmatch(sample[2], -1) {
			if labels[l[1]] == nil {
				labels[l[1]] = make(map[string]bool)
			}
			labels[l[1]][l[2]] = true
		}
	}
	if err := text.Err(); err != nil {
		t.Fatal(err)
	}
	return e
}

// export runs every recipe with what can happen to it, in memory and fake time, and returns what
// Prometheus gets of it.
func export(t *testing.T) (e exposition) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		o, handler, err := prometheusOptions()
		if err != nil {
			t.Fatal(err)
		}
		a, err := open(t.Context(), s.Link("a"), o)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		b, err := open(t.Context(), s.Link("b"), o)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		x := &player{t: t, s: s, a: a, b: b}
		x.locks()
		x.queues(o)
		x.groups()
		x.schedules()
		x.transactions()
		x.trouble(o)

		synctest.Wait()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		e = parse(t, bufio.NewScanner(w.Body))
		x.stop()
	})
	return e
}

// player plays the recipes.
type player struct {
	t    *testing.T
	s    *coordtest.Service
	a, b *coord.Client

	stops []func()
}

func (x *player) stop() {
	for _, stop := range x.stops {
		stop()
	}
}

func (x *player) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

// in runs f in the background until stop, and returns when it waits.
func (x *player) in(f func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(x.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	x.stops = append(x.stops, func() {
		cancel()
		<-done
	})
	synctest.Wait()
}

func (x *player) locks() {
	ctx := x.t.Context()
	for path, of := range map[string]func(c *coord.Client, path string) coord.Locker{
		"/mutex":     func(c *coord.Client, path string) coord.Locker { return coord.NewMutex(c, path, nil) },
		"/rwmutex":   func(c *coord.Client, path string) coord.Locker { return coord.NewRWMutex(c, path, nil) },
		"/semaphore": func(c *coord.Client, path string) coord.Locker { return coord.NewSemaphore(c, path, 1, nil).Locker(1) },
	} {
		h, err := of(x.a, path).Lock(ctx)
		x.must(err)
		x.in(func(ctx context.Context) {
			of(x.b, path).Do(ctx, func(ctx context.Context, _ *coord.Hold) error {
				<-ctx.Done()
				return nil
			})
		})
		if path == "/mutex" {
			x.in(func(ctx context.Context) {
				coord.NewMutex(x.b, path, nil).Revoke(ctx, &coord.RevokeOptions{By: "b"})
			})
			<-h.Revoked()
		}
		x.must(h.Release())
		synctest.Wait()
	}
	x.in(func(ctx context.Context) {
		coord.NewElection(x.a, "/leader", nil).Run(ctx, func(ctx context.Context, _ *coord.Term) error {
			<-ctx.Done()
			return nil
		})
	})
}

func (x *player) queues(o *oteltrace.Options) {
	ctx := x.t.Context()
	q := coord.NewQueue(x.a, "/queue", &coord.QueueOptions[string]{MaxAttempts: 2})
	stop, err := oteltrace.ObserveQueues(o, oteltrace.QueueSource{Path: "/queue", Stats: q.Stats})
	x.must(err)
	x.stops = append(x.stops, func() { x.must(stop()) })
	_, err = q.PutAll(ctx, "one", "two")
	x.must(err)
	for _, end := range []func(*coord.Item[string]) error{
		func(it *coord.Item[string]) error { return it.Nack(0) },
		func(it *coord.Item[string]) error { return it.Nack(0) }, // the last attempt: a dead letter
		func(it *coord.Item[string]) error { return it.Ack() },
	} {
		it, err := q.Take(ctx)
		x.must(err)
		x.must(end(it))
	}
	_, err = coord.NewPriorityQueue[string](x.a, "/priority", nil).Put(ctx, 1, "")
	x.must(err)
	_, err = coord.NewDelayQueue[string](x.a, "/delay", nil).PutAfter(ctx, time.Hour, "")
	x.must(err)
}

func (x *player) groups() {
	ctx := x.t.Context()
	_, err := coord.NewGroup[string](x.b, "/group", nil).Join(ctx, "b", "")
	x.must(err)
	x.in(func(ctx context.Context) {
		coord.NewShards(x.a, "/shards", 10, nil).Run(ctx, func(ctx context.Context, _ *coord.Shard) error {
			<-ctx.Done()
			return nil
		})
	})
	x.in(func(ctx context.Context) { coord.NewCache(x.a, "/group", nil).Run(ctx) })
	x.must(coord.NewBarrier(x.a, "/barrier", nil).Set(ctx))
	x.must(coord.NewBarrier(x.a, "/barrier", nil).Remove(ctx))
	x.must(coord.NewBarrier(x.a, "/barrier", nil).Wait(ctx))
	entry, err := coord.NewDoubleBarrier(x.a, "/double", 1, nil).Enter(ctx)
	x.must(err)
	x.must(entry.Leave(ctx))
}

// schedules runs a schedule: one run is done, one fails and lasts over a planned time, one is given up.
func (x *player) schedules() {
	ran := 0
	x.in(func(ctx context.Context) {
		coord.NewSchedule(x.a, "/schedule", coord.Every(time.Minute), nil).Run(ctx, func(ctx context.Context, r *coord.Run) error {
			switch ran++; ran {
			case 2:
				time.Sleep(3*time.Minute - time.Second)
				return errors.New("failed")
			case 3:
				return r.Release()
			}
			return nil
		})
	})
	time.Sleep(6*time.Minute + 30*time.Second)
	if ran < 4 {
		x.t.Fatalf("%d runs", ran)
	}
}

func (x *player) transactions() {
	ctx := x.t.Context()
	value := coord.NewValue[int](x.a, "/value", nil)
	_, err := value.Get(ctx) // refused: it is missing
	if !errors.Is(err, coord.ErrNotFound) {
		x.t.Fatal(err)
	}
	_, err = value.Set(ctx, 1)
	x.must(err)
	_, err = coord.NewCounter(x.a, "/counter").Add(ctx, 1)
	x.must(err)

	yes := func(context.Context, coord.Branch[int]) error { return nil }
	x.in(func(ctx context.Context) {
		coord.NewParticipant(x.a, "/twophase", "site", coord.Handler[int]{Prepare: yes, Commit: yes, Abort: yes}).Serve(ctx)
	})
	d, err := coord.NewCoordinator[int](x.a, "/twophase", nil).Propose(ctx, coord.Proposal[int]{ID: "1", Sites: []string{"site"}})
	x.must(err)
	if !d.Commit {
		x.t.Fatal(d)
	}
}

// trouble is what should not happen.
func (x *player) trouble(o *oteltrace.Options) {
	ctx := x.t.Context()
	x.s.Link("a").DropReply(1, "/coord-examples-metrics/counter")
	_, err := coord.NewCounter(x.a, "/counter").Add(ctx, 1)
	x.must(err)
	x.in(func(ctx context.Context) { // loses its place
		coord.NewMutex(x.a, "/mutex", nil).Do(ctx, func(ctx context.Context, _ *coord.Hold) error {
			<-ctx.Done()
			return nil
		})
	})
	for _, name := range []string{"a", "b"} {
		x.s.Link(name).Refuse(true)
		time.Sleep(time.Minute)
		x.s.Link(name).Refuse(false)
		time.Sleep(time.Minute)
	}
	c, err := open(ctx, x.s.Link("c"), o)
	x.must(err)
	_, err = coord.NewMutex(c, "/closed", nil).Lock(ctx)
	x.must(err)
	x.must(c.Close())

	refused := errors.New("credentials refused")
	if _, err := oteltrace.Backend(refusing{refused}, o).Open(ctx); !errors.Is(err, refused) {
		x.t.Fatal(err)
	}
	// These events are reported by the test itself; nothing here causes them.
	tell := oteltrace.New(o)
	tell(ctx, trace.EventsDropped{Events: 1})
	tell(ctx, trace.ProposalInDoubt{Subject: trace.Subject{Recipe: "twophase", Path: "/twophase", Op: "serve"}, Proposal: "2", Site: "site"})
}

// refusing is a service that refuses its clients.
type refusing struct{ err error }

func (r refusing) Open(context.Context) (backend.Session, error) { return nil, r.err }
