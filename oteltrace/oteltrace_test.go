package oteltrace

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	coordtrace "github.com/go-coord/coord/trace"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scene is a service in memory, and the recorded spans and metrics of one client of it.
type scene struct {
	t       *testing.T
	st      *memory.Store
	spans   *tracetest.InMemoryExporter
	reader  *sdkmetric.ManualReader
	tracer  trace.Tracer
	adapter *adapter
	c       *coord.Client // its link is "a"
	other   *coord.Client
}

// play runs a scenario under fake time.
func play(t *testing.T, o Options, sampler sdktrace.Sampler, f func(x *scene)) {
	synctest.Test(t, func(t *testing.T) {
		x := &scene{
			t: t, st: memory.New(&memory.Options{SessionTimeout: 6 * time.Second}),
			spans: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader(),
		}
		tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(x.spans), sdktrace.WithSampler(sampler))
		o.TracerProvider = tp
		o.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(x.reader))
		x.tracer = tp.Tracer("test")
		x.adapter = newAdapter(&o)
		x.c = x.open("a", x.adapter.trace)
		x.other = x.open("b", nil)
		f(x)
		x.c.Close()
		x.other.Close()
		if w, h := len(x.adapter.waits.spans), len(x.adapter.holds.spans); w+h > 0 {
			t.Errorf("%d waits and %d holds are still open after Close", w, h)
		}
	})
}

func (x *scene) open(link string, trace func(context.Context, coordtrace.Event)) *coord.Client {
	c, err := coord.Open(x.t.Context(), x.st.Link(link), &coord.Options{Namespace: "/app", Trace: trace})
	if err != nil {
		x.t.Fatal(err)
	}
	return c
}

// ended returns the spans that have ended, in order, each as its name, duration and the named
// attributes.
func (x *scene) ended(keys ...attribute.Key) []string {
	synctest.Wait()
	var list []string
	for _, s := range x.spans.GetSpans() {
		text := fmt.Sprintf("%s %v", s.Name, s.EndTime.Sub(s.StartTime))
		for _, k := range keys {
			for _, a := range s.Attributes {
				if a.Key == k {
					text += fmt.Sprintf(" %s=%s", strings.TrimPrefix(string(k), "coord."), a.Value.Emit())
				}
			}
		}
		for _, e := range s.Events {
			text += " [" + e.Name + "]"
		}
		if s.Status.Code == codes.Error {
			text += " error"
		}
		list = append(list, text)
	}
	return list
}

func (x *scene) want(got []string, want ...string) {
	x.t.Helper()
	if !slices.Equal(got, want) {
		x.t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// points returns the metrics, a line for each set of attributes. A histogram has its count
// and sum.
func (x *scene) points() []string {
	synctest.Wait()
	var rm metricdata.ResourceMetrics
	if err := x.reader.Collect(x.t.Context(), &rm); err != nil {
		x.t.Fatal(err)
	}
	var list []string
	add := func(name string, set attribute.Set, format string, v ...any) {
		var s []string
		for _, a := range set.ToSlice() {
			s = append(s, strings.TrimPrefix(string(a.Key), "coord.")+"="+a.Value.Emit())
		}
		list = append(list, name+"{"+strings.Join(s, ",")+"} "+fmt.Sprintf(format, v...))
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, "%d", p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, "%d", p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, "%.0f", p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, "%d, %v s", p.Count, p.Sum)
				}
			default:
				x.t.Errorf("%s: %T", m.Name, d)
			}
		}
	}
	slices.Sort(list)
	return list
}

func (x *scene) lock(ctx context.Context, c *coord.Client) *coord.Hold {
	x.t.Helper()
	h, err := coord.NewMutex(c, "/l", nil).Lock(ctx)
	if err != nil {
		x.t.Fatal(err)
	}
	return h
}

