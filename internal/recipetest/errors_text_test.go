package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A call runs under a hold of another client. When that client is closed, the call's context
// ends, with ErrClosed in its cause. The client that makes the call is not closed, and the call
// that gives up leaves nothing.
func TestErrors_TheEndOfAnotherClientIsThatOfAContext(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *coord.Client) error{
		"mutex": func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewMutex(c, "/mutex", nil).Lock(ctx)
			return err
		},
		"semaphore": func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewSemaphore(c, "/semaphore", 1, nil).Acquire(ctx, 1)
			return err
		},
		"double barrier": func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewDoubleBarrier(c, "/double", 2, nil).Enter(ctx)
			return err
		},
		"queue": func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewQueue[int](c, "/queue", nil).Take(ctx)
			return err
		},
		"group": func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewGroup[string](c, "/group", nil).Join(ctx, "id", "data")
			return err
		},
		"two-phase commit": func(ctx context.Context, c *coord.Client) error {
			p := coord.Proposal[string]{ID: "t", Sites: []string{"a"}, Payload: "p", Deadline: time.Now().Add(time.Hour)}
			_, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(ctx, p)
			return err
		},
		"site": func(ctx context.Context, c *coord.Client) error {
			nothing := func(context.Context, coord.Branch[string]) error { return nil }
			h := coord.Handler[string]{Prepare: nothing, Commit: nothing, Abort: nothing}
			return coord.NewParticipant(c, "/tx", "a", h).Serve(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				holder := w.Open("holder", nil)
				coordtest.MustLock(w.T, coord.NewMutex(holder, "/mutex", nil))
				if _, err := coord.NewSemaphore(holder, "/semaphore", 1, nil).Acquire(context.Background(), 1); err != nil {
					w.T.Fatal(err)
				}
				w.accounts("a")[0].votes(isAskedForEver)
				other := w.Open("other", nil)
				ctx := coordtest.MustLock(w.T, coord.NewMutex(other, "/other", nil)).Context(context.Background())
				var x coordtest.Nth
				c := w.Open("c", &backendtest.Hooks{After: x.After})
				if name == "group" {
					x.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
						other.Close()
						return err
					})
				}
				done := make(chan error)
				go func() { done <- call(ctx, c) }()
				w.Settle()
				other.Close()
				err := <-done
				coordtest.WantErr(w.T, err, context.Canceled, coord.ErrLost, coord.ErrClosed)
				if _, err := coord.NewQueue[int](c, "/queue", nil).Len(context.Background()); err != nil {
					w.T.Error(err)
				}
				for _, dir := range []string{"/double/members", "/queue/waiters", "/group"} {
					w.Empty(dir)
				}
			})
		})
	}
}

