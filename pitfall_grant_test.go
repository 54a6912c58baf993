package coord_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
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
