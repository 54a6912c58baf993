package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

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
			{"schedule", "runnow", func(c *coord.Client, path string) func() error {
				s := coord.NewSchedule(c, path, nil, nil)
				return func() error {
					_, err := s.RunNow(ctx)
					return err
				}
			}},
			{"schedule", "run", func(c *coord.Client, path string) func() error {
				s := coord.NewSchedule(c, path, coord.Every(24*365*time.Hour), nil)
				return func() error {
					return briefly(func(ctx context.Context) error {
						if err := s.Run(ctx, func(context.Context, *coord.Run) error { return nil }); err != nil {
							return err
						}
						return ctx.Err()
					})
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
				if w.Spares { // the mark of the second kind was not written over
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
		"a schedule that nothing runs": func(path string, c *coord.Client) (string, func(*coord.Client) error) {
			if err := coord.NewSchedule(c, path, nil, nil).Pause(ctx); err != nil {
				w.T.Fatal(err)
			}
			return "schedule", func(c *coord.Client) error { return coord.NewSchedule(c, path, nil, nil).Resume(ctx) }
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