// A context ends with a cause that matches an error of the library: that of another call, as
// with errgroup, or of another session. The cause is no answer of the service to this call.
func TestErrors_TheCauseOfAContextIsNoAnswer(t *testing.T) {
	type scene struct {
		w *world
		c *coord.Client
		// ending returns a context that ends before the next call of an operation of
		// the backend, counted from now.
		ending func(op string, n int) context.Context
	}
	cases := map[string]func(x scene) error{
		"Verify": func(x scene) error {
			h := coordtest.MustLock(x.w.T, coord.NewMutex(x.c, "/l", nil))
			err := h.Verify(x.ending("sync", 1))
			if h.Err() != nil {
				x.w.T.Errorf("the hold is over: %v", h.Err())
			}
			coordtest.MustRelease(x.w.T, h)
			return err
		},
		"Announce": func(x scene) error {
			term, err := coord.NewElection(x.c, "/e", nil).Campaign(context.Background())
			if err != nil {
				x.w.T.Fatal(err)
			}
			err = term.Announce(x.ending("commit", 1), []byte("here"))
			if term.Err() != nil {
				x.w.T.Errorf("the term is over: %v", term.Err())
			}
			coordtest.MustRelease(x.w.T, term.Hold)
			return err
		},
		"Barrier.Wait": func(x scene) error {
			b := coord.NewBarrier(x.c, "/b", nil)
			if err := b.Set(context.Background()); err != nil {
				x.w.T.Fatal(err)
			}
			return b.Wait(x.ending("get", 1))
		},
		"Entry.Leave": func(x scene) error {
			entered := make(chan *coord.Entry, 2)
			for _, c := range []*coord.Client{x.c, x.w.Open("b", nil)} {
				go func() {
					e, err := coord.NewDoubleBarrier(c, "/d", 2, nil).Enter(context.Background())
					if err != nil {
						x.w.T.Error(err)
					}
					entered <- e
				}()
			}
			a, b := <-entered, <-entered
			if s, err := x.c.Session(context.Background()); err != nil || a.Session() != s.ID() {
				a, b = b, a
			}
			defer b.Release()
			return a.Leave(x.ending("children", 1))
		},
		"Queue.Len": func(x scene) error {
			q := coord.NewQueue[int](x.c, "/q", nil)
			mustPut(x.w.T, q, 1, 1)
			_, err := q.Len(x.ending("children", 1))
			return err
		},
		"Queue.Peek": func(x scene) error {
			q := coord.NewQueue[int](x.c, "/q", nil)
			mustPut(x.w.T, q, 1, 1)
			_, err := q.Peek(x.ending("children", 1))
			return err
		},
		"Queue.Purge": func(x scene) error {
			q := coord.NewQueue[int](x.c, "/q", nil)
			mustPut(x.w.T, q, 1, 1)
			_, err := q.Purge(x.ending("children", 2))
			return err
		},
		"Forget": func(x scene) error {
			x.w.accounts("a")
			co := coord.NewCoordinator[string](x.c, "/tx", &coord.CoordinatorOptions[string]{KeepRecords: true})
			mustPropose(x.w.T, co, x.w.proposal("t", "a"))
			return co.Forget(x.ending("get", 1), "t")
		},
		"Recover": func(x scene) error {
			x.w.accounts("a")
			co := coord.NewCoordinator[string](x.c, "/tx", &coord.CoordinatorOptions[string]{KeepRecords: true})
			mustPropose(x.w.T, co, x.w.proposal("t", "a"))
			_, err := co.Recover(x.ending("children", 1))
			return err
		},
	}
	for name, call := range cases {
		for _, cause := range []error{coord.ErrNotFound, coord.ErrSessionLost, coord.ErrClosed} {
			t.Run(fmt.Sprint(name, ", ", cause), func(t *testing.T) {
				onMemory(t, func(w *world) {
					var x coordtest.Nth
					err := call(scene{w, w.Open("a", &backendtest.Hooks{Before: x.Before}), func(op string, n int) context.Context {
						w.Settle()
						ctx, cancel := context.WithCancelCause(context.Background())
						x.Arm(n, func(c backendtest.Call) bool { return c.Op == op }, func(context.Context, backendtest.Call, error) error {
							cancel(cause)
							return nil
						})
						return ctx
					}})
					coordtest.WantErr(w.T, err, context.Canceled, cause)
				})
			})
		}
	}
}

// The context of Serve ends while it reads a transaction.
func TestErrors_TheCauseOfServesEndIsNotTakenForAnUnreadableRecord(t *testing.T) {
	for _, node := range []string{"/tx/tx/t", "/decision-"} {
		t.Run(node, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx, cancel := context.WithCancelCause(context.Background())
				defer cancel(nil)
				var x coordtest.Nth
				x.Arm(1, func(c backendtest.Call) bool { return c.Op != "commit" && strings.Contains(c.Path, node) },
					func(context.Context, backendtest.Call, error) error {
						cancel(coord.ErrDecode)
						return nil
					})
				var calls atomic.Int32
				call := func(context.Context, coord.Branch[string]) error {
					calls.Add(1)
					return nil
				}
				p := coord.NewParticipant(w.Open("site", &backendtest.Hooks{Before: x.Before}), "/tx", "a",
					coord.Handler[string]{Prepare: call, Commit: call, Abort: call})
				ended := make(chan error)
				go func() { ended <- p.Serve(ctx) }()
				w.served("a")
				result := proposeLater(coord.NewCoordinator(w.Open("co", nil), "/tx", unserved(coord.AbortUnserved)), w.proposal("t", "a"))
				coordtest.WantErr(w.T, <-ended, context.Canceled, coord.ErrDecode)
				if r := <-result; r.err != nil || r.d.Commit || r.d.By != "proposer" {
					w.T.Errorf("%+v", r)
				}
				if n := calls.Load(); n != 0 {
					w.T.Errorf("%d calls of the handler", n)
				}
			})
		})
	}
}

