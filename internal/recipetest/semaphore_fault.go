package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// semaphoreFaultTests are tests of Semaphore on each service.
type semaphoreFaultTests struct{ Services }

func (on semaphoreFaultTests) ACrashGivesPermitsBack(t *testing.T) {
	on.each(t, func(w *world) {
		w.resource("/r")
		s := w.semaphore("a", 2)
		h1, h2 := acquire(w.T, s, 1), acquire(w.T, s, 1)
		waiter := w.awaiting(w.semaphore("b", 2), 2)
		if err := w.guarded(h1, "/r", "while held"); err != nil {
			w.T.Error(err)
		}
		w.Link("a").Expire(h1.Session())
		h := waiter.Hold()
		for _, old := range []*coord.Hold{h1, h2} {
			<-old.Done()
			coordtest.WantErr(w.T, old.Err(), coord.ErrLost)
			coordtest.WantErr(w.T, w.guarded(old, "/r", "late"), coord.ErrNotFound)
		}
		if err := w.guarded(h, "/r", "next"); err != nil {
			w.T.Error(err)
		}
		coordtest.MustRelease(w.T, h)
		coordtest.WantErr(w.T, w.guarded(h, "/r", "released"), coord.ErrNotFound)
		w.Empty("/s/requests")
	})
}

// One permit for a client that is alone is granted with its node; more than one, after the
// queue and the limit were read.
func (on semaphoreFaultTests) ALostCreateReplyLeavesOneRequest(t *testing.T) {
	for name, fault := range map[string]func(backendtest.Link){
		"request lost": backendtest.Link.DropNextRequest,
		"reply lost":   backendtest.Link.DropNextReply,
	} {
		for _, n := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d permits", name, n), func(t *testing.T) {
				on.each(t, func(w *world) {
					s := w.semaphore("a", 2)
					coordtest.MustRelease(w.T, acquire(w.T, s, 1))
					fault(w.Link("a"))
					h := acquire(w.T, s, n)
					if n := requests(w); n != 1 {
						w.T.Errorf("%d requests, want one", n)
					}
					if err := h.Verify(context.Background()); err != nil {
						w.T.Error(err)
					}
					fault(w.Link("a"))
					mayBeReleased(w.T, h)
					w.Empty("/s/requests")
					coordtest.MustRelease(w.T, acquire(w.T, s, 2))
				})
			})
		}
	}
}

// The next waiter waits for the mark of the waiter ahead of it.
func (on semaphoreFaultTests) ALostMarkIsMadeAgain(t *testing.T) {
	for _, name := range []string{"request", "reply"} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				var x coordtest.Nth
				hooks := &backendtest.Hooks{Before: x.Before}
				if name == "reply" {
					hooks = &backendtest.Hooks{After: x.After}
				}
				a := w.semaphore("a", 2)
				h := acquire(w.T, a, 2)
				second := w.awaiting(coord.NewSemaphore(w.Open("b", hooks), "/s", 2, nil), 1)
				third := w.awaiting(w.semaphore("c", 2), 1)
				x.Arm(1, func(c backendtest.Call) bool { return len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpSetData }, coordtest.Lose)
				coordtest.MustRelease(w.T, h)
				h2, h3 := second.Hold(), third.Hold() // both, although the second is not released
				coordtest.MustRelease(w.T, h2)
				coordtest.MustRelease(w.T, h3)
				w.Empty("/s/requests")
			})
		})
	}
}

func (on semaphoreFaultTests) AWaiterThatGivesUpLeavesNoRequestAndTheNextIsGranted(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h := acquire(w.T, a, 2)
		ctx, cancel := context.WithCancelCause(context.Background())
		n := w.Waits.Load()
		heavy := &coordtest.Locking{W: w.World, Done: make(chan struct{})}
		go func() {
			defer close(heavy.Done)
			heavy.H, heavy.Err = b.Acquire(ctx, 3)
		}()
		w.Eventually("the Acquire waits", func() bool { return w.Waits.Load() > n })
		small := w.awaiting(w.semaphore("c", 3), 1)
		w.Settle()
		small.Pending()
		reason := errors.New("no time")
		cancel(reason)
		coordtest.WantErr(w.T, heavy.Failed(), context.Canceled, reason)
		h2 := small.Hold() // it fits beside the holder
		if n := requests(w); n != 2 {
			w.T.Errorf("%d requests, want 2", n)
		}
		coordtest.MustRelease(w.T, h2)
		coordtest.MustRelease(w.T, h)
		w.Empty("/s/requests")
	})
}

