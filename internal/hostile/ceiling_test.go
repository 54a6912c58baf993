package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zklog"
	"github.com/go-coord/coord/internal/zkservice"
	"github.com/go-coord/coord/internal/zktest"
)

// counted returns a world on a real server of its own, where the next sequential children of
// some directories get given numbers. No test can create two billion nodes, so the log of the
// server is changed.
func counted(t *testing.T, next map[string]int32) *coordtest.World {
	t.Helper()
	e := zktest.Run(t, &zktest.Options{JavaArgs: []string{"-Dzookeeper.digest.enabled=false"}})
	w := &coordtest.World{
		Service: zkservice.New(t, e, zookeeper.Options{SessionTimeout: coordtest.RealTimeout}),
		T:       t, Timeout: coordtest.RealTimeout,
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := w.Session("planter")
	numbers := make(map[string]int32)
	for dir, n := range next {
		numbers[w.Path(dir)] = n
		parts := strings.Split(dir[1:], "/")
		for i := range parts {
			path := w.Path("/" + strings.Join(parts[:i+1], "/"))
			if _, err := s.Commit(ctx, backend.Create(path, nil, backend.Persistent)); err != nil && !errors.Is(err, backend.ErrExists) {
				t.Fatal(err)
			}
		}
		for _, op := range []backend.Op{
			backend.Create(w.Path(dir)+"/seed", nil, backend.Persistent), backend.Delete(w.Path(dir)+"/seed", backend.AnyVersion),
		} {
			if _, err := s.Commit(ctx, op); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	server := e.Servers()[0]
	server.Kill()
	if err := zklog.SetSequences(server.DataDir(), numbers); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	return w
}

// held is the result of an acquisition of any recipe.
type held interface {
	Path() string
	Release() error
}

// numberOf returns the sequence number in the path of a node.
func numberOf(path string) string { return path[len(path)-10:] }

// This shows on a real server what TestMutex_TheDirectoryIsReplacedBeforeItsNumbersEnd shows on
// memory.
func TestADirectoryCrossesTheCeilingOnARealServer(t *testing.T) {
	t.Parallel()
	const soft, closing, hard = 2_000_000_000, 2_100_000_000, 2_147_000_000
	next := map[string]int32{
		"/soft": soft, "/rw": soft, "/election": soft, "/semaphore/requests": soft, "/group": soft,
		"/drain": closing - 2, "/drain-election": closing - 2, "/try": closing - 1, "/foreign": closing,
		"/hard": hard, "/last": math.MaxInt32, "/last-rw": math.MaxInt32, "/last-election": math.MaxInt32,
		"/last-semaphore/requests": math.MaxInt32, "/last-group": math.MaxInt32, "/crowd": math.MaxInt32 - 3, "/control": math.MaxInt32,
	}
	w := counted(t, next)
	c, d := w.Open("a", nil), w.Open("b", nil)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()

	t.Run("the last holder removes an old directory", func(t *testing.T) {
		e := coord.NewElection(c, "/election", nil)
		g := coord.NewGroup[string](c, "/group", nil)
		for name, take := range map[string]func() (path string, token int64, release func() error){
			"mutex":  take(t, coord.NewMutex(c, "/soft", nil)),
			"writer": take(t, coord.NewRWMutex(c, "/rw", nil)),
			"election": func() (string, int64, func() error) {
				term, err := e.Campaign(ctx)
				if err != nil {
					t.Fatal(err)
				}
				return term.Path(), term.Token(), term.Release
			},
			"semaphore": func() (string, int64, func() error) {
				h, err := coord.NewSemaphore(c, "/semaphore", 2, nil).Acquire(ctx, 1)
				if err != nil {
					t.Fatal(err)
				}
				return h.Path(), 0, h.Release
			},
			"group": func() (string, int64, func() error) {
				m, err := g.Join(ctx, "a", "v")
				if err != nil {
					t.Fatal(err)
				}
				got, err := g.Member(ctx, "a")
				if err != nil {
					t.Fatal(err)
				}
				return got.Path, got.Token, m.Leave
			},
		} {
			path, before, release := take()
			if n := numberOf(path); n < fmt.Sprint(soft) {
				t.Errorf("%s: number %s, the directory was not brought to its ceiling", name, n)
			}
			if err := release(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			path, token, release := take()
			if numberOf(path) != "0000000000" {
				t.Errorf("%s: path %s, want the first of a new directory", name, path)
			}
			if token < before || token == before && token != 0 {
				t.Errorf("%s: token %d after %d", name, token, before)
			}
			if err := release(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	})

	t.Run("a directory that never is empty is drained", func(t *testing.T) {
		for _, path := range []string{"/drain", "/drain-election"} {
			enter := func(c *coord.Client) func() (*coord.Hold, error) {
				if path == "/drain" {
					return func() (*coord.Hold, error) { return coord.NewMutex(c, path, nil).Lock(ctx) }
				}
				return func() (*coord.Hold, error) {
					term, err := coord.NewElection(c, path, nil).Campaign(ctx)
					if err != nil {
						return nil, err
					}
					return term.Hold, nil
				}
			}
			first, err := enter(c)()
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			holders, last, grants, crossed := 1, first.Token(), 0, 0
			var wg sync.WaitGroup
			for i := range 5 {
				wait := enter(w.Open(fmt.Sprint(path, i), nil))
				wg.Go(func() {
					for range 3 {
						h, err := wait()
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						if holders++; holders != 1 {
							t.Errorf("%s: %d holders", path, holders)
						}
						if h.Token() <= last {
							t.Errorf("%s: token %d after %d", path, h.Token(), last)
						}
						last = h.Token()
						grants++
						if numberOf(h.Path()) < "0000001000" {
							crossed++
						}
						holders--
						mu.Unlock()
						if err := h.Release(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			// All but one are over the number at which the directory is closed.
			w.Eventually("one is in the queue, and the others wait for it to drain", func() bool { return len(w.Children(path)) >= 2 })
			mu.Lock()
			holders--
			mu.Unlock()
			if err := first.Release(); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			t.Logf("figure: %s: %d grants over the ceiling of a real server, %d of them in the new directory", path, grants, crossed)
			if grants != 15 || crossed == 0 {
				t.Errorf("%s: %d grants, want 15; %d in the new directory", path, grants, crossed)
			}
			w.Empty(path)
		}
	})

	t.Run("a try does not wait for it", func(t *testing.T) {
		h := coordtest.MustLock(t, coord.NewMutex(c, "/try", nil))
		m := coord.NewMutex(d, "/try", nil)
		_, err := m.TryLock(ctx)
		coordtest.WantErr(t, err, coord.ErrLocked)
		coordtest.MustRelease(t, h)
		coordtest.MustRelease(t, coordtest.MustLock(t, m))
	})

	t.Run("foreign nodes that keep an old directory are reported", func(t *testing.T) {
		s := w.Session("x")
		readme := w.Path("/foreign/README")
		if _, err := s.Commit(ctx, backend.Create(readme, nil, backend.Persistent)); err != nil {
			t.Fatal(err)
		}
		m := coord.NewMutex(c, "/foreign", nil)
		_, err := m.Lock(ctx)
		coordtest.WantErr(t, err, coord.ErrLimit)
		if _, err := s.Commit(ctx, backend.Delete(readme, backend.AnyVersion)); err != nil {
			t.Fatal(err)
		}
		coordtest.MustRelease(t, coordtest.MustLock(t, m)) // and works again without them
	})

	t.Run("at the very end there is an error, never two holders", func(t *testing.T) {
		var crowd []*coord.Client
		for i := range 6 {
			crowd = append(crowd, w.Open(fmt.Sprint("crowd", i), nil))
		}
		for what, enter := range map[string]func(*coord.Client) (held, error){
			"/hard":    func(c *coord.Client) (held, error) { return coord.NewMutex(c, "/hard", nil).Lock(ctx) },
			"/last":    func(c *coord.Client) (held, error) { return coord.NewMutex(c, "/last", nil).Lock(ctx) },
			"/last-rw": func(c *coord.Client) (held, error) { return coord.NewRWMutex(c, "/last-rw", nil).RLock(ctx) },
			"/last-group": func(c *coord.Client) (held, error) {
				m, err := coord.NewGroup[int](c, "/last-group", nil).Join(ctx, "a", 1)
				if err == nil {
					err = errors.Join(errors.New("joined"), m.Leave())
				}
				return nil, err
			},
			"/crowd": func(c *coord.Client) (held, error) { return coord.NewMutex(c, "/crowd", nil).Lock(ctx) },
			"/last-semaphore": func(c *coord.Client) (held, error) {
				return coord.NewSemaphore(c, "/last-semaphore", 1, nil).Acquire(ctx, 1)
			},
			"/last-election": func(c *coord.Client) (held, error) {
				return coord.NewElection(c, "/last-election", nil).Campaign(ctx)
			},
		} {
			// Many at once: the server also counts those under way, and so some get negative
			// numbers.
			var holders atomic.Int32
			var wg sync.WaitGroup
			for _, c := range crowd {
				wg.Go(func() {
					h, err := enter(c)
					if err != nil {
						if !errors.Is(err, coord.ErrLimit) {
							t.Errorf("%s: %v, want ErrLimit", what, err)
						}
						return
					}
					if n := holders.Add(1); n != 1 {
						t.Errorf("%s: %d holders", what, n)
					}
					// The last request that is withdrawn from a semaphore removes the empty
					// directory. A later caller is granted in a new one.
					if what != "/last-semaphore" || numberOf(h.Path()) >= "0000001000" {
						t.Errorf("%s: granted with %s, want ErrLimit", what, h.Path())
					}
					holders.Add(-1)
					if err := h.Release(); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				})
			}
			wg.Wait()
			dir := what
			if what == "/last-semaphore" {
				dir += "/requests"
			}
			w.Empty(dir)
		}
	})

	// The control: clients that do not look at the ceiling.
	t.Run("clients of another library hold one lock twice there", func(t *testing.T) {
		var locks []*zk.Lock
		for range 2 {
			l := zk.NewLock(w.Raw(), w.Path("/control"), zk.WorldACL(zk.PermAll))
			done := make(chan error, 1)
			go func() { done <- l.Lock() }()
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				locks = append(locks, l)
			case <-time.After(time.Minute):
			}
		}
		if len(locks) != 2 {
			t.Errorf("%d of 2 locks are held: the server is not at its ceiling, and nothing here was tested", len(locks))
		}
	})
}

func take(t *testing.T, l coord.Locker) func() (string, int64, func() error) {
	return func() (string, int64, func() error) {
		h := coordtest.MustLock(t, l)
		return h.Path(), h.Token(), h.Release
	}
}
