package coord_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// armed matches the call with which a waiter arms the watch on its predecessor. What happens
// before that call returns is seen all at once.
func (w *world) armed(c backendtest.Call) bool { return c.Op == "arm" }

// Found during the design: a reconnection fires all watches. A waiter that took this for the
// deletion of its predecessor would be granted a held lock.
func TestAReconnectGrantsNothing(t *testing.T) {
	onEach(t, func(w *world) {
		holder := coordtest.MustLock(w.T, coord.NewMutex(w.Open("holder", nil), "/l", nil))
		var after coordtest.Nth
		var listed atomic.Int32
		c := w.Open("a", &backendtest.Hooks{After: func(ctx context.Context, c backendtest.Call, err error) error {
			if c.Op == "children" && c.Path == w.Path("/l") {
				listed.Add(1)
			}
			return after.After(ctx, c, err)
		}})
		m := coord.NewMutex(c, "/l", nil)
		for range 20 {
			after.Arm(1, w.armed, func(_ context.Context, c backendtest.Call, err error) error {
				_, changed := c.Session.Status()
				w.Link("a").Partition()
				<-changed
				w.Link("a").Heal()
				if err := c.Session.Sync(context.Background(), w.Path("/l")); err != nil { // connected again
					w.T.Error(err)
				}
				return err
			})
			ctx, cancel := context.WithCancel(context.Background())
			n := listed.Load()
			waiter := w.Lock(ctx, m)
			w.Eventually("the waiter listed again", func() bool { return listed.Load() >= n+2 })
			w.Settle()
			waiter.Pending()
			cancel()
			<-waiter.Done
		}
		waiter := w.Waiting(context.Background(), m)
		coordtest.MustRelease(w.T, holder)
		coordtest.MustRelease(w.T, waiter.Hold())
	})
}

// The contract allows a watch to fire without a change. Only the deletion of the known head
// grants the lock.
func TestASpuriousWakeUpGrantsNothing(t *testing.T) {
	onEach(t, func(w *world) {
		holder := coordtest.MustLock(w.T, coord.NewMutex(w.Open("holder", nil), "/l", nil))
		var fired atomic.Int32
		c := w.Open("a", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			for _, target := range c.Targets {
				if target.Children && err == nil && fired.Add(1) <= 20 {
					target.Watch.Fire(backend.LookAgain)
				}
			}
			return err
		}})
		waiter := w.Lock(context.Background(), coord.NewMutex(c, "/l", nil))
		w.Eventually("the waiter was woken", func() bool { return fired.Load() >= 20 })
		w.Settle()
		waiter.Pending()
		coordtest.MustRelease(w.T, holder)
		coordtest.MustRelease(w.T, waiter.Hold())
	})
}

// A service may keep an event from a session that may not read the node. A session that waits
// in a queue for the first time looks at the predecessor, and sees that it is gone.
func TestAnEventThatIsKeptFromAWaiterIsNotWaitedFor(t *testing.T) {
	onEach(t, func(w *world) {
		holder := coordtest.MustLock(w.T, coord.NewMutex(w.Open("holder", nil), "/l", nil))
		var before, after coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{
			Before: func(ctx context.Context, c backendtest.Call) error { return before.After(ctx, c, nil) },
			After:  after.After,
		})
		before.Arm(1, w.armed, func(_ context.Context, c backendtest.Call, _ error) error {
			for _, target := range c.Targets {
				if target.Children {
					target.Watch.Stop() // it never fires
				}
			}
			return nil
		})
		after.Arm(1, w.armed, func(_ context.Context, _ backendtest.Call, err error) error {
			coordtest.MustRelease(w.T, holder)
			return err
		})
		coordtest.MustRelease(w.T, w.Lock(context.Background(), coord.NewMutex(c, "/l", nil)).Hold())
	})
}

