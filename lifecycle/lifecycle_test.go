package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errWork = errors.New("the work failed")

func election(c *coord.Client) *coord.Election { return coord.NewElection(c, "/leader", nil) }

// free fails the test unless the election is vacant at once.
func free(t *testing.T, c *coord.Client) {
	t.Helper()
	if l, err := election(c).Leader(t.Context()); err != nil || !l.Vacant() {
		t.Errorf("the leader is %v, error %v", l, err)
	}
}

func TestLead_TheEndOfCtxIsNoError(t *testing.T) {
	late := errors.New("late")
	for name, c := range map[string]struct {
		work func(ctx context.Context, t *coord.Term) error
		want error
	}{
		"the error of ctx": {func(ctx context.Context, _ *coord.Term) error {
			<-ctx.Done()
			return fmt.Errorf("working: %w", ctx.Err())
		}, nil},
		"its cause": {func(ctx context.Context, _ *coord.Term) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, nil},
		"no error": {func(ctx context.Context, _ *coord.Term) error {
			<-ctx.Done()
			return nil
		}, nil},
		"another error": {func(ctx context.Context, _ *coord.Term) error {
			<-ctx.Done()
			return errWork
		}, errWork},
	} {
		t.Run(name, func(t *testing.T) {
			coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
				client := s.Client("a", nil)
				ctx, cancel := context.WithCancelCause(t.Context())
				done := make(chan error, 1)
				go func() { done <- lifecycle.Lead(election(client), c.work)(ctx) }()
				waits := make(chan error, 1)
				synctest.Wait()
				go func() { waits <- lifecycle.Lead(election(s.Client("b", nil)), c.work)(ctx) }()
				synctest.Wait()
				cancel(late)
				if err := <-done; !errors.Is(err, c.want) || c.want == nil && err != nil {
					t.Errorf("the leader: %v", err)
				}
				if err := <-waits; err != nil {
					t.Errorf("the candidate: %v", err)
				}
				free(t, client)
			})
		})
	}
}

// The session ends before the service confirms the end of the term.
func TestLead_AFailureToResignIsReturned(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := lifecycle.Lead(election(s.Client("a", nil)), func(ctx context.Context, _ *coord.Term) error {
			s.Link("a").Blackhole(true)
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})(ctx)
		if !errors.Is(err, coord.ErrLost) || !errors.Is(err, coord.ErrSessionLost) || errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestLead_EndsWithItsWork(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		c := s.Client("a", nil)
		for _, want := range []error{nil, errWork} {
			if err := lifecycle.Lead(election(c), func(context.Context, *coord.Term) error { return want })(t.Context()); !errors.Is(err, want) {
				t.Errorf("error %v, want %v", err, want)
			}
			free(t, c)
		}
		if err := lifecycle.Lead(election(c), nil)(t.Context()); !errors.Is(err, coord.ErrInvalid) {
			t.Errorf("without a function: %v", err)
		}
		func() {
			defer func() {
				if v := recover(); v != errWork {
					t.Errorf("the panic is %v", v)
				}
			}()
			_ = lifecycle.Lead(election(c), func(context.Context, *coord.Term) error { panic(errWork) })(t.Context())
		}()
		free(t, c)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = lifecycle.Lead(election(c), func(context.Context, *coord.Term) error { runtime.Goexit(); return nil })(t.Context())
		}()
		<-done
		free(t, c)
	})
}

