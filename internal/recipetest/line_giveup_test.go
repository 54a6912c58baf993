package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// The try has looked, and its ctx ends before its node exists.
func TestMutex_TryThatWasCutShortAsksTheKeeperAgain(t *testing.T) {
	onMemory(t, func(w *world) {
		idle(w, coord.NewMutex(w.Open("a", nil), "/l", keeps("")))
		var before coordtest.Nth
		m := coord.NewMutex(w.Open("b", &backendtest.Hooks{Before: before.Before}), "/l", nil)
		ctx, cancel := context.WithCancel(w.T.Context())
		defer cancel()
		before.Arm(1, func(c backendtest.Call) bool {
			return c.Op == "commit" && c.Ops[0].Mode == backend.EphemeralSequential
		}, func(context.Context, backendtest.Call, error) error {
			cancel()
			return context.Canceled
		})
		if _, err := m.TryLock(ctx); !errors.Is(err, context.Canceled) {
			w.T.Fatalf("the first try: %v", err)
		}
		h, err := m.TryLock(w.T.Context())
		if err == nil { // the keeper has released between the creation of the try's node and its list
			coordtest.MustRelease(w.T, h)
			return
		}
		if !errors.Is(err, coord.ErrLocked) {
			w.T.Fatalf("the try that asks: %v", err)
		}
		w.Settle()
		h, err = m.TryLock(w.T.Context())
		if err != nil {
			w.T.Fatalf("the keeper was not asked: %v", err)
		}
		coordtest.MustRelease(w.T, h)
	})
}

func TestMutex_IdleKeptLocksAreBounded(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		const most = 4096
		lock := func(i int) {
			h := coordtest.MustLock(w.T, coord.NewMutex(c, fmt.Sprintf("/l/%d", i), keeps("")))
			coordtest.MustRelease(w.T, h)
		}
		kept := func(i int) bool { return len(w.Children(fmt.Sprintf("/l/%d", i))) > 0 }
		for i := range most {
			lock(i)
			if i < 4 || i%64 == 63 {
				w.Settle() // the first locks become idle one after the other
			}
		}
		lock(0) // now 1 has been idle for the longest time
		w.Settle()
		if !kept(1) {
			w.T.Error("a lock within the bound is not kept")
		}
		for i := range 3 {
			lock(most + i)
			w.Settle()
		}
		for i := range most + 3 {
			if want := i == 0 || i > 3; kept(i) != want {
				w.T.Errorf("lock %d is kept: %v, want %v", i, !want, want)
			}
		}
	})
}

// Whatever ends LockAll, its client can take each free lock with one try afterwards.
func TestLockAll_LeavesNoHoldBehind(t *testing.T) {
	errRefused := errors.New("refused")
	for _, rw := range []bool{false, true} {
		for _, end := range []string{"ctx", "refusal", "kind", "ctx without contact"} {
			onMemory(t, func(w *world) {
				a, b := w.Open("a", nil), w.Open("b", nil)
				locker := func(c *coord.Client, path string) coord.Locker {
					if rw {
						return coord.NewRWMutex(c, path, nil)
					}
					return coord.NewMutex(c, path, nil)
				}
				link := w.Link("a")
				l1, l2 := locker(a, "/l1"), locker(a, "/l2")
				ctx, cancel := context.WithTimeout(w.T.Context(), 3*time.Second)
				defer cancel()
				want := context.DeadlineExceeded
				switch end {
				case "kind":
					want = coord.ErrKind
					term, err := coord.NewElection(b, "/l2", nil).Campaign(ctx)
					if err != nil {
						w.T.Fatal(err)
					}
					defer term.Release()
				case "refusal":
					want = errRefused
					l2 = refuses{l2, errRefused}
				default:
					h, err := locker(b, "/l2").Lock(ctx)
					if err != nil {
						w.T.Fatal(err)
					}
					defer h.Release()
				}
				w.Service.(coordtest.MemoryService).Store.Link("a").SetLatency(10 * time.Millisecond)
				if end == "ctx without contact" {
					time.AfterFunc(2500*time.Millisecond, link.Partition)
				}
				_, err := coord.LockAll(ctx, l2, l1)
				if !errors.Is(err, want) {
					w.T.Fatalf("%s: %v, want %v", end, err, want)
				}
				if left := w.Children("/l1"); end != "ctx without contact" && len(left) > 0 {
					w.T.Errorf("rw %v, %s: LockAll has returned, and there is %q", rw, end, left)
				}
				link.Heal()
				h, err := l1.TryLock(w.T.Context())
				if err != nil {
					w.T.Fatalf("rw %v, %s: the client meets its own hold: %v", rw, end, err)
				}
				coordtest.MustRelease(w.T, h)
			})
		}
	}
}