// Found during the design: the waiter's own node was deleted first, the event of the
// predecessor was read first, and a waiter without a node was granted.
func TestAWaiterWithoutANodeIsNotGranted(t *testing.T) {
	onEach(t, func(w *world) {
		var after coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{After: after.After}), "/l", nil)
		s := w.Session("x")
		// A session that waits for the first time checks whether it may see its predecessor,
		// which finds the deletion too. So this session waits once before.
		first := coordtest.MustLock(w.T, coord.NewMutex(w.Open("first", nil), "/l", nil))
		waited := w.Waiting(context.Background(), m)
		coordtest.MustRelease(w.T, first)
		coordtest.MustRelease(w.T, waited.Hold())
		for range 20 {
			holder := coordtest.MustLock(w.T, coord.NewMutex(w.Open("holder", nil), "/l", nil))
			var gone string
			after.Arm(1, w.armed, func(_ context.Context, c backendtest.Call, err error) error {
				list, lerr := m.Contenders(context.Background())
				if lerr != nil || len(list) != 2 {
					w.T.Errorf("contenders %+v, %v", list, lerr)
					return err
				}
				gone = list[1].Path
				for _, p := range []string{gone, holder.Path()} {
					if _, err := s.Commit(context.Background(), backend.Delete(p, backend.AnyVersion)); err != nil {
						w.T.Error(err)
					}
				}
				if err := c.Session.Sync(context.Background(), w.Path("/l")); err != nil { // the events are here
					w.T.Error(err)
				}
				return err
			})
			h := coordtest.MustLock(w.T, m)
			if h.Path() == gone || gone == "" {
				w.T.Fatalf("granted on %q, after %q was deleted", h.Path(), gone)
			}
			if err := h.Verify(context.Background()); err != nil {
				w.T.Fatal(err)
			}
			coordtest.MustRelease(w.T, h)
			holder.Release()
		}
	})
}

// A node that was not the head can be deleted. Only the deletion of the known head makes the
// next node the head.
func TestAWaiterThatGivesUpMakesNoOtherTheHead(t *testing.T) {
	onEach(t, func(w *world) {
		mutex := func(who string) *coord.Mutex { return coord.NewMutex(w.Open(who, nil), "/l", nil) }
		holder := coordtest.MustLock(w.T, mutex("holder"))
		ctx, cancel := context.WithCancel(context.Background())
		ahead := w.Waiting(ctx, mutex("ahead"))
		ctx, cancelBefore := context.WithCancel(context.Background())
		before := w.Waiting(ctx, mutex("before"))
		waiter := w.Waiting(context.Background(), mutex("waiter"))
		cancel()
		<-ahead.Done
		w.Eventually("the one ahead has gone", func() bool { return len(w.Children("/l")) == 3 })
		w.Settle()
		cancelBefore()
		<-before.Done
		w.Eventually("the one before has gone", func() bool { return len(w.Children("/l")) == 2 })
		w.Settle()
		waiter.Pending()
		coordtest.MustRelease(w.T, holder)
		coordtest.MustRelease(w.T, waiter.Hold())
	})
}

// Only the deletion of the node ahead shows that the predecessor is the head.
func TestASpuriousWakeUpAheadMakesNoOtherTheHead(t *testing.T) {
	onEach(t, func(w *world) {
		mutex := func(who string) *coord.Mutex { return coord.NewMutex(w.Open(who, nil), "/l", nil) }
		holder := coordtest.MustLock(w.T, mutex("holder"))
		ctx, cancel := context.WithCancel(context.Background())
		before := w.Waiting(ctx, mutex("before"))
		var fired atomic.Int32
		c := w.Open("waiter", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			for _, target := range c.Targets {
				if target.Path == holder.Path() && err == nil && fired.Add(1) == 1 {
					target.Watch.Fire(backend.LookAgain)
				}
			}
			return err
		}})
		waiter := w.Waiting(context.Background(), coord.NewMutex(c, "/l", nil))
		w.Eventually("the waiter was woken", func() bool { return fired.Load() > 0 })
		w.Settle()
		cancel()
		<-before.Done
		w.Eventually("the one before has gone", func() bool { return len(w.Children("/l")) == 2 })
		w.Settle()
		waiter.Pending()
		coordtest.MustRelease(w.T, holder)
		coordtest.MustRelease(w.T, waiter.Hold())
	})
}