// The session is lost at the moment when the context ends, before the call has sent anything:
// the call ends with the error of its context.
func TestErrors_TheEndOfAContextComesBeforeTheLossOfItsSession(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *coord.Client) error{
		"Queue.Put": func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewQueue[int](c, "/q", nil).Put(ctx, 1)
			return err
		},
		"Queue.Purge": func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewQueue[int](c, "/q", nil).Purge(ctx)
			return err
		},
		"Barrier.Set": func(ctx context.Context, c *coord.Client) error {
			return coord.NewBarrier(c, "/b", nil).Set(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				cause := errors.New("enough")
				ctx, cancel := context.WithCancelCause(context.Background())
				var x coordtest.Nth
				x.Arm(1, func(backendtest.Call) bool { return true }, func(context.Context, backendtest.Call, error) error {
					cancel(cause)
					return coord.ErrSessionLost
				})
				err := call(ctx, w.Open("a", &backendtest.Hooks{Before: x.Before}))
				coordtest.WantErr(w.T, err, context.Canceled, cause)
				if errors.Is(err, coord.ErrSessionLost) || errors.Is(err, coord.ErrUncertain) {
					w.T.Errorf("%v", err)
				}
			})
		})
	}
}

// A try that finds the lock taken returns ErrLocked, also if its context ends during the read
// that shows it.
func TestErrors_ARefusedTryIsRefusedAlthoughItsContextEnds(t *testing.T) {
	lists := func(c backendtest.Call) bool { return c.Op == "children" }
	readsLimit := func(c backendtest.Call) bool { return c.Op == "get" && strings.HasSuffix(c.Path, "/limit") }
	for name, x := range map[string]struct {
		try   func(ctx context.Context, c *coord.Client) error
		reads func(c backendtest.Call) bool
		n     int
	}{
		"mutex": {func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewMutex(c, "/l", nil).TryLock(ctx)
			return err
		}, lists, 1},
		"rwmutex": {func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewRWMutex(c, "/l", nil).TryLock(ctx)
			return err
		}, lists, 1},
		"semaphore": {func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewSemaphore(c, "/l", 1, nil).TryAcquire(ctx, 1)
			return err
		}, readsLimit, 2}, // before the list and after it
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				w.must(x.try(context.Background(), w.Open("holder", nil)))
				ctx, cancel := context.WithCancel(context.Background())
				var after coordtest.Nth
				after.Arm(x.n, x.reads, func(_ context.Context, _ backendtest.Call, err error) error {
					cancel()
					return err
				})
				err := x.try(ctx, w.Open("a", &backendtest.Hooks{After: after.After}))
				coordtest.WantErr(w.T, err, coord.ErrLocked)
				if ctx.Err() == nil || errors.Is(err, context.Canceled) {
					w.T.Errorf("%v, ctx: %v", err, ctx.Err())
				}
			})
		})
	}
}

