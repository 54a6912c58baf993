package recipetest

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
	"github.com/go-coord/coord/internal/coordtest"
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
	case <-time.After(coordtest.Limit):
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
	case <-time.After(coordtest.Limit):
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

// lockAllTests are tests of LockAll on each service.
type lockAllTests struct{ Services }

func (on lockAllTests) OfFreeLocksIsOneRequest(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on lockAllTests) OfNewLocksCreatesTheirDirectories(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on lockAllTests) OfTakenLocksCostsOneMoreCommit(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on lockAllTests) GivesTheLaterLocksUpWhileItWaits(t *testing.T) {
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
			on.each(t, func(w *world) {
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
func (on lockAllTests) BesideNestedLocks(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on lockAllTests) AJointCommitWithoutAReply(t *testing.T) {
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
			on.each(t, func(w *world) {
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

// If the joint commit was not applied, it is sent again; if ctx has ended, nothing is left.
func (on lockAllTests) AJointCommitThatWasLost(t *testing.T) {
	on.each(t, func(w *world) {
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
	on.eachLater(t, "given up", func(w *world) {
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

// The node of a lock that is waited for is deleted: only that one is made again.
func (on lockAllTests) TakesANewPlaceForANodeThatWaits(t *testing.T) {
	on.each(t, func(w *world) {
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

// A lock of another client, or permits, between two locks of a client: there is no commit that has
// the locks on both sides.
func (on lockAllTests) HasOneCommitForNeighboursOnly(t *testing.T) {
	on.each(t, func(w *world) {
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

// Kept locks take part: a set of them costs nothing the second time.
func (on lockAllTests) OfKeptLocksCostsNothing(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on lockAllTests) PassesItsTurnsOn(t *testing.T) {
	on.each(t, func(w *world) {
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
	on.eachLater(t, "refused", func(w *world) {
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

// A path of another recipe among the locks fails the call, and nothing is left.
func (on lockAllTests) RefusesThePathOfAnotherRecipe(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on lockAllTests) CloseEndsLockAll(t *testing.T) {
	on.each(t, func(w *world) {
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
