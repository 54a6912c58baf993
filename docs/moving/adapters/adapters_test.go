// Package adapters runs the code of docs/adapters.md with the frameworks themselves: controller-runtime, fx and errgroup.
package adapters

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/lifecycle"
)

// The functions up to the first test stand on the page as they are here, which internal/readme checks.

func serve(ctx context.Context, b backend.Backend, work func(context.Context, *coord.Term) error, listen func(context.Context) error) error {
	return lifecycle.WithClient(b, nil, func(ctx context.Context, c *coord.Client) error {
		g, ctx := errgroup.WithContext(ctx)
		lead := lifecycle.Lead(coord.NewElection(c, "/leader", nil), work)
		g.Go(func() error { return lead(ctx) })
		g.Go(func() error { return listen(ctx) })
		return g.Wait() // then the client is closed
	})(ctx)
}

func newClient(lc fx.Lifecycle, b backend.Backend) (*coord.Client, error) {
	c, err := coord.Open(context.Background(), b, &coord.Options{OpenTimeout: 10 * time.Second})
	if err == nil {
		lc.Append(fx.StopHook(c.Close)) // after the hooks of all that uses it
	}
	return c, err
}

func leadInFx(lc fx.Lifecycle, s fx.Shutdowner, c *coord.Client, work func(context.Context, *coord.Term) error) {
	hook := lifecycle.NewHook(lifecycle.Lead(coord.NewElection(c, "/leader", nil), work), func(error) {
		_ = s.Shutdown(fx.ExitCode(1)) // or the application continues without it
	})
	lc.Append(fx.StartStopHook(hook.Start, hook.Stop))
}

// The program exits when manage returns: a Manager starts once.
func manage(ctx context.Context, c *coord.Client, m manager.Manager) error {
	term, err := coord.NewElection(c, "/controllers", nil).Campaign(ctx)
	if err != nil {
		return err
	}
	if err := m.Start(term.Context(ctx)); err != nil {
		return err // without Release: controllers may still run
	}
	return term.Release() // fails if the term was lost
}

var (
	_ manager.Runnable               = lifecycle.Task(nil)
	_ manager.LeaderElectionRunnable = lifecycle.Task(nil)
)

var options = &coordtest.Options{SessionTimeout: 3 * time.Second}

// newManager returns a Manager that never asks an API server.
func newManager(t *testing.T, grace time.Duration) manager.Manager {
	t.Helper()
	m, err := manager.New(&rest.Config{Host: "127.0.0.1:1"}, manager.Options{
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		MapperProvider:          func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return meta.NewDefaultRESTMapper(nil), nil },
		GracefulShutdownTimeout: &grace,
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// work reports the begin and the end of each term.
func work(events chan<- string) func(context.Context, *coord.Term) error {
	return func(ctx context.Context, _ *coord.Term) error {
		events <- "leads"
		<-ctx.Done()
		events <- "stops"
		return ctx.Err()
	}
}

func want(t *testing.T, events <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-events:
			if got != w {
				t.Fatalf("%s, want: %s", got, w)
			}
		case <-time.After(time.Minute):
			t.Fatalf("nothing happens, want: %s", w)
		}
	}
}

func onZooKeeper(t *testing.T, f func(s *coordtest.Service)) {
	f(coordtest.StartZooKeeper(t, nil).Service(t, options))
}

