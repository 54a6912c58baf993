package coord_test

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
	"github.com/go-coord/coord/trace"
)

func TestACrashGivesPermitsBack(t *testing.T) {
	onEach(t, func(w *world) {
		w.resource("/r")
		s := w.semaphore("a", 2)
		h1, h2 := acquire(w.t, s, 1), acquire(w.t, s, 1)
		waiter := w.awaiting(w.semaphore("b", 2), 2)
		if err := w.guarded(h1, "/r", "while it stands"); err != nil {
			w.t.Error(err)
		}
		w.Link("a").Expire(h1.Session())
		h := waiter.hold()
		for _, old := range []*coord.Hold{h1, h2} {
			<-old.Done()
			wantErr(w.t, old.Err(), coord.ErrLost)
			wantErr(w.t, w.guarded(old, "/r", "late"), coord.ErrNotFound)
		}
		if err := w.guarded(h, "/r", "next"); err != nil {
			w.t.Error(err)
		}
		mustRelease(w.t, h)
		wantErr(w.t, w.guarded(h, "/r", "released"), coord.ErrNotFound)
		w.empty("/s/requests")
	})
}

func TestALostCreateReplyLeavesOneRequest(t *testing.T) {
	for name, fault := range map[string]func(backendtest.Link){
		"request lost": backendtest.Link.DropNextRequest,
		"reply lost":   backendtest.Link.DropNextReply,
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				s := w.semaphore("a", 2)
				mustRelease(w.t, acquire(w.t, s, 1))
				fault(w.Link("a"))
				h := acquire(w.t, s, 2)
				if n := requests(w); n != 1 {
					w.t.Errorf("%d requests, want one", n)
				}
				fault(w.Link("a"))
				mayBeReleased(w.t, h)
				w.empty("/s/requests")
				mustRelease(w.t, acquire(w.t, s, 2))
			})
		})
	}
}

// The mark is what the next in line waits for.
func TestALostMarkIsMadeAgain(t *testing.T) {
	for _, name := range []string{"request", "reply"} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				var x nth
				hooks := &backendtest.Hooks{Before: x.before}
				if name == "reply" {
					hooks = &backendtest.Hooks{After: x.after}
				}
				a := w.semaphore("a", 2)
				h := acquire(w.t, a, 2)
				second := w.awaiting(coord.NewSemaphore(w.open("b", hooks), "/s", 2, nil), 1)
				third := w.awaiting(w.semaphore("c", 2), 1)
				x.arm(1, func(c backendtest.Call) bool { return len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpSetData }, lose)
				mustRelease(w.t, h)
				h2, h3 := second.hold(), third.hold() // both, although the second holds on
				mustRelease(w.t, h2)
				mustRelease(w.t, h3)
				w.empty("/s/requests")
			})
		})
	}
}

func TestAWaiterWhoGivesUpLeavesNoRequestAndTheNextGoesOn(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h := acquire(w.t, a, 2)
		ctx, cancel := context.WithCancelCause(context.Background())
		n := w.waits.Load()
		heavy := &locking{w: w, done: make(chan struct{})}
		go func() {
			defer close(heavy.done)
			heavy.h, heavy.err = b.Acquire(ctx, 3)
		}()
		w.eventually("the Acquire waits", func() bool { return w.waits.Load() > n })
		small := w.awaiting(w.semaphore("c", 3), 1)
		w.settle()
		small.pending()
		reason := errors.New("no time")
		cancel(reason)
		wantErr(w.t, heavy.failed(), context.Canceled, reason)
		h2 := small.hold() // it fits beside the holder
		if n := requests(w); n != 2 {
			w.t.Errorf("%d requests, want 2", n)
		}
		mustRelease(w.t, h2)
		mustRelease(w.t, h)
		w.empty("/s/requests")
	})
}

