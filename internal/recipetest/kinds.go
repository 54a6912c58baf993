package recipetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// A kindUse is a use of a path by one kind of recipe.
type kindUse struct {
	kind string
	// use uses the path once, and leaves the nodes that remain. hold, if it is not nil, uses
	// the path and keeps it in use until the function that it returns is called.
	use    func(ctx context.Context, c *coord.Client, path string) error
	hold   func(ctx context.Context, c *coord.Client, path string) (func(), error)
	others []func(ctx context.Context, c *coord.Client, path string) error
}

func kindUses() []kindUse {
	stays := func(kind string, uses ...func(ctx context.Context, c *coord.Client, path string) error) kindUse {
		return kindUse{kind: kind, use: uses[0], others: uses[1:]}
	}
	also := func(u kindUse, others ...func(ctx context.Context, c *coord.Client, path string) error) kindUse {
		u.others = others
		return u
	}
	locker := func(kind string, lock func(ctx context.Context, c *coord.Client, path string) (*coord.Hold, error)) kindUse {
		return kindUse{kind: kind,
			use: func(ctx context.Context, c *coord.Client, path string) error {
				h, err := lock(ctx, c, path)
				if err != nil {
					return err
				}
				return h.Release()
			},
			hold: func(ctx context.Context, c *coord.Client, path string) (func(), error) {
				h, err := lock(ctx, c, path)
				if err != nil {
					return nil, err
				}
				return func() { h.Release() }, nil
			},
		}
	}
	return []kindUse{
		also(locker("mutex", func(ctx context.Context, c *coord.Client, path string) (*coord.Hold, error) {
			return coord.NewMutex(c, path, nil).Lock(ctx)
		}), func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewMutex(c, path, nil).Revoke(ctx, nil)
		}),
		also(locker("rwmutex", func(ctx context.Context, c *coord.Client, path string) (*coord.Hold, error) {
			return coord.NewRWMutex(c, path, nil).RLock(ctx)
		}), func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewRWMutex(c, path, nil).Revoke(ctx, &coord.RevokeOptions{ForceAfter: time.Millisecond})
		}),
		locker("election", func(ctx context.Context, c *coord.Client, path string) (*coord.Hold, error) {
			term, err := coord.NewElection(c, path, nil).Campaign(ctx)
			if err != nil {
				return nil, err
			}
			return term.Hold, nil
		}),
		locker("semaphore", func(ctx context.Context, c *coord.Client, path string) (*coord.Hold, error) {
			return coord.NewSemaphore(c, path, 2, nil).Acquire(ctx, 1)
		}),
		locker("doublebarrier", func(ctx context.Context, c *coord.Client, path string) (*coord.Hold, error) {
			e, err := coord.NewDoubleBarrier(c, path, 1, nil).Enter(ctx)
			if err != nil {
				return nil, err
			}
			return e.Hold, nil
		}),
		{kind: "group", use: func(ctx context.Context, c *coord.Client, path string) error {
			m, err := coord.NewGroup[string](c, path, nil).Join(ctx, "lock-0000000001", "v")
			if err != nil {
				return err
			}
			return m.Leave()
		}, hold: func(ctx context.Context, c *coord.Client, path string) (func(), error) {
			m, err := coord.NewGroup[string](c, path, nil).Join(ctx, "lock-0000000001", "v")
			if err != nil {
				return nil, err
			}
			return func() { m.Leave() }, nil
		}},
		stays("barrier", func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewBarrier(c, path, nil).Set(ctx)
		}, func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewBarrier(c, path, nil).Remove(ctx)
		}, func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewBarrier(c, path, nil).Wait(ctx)
		}),
		stays("queue", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewQueue[string](c, path, nil).Put(ctx, "x")
			return err
		}, func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewQueue[string](c, path, nil).TryTake(ctx)
			return err
		}, func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewQueue[string](c, path, nil).Purge(ctx)
			return err
		}),
		stays("priorityqueue", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewPriorityQueue[string](c, path, nil).Put(ctx, 1, "x")
			return err
		}, func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewPriorityQueue[string](c, path, nil).Purge(ctx)
			return err
		}),
		stays("delayqueue", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewDelayQueue[string](c, path, nil).Put(ctx, time.Now(), "x")
			return err
		}),
		stays("twophase", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewCoordinator[string](c, path, nil).Propose(ctx, coord.Proposal[string]{ID: "t", Sites: []string{"a"}})
			if errors.Is(err, coord.ErrNotFound) {
				return nil // the site was never served
			}
			return err
		}, func(ctx context.Context, c *coord.Client, path string) error {
			ctx, stop := context.WithTimeout(ctx, time.Minute) // Serve is refused; otherwise it waits for this long
			defer stop()
			told := func(context.Context, coord.Branch[string]) error { return nil }
			err := coord.NewParticipant(c, path, "a", coord.Handler[string]{Prepare: told, Commit: told, Abort: told}).Serve(ctx)
			if errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			return err
		}, func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewCoordinator[string](c, path, nil).Recover(ctx)
			return err
		}, func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewCoordinator[string](c, path, nil).Forget(ctx, "t")
		}, func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewCoordinator[string](c, path, nil).RemoveSite(ctx, "a")
			return err
		}),
		{kind: "shards", use: func(ctx context.Context, c *coord.Client, path string) error {
			for sh, err := range coord.NewShards(c, path, 1, nil).All(ctx) {
				if err != nil {
					return err
				}
				return sh.Release()
			}
			return nil
		}, hold: func(ctx context.Context, c *coord.Client, path string) (func(), error) {
			next, stop := iter.Pull2(coord.NewShards(c, path, 1, nil).All(ctx))
			sh, err, _ := next()
			if err != nil {
				stop()
				return nil, err
			}
			return func() {
				sh.Release()
				stop()
			}, nil
		}, others: []func(ctx context.Context, c *coord.Client, path string) error{func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewShards(c, path, 1, nil).Owners(ctx)
			return err
		}}},
		stays("value", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewValue[string](c, path, nil).Set(ctx, "x")
			return err
		}, func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewValue[string](c, path, nil).Get(ctx)
			return err
		}, func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewValue[string](c, path, nil).Update(ctx, func(string) (string, error) { return "y", nil })
			return err
		}),
		stays("counter", func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewCounter(c, path).Add(ctx, 1)
			return err
		}, func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewCounter(c, path).Get(ctx)
			return err
		}),
	}
}