func (on semaphoreFaultTests) AWaiterWhoseRequestIsDeletedMakesANewOne(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a := w.semaphore("a", 2)
		h := acquire(w.T, a, 2)
		first := w.awaiting(w.semaphore("b", 2), 1)
		second := w.awaiting(w.semaphore("c", 2), 1)
		third := w.awaiting(w.semaphore("d", 2), 2)
		x := w.Session("x")
		// First the waiter that watches the directory, then one that watches another waiter.
		for i, rest := range [][]int{{1, 2, 1}, {1, 1, 2}} {
			list, err := a.Contenders(ctx)
			if err != nil || len(list) != 4 {
				w.T.Fatal(list, err)
			}
			if _, err := x.Commit(ctx, backend.Delete(list[1+i].Path, backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
			w.Eventually("it is in the queue again, at the tail", func() bool {
				now, err := a.Contenders(ctx)
				return err == nil && len(now) == 4 && now[3].Path != list[3].Path &&
					now[1].Weight == rest[0] && now[2].Weight == rest[1] && now[3].Weight == rest[2]
			})
		}
		// Now second, first, third.
		coordtest.MustRelease(w.T, h)
		h1, h2 := first.Hold(), second.Hold()
		w.Settle()
		third.Pending()
		coordtest.MustRelease(w.T, h1)
		coordtest.MustRelease(w.T, h2)
		h = third.Hold()
		// A holder whose request is deleted loses its hold.
		if _, err := x.Commit(ctx, backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-h.Done()
		coordtest.WantErr(w.T, h.Err(), coord.ErrLost, coord.ErrDeleted)
		w.Empty("/s/requests")
	})
}

func (on semaphoreFaultTests) AWaitForPermitsSurvivesALostSession(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a := w.semaphore("a", 2)
		h := acquire(w.T, a, 2)
		var requeued atomic.Int32
		c := coordtest.Open(w.T, w.Link("b"), &coord.Options{Namespace: w.Path(""), Trace: func(_ context.Context, e trace.Event) {
			switch e.(type) {
			case trace.WaiterRequeued:
				requeued.Add(1)
			case trace.WaitBegan:
				w.Waits.Add(1)
			}
		}})
		waiter := w.awaiting(coord.NewSemaphore(c, "/s", 2, nil), 1)
		behind := w.awaiting(w.semaphore("c", 2), 1)
		for _, at := range []int{1, 2, 2} {
			list, err := a.Contenders(ctx)
			if err != nil || len(list) != 3 {
				w.T.Fatal(list, err)
			}
			old := list[at].Session
			w.Link("b").Expire(old)
			w.Eventually("it is in the queue again, at the tail", func() bool {
				waiter.Pending()
				now, err := a.Contenders(ctx)
				return err == nil && len(now) == 3 && now[2].Session != old && now[2].Path != list[2].Path
			})
		}
		waiter.Pending()
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, behind.Hold())
		coordtest.MustRelease(w.T, waiter.Hold())
		if requeued.Load() == 0 {
			w.T.Error("Trace did not report a requeued waiter")
		}
		w.Empty("/s/requests")
	})
}

func (on semaphoreFaultTests) ABlipLosesNoPermitAndNoWakeUp(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h := acquire(w.T, a, 3)
		first, second := w.awaiting(b, 2), w.awaiting(w.semaphore("c", 3), 1)
		for _, name := range []string{"a", "b", "c"} {
			w.Link(name).Partition()
			w.Link(name).Heal()
		}
		w.Settle()
		first.Pending()
		second.Pending()
		if err := h.Verify(context.Background()); err != nil {
			w.T.Error(err)
		}
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, first.Hold())
		coordtest.MustRelease(w.T, second.Hold())
		w.Empty("/s/requests")
	})
}

