package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// A joint commit that was applied is reported as applied, also if its first node is gone.
func TestLockAll_TheOutcomeOfAJointCommitIsReported(t *testing.T) {
	onMemory(t, func(w *world) {
		var after coordtest.Nth
		x, c := w.taped("a", &backendtest.Hooks{After: after.After})
		all := locks(w, c, 3, nil)
		outsider := w.Session("x")
		after.Arm(1, coordtest.Creates, func(ctx context.Context, _ backendtest.Call, err error) error {
			if _, err := outsider.Commit(ctx, backend.Delete(w.Path("/0")+"/"+w.Children("/0")[0], backend.AnyVersion)); err != nil {
				w.T.Error(err)
			}
			return backend.ErrUncertain
		})
		set, err := coord.LockAll(context.Background(), all...)
		if err != nil {
			w.T.Fatal(err)
		}
		w.releaseAll(set)
		if err := c.Close(); err != nil { // it delivers the events
			w.T.Fatal(err)
		}
		var outcomes []bool
		for _, o := range eventsOf[trace.OutcomeResolved](x) {
			outcomes = append(outcomes, o.Applied)
		}
		if !slices.Equal(outcomes, []bool{true}) {
			w.T.Errorf("reported outcomes %v, want one that was applied", outcomes)
		}
	})
}

// The deletion of a node that was granted, and the release of the lock that is waited for, arrive
// together: the client knows of the loss.
func TestLockAll_TestsItsNodesWhenItIsComplete(t *testing.T) {
	onMemory(t, func(w *world) {
		all := locks(w, w.Open("a", nil), 2, nil)
		b := locks(w, w.Open("b", nil), 2, nil)
		x := w.Session("x")
		for range 30 {
			taken := coordtest.MustLock(w.T, b[1])
			locking := w.waitingAll(context.Background(), all...)
			time.Sleep(100 * time.Millisecond) // the node of the first hold is watched
			if _, err := x.Commit(context.Background(),
				backend.Delete(w.Path("/0")+"/"+w.Children("/0")[0], backend.AnyVersion),
				backend.Delete(taken.Path(), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
			<-locking.done
			if locking.err == nil {
				w.T.Fatal("a set is returned whose node is known to be deleted")
			}
			coordtest.WantErr(w.T, locking.err, coord.ErrLost, coord.ErrDeleted)
			<-taken.Done()
			w.Empty("/1")
		}
	})
}

// What one commit cannot have is acquired in several, in the order of the paths.
func TestLockAll_HeedsTheLimitsOfACommit(t *testing.T) {
	for name, limits := range map[string]backend.Limits{
		"operations": {Ops: 5}, "bytes": {Bytes: 1300}, "one operation": {Ops: 2},
	} {
		t.Run(name, func(t *testing.T) {
			var l sentLog
			st := memory.New(&memory.Options{Limits: limits})
			c := coordtest.Open(t, backendtest.Intercept(st, *l.hooks()), nil)
			var all []coord.Locker
			for i := range 5 {
				m := coord.NewMutex(c, fmt.Sprintf("/%d", i), nil)
				coordtest.Prime(t, m)
				all = append(all, m)
			}
			l.since()
			set, err := coord.LockAll(t.Context(), all...)
			if err != nil {
				t.Fatal(err)
			}
			commits, _ := l.since()
			want := 3
			if name == "one operation" {
				want = 5
			}
			if commits != want {
				t.Errorf("%d commits, want %d", commits, want)
			}
			if err := set.Release(); err != nil {
				t.Error(err)
			}
		})
	}
}

// ownLock is a wrapper with a Lock of its own.
type ownLock struct {
	*coord.Mutex
	calls atomic.Int32
}

func (m *ownLock) Lock(ctx context.Context) (*coord.Hold, error) {
	m.calls.Add(1)
	return m.Mutex.Lock(ctx)
}

func TestLockAll_CallsTheLockOfAWrapper(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		m := &ownLock{Mutex: coord.NewMutex(c, "/1", nil)}
		set, err := coord.LockAll(context.Background(), coord.NewMutex(c, "/0", nil), m, coord.NewMutex(c, "/2", nil))
		if err != nil {
			w.T.Fatal(err)
		}
		if m.calls.Load() != 1 {
			w.T.Errorf("%d calls of the wrapper's Lock, want 1", m.calls.Load())
		}
		w.releaseAll(set)
	})
}