// isData reports whether the kind stores nothing but data.
func isData(kind string) bool { return kind == "value" || kind == "counter" }

// wantKind fails the test unless err refuses found on the path of want.
func wantKind(t *testing.T, err error, path, want, found string) {
	t.Helper()
	var e *coord.KindError
	if !errors.Is(err, coord.ErrKind) || !errors.As(err, &e) {
		t.Errorf("%s on the path of a %s: %v, want ErrKind", want, found, err)
		return
	}
	if *e != (coord.KindError{Path: path, Want: want, Found: found}) {
		t.Errorf("%s on the path of a %s: %+v", want, found, *e)
	}
}

// countsChildren reports whether the service counts the changes of the children of a directory
// that had one (Cversion).
func (w *world) countsChildren(path string) bool {
	w.T.Helper()
	stat, err := w.stat(path)
	w.must(err)
	return stat.Cversion > 0
}

// dump returns all nodes at and below a path, as text.
func (w *world) dump(path string) string {
	w.T.Helper()
	s := w.Session("dump")
	defer s.Close()
	var text string
	var walk func(path string)
	walk = func(path string) {
		data, stat, err := s.Get(context.Background(), path, nil)
		if err != nil {
			return
		}
		text += fmt.Sprintf("%s %q version %d, %d children, created %d\n", path, data, stat.Version, stat.NumChildren, stat.Czxid)
		names, _, err := s.Children(context.Background(), path, nil)
		if err != nil {
			w.T.Fatal(err)
		}
		for _, name := range names {
			walk(path + "/" + name)
		}
	}
	walk(w.Path(path))
	return text
}

// kindsTests are tests of Kind on each service.
type kindsTests struct{ Services }

// If a recipe has used a path, or has it in use, another kind of recipe refuses the path and
// writes nothing.
func (on kindsTests) OnePathOneRecipe(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		uses := kindUses()
		for i, first := range uses {
			for j, second := range uses {
				if i == j || isData(first.kind) && isData(second.kind) {
					continue
				}
				a, b := w.Open(fmt.Sprint("a", i, j), nil), w.Open(fmt.Sprint("b", i, j), nil)
				for _, state := range []string{"idle", "in use"} {
					if state == "in use" && first.hold == nil {
						continue
					}
					path := fmt.Sprintf("/%s-%s-%s", first.kind, second.kind, state[:2])
					done := func() {}
					var err error
					if state == "idle" {
						err = first.use(ctx, a, path)
					} else {
						done, err = first.hold(ctx, a, path)
					}
					if err != nil {
						w.T.Fatal(err)
					}
					w.Settle()
					before := w.dump(path)
					for range 2 {
						for _, use := range append(second.others, second.use) {
							wantKind(w.T, use(ctx, b, path), w.Path(path), second.kind, first.kind)
						}
					}
					w.Settle()
					if after := w.dump(path); after != before {
						w.T.Errorf("a %s at the path of a %s, %s: it was\n%sand is\n%s", second.kind, first.kind, state, before, after)
					}
					done()
					if err := first.use(ctx, a, path); err != nil {
						w.T.Errorf("%s after a %s was refused: %v", first.kind, second.kind, err)
					}
				}
				a.Close()
				b.Close()
			}
		}
	})
}

// Of two kinds that use a path at the same time, only one is ever granted, whatever either
// client knows of the path.
func (on kindsTests) TwoKindsAreNeverGrantedAtOnce(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, b := w.Open("a", nil), w.Open("b", nil)
		s := w.Session("x")
		for path, meet := range map[string]func(path string, m *coord.Mutex, rw *coord.RWMutex){
			// Both clients remember the path as that of their own kind: it was deleted, and
			// created again, in between.
			"/again": func(path string, m *coord.Mutex, _ *coord.RWMutex) {
				coordtest.Prime(w.T, m)
				if _, err := s.Commit(ctx, backend.Delete(w.Path(path), backend.AnyVersion)); err != nil {
					w.T.Fatal(err)
				}
			},
			// Both know a directory of another implementation, in which neither writes a mark:
			// only the nodes show the other kind.
			"/unmarked": func(path string, m *coord.Mutex, rw *coord.RWMutex) {
				if _, err := s.Commit(ctx, backend.Create(w.Path(path), []byte("10.0.3.17"), backend.Persistent)); err != nil {
					w.T.Fatal(err)
				}
				coordtest.Prime(w.T, m)
				h, err := rw.Lock(ctx)
				coordtest.MustRelease(w.T, must(w.T, h, err))
			},
		} {
			m, rw := coord.NewMutex(a, path, nil), coord.NewRWMutex(b, path, nil)
			meet(path, m, rw)
			h, err := rw.Lock(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			_, err = m.Lock(ctx)
			wantKind(w.T, err, w.Path(path), "mutex", "rwmutex")
			coordtest.MustRelease(w.T, h)
			// A waiter is not disturbed by a contender behind it that is refused.
			h, err = rw.Lock(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			waiting := make(chan error, 1)
			n := w.Waits.Load()
			go func() { waiting <- rw.Do(ctx, func(context.Context, *coord.Hold) error { return nil }) }()
			w.Eventually("the second writer waits", func() bool { return w.Waits.Load() > n })
			_, err = m.TryLock(ctx)
			wantKind(w.T, err, w.Path(path), "mutex", "rwmutex")
			coordtest.MustRelease(w.T, h)
			if err := <-waiting; err != nil {
				w.T.Error(err)
			}
		}
	})
}

