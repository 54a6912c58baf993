package recipetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// waits are the calls that wait for a turn, each with the directory of its nodes.
var waits = []struct {
	name, dir string
	call      func(c *coord.Client) func(context.Context) (*coord.Hold, error)
	try       func(c *coord.Client) func(context.Context) (*coord.Hold, error) // nil if there is none
}{
	{"Lock", "/r",
		func(c *coord.Client) func(context.Context) (*coord.Hold, error) {
			return coord.NewMutex(c, "/r", nil).Lock
		},
		func(c *coord.Client) func(context.Context) (*coord.Hold, error) {
			return coord.NewMutex(c, "/r", nil).TryLock
		}},
	{"Lock of a writer", "/r",
		func(c *coord.Client) func(context.Context) (*coord.Hold, error) {
			return coord.NewRWMutex(c, "/r", nil).Lock
		},
		func(c *coord.Client) func(context.Context) (*coord.Hold, error) {
			return coord.NewRWMutex(c, "/r", nil).TryRLock
		}},
	{"RLock", "/r",
		func(c *coord.Client) func(context.Context) (*coord.Hold, error) {
			rw := coord.NewRWMutex(c, "/r", nil)
			return func(ctx context.Context) (*coord.Hold, error) {
				if c := ctx.Value(asWriter{}); c != nil {
					return rw.Lock(ctx)
				}
				return rw.RLock(ctx)
			}
		},
		func(c *coord.Client) func(context.Context) (*coord.Hold, error) {
			return coord.NewRWMutex(c, "/r", nil).TryLock
		}},
	{"Acquire", "/r/requests",
		func(c *coord.Client) func(context.Context) (*coord.Hold, error) {
			s := coord.NewSemaphore(c, "/r", 2, nil)
			return func(ctx context.Context) (*coord.Hold, error) { return s.Acquire(ctx, 2) }
		},
		func(c *coord.Client) func(context.Context) (*coord.Hold, error) {
			s := coord.NewSemaphore(c, "/r", 2, nil)
			return func(ctx context.Context) (*coord.Hold, error) { return s.TryAcquire(ctx, 1) }
		}},
	{"Campaign", "/r",
		func(c *coord.Client) func(context.Context) (*coord.Hold, error) {
			e := coord.NewElection(c, "/r", nil)
			return func(ctx context.Context) (*coord.Hold, error) {
				t, err := e.Campaign(ctx)
				if err != nil {
					return nil, err
				}
				return t.Hold, nil
			}
		}, nil},
}

// asWriter is the key of a context with which the reader's call takes the lock as a writer,
// which is what a reader waits for.
type asWriter struct{}

// busy reports, on a real server, whether at least a second has passed since began. A call that
// gives up, or that removes its node, may then have returned before the removal, as documented.
func busy(w *world, began time.Time) bool { return !w.Fake && time.Since(began) >= time.Second }

// giveupTests are tests of GiveUp on each service.
type giveupTests struct{ Services }

// A wait that was given up has left nothing when the call returns, so it does not block the
// next call, of the same client or of another.
func (on giveupTests) AWaitThatWasGivenUpHasLeftNothing(t *testing.T) {
	for _, x := range waits {
		t.Run(x.name, func(t *testing.T) {
			on.each(t, func(w *world) {
				held := context.WithValue(context.Background(), asWriter{}, true)
				c, other := w.Open("a", nil), x.call(w.Open("b", nil))
				call := x.call(c)
				slow := w.Session("slow") // reads as another client does after the call has returned
				for i := range 20 {
					h, err := other(held)
					if err != nil {
						w.T.Fatal(err)
					}
					var began time.Time
					n := w.Waits.Load()
					ctx, cancel := context.WithCancel(context.Background())
					go func() {
						w.Eventually("it waits", func() bool { return w.Waits.Load() > n })
						began = time.Now()
						cancel()
					}()
					if _, err = call(ctx); !errors.Is(err, context.Canceled) {
						w.T.Fatal(err)
					}
					if busy(w, began) {
						w.Eventually("its node is gone", func() bool { return len(w.Children(x.dir)) == 1 })
					}
					if err := slow.Sync(w.T.Context(), w.Path(x.dir)); err != nil {
						w.T.Fatal(err)
					}
					names, _, err := slow.Children(w.T.Context(), w.Path(x.dir), nil)
					if err != nil || len(names) != 1 {
						w.T.Fatalf("round %d: there is another node beside the holder's: %v, %v", i, names, err)
					}
					coordtest.MustRelease(w.T, h)
					if x.try == nil {
						continue
					}
					if h, err = x.try(c)(context.Background()); err != nil {
						w.T.Fatalf("round %d: a free lock is refused: %v", i, err)
					}
					coordtest.MustRelease(w.T, h)
				}
			})
		})
	}
}

