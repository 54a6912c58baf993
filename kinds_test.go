package coord_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/trace"
)

// A kindUse is a use of a path by one kind of recipe.
type kindUse struct {
	kind string
	// use uses the path once and leaves what stays. hold, if it is not nil, uses it
	// and keeps it in use until the function that it returns is called.
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
			ctx, stop := context.WithTimeout(ctx, time.Second)
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

// dump is all that stands at and below a path.
func (w *world) dump(path string) string {
	w.t.Helper()
	s := w.session("dump")
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
			w.t.Fatal(err)
		}
		for _, name := range names {
			walk(path + "/" + name)
		}
	}
	walk(w.path(path))
	return text
}

// Whatever recipe has used a path, or has it in use, another kind of recipe refuses
// there and writes nothing.
func TestOnePathOneRecipe(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		uses := kindUses()
		for i, first := range uses {
			for j, second := range uses {
				if i == j || isData(first.kind) && isData(second.kind) {
					continue
				}
				a, b := w.open(fmt.Sprint("a", i, j), nil), w.open(fmt.Sprint("b", i, j), nil)
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
						w.t.Fatal(err)
					}
					w.settle()
					before := w.dump(path)
					for range 2 {
						for _, use := range append(second.others, second.use) {
							wantKind(w.t, use(ctx, b, path), w.path(path), second.kind, first.kind)
						}
					}
					w.settle()
					if after := w.dump(path); after != before {
						w.t.Errorf("a %s at the path of a %s, %s: it was\n%sand is\n%s", second.kind, first.kind, state, before, after)
					}
					done()
					if err := first.use(ctx, a, path); err != nil {
						w.t.Errorf("%s after a %s was refused: %v", first.kind, second.kind, err)
					}
				}
				a.Close()
				b.Close()
			}
		}
	})
}

// Of two kinds that come to a path at once, only one is ever granted, whatever
// either client knows of the path.
func TestTwoKindsAreNeverGrantedAtOnce(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a, b := w.open("a", nil), w.open("b", nil)
		m, rw := coord.NewMutex(a, "/l", nil), coord.NewRWMutex(b, "/l", nil)
		s := w.session("x")
		// Both know the path as theirs: it was deleted, and made anew, between.
		prime(w.t, m)
		if _, err := s.Commit(ctx, backend.Delete(w.path("/l"), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		h, err := rw.Lock(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		_, err = m.Lock(ctx)
		wantKind(w.t, err, w.path("/l"), "mutex", "rwmutex")
		mustRelease(w.t, h)
		// A waiter is not disturbed by one that comes behind it and is refused.
		h, err = rw.Lock(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		waiting := make(chan error, 1)
		n := w.waits.Load()
		go func() { waiting <- rw.Do(ctx, func(context.Context, *coord.Hold) error { return nil }) }()
		w.eventually("the second writer waits", func() bool { return w.waits.Load() > n })
		_, err = m.TryLock(ctx)
		wantKind(w.t, err, w.path("/l"), "mutex", "rwmutex")
		mustRelease(w.t, h)
		if err := <-waiting; err != nil {
			w.t.Error(err)
		}
	})
}

// A contender in line, which lists again, is not refused because one of another kind
// stands behind it.
func TestAWaiterIsNotDisturbedByAnotherKind(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		rw := coord.NewRWMutex(w.open("a", nil), "/l", nil)
		first, err := rw.RLock(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		second := make(chan error, 1)
		n := w.waits.Load()
		go func() { second <- rw.Do(ctx, func(context.Context, *coord.Hold) error { return nil }) }()
		w.eventually("the writer waits", func() bool { return w.waits.Load() > n })
		// An earlier version's, which does not look and stays.
		other := w.path("/l/_c_01234567-89ab-8def-8123-456789abcdef-lock-")
		if _, err := w.session("x").Commit(ctx, backend.Create(other, nil, backend.EphemeralSequential)); err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, first) // a writer lists again
		if err := <-second; err != nil {
			w.t.Error(err)
		}
	})
}

// Directories of other makes and of earlier versions bear no mark. They are told by the
// nodes in them, and taken for one's own where they tell nothing.
func TestADirectoryWithoutAMark(t *testing.T) {
	const guid = "_c_01234567-89ab-4def-8123-456789abcdef-"
	for _, tt := range []struct {
		name, data, child string
		refused           map[string]string // what is found, by who refuses
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
			onEach(t, func(w *world) {
				ctx := context.Background()
				s := w.session("x")
				for i, u := range kindUses() {
					path := "/" + u.kind
					if _, err := s.Commit(ctx, backend.Create(w.path(path), []byte(tt.data), backend.Persistent)); err != nil {
						w.t.Fatal(err)
					}
					c := w.open(fmt.Sprint("c", i), nil)
					if tt.child == "" && (tt.refused[u.kind] != "" || tt.refused == nil) && !isData(u.kind) {
						err := u.use(ctx, c, path)
						if found := tt.refused[u.kind]; found != "" {
							wantKind(w.t, err, w.path(path), u.kind, found)
						} else if err != nil {
							w.t.Errorf("%s: %v", u.kind, err)
						}
					}
					if tt.child != "" && tt.refused[u.kind] != "" {
						if _, err := s.Commit(ctx, backend.Create(w.path(path)+"/"+tt.child, nil, backend.EphemeralSequential)); err != nil {
							w.t.Fatal(err)
						}
						wantKind(w.t, u.use(ctx, c, path), w.path(path), u.kind, tt.refused[u.kind])
					}
					data, _, err := s.Get(ctx, w.path(path), nil)
					if err != nil || tt.data != "" && string(data) != tt.data {
						w.t.Errorf("after a %s the data is %q, %v", u.kind, data, err)
					}
					c.Close()
				}
			})
		})
	}
}