// Directories of other libraries and of earlier versions have no mark. Their kind is recognized
// by the nodes in them. A directory that shows no kind can be used by each.
func (on kindsTests) ADirectoryWithoutAMark(t *testing.T) {
	const guid = "_c_01234567-89ab-4def-8123-456789abcdef-"
	for _, tt := range []struct {
		name, data, child string
		refused           map[string]string // the kind that is found, by the kind that refuses
	}{
		{name: "empty"},
		{name: "with the data that Curator gives a node by default", data: "10.0.3.17"},
		{name: "with a contender of a mutex", child: guid + "lock-", refused: map[string]string{"rwmutex": "mutex", "election": "mutex", "group": "mutex", "value": "mutex", "barrier": "mutex"}},
		{name: "with a candidate", child: guid + "latch-", refused: map[string]string{"mutex": "election", "rwmutex": "election"}},
		{name: "with a writer", child: guid + "__WRIT__", refused: map[string]string{"mutex": "rwmutex", "election": "rwmutex", "counter": "rwmutex"}},
		{name: "with a contender of kazoo's", child: "0123abcd__lock__", refused: map[string]string{"rwmutex": "lock or election of kazoo", "queue": "lock or election of kazoo"}},
		{name: "with a number", data: "17", refused: map[string]string{"mutex": "counter", "barrier": "counter", "semaphore": "counter"}},
		{name: "with a value", data: `{"a":1}`, refused: map[string]string{"election": "value", "barrier": "value", "twophase": "value"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			on.each(t, func(w *world) {
				ctx := context.Background()
				s := w.Session("x")
				for i, u := range kindUses() {
					path := "/" + u.kind
					if _, err := s.Commit(ctx, backend.Create(w.Path(path), []byte(tt.data), backend.Persistent)); err != nil {
						w.T.Fatal(err)
					}
					c := w.Open(fmt.Sprint("c", i), nil)
					if tt.child == "" && (tt.refused[u.kind] != "" || tt.refused == nil) && !isData(u.kind) {
						err := u.use(ctx, c, path)
						if found := tt.refused[u.kind]; found != "" {
							wantKind(w.T, err, w.Path(path), u.kind, found)
						} else if err != nil {
							w.T.Errorf("%s: %v", u.kind, err)
						}
					}
					if tt.child != "" && tt.refused[u.kind] != "" {
						if _, err := s.Commit(ctx, backend.Create(w.Path(path)+"/"+tt.child, nil, backend.EphemeralSequential)); err != nil {
							w.T.Fatal(err)
						}
						wantKind(w.T, u.use(ctx, c, path), w.Path(path), u.kind, tt.refused[u.kind])
					}
					data, _, err := s.Get(ctx, w.Path(path), nil)
					if err != nil || tt.data != "" && string(data) != tt.data {
						w.T.Errorf("after a %s the data is %q, %v", u.kind, data, err)
					}
					c.Close()
				}
			})
		})
	}
}

// Two kinds find a directory without a mark at the same time: the one that writes its
// mark first has the path, the other looks again and is refused before it writes.
func (on kindsTests) OfTwoKindsAtADirectoryWithoutAMarkTheFirstGetsIt(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		w.Used("/l")
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		var after coordtest.Nth
		rw := coord.NewRWMutex(w.Open("b", &backendtest.Hooks{After: after.After}), "/l", nil)
		after.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" && c.Path == w.Path("/l") }, func(context.Context, backendtest.Call, error) error {
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
			return nil
		})
		_, err := rw.Lock(ctx)
		wantKind(w.T, err, w.Path("/l"), "rwmutex", "mutex")
		coordtest.Prime(w.T, m)
		if names := w.Children("/l"); len(names) != 0 {
			w.T.Errorf("%q", names)
		}
	})
}

// The same for recipes that create nothing in the directory itself before they have it. Their
// directories exist: the client looks at the path again before it makes such a part, so only
// where none is missing does it depend on the mark alone.
func (on kindsTests) OfTwoKindsThatMarkADirectoryAtOnceTheFirstGetsIt(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		for _, u := range kindUses() {
			if u.kind == "semaphore" || u.kind == "barrier" || isData(u.kind) {
				continue
			}
			path := "/" + u.kind
			w.Used(path)
			for _, part := range []string{"members", "items", "tx"} { // without nodes they show no kind
				w.commit(backend.Create(w.Path(path)+"/"+part, nil, backend.Persistent))
			}
			var before coordtest.Nth
			c := w.Open(u.kind, &backendtest.Hooks{Before: before.Before})
			before.Arm(1, func(c backendtest.Call) bool { return does(backend.OpSetData, w.Path(path))(c) }, func(context.Context, backendtest.Call, error) error {
				h, err := coord.NewSemaphore(w.Open("first of "+u.kind, nil), path, 1, nil).Acquire(ctx, 1)
				coordtest.MustRelease(w.T, must(w.T, h, err))
				return nil
			})
			wantKind(w.T, u.use(ctx, c, path), w.Path(path), u.kind, "semaphore")
			if data, _, err := w.Session("x").Get(ctx, w.Path(path), nil); err != nil || string(data) != "coord recipe: semaphore" {
				w.T.Errorf("after a %s: %q, %v", u.kind, data, err)
			}
		}
	})
}