// A Manager without an election starts a task, a lost session begins another term of it, and the end of the Manager waits for it.
func TestTask_IsARunnable(t *testing.T) {
	onZooKeeper(t, func(s *coordtest.Service) {
		m, events := newManager(t, 10*time.Second), make(chan string, 10)
		if err := m.Add(lifecycle.Lead(coord.NewElection(s.Client("a", nil), "/leader", nil), work(events))); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Start(ctx) }()
		want(t, events, "leads")
		s.Link("a").Expire()
		want(t, events, "stops", "leads")
		cancel()
		want(t, events, "stops")
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A task that cannot continue stops the Manager.
func TestTask_ItsErrorStopsTheManager(t *testing.T) {
	onZooKeeper(t, func(s *coordtest.Service) {
		m, failed := newManager(t, 10*time.Second), errors.New("the work failed")
		lead := lifecycle.Lead(coord.NewElection(s.Client("a", nil), "/leader", nil), func(context.Context, *coord.Term) error { return failed })
		if err := m.Add(lead); err != nil {
			t.Fatal(err)
		}
		if err := m.Start(t.Context()); !errors.Is(err, failed) {
			t.Error(err)
		}
	})
}

// The controllers of a Manager run in the leader only. Another process takes over after a loss, and after the end of the context.
func TestManager_RunsInATerm(t *testing.T) {
	onZooKeeper(t, func(s *coordtest.Service) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		start := func(ctx context.Context, name string) (<-chan string, <-chan error) {
			m, events, done := newManager(t, 10*time.Second), make(chan string, 10), make(chan error, 1)
			_, err := controller.New("reports of "+name, m, controller.Options{
				Reconciler: reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { return reconcile.Result{}, nil }),
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Add(manager.RunnableFunc(func(ctx context.Context) error { return work(events)(ctx, nil) })); err != nil {
				t.Fatal(err)
			}
			go func() { done <- manage(ctx, s.Client(name, nil), m) }()
			return events, done
		}
		a, lost := start(t.Context(), "a")
		want(t, a, "leads")
		b, ended := start(ctx, "b")
		s.Link("a").Expire()
		want(t, b, "leads")
		want(t, a, "stops")
		if err := <-lost; !errors.Is(err, coord.ErrLost) {
			t.Errorf("after a loss: %v", err)
		}
		cancel()
		want(t, b, "stops")
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if l, err := coord.NewElection(s.Client("c", nil), "/controllers", nil).Leader(t.Context()); err != nil || !l.Vacant() {
			t.Errorf("the leader is %v, error %v", l, err)
		}
	})
}

// fx stops the hook of the work before it closes the client.
func TestHook_InFx(t *testing.T) {
	onZooKeeper(t, func(s *coordtest.Service) {
		events := make(chan string, 10)
		var c *coord.Client
		app := fxtest.New(t,
			fx.Supply(fx.Annotate(s.Link("a"), fx.As(new(backend.Backend)))),
			fx.Provide(newClient, func() func(context.Context, *coord.Term) error {
				return func(ctx context.Context, term *coord.Term) error {
					err := work(events)(ctx, term)
					if h, failed := coord.NewMutex(c, "/open", nil).TryLock(context.WithoutCancel(ctx)); failed != nil {
						t.Errorf("the client is closed before the hook: %v", failed)
					} else {
						h.Release()
					}
					return err
				}
			}),
			fx.Populate(&c), fx.Invoke(leadInFx))
		app.RequireStart()
		want(t, events, "leads")
		app.RequireStop()
		want(t, events, "stops")
		if _, err := coord.NewElection(c, "/leader", nil).Leader(t.Context()); !errors.Is(err, coord.ErrClosed) {
			t.Errorf("the client is not closed: %v", err)
		}
	})
}

// Work that does not return before the deadline of the stop leads on, with an open client. If the deadline has passed before the
// stop, fx calls no hook: the context of the work does not end.
func TestHook_ThatStopsTooLate(t *testing.T) {
	onZooKeeper(t, func(s *coordtest.Service) {
		for name, told := range map[string]bool{"was told": true, "was not told": false} {
			events, works, end := make(chan string, 10), make(chan context.Context, 1), make(chan struct{})
			var c *coord.Client
			app := fx.New(fx.NopLogger,
				fx.Supply(fx.Annotate(s.Link("a"), fx.As(new(backend.Backend)))),
				fx.Provide(newClient, func() func(context.Context, *coord.Term) error {
					return func(ctx context.Context, _ *coord.Term) error {
						works <- ctx
						events <- "leads"
						<-end
						if ctx.Err() != nil {
							events <- "was told"
						} else {
							events <- "was not told"
						}
						return ctx.Err()
					}
				}),
				fx.Populate(&c), fx.Invoke(leadInFx))
			if err := app.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			want(t, events, "leads")
			ctx, cancel := context.WithCancel(t.Context())
			if told {
				context.AfterFunc(<-works, cancel) // the deadline passes during the stop
			} else {
				cancel()
			}
			if err := app.Stop(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: Stop: %v", name, err)
			}
			cancel()
			if l, err := coord.NewElection(c, "/leader", nil).Leader(t.Context()); err != nil || l.Vacant() {
				t.Errorf("%s: the leader is %v, error %v", name, l, err)
			}
			close(end)
			want(t, events, name)
			if err := c.Close(); err != nil {
				t.Errorf("%s: Close: %v", name, err)
			}
		}
	})
}

// A Runnable of the Manager that cannot continue ends the term: the work returns, and the process resigns before the Manager does.
func TestTask_EndsWithItsSiblings(t *testing.T) {
	onZooKeeper(t, func(s *coordtest.Service) {
		m, events, failed, c := newManager(t, 10*time.Second), make(chan string, 10), errors.New("the sibling failed"), s.Client("a", nil)
		if err := m.Add(lifecycle.Lead(coord.NewElection(c, "/leader", nil), work(events))); err != nil {
			t.Fatal(err)
		}
		for _, sibling := range []manager.RunnableFunc{
			func(context.Context) error { return nil },              // its work is done, and nothing ends
			func(context.Context) error { <-events; return failed }, // when the process leads
		} {
			if err := m.Add(sibling); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Start(t.Context()); !errors.Is(err, failed) {
			t.Error(err)
		}
		want(t, events, "stops")
		if l, err := coord.NewElection(c, "/leader", nil).Leader(t.Context()); err != nil || !l.Vacant() {
			t.Errorf("the leader is %v, error %v", l, err)
		}
	})
}

// A task of an errgroup that fails ends the term, waits for the work, and the client is closed after both.
func TestServe_EndsWithItsSiblings(t *testing.T) {
	onZooKeeper(t, func(s *coordtest.Service) {
		events, failed := make(chan string, 10), errors.New("the sibling failed")
		err := serve(t.Context(), s.Link("a"), work(events), func(context.Context) error {
			<-events // it leads
			return failed
		})
		if !errors.Is(err, failed) {
			t.Error(err)
		}
		want(t, events, "stops")
		if l, err := coord.NewElection(s.Client("b", nil), "/leader", nil).Leader(t.Context()); err != nil || !l.Vacant() {
			t.Errorf("the leader is %v, error %v", l, err)
		}
	})
}

// The application ends when the work cannot continue.
func TestHook_ItsErrorEndsTheApplication(t *testing.T) {
	onZooKeeper(t, func(s *coordtest.Service) {
		failed := errors.New("the work failed")
		app := fx.New(fx.NopLogger,
			fx.Supply(fx.Annotate(s.Link("a"), fx.As(new(backend.Backend)))),
			fx.Provide(newClient, func() func(context.Context, *coord.Term) error {
				return func(context.Context, *coord.Term) error { return failed }
			}),
			fx.Invoke(leadInFx))
		if err := app.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if signal := <-app.Wait(); signal.ExitCode != 1 {
			t.Errorf("%v", signal)
		}
		if err := app.Stop(t.Context()); !errors.Is(err, failed) {
			t.Errorf("Stop: %v", err)
		}
	})
}

func TestServe_EndsWithItsContext(t *testing.T) {
	onZooKeeper(t, func(s *coordtest.Service) {
		events := make(chan string, 10)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- serve(ctx, s.Link("a"), work(events), func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			})
		}()
		want(t, events, "leads")
		cancel()
		want(t, events, "stops")
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