// A waiter that knows that its predecessor is the head needs no read at the hand-over, however
// long the queue is.
func TestAHandOverNeedsNoRead(t *testing.T) {
	onMemory(t, func(w *world) {
		const n = 6
		var calls [n]atomic.Int32
		var waiters [n]*coordtest.Locking
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("holder", nil), "/l", nil))
		for i := range n {
			c := w.Open(fmt.Sprint(i), &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
				calls[i].Add(1)
				return nil
			}})
			waiters[i] = w.Waiting(context.Background(), coord.NewMutex(c, "/l", nil))
			w.Settle()
		}
		for i := range n {
			var before [n]int32
			for j := range n {
				before[j] = calls[j].Load()
			}
			coordtest.MustRelease(w.T, h)
			w.Settle()
			h = waiters[i].Hold()
			woken := 0
			for j := i; j < n; j++ { // the one before i has released
				if d := calls[j].Load() - before[j]; d > 0 {
					woken++
					if j == i {
						w.T.Errorf("waiter %d was granted with %d requests, want none", i, d)
					}
				}
			}
			want := min(1, n-1-i)
			if i == 0 {
				want = 0 // the second one came when the holder was the one ahead of it
			}
			if woken != want {
				w.T.Errorf("release %d: %d others made requests, want %d", i, woken, want)
			}
		}
		coordtest.MustRelease(w.T, h)
	})
}

// A change of the predecessor's data (a request to revoke) wakes no waiter.
func TestAChangeOfThePredecessorsDataWakesNoWaiter(t *testing.T) {
	onEach(t, func(w *world) {
		holder := coordtest.MustLock(w.T, coord.NewMutex(w.Open("holder", nil), "/l", nil))
		var calls atomic.Int32
		c := w.Open("a", &backendtest.Hooks{After: func(_ context.Context, _ backendtest.Call, err error) error {
			calls.Add(1)
			return err
		}})
		waiter := w.Lock(context.Background(), coord.NewMutex(c, "/l", nil))
		w.Eventually("the waiter waits", func() bool {
			// the read of the directory, create, list, arm, and whether the session sees its predecessor
			return calls.Load() >= 5
		})
		s, before := w.Session("x"), calls.Load()
		for i := range 10 {
			if _, err := s.Commit(context.Background(), backend.SetData(holder.Path(), fmt.Append(nil, i), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		}
		raw, err := c.Session(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		if err := raw.Sync(context.Background(), w.Path("/l")); err != nil { // every event is here
			w.T.Fatal(err)
		}
		w.Settle()
		waiter.Pending()
		if n := calls.Load() - before; n != 1 {
			w.T.Errorf("%d requests while the predecessor's data changed, want the Sync alone", n)
		}
		coordtest.MustRelease(w.T, holder)
		coordtest.MustRelease(w.T, waiter.Hold())
	})
}

const someGUID = "00000000-0000-4000-8000-000000000000"

// ZOOKEEPER-2931: nodes were sorted by the whole name, not by the number.
func TestTheNumberAloneOrdersTheQueue(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		coordtest.Prime(w.T, m)
		// An earlier contender of another library, whose name sorts last.
		s := w.Session("x")
		res, err := s.Commit(context.Background(), backend.Create(w.Path("/l/zzz-lock-"), nil, backend.EphemeralSequential))
		if err != nil {
			w.T.Fatal(err)
		}
		waiter := w.Lock(context.Background(), m)
		w.Eventually("the waiter is in the queue", func() bool { return len(w.Children("/l")) == 2 })
		// A later one, whose name sorts first.
		later, err := s.Commit(context.Background(), backend.Create(w.Path("/l/_c_"+someGUID+"-lock-"), nil, backend.EphemeralSequential))
		if err != nil {
			w.T.Fatal(err)
		}
		list, err := m.Contenders(context.Background())
		if err != nil || len(list) != 3 || list[0].Path != res[0].Path || list[2].Path != later[0].Path {
			w.T.Errorf("order %+v, %v", list, err)
		}
		waiter.Pending()
		if _, err := s.Commit(context.Background(), backend.Delete(res[0].Path, backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, waiter.Hold())
	})
}

// Foreign children made the parsers of other libraries panic, fail, or wait forever.
func TestForeignChildrenAreIgnored(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		coordtest.Prime(w.T, m)
		s := w.Session("x")
		for _, name := range []string{
			"README", "_c_s1", "x-99999999999", "-1", "lock", "lock-", "lock-1", "lock-000000000x",
			"lock-99999999999999999999", "lock-01234567890", "lock-+000000001", "lock--000000000", "_c_" + someGUID + "-latch-000000000",
		} {
			if _, err := s.Commit(context.Background(), backend.Create(w.Path("/l/"+name), nil, backend.Persistent)); err != nil {
				w.T.Fatal(err)
			}
		}
		h := coordtest.MustLock(w.T, m)
		other := coord.NewMutex(w.Open("b", nil), "/l", nil)
		if _, err := other.TryLock(context.Background()); !errors.Is(err, coord.ErrLocked) {
			w.T.Errorf("TryLock: %v, want ErrLocked", err)
		}
		waiter := w.Lock(context.Background(), other)
		coordtest.MustRelease(w.T, h)
		h = waiter.Hold()
		if list, err := m.Contenders(context.Background()); err != nil || len(list) != 1 || list[0].Path != h.Path() {
			w.T.Errorf("contenders %+v, %v", list, err)
		}
		coordtest.MustRelease(w.T, h)
	})
}