// A service that refuses to say that a directory carries a mark, when it does not, keeps
// what another kind or an outsider has written there.
func (on kindsTests) AServiceThatWritesNoMarkAgainKeepsForeignData(t *testing.T) {
	ctx := context.Background()
	for _, first := range kindUses() {
		if first.kind != "mutex" && first.kind != "rwmutex" && first.kind != "election" && first.kind != "group" {
			continue
		}
		t.Run(first.kind, func(t *testing.T) {
			on.revisionsOnly(t, func(w *world) {
				written := 0
				a := w.Open("a", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
					if err == nil && does(backend.OpSetData, w.Path("/p"))(c) {
						written++
					}
					return err
				}})
				if err := first.use(ctx, a, "/p"); err != nil {
					w.T.Fatal(err)
				}
				written = 0
				w.raze("/p")
				h := acquire(w.T, coord.NewSemaphore(w.Open("b", nil), "/p", 2, nil), 1)
				before := w.dump("/p")
				wantKind(w.T, first.use(ctx, a, "/p"), w.Path("/p"), first.kind, "semaphore")
				if after := w.dump("/p"); after != before || written > 0 {
					w.T.Errorf("%d writes of the directory; before\n%s\nafter\n%s", written, before, after)
				}
				coordtest.MustRelease(w.T, h)
			})
		})
	}
	t.Run("an outsider, and a hand-over", func(t *testing.T) {
		on.revisionsOnly(t, func(w *world) {
			m := coord.NewMutex(w.Open("a", nil), "/p", nil)
			first := coordtest.MustLock(w.T, m)
			next := w.Waiting(ctx, m)
			// An empty directory with foreign data can be a Value, where the service does not tell
			// that the node has had children.
			other := w.Waiting(ctx, coord.NewMutex(w.Open("b", nil), "/p", nil))
			outsider := w.Session("outsider")
			if _, err := outsider.Commit(ctx, backend.SetData(w.Path("/p"), []byte("foreign"), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
			coordtest.MustRelease(w.T, first)
			w.Eventually("the next caller has a node", func() bool { return len(w.Children("/p")) == 2 })
			coordtest.MustRelease(w.T, other.Hold())
			h := next.Hold()
			if h.Token() <= first.Token() {
				w.T.Errorf("token %d after %d", h.Token(), first.Token())
			}
			coordtest.MustRelease(w.T, h)
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
			// A client that knows the directory overwrites the data, as on services that write
			// the mark with each creation.
			if data, _, err := outsider.Get(ctx, w.Path("/p"), nil); err != nil || string(data) != "coord recipe: mutex" {
				w.T.Errorf("the directory has %q, %v", data, err)
			}
		})
	})
}

// If an outsider overwrites the mark of a lock in use, the mark is replaced once, which is
// logged. Later writes are left alone.
func (on kindsTests) AForeignWriteToADirectoryInUseIsSeen(t *testing.T) {
	on.each(t, func(w *world) {
		if w.Revisions {
			return // it is kept: TestKind/AServiceThatWritesNoMarkAgainKeepsForeignData
		}
		ctx := context.Background()
		var told atomic.Int32
		waits := func(_ context.Context, e trace.Event) {
			if _, ok := e.(trace.WaitBegan); ok {
				w.Waits.Add(1)
			}
		}
		c := coordtest.Open(w.T, w.Link("a"), &coord.Options{Namespace: w.Path(""), Trace: waits, Logger: slog.New(onWarn(func(text string) {
			if strings.Contains(text, "ignoring later changes") {
				told.Add(1)
			}
		}))})
		m, other := coord.NewMutex(c, "/l", nil), coord.NewMutex(w.Open("b", nil), "/l", nil)
		s := w.Session("x")
		write := func(text string) {
			if _, err := s.Commit(ctx, backend.SetData(w.Path("/l"), []byte(text), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		}
		coordtest.Prime(w.T, m)
		for range 3 {
			coordtest.Prime(w.T, other)
			coordtest.Prime(w.T, m)
		}
		w.Settle()
		if n := told.Load(); n != 0 {
			w.T.Fatalf("logged %d times because of clients of its own kind", n)
		}
		write("first")
		coordtest.Prime(w.T, m)
		w.Eventually("it is logged", func() bool { return told.Load() == 1 })
		write("second")
		for range 3 {
			h := coordtest.MustLock(w.T, m)
			local := w.Waiting(ctx, m) // the lock is handed over to it
			coordtest.MustRelease(w.T, h)
			coordtest.MustRelease(w.T, local.Hold())
		}
		data, _, err := s.Get(ctx, w.Path("/l"), nil)
		if err != nil || string(data) != "second" || told.Load() != 1 {
			w.T.Errorf("the data is %q, %v; logged %d times", data, err, told.Load())
		}
	})
}

// onWarn is a slog.Handler that calls itself with each message of Warn and above.
type onWarn func(text string)

func (f onWarn) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (f onWarn) Handle(_ context.Context, r slog.Record) error {
	f(r.Message)
	return nil
}

func (f onWarn) WithAttrs([]slog.Attr) slog.Handler { return f }

func (f onWarn) WithGroup(string) slog.Handler { return f }

// A Value of no bytes below which other recipes were used is a Value still.
func (on kindsTests) OfNoBytesKeepsItsPathAboveAUsedLock(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		v := coord.NewValue(c, "/v", &coord.ValueOptions[string]{Codec: coord.Text()})
		_, err := v.Set(ctx, "")
		w.must(err)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(c, "/v/lock", nil)))
		for _, there := range []bool{true, false} {
			if !there {
				w.collected("/v/lock")
			}
			other := w.Open(fmt.Sprint("b", there), nil)
			_, err := coord.NewMutex(other, "/v", nil).Lock(ctx)
			wantKind(w.T, err, w.Path("/v"), "mutex", "value")
			if got, err := coord.NewValue(other, "/v", &coord.ValueOptions[string]{Codec: coord.Text()}).Get(ctx); err != nil || got.Value != "" || got.Czxid == 0 {
				w.T.Errorf("with a node below it, %v: %+v, %v", there, got, err)
			}
		}
	})
}

