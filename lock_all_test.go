package coord_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

// sentLog records the requests of a client.
type sentLog struct {
	mu    sync.Mutex
	calls []backendtest.Call
}

func (l *sentLog) hooks() *backendtest.Hooks {
	return &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls = append(l.calls, c)
		return nil
	}}
}

// since returns the numbers of commits and of other requests since the latest call.
func (l *sentLog) since() (commits, others int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		if c.Op == "commit" {
			commits++
		} else {
			others++
		}
	}
	l.calls = nil
	return commits, others
}

// locks returns the mutexes /0, /1, … of a client, whose directories it knows.
func locks(w *world, c *coord.Client, n int, o *coord.MutexOptions) (list []coord.Locker) {
	for i := range n {
		m := coord.NewMutex(c, fmt.Sprintf("/%d", i), o)
		coordtest.Prime(w.T, coord.NewMutex(c, fmt.Sprintf("/%d", i), nil))
		list = append(list, m)
	}
	return list
}

// lockingAll is a LockAll under way.
type lockingAll struct {
	w    *world
	done chan struct{}
	set  *coord.HoldSet
	err  error
}

func (w *world) lockAll(ctx context.Context, list ...coord.Locker) *lockingAll {
	l := &lockingAll{w: w, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.set, l.err = coord.LockAll(ctx, list...)
	}()
	return l
}

// waitingAll starts a LockAll and returns when it waits.
func (w *world) waitingAll(ctx context.Context, list ...coord.Locker) *lockingAll {
	w.T.Helper()
	n := w.Waits.Load()
	l := w.lockAll(ctx, list...)
	w.Eventually("LockAll waits", func() bool { return w.Waits.Load() > n })
	return l
}

func (l *lockingAll) result() *coord.HoldSet {
	l.w.T.Helper()
	select {
	case <-l.done:
	case <-time.After(30 * time.Second):
		l.w.T.Fatal("LockAll never returned")
	}
	if l.err != nil {
		l.w.T.Fatal(l.err)
	}
	return l.set
}

// error returns the error with which the call ends.
func (l *lockingAll) error() error {
	l.w.T.Helper()
	select {
	case <-l.done:
	case <-time.After(30 * time.Second):
		return errors.New("LockAll never returned")
	}
	return l.err
}

func (w *world) releaseAll(set *coord.HoldSet) {
	w.T.Helper()
	if err := set.Release(); err != nil {
		w.T.Fatal(err)
	}
}

func TestLockAllOfFreeLocksIsOneRequest(t *testing.T) {
	onEach(t, func(w *world) {
		var l sentLog
		c := w.Open("a", l.hooks())
		all := locks(w, c, 10, nil)
		slices.Reverse(all) // the order of the arguments does not matter
		for _, n := range []int{1, 3, 10} {
			l.since()
			set, err := coord.LockAll(context.Background(), all[:n]...)
			if err != nil {
				w.T.Fatal(err)
			}
			commits, others := l.since()
			w.T.Logf("figure: LockAll of %d free locks: %d commits and %d other requests", n, commits, others)
			if commits != 1 || w.Fake && others != 0 {
				w.T.Errorf("%d commits and %d other requests for %d locks, want one commit", commits, others, n)
			}
			if err := set.Verify(context.Background()); err != nil {
				w.T.Error(err)
			}
			w.releaseAll(set)
		}
	})
}

// A client that does not know the directories yet reads, or creates, all of them at once.
func TestLockAllOfNewLocksCreatesTheirDirectories(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.Open("a", nil)
		var all []coord.Locker
		for _, p := range []string{"/d/0", "/d/1", "/d/2"} {
			all = append(all, coord.NewMutex(c, p, nil))
		}
		set, err := coord.LockAll(context.Background(), all...)
		if err != nil {
			w.T.Fatal(err)
		}
		if h := set.Holds(); h[0].Token() != h[1].Token() || h[0].Token() != h[2].Token() {
			w.T.Errorf("tokens %d, %d, %d: not of one commit", h[0].Token(), h[1].Token(), h[2].Token())
		}
		w.releaseAll(set)
		// The directories were removed since, as containers are.
		s := w.Session("x")
		for _, p := range []string{"/d/0", "/d/2"} {
			if _, err := s.Commit(context.Background(), backend.Delete(w.Path(p), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		}
		if set, err = coord.LockAll(context.Background(), all...); err != nil {
			w.T.Fatal(err)
		}
		if h := set.Holds(); h[0].Token() != h[1].Token() || h[0].Token() != h[2].Token() {
			w.T.Errorf("tokens %d, %d, %d: not of one commit", h[0].Token(), h[1].Token(), h[2].Token())
		}
		w.releaseAll(set)
	})
}