// refuses is a Locker of another package whose Lock fails.
type refuses struct {
	coord.Locker
	err error
}

func (r refuses) Lock(context.Context) (*coord.Hold, error) { return nil, r.err }

// heldDeletes are hooks of a client whose commits that only delete do not begin before free is closed, from
// the moment at which hold is set. The first one closes begun.
type heldDeletes struct {
	after       coordtest.Nth
	hold        atomic.Bool
	creates     atomic.Int32 // commits that make nodes, also while nothing is held
	begun, free chan struct{}
	once        sync.Once
}

func newHeldDeletes() *heldDeletes {
	return &heldDeletes{begun: make(chan struct{}), free: make(chan struct{})}
}

func (x *heldDeletes) hooks() *backendtest.Hooks {
	return &backendtest.Hooks{After: x.after.After, Before: func(_ context.Context, c backendtest.Call) error {
		switch {
		case coordtest.Creates(c):
			x.creates.Add(1)
		case coordtest.Deletes(c) && x.hold.Load():
			x.once.Do(func() { close(x.begun) })
			<-x.free
		}
		return nil
	}}
}

// triesWait begins a try of each lock by the client that has left a node there. It frees the deletions when
// all tries wait, and then each lock must be free.
func (x *heldDeletes) triesWait(w *world, list ...coord.Locker) {
	w.T.Helper()
	results := make(chan error, len(list))
	for _, l := range list {
		go func() {
			h, err := l.(interface {
				TryLock(context.Context) (*coord.Hold, error)
			}).TryLock(context.Background())
			if err == nil {
				err = h.Release()
			}
			results <- err
		}()
	}
	w.Settle()
	if n := len(results); n > 0 {
		w.T.Errorf("%d tries did not wait for the removal of what their client has left: %v", n, <-results)
		n--
		for range n {
			<-results
		}
		close(x.free)
		return
	}
	close(x.free)
	for range list {
		if err := receive(w, "a try ends", results); err != nil {
			w.T.Errorf("the client meets its own node: %v", err)
		}
	}
}

// A local caller leaves while the holder creates the node for it. The next caller of the client waits for
// the removal of that node, also while Release still waits for it.
func TestMutex_NodeOfAHandOverDelaysTheNextCall(t *testing.T) {
	onMemory(t, func(w *world) {
		x := newHeldDeletes()
		m := coord.NewMutex(w.Open("a", x.hooks()), "/l", nil)
		coordtest.Prime(w.T, m)
		h := coordtest.MustLock(w.T, m)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		gone := w.Waiting(ctx, m)
		x.after.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
			cancel()
			<-gone.Done
			x.hold.Store(true)
			return err
		})
		released := make(chan error, 1)
		go func() { released <- h.Release() }()
		receive(w, "the removal begins", x.begun)
		w.Settle() // Release has noted what is left
		x.triesWait(w, m)
		w.must(receive(w, "Release returns", released))
	})
}

// The reply to a joint commit is lost, and what it may have made cannot be looked up, or ctx has ended. None
// of the nodes is left, and the next calls of the client wait until they are removed.
func TestLockAll_NodesThatMayBeThereAreRemoved(t *testing.T) {
	for _, name := range []string{"ctx ends at the commit", "ctx ends at the look", "the look is refused"} {
		onMemory(t, func(w *world) {
			x := newHeldDeletes()
			var look coordtest.Nth
			hooks := x.hooks()
			held := hooks.Before
			hooks.Before = func(ctx context.Context, c backendtest.Call) error {
				if err := look.Before(ctx, c); err != nil {
					return err
				}
				return held(ctx, c)
			}
			all := locks(w, w.Open("a", hooks), 3, nil)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			x.after.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
				switch name {
				case "ctx ends at the commit":
					x.hold.Store(true)
					cancel()
					return backend.Uncertain(context.Canceled)
				case "ctx ends at the look":
					x.hold.Store(true)
				}
				look.Arm(1, func(c backendtest.Call) bool { return c.Op == "children" && c.Path == w.Path("/1") }, func(context.Context, backendtest.Call, error) error {
					if name == "the look is refused" {
						return backend.ErrDenied
					}
					cancel()
					return context.Canceled
				})
				return backend.ErrUncertain
			})
			if name == "the look is refused" {
				w.releaseAll(w.lockAll(ctx, all...).result())
			} else {
				if _, err := coord.LockAll(ctx, all...); !errors.Is(err, context.Canceled) {
					w.T.Fatalf("%s: %v", name, err)
				}
				x.triesWait(w, all...)
			}
			if !look.Idle() {
				w.T.Error("the nodes were not looked up")
			}
			for i := range all {
				w.Empty(fmt.Sprintf("/%d", i))
			}
		})
	}
}