// An empty value is distinguished from a directory that was not used yet.
func (on kindsTests) AnEmptyValueKeepsItsPath(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	type text = *coord.Value[string]
	for name, make := range map[string]func(c *coord.Client, v text, path string) error{
		"set": func(_ *coord.Client, v text, _ string) error {
			_, err := v.Set(ctx, "")
			return err
		},
		"set after others": func(_ *coord.Client, v text, _ string) error {
			_, err := v.Set(ctx, "x")
			if err == nil {
				_, err = v.Set(ctx, "")
			}
			return err
		},
		"created": func(_ *coord.Client, v text, _ string) error {
			_, err := v.CompareAndSet(ctx, coord.Versioned[string]{}, "")
			return err
		},
		"updated": func(_ *coord.Client, v text, _ string) error {
			_, err := v.Update(ctx, func(string) (string, error) { return "", nil })
			return err
		},
		"in a transaction": func(c *coord.Client, v text, _ string) error {
			done, err := coord.NewTxn(c).Add(v.SetOp("")).Commit(ctx)
			if got, gerr := v.Get(ctx); err == nil && (gerr != nil || done[0].Version != got.Version) {
				return fmt.Errorf("the transaction returned %+v; it is %+v, %w", done, got, gerr)
			}
			return err
		},
		"in place of one that a transaction deletes": func(c *coord.Client, v text, path string) error {
			_, err := v.Set(ctx, "x")
			if err == nil {
				_, err = coord.NewTxn(c).Delete(path).Add(v.SetOp("")).Commit(ctx)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				a := w.Open("a", nil)
				for i, u := range kindUses() {
					if isData(u.kind) {
						continue
					}
					path := "/" + u.kind
					v := coord.NewValue(a, path, &coord.ValueOptions[string]{Codec: coord.Text()})
					if err := make(a, v, path); err != nil {
						w.T.Fatal(err)
					}
					before := w.dump(path)
					wantKind(w.T, u.use(ctx, w.Open(fmt.Sprint("c", i), nil), path), w.Path(path), u.kind, "value")
					if after := w.dump(path); after != before {
						w.T.Errorf("a %s has made\n%s of\n%s", u.kind, after, before)
					}
					if got, err := v.Get(ctx); err != nil || got.Value != "" {
						w.T.Errorf("after a %s: %+v, %v", u.kind, got, err)
					}
					if in, err := inspect.Path(ctx, a, path, nil); err != nil || in.Recipe != "value" {
						w.T.Errorf("Inspect: %+v, %v", in, err)
					}
				}
			})
		})
	}
}

// A write of an empty value returns what is stored, also when the reply was lost.
func (on kindsTests) AnEmptyValueIsReturnedAsItIsStored(t *testing.T) {
	ctx := context.Background()
	on.each(t, func(w *world) {
		var after coordtest.Nth
		v := coord.NewValue(w.Open("a", &backendtest.Hooks{After: after.After}), "/v", &coord.ValueOptions[string]{Codec: coord.Text()})
		for range 2 {
			after.Arm(1, does(backend.OpCreate, w.Path("/v")), coordtest.Lose)
			set, err := v.Set(ctx, "")
			got, gerr := v.Get(ctx)
			if err != nil || gerr != nil || set != got {
				w.T.Fatalf("Set returned %+v, %v; it is %+v, %v", set, err, got, gerr)
			}
			next, err := v.CompareAndSet(ctx, set, "x")
			if err == nil {
				next, err = v.CompareAndSet(ctx, next, "")
			}
			if err != nil {
				w.T.Fatal(err)
			}
			if err := v.Delete(ctx, next); err != nil {
				w.T.Fatal(err)
			}
		}
	})
}

// raze deletes all nodes at and below a path.
func (w *world) raze(path string) {
	w.T.Helper()
	s := w.Session("raze")
	defer s.Close()
	var walk func(path string)
	walk = func(path string) {
		names, _, err := s.Children(context.Background(), path, nil)
		for _, name := range names {
			walk(path + "/" + name)
		}
		if err == nil {
			_, err = s.Commit(context.Background(), backend.Delete(path, backend.AnyVersion))
		}
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			w.T.Fatal(err)
		}
	}
	walk(w.Path(path))
}