func TestAWaiterWhoseRequestIsDeletedMakesANewOne(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a := w.semaphore("a", 2)
		h := acquire(w.t, a, 2)
		first := w.awaiting(w.semaphore("b", 2), 1)
		second := w.awaiting(w.semaphore("c", 2), 1)
		third := w.awaiting(w.semaphore("d", 2), 2)
		x := w.session("x")
		// Whoever watches the directory, and who watches another waiter.
		for i, rest := range [][]int{{1, 2, 1}, {1, 1, 2}} {
			list, err := a.Contenders(ctx)
			if err != nil || len(list) != 4 {
				w.t.Fatal(list, err)
			}
			if _, err := x.Commit(ctx, backend.Delete(list[1+i].Path, backend.AnyVersion)); err != nil {
				w.t.Fatal(err)
			}
			w.eventually("it stands in line again, at the tail", func() bool {
				now, err := a.Contenders(ctx)
				return err == nil && len(now) == 4 && now[3].Path != list[3].Path &&
					now[1].Weight == rest[0] && now[2].Weight == rest[1] && now[3].Weight == rest[2]
			})
		}
		// Now second, first, third.
		mustRelease(w.t, h)
		h1, h2 := first.hold(), second.hold()
		w.settle()
		third.pending()
		mustRelease(w.t, h1)
		mustRelease(w.t, h2)
		h = third.hold()
		// A holder is told.
		if _, err := x.Commit(ctx, backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		<-h.Done()
		wantErr(w.t, h.Err(), coord.ErrLost, coord.ErrDeleted)
		w.empty("/s/requests")
	})
}

func TestAWaitForPermitsSurvivesALostSession(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a := w.semaphore("a", 2)
		h := acquire(w.t, a, 2)
		var requeued atomic.Int32
		c := open(w.t, w.Link("b"), &coord.Options{Namespace: w.path(""), Trace: func(_ context.Context, e trace.Event) {
			switch e.(type) {
			case trace.WaiterRequeued:
				requeued.Add(1)
			case trace.WaitBegan:
				w.waits.Add(1)
			}
		}})
		waiter := w.awaiting(coord.NewSemaphore(c, "/s", 2, nil), 1)
		behind := w.awaiting(w.semaphore("c", 2), 1)
		for _, at := range []int{1, 2, 2} {
			list, err := a.Contenders(ctx)
			if err != nil || len(list) != 3 {
				w.t.Fatal(list, err)
			}
			old := list[at].Session
			w.Link("b").Expire(old)
			w.eventually("it stands in line again, at the tail", func() bool {
				now, err := a.Contenders(ctx)
				return err == nil && len(now) == 3 && now[2].Session != old && now[2].Path != list[2].Path
			})
		}
		waiter.pending()
		mustRelease(w.t, h)
		mustRelease(w.t, behind.hold())
		mustRelease(w.t, waiter.hold())
		if requeued.Load() == 0 {
			w.t.Error("Trace did not tell")
		}
		w.empty("/s/requests")
	})
}

func TestABlipLosesNoPermitAndNoWakeUp(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h := acquire(w.t, a, 3)
		first, second := w.awaiting(b, 2), w.awaiting(w.semaphore("c", 3), 1)
		for _, name := range []string{"a", "b", "c"} {
			w.Link(name).Partition()
			w.Link(name).Heal()
		}
		w.settle()
		first.pending()
		second.pending()
		if err := h.Verify(context.Background()); err != nil {
			w.t.Error(err)
		}
		mustRelease(w.t, h)
		mustRelease(w.t, first.hold())
		mustRelease(w.t, second.hold())
		w.empty("/s/requests")
	})
}

// marking reports whether a call writes a request, and is not bound to fail.
func marking(c backendtest.Call) bool {
	return len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpSetData && c.Ops[0].Version != math.MaxInt32
}

// asking reports whether a call asks for the permission to write a request.
func asking(c backendtest.Call) bool {
	return len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpSetData && c.Ops[0].Version == math.MaxInt32
}

// A waiter that could not mark its node when it is granted would have the one behind it
// wait beside a free permit.
func TestAWaiterThatMayNotWriteItsNodeIsToldAndTheNextGoesOn(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		denied := coord.NewSemaphore(w.open("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if marking(c) || asking(c) {
				return backend.ErrDenied
			}
			return nil
		}}), "/s", 2, nil)
		a := w.semaphore("a", 2)
		h := acquire(w.t, a, 2)
		n := w.waits.Load()
		first := &locking{w: w, done: make(chan struct{})}
		go func() {
			defer close(first.done)
			first.h, first.err = denied.Acquire(ctx, 1)
		}()
		err := first.failed()
		wantErr(w.t, err, coord.ErrDenied)
		if !strings.Contains(err.Error(), "set "+w.path("/s/requests/_c_")) || !strings.Contains(err.Error(), "write its own node") {
			w.t.Errorf("the error does not say what is missing: %v", err)
		}
		if n := requests(w); n != 1 {
			w.t.Errorf("%d requests, want that of the holder", n)
		}
		if w.waits.Load() != n {
			w.t.Error("it waited")
		}
		_, err = denied.TryAcquire(ctx, 1)
		wantErr(w.t, err, coord.ErrLocked)
		second := w.awaiting(w.semaphore("c", 2), 1)
		mustRelease(w.t, h)
		h = second.hold()
		mustRelease(w.t, acquire(w.t, a, 1))
		mustRelease(w.t, h)
		w.empty("/s/requests")
	})
}

