package backendtest_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

// interceptedStore opens one session with hooks and one without.
func interceptedStore(t *testing.T, h backendtest.Hooks) (hooked, plain backend.Session) {
	t.Helper()
	st := memory.New(nil)
	open := func(b backend.Backend) backend.Session {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	return open(backendtest.Intercept(st, h)), open(st)
}

// A backend with hooks that change nothing behaves like the backend below them.
func TestInterceptIsTransparent(t *testing.T) {
	h := memoryHarness(10 * time.Second)
	h.Leaf = synctest.Test
	below := h.New
	h.New = func(t *testing.T) backendtest.Service {
		return interceptedService{below(t).(store)}
	}
	backendtest.Run(t, h)
}

type interceptedService struct{ store }

func (s interceptedService) Link(name string) backendtest.Link {
	l := s.store.Store.Link(name)
	return interceptedLink{l, backendtest.Intercept(l, backendtest.Hooks{
		Before: func(context.Context, backendtest.Call) error { return nil },
		After:  func(_ context.Context, _ backendtest.Call, err error) error { return err },
		Names:  func(_ backendtest.Call, names []string) []string { return names },
	})}
}

type interceptedLink struct {
	*memory.Link
	hooked backend.Backend
}

func (l interceptedLink) Open(ctx context.Context) (backend.Session, error) {
	return l.hooked.Open(ctx)
}

func TestBeforeLosesARequest(t *testing.T) {
	s, plain := interceptedStore(t, backendtest.Hooks{
		Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "commit" && c.Path == "/n" && len(c.Ops) == 2 {
				return backend.ErrUncertain
			}
			return nil
		},
	})
	_, err := s.Commit(t.Context(), backend.Create("/n", nil, backend.Persistent), backend.Check("/n", 0))
	var e *backend.Error
	if !errors.Is(err, backend.ErrUncertain) || !errors.As(err, &e) || e.Op != "commit" || e.Index != -1 {
		t.Fatalf("got %v", err)
	}
	if _, err := plain.Exists(t.Context(), "/n", nil); !errors.Is(err, backend.ErrNotFound) {
		t.Fatalf("the commit was made: %v", err)
	}
}

func TestAfterLosesAReplyOnceItWasApplied(t *testing.T) {
	var once sync.Once
	s, plain := interceptedStore(t, backendtest.Hooks{
		After: func(_ context.Context, c backendtest.Call, err error) error {
			if c.Op == "commit" && err == nil {
				once.Do(func() { err = backend.ErrUncertain })
			}
			return err
		},
	})
	for i, path := range []string{"/a", "/b"} {
		r, err := s.Commit(t.Context(), backend.Create(path, nil, backend.Persistent))
		if lost := errors.Is(err, backend.ErrUncertain); lost != (i == 0) || lost != (r == nil) {
			t.Fatalf("commit %d returned %v, %v", i, r, err)
		}
		if _, err := plain.Exists(t.Context(), path, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAfterHoldsAReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s, plain := interceptedStore(t, backendtest.Hooks{
			After: func(ctx context.Context, c backendtest.Call, err error) error {
				select {
				case <-release:
					return err
				case <-ctx.Done():
					return backend.Uncertain(backend.ContextError(ctx))
				}
			},
		})
		result := make(chan error, 1)
		commit := func(ctx context.Context, path string) {
			_, err := s.Commit(ctx, backend.Create(path, nil, backend.Persistent))
			result <- err
		}
		cause := errors.New("the reason")
		ctx, cancel := context.WithCancelCause(t.Context())
		go commit(ctx, "/a")
		synctest.Wait()
		if _, err := plain.Exists(t.Context(), "/a", nil); err != nil {
			t.Fatal(err)
		}
		cancel(cause)
		if err := <-result; !errors.Is(err, cause) || !errors.Is(err, backend.ErrUncertain) {
			t.Fatalf("got %v", err)
		}
		go commit(t.Context(), "/b")
		synctest.Wait()
		select {
		case err := <-result:
			t.Fatalf("the held commit returned %v", err)
		default:
		}
		close(release)
		if err := <-result; err != nil {
			t.Fatal(err)
		}
	})
}

