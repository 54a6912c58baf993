package recipetest

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

// A waiter that knows that its predecessor is the head needs no read at the hand-over, however
// long the queue is.
func TestMutex_AHandOverNeedsNoRead(t *testing.T) {
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

// A container that the service reaps between two uses is created again.
func TestMutex_AReapedDirectoryIsCreatedAgain(t *testing.T) {
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
func TestMutex_TheDirectoryIsReplacedBeforeItsNumbersEnd(t *testing.T) {
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
func TestMutex_ManyFailedAttemptsLeaveNothingBehind(t *testing.T) {
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

func TestMutex_AnUnusedPathIsNotRemembered(t *testing.T) {
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
func TestMutex_MorePathsThanAreRememberedCostLittle(t *testing.T) {
	coordtest.CountsCost(t)
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
func TestMutex_TheQueueStaysInOrderWhenItsNumbersGetLonger(t *testing.T) {
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
