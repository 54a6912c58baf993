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
)

// armed is when a waiter has armed the watch on its predecessor, and its call has
// not returned: what happens now is seen all at once.
func (w *world) armed(c backendtest.Call) bool { return c.Op == "arm" }

// Found while this was designed: a reconnect fires all watches, and taken for the
// predecessor's deletion it grants a lock that is held.
func TestAReconnectGrantsNothing(t *testing.T) {
	onEach(t, func(w *world) {
		holder := mustLock(w.t, coord.NewMutex(w.open("holder", nil), "/l", nil))
		var after nth
		var listed atomic.Int32
		c := w.open("a", &backendtest.Hooks{After: func(ctx context.Context, c backendtest.Call, err error) error {
			if c.Op == "children" && c.Path == w.path("/l") {
				listed.Add(1)
			}
			return after.after(ctx, c, err)
		}})
		m := coord.NewMutex(c, "/l", nil)
		for range 20 {
			after.arm(1, w.armed, func(_ context.Context, c backendtest.Call, err error) error {
				_, changed := c.Session.Status()
				w.Link("a").Partition()
				<-changed
				w.Link("a").Heal()
				if err := c.Session.Sync(context.Background(), w.path("/l")); err != nil { // connected again
					w.t.Error(err)
				}
				return err
			})
			ctx, cancel := context.WithCancel(context.Background())
			n := listed.Load()
			waiter := w.lock(ctx, m)
			w.eventually("the waiter listed again", func() bool { return listed.Load() >= n+2 })
			w.settle()
			waiter.pending()
			cancel()
			<-waiter.done
		}
		waiter := w.waiting(context.Background(), m)
		mustRelease(w.t, holder)
		mustRelease(w.t, waiter.hold())
	})
}

// The contract allows a watch to fire without a change; only Deleted of a known
// head grants.
func TestASpuriousWakeUpGrantsNothing(t *testing.T) {
	onEach(t, func(w *world) {
		holder := mustLock(w.t, coord.NewMutex(w.open("holder", nil), "/l", nil))
		var fired atomic.Int32
		c := w.open("a", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			for _, target := range c.Targets {
				if target.Children && err == nil && fired.Add(1) <= 20 {
					target.Watch.Fire(backend.LookAgain)
				}
			}
			return err
		}})
		waiter := w.lock(context.Background(), coord.NewMutex(c, "/l", nil))
		w.eventually("the waiter was woken", func() bool { return fired.Load() >= 20 })
		w.settle()
		waiter.pending()
		mustRelease(w.t, holder)
		mustRelease(w.t, waiter.hold())
	})
}

// A service may keep an event from a session that may not read the node. Who waits in a
// line for the first time asks, and sees that it is gone.
func TestAnEventThatIsKeptFromAWaiterIsNotWaitedFor(t *testing.T) {
	onEach(t, func(w *world) {
		holder := mustLock(w.t, coord.NewMutex(w.open("holder", nil), "/l", nil))
		var before, after nth
		c := w.open("a", &backendtest.Hooks{
			Before: func(ctx context.Context, c backendtest.Call) error { return before.after(ctx, c, nil) },
			After:  after.after,
		})
		before.arm(1, w.armed, func(_ context.Context, c backendtest.Call, _ error) error {
			for _, target := range c.Targets {
				if target.Children {
					target.Watch.Stop() // it never fires
				}
			}
			return nil
		})
		after.arm(1, w.armed, func(_ context.Context, _ backendtest.Call, err error) error {
			mustRelease(w.t, holder)
			return err
		})
		mustRelease(w.t, w.lock(context.Background(), coord.NewMutex(c, "/l", nil)).hold())
	})
}

// Found while this was designed: the own node was deleted first, the
// predecessor's event was read first, and a waiter without a node was granted.
func TestAWaiterWithoutANodeIsNotGranted(t *testing.T) {
	onEach(t, func(w *world) {
		var after nth
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{After: after.after}), "/l", nil)
		s := w.session("x")
		// A session that waits for the first time asks whether it may see its
		// predecessor, which finds the deletion too. So this one waits once before.
		first := mustLock(w.t, coord.NewMutex(w.open("first", nil), "/l", nil))
		waited := w.waiting(context.Background(), m)
		mustRelease(w.t, first)
		mustRelease(w.t, waited.hold())
		for range 20 {
			holder := mustLock(w.t, coord.NewMutex(w.open("holder", nil), "/l", nil))
			var gone string
			after.arm(1, w.armed, func(_ context.Context, c backendtest.Call, err error) error {
				list, lerr := m.Contenders(context.Background())
				if lerr != nil || len(list) != 2 {
					w.t.Errorf("contenders %+v, %v", list, lerr)
					return err
				}
				gone = list[1].Path
				for _, p := range []string{gone, holder.Path()} {
					if _, err := s.Commit(context.Background(), backend.Delete(p, backend.AnyVersion)); err != nil {
						w.t.Error(err)
					}
				}
				if err := c.Session.Sync(context.Background(), w.path("/l")); err != nil { // the events are here
					w.t.Error(err)
				}
				return err
			})
			h := mustLock(w.t, m)
			if h.Path() == gone || gone == "" {
				w.t.Fatalf("granted on %q, after %q was deleted", h.Path(), gone)
			}
			if err := h.Verify(context.Background()); err != nil {
				w.t.Fatal(err)
			}
			mustRelease(w.t, h)
			holder.Release()
		}
	})
}