// Two kinds find a directory without a mark at the same time: the one that writes its
// mark first has the path, the other looks again and is refused before it writes.
func TestOfTwoKindsAtADirectoryWithoutAMarkTheFirstHasIt(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		w.used("/l")
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		var after nth
		rw := coord.NewRWMutex(w.open("b", &backendtest.Hooks{After: after.after}), "/l", nil)
		after.arm(1, func(c backendtest.Call) bool { return c.Op == "get" && c.Path == w.path("/l") }, func(context.Context, backendtest.Call, error) error {
			mustRelease(w.t, mustLock(w.t, m))
			return nil
		})
		_, err := rw.Lock(ctx)
		wantKind(w.t, err, w.path("/l"), "rwmutex", "mutex")
		prime(w.t, m)
		if names := w.children("/l"); len(names) != 0 {
			w.t.Errorf("%q", names)
		}
	})
}

// The same of recipes that make nothing in the directory itself before they have it.
func TestOfTwoKindsThatMarkADirectoryAtOnceTheFirstHasIt(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		for _, u := range kindUses() {
			if u.kind == "semaphore" || u.kind == "barrier" || isData(u.kind) {
				continue
			}
			path := "/" + u.kind
			w.used(path)
			var before nth
			c := w.open(u.kind, &backendtest.Hooks{Before: before.before})
			before.arm(1, func(c backendtest.Call) bool { return does(backend.OpSetData, w.path(path))(c) }, func(context.Context, backendtest.Call, error) error {
				h, err := coord.NewSemaphore(w.open("first of "+u.kind, nil), path, 1, nil).Acquire(ctx, 1)
				mustRelease(w.t, must(w.t, h, err))
				return nil
			})
			wantKind(w.t, u.use(ctx, c, path), w.path(path), u.kind, "semaphore")
			if data, _, err := w.session("x").Get(ctx, w.path(path), nil); err != nil || string(data) != "coord recipe: semaphore" {
				w.t.Errorf("after a %s: %q, %v", u.kind, data, err)
			}
		}
	})
}

// What an outsider writes over the mark of a lock in use is replaced once, which is
// logged, and left alone from then on.
func TestAForeignWriteToADirectoryInUseIsSeen(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		var told atomic.Int32
		waits := func(_ context.Context, e trace.Event) {
			if _, ok := e.(trace.WaitBegan); ok {
				w.waits.Add(1)
			}
		}
		c := open(w.t, w.Link("a"), &coord.Options{Namespace: w.path(""), Trace: waits, Logger: slog.New(onWarn(func(text string) {
			if strings.Contains(text, "left alone") {
				told.Add(1)
			}
		}))})
		m, other := coord.NewMutex(c, "/l", nil), coord.NewMutex(w.open("b", nil), "/l", nil)
		s := w.session("x")
		write := func(text string) {
			if _, err := s.Commit(ctx, backend.SetData(w.path("/l"), []byte(text), backend.AnyVersion)); err != nil {
				w.t.Fatal(err)
			}
		}
		prime(w.t, m)
		for range 3 {
			prime(w.t, other)
			prime(w.t, m)
		}
		w.settle()
		if n := told.Load(); n != 0 {
			w.t.Fatalf("told %d times of clients of its own kind", n)
		}
		write("first")
		prime(w.t, m)
		w.eventually("it is told", func() bool { return told.Load() == 1 })
		write("second")
		for range 3 {
			h := mustLock(w.t, m)
			local := w.waiting(ctx, m) // it is handed the lock over
			mustRelease(w.t, h)
			mustRelease(w.t, local.hold())
		}
		data, _, err := s.Get(ctx, w.path("/l"), nil)
		if err != nil || string(data) != "second" || told.Load() != 1 {
			w.t.Errorf("the data is %q, %v; told %d times", data, err, told.Load())
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
func (f onWarn) WithGroup(string) slog.Handler      { return f }

// A value that would be taken for a mark is refused, so that no recipe is kept from its
// path by it.
func TestAValueCannotLookLikeAMark(t *testing.T) {
	onMemory(t, func(w *world) {
		text := coord.Codec[string]{
			Encode: func(s string) ([]byte, error) { return []byte(s), nil },
			Decode: func(b []byte) (string, error) { return string(b), nil },
		}
		v := coord.NewValue(w.open("a", nil), "/v", &coord.ValueOptions[string]{Codec: text})
		_, err := v.Set(context.Background(), "coord recipe: mutex")
		wantErr(w.t, err, coord.ErrInvalid)
		if _, err := v.Set(context.Background(), "coord recipe"); err != nil {
			w.t.Error(err)
		}
	})
}

// A value of no bytes is told from a directory that nobody has used yet.
func TestAValueOfNoBytesKeepsItsPath(t *testing.T) {
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
			onEach(t, func(w *world) {
				a := w.open("a", nil)
				for i, u := range kindUses() {
					if isData(u.kind) {
						continue
					}
					path := "/" + u.kind
					v := coord.NewValue(a, path, &coord.ValueOptions[string]{Codec: coord.Text()})
					if err := make(a, v, path); err != nil {
						w.t.Fatal(err)
					}
					before := w.dump(path)
					wantKind(w.t, u.use(ctx, w.open(fmt.Sprint("c", i), nil), path), w.path(path), u.kind, "value")
					if after := w.dump(path); after != before {
						w.t.Errorf("a %s has made\n%s of\n%s", u.kind, after, before)
					}
					if got, err := v.Get(ctx); err != nil || got.Value != "" {
						w.t.Errorf("after a %s: %+v, %v", u.kind, got, err)
					}
					if in, err := coord.Inspect(ctx, a, path, nil); err != nil || in.Recipe != "value" {
						w.t.Errorf("Inspect: %+v, %v", in, err)
					}
				}
			})
		})
	}
}