// marking reports whether a call writes to a request, with a version that can match.
func marking(c backendtest.Call) bool {
	return len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpSetData && c.Ops[0].Version != math.MaxInt32
}

// asking reports whether a call tests the permission to write a request: its version matches no
// node.
func asking(c backendtest.Call) bool {
	return len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpSetData && c.Ops[0].Version == math.MaxInt32
}

// If a granted waiter could not mark its node, the waiter behind it would wait beside a free
// permit.
func (on semaphoreFaultTests) AWaiterThatMayNotWriteItsNodeFailsAndTheNextIsGranted(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		denied := coord.NewSemaphore(w.Open("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if marking(c) || asking(c) {
				return backend.ErrDenied
			}
			return nil
		}}), "/s", 2, nil)
		a := w.semaphore("a", 2)
		h := acquire(w.T, a, 2)
		n := w.Waits.Load()
		first := &coordtest.Locking{W: w.World, Done: make(chan struct{})}
		go func() {
			defer close(first.Done)
			first.H, first.Err = denied.Acquire(ctx, 1)
		}()
		err := first.Failed()
		coordtest.WantErr(w.T, err, coord.ErrDenied)
		if !strings.Contains(err.Error(), "set "+w.Path("/s/requests/_c_")) || !strings.Contains(err.Error(), "write permission on its own node") {
			w.T.Errorf("the error does not say what is missing: %v", err)
		}
		if n := requests(w); n != 1 {
			w.T.Errorf("%d requests, want that of the holder", n)
		}
		if w.Waits.Load() != n {
			w.T.Error("it waited")
		}
		_, err = denied.TryAcquire(ctx, 1)
		coordtest.WantErr(w.T, err, coord.ErrLocked)
		second := w.awaiting(w.semaphore("c", 2), 1)
		coordtest.MustRelease(w.T, h)
		h = second.Hold()
		coordtest.MustRelease(w.T, acquire(w.T, a, 1))
		coordtest.MustRelease(w.T, h)
		w.Empty("/s/requests")
	})
}

// A waiter tests its permission once for each session and directory, and again if the reply is
// lost. An uncontended acquisition does not test it.
func (on semaphoreFaultTests) ThePermissionToMarkIsAskedForOnce(t *testing.T) {
	on.each(t, func(w *world) {
		var asked, lost atomic.Int32
		hooks := &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			if asking(c) && asked.Add(1) == 1 {
				lost.Add(1)
				return backend.ErrUncertain
			}
			return err
		}}
		b := coord.NewSemaphore(w.Open("b", hooks), "/s", 2, nil)
		for range 2 {
			coordtest.MustRelease(w.T, acquire(w.T, b, 1))
			coordtest.MustRelease(w.T, acquire(w.T, b, 2))
		}
		if n := asked.Load(); n != 0 {
			w.T.Errorf("asked %d times without contention", n)
		}
		a := w.semaphore("a", 2)
		for range 3 {
			h := acquire(w.T, a, 2)
			waiter := w.awaiting(b, 2)
			coordtest.MustRelease(w.T, h)
			coordtest.MustRelease(w.T, waiter.Hold())
		}
		if n := asked.Load(); n != 2 || lost.Load() != 1 {
			w.T.Errorf("asked %d times, want once and again after the lost reply", n)
		}
	})
}