// The permission is asked for once in a session and directory, by a request whose reply
// may be lost, and never by an acquisition that is alone.
func TestThePermissionToMarkIsAskedForOnce(t *testing.T) {
	onEach(t, func(w *world) {
		var asked, lost atomic.Int32
		hooks := &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			if asking(c) && asked.Add(1) == 1 {
				lost.Add(1)
				return backend.ErrUncertain
			}
			return err
		}}
		b := coord.NewSemaphore(w.open("b", hooks), "/s", 2, nil)
		for range 2 {
			mustRelease(w.t, acquire(w.t, b, 1))
			mustRelease(w.t, acquire(w.t, b, 2))
		}
		if n := asked.Load(); n != 0 {
			w.t.Errorf("asked %d times without another", n)
		}
		a := w.semaphore("a", 2)
		for range 3 {
			h := acquire(w.t, a, 2)
			waiter := w.awaiting(b, 2)
			mustRelease(w.t, h)
			mustRelease(w.t, waiter.hold())
		}
		if n := asked.Load(); n != 2 || lost.Load() != 1 {
			w.t.Errorf("asked %d times, want once and again after the lost reply", n)
		}
	})
}

// Who is alone and wants one permit does not read the limit: the creation of his
// request is under the condition that it has not changed.
func TestWhoIsAloneMeetsALimitThatChanged(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		adopting := coord.NewSemaphore(w.open("c", nil), "/s", 3, &coord.SemaphoreOptions{AdoptLimit: true})
		for _, s := range []*coord.Semaphore{a, adopting} {
			mustRelease(w.t, acquire(w.t, s, 1))
		}
		if err := b.SetLimit(ctx, 2); err != nil {
			w.t.Fatal(err)
		}
		for range 2 {
			_, err := a.Acquire(ctx, 1)
			wantErr(w.t, err, coord.ErrLimit)
			_, err = a.TryAcquire(ctx, 1)
			wantErr(w.t, err, coord.ErrLimit)
		}
		w.empty("/s/requests")
		for range 2 {
			mustRelease(w.t, acquire(w.t, adopting, 1))
		}
		if err := b.SetLimit(ctx, 3); err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, acquire(w.t, a, 1))
		// Deleted, it is made again.
		if _, err := w.session("x").Commit(ctx, backend.Delete(w.path("/s/limit"), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, acquire(w.t, a, 1))
		if n, err := b.Limit(ctx); err != nil || n != 3 {
			w.t.Errorf("limit %d, %v", n, err)
		}
		w.empty("/s/requests")
	})
}

// What changes between the decision to ask for one permit and the request.
func TestWhoIsAloneNoMoreWaits(t *testing.T) {
	for name, meanwhile := range map[string]func(w *world){
		"others came":                        func(*world) {},
		"others came, and the limit changed": func(w *world) { w.setLimit(1) },
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				var before nth
				a, b := w.hooked("a", &before), w.hooked("b", new(nth))
				mustRelease(w.t, acquire(w.t, a, 1))
				var others []*coord.Hold
				before.arm(1, creates, func(context.Context, backendtest.Call, error) error {
					others = append(others, acquire(w.t, b, 1), acquire(w.t, b, 1))
					meanwhile(w)
					return nil
				})
				waiter := w.awaiting(a, 1)
				w.settle()
				waiter.pending()
				for _, h := range others {
					mustRelease(w.t, h)
				}
				mustRelease(w.t, waiter.hold())
				w.empty("/s/requests")
			})
		})
	}
}

func TestALostReplyToWhoIsAloneLeavesOneRequest(t *testing.T) {
	for name, fault := range map[string]func(backendtest.Link){
		"request lost": backendtest.Link.DropNextRequest,
		"reply lost":   backendtest.Link.DropNextReply,
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				s := w.semaphore("a", 2)
				mustRelease(w.t, acquire(w.t, s, 1))
				fault(w.Link("a"))
				h := acquire(w.t, s, 1)
				if n := requests(w); n != 1 {
					w.t.Errorf("%d requests, want one", n)
				}
				if err := h.Verify(context.Background()); err != nil {
					w.t.Error(err)
				}
				mustRelease(w.t, h)
				w.empty("/s/requests")
			})
		})
	}
}