func TestAReadThatAHookFailsLeavesItsWatchUnarmed(t *testing.T) {
	broken := errors.New("broken")
	fail := true
	s, plain := interceptedStore(t, backendtest.Hooks{
		After: func(_ context.Context, _ backendtest.Call, err error) error {
			if fail {
				return broken
			}
			return err
		},
	})
	create := func(path string) {
		t.Helper()
		if _, err := plain.Commit(t.Context(), backend.Create(path, nil, backend.Persistent)); err != nil {
			t.Fatal(err)
		}
	}
	create("/n")
	unarmed, armed := backend.NewWatch(), backend.NewWatch()
	if _, _, err := s.Children(t.Context(), "/n", unarmed); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	fail = false
	if _, err := s.Exists(t.Context(), "/missing", armed); !errors.Is(err, backend.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	create("/n/child")
	create("/missing")
	if unarmed.Kind() != 0 || armed.Kind() != backend.LookAgain {
		t.Fatalf("the watches have kinds %q and %q", unarmed.Kind(), armed.Kind())
	}
}

func TestAHookSeesAnArmAndFailsIt(t *testing.T) {
	broken := errors.New("broken")
	var seen []backendtest.Call
	fail := true
	s, plain := interceptedStore(t, backendtest.Hooks{
		After: func(_ context.Context, c backendtest.Call, err error) error {
			seen = append(seen, c)
			if fail {
				return broken
			}
			return err
		},
	})
	if _, err := plain.Commit(t.Context(), backend.Create("/n", nil, backend.Persistent)); err != nil {
		t.Fatal(err)
	}
	targets := func() []backend.Target {
		return []backend.Target{{Path: "/n", Watch: backend.NewWatch()}, {Path: "/n", Children: true, Watch: backend.NewWatch()}}
	}
	failed, armed := targets(), targets()
	err := s.Arm(t.Context(), math.MaxInt64, failed...)
	var e *backend.Error
	if !errors.Is(err, broken) || !errors.As(err, &e) || e.Op != "arm" || e.Path != "/n" {
		t.Errorf("got %v", err)
	}
	fail = false
	if err := s.Arm(t.Context(), math.MaxInt64, armed...); err != nil {
		t.Fatal(err)
	}
	if err := s.Arm(t.Context(), 0); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("of nothing: %v", err)
	}
	if len(seen) != 3 || seen[0].Op != "arm" || seen[0].Path != "/n" || !slices.Equal(seen[0].Targets, failed) || seen[2].Targets != nil {
		t.Errorf("the hook saw %+v", seen)
	}
	if _, err := plain.Commit(t.Context(), backend.Delete("/n", 0)); err != nil {
		t.Fatal(err)
	}
	for i := range armed {
		if failed[i].Watch.Kind() != 0 || armed[i].Watch.Kind() != backend.Deleted {
			t.Errorf("watch %d: %v of the Arm that failed, %v of the other", i, failed[i].Watch.Kind(), armed[i].Watch.Kind())
		}
	}
}

func TestNamesShowAStaleReplica(t *testing.T) {
	var calls []string
	s, plain := interceptedStore(t, backendtest.Hooks{
		Names: func(c backendtest.Call, names []string) []string {
			calls = append(calls, c.Op+" "+c.Path)
			return slices.DeleteFunc(names, func(n string) bool { return n == "new" })
		},
	})
	for _, p := range []string{"/old", "/new"} {
		if _, err := plain.Commit(t.Context(), backend.Create(p, nil, backend.Persistent)); err != nil {
			t.Fatal(err)
		}
	}
	names, stat, err := s.Children(t.Context(), "/", nil)
	if err != nil || !slices.Equal(names, []string{"old"}) || stat.NumChildren != 2 {
		t.Fatalf("got %v, %+v, %v", names, stat, err)
	}
	if !slices.Equal(calls, []string{"children /"}) {
		t.Fatalf("the hook saw %v", calls)
	}
}

func TestACallNamesItsSession(t *testing.T) {
	var seen []int64
	s, _ := interceptedStore(t, backendtest.Hooks{
		Before: func(ctx context.Context, c backendtest.Call) error {
			seen = append(seen, c.Session.ID())
			return c.Session.Sync(ctx, "/") // passes no hook
		},
	})
	if _, err := s.Exists(t.Context(), "/", nil); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seen, []int64{s.ID()}) {
		t.Fatalf("the hook saw sessions %v, want %d once", seen, s.ID())
	}
}