// An uncontended acquisition of one permit does not read the limit: it creates its request on
// the condition that the limit has not changed.
func (on semaphoreFaultTests) AnUncontendedAcquireSeesAChangedLimit(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		adopting := coord.NewSemaphore(w.Open("c", nil), "/s", 3, &coord.SemaphoreOptions{AdoptLimit: true})
		for _, s := range []*coord.Semaphore{a, adopting} {
			coordtest.MustRelease(w.T, acquire(w.T, s, 1))
		}
		if err := b.SetLimit(ctx, 2); err != nil {
			w.T.Fatal(err)
		}
		for range 2 {
			_, err := a.Acquire(ctx, 1)
			coordtest.WantErr(w.T, err, coord.ErrLimit)
			_, err = a.TryAcquire(ctx, 1)
			coordtest.WantErr(w.T, err, coord.ErrLimit)
		}
		w.Empty("/s/requests")
		for range 2 {
			coordtest.MustRelease(w.T, acquire(w.T, adopting, 1))
		}
		if err := b.SetLimit(ctx, 3); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, acquire(w.T, a, 1))
		// If the limit is deleted, it is created again.
		if _, err := w.Session("x").Commit(ctx, backend.Delete(w.Path("/s/limit"), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, acquire(w.T, a, 1))
		if n, err := b.Limit(ctx); err != nil || n != 3 {
			w.T.Errorf("limit %d, %v", n, err)
		}
		w.Empty("/s/requests")
	})
}

// After a client has seen that it is alone and before it creates its request, others acquire
// permits or the limit changes.
func (on semaphoreFaultTests) AnAcquireThatIsNoLongerUncontendedWaits(t *testing.T) {
	for name, meanwhile := range map[string]func(w *world){
		"others came":                        func(*world) {},
		"others came, and the limit changed": func(w *world) { w.setLimit(1) },
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				var before coordtest.Nth
				a, b := w.hooked("a", &before), w.hooked("b", new(coordtest.Nth))
				coordtest.MustRelease(w.T, acquire(w.T, a, 1))
				var others []*coord.Hold
				before.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error {
					others = append(others, acquire(w.T, b, 1), acquire(w.T, b, 1))
					meanwhile(w)
					return nil
				})
				waiter := w.awaiting(a, 1)
				w.Settle()
				waiter.Pending()
				for _, h := range others {
					coordtest.MustRelease(w.T, h)
				}
				coordtest.MustRelease(w.T, waiter.Hold())
				w.Empty("/s/requests")
			})
		})
	}
}

// gate blocks a call until the test opens it.
type gate struct{ reached, open chan struct{} }

// stop makes x block the next call that matches.
func (w *world) stop(x *coordtest.Nth, match func(backendtest.Call) bool) gate {
	g := gate{make(chan struct{}), make(chan struct{})}
	x.Arm(1, match, func(context.Context, backendtest.Call, error) error {
		close(g.reached)
		<-g.open
		return nil
	})
	return g
}

func lists(w *world) func(backendtest.Call) bool {
	return func(c backendtest.Call) bool { return c.Op == "children" && c.Path == w.Path("/s/requests") }
}

func readsLimit(w *world) func(backendtest.Call) bool {
	return func(c backendtest.Call) bool { return c.Op == "get" && c.Path == w.Path("/s/limit") }
}

// setLimit changes the limit as an operator does.
func (w *world) setLimit(n int) {
	w.T.Helper()
	_, err := w.Session("operator").Commit(context.Background(), backend.SetData(w.Path("/s/limit"), fmt.Append(nil, n), backend.AnyVersion))
	if err != nil {
		w.T.Fatal(err)
	}
}

// hooked returns the semaphore for a client whose requests pass x.
func (w *world) hooked(name string, x *coordtest.Nth) *coord.Semaphore {
	w.T.Helper()
	c := w.Open(name, &backendtest.Hooks{Before: x.Before})
	return coord.NewSemaphore(c, "/s", 2, &coord.SemaphoreOptions{AdoptLimit: true})
}

// started starts an Acquire.
func (w *world) started(s *coord.Semaphore, n int) *coordtest.Locking {
	l := &coordtest.Locking{W: w.World, Done: make(chan struct{})}
	go func() {
		defer close(l.Done)
		l.H, l.Err = s.Acquire(context.Background(), n)
	}()
	return l
}