// A sequence number as a token goes back when the parent is created again.
func TestTokensGrowWhenTheDirectoryIsCreatedAgain(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		var last int64
		for range 3 {
			for range 2 {
				h := coordtest.MustLock(w.T, m)
				if h.Token() <= last {
					w.T.Errorf("token %d after %d", h.Token(), last)
				}
				last = h.Token()
				coordtest.MustRelease(w.T, h)
			}
			if _, err := w.Session("x").Commit(context.Background(), backend.Delete(w.Path("/l"), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		}
	})
}

// A container that the service reaps between two uses is created again.
func TestAReapedDirectoryIsCreatedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		m := coord.NewMutex(coordtest.Open(t, st, nil), "/a/b/l", nil)
		for range 3 {
			coordtest.MustRelease(t, coordtest.MustLock(t, m))
			st.ReapContainers()
			if names := coordtest.Children(t, st, "/"); len(names) != 0 {
				t.Fatalf("left after reaping: %v", names)
			}
		}
	})
}

// ZooKeeper repeats the last number, and two zk.Locks held one lock.
func TestTheDirectoryIsReplacedBeforeItsNumbersEnd(t *testing.T) {
	t.Run("the last holder removes an old directory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(nil)
			m := coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil)
			coordtest.Prime(t, m)
			if err := st.SetSequence("/l", 2_000_000_000); err != nil {
				t.Fatal(err)
			}
			old := coordtest.MustLock(t, m)
			coordtest.MustRelease(t, old)
			h := coordtest.MustLock(t, m)
			if !strings.HasSuffix(h.Path(), "lock-0000000000") {
				t.Errorf("path %s, want the first of a new directory", h.Path())
			}
			if h.Token() <= old.Token() {
				t.Errorf("token %d after %d", h.Token(), old.Token())
			}
			coordtest.MustRelease(t, h)
		})
	})
	t.Run("a hand-over within a client does not continue in an old directory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(nil)
			m := coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil)
			coordtest.Prime(t, m)
			if err := st.SetSequence("/l", 2_000_000_000); err != nil {
				t.Fatal(err)
			}
			old := coordtest.MustLock(t, m)
			next := make(chan *coord.Hold)
			go func() { next <- coordtest.MustLock(t, m) }()
			synctest.Wait()
			coordtest.MustRelease(t, old)
			h := <-next
			if !strings.HasSuffix(h.Path(), "lock-0000000000") {
				t.Errorf("path %s, want the first of a new directory", h.Path())
			}
			coordtest.MustRelease(t, h)
		})
	})
	t.Run("a directory that never is empty is drained", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(nil)
			holder := coordtest.MustLock(t, coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil))
			if err := st.SetSequence("/l", 2_100_000_000-2); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			holders, last, grants := 1, holder.Token(), 0
			var wg sync.WaitGroup
			for range 6 {
				m := coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil)
				wg.Go(func() {
					for range 3 {
						h := coordtest.MustLock(t, m)
						mu.Lock()
						holders++
						if holders != 1 {
							t.Errorf("%d holders", holders)
						}
						if h.Token() <= last {
							t.Errorf("token %d after %d", h.Token(), last)
						}
						last = h.Token()
						grants++
						mu.Unlock()
						time.Sleep(time.Millisecond)
						mu.Lock()
						holders--
						mu.Unlock()
						coordtest.MustRelease(t, h)
					}
				})
			}
			synctest.Wait() // all are in the queue, or wait for it to drain
			mu.Lock()
			holders--
			mu.Unlock()
			coordtest.MustRelease(t, holder)
			wg.Wait()
			if grants != 18 {
				t.Errorf("%d grants, want 18", grants)
			}
			h := coordtest.MustLock(t, coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil))
			if n := h.Path()[len(h.Path())-10:]; n > "0000001000" {
				t.Errorf("number %s, want one of a new directory", n)
			}
			coordtest.MustRelease(t, h)
		})
	})
	t.Run("a try does not wait for it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(nil)
			holder := coordtest.MustLock(t, coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil))
			if err := st.SetSequence("/l", 2_100_000_000); err != nil {
				t.Fatal(err)
			}
			m := coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil)
			if _, err := m.TryLock(t.Context()); !errors.Is(err, coord.ErrLocked) {
				t.Errorf("got %v, want ErrLocked", err)
			}
			coordtest.MustRelease(t, holder)
			coordtest.MustRelease(t, coordtest.MustLock(t, m))
		})
	})
	t.Run("at the very end there is an error, never two holders", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for _, next := range []int64{math.MaxInt32 - 1, math.MaxInt32, math.MinInt32, -5} {
				st := memory.New(nil)
				m := coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil)
				coordtest.Prime(t, m)
				if err := st.SetSequence("/l", next); err != nil {
					t.Fatal(err)
				}
				if _, err := m.Lock(t.Context()); !errors.Is(err, coord.ErrLimit) {
					t.Errorf("number %d: %v, want ErrLimit", next, err)
				}
				if names := coordtest.Children(t, st, "/l"); len(names) != 0 {
					t.Errorf("number %d: left behind %v", next, names)
				}
			}
		})
	})
	t.Run("foreign nodes that keep an old directory are reported", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(nil)
			c := coordtest.Open(t, st, nil)
			m := coord.NewMutex(c, "/l", nil)
			coordtest.Prime(t, m)
			s, _ := c.Session(t.Context())
			if _, err := s.Commit(t.Context(), backend.Create("/l/README", nil, backend.Persistent)); err != nil {
				t.Fatal(err)
			}
			if err := st.SetSequence("/l", 2_100_000_000); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Lock(t.Context()); !errors.Is(err, coord.ErrLimit) {
				t.Errorf("got %v, want ErrLimit", err)
			}
		})
	})
}