// The ctx of a caller ends while the Release of another caller of its client is creating its
// node. The node is gone when both calls have returned.
func (on giveupTests) ACallThatIsGivenUpDuringAHandOverHasLeftNothing(t *testing.T) {
	for _, name := range []string{"the reply arrives", "the reply is lost"} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				var after coordtest.Nth
				m := coord.NewMutex(w.Open("a", &backendtest.Hooks{After: after.After}), "/l", nil)
				other := coord.NewMutex(w.Open("b", nil), "/l", nil)
				slow := w.Session("slow")
				if x, ok := w.Link("a").(interface{ SetLatency(time.Duration) }); ok {
					x.SetLatency(50 * time.Millisecond)
				}
				for i := range 10 {
					h := coordtest.MustLock(w.T, m)
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					gone := w.Waiting(ctx, m)
					after.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
						cancel()
						<-gone.Done
						if name == "the reply is lost" {
							return backend.ErrUncertain
						}
						return err
					})
					began := time.Now()
					mayBeReleased(w.T, h)
					coordtest.WantErr(w.T, gone.Err, context.Canceled)
					if busy(w, began) {
						w.Empty("/l")
					}
					if err := slow.Sync(w.T.Context(), w.Path("/l")); err != nil {
						w.T.Fatal(err)
					}
					names, _, err := slow.Children(w.T.Context(), w.Path("/l"), nil)
					if err != nil || len(names) != 0 {
						w.T.Fatalf("round %d: the calls have left nodes: %v, %v", i, names, err)
					}
					h, err = other.TryLock(context.Background())
					if err != nil {
						w.T.Fatalf("round %d: a free lock is refused: %v", i, err)
					}
					coordtest.MustRelease(w.T, h)
				}
			})
		})
	}
}

// A creation whose ctx ends while it is under way leaves nothing either.
func (on giveupTests) ACreationThatWasGivenUpHasLeftNothing(t *testing.T) {
	on.each(t, func(w *world) {
		var after coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{After: after.After}), "/r", nil)
		coordtest.Prime(w.T, m)
		for range 3 {
			ctx, cancel := context.WithCancel(context.Background())
			after.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
				cancel()
				return backend.Uncertain(context.Canceled)
			})
			began := time.Now()
			_, err := m.Lock(ctx)
			coordtest.WantErr(w.T, err, context.Canceled)
			if busy(w, began) {
				w.Empty("/r")
			}
			if names := w.Children("/r"); len(names) != 0 {
				w.T.Errorf("the node is left: %v", names)
			}
			h, err := m.TryLock(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			coordtest.MustRelease(w.T, h)
		}
	})
}

// One process is one member, however often it has given up, alone or in turns with
// another client.
func (on giveupTests) AnEntrantThatGaveUpIsNotCounted(t *testing.T) {
	for _, name := range []string{"one client", "two clients in turns"} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				var barriers []*coord.DoubleBarrier
				for _, link := range []string{"a", "b"} {
					barriers = append(barriers, coord.NewDoubleBarrier(w.Open(link, nil), "/b", 2, nil))
					if name == "one client" {
						break
					}
				}
				for i := range 15 {
					d := barriers[i%len(barriers)]
					var began time.Time
					n := w.Waits.Load()
					ctx, cancel := context.WithCancel(context.Background())
					go func() {
						w.Eventually("it waits", func() bool { return w.Waits.Load() > n })
						began = time.Now()
						cancel()
					}()
					e, err := d.Enter(ctx)
					if !errors.Is(err, context.Canceled) {
						w.T.Fatalf("round %d: one member has passed for two: %v, %v", i, e, err)
					}
					if busy(w, began) {
						w.Empty("/b/members")
					}
				}
			})
		})
	}
}