// The costs of three locks of which another client has the k-th, beside those of the same locks
// one by one.
func TestLockAllOfTakenLocksCostsOneMoreCommit(t *testing.T) {
	onEach(t, func(w *world) {
		var l sentLog
		c := w.Open("a", l.hooks())
		all := locks(w, c, 3, nil)
		other := locks(w, w.Open("b", nil), 3, nil)
		for k := range all {
			ctx := context.Background()
			// One by one.
			taken := coordtest.MustLock(w.T, other[k])
			l.since()
			waits := w.Waits.Load()
			done := make(chan []*coord.Hold)
			go func() {
				var holds []*coord.Hold
				for _, m := range all {
					holds = append(holds, coordtest.MustLock(w.T, m))
				}
				done <- holds
			}()
			w.Eventually("it waits", func() bool { return w.Waits.Load() > waits })
			coordtest.MustRelease(w.T, taken)
			holds := <-done
			single, singleOthers := l.since()
			for _, h := range holds {
				coordtest.MustRelease(w.T, h)
			}
			w.Settle()

			taken = coordtest.MustLock(w.T, other[k])
			l.since()
			locking := w.waitingAll(ctx, all...)
			for i := range all {
				want := 1
				switch {
				case i == k:
					want = 2
				case i > k:
					want = 0
				}
				if got := len(w.Children(fmt.Sprintf("/%d", i))); got != want {
					w.T.Errorf("blocked at lock %d: %d nodes at lock %d, want %d", k+1, got, i+1, want)
				}
			}
			coordtest.MustRelease(w.T, taken)
			set := locking.result()
			joint, jointOthers := l.since()
			w.releaseAll(set)
			w.T.Logf("figure: LockAll of 3 locks, lock %d taken: %d commits and %d other requests; one by one %d and %d", k+1, joint, jointOthers, single, singleOthers)
			if single != 3 || joint > single+1 {
				w.T.Errorf("%d commits, and %d one by one", joint, single)
			}
		}
	})
}

// The six steps in which one commit in all lines would deadlock: the nested caller has the first
// lock and then asks for the second.
func TestLockAllGivesTheLaterLocksUpWhileItWaits(t *testing.T) {
	type side struct{ first, second coord.Locker }
	for _, v := range []struct {
		name string
		// all are the locks of LockAll; nested the same locks of the other caller.
		make func(w *world) (all, nested side)
	}{
		{"of another client", func(w *world) (side, side) {
			a, b := w.Open("a", nil), w.Open("b", nil)
			return side{coord.NewMutex(a, "/1", nil), coord.NewMutex(a, "/2", nil)}, side{coord.NewMutex(b, "/1", nil), coord.NewMutex(b, "/2", nil)}
		}},
		{"the local turn", func(w *world) (side, side) {
			a := w.Open("a", nil)
			rw, m := coord.NewRWMutex(a, "/1", nil), coord.NewMutex(a, "/2", nil)
			return side{rw, m}, side{rw, m}
		}},
		{"a kept lock", func(w *world) (side, side) {
			a, b := w.Open("a", nil), w.Open("b", nil)
			m := coord.NewMutex(a, "/2", keeps(""))
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
			w.Settle()
			return side{coord.NewMutex(a, "/1", nil), m}, side{coord.NewMutex(b, "/1", nil), coord.NewMutex(b, "/2", nil)}
		}},
	} {
		t.Run(v.name, func(t *testing.T) {
			onEach(t, func(w *world) {
				all, nested := v.make(w)
				outer := coordtest.MustLock(w.T, nested.first)
				locking := w.waitingAll(context.Background(), all.first, all.second)
				inner := w.Lock(context.Background(), nested.second).Hold()
				coordtest.MustRelease(w.T, inner)
				coordtest.MustRelease(w.T, outer)
				w.releaseAll(locking.result())
				w.Empty("/1")
			})
		})
	}
}