// A write was applied, and its reply is lost because the context ends, with a cause that
// matches an error of the library: a repetition could do harm, whatever the cause is.
func TestErrors_AWriteInDoubtIsUncertainWhateverEndsItsContext(t *testing.T) {
	bg := context.Background()
	value := func(c *coord.Client) *coord.Value[string] { return coord.NewValue[string](c, "/v", nil) }
	setValue := func(c *coord.Client) error {
		_, err := value(c).Set(bg, "x")
		return err
	}
	for name, x := range map[string]struct {
		kind    backend.OpKind
		path    string
		prepare func(c *coord.Client) error
		call    func(ctx context.Context, c *coord.Client) error
	}{
		"Value.Set makes it": {backend.OpCreate, "/v", nil, func(ctx context.Context, c *coord.Client) error {
			_, err := value(c).Set(ctx, "y")
			return err
		}},
		"Value.Set": {backend.OpSetData, "/v", setValue, func(ctx context.Context, c *coord.Client) error {
			_, err := value(c).Set(ctx, "y")
			return err
		}},
		"Value.CompareAndSet makes it": {backend.OpCreate, "/v", nil, func(ctx context.Context, c *coord.Client) error {
			_, err := value(c).CompareAndSet(ctx, coord.Versioned[string]{}, "y")
			return err
		}},
		"Value.CompareAndSet": {backend.OpSetData, "/v", setValue, func(ctx context.Context, c *coord.Client) error {
			old, err := value(c).Get(bg)
			if err == nil {
				_, err = value(c).CompareAndSet(ctx, old, "y")
			}
			return err
		}},
		"Value.Update": {backend.OpSetData, "/v", setValue, func(ctx context.Context, c *coord.Client) error {
			_, err := value(c).Update(ctx, func(old string) (string, error) { return old + "y", nil })
			return err
		}},
		"Value.Delete": {backend.OpDelete, "/v", setValue, func(ctx context.Context, c *coord.Client) error {
			old, err := value(c).Get(bg)
			if err == nil {
				err = value(c).Delete(ctx, old)
			}
			return err
		}},
		"Counter.Add": {backend.OpCreate, "/v", nil, func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewCounter(c, "/v").Add(ctx, 1)
			return err
		}},
		"Barrier.Set": {backend.OpCreate, "/barrier", nil, func(ctx context.Context, c *coord.Client) error {
			return coord.NewBarrier(c, "/barrier", nil).Set(ctx)
		}},
		"Barrier.Remove": {backend.OpDelete, "/barrier", func(c *coord.Client) error { return coord.NewBarrier(c, "/barrier", nil).Set(bg) },
			func(ctx context.Context, c *coord.Client) error {
				return coord.NewBarrier(c, "/barrier", nil).Remove(ctx)
			}},
		"Semaphore.SetLimit": {backend.OpCreate, "/s/limit", nil, func(ctx context.Context, c *coord.Client) error {
			return coord.NewSemaphore(c, "/s", 2, nil).SetLimit(ctx, 3)
		}},
		"Term.Announce": {backend.OpCreate, "ready-", nil, func(ctx context.Context, c *coord.Client) error {
			term, err := coord.NewElection(c, "/e", nil).Campaign(bg)
			if err == nil {
				err = term.Announce(ctx, nil)
			}
			return err
		}},
		"Queue.Put": {backend.OpCreate, "/i-", nil, func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewQueue[string](c, "/q", nil).Put(ctx, "i")
			return err
		}},
		"Schedule.RunNow": {backend.OpCreate, "/schedule-state", nil, func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewSchedule(c, "/jobs", nil, nil).RunNow(ctx)
			return err
		}},
		"Txn.Commit": {backend.OpCreate, "/v", nil, func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewTxn(c).Add(value(c).SetOp("y")).Commit(ctx)
			return err
		}},
	} {
		for _, cause := range []error{
			coord.ErrConflict, coord.ErrExists, coord.ErrBadVersion, coord.ErrDenied, coord.ErrNotEmpty, coord.ErrNotFound, coord.ErrSessionLost, coord.ErrClosed,
		} {
			t.Run(fmt.Sprint(name, ", ", cause), func(t *testing.T) {
				onMemory(t, func(w *world) {
					var after coordtest.Nth
					c := w.Open("a", &backendtest.Hooks{After: after.After})
					if x.prepare != nil {
						w.must(x.prepare(c))
					}
					ctx, cancel := context.WithCancelCause(bg)
					defer cancel(nil)
					after.Arm(1, does(x.kind, x.path), func(ctx context.Context, c backendtest.Call, err error) error {
						w.must(err)
						cancel(cause)
						return &backend.Error{Op: "commit", Path: c.Path, Index: -1, Err: backend.Uncertain(backend.ContextError(ctx))}
					})
					coordtest.WantErr(w.T, x.call(ctx, c), coord.ErrUncertain, context.Canceled)
				})
			})
		}
	}
}