// A request that is granted at once has no mark. When the limit is lowered its holder looks
// like a waiter, but it writes no mark that could wake the waiter behind it.
func (on semaphoreFaultTests) AHolderThatLooksLikeAWaiterBlocksNoWaiter(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a := w.semaphore("a", 4)
		h, err := a.Acquire(ctx, 1) // makes the limit
		coordtest.MustRelease(w.T, must(w.T, h, err))
		h1 := acquire(w.T, a, 2)
		h2 := acquire(w.T, w.semaphore("b", 4), 2)
		if err := a.SetLimit(ctx, 3); err != nil {
			w.T.Fatal(err)
		}
		list, err := a.Contenders(ctx)
		if err != nil || len(list) != 2 || !list[0].Granted {
			w.T.Errorf("contenders %+v, %v", list, err)
		}
		waiter := w.awaiting(w.semaphore("c", 3), 1)
		next := w.awaiting(w.semaphore("d", 3), 3)
		coordtest.MustRelease(w.T, h1)
		coordtest.MustRelease(w.T, waiter.Hold())
		w.Settle()
		next.Pending()
		coordtest.MustRelease(w.T, h2)
		coordtest.MustRelease(w.T, next.Hold())
		w.Empty("/s/requests")
	})
}

// A client arrives before an earlier request has read the queue, and takes that request for a
// waiter. The earlier request is granted at its first look and must wake the later one.
func (on semaphoreFaultTests) AGrantAtTheFirstLookWakesALaterWaiter(t *testing.T) {
	on.each(t, func(w *world) {
		var x coordtest.Nth
		a, b := w.semaphore("a", 2), w.hooked("b", &x)
		coordtest.MustRelease(w.T, acquire(w.T, b, 1))
		h := acquire(w.T, a, 2)
		g := w.stop(&x, lists(w))
		early := w.started(b, 1)
		<-g.reached
		late := w.awaiting(w.semaphore("c", 2), 1)
		coordtest.MustRelease(w.T, h)
		w.Settle()
		late.Pending()
		close(g.open)
		h1, h2 := early.Hold(), late.Hold() // both, although the first is not released
		coordtest.MustRelease(w.T, h1)
		coordtest.MustRelease(w.T, h2)
		w.Empty("/s/requests")
	})
}

// As above, but the limit under which the earlier request is granted is replaced before the
// later client reads it.
func (on semaphoreFaultTests) AGrantUnderAReplacedLimitWakesALaterWaiter(t *testing.T) {
	on.each(t, func(w *world) {
		var x, y coordtest.Nth
		a, b, c := w.semaphore("a", 2), w.hooked("b", &x), w.hooked("c", &y)
		for _, s := range []*coord.Semaphore{b, c} {
			coordtest.MustRelease(w.T, acquire(w.T, s, 1))
		}
		h := acquire(w.T, a, 2)
		early := w.stop(&x, readsLimit(w))
		first := w.started(b, 1)
		<-early.reached
		late := w.awaiting(c, 1)
		passing := w.stop(&y, readsLimit(w))
		w.setLimit(3)
		<-passing.reached
		close(early.open)
		h1 := first.Hold()
		w.setLimit(2)
		close(passing.open)
		w.Settle()
		late.Pending()
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, late.Hold())
		coordtest.MustRelease(w.T, h1)
		w.Empty("/s/requests")
	})
}

// If the limit is lowered while a waiter reads the queue, the waiter must not be granted under
// the old limit.
func (on semaphoreFaultTests) ALimitLoweredMeanwhileGrantsNothing(t *testing.T) {
	on.each(t, func(w *world) {
		var x coordtest.Nth
		a, b := w.semaphore("a", 2), w.hooked("b", &x)
		h1, h2 := acquire(w.T, a, 1), acquire(w.T, a, 1)
		waiter := w.awaiting(b, 1)
		g := w.stop(&x, lists(w))
		behind := w.awaiting(w.semaphore("c", 2), 1) // makes the waiter read the queue
		<-g.reached
		w.setLimit(1)
		coordtest.MustRelease(w.T, h1)
		close(g.open)
		w.Settle()
		waiter.Pending()
		coordtest.MustRelease(w.T, h2)
		coordtest.MustRelease(w.T, waiter.Hold())
		coordtest.MustRelease(w.T, behind.Hold())
		w.Empty("/s/requests")
	})
}