// A semaphore's holders cannot be asked to give up, so nothing may look as if
// they were.
func TestDataOfASemaphoreThatReadsAsARequestIsRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", nil)
		for _, data := range []string{"unlock", "__REVOKE__", `{"coord-revoke":{"at":1}}`} {
			s := coord.NewSemaphore(c, "/s", 2, &coord.SemaphoreOptions{Data: []byte(data)})
			for _, take := range []func(context.Context, int) (*coord.Hold, error){s.Acquire, s.TryAcquire} {
				h, err := take(context.Background(), 1)
				wantErr(w.t, err, coord.ErrInvalid)
				if err == nil {
					mustRelease(w.t, h)
				}
			}
		}
	})
}

// The limit that is set first makes its node; that is done once as well.
func TestTheFirstLimitIsSetOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after nth
		a := coord.NewSemaphore(w.open("a", &backendtest.Hooks{After: after.after}), "/s", 2, nil)
		b := coord.NewSemaphore(w.open("b", nil), "/s", 2, nil)
		if _, err := w.session("x").Commit(ctx, backend.Create(w.path("/s"), nil, backend.Persistent)); err != nil {
			w.t.Fatal(err)
		}
		makes := func(c backendtest.Call) bool { return c.Path == w.path("/s/limit") && commits(c, backend.OpCreate) }
		// Its reply is lost, and another's change comes before anybody knows.
		lost := false
		after.arm(1, makes, func(_ context.Context, _ backendtest.Call, err error) error {
			if err != nil {
				return err
			}
			lost = true
			if err := b.SetLimit(ctx, 7); err != nil {
				w.t.Error(err)
			}
			return backend.ErrUncertain
		})
		if err := a.SetLimit(ctx, 5); err != nil {
			w.t.Fatal(err)
		}
		if n, err := a.Limit(ctx); err != nil || n != 7 || !lost {
			w.t.Errorf("limit %d, %v, reply lost: %v; want the later limit", n, err, lost)
		}
	})
}

// The replies of two calls come in the other order than their changes.
func TestASemaphoreExpectsTheLaterOfTwoLimitsThatItSet(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after nth
		s := coord.NewSemaphore(w.open("a", &backendtest.Hooks{After: after.after}), "/s", 2, nil)
		mustRelease(w.t, acquire(w.t, s, 1))
		after.arm(1, func(c backendtest.Call) bool { return commits(c, backend.OpSetData) && c.Path == w.path("/s/limit") },
			func(_ context.Context, _ backendtest.Call, err error) error {
				if err := s.SetLimit(ctx, 7); err != nil {
					w.t.Error(err)
				}
				return err
			})
		if err := s.SetLimit(ctx, 5); err != nil {
			w.t.Fatal(err)
		}
		if n, err := s.Limit(ctx); err != nil || n != 7 {
			w.t.Errorf("limit %d, %v", n, err)
		}
		mustRelease(w.t, acquire(w.t, s, 7))
	})
}

// Who waited through a change of the limit was granted under the new one, and does
// not expect it for that.
func TestWhoWasGrantedUnderAnotherLimitIsRefusedTheNextTime(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h := acquire(w.t, b, 3)
		waiter := w.awaiting(a, 1)
		if err := b.SetLimit(ctx, 4); err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, waiter.hold())
		mustRelease(w.t, h)
		for range 2 {
			_, err := a.Acquire(ctx, 1)
			wantErr(w.t, err, coord.ErrLimit)
		}
	})
}

// gate stops a call until the test lets it go.
type gate struct{ reached, open chan struct{} }

// stop has x stop the next call that matches.
func (w *world) stop(x *nth, match func(backendtest.Call) bool) gate {
	g := gate{make(chan struct{}), make(chan struct{})}
	x.arm(1, match, func(context.Context, backendtest.Call, error) error {
		close(g.reached)
		<-g.open
		return nil
	})
	return g
}

func lists(w *world) func(backendtest.Call) bool {
	return func(c backendtest.Call) bool { return c.Op == "children" && c.Path == w.path("/s/requests") }
}

func readsLimit(w *world) func(backendtest.Call) bool {
	return func(c backendtest.Call) bool { return c.Op == "get" && c.Path == w.path("/s/limit") }
}

// setLimit changes the limit as an operator does.
func (w *world) setLimit(n int) {
	w.t.Helper()
	_, err := w.session("operator").Commit(context.Background(), backend.SetData(w.path("/s/limit"), fmt.Append(nil, n), backend.AnyVersion))
	if err != nil {
		w.t.Fatal(err)
	}
}