// What a write of no bytes returns is what stands there, also when the reply was lost.
func TestAValueOfNoBytesIsReturnedAsItStands(t *testing.T) {
	ctx := context.Background()
	onEach(t, func(w *world) {
		var after nth
		v := coord.NewValue(w.open("a", &backendtest.Hooks{After: after.after}), "/v", &coord.ValueOptions[string]{Codec: coord.Text()})
		for range 2 {
			after.arm(1, does(backend.OpCreate, w.path("/v")), lose)
			set, err := v.Set(ctx, "")
			got, gerr := v.Get(ctx)
			if err != nil || gerr != nil || set != got {
				w.t.Fatalf("Set returned %+v, %v; it is %+v, %v", set, err, got, gerr)
			}
			next, err := v.CompareAndSet(ctx, set, "x")
			if err == nil {
				next, err = v.CompareAndSet(ctx, next, "")
			}
			if err != nil {
				w.t.Fatal(err)
			}
			if err := v.Delete(ctx, next); err != nil {
				w.t.Fatal(err)
			}
		}
	})
}

// raze deletes what stands at and below a path.
func (w *world) raze(path string) {
	w.t.Helper()
	s := w.session("raze")
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
			w.t.Fatal(err)
		}
	}
	walk(w.path(path))
}

// A path is deleted, and another kind of recipe uses it. A client that remembers it as it
// was is refused, and keeps nobody of the other kind out by its mark.
func TestAClientThatRemembersAnotherKindTakesItsMarkBack(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		uses := kindUses()
		for i, first := range uses {
			if first.kind != "mutex" && first.kind != "rwmutex" && first.kind != "election" && first.kind != "group" {
				continue // the others write no mark where they know one
			}
			for j, second := range uses {
				for _, state := range []string{"idle", "in use"} {
					if i == j || second.hold == nil || state == "idle" && second.kind != "semaphore" {
						continue // idle, the nodes of the others do not tell
					}
					path := fmt.Sprintf("/%s-%s-%s", first.kind, second.kind, state[:2])
					a, b, c := w.open("a"+path, nil), w.open("b"+path, nil), w.open("c"+path, nil)
					if err := first.use(ctx, a, path); err != nil {
						w.t.Fatal(err)
					}
					w.raze(path)
					done, err := second.hold(ctx, b, path)
					if err != nil {
						w.t.Fatal(err)
					}
					if state == "idle" {
						done()
						done = func() {}
					}
					w.settle()
					before := w.children(path)
					wantKind(w.t, first.use(ctx, a, path), w.path(path), first.kind, second.kind)
					if after := w.children(path); len(after) != len(before) {
						w.t.Errorf("%s: %q has become %q", path, before, after)
					}
					for range 2 {
						wantKind(w.t, first.use(ctx, a, path), w.path(path), first.kind, second.kind)
					}
					done()
					if err := second.use(ctx, c, path); err != nil {
						w.t.Errorf("%s: a new client of the second kind: %v", path, err)
					}
					s := w.session("x")
					if data, _, err := s.Get(ctx, w.path(path), nil); err != nil || string(data) != "coord recipe: "+second.kind {
						w.t.Errorf("%s: the mark is %q, %v", path, data, err)
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