// While LockAll waits for the local turn of a lock, it has no place in the line of a lock that it
// does not hold: a client that removes the node of an earlier lock is noticed.
func TestLockAll_HasNoPlaceWhileItWaitsForALaterTurn(t *testing.T) {
	onMemory(t, func(w *world) {
		all := locks(w, w.Open("a", nil), 2, nil)
		first, second := coordtest.MustLock(w.T, all[0]), coordtest.MustLock(w.T, all[1])
		locking := w.waitingAll(context.Background(), all...)
		n := w.Waits.Load()
		coordtest.MustRelease(w.T, first) // the node in /0 is handed over
		w.Eventually("LockAll waits for the second turn", func() bool { return w.Waits.Load() > n })
		other := coord.NewMutex(w.Open("b", nil), "/0", nil)
		if err := other.Revoke(context.Background(), &coord.RevokeOptions{ForceAfter: time.Millisecond}); err != nil {
			w.T.Fatal(err)
		}
		h := coordtest.MustLock(w.T, other)
		if err := locking.error(); !errors.Is(err, coord.ErrLost) {
			w.T.Errorf("got %v, want that the lock was lost", err)
		}
		coordtest.MustRelease(w.T, second)
		coordtest.MustRelease(w.T, h)
		w.Empty("/0")
		w.Empty("/1")
	})
}

// A node that was handed over is granted before the joint commit of the other locks is sent, so a
// loss meanwhile is noticed.
func TestLockAll_TakesAHandedOverNodeFirst(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		all := locks(w, w.Open("a", &backendtest.Hooks{Before: before.Before}), 3, nil)
		first := coordtest.MustLock(w.T, all[0])
		locking := w.waitingAll(context.Background(), all...)
		sends, goesOn := make(chan struct{}), make(chan struct{})
		// The first commit that creates nodes is that of the hand-over.
		before.Arm(2, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
			close(sends)
			<-goesOn
			return nil
		})
		coordtest.MustRelease(w.T, first)
		<-sends
		time.Sleep(100 * time.Millisecond) // the node of the first hold is watched
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(w.Path("/0")+"/"+w.Children("/0")[0], backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		w.Settle()
		close(goesOn)
		if err := locking.error(); !errors.Is(err, coord.ErrLost) {
			w.T.Errorf("got %v, want that the lock was lost", err)
		}
	})
}

// A caller of another client has the first lock and asks for the second, which the client of
// LockAll keeps or has just released. A holder of the third lock is not in its way.
func TestLockAll_ThatWaitsForALaterTurnBlocksNobody(t *testing.T) {
	for _, v := range []struct {
		name string
		keep *coord.MutexOptions
	}{{"kept", keeps("")}, {"released", nil}} {
		t.Run(v.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				a, b := w.Open("a", nil), w.Open("b", nil)
				all := locks(w, a, 3, nil)
				all[1] = coord.NewMutex(a, "/1", v.keep)
				third := coordtest.MustLock(w.T, all[2])
				outer := coordtest.MustLock(w.T, coord.NewMutex(b, "/0", nil))
				second := coordtest.MustLock(w.T, all[1])
				var locking *lockingAll
				if v.keep != nil {
					coordtest.MustRelease(w.T, second)
					w.Settle()
					locking = w.waitingAll(context.Background(), all...)
				} else {
					locking = w.waitingAll(context.Background(), all...)
					coordtest.MustRelease(w.T, second)
					w.Settle()
				}
				inner := w.Lock(context.Background(), coord.NewMutex(b, "/1", nil)).Hold()
				coordtest.MustRelease(w.T, inner)
				coordtest.MustRelease(w.T, outer)
				coordtest.MustRelease(w.T, third)
				w.releaseAll(locking.result())
			})
		})
	}
}