// A context ends while a client looks up the kind of a path. The cause of its end must not be
// remembered as the kind: the next call looks again, and is refused before it writes.
func TestErrors_TheCauseOfAContextIsNotRemembered(t *testing.T) {
	ending := func(w *world, match func(backendtest.Call) bool, cause error, then func(c *coord.Client, ctx context.Context)) (writes int32) {
		var before coordtest.Nth
		var commits atomic.Int32
		c := w.Open("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			if c.Op == "commit" {
				commits.Add(1)
			}
			err := before.Before(ctx, c)
			if err == nil && ctx.Err() == nil && does(backend.OpSetData, "permit-")(c) {
				err = backend.ErrDenied
			}
			return err
		}})
		ctx, cancel := context.WithCancelCause(context.Background())
		before.Arm(1, match, func(context.Context, backendtest.Call, error) error {
			cancel(cause)
			return nil
		})
		then(c, ctx)
		return commits.Load()
	}
	nothing := func(w *world, writes int32) {
		w.T.Helper()
		if writes != 0 {
			w.T.Errorf("the client wrote %d times to the path of another recipe", writes)
		}
	}
	t.Run("the kind of a path", func(t *testing.T) {
		onMemory(t, func(w *world) {
			acquire(w.T, coord.NewSemaphore(w.Open("b", nil), "/p", 2, nil), 1)
			nothing(w, ending(w, func(c backendtest.Call) bool { return c.Op == "get" }, coord.ErrDenied, func(c *coord.Client, ctx context.Context) {
				_, err := coord.NewMutex(c, "/p", nil).Lock(ctx)
				coordtest.WantErr(w.T, err, context.Canceled)
				_, err = coord.NewMutex(c, "/p", nil).Lock(context.Background())
				coordtest.WantErr(w.T, err, coord.ErrKind)
			}))
		})
	})
	t.Run("the kind of the nodes", func(t *testing.T) {
		onMemory(t, func(w *world) {
			w.commit(backend.Create("/p", nil, backend.Persistent))
			w.commit(backend.Create("/p/limit", []byte("1"), backend.Persistent))
			w.commit(backend.Create("/p/requests", nil, backend.Persistent))
			nothing(w, ending(w, func(c backendtest.Call) bool { return c.Op == "children" }, coord.ErrDenied, func(c *coord.Client, ctx context.Context) {
				_, err := coord.NewMutex(c, "/p", nil).Lock(ctx)
				coordtest.WantErr(w.T, err, context.Canceled)
				_, err = coord.NewMutex(c, "/p", nil).Lock(context.Background())
				coordtest.WantErr(w.T, err, coord.ErrKind)
			}))
		})
	})
	t.Run("that a waiter may mark its node", func(t *testing.T) {
		onMemory(t, func(w *world) {
			acquire(w.T, coord.NewSemaphore(w.Open("b", nil), "/s", 2, nil), 2)
			ending(w, does(backend.OpSetData, "permit-"), coord.ErrBadVersion, func(c *coord.Client, ctx context.Context) {
				s := coord.NewSemaphore(c, "/s", 2, nil)
				_, err := s.Acquire(ctx, 1)
				coordtest.WantErr(w.T, err, context.Canceled)
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				_, err = s.Acquire(ctx, 1)
				coordtest.WantErr(w.T, err, coord.ErrDenied)
			})
		})
	})
}