// Callers of LockAll and callers that nest the same locks come to an end.
func TestLockAllBesideNestedLocks(t *testing.T) {
	onEach(t, func(w *world) {
		var all sync.WaitGroup
		var held [3]atomic.Int32
		enter := func(i int) {
			if n := held[i].Add(1); n != 1 {
				w.T.Errorf("%d holders of lock %d", n, i+1)
			}
		}
		for i, name := range []string{"a", "b", "c"} {
			list := locks(w, w.Open(name, nil), 3, []*coord.MutexOptions{nil, keeps("")}[i%2])
			for range 2 {
				all.Go(func() {
					for range 10 {
						set, err := coord.LockAll(context.Background(), list...)
						if err != nil {
							w.T.Error(err)
							return
						}
						for i := range held {
							enter(i)
						}
						for i := range held {
							held[i].Add(-1)
						}
						if err := set.Release(); err != nil {
							w.T.Error(err)
						}
					}
				})
				all.Go(func() {
					for range 10 {
						var holds []*coord.Hold
						for i, m := range list {
							holds = append(holds, coordtest.MustLock(w.T, m))
							enter(i)
						}
						for i, h := range holds {
							held[i].Add(-1)
							if err := h.Release(); err != nil {
								w.T.Error(err)
							}
						}
					}
				})
			}
		}
		all.Wait()
	})
}

// A joint commit whose reply is lost is looked up in all lines.
func TestAJointCommitWithoutAReply(t *testing.T) {
	for _, v := range []struct {
		name    string
		deletes int // the node of this lock is deleted before the reply is lost, from 1
		creates int // requests that create nodes
	}{
		{"found", 0, 1},
		{"the first node is gone", 1, 4},
		{"the last node is gone", 3, 4},
	} {
		t.Run(v.name, func(t *testing.T) {
			onEach(t, func(w *world) {
				var after coordtest.Nth
				var creates atomic.Int64
				outsider := w.Session("x")
				c := w.Open("a", &backendtest.Hooks{After: after.After, Before: func(_ context.Context, c backendtest.Call) error {
					if coordtest.Creates(c) {
						creates.Add(1)
					}
					return nil
				}})
				all := locks(w, c, 3, nil)
				creates.Store(0)
				after.Arm(1, coordtest.Creates, func(ctx context.Context, _ backendtest.Call, err error) error {
					if err != nil {
						return err
					}
					if v.deletes > 0 {
						dir := fmt.Sprintf("/%d", v.deletes-1)
						if _, err := outsider.Commit(ctx, backend.Delete(w.Path(dir)+"/"+w.Children(dir)[0], backend.AnyVersion)); err != nil {
							w.T.Error(err)
						}
					}
					return backend.ErrUncertain
				})
				set, err := coord.LockAll(context.Background(), all...)
				if err != nil {
					w.T.Fatal(err)
				}
				if n := creates.Load(); n != int64(v.creates) {
					w.T.Errorf("%d commits that create nodes, want %d", n, v.creates)
				}
				for i, h := range set.Holds() {
					w.Eventually("only the node of the hold is left", func() bool {
						names := w.Children(fmt.Sprintf("/%d", i))
						return len(names) == 1 && w.Path(fmt.Sprintf("/%d/%s", i, names[0])) == h.Path()
					})
				}
				if err := set.Verify(context.Background()); err != nil {
					w.T.Error(err)
				}
				w.releaseAll(set)
			})
		})
	}
}

// A joint commit that was applied is reported as applied, also if its first node is gone.
func TestTheOutcomeOfAJointCommitIsReported(t *testing.T) {
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
		for _, o := range toldOf[trace.OutcomeResolved](x) {
			outcomes = append(outcomes, o.Applied)
		}
		if !slices.Equal(outcomes, []bool{true}) {
			w.T.Errorf("reported outcomes %v, want one that was applied", outcomes)
		}
	})
}