// Curator-107, kazoo 175: timed polls leaked watches.
func TestManyFailedAttemptsLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		holder := coordtest.MustLock(t, coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil))
		m := coord.NewMutex(coordtest.Open(t, st, nil), "/l", nil)
		attempt := func(n int) {
			for range n {
				if _, err := m.TryLock(t.Context()); !errors.Is(err, coord.ErrLocked) {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				if _, err := m.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				cancel()
			}
			synctest.Wait()
		}
		measure := func() (uint64, int) {
			runtime.GC()
			var ms runtime.MemStats
			runtime.ReadMemStats(&ms)
			return ms.HeapAlloc, runtime.NumGoroutine()
		}
		attempt(100)
		heap, goroutines := measure()
		attempt(10_000)
		heapAfter, goroutinesAfter := measure()
		if heapAfter > heap+1<<20 || goroutinesAfter > goroutines {
			t.Errorf("heap %d → %d bytes, goroutines %d → %d", heap, heapAfter, goroutines, goroutinesAfter)
		}
		if names := coordtest.Children(t, st, "/l"); len(names) != 1 {
			t.Errorf("children %v, want the holder's", names)
		}
		coordtest.MustRelease(t, holder)
	})
}

func TestAnUnusedPathIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c := coordtest.Open(t, st, nil)
		next := 0
		use := func() uint64 {
			for range 5_000 {
				next++
				coordtest.MustRelease(t, coordtest.MustLock(t, coord.NewMutex(c, fmt.Sprintf("/l-%d", next), nil)))
			}
			time.Sleep(time.Second) // of fake time, for what the client does later
			st.ReapContainers()
			runtime.GC()
			var ms runtime.MemStats
			runtime.ReadMemStats(&ms)
			return ms.HeapAlloc
		}
		use()
		before := use()
		use()
		if after := use(); after > before+1<<20 {
			t.Errorf("heap %d → %d bytes after 10,000 more paths that are not used any more", before, after)
		}
	})
}