func TestWaitsAndHoldsAreSpansBelowTheCallers(t *testing.T) {
	play(t, Options{}, sdktrace.AlwaysSample(), func(x *scene) {
		taken := x.lock(x.t.Context(), x.other)
		time.AfterFunc(2*time.Second, func() { taken.Release() })
		ctx, caller := x.tracer.Start(x.t.Context(), "caller")
		h := x.lock(ctx, x.c)
		synctest.Wait() // events are reported asynchronously
		caller.End()
		time.Sleep(3 * time.Second)
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
		x.want(x.ended("coord.recipe", "coord.path", "coord.op", "coord.ahead", "coord.outcome"),
			"coord.wait 2s recipe=mutex path=/app/l op=lock ahead=1 outcome=granted",
			"caller 2s",
			"coord.hold 3s recipe=mutex path=/app/l op=lock outcome=released")
		for _, s := range x.spans.GetSpans() {
			if s.Name != "caller" && s.Parent.SpanID() != caller.SpanContext().SpanID() {
				t.Errorf("%s is not a child of the caller's span", s.Name)
			}
			if s.Name == "coord.hold" {
				a := attribute.NewSet(s.Attributes...)
				token, _ := a.Value("coord.token")
				node, _ := a.Value("coord.node")
				if token.AsInt64() != h.Token() || node.AsString() != h.Path() {
					t.Errorf("token %v, node %v", token.Emit(), node.Emit())
				}
			}
		}
	})
}

func TestAWaitThatIsGivenUpEndsItsSpan(t *testing.T) {
	play(t, Options{}, sdktrace.AlwaysSample(), func(x *scene) {
		x.lock(x.t.Context(), x.other)
		m := coord.NewMutex(x.c, "/l", nil)
		ctx, cancel := context.WithTimeout(x.t.Context(), time.Second)
		defer cancel()
		if _, err := m.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		synctest.Wait() // its node is deleted
		failed := make(chan error)
		go func() {
			_, err := m.Lock(context.Background())
			failed <- err
		}()
		time.Sleep(time.Second)
		x.c.Close()
		<-failed
		x.want(x.ended("coord.outcome"),
			"coord.wait 1s outcome=canceled [exception]",
			"coord.wait 1s outcome=failed [exception] error")
		x.want(slices.DeleteFunc(x.points(), func(s string) bool { return !strings.HasPrefix(s, "coord.wait") }),
			"coord.wait.duration{op=lock,outcome=canceled,path=/app/l,recipe=mutex} 1, 1 s",
			"coord.wait.duration{op=lock,outcome=failed,path=/app/l,recipe=mutex} 1, 1 s",
			"coord.waiters{op=lock,path=/app/l,recipe=mutex} 0")
	})
}

func TestALossEndsTheSpanOfAHoldWithItsReason(t *testing.T) {
	play(t, Options{}, sdktrace.AlwaysSample(), func(x *scene) {
		h := x.lock(x.t.Context(), x.c)
		time.Sleep(time.Second)
		if err := coord.NewMutex(x.other, "/l", nil).Revoke(x.t.Context(), &coord.RevokeOptions{By: "b", ForceAfter: time.Second}); err != nil {
			t.Fatal(err)
		}
		<-h.Done()
		synctest.Wait()
		h = x.lock(x.t.Context(), x.c)
		x.st.Link("a").Expire(h.Session())
		<-h.Done()
		synctest.Wait()
		x.lock(x.t.Context(), x.c)
		time.Sleep(time.Second)
		x.c.Close()
		x.want(x.ended("coord.outcome", "coord.reason"),
			"coord.hold 2s outcome=lost reason=revoked [revocation read] [exception] error",
			"coord.hold 0s outcome=lost reason=session_lost [exception] error",
			"coord.hold 1s outcome=lost reason=closed [exception] error")
		x.want(slices.DeleteFunc(x.points(), func(s string) bool { return strings.HasPrefix(s, "coord.session") }),
			"coord.hold.duration{outcome=lost,path=/app/l,recipe=mutex} 3, 3 s",
			"coord.holds{path=/app/l,recipe=mutex} 0",
			"coord.losses{path=/app/l,reason=closed,recipe=mutex} 1",
			"coord.losses{path=/app/l,reason=revoked,recipe=mutex} 1",
			"coord.losses{path=/app/l,reason=session_lost,recipe=mutex} 1",
			"coord.revocations{outcome=read,path=/app/l,recipe=mutex} 1",
			"coord.wait.duration{op=lock,outcome=granted,path=/app/l,recipe=mutex} 3, 0 s")
	})
}