// A lost term ends the context of work, and the task leads again when work has returned, behind the candidates that wait.
func TestLead_ALostTerm(t *testing.T) {
	coordtest.Each(t, &coordtest.Options{SessionTimeout: 3 * time.Second}, func(t *testing.T, s *coordtest.Service) {
		a, events := s.Client("a", nil), make(chan string, 10)
		ctx, cancel := context.WithCancel(t.Context())
		g, ctx := errgroup.WithContext(ctx)
		lead := func(c *coord.Client, name string) {
			g.Go(func() error {
				return lifecycle.Lead(election(c), func(ctx context.Context, t *coord.Term) error {
					events <- name + " leads"
					<-ctx.Done()
					events <- name + " stops"
					return ctx.Err()
				})(ctx)
			})
		}
		want := func(events <-chan string, want ...string) {
			t.Helper()
			var got []string
			for range want {
				got = append(got, <-events)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		}
		lead(a, "a")
		want(events, "a leads")
		s.Link("a").Expire()
		want(events, "a stops", "a leads")
		cancel()
		want(events, "a stops")
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// In an errgroup a task that cannot continue ends the others, and the client is closed when all have returned.
func TestWithClient_InAGroup(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		var of *coord.Client
		stopped := false
		task := lifecycle.WithClient(s.Link("a"), nil, func(ctx context.Context, c *coord.Client) error {
			of = c
			g, ctx := errgroup.WithContext(ctx)
			g.Go(func() error {
				return lifecycle.Lead(election(c), func(ctx context.Context, _ *coord.Term) error {
					<-ctx.Done()
					_, err := coord.NewValue[string](c, "/v", nil).Set(context.WithoutCancel(ctx), "")
					stopped = err == nil // the client is open
					return err
				})(ctx)
			})
			g.Go(func() error {
				time.Sleep(time.Minute)
				return errWork
			})
			return g.Wait()
		})
		if err := task(t.Context()); !errors.Is(err, errWork) || !stopped {
			t.Errorf("error %v, the other task has stopped: %t", err, stopped)
		}
		if _, err := election(of).Leader(t.Context()); !errors.Is(err, coord.ErrClosed) {
			t.Errorf("the client is not closed: %v", err)
		}
		free(t, s.Client("b", nil))
	})
}

func TestWithClient_ClosesItsClient(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		closed := func(c *coord.Client) {
			t.Helper()
			if _, err := election(c).Leader(t.Context()); !errors.Is(err, coord.ErrClosed) {
				t.Errorf("the client is not closed: %v", err)
			}
		}
		var of *coord.Client
		ctx, cancel := context.WithCancel(t.Context())
		err := lifecycle.WithClient(s.Link("a"), nil, func(ctx context.Context, c *coord.Client) error {
			of = c
			cancel()
			return ctx.Err()
		})(ctx)
		if err != nil {
			t.Error(err)
		}
		closed(of)
		func() {
			defer func() {
				if v := recover(); v != errWork {
					t.Errorf("the panic is %v", v)
				}
			}()
			_ = lifecycle.WithClient(s.Link("a"), nil, func(_ context.Context, c *coord.Client) error {
				of = c
				panic(errWork)
			})(t.Context())
		}()
		closed(of)
		s.Link("b").Refuse(true)
		never := func(context.Context, *coord.Client) error {
			t.Error("called without a client")
			return nil
		}
		if err := lifecycle.WithClient(s.Link("b"), nil, nil)(t.Context()); !errors.Is(err, coord.ErrInvalid) {
			t.Errorf("without a function: %v", err)
		}
		late, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		for name, ctx := range map[string]context.Context{"ended": ctx, "deadline": late} {
			if err := lifecycle.WithClient(s.Link("b"), nil, never)(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := lifecycle.WithClient(s.Link("b"), &coord.Options{OpenTimeout: time.Second}, never)(t.Context()); !errors.Is(err, coord.ErrNoContact) {
			t.Errorf("without contact: %v", err)
		}
	})
}

func TestHook_RunsATaskFromStartToStop(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		c := s.Client("a", nil)
		type key struct{}
		terms := 0
		hook := lifecycle.NewHook(lifecycle.Lead(election(c), func(ctx context.Context, _ *coord.Term) error {
			if ctx.Value(key{}) != "value" {
				t.Error("the values of the context of Start are lost")
			}
			terms++
			<-ctx.Done()
			return ctx.Err()
		}), func(err error) { t.Errorf("the task has ended: %v", err) })
		if err := hook.Stop(t.Context()); err != nil {
			t.Errorf("Stop before Start: %v", err)
		}
		for range 2 {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
			if err := hook.Start(ctx); err != nil {
				t.Fatal(err)
			}
			cancel() // the start is over
			if err := hook.Start(ctx); err == nil {
				t.Error("started twice")
			}
			time.Sleep(time.Hour)
			if l, err := election(c).Leader(t.Context()); err != nil || l.Vacant() {
				t.Errorf("the leader is %v, error %v", l, err)
			}
			if err := hook.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			free(t, c)
		}
		if terms != 2 {
			t.Errorf("%d terms", terms)
		}
	})
}