// If the joint commit was not applied, it is sent again; if ctx has ended, nothing is left.
func TestAJointCommitThatWasLost(t *testing.T) {
	onEach(t, func(w *world) {
		var before coordtest.Nth
		var l sentLog
		c := w.Open("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			l.hooks().Before(ctx, c)
			return before.Before(ctx, c)
		}})
		all := locks(w, c, 3, nil)
		l.since()
		before.Arm(1, coordtest.Creates, coordtest.Lose)
		set, err := coord.LockAll(context.Background(), all...)
		if err != nil {
			w.T.Fatal(err)
		}
		if commits, _ := l.since(); commits != 2 {
			w.T.Errorf("%d commits, want 2", commits)
		}
		w.releaseAll(set)
	})
	onEachLater(t, "given up", func(w *world) {
		var after coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{After: after.After, Before: func(_ context.Context, c backendtest.Call) error {
			if w.Fake && coordtest.Deletes(c) {
				time.Sleep(50 * time.Millisecond) // a service that is slow
			}
			return nil
		}})
		all := locks(w, c, 3, nil)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		after.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
			cancel()
			return backend.Uncertain(context.Canceled)
		})
		began := time.Now()
		_, err := coord.LockAll(ctx, all...)
		coordtest.WantErr(w.T, err, context.Canceled)
		late := busy(w, began)
		for i := range all {
			if late {
				w.Empty(fmt.Sprintf("/%d", i))
			}
			if left := w.Children(fmt.Sprintf("/%d", i)); len(left) > 0 {
				w.T.Errorf("LockAll has returned, and %v is left", left)
			}
		}
	})
}

