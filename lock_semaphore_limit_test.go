package coord_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

// Curator-75: a raised limit woke nobody. kazoo 213: a lower one granted too
// much.
func TestARaisedLimitWakesAtOnceAndALoweredOneTakesNothingAway(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 1), w.semaphore("b", 1)
		h1 := acquire(w.t, a, 1)
		second := w.awaiting(b, 1)
		third := w.awaiting(w.semaphore("c", 1), 1)
		fourth := w.awaiting(w.semaphore("d", 1), 1)
		if err := a.SetLimit(ctx, 3); err != nil {
			w.t.Fatal(err)
		}
		h2, h3 := second.hold(), third.hold()
		w.settle()
		fourth.pending()
		if err := a.SetLimit(ctx, 1); err != nil {
			w.t.Fatal(err)
		}
		w.settle()
		for _, h := range []*coord.Hold{h1, h2, h3} {
			if err := h.Verify(ctx); err != nil {
				w.t.Errorf("a lowered limit took %s away: %v", h.Path(), err)
			}
		}
		for _, h := range []*coord.Hold{h2, h1} {
			fourth.pending()
			mustRelease(w.t, h)
			w.settle()
		}
		fourth.pending()
		if n, err := b.Limit(ctx); err != nil || n != 1 {
			w.t.Errorf("limit %d, %v", n, err)
		}
		mustRelease(w.t, h3)
		mustRelease(w.t, fourth.hold())
		w.empty("/s/requests")
	})
}

func TestAClientThatExpectsAnotherLimitIsRefused(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a := w.semaphore("a", 3)
		_, err := a.Limit(ctx)
		wantErr(w.t, err, coord.ErrNotFound)
		h := acquire(w.t, a, 2)
		c := w.open("b", nil)
		other := coord.NewSemaphore(c, "/s", 5, nil)
		for range 2 {
			_, err = other.Acquire(ctx, 1)
			wantErr(w.t, err, coord.ErrLimit)
			if err == nil || !strings.Contains(err.Error(), " 3 ") || !strings.Contains(err.Error(), " 5") {
				w.t.Errorf("%v: want both numbers", err)
			}
		}
		adopting := coord.NewSemaphore(c, "/s", 5, &coord.SemaphoreOptions{AdoptLimit: true})
		mustRelease(w.t, acquire(w.t, adopting, 1))
		_, err = adopting.TryAcquire(ctx, 2)
		wantErr(w.t, err, coord.ErrLocked)
		_, err = adopting.TryAcquire(ctx, 4)
		wantErr(w.t, err, coord.ErrLimit)
		if n, err := adopting.Limit(ctx); err != nil || n != 3 {
			w.t.Errorf("limit %d, %v", n, err)
		}
		// Who changes the limit expects the new one; the others do not.
		if err := other.SetLimit(ctx, 5); err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, acquire(w.t, other, 3))
		_, err = a.Acquire(ctx, 1)
		wantErr(w.t, err, coord.ErrLimit)
		mustRelease(w.t, acquire(w.t, adopting, 3))
		mustRelease(w.t, h)
		w.empty("/s/requests")
	})
}

func TestTheLimitOutlivesTheClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c := open(t, st, nil)
		s := coord.NewSemaphore(c, "/a/s", 3, nil)
		mustRelease(t, acquire(t, s, 1))
		if err := s.SetLimit(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		c.Close()
		st.ReapContainers()
		s = coord.NewSemaphore(open(t, st, nil), "/a/s", 3, nil)
		if n, err := s.Limit(t.Context()); err != nil || n != 7 {
			t.Errorf("limit %d, %v", n, err)
		}
		_, err := s.Acquire(t.Context(), 1)
		wantErr(t, err, coord.ErrLimit)
		if names := children(t, st, "/a/s"); len(names) != 1 {
			t.Errorf("%v, want the limit alone", names)
		}
		// A limit that is set first makes the semaphore.
		s = coord.NewSemaphore(open(t, st, nil), "/b/s", 3, nil)
		if err := s.SetLimit(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		mustRelease(t, acquire(t, s, 2))
	})
}