// A Leave with a ctx that has ended has removed its node when it returns, so that the next
// Enter belongs to the next round.
func (on giveupTests) ALeaveThatWasGivenUpHasLeft(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		ended, cancel := context.WithCancel(ctx)
		cancel()
		a := coord.NewDoubleBarrier(w.Open("a", nil), "/b", 2, nil)
		b := coord.NewDoubleBarrier(w.Open("b", nil), "/b", 2, nil)
		for round := range 5 {
			entered := make(chan *coord.Entry, 1)
			go func() {
				e, err := b.Enter(ctx)
				if err != nil {
					w.T.Error(err)
				}
				entered <- e
			}()
			e, err := a.Enter(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			other := <-entered
			if w.T.Failed() {
				return
			}
			began := time.Now()
			for _, e := range []*coord.Entry{e, other} {
				if e.Extra() {
					w.T.Errorf("round %d: an extra of the round that has ended", round)
				}
				coordtest.WantErr(w.T, e.Leave(ended), context.Canceled)
			}
			if busy(w, began) {
				w.bare("/b")
			}
			if names := w.Children("/b"); !slices.Equal(names, []string{"members"}) {
				w.T.Errorf("round %d: %s are left", round, strings.Join(names, ", "))
			}
			if names := w.Children("/b/members"); len(names) != 0 {
				w.T.Errorf("round %d: %v are left", round, names)
			}
		}
	})
}

// slowDelete holds the next deletion before it is sent, for d or until the session ends, and
// keeps its result.
type slowDelete struct {
	before, after coordtest.Nth
	sent          chan struct{} // closed when the deletion was asked for
	result        chan error
}

func holdDelete(d time.Duration) *slowDelete {
	x := &slowDelete{sent: make(chan struct{}), result: make(chan error, 1)}
	x.before.Arm(1, coordtest.Deletes, func(ctx context.Context, c backendtest.Call, _ error) error {
		close(x.sent)
		select {
		case <-time.After(d):
		case <-c.Session.Done():
		}
		return nil
	})
	x.after.Arm(1, coordtest.Deletes, func(_ context.Context, _ backendtest.Call, err error) error {
		x.result <- err
		return err
	})
	return x
}

func (x *slowDelete) hooks() *backendtest.Hooks {
	return &backendtest.Hooks{Before: x.before.Before, After: x.after.After}
}

// giveUpAtBarrier gives up an Enter of c that waits, which leaves a deletion behind.
func giveUpAtBarrier(w *world, c *coord.Client) {
	w.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	result, n := make(chan error, 1), w.Waits.Load()
	go func() {
		_, err := coord.NewDoubleBarrier(c, "/b", 2, nil).Enter(ctx)
		result <- err
	}()
	w.Eventually("Enter waits", func() bool { return w.Waits.Load() > n })
	cancel()
	coordtest.WantErr(w.T, <-result, context.Canceled)
}

// Nodes that a call has left behind are removed before the session ends.
func (on giveupTests) CloseWaitsForTheRemovalOfAbandonedNodes(t *testing.T) {
	on.each(t, func(w *world) {
		x := holdDelete(1500 * time.Millisecond)
		c := w.Open("a", x.hooks())
		giveUpAtBarrier(w, c)
		began := time.Now()
		c.Close()
		// On a busy machine it may not come: Close waits for two seconds.
		if err := <-x.result; err != nil && (w.Fake || time.Since(began) < 2*time.Second) {
			w.T.Error("the deletion did not come before the end of the session:", err)
		}
	})
}