// The number that a joint commit gets in one of its directories is close to the last one. The call must
// wait there for a new directory, so it removes all nodes of the commit first.
func TestLockAll_NodesInAWornDirectoryAreRemoved(t *testing.T) {
	onMemory(t, func(w *world) {
		all := locks(w, w.Open("a", nil), 3, nil)
		w.must(w.Service.(coordtest.MemoryService).Store.SetSequence(w.Path("/1"), 2_100_000_000))
		w.releaseAll(w.lockAll(context.Background(), all...).result())
		for i := range all {
			w.Empty(fmt.Sprintf("/%d", i))
		}
	})
}

// LockAll creates no node in a directory where an earlier node of its client is being removed.
func TestLockAll_WaitsForWhatItsClientHasLeft(t *testing.T) {
	onMemory(t, func(w *world) {
		x := newHeldDeletes()
		all := locks(w, w.Open("a", x.hooks()), 3, nil)
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/1", nil))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		waiter := w.Waiting(ctx, all[1])
		x.hold.Store(true)
		cancel()
		<-waiter.Done
		coordtest.WantErr(w.T, waiter.Err, context.Canceled)
		coordtest.MustRelease(w.T, h)
		before := x.creates.Load()
		locking := w.lockAll(context.Background(), all...)
		w.Settle()
		if n := x.creates.Load() - before; n != 0 {
			w.T.Errorf("%d commits that make nodes beside a node that is being removed", n)
		}
		close(x.free)
		w.releaseAll(locking.result())
		if n := x.creates.Load() - before; n != 1 {
			w.T.Errorf("%d commits that make nodes, want the joint one", n)
		}
	})
}

// LockAll gives its places in the later lines up, and the service is slow to remove them. Other calls of the
// client wait for that; and so does LockAll itself before it returns.
func TestLockAll_PlacesThatAreGivenUpDelayTheNextCall(t *testing.T) {
	onMemory(t, func(w *world) {
		x := newHeldDeletes()
		all := locks(w, w.Open("a", x.hooks()), 2, nil)
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/0", nil))
		x.hold.Store(true)
		locking := w.lockAll(context.Background(), all...)
		receive(w, "the removal begins", x.begun)
		time.Sleep(2 * time.Second) // LockAll has stopped to wait for it
		x.triesWait(w, all[1])
		coordtest.MustRelease(w.T, h)
		w.releaseAll(locking.result())
	})
	t.Run("when ctx ends", func(t *testing.T) {
		onMemory(t, func(w *world) {
			var after coordtest.Nth
			all := locks(w, w.Open("a", &backendtest.Hooks{After: after.After, Before: func(_ context.Context, c backendtest.Call) error {
				for _, op := range c.Ops {
					if op.Kind == backend.OpDelete && strings.HasPrefix(op.Path, w.Path("/1/")) {
						time.Sleep(100 * time.Millisecond)
						break
					}
				}
				return nil
			}}), 3, nil)
			h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/0", nil))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			after.Arm(1, coordtest.Creates, func(_ context.Context, _ backendtest.Call, err error) error {
				cancel()
				return err
			})
			if _, err := coord.LockAll(ctx, all...); !errors.Is(err, context.Canceled) {
				w.T.Fatal(err)
			}
			for _, dir := range []string{"/1", "/2"} {
				if left := w.Children(dir); len(left) > 0 {
					w.T.Errorf("LockAll has returned, and %v is left", left)
				}
			}
			coordtest.MustRelease(w.T, h)
		})
	})
}

// One of the nodes that LockAll gives up is gone already, so the commit that deletes them together is
// refused. The others are removed all the same.
func TestLockAll_GivesUpItsOtherPlacesIfOneIsGone(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		all := locks(w, w.Open("a", &backendtest.Hooks{Before: before.Before}), 3, nil)
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/0", nil))
		before.Arm(1, coordtest.Deletes, func(_ context.Context, c backendtest.Call, err error) error {
			if len(c.Ops) != 2 {
				w.T.Errorf("%d operations, want the two deletions", len(c.Ops))
			}
			w.commit(backend.Delete(c.Ops[1].Path, backend.AnyVersion))
			return err
		})
		locking := w.waitingAll(context.Background(), all...)
		w.Settle()
		if !before.Idle() {
			w.T.Error("LockAll gives nothing up")
		}
		for _, dir := range []string{"/1", "/2"} {
			if left := w.Children(dir); len(left) > 0 {
				w.T.Errorf("LockAll waits for the first lock, and %v is left", left)
			}
		}
		coordtest.MustRelease(w.T, h)
		w.releaseAll(locking.result())
	})
}