// A path is deleted, and another kind of recipe uses it. A client that remembers the old kind
// is refused, and its mark keeps no client of the other kind out.
func (on kindsTests) AClientThatRemembersAnotherKindTakesItsMarkBack(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		uses := kindUses()
		for i, first := range uses {
			if first.kind != "mutex" && first.kind != "rwmutex" && first.kind != "election" && first.kind != "group" && first.kind != "value" && first.kind != "counter" {
				continue // the others do not write to a path that they remember
			}
			for j, second := range uses {
				for _, state := range []string{"idle", "in use"} {
					if i == j || second.hold == nil || state == "idle" && second.kind != "semaphore" {
						continue // the nodes of an idle path show no other kind
					}
					path := fmt.Sprintf("/%s-%s-%s", first.kind, second.kind, state[:2])
					a, b, c := w.Open("a"+path, nil), w.Open("b"+path, nil), w.Open("c"+path, nil)
					if err := first.use(ctx, a, path); err != nil {
						w.T.Fatal(err)
					}
					w.raze(path)
					done, err := second.hold(ctx, b, path)
					if err != nil {
						w.T.Fatal(err)
					}
					if state == "idle" {
						done()
						done = func() {}
					}
					w.Settle()
					before := w.Children(path)
					wantKind(w.T, first.use(ctx, a, path), w.Path(path), first.kind, second.kind)
					if after := w.Children(path); len(after) != len(before) {
						w.T.Errorf("%s: %q has become %q", path, before, after)
					}
					for range 2 {
						wantKind(w.T, first.use(ctx, a, path), w.Path(path), first.kind, second.kind)
					}
					done()
					if err := second.use(ctx, c, path); err != nil {
						w.T.Errorf("%s: a new client of the second kind: %v", path, err)
					}
					s := w.Session("x")
					if data, _, err := s.Get(ctx, w.Path(path), nil); err != nil || string(data) != "coord recipe: "+second.kind {
						w.T.Errorf("%s: the mark is %q, %v", path, data, err)
					}
					s.Close()
					a.Close()
					b.Close()
					c.Close()
				}
			}
		}
	})
}

// A path is deleted, and another kind of recipe uses it. A client that remembers it as a
// recipe of several directories is refused, and makes none of them there.
func (on kindsTests) AClientThatRemembersAnotherKindMakesNoDirectory(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		var limit time.Duration // of calls that wait if they are not refused
		briefly := func(f func(ctx context.Context) error) error {
			ctx, stop := context.WithTimeout(ctx, limit)
			defer stop()
			if err := f(ctx); !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			return nil
		}
		told := func(context.Context, coord.Branch[string]) error { return nil }
		uses := []struct {
			kind, what string
			use        func(c *coord.Client, path string) func() error // one object, used each time
		}{
			{"semaphore", "acquire", func(c *coord.Client, path string) func() error {
				s := coord.NewSemaphore(c, path, 2, nil)
				return func() error {
					h, err := s.Acquire(ctx, 1)
					if err != nil {
						return err
					}
					return h.Release()
				}
			}},
			{"semaphore", "tryacquire", func(c *coord.Client, path string) func() error {
				return func() error {
					h, err := coord.NewSemaphore(c, path, 2, nil).TryAcquire(ctx, 1)
					if err != nil {
						return err
					}
					return h.Release()
				}
			}},
			{"semaphore", "setlimit", func(c *coord.Client, path string) func() error {
				return func() error { return coord.NewSemaphore(c, path, 2, nil).SetLimit(ctx, 2) }
			}},
			{"doublebarrier", "enter", func(c *coord.Client, path string) func() error {
				return func() error {
					e, err := coord.NewDoubleBarrier(c, path, 1, nil).Enter(ctx)
					if err != nil {
						return err
					}
					return e.Leave(ctx)
				}
			}},
			{"queue", "put", func(c *coord.Client, path string) func() error {
				q := coord.NewQueue[string](c, path, nil)
				return func() error {
					_, err := q.Put(ctx, "x")
					return err
				}
			}},
			{"queue", "take", func(c *coord.Client, path string) func() error {
				q := coord.NewQueue[string](c, path, nil)
				return func() error {
					return briefly(func(ctx context.Context) error {
						_, err := q.Take(ctx)
						return err
					})
				}
			}},
			{"twophase", "serve", func(c *coord.Client, path string) func() error {
				p := coord.NewParticipant(c, path, "a", coord.Handler[string]{Prepare: told, Commit: told, Abort: told})
				return func() error { return briefly(p.Serve) }
			}},
			{"twophase", "propose", func(c *coord.Client, path string) func() error {
				co := coord.NewCoordinator[string](c, path, nil)
				return func() error {
					_, err := co.Propose(ctx, coord.Proposal[string]{ID: "t", Sites: []string{"a"}})
					if errors.Is(err, coord.ErrNotFound) {
						return nil // the site was never served
					}
					return err
				}
			}},
		}
		seconds := slices.DeleteFunc(kindUses(), func(u kindUse) bool {
			return u.kind != "mutex" && u.kind != "semaphore" && u.kind != "group" && u.kind != "barrier"
		})
		for _, first := range uses {
			for _, second := range seconds {
				if first.kind == second.kind {
					continue
				}
				path := fmt.Sprintf("/%s-%s-%s", first.kind, first.what, second.kind)
				a, b, c := w.Open("a"+path, nil), w.Open("b"+path, nil), w.Open("c"+path, nil)
				limit = 500 * time.Millisecond
				use := first.use(a, path)
				if err := use(); err != nil {
					w.T.Fatalf("%s: %v", path, err)
				}
				w.Settle()
				w.raze(path)
				done, err := func() {}, error(nil)
				if second.hold != nil {
					done, err = second.hold(ctx, b, path)
				} else {
					err = second.use(ctx, b, path)
				}
				if err != nil {
					w.T.Fatalf("%s: %v", path, err)
				}
				w.Settle()
				before := w.dump(path)
				limit = time.Minute
				for range 2 {
					wantKind(w.T, use(), w.Path(path), first.kind, second.kind)
				}
				if after := w.dump(path); after != before {
					w.T.Errorf("%s: a %s has made\n%s of\n%s", path, first.kind, after, before)
				}
				done()
				if err := second.use(ctx, c, path); err != nil {
					w.T.Errorf("%s: a new client of the second kind: %v", path, err)
				}
				a.Close()
				b.Close()
				c.Close()
			}
		}
	})
}