// A node can go without having been the head: only who was known as head leaves the
// next one as head.
func TestWhoGivesUpMakesNobodyTheHead(t *testing.T) {
	onEach(t, func(w *world) {
		mutex := func(who string) *coord.Mutex { return coord.NewMutex(w.open(who, nil), "/l", nil) }
		holder := mustLock(w.t, mutex("holder"))
		ctx, cancel := context.WithCancel(context.Background())
		ahead := w.waiting(ctx, mutex("ahead"))
		ctx, cancelBefore := context.WithCancel(context.Background())
		before := w.waiting(ctx, mutex("before"))
		waiter := w.waiting(context.Background(), mutex("waiter"))
		cancel()
		<-ahead.done
		w.eventually("the one ahead has gone", func() bool { return len(w.children("/l")) == 3 })
		w.settle()
		cancelBefore()
		<-before.done
		w.eventually("the one before has gone", func() bool { return len(w.children("/l")) == 2 })
		w.settle()
		waiter.pending()
		mustRelease(w.t, holder)
		mustRelease(w.t, waiter.hold())
	})
}

// Only the deletion of the node ahead says that the node before is the head.
func TestASpuriousWakeUpAheadMakesNobodyTheHead(t *testing.T) {
	onEach(t, func(w *world) {
		mutex := func(who string) *coord.Mutex { return coord.NewMutex(w.open(who, nil), "/l", nil) }
		holder := mustLock(w.t, mutex("holder"))
		ctx, cancel := context.WithCancel(context.Background())
		before := w.waiting(ctx, mutex("before"))
		var fired atomic.Int32
		c := w.open("waiter", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			for _, target := range c.Targets {
				if target.Path == holder.Path() && err == nil && fired.Add(1) == 1 {
					target.Watch.Fire(backend.LookAgain)
				}
			}
			return err
		}})
		waiter := w.waiting(context.Background(), coord.NewMutex(c, "/l", nil))
		w.eventually("the waiter was woken", func() bool { return fired.Load() > 0 })
		w.settle()
		cancel()
		<-before.done
		w.eventually("the one before has gone", func() bool { return len(w.children("/l")) == 2 })
		w.settle()
		waiter.pending()
		mustRelease(w.t, holder)
		mustRelease(w.t, waiter.hold())
	})
}

// The hand-over: who knows that the one before is the head needs no read to know
// that it is its turn, however long the line was.
func TestAHandOverNeedsNoRead(t *testing.T) {
	onMemory(t, func(w *world) {
		const n = 6
		var calls [n]atomic.Int32
		var waiters [n]*locking
		h := mustLock(w.t, coord.NewMutex(w.open("holder", nil), "/l", nil))
		for i := range n {
			c := w.open(fmt.Sprint(i), &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
				calls[i].Add(1)
				return nil
			}})
			waiters[i] = w.waiting(context.Background(), coord.NewMutex(c, "/l", nil))
			w.settle()
		}
		for i := range n {
			var before [n]int32
			for j := range n {
				before[j] = calls[j].Load()
			}
			mustRelease(w.t, h)
			w.settle()
			h = waiters[i].hold()
			woken := 0
			for j := i; j < n; j++ { // the one before i is the one who released
				if d := calls[j].Load() - before[j]; d > 0 {
					woken++
					if j == i {
						w.t.Errorf("waiter %d was granted with %d requests, want none", i, d)
					}
				}
			}
			want := min(1, n-1-i)
			if i == 0 {
				want = 0 // the second one came when the holder was the one ahead of it
			}
			if woken != want {
				w.t.Errorf("release %d: %d others made requests, want %d", i, woken, want)
			}
		}
		mustRelease(w.t, h)
	})
}