// Each WaitBegan has an end, also that of a call that ends while it waits for a later turn.
func TestLockAll_ReportsTheEndOfEachWait(t *testing.T) {
	onMemory(t, func(w *world) {
		x, c := w.taped("a", nil)
		m0, m1 := coord.NewMutex(c, "/0", nil), coord.NewMutex(c, "/1", nil)
		first, second := coordtest.MustLock(w.T, m0), coordtest.MustLock(w.T, m1)
		ctx, cancel := context.WithCancel(context.Background())
		locking := w.lockAll(ctx, m0, m1)
		w.Settle()
		coordtest.MustRelease(w.T, first)
		w.Settle()
		cancel()
		<-locking.done
		w.Empty("/0")
		coordtest.MustRelease(w.T, second)
		x.want(
			"#1 HoldGranted mutex /0 lock node=/*lock-* token=true weight=1",
			"#1 HoldReleased mutex /0 lock node=/*lock-* token=true err=nil",
			"#2 HoldGranted mutex /1 lock node=/*lock-* token=true weight=1",
			"#2 HoldReleased mutex /1 lock node=/*lock-* token=true err=nil",
			"#3 WaitBegan mutex /0 lock ahead=-1",
			"#3 HoldGranted mutex /0 lock node=/*lock-* token=true weight=1",
			"#3 HoldReleased mutex /0 lock node=/*lock-* token=true err=nil",
			"#4 WaitBegan mutex /1 lock ahead=-1",
			"#4 WaitEnded mutex /1 lock err=canceled",
		)
	})
}

// A kept lock of a session that is over does not keep the call from giving the others up.
func TestLockAll_GivesUpBesideAKeptLockOfALostSession(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{Before: before.Before})
		all := locks(w, c, 2, nil)
		kept := coord.NewMutex(c, "/2", keeps(""))
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, kept))
		w.Settle()
		taken := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/0", nil))
		// The node of a call that was given up delays the joint commit.
		deletes := make(chan struct{})
		before.Arm(1, coordtest.Deletes, func(ctx context.Context, c backendtest.Call, _ error) error {
			close(deletes)
			return coordtest.Silence(ctx, c)
		})
		ctx, cancel := context.WithCancel(context.Background())
		ghost := w.Waiting(ctx, all[0])
		cancel()
		<-deletes
		<-ghost.Done
		locking := w.lockAll(context.Background(), all[0], all[1], kept)
		w.Settle()
		s, err := c.Session(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		waits := w.Waits.Load()
		w.Link("a").Expire(s.ID())
		w.Eventually("LockAll waits", func() bool { return w.Waits.Load() > waits })
		if n := len(w.Children("/1")); n != 0 {
			w.T.Errorf("%d nodes in a later line while the call waits", n)
		}
		coordtest.MustRelease(w.T, taken)
		w.releaseAll(locking.result())
	})
}

// A service that refuses the marks of directories, and one whose numbers come to an end: LockAll
// acquires the locks all the same.
func TestLockAll_WithoutTheHelpOfTheService(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			for i, op := range c.Ops {
				if op.Kind == backend.OpCarry || op.Kind == backend.OpSetData {
					return &backend.Error{Op: "carry", Path: op.Path, Index: i, Err: backend.ErrDenied}
				}
			}
			return nil
		}})
		var all []coord.Locker
		for i := range 3 {
			all = append(all, coord.NewMutex(c, fmt.Sprintf("/%d", i), nil))
		}
		for range 3 {
			set, err := coord.LockAll(context.Background(), all...)
			if err != nil {
				w.T.Fatal(err)
			}
			if err := set.Verify(context.Background()); err != nil {
				w.T.Error(err)
			}
			w.releaseAll(set)
		}
	})
}

// remembering is a wrapper of a lock that keeps the latest hold.
type remembering struct {
	coord.Locker
	h *coord.Hold
}

func (r *remembering) Lock(ctx context.Context) (h *coord.Hold, err error) {
	r.h, err = r.Locker.Lock(ctx)
	return r.h, err
}

// A set has the holds that the locks have returned, the same ones at each call.
func TestLockAll_HasTheHoldsOfItsLocks(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		x := &remembering{Locker: coord.NewMutex(c, "/b", nil)}
		set, err := coord.LockAll(context.Background(), coord.NewMutex(c, "/a", nil), x)
		if err != nil {
			w.T.Fatal(err)
		}
		if one, two := set.Holds(), set.Holds(); len(one) != 2 || !slices.Equal(one, two) || one[1] != x.h {
			w.T.Errorf("the holds are %p, then %p; the wrapper returned %p", one, two, x.h)
		}
		w.releaseAll(set)
	})
}