// The text of an error states the operation, the path and the reason, each once.
func TestErrors_TheTextsOfErrors(t *testing.T) {
	ctx := context.Background()
	type call = func(w *world, c *coord.Client) error
	open := func(o coord.QueueOptions[int]) call {
		return func(_ *world, c *coord.Client) error {
			_, err := coord.NewQueue(c, "/q", &o).Put(ctx, 1)
			return err
		}
	}
	commit := func(build func(*coord.Txn) *coord.Txn) call {
		return func(w *world, c *coord.Client) error {
			if _, err := coord.NewValue[int](c, "/n/v", nil).Set(ctx, 1); err != nil {
				w.T.Fatal(err)
			}
			_, err := build(coord.NewTxn(c)).Commit(ctx)
			return err
		}
	}
	for _, x := range []struct {
		call call
		want string // %s is the path of the hold
	}{
		{func(_ *world, c *coord.Client) error {
			_, err := coord.LockAll(ctx, coord.NewMutex(c, "/a", nil), nil, coord.NewMutex(c, "/b", nil))
			return err
		}, "coord: lockall: invalid argument: locker 2 of 3 is nil"},
		{func(_ *world, c *coord.Client) error {
			_, err := coord.LockAll(ctx, coord.NewMutex(c, "/a", nil), (*coord.Semaphore)(nil).Locker(1))
			return err
		}, "coord: lockall: invalid argument: locker 2 of 2 is nil"},
		{commit(func(t *coord.Txn) *coord.Txn { return t.If(coord.IfExists("/n"), coord.IfMissing("/n/v")) }),
			"coord: transaction refused: condition 1 (missing /n/v): node exists"},
		{commit(func(t *coord.Txn) *coord.Txn { return t.If(coord.IfVersion("/n/v", 7)) }),
			"coord: transaction refused: condition 0 (version /n/v): version does not match"},
		{commit(func(t *coord.Txn) *coord.Txn { return t.Set("/n/v", nil).Delete("/n") }),
			"coord: transaction refused: operation 1 (delete /n): node has children"},
		{func(w *world, c *coord.Client) error {
			h := coordtest.MustLock(w.T, coord.NewMutex(c, "/l", nil))
			if err := h.Release(); err != nil {
				w.T.Fatal(err)
			}
			_, err := coord.NewTxn(c).Under(h.Guard()).Delete("/x").Commit(ctx)
			return &holdError{err, h.Path()}
		}, "coord: transaction refused: guard 0 (node %s): the hold of the guard has ended"},
		{func(w *world, _ *coord.Client) error {
			var before coordtest.Nth
			rw := coord.NewRWMutex(w.Open("rw", &backendtest.Hooks{Before: before.Before}), "/rw", nil)
			h := coordtest.MustLock(w.T, rw)
			node := h.Path()
			before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
				w.commit(backend.Delete(node, backend.AnyVersion))
				return nil
			})
			return &holdError{rw.Downgrade(ctx, h), node}
		}, "coord: downgrade %s: hold: lost: node deleted by another client"},
		{func(w *world, c *coord.Client) error {
			h := coordtest.MustLock(w.T, coord.NewMutex(c, "/l", nil))
			w.commit(backend.Delete(h.Path(), backend.AnyVersion))
			<-h.Done()
			_, err := coord.NewMutex(c, "/m", nil).Lock(h.Context(ctx))
			return &holdError{err, h.Path()}
		}, "coord: lock /m: context canceled: hold %s: lost: node deleted by another client"},
		{open(coord.QueueOptions[int]{MaxLen: -1}), "coord: put /q: invalid argument: MaxLen -1 is negative"},
		{open(coord.QueueOptions[int]{MaxAttempts: -2}), "coord: put /q: invalid argument: MaxAttempts -2 is negative"},
		{open(coord.QueueOptions[int]{Prefetch: math.MinInt}), fmt.Sprint("coord: put /q: invalid argument: Prefetch ", math.MinInt, " is negative")},
		{open(coord.QueueOptions[int]{DeadLetterPath: "/q"}), "coord: put /q: invalid argument: DeadLetterPath is the path of the queue itself"},
		{open(coord.QueueOptions[int]{DeadLetterPath: "/q/items"}), `coord: put /q: invalid argument: DeadLetterPath "/q/items" is below the items, keys, waiters or producers of the queue`},
		{func(_ *world, c *coord.Client) error {
			_, err := coord.NewQueue(c, "/d/waiters/q", &coord.QueueOptions[int]{DeadLetterPath: "/d"}).Put(ctx, 1)
			return err
		}, `coord: put /d/waiters/q: invalid argument: the queue is below the items, keys, waiters or producers of its DeadLetterPath "/d"`},
		{func(_ *world, c *coord.Client) error {
			half := coord.Codec[int]{Decode: coord.JSON[int]().Decode}
			_, err := coord.NewValue(c, "/v", &coord.ValueOptions[int]{Codec: half}).Set(ctx, 1)
			return err
		}, "coord: set /v: cannot encode the value: invalid argument: a Codec needs both Encode and Decode"},
		{func(_ *world, c *coord.Client) error {
			_, err := coord.NewValue[chan int](c, "/v", nil).Set(ctx, nil)
			return err
		}, "coord: set /v: invalid argument: cannot encode the value: json: unsupported type: chan int"},
		{func(_ *world, c *coord.Client) error {
			_, err := coord.NewDelayQueue[int](c, "/q", nil).Put(ctx, time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC), 1)
			return err
		}, "coord: put /q: invalid argument: the item is due in the year 12000, limit 9999"},
		{func(_ *world, c *coord.Client) error {
			n := coord.NewCounter(c, "/n")
			if _, err := n.Add(ctx, math.MaxInt64); err != nil {
				return err
			}
			_, err := n.Add(ctx, 1)
			return err
		}, "coord: add /n: limit reached: 9223372036854775807 + 1 overflows int64"},
		{func(w *world, c *coord.Client) error {
			_, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(ctx, w.proposal("t", "ghost"))
			return err
		}, `coord: propose /tx: site "ghost" was never served: node not found`},
		{func(w *world, c *coord.Client) error {
			w.accounts("two")
			_, err := coord.NewCoordinator[string](c, "/tx", nil).RemoveSite(ctx, "two")
			return err
		}, `coord: removesite /tx/sites/two: site "two" is served: locked`},
	} {
		onMemory(t, func(w *world) {
			err := x.call(w, w.Open("c", nil))
			want := x.want
			if h := (*holdError)(nil); errors.As(err, &h) {
				err, want = h.error, fmt.Sprintf(want, h.path)
			}
			if err == nil || err.Error() != want {
				w.T.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

// holdError is an error whose text names a node.
type holdError struct {
	error
	path string
}

// The wait of LockAll ends with the loss of a hold, and so does the release of that hold.
func TestErrors_LockAllReportsALossOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("c", nil)
		held := coordtest.MustLock(w.T, coord.NewMutex(w.Open("other", nil), "/b", nil))
		ended := make(chan error)
		go func() {
			_, err := coord.LockAll(ctx, coord.NewMutex(c, "/a", nil), coord.NewMutex(c, "/b", nil))
			ended <- err
		}()
		w.Settle()
		name := w.Children("/a")[0]
		if _, err := w.Session("x").Commit(ctx, backend.Delete(w.Path("/a/"+name), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		err := <-ended
		coordtest.WantErr(w.T, err, coord.ErrLost, coord.ErrDeleted)
		if want := "coord: hold /a/" + name + ": lost: node deleted by another client"; err.Error() != want {
			w.T.Errorf("got  %v\nwant %s", err, want)
		}
		if err := held.Release(); err != nil {
			w.T.Error(err)
		}
	})
}

// The reply to the removal is lost, and then the session.
func TestErrors_AnUncertainReleaseNamesItsNodeOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		c := w.Open("c", &backendtest.Hooks{After: x.After})
		h := coordtest.MustLock(w.T, coord.NewMutex(c, "/l", nil))
		x.Arm(1, coordtest.Deletes, func(_ context.Context, call backendtest.Call, _ error) error {
			w.Link("c").Partition()
			<-call.Session.Done()
			return &backend.Error{Op: "delete", Path: h.Path(), Err: backend.Uncertain(backend.ErrSessionLost)}
		})
		err := h.Release()
		coordtest.WantErr(w.T, err, coord.ErrLost, coord.ErrUncertain)
		if text := err.Error(); strings.Count(text, "coord:") != 1 || strings.Count(text, h.Path()) != 1 {
			w.T.Errorf("%v repeats itself", err)
		}
		w.Link("c").Heal()
	})
}

func TestErrors_PoliciesHaveNames(t *testing.T) {
	for want, x := range map[string]fmt.Stringer{
		"fail": coord.FailUnserved, "abort": coord.AbortUnserved, "await": coord.AwaitUnserved, "unknown": coord.Unserved(7),
		"round robin": coord.PickRoundRobin, "random": coord.PickRandom,
		"skip": coord.MissedSkip, "once": coord.MissedOnce, "all": coord.MissedAll,
	} {
		if got := x.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := coord.PickPolicy(7).String(); got != "unknown" {
		t.Errorf("got %q", got)
	}
	if got := coord.Missed(7).String(); got != "unknown" {
		t.Errorf("got %q", got)
	}
}
