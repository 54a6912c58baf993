package recipetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
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
		stays("schedule", func(ctx context.Context, c *coord.Client, path string) error {
			return coord.NewSchedule(c, path, nil, nil).Pause(ctx)
		}, func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewSchedule(c, path, nil, nil).State(ctx)
			return err
		}, func(ctx context.Context, c *coord.Client, path string) error {
			_, err := coord.NewSchedule(c, path, nil, nil).RunNow(ctx)
			return err
		}, func(ctx context.Context, c *coord.Client, path string) error {
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			_, err := coord.NewSchedule(c, path, nil, nil).RunNow(ctx)
			if err != nil {
				return err
			}
			// The run that RunNow has asked for ends it.
			return coord.NewSchedule(c, path, coord.Every(24*time.Hour), nil).Run(ctx, func(context.Context, *coord.Run) error {
				stop()
				return nil
			})
		}),
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
			on.sparing(t, func(w *world) {
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
		on.sparing(t, func(w *world) {
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
		if w.Spares {
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