// A change of the predecessor's data (a request to revoke) wakes nobody.
func TestAChangeOfThePredecessorsDataWakesNobody(t *testing.T) {
	onEach(t, func(w *world) {
		holder := mustLock(w.t, coord.NewMutex(w.open("holder", nil), "/l", nil))
		var calls atomic.Int32
		c := w.open("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
			calls.Add(1)
			return nil
		}})
		waiter := w.lock(context.Background(), coord.NewMutex(c, "/l", nil))
		w.eventually("the waiter waits", func() bool {
			// what the directory holds, create, list, arm
			return calls.Load() >= 4
		})
		s, before := w.session("x"), calls.Load()
		for i := range 10 {
			if _, err := s.Commit(context.Background(), backend.SetData(holder.Path(), fmt.Append(nil, i), backend.AnyVersion)); err != nil {
				w.t.Fatal(err)
			}
		}
		raw, err := c.Session(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		if err := raw.Sync(context.Background(), w.path("/l")); err != nil { // every event is here
			w.t.Fatal(err)
		}
		w.settle()
		waiter.pending()
		if n := calls.Load() - before; n != 1 {
			w.t.Errorf("%d requests while the predecessor's data changed, want the Sync alone", n)
		}
		mustRelease(w.t, holder)
		mustRelease(w.t, waiter.hold())
	})
}

const someGUID = "00000000-0000-4000-8000-000000000000"

// ZOOKEEPER-2931: sorting by the whole name, not by the number.
func TestTheNumberAloneOrdersTheLine(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		prime(w.t, m)
		// An earlier contender of another make, whose name sorts last.
		s := w.session("x")
		res, err := s.Commit(context.Background(), backend.Create(w.path("/l/zzz-lock-"), nil, backend.EphemeralSequential))
		if err != nil {
			w.t.Fatal(err)
		}
		waiter := w.lock(context.Background(), m)
		w.eventually("the waiter stands in line", func() bool { return len(w.children("/l")) == 2 })
		// A later one, whose name sorts first.
		later, err := s.Commit(context.Background(), backend.Create(w.path("/l/_c_"+someGUID+"-lock-"), nil, backend.EphemeralSequential))
		if err != nil {
			w.t.Fatal(err)
		}
		list, err := m.Contenders(context.Background())
		if err != nil || len(list) != 3 || list[0].Path != res[0].Path || list[2].Path != later[0].Path {
			w.t.Errorf("order %+v, %v", list, err)
		}
		waiter.pending()
		if _, err := s.Commit(context.Background(), backend.Delete(res[0].Path, backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, waiter.hold())
	})
}

// Foreign children made the parsers of others panic, fail, or wait for ever.
func TestForeignChildrenAreIgnored(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		prime(w.t, m)
		s := w.session("x")
		for _, name := range []string{
			"README", "_c_s1", "x-99999999999", "-1", "lock", "lock-", "lock-1", "lock-000000000x",
			"lock-99999999999", "lock-9999999999", "lock-+000000001", "lock--000000000", "_c_" + someGUID + "-latch-000000000",
		} {
			if _, err := s.Commit(context.Background(), backend.Create(w.path("/l/"+name), nil, backend.Persistent)); err != nil {
				w.t.Fatal(err)
			}
		}
		h := mustLock(w.t, m)
		other := coord.NewMutex(w.open("b", nil), "/l", nil)
		if _, err := other.TryLock(context.Background()); !errors.Is(err, coord.ErrLocked) {
			w.t.Errorf("TryLock: %v, want ErrLocked", err)
		}
		waiter := w.lock(context.Background(), other)
		mustRelease(w.t, h)
		h = waiter.hold()
		if list, err := m.Contenders(context.Background()); err != nil || len(list) != 1 || list[0].Path != h.Path() {
			w.t.Errorf("contenders %+v, %v", list, err)
		}
		mustRelease(w.t, h)
	})
}

// A sequence number as a token goes back when the parent is made anew.
func TestTokensGrowWhenTheDirectoryIsMadeAnew(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		var last int64
		for range 3 {
			for range 2 {
				h := mustLock(w.t, m)
				if h.Token() <= last {
					w.t.Errorf("token %d after %d", h.Token(), last)
				}
				last = h.Token()
				mustRelease(w.t, h)
			}
			if _, err := w.session("x").Commit(context.Background(), backend.Delete(w.path("/l"), backend.AnyVersion)); err != nil {
				w.t.Fatal(err)
			}
		}
	})
}

// A container that the service reaps between two uses is made anew.
func TestAReapedDirectoryIsMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		m := coord.NewMutex(open(t, st, nil), "/a/b/l", nil)
		for range 3 {
			mustRelease(t, mustLock(t, m))
			st.ReapContainers()
			if names := children(t, st, "/"); len(names) != 0 {
				t.Fatalf("left after reaping: %v", names)
			}
		}
	})
}