// hooked returns the semaphore for a client whose requests pass x.
func (w *world) hooked(name string, x *nth) *coord.Semaphore {
	w.t.Helper()
	c := w.open(name, &backendtest.Hooks{Before: x.before})
	return coord.NewSemaphore(c, "/s", 2, &coord.SemaphoreOptions{AdoptLimit: true})
}

// started starts an Acquire.
func (w *world) started(s *coord.Semaphore, n int) *locking {
	l := &locking{w: w, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.h, l.err = s.Acquire(context.Background(), n)
	}()
	return l
}

// Who was granted at once has no mark. When the limit goes down he looks like a
// waiter, and makes no mark that could wake the one behind him.
func TestAHolderWhoLooksLikeAWaiterHoldsNobodyUp(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a := w.semaphore("a", 4)
		h, err := a.Acquire(ctx, 1) // makes the limit
		mustRelease(w.t, must(w.t, h, err))
		h1 := acquire(w.t, a, 2)
		h2 := acquire(w.t, w.semaphore("b", 4), 2)
		if err := a.SetLimit(ctx, 3); err != nil {
			w.t.Fatal(err)
		}
		list, err := a.Contenders(ctx)
		if err != nil || len(list) != 2 || !list[0].Granted {
			w.t.Errorf("contenders %+v, %v", list, err)
		}
		waiter := w.awaiting(w.semaphore("c", 3), 1)
		next := w.awaiting(w.semaphore("d", 3), 3)
		mustRelease(w.t, h1)
		mustRelease(w.t, waiter.hold())
		w.settle()
		next.pending()
		mustRelease(w.t, h2)
		mustRelease(w.t, next.hold())
		w.empty("/s/requests")
	})
}

// Somebody comes while a request has not looked at the line yet, and takes it for
// a waiter. It is granted at its first look, and must tell him.
func TestAGrantAtOnceTellsWhoTookItForAWaiter(t *testing.T) {
	onEach(t, func(w *world) {
		var x nth
		a, b := w.semaphore("a", 2), w.hooked("b", &x)
		mustRelease(w.t, acquire(w.t, b, 1))
		h := acquire(w.t, a, 2)
		g := w.stop(&x, lists(w))
		early := w.started(b, 1)
		<-g.reached
		late := w.awaiting(w.semaphore("c", 2), 1)
		mustRelease(w.t, h)
		w.settle()
		late.pending()
		close(g.open)
		h1, h2 := early.hold(), late.hold() // both, although the first holds on
		mustRelease(w.t, h1)
		mustRelease(w.t, h2)
		w.empty("/s/requests")
	})
}

// The same, granted under a limit that was there so shortly that the other never
// saw it.
func TestAGrantUnderAPassingLimitTellsWhoNeverSawIt(t *testing.T) {
	onEach(t, func(w *world) {
		var x, y nth
		a, b, c := w.semaphore("a", 2), w.hooked("b", &x), w.hooked("c", &y)
		for _, s := range []*coord.Semaphore{b, c} {
			mustRelease(w.t, acquire(w.t, s, 1))
		}
		h := acquire(w.t, a, 2)
		early := w.stop(&x, readsLimit(w))
		first := w.started(b, 1)
		<-early.reached
		late := w.awaiting(c, 1)
		passing := w.stop(&y, readsLimit(w))
		w.setLimit(3)
		<-passing.reached
		close(early.open)
		h1 := first.hold()
		w.setLimit(2)
		close(passing.open)
		w.settle()
		late.pending()
		mustRelease(w.t, h)
		mustRelease(w.t, late.hold())
		mustRelease(w.t, h1)
		w.empty("/s/requests")
	})
}

// A limit that goes down while a waiter reads the line must not count any more.
func TestALimitLoweredMeanwhileGrantsNothing(t *testing.T) {
	onEach(t, func(w *world) {
		var x nth
		a, b := w.semaphore("a", 2), w.hooked("b", &x)
		h1, h2 := acquire(w.t, a, 1), acquire(w.t, a, 1)
		waiter := w.awaiting(b, 1)
		g := w.stop(&x, lists(w))
		behind := w.awaiting(w.semaphore("c", 2), 1) // has the waiter look
		<-g.reached
		w.setLimit(1)
		mustRelease(w.t, h1)
		close(g.open)
		w.settle()
		waiter.pending()
		mustRelease(w.t, h2)
		mustRelease(w.t, waiter.hold())
		mustRelease(w.t, behind.hold())
		w.empty("/s/requests")
	})
}
