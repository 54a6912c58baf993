package oteltrace

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// measuredService is a service in memory whose links are measured.
type measuredService struct{ *memory.Store }

func (s measuredService) Root() string { return "/" }
func (s measuredService) Link(name string) backendtest.Link {
	l := s.Store.Link(name)
	return measuredLink{l, Backend(l, &Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))})}
}

type measuredLink struct {
	*memory.Link
	measured backend.Backend
}

func (l measuredLink) Open(ctx context.Context) (backend.Session, error) { return l.measured.Open(ctx) }

// A recipe cannot see that its backend is measured.
func TestAMeasuredBackendKeepsTheContract(t *testing.T) {
	o := memory.Options{SessionTimeout: 10 * time.Second, LossMargin: 4 * time.Second}
	backendtest.Run(t, backendtest.Harness{
		New:            func(*testing.T) backendtest.Service { return measuredService{memory.New(&o)} },
		Leaf:           synctest.Test,
		SessionTimeout: o.SessionTimeout,
	})
}

func TestEveryCallToTheServiceIsMeasuredWithItsOutcome(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		ctx := x.t.Context()
		x.reader = sdkmetric.NewManualReader()
		link := x.st.Link("measured")
		link.SetLatency(time.Second) // of each request, and of each reply
		b := Backend(link, &Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(x.reader))})
		s, err := b.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, commit := s.Commit(ctx, backend.Create("/n", []byte("x"), backend.Persistent))
		_, again := s.Commit(ctx, backend.Create("/n", nil, backend.Persistent))
		_, _, get := s.Get(ctx, "/n", nil)
		_, exists := s.Exists(ctx, "/missing", nil)
		_, _, children := s.Children(ctx, "/", nil)
		arm := s.Arm(ctx, 0, backend.Target{Path: "/n", Watch: backend.NewWatch()})
		tree := backend.NewTreeWatch(1)
		watch := s.WatchTree(ctx, "/", tree)
		tree.Stop()
		_, read := s.ReadMany(ctx, backend.Read{Path: "/n"})
		sync := s.Sync(ctx, "/")
		if err := errors.Join(commit, get, children, arm, watch, read, sync); err != nil {
			t.Error(err)
		}
		if !errors.Is(again, backend.ErrExists) || !errors.Is(exists, backend.ErrNotFound) {
			t.Error(again, exists)
		}
		_, _, bad := s.Get(ctx, "no path", nil)
		if !errors.Is(bad, backend.ErrBadPath) {
			t.Error(bad)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := s.Sync(short, "/"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		link.DropNextReply()
		if _, err := s.Commit(ctx, backend.SetData("/n", nil, backend.AnyVersion)); !errors.Is(err, backend.ErrUncertain) {
			t.Error(err)
		}
		link.Expire(s.ID())
		<-s.Done()
		if err := s.Sync(ctx, "/"); !errors.Is(err, backend.ErrSessionLost) {
			t.Error(err)
		}
		x.want(x.points(),
			"coord.backend.duration{op=arm,outcome=ok} 1, 2 s",
			"coord.backend.duration{op=children,outcome=ok} 1, 2 s",
			"coord.backend.duration{op=commit,outcome=ok} 1, 2 s",
			"coord.backend.duration{op=commit,outcome=refused} 1, 2 s",
			"coord.backend.duration{op=commit,outcome=uncertain} 1, 1 s",
			"coord.backend.duration{op=exists,outcome=refused} 1, 2 s",
			"coord.backend.duration{op=get,outcome=failed} 1, 0 s",
			"coord.backend.duration{op=get,outcome=ok} 1, 2 s",
			"coord.backend.duration{op=open,outcome=ok} 1, 0 s",
			"coord.backend.duration{op=read,outcome=ok} 1, 2 s",
			"coord.backend.duration{op=sync,outcome=canceled} 1, 1 s",
			"coord.backend.duration{op=sync,outcome=lost} 1, 0 s",
			"coord.backend.duration{op=sync,outcome=ok} 1, 2 s",
			"coord.backend.duration{op=watch,outcome=ok} 1, 2 s")
	})
}

// The measurement adds no allocation to a call.
func TestAMeasuredCallAllocatesNothingMore(t *testing.T) {
	st := memory.New(nil)
	o := &Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))}
	allocs := func(b backend.Backend) float64 {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return testing.AllocsPerRun(200, func() {
			if _, err := s.Exists(t.Context(), "/", nil); err != nil {
				t.Fatal(err)
			}
		})
	}
	plain, measured := allocs(st), allocs(Backend(st, o))
	t.Logf("allocations of a call: %v, measured %v", plain, measured)
	if measured > plain {
		t.Errorf("a call allocates %v times, measured %v times", plain, measured)
	}
}

// BenchmarkBackend shows what a measurement costs, beside a call in memory.
func BenchmarkBackend(b *testing.B) {
	st := memory.New(nil)
	o := &Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))}
	for _, v := range []struct {
		name string
		backend.Backend
	}{{"plain", st}, {"measured", Backend(st, o)}} {
		b.Run(v.name, func(b *testing.B) {
			s, err := v.Open(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Exists(b.Context(), "/", nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A client whose backend is measured works as any other.
func TestRecipesRunOnAMeasuredBackend(t *testing.T) {
	play(t, Options{}, sdktrace.NeverSample(), func(x *scene) {
		c, err := coord.Open(x.t.Context(), Backend(x.st.Link("m"), nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := c.Session(x.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		plain, err := x.other.Session(x.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.Features() != plain.Features() || s.Limits() != plain.Limits() {
			t.Errorf("features %v and limits %v, want %v and %v", s.Features(), s.Limits(), plain.Features(), plain.Limits())
		}
		q := coord.NewQueue[int](c, "/q", nil)
		if _, err := q.PutAll(x.t.Context(), 1, 2, 3); err != nil {
			t.Fatal(err)
		}
		var got []int
		for range 3 {
			it, err := q.Take(x.t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, it.Value)
			if err := it.Ack(); err != nil {
				t.Error(err)
			}
		}
		if !slices.Equal(got, []int{1, 2, 3}) {
			t.Error(got)
		}
	})
}