// aMutexBefore returns a client that knows /p as a Mutex. The path was deleted since, and
// is that of a Semaphore, which is not in use.
func (w *world) aMutexBefore(prepare func(), hooks *backendtest.Hooks) *coord.Client {
	w.T.Helper()
	c := w.Open("a", hooks)
	if prepare != nil {
		prepare()
	}
	coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(c, "/p", nil)))
	w.raze("/p")
	coordtest.MustRelease(w.T, acquire(w.T, coord.NewSemaphore(w.Open("b", nil), "/p", 2, nil), 1))
	w.Settle()
	return c
}

// usesInPart are uses of a path by recipes of several nodes, after each of which only some of
// these nodes exist. Each returns a use of the path by a new client.
func (w *world) usesInPart() map[string]func(path string, c *coord.Client) (kind string, again func(c *coord.Client) error) {
	ctx := context.Background()
	return map[string]func(path string, c *coord.Client) (string, func(*coord.Client) error){
		"a queue without consumers": func(path string, c *coord.Client) (string, func(*coord.Client) error) {
			if _, err := coord.NewQueue[string](c, path, nil).Put(ctx, "x"); err != nil {
				w.T.Fatal(err)
			}
			return "queue", func(c *coord.Client) error {
				it, err := coord.NewQueue[string](c, path, nil).TryTake(ctx)
				if err != nil {
					return err
				}
				return it.Release()
			}
		},
		"a queue that only consumers have used": func(path string, c *coord.Client) (string, func(*coord.Client) error) {
			n := w.Waits.Load()
			go coord.NewPriorityQueue[string](c, path, nil).Take(ctx)
			w.Eventually("the consumer waits", func() bool { return w.Waits.Load() > n })
			return "queue", func(c *coord.Client) error {
				_, err := coord.NewPriorityQueue[string](c, path, nil).Put(ctx, 1, "x")
				return err
			}
		},
		"a double barrier before its round": func(path string, c *coord.Client) (string, func(*coord.Client) error) {
			n := w.Waits.Load()
			go coord.NewDoubleBarrier(c, path, 2, nil).Enter(ctx)
			w.Eventually("the entrant waits", func() bool { return w.Waits.Load() > n })
			return "doublebarrier", func(c *coord.Client) error {
				e, err := coord.NewDoubleBarrier(c, path, 2, nil).Enter(ctx)
				if err != nil {
					return err
				}
				return e.Release()
			}
		},
		"a semaphore whose limit was deleted": func(path string, c *coord.Client) (string, func(*coord.Client) error) {
			h, err := coord.NewSemaphore(c, path, 1, nil).Acquire(ctx, 1)
			if err != nil {
				w.T.Fatal(err)
			}
			s := w.Session("x")
			defer s.Close()
			if _, err := s.Commit(ctx, backend.Delete(w.Path(path)+"/limit", backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
			return "semaphore", func(c *coord.Client) error {
				if _, err := coord.NewSemaphore(c, path, 1, nil).TryAcquire(ctx, 1); !errors.Is(err, coord.ErrLocked) {
					return fmt.Errorf("the second acquisition: %w", err)
				}
				return h.Release()
			}
		},
		"a semaphore of Curator without its lock": func(path string, c *coord.Client) (string, func(*coord.Client) error) {
			if _, err := w.Session("x").Commit(ctx,
				backend.Create(w.Path(path), nil, backend.Persistent),
				backend.Create(w.Path(path)+"/leases", nil, backend.Persistent),
				backend.Create(w.Path(path)+"/leases/_c_01234567-89ab-4def-8123-456789abcdef-lease-", nil, backend.EphemeralSequential),
			); err != nil {
				w.T.Fatal(err)
			}
			return "semaphore of Curator", func(*coord.Client) error { return nil }
		},
		"a site without transactions": func(path string, c *coord.Client) (string, func(*coord.Client) error) {
			told := func(context.Context, coord.Branch[string]) error { return nil }
			go coord.NewParticipant(c, path, "a", coord.Handler[string]{Prepare: told, Commit: told, Abort: told}).Serve(ctx)
			s := w.Session("x")
			defer s.Close()
			w.Eventually("the site is served", func() bool {
				_, err := s.Exists(ctx, w.Path(path)+"/present/a", nil)
				return err == nil
			})
			return "twophase", func(c *coord.Client) error {
				_, err := coord.NewCoordinator[string](c, path, nil).Propose(ctx, coord.Proposal[string]{ID: "t", Sites: []string{"a"}})
				return err
			}
		},
	}
}

// A recipe of several nodes shows its kind also while only some of them exist: to a client
// that remembers another kind, and to one that finds no mark.
func (on kindsTests) ARecipeOfSeveralNodesShowsItsKindBySomeOfThem(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		for _, first := range kindUses() {
			if first.kind != "mutex" && first.kind != "rwmutex" && first.kind != "election" && first.kind != "group" && first.kind != "value" {
				continue
			}
			for name, use := range w.usesInPart() {
				path := "/" + first.kind + "-" + strings.ReplaceAll(name, " ", "-")
				a, b, c, d := w.Open("a"+path, nil), w.Open("b"+path, nil), w.Open("c"+path, nil), w.Open("d"+path, nil)
				if err := first.use(ctx, a, path); err != nil {
					w.T.Fatal(err)
				}
				w.raze(path)
				kind, again := use(path, b)
				w.Settle()
				before := w.Children(path)
				if w.Revisions { // the mark of the second kind was not written over
					for _, c := range []*coord.Client{a, c} {
						coordtest.WantErr(w.T, first.use(ctx, c, path), coord.ErrKind)
					}
				} else {
					wantKind(w.T, first.use(ctx, a, path), w.Path(path), first.kind, kind)
					// The removed mark was that of the first kind, so there is none.
					wantKind(w.T, first.use(ctx, c, path), w.Path(path), first.kind, kind)
				}
				if after := w.Children(path); len(after) != len(before) {
					w.T.Errorf("%s: %q has become %q", path, before, after)
				}
				if err := again(d); err != nil {
					w.T.Errorf("%s: a new client of the second kind: %v", path, err)
				}
				for _, c := range []*coord.Client{a, b, c, d} {
					c.Close()
				}
			}
		}
	})
}