func TestAPlaceInLineThatIsLostShows(t *testing.T) {
	play(t, Options{}, sdktrace.AlwaysSample(), func(x *scene) {
		taken := x.lock(x.t.Context(), x.other)
		got := make(chan *coord.Hold)
		go func() {
			h, err := coord.NewMutex(x.c, "/l", nil).Lock(context.Background())
			if err != nil {
				t.Error(err)
			}
			got <- h
		}()
		synctest.Wait()
		s, err := x.c.Session(x.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		x.st.Link("a").Expire(s.ID())
		time.Sleep(time.Second)
		taken.Release()
		(<-got).Release()
		x.want(x.ended("coord.outcome"),
			"coord.wait 2s outcome=granted [requeued] [waits]",
			"coord.hold 0s outcome=released")
		x.want(slices.DeleteFunc(x.points(), func(s string) bool {
			return !strings.HasPrefix(s, "coord.session") && !strings.HasPrefix(s, "coord.requeues")
		}),
			"coord.requeues{path=/app/l,recipe=mutex} 1",
			"coord.session.changes{phase=connected} 2",
			"coord.session.changes{phase=lost} 1",
			"coord.sessions{phase=connected} 1",
			"coord.sessions{phase=lost} 0")
	})
}

func TestItemsAreHoldsAndAreCounted(t *testing.T) {
	play(t, Options{}, sdktrace.AlwaysSample(), func(x *scene) {
		ctx := x.t.Context()
		q := coord.NewQueue[int](x.c, "/q", &coord.QueueOptions[int]{MaxAttempts: 2})
		if _, err := q.PutAll(ctx, 1, 2); err != nil {
			t.Fatal(err)
		}
		for _, end := range []func(*coord.Item[int]) error{
			(*coord.Item[int]).Ack,
			func(it *coord.Item[int]) error { return it.Nack(0) },
			func(it *coord.Item[int]) error { return it.Nack(0) },
		} {
			it, err := q.Take(ctx)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if err := end(it); err != nil {
				t.Fatal(err)
			}
		}
		x.want(x.ended("coord.attempt", "coord.outcome"),
			"coord.hold 1s attempt=1 outcome=acked",
			"coord.hold 1s attempt=1 outcome=nacked",
			"coord.hold 1s attempt=2 outcome=dead")
		x.want(x.points(),
			"coord.hold.duration{outcome=acked,path=/app/q,recipe=queue} 1, 1 s",
			"coord.hold.duration{outcome=dead,path=/app/q,recipe=queue} 1, 1 s",
			"coord.hold.duration{outcome=nacked,path=/app/q,recipe=queue} 1, 1 s",
			"coord.holds{path=/app/q,recipe=queue} 0",
			"coord.queue.claims{path=/app/q,recipe=queue,redelivered=false} 2",
			"coord.queue.claims{path=/app/q,recipe=queue,redelivered=true} 1",
			"coord.queue.puts{path=/app/q,recipe=queue} 2",
			"coord.queue.settled{outcome=acked,path=/app/q,recipe=queue} 1",
			"coord.queue.settled{outcome=dead,path=/app/q,recipe=queue} 1",
			"coord.queue.settled{outcome=nacked,path=/app/q,recipe=queue} 1",
			"coord.session.changes{phase=connected} 1",
			"coord.sessions{phase=connected} 1")
	})
}

func TestGroupsCachesRoundsAndTransactionsAreCounted(t *testing.T) {
	play(t, Options{}, sdktrace.AlwaysSample(), func(x *scene) {
		ctx, cancel := context.WithCancel(x.t.Context())
		g := coord.NewGroup[string](x.c, "/g", nil)
		m, err := g.Join(ctx, "me", "")
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Leave(); err != nil {
			t.Fatal(err)
		}
		e, err := coord.NewDoubleBarrier(x.c, "/d", 1, nil).Enter(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Leave(ctx); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- coord.NewCache(x.c, "/g", nil).Run(ctx) }()
		yes := func(context.Context, coord.Branch[int]) error { return nil }
		go func() {
			ended <- coord.NewParticipant(x.c, "/tx", "s", coord.Handler[int]{Prepare: yes, Commit: yes, Abort: yes}).Serve(ctx)
		}()
		synctest.Wait()
		if d, err := coord.NewCoordinator[int](x.c, "/tx", nil).Propose(ctx, coord.Proposal[int]{ID: "1", Sites: []string{"s"}}); err != nil || !d.Commit {
			t.Fatal(d, err)
		}
		synctest.Wait()
		cancel()
		<-ended
		<-ended
		x.want(slices.DeleteFunc(x.points(), func(s string) bool {
			return strings.Contains(s, "mutex") || strings.HasPrefix(s, "coord.session")
		}),
			"coord.cache.sync.duration{again=false,path=/app/g,recipe=cache} 1, 0 s",
			"coord.group.changes{outcome=joined,path=/app/g,recipe=group} 1",
			"coord.group.changes{outcome=left,path=/app/g,recipe=group} 1",
			"coord.hold.duration{outcome=released,path=/app/d,recipe=doublebarrier} 1, 0 s",
			"coord.holds{path=/app/d,recipe=doublebarrier} 0",
			"coord.rounds{path=/app/d,recipe=doublebarrier} 1",
			"coord.twophase.decisions{commit=true,path=/app/tx,recipe=twophase,role=proposer} 1",
			"coord.twophase.decisions{commit=true,path=/app/tx,recipe=twophase,role=site} 1",
			"coord.twophase.doubt.duration{path=/app/tx,recipe=twophase} 1, 0 s",
			"coord.twophase.failing{path=/app/tx,recipe=twophase} 0",
			"coord.twophase.undone{path=/app/tx,recipe=twophase} 0",
			"coord.twophase.votes{path=/app/tx,recipe=twophase,yes=true} 1",
			"coord.wait.duration{op=enter,outcome=granted,path=/app/d,recipe=doublebarrier} 1, 0 s")
	})
}

// Names of nodes are new each time: as attributes of metrics they would grow without limit.
func TestMetricsHaveNoNamesOfNodes(t *testing.T) {
	play(t, Options{Path: func(path string) string { return path[:strings.LastIndex(path, "/")+1] }}, sdktrace.AlwaysSample(), func(x *scene) {
		for i := range 50 {
			h, err := coord.NewMutex(x.c, fmt.Sprintf("/users/%d", i), nil).Lock(x.t.Context())
			if err != nil {
				t.Fatal(err)
			}
			h.Release()
		}
		guid := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
		list := x.points()
		for _, s := range list {
			if guid.MatchString(s) {
				t.Error(s)
			}
		}
		x.want(slices.DeleteFunc(list, func(s string) bool { return !strings.HasPrefix(s, "coord.wait") }),
			"coord.wait.duration{op=lock,outcome=granted,path=/app/users/,recipe=mutex} 50, 0 s")
	})
}

func TestOpenSpansAreBounded(t *testing.T) {
	play(t, Options{MaxSpans: 2}, sdktrace.AlwaysSample(), func(x *scene) {
		var holds []*coord.Hold
		for i := range 5 {
			h, err := coord.NewMutex(x.c, fmt.Sprintf("/l%d", i), nil).Lock(x.t.Context())
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, h)
		}
		synctest.Wait()
		if n := len(x.adapter.holds.spans); n != 2 {
			t.Errorf("%d open spans, want 2", n)
		}
		for _, h := range holds {
			h.Release()
		}
		x.want(x.ended("coord.path"), "coord.hold 0s path=/app/l0", "coord.hold 0s path=/app/l1")
	})
}