// A request over the limit would hold up all behind it for ever.
func TestARequestOverTheLimitFails(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 4), w.semaphore("b", 4)
		_, err := a.Acquire(ctx, 5)
		wantErr(w.t, err, coord.ErrLimit)
		adopting := coord.NewSemaphore(w.open("c", nil), "/s", 9, &coord.SemaphoreOptions{AdoptLimit: true})
		h := acquire(w.t, a, 3)
		_, err = adopting.Acquire(ctx, 5)
		wantErr(w.t, err, coord.ErrLimit)

		heavy := w.awaiting(b, 4)
		behind := w.awaiting(adopting, 1)
		if err := a.SetLimit(ctx, 3); err != nil {
			w.t.Fatal(err)
		}
		wantErr(w.t, heavy.failed(), coord.ErrLimit)
		w.settle()
		behind.pending()
		mustRelease(w.t, h)
		mustRelease(w.t, behind.hold())
		w.empty("/s/requests")
	})
}

func TestTheLimitMayBeSetByHand(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		s := w.session("x")
		set := func(text string) {
			w.t.Helper()
			if _, err := s.Commit(ctx, backend.SetData(w.path("/s/limit"), []byte(text), backend.AnyVersion)); err != nil {
				w.t.Fatal(err)
			}
		}
		a := coord.NewSemaphore(w.open("a", nil), "/s", 1, &coord.SemaphoreOptions{AdoptLimit: true})
		b := coord.NewSemaphore(w.open("b", nil), "/s", 1, &coord.SemaphoreOptions{AdoptLimit: true})
		h := acquire(w.t, a, 1)
		waiter := w.awaiting(b, 1)
		set(" 2\n")
		h2 := waiter.hold()
		// Deleted, it is made again as it was.
		waiter = w.awaiting(b, 1)
		if _, err := s.Commit(ctx, backend.Delete(w.path("/s/limit"), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		w.eventually("the limit is there again", func() bool {
			n, err := a.Limit(ctx)
			return err == nil && n == 2
		})
		w.settle()
		waiter.pending()
		mustRelease(w.t, h)
		mustRelease(w.t, waiter.hold())
		for _, text := range []string{"", "none", "0", "-1", "1e3", "2147483648", strings.Repeat("9", 1000)} {
			waiter := w.awaiting(b, 2)
			set(text)
			wantErr(w.t, waiter.failed(), coord.ErrInvalid)
			_, err := a.Acquire(ctx, 1)
			wantErr(w.t, err, coord.ErrInvalid)
			_, err = a.Limit(ctx)
			wantErr(w.t, err, coord.ErrInvalid)
			if n := len(err.Error()); n > 300 {
				w.t.Errorf("an error of %d bytes", n)
			}
			set("2")
		}
		mustRelease(w.t, h2)
		w.empty("/s/requests")
	})
}

func TestAChangeOfTheLimitIsMadeOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after nth
		a := coord.NewSemaphore(w.open("a", &backendtest.Hooks{After: after.after}), "/s", 2, nil)
		b := coord.NewSemaphore(w.open("b", nil), "/s", 2, nil)
		mustRelease(w.t, acquire(w.t, a, 1))
		sets := func(c backendtest.Call) bool { return c.Path == w.path("/s/limit") && commits(c, backend.OpSetData) }
		// Its reply is lost, and another's change comes before anybody knows.
		after.arm(1, sets, func(context.Context, backendtest.Call, error) error {
			if err := b.SetLimit(ctx, 7); err != nil {
				w.t.Error(err)
			}
			return backend.ErrUncertain
		})
		if err := a.SetLimit(ctx, 5); err != nil {
			w.t.Fatal(err)
		}
		if n, err := a.Limit(ctx); err != nil || n != 7 {
			w.t.Errorf("limit %d, %v, want the later one", n, err)
		}
		// Nobody can tell after the end of the session.
		after.arm(1, sets, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			return backend.Uncertain(backend.ErrSessionLost)
		})
		wantErr(w.t, a.SetLimit(ctx, 3), coord.ErrUncertain)
	})
}
