package coord_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

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