// If events are missing, no span stays open for ever.
func TestDroppedEventsEndTheOpenSpans(t *testing.T) {
	play(t, Options{}, sdktrace.AlwaysSample(), func(x *scene) {
		h := x.lock(x.t.Context(), x.c)
		synctest.Wait()
		x.adapter.trace(x.t.Context(), coordtrace.EventsDropped{Events: 3})
		x.want(x.ended("coord.path", "coord.outcome"), "coord.hold 0s path=/app/l outcome=unknown")
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
		x.want(x.ended("coord.path", "coord.outcome"), "coord.hold 0s path=/app/l outcome=unknown")
		x.want(slices.DeleteFunc(x.points(), func(s string) bool { return !strings.HasPrefix(s, "coord.dropped") }), "coord.dropped{} 3")
	})
}

func TestSpansThatAreNotSampledAreNotKept(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		x.lock(x.t.Context(), x.c)
		synctest.Wait()
		if n := len(x.adapter.holds.spans); n != 0 {
			t.Errorf("%d open spans", n)
		}
	})
}

// The global providers record nothing unless a program sets them.
func TestNilOptionsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := coord.Open(t.Context(), memory.New(nil), &coord.Options{Trace: New(nil)})
		if err != nil {
			t.Fatal(err)
		}
		h, err := coord.NewMutex(c, "/l", nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(h.Release(), c.Close()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRunsOfASchedule(t *testing.T) {
	play(t, Options{}, sdktrace.AlwaysSample(), func(x *scene) {
		ctx, stop := context.WithCancel(x.t.Context())
		ended := make(chan error, 1)
		n := 0
		began := time.Now()
		go func() {
			s := coord.NewSchedule(x.c, "/jobs", coord.Every(time.Minute), &coord.ScheduleOptions{Missed: coord.MissedOnce})
			ended <- s.Run(ctx, func(ctx context.Context, r *coord.Run) error {
				switch n++; n {
				case 1:
					time.Sleep(3*time.Minute + 30*time.Second) // two planned times are missed, and one is late
				case 2:
					return errors.New("no room")
				case 3:
					if _, err := mustSession(x).Commit(ctx, backend.Delete(r.Path(), backend.AnyVersion)); err != nil {
						t.Error(err)
					}
					<-ctx.Done()
				}
				return nil
			})
		}()
		time.Sleep(6*time.Minute + 30*time.Second)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		success := began.Add(6 * time.Minute).Unix()
		x.want(slices.DeleteFunc(x.points(), func(s string) bool {
			return !strings.HasPrefix(s, "coord.schedule.") || strings.HasPrefix(s, "coord.schedule.late") || strings.HasPrefix(s, "coord.schedule.duration")
		}),
			"coord.schedule.missed{path=/app/jobs,recipe=schedule} 2",
			"coord.schedule.runs{outcome=abandoned,path=/app/jobs,recipe=schedule} 1",
			"coord.schedule.runs{outcome=done,path=/app/jobs,recipe=schedule} 2",
			"coord.schedule.runs{outcome=failed,path=/app/jobs,recipe=schedule} 1",
			"coord.schedule.runs{outcome=lost,path=/app/jobs,recipe=schedule} 1",
			fmt.Sprintf("coord.schedule.success{path=/app/jobs,recipe=schedule} %d", success))
	})
}

func mustSession(x *scene) backend.Session {
	s, err := x.other.Session(x.t.Context())
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}