// A lock is taken at a path between the look of a client's first Set and its write. The value is
// not written over the mark of the lock.
func (on kindsTests) AFirstSetDoesNotWriteOverTheMarkOfAnotherKind(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		w.outsider(backend.Create(w.Path("/x"), nil, backend.Persistent)) // no recipe has used the node
		var looked coordtest.Nth
		var hold *coord.Hold
		looked.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" }, func(_ context.Context, _ backendtest.Call, err error) error {
			var failed error
			hold, failed = coord.NewMutex(w.Open("b", nil), "/x", nil).Lock(ctx)
			w.must(failed)
			return err
		})
		v := coord.NewValue[string](w.Open("a", &backendtest.Hooks{After: looked.After}), "/x", nil)
		_, err := v.Set(ctx, "data")
		wantKind(w.T, err, w.Path("/x"), "value", "mutex")
		if data, _, err := w.Session("s").Get(ctx, w.Path("/x"), nil); err != nil || string(data) != "coord recipe: mutex" {
			w.T.Errorf("the lock's directory has %q, %v", data, err)
		}
		w.must(hold.Release())
	})
}

// Another client writes the value between the read and the write of a client's first Set. The
// Set writes once all the same.
func (on kindsTests) AFirstSetWritesWhateverTheValueIs(t *testing.T) {
	on.each(t, func(w *world) {
		for _, old := range []string{"text", ""} { // also a value of no bytes
			ctx, path := context.Background(), "/v-"+old
			text := &coord.ValueOptions[string]{Codec: coord.Text()}
			other := coord.NewValue(w.Open("b"+old, nil), path, text)
			_, err := other.Set(ctx, old)
			w.must(err)
			commits, looks := 0, 0
			v := coord.NewValue(w.Open("a"+old, &backendtest.Hooks{
				After: func(_ context.Context, c backendtest.Call, err error) error {
					if looks++; c.Op == "get" && looks < 5 {
						_, failed := other.Set(ctx, old)
						w.must(failed)
					}
					return err
				},
				Before: func(_ context.Context, c backendtest.Call) error {
					if does(backend.OpSetData, w.Path(path))(c) {
						commits++
					}
					return nil
				},
			}), path, text)
			_, err = v.Set(ctx, "new")
			w.must(err)
			if w.Fake && commits != 1 { // a real server can break the connection
				w.T.Errorf("%q was replaced with %d commits", old, commits)
			}
		}
	})
}

// A Set in the directory of another kind is undone also if its ctx ends before that.
func (on kindsTests) ASetOverAnotherKindIsUndoneWhateverEndsIt(t *testing.T) {
	on.each(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var after coordtest.Nth
		v := coord.NewValue[string](w.Open("a", &backendtest.Hooks{After: after.After}), "/x", nil)
		_, err := v.Set(ctx, "data")
		w.must(err)
		w.raze("/x")
		h, err := coord.NewMutex(w.Open("b", nil), "/x", nil).Lock(ctx)
		w.must(err)
		after.Arm(1, does(backend.OpSetData, w.Path("/x")), func(_ context.Context, _ backendtest.Call, err error) error {
			cancel()
			return err
		})
		_, err = v.Set(ctx, "data")
		coordtest.WantErr(w.T, err, coord.ErrUncertain)
		coordtest.WantErr(w.T, err, context.Canceled)
		s := w.Session("x")
		w.Eventually("the directory of the lock has no value", func() bool {
			data, _, err := s.Get(context.Background(), w.Path("/x"), nil)
			w.must(err)
			return string(data) == "coord recipe: directory"
		})
		_, err = v.Set(context.Background(), "data")
		wantKind(w.T, err, w.Path("/x"), "value", "mutex")
		w.must(h.Release())
	})
}