// ZooKeeper repeats the last number, and two zk.Locks held one lock.
func TestTheDirectoryIsReplacedBeforeItsNumbersEnd(t *testing.T) {
	t.Run("the last holder takes an old directory with it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(nil)
			m := coord.NewMutex(open(t, st, nil), "/l", nil)
			prime(t, m)
			if err := st.SetSequence("/l", 2_000_000_000); err != nil {
				t.Fatal(err)
			}
			old := mustLock(t, m)
			mustRelease(t, old)
			h := mustLock(t, m)
			if !strings.HasSuffix(h.Path(), "lock-0000000000") {
				t.Errorf("path %s, want the first of a new directory", h.Path())
			}
			if h.Token() <= old.Token() {
				t.Errorf("token %d after %d", h.Token(), old.Token())
			}
			mustRelease(t, h)
		})
	})
	t.Run("a hand-over within a client does not go on in an old directory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(nil)
			m := coord.NewMutex(open(t, st, nil), "/l", nil)
			prime(t, m)
			if err := st.SetSequence("/l", 2_000_000_000); err != nil {
				t.Fatal(err)
			}
			old := mustLock(t, m)
			next := make(chan *coord.Hold)
			go func() { next <- mustLock(t, m) }()
			synctest.Wait()
			mustRelease(t, old)
			h := <-next
			if !strings.HasSuffix(h.Path(), "lock-0000000000") {
				t.Errorf("path %s, want the first of a new directory", h.Path())
			}
			mustRelease(t, h)
		})
	})
	t.Run("a directory that never is empty is drained", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(nil)
			holder := mustLock(t, coord.NewMutex(open(t, st, nil), "/l", nil))
			if err := st.SetSequence("/l", 2_100_000_000-2); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			holders, last, grants := 1, holder.Token(), 0
			var wg sync.WaitGroup
			for range 6 {
				m := coord.NewMutex(open(t, st, nil), "/l", nil)
				wg.Go(func() {
					for range 3 {
						h := mustLock(t, m)
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
						mustRelease(t, h)
					}
				})
			}
			synctest.Wait() // all stand in line, or wait for it to drain
			mu.Lock()
			holders--
			mu.Unlock()
			mustRelease(t, holder)
			wg.Wait()
			if grants != 18 {
				t.Errorf("%d grants, want 18", grants)
			}
			h := mustLock(t, coord.NewMutex(open(t, st, nil), "/l", nil))
			if n := h.Path()[len(h.Path())-10:]; n > "0000001000" {
				t.Errorf("number %s, want one of a new directory", n)
			}
			mustRelease(t, h)
		})
	})
	t.Run("who only tries does not wait for it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(nil)
			holder := mustLock(t, coord.NewMutex(open(t, st, nil), "/l", nil))
			if err := st.SetSequence("/l", 2_100_000_000); err != nil {
				t.Fatal(err)
			}
			m := coord.NewMutex(open(t, st, nil), "/l", nil)
			if _, err := m.TryLock(t.Context()); !errors.Is(err, coord.ErrLocked) {
				t.Errorf("got %v, want ErrLocked", err)
			}
			mustRelease(t, holder)
			mustRelease(t, mustLock(t, m))
		})
	})
	t.Run("at the very end there is an error, never two holders", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for _, next := range []int32{math.MaxInt32 - 1, math.MaxInt32, math.MinInt32, -5} {
				st := memory.New(nil)
				m := coord.NewMutex(open(t, st, nil), "/l", nil)
				prime(t, m)
				if err := st.SetSequence("/l", next); err != nil {
					t.Fatal(err)
				}
				if _, err := m.Lock(t.Context()); !errors.Is(err, coord.ErrLimit) {
					t.Errorf("number %d: %v, want ErrLimit", next, err)
				}
				if names := children(t, st, "/l"); len(names) != 0 {
					t.Errorf("number %d: left behind %v", next, names)
				}
			}
		})
	})
	t.Run("foreign nodes that keep an old directory are told of", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(nil)
			c := open(t, st, nil)
			m := coord.NewMutex(c, "/l", nil)
			prime(t, m)
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
		holder := mustLock(t, coord.NewMutex(open(t, st, nil), "/l", nil))
		m := coord.NewMutex(open(t, st, nil), "/l", nil)
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
		if names := children(t, st, "/l"); len(names) != 1 {
			t.Errorf("children %v, want the holder's", names)
		}
		mustRelease(t, holder)
	})
}

func TestAnUnusedPathIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c := open(t, st, nil)
		next := 0
		use := func() uint64 {
			for range 5_000 {
				next++
				mustRelease(t, mustLock(t, coord.NewMutex(c, fmt.Sprintf("/l-%d", next), nil)))
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
		c := open(t, b, nil)
		const paths = 4_200
		for round := range 3 {
			requests = 0
			for i := range paths {
				mustRelease(t, mustLock(t, coord.NewMutex(c, fmt.Sprintf("/l-%d", i), nil)))
			}
			if cost := float64(requests) / paths; round > 0 && cost > 2.2 {
				t.Errorf("%.2f requests for a Lock and its Release, want about 2", cost)
			}
		}
	})
}