// The deletion of a node that was granted, and the release of the lock that is waited for, arrive
// together: the client knows of the loss.
func TestLockAllTestsItsNodesWhenItIsComplete(t *testing.T) {
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

// The node of a lock that is waited for is deleted: only that one is made again.
func TestLockAllTakesANewPlaceForANodeThatWaits(t *testing.T) {
	onEach(t, func(w *world) {
		all := locks(w, w.Open("a", nil), 3, nil)
		taken := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/1", nil))
		locking := w.waitingAll(context.Background(), all...)
		first := w.Children("/0")
		for _, name := range w.Children("/1") {
			if p := w.Path("/1") + "/" + name; p != taken.Path() {
				if _, err := w.Session("x").Commit(context.Background(), backend.Delete(p, backend.AnyVersion)); err != nil {
					w.T.Fatal(err)
				}
			}
		}
		w.Eventually("it takes a new place", func() bool { return len(w.Children("/1")) == 2 })
		if now := w.Children("/0"); !slices.Equal(now, first) {
			w.T.Errorf("the node of the granted lock is %v, was %v", now, first)
		}
		coordtest.MustRelease(w.T, taken)
		w.releaseAll(locking.result())
	})
}

// What one commit cannot have is acquired in several, in the order of the paths.
func TestLockAllHeedsTheLimitsOfACommit(t *testing.T) {
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

// A lock of another client, or permits, between two locks of a client: there is no commit that has
// the locks on both sides.
func TestLockAllHasOneCommitForNeighboursOnly(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := w.Open("a", nil), w.Open("b", nil)
		// The caller in between has /1 of the other client, and asks for /2.
		list := locks(w, a, 3, nil)
		list[1] = coord.NewMutex(b, "/1", nil)
		middle := coordtest.MustLock(w.T, coord.NewMutex(w.Open("c", nil), "/1", nil))
		locking := w.waitingAll(context.Background(), list...)
		if n := len(w.Children("/2")); n != 0 {
			w.T.Errorf("%d nodes in the last line while the middle one is awaited", n)
		}
		last := coordtest.MustLock(w.T, coord.NewMutex(w.Open("c", nil), "/2", nil))
		coordtest.MustRelease(w.T, last)
		coordtest.MustRelease(w.T, middle)
		set := locking.result()
		for i, c := range []*coord.Client{a, b, a} {
			s, err := c.Session(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			if got := set.Holds()[i].Session(); got != s.ID() {
				w.T.Errorf("hold %d is of session %d, want that of its client, %d", i, got, s.ID())
			}
		}
		w.releaseAll(set)
	})
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

func TestLockAllCallsTheLockOfAWrapper(t *testing.T) {
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

// Kept locks take part: a set of them costs nothing the second time.
func TestLockAllOfKeptLocksCostsNothing(t *testing.T) {
	onEach(t, func(w *world) {
		var l sentLog
		all := locks(w, w.Open("a", l.hooks()), 3, keeps(""))
		for range 2 {
			set, err := coord.LockAll(context.Background(), all...)
			if err != nil {
				w.T.Fatal(err)
			}
			w.releaseAll(set)
			w.Settle()
		}
		l.since()
		for range 100 {
			set, err := coord.LockAll(context.Background(), all...)
			if err != nil {
				w.T.Fatal(err)
			}
			w.releaseAll(set)
		}
		commits, others := l.since()
		w.T.Logf("figure: LockAll of 3 kept locks, 100 cycles: %d commits and %d other requests", commits, others)
		// On a slow machine a hold can last until the watch on its node is armed, once for each lock.
		if commits != 0 || w.Fake && others != 0 || others > len(all) {
			w.T.Errorf("%d commits and %d other requests, want none", commits, others)
		}
	})
}

// A call that ends while it waits for a local turn leaves nothing.
func TestLockAllPassesItsTurnsOn(t *testing.T) {
	onEach(t, func(w *world) {
		all := locks(w, w.Open("a", nil), 3, nil)
		h := coordtest.MustLock(w.T, all[1])
		ctx, cancel := context.WithCancel(context.Background())
		locking := w.waitingAll(ctx, all...)
		cancel()
		<-locking.done
		if !errors.Is(locking.err, context.Canceled) {
			w.T.Error(locking.err)
		}
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, all[0]))
		coordtest.MustRelease(w.T, h)
		for i, m := range all {
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
			w.Empty(fmt.Sprintf("/%d", i))
		}
	})
	onEachLater(t, "refused", func(w *world) {
		c := w.Open("a", nil)
		if _, err := coord.NewValue[string](c, "/v", nil).Set(context.Background(), "data"); err != nil {
			w.T.Fatal(err)
		}
		later := coord.NewMutex(c, "/w", nil)
		_, err := coord.LockAll(context.Background(), coord.NewMutex(c, "/v", nil), later)
		coordtest.WantErr(w.T, err, coord.ErrKind)
		coordtest.MustRelease(w.T, w.Lock(context.Background(), later).Hold())
	})
}

// While LockAll waits for the local turn of a lock, it has no place in the line of a lock that it
// does not hold: a client that removes the node of an earlier lock is noticed.
func TestLockAllHasNoPlaceWhileItWaitsForALaterTurn(t *testing.T) {
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
func TestLockAllTakesAHandedOverNodeFirst(t *testing.T) {
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
func TestLockAllThatWaitsForALaterTurnBlocksNobody(t *testing.T) {
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
func TestLockAllReportsTheEndOfEachWait(t *testing.T) {
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
func TestLockAllGivesUpBesideAKeptLockOfALostSession(t *testing.T) {
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

// A path of another recipe among the locks fails the call, and nothing is left.
func TestLockAllRefusesThePathOfAnotherRecipe(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.Open("a", nil)
		all := locks(w, c, 3, nil)
		if _, err := coord.NewValue[string](c, "/v", nil).Set(context.Background(), "data"); err != nil {
			w.T.Fatal(err)
		}
		_, err := coord.LockAll(context.Background(), append(all, coord.NewMutex(w.Open("b", nil), "/v", nil))...)
		coordtest.WantErr(w.T, err, coord.ErrKind)
		_, err = coord.LockAll(context.Background(), append(all, coord.NewMutex(c, "/v", nil))...)
		coordtest.WantErr(w.T, err, coord.ErrKind)
		for i := range all {
			w.Empty(fmt.Sprintf("/%d", i))
		}
	})
}

// A client that closes while LockAll waits leaves nothing.
func TestCloseEndsLockAll(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.Open("a", nil)
		all := locks(w, c, 3, keeps(""))
		taken := coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/1", nil))
		locking := w.waitingAll(context.Background(), all...)
		c.Close()
		<-locking.done
		coordtest.WantErr(w.T, locking.err, coord.ErrClosed)
		coordtest.MustRelease(w.T, taken)
		for i := range all {
			w.Empty(fmt.Sprintf("/%d", i))
		}
	})
}

// A service that refuses the marks of directories, and one whose numbers come to an end: LockAll
// acquires the locks all the same.
func TestLockAllWithoutTheHelpOfTheService(t *testing.T) {
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