func TestHook_RefusesNoTask(t *testing.T) {
	hook := lifecycle.NewHook(nil, func(err error) { t.Errorf("ended: %v", err) })
	if err := hook.Start(t.Context()); !errors.Is(err, coord.ErrInvalid) {
		t.Error(err)
	}
	if err := hook.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// The application learns of a task that has ended by itself, and Stop returns its error too.
func TestHook_TellsOfTheEndOfItsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			task lifecycle.Task
			want string
		}{
			"error":  {func(context.Context) error { return errWork }, errWork.Error()},
			"done":   {func(context.Context) error { return nil }, "<nil>"},
			"Goexit": {func(context.Context) error { runtime.Goexit(); return nil }, "lifecycle: the task ended its goroutine (runtime.Goexit)"},
		} {
			var told []string
			hook := lifecycle.NewHook(c.task, func(err error) { told = append(told, fmt.Sprint(err)) })
			if err := hook.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if !slices.Equal(told, []string{c.want}) {
				t.Errorf("%s: told %q", name, told)
			}
			if err := hook.Stop(t.Context()); fmt.Sprint(err) != c.want {
				t.Errorf("%s: Stop: %v", name, err)
			}
		}
	})
}

// A task that does not return in time makes Stop fail, and another Stop waits for it.
func TestHook_StopWaitsAsLongAsItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook := lifecycle.NewHook(func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Minute)
			return errWork
		}, func(err error) { t.Errorf("told %v", err) })
		if err := hook.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := hook.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Stop: %v", err)
		}
		if err := hook.Start(t.Context()); err == nil {
			t.Error("started beside a task that has not returned")
		}
		if err := hook.Stop(t.Context()); !errors.Is(err, errWork) {
			t.Errorf("Stop: %v", err)
		}
	})
}

// Many calls of Stop wait for one task. The first that returns lets the application start again, and the other calls leave that start alone.
func TestHook_StopsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, end := 0, make(chan struct{})
		hook := lifecycle.NewHook(func(ctx context.Context) error {
			running++
			<-ctx.Done()
			<-end
			return nil
		}, nil)
		if err := hook.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		var again sync.Once
		for range 100 {
			all.Go(func() {
				if err := hook.Stop(t.Context()); err != nil {
					t.Error(err)
				}
				again.Do(func() {
					if err := hook.Start(t.Context()); err != nil {
						t.Error(err)
					}
				})
			})
		}
		synctest.Wait() // all of them wait
		close(end)
		all.Wait()
		synctest.Wait()
		if err := hook.Start(t.Context()); err == nil {
			t.Error("a Stop has forgotten the task of another Start")
		}
		if err := hook.Stop(t.Context()); err != nil || running != 2 {
			t.Errorf("error %v, the task has run %d times", err, running)
		}
	})
}

// An application whose deadline has passed learns how its task has ended, if it has.
func TestHook_StopAfterItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, cancel := context.WithCancel(t.Context())
		cancel()
		for range 50 {
			hook := lifecycle.NewHook(func(context.Context) error { return errWork }, nil)
			if err := hook.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if err := hook.Stop(late); !errors.Is(err, errWork) {
				t.Fatalf("Stop: %v", err)
			}
		}
		stopped := make(chan struct{})
		hook := lifecycle.NewHook(func(ctx context.Context) error {
			<-ctx.Done()
			close(stopped)
			return nil
		}, nil)
		if err := hook.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := hook.Stop(late); !errors.Is(err, context.Canceled) {
			t.Errorf("Stop: %v", err)
		}
		<-stopped // ended has been called
		if err := hook.Stop(t.Context()); err != nil {
			t.Errorf("another Stop: %v", err)
		}
	})
}

// A panic ends the process. The hook does not call ended for it: an application that exits in ended would hide the panic.
func TestHook_APanicIsNotTold(t *testing.T) {
	const child = "COORD_LIFECYCLE_PANICS"
	if os.Getenv(child) != "" {
		hook := lifecycle.NewHook(func(context.Context) error { panic(errWork) }, func(error) { os.Exit(0) })
		_ = hook.Start(t.Context())
		select {}
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), child+"=1")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "panic: the work failed") {
		t.Errorf("%v\n%s", err, out)
	}
}
