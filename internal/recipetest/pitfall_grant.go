package recipetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// armed matches the call with which a waiter arms the watch on its predecessor. What happens
// before that call returns is seen all at once.
func (w *world) armed(c backendtest.Call) bool { return c.Op == "arm" }

// pitfallGrantTests are tests of Mutex on each service.
type pitfallGrantTests struct{ Services }

// Found during the design: a reconnection fires all watches. A waiter that took this for the
// deletion of its predecessor would be granted a held lock.
func (on pitfallGrantTests) AReconnectGrantsNothing(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on pitfallGrantTests) ASpuriousWakeUpGrantsNothing(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on pitfallGrantTests) AnEventThatIsKeptFromAWaiterIsNotWaitedFor(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on pitfallGrantTests) AWaiterWithoutANodeIsNotGranted(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on pitfallGrantTests) AWaiterThatGivesUpMakesNoOtherTheHead(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on pitfallGrantTests) ASpuriousWakeUpAheadMakesNoOtherTheHead(t *testing.T) {
	on.each(t, func(w *world) {
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

// A change of the predecessor's data (a request to revoke) wakes no waiter.
func (on pitfallGrantTests) AChangeOfThePredecessorsDataWakesNoWaiter(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on pitfallGrantTests) TheNumberAloneOrdersTheQueue(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on pitfallGrantTests) ForeignChildrenAreIgnored(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on pitfallGrantTests) TokensGrowWhenTheDirectoryIsCreatedAgain(t *testing.T) {
	on.each(t, func(w *world) {
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