// A client that uses a few more paths in turn than it remembers still knows most of
// them: a Lock and its Release cost two requests there.
func TestMorePathsThanAreRememberedCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		b := backendtest.Intercept(memory.New(nil), backendtest.Hooks{
			Before: func(context.Context, backendtest.Call) error {
				requests++
				return nil
			},
		})
		c := coordtest.Open(t, b, nil)
		const paths = 4_200
		for round := range 3 {
			requests = 0
			for i := range paths {
				coordtest.MustRelease(t, coordtest.MustLock(t, coord.NewMutex(c, fmt.Sprintf("/l-%d", i), nil)))
			}
			if cost := float64(requests) / paths; round > 0 && cost > 2.2 {
				t.Errorf("%.2f requests for a Lock and its Release, want about 2", cost)
			}
		}
	})
}

// Other services have more numbers than ZooKeeper. There a directory is never replaced,
// and a name of eleven digits is behind one of ten.
func TestTheQueueStaysInOrderWhenItsNumbersGetLonger(t *testing.T) {
	for name, lock := range map[string]func(c *coord.Client) coord.Locker{
		"mutex":     func(c *coord.Client) coord.Locker { return coord.NewMutex(c, "/l", nil) },
		"rwmutex":   func(c *coord.Client) coord.Locker { return coord.NewRWMutex(c, "/l", nil) },
		"semaphore": func(c *coord.Client) coord.Locker { return coord.NewSemaphore(c, "/s", 1, nil).Locker(1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New(&memory.Options{Limits: backend.Limits{Sequence: math.MaxInt64}})
				holder := coordtest.MustLock(t, lock(coordtest.Open(t, st, nil)))
				dir := holder.Path()[:strings.LastIndexByte(holder.Path(), '/')]
				if err := st.SetSequence(dir, 9_999_999_997); err != nil {
					t.Fatal(err)
				}
				const n = 6
				var order []int
				var paths []string
				var wg sync.WaitGroup
				for i := range n {
					l := lock(coordtest.Open(t, st, nil))
					wg.Go(func() {
						h := coordtest.MustLock(t, l)
						order, paths = append(order, i), append(paths, h.Path())
						coordtest.MustRelease(t, h)
					})
					synctest.Wait()
				}
				coordtest.MustRelease(t, holder)
				wg.Wait()
				for i := range order {
					if want := fmt.Sprint(9_999_999_997 + i); order[i] != i || !strings.HasSuffix(paths[i], want) {
						t.Errorf("turn %d was that of %d, %s", i, order[i], paths[i])
					}
				}
				if len(order) != n {
					t.Errorf("%d turns", len(order))
				}
			})
		})
	}
	t.Run("group and queue", func(t *testing.T) {
		ctx := t.Context()
		st := memory.New(&memory.Options{Limits: backend.Limits{Sequence: math.MaxInt64}})
		c := coordtest.Open(t, st, nil)
		g := coord.NewGroup(c, "/g", &coord.GroupOptions[string]{Codec: coord.Text()})
		first, err := g.Join(ctx, "first", "")
		if err != nil {
			t.Fatal(err)
		}
		if err := st.SetSequence("/g", 12_345_678_901); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Join(ctx, "a-1", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Join(ctx, "a-1", ""); !errors.Is(err, coord.ErrDuplicate) {
			t.Errorf("a second member of one id: %v", err)
		}
		if err := first.Leave(); err != nil {
			t.Fatal(err)
		}
		members, err := g.Members(ctx)
		if err != nil || len(members) != 1 || members[0].ID != "a-1" {
			t.Errorf("members %+v, %v", members, err)
		}
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[string]{Codec: coord.Text()})
		if _, err := q.Put(ctx, "0"); err != nil {
			t.Fatal(err)
		}
		if err := st.SetSequence("/q/items/b-0-0", 9_999_999_998); err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			if _, err := q.Put(ctx, fmt.Sprint(i+1)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 6 {
			if v, err := q.Pop(ctx); err != nil || v != fmt.Sprint(i) {
				t.Errorf("item %d is %q, %v", i, v, err)
			}
		}
	})
}
