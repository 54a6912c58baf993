package recipetest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// semaphore returns the semaphore at /s, through the client of this name.
func (w *world) semaphore(name string, limit int) *coord.Semaphore {
	w.T.Helper()
	return coord.NewSemaphore(w.Open(name, nil), "/s", limit, nil)
}

func acquire(t *testing.T, s *coord.Semaphore, n int) *coord.Hold {
	t.Helper()
	h, err := s.Acquire(context.Background(), n)
	return must(t, h, err)
}

// awaiting starts an Acquire, and returns when it waits.
func (w *world) awaiting(s *coord.Semaphore, n int) *coordtest.Locking {
	w.T.Helper()
	return w.side(func(ctx context.Context) (*coord.Hold, error) { return s.Acquire(ctx, n) })
}

func requests(w *world) int { return len(w.Children("/s/requests")) }

// semaphoreTests are tests of Semaphore on each service.
type semaphoreTests struct{ Services }

func (on semaphoreTests) PermitsAreGrantedInOrder(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h1, h2 := acquire(w.T, a, 1), acquire(w.T, b, 1)
		if h1.Token() != 0 || h2.Token() != 0 {
			w.T.Errorf("tokens %d and %d, want 0: permits have several holders", h1.Token(), h2.Token())
		}
		large := w.awaiting(a, 3)
		small := w.awaiting(w.semaphore("c", 3), 1)
		last := w.awaiting(b, 2)
		w.Settle()
		small.Pending() // it would fit, and does not pass the large one
		coordtest.MustRelease(w.T, h1)
		w.Settle()
		large.Pending()
		small.Pending()
		coordtest.MustRelease(w.T, h2)
		h := large.Hold()
		small.Pending()
		last.Pending()
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, small.Hold()) // both fit and are granted
		coordtest.MustRelease(w.T, last.Hold())
		w.Empty("/s/requests")
	})
}

// Curator acquires leases one by one: two clients that wanted both of two leases kept one each
// forever.
func (on semaphoreTests) TwoTakersOfAllPermitsFinishInTurn(t *testing.T) {
	on.each(t, func(w *world) {
		var wg sync.WaitGroup
		var holders atomic.Int32
		for _, name := range []string{"a", "b"} {
			s := w.semaphore(name, 2)
			wg.Go(func() {
				for range 10 {
					h, err := s.Acquire(context.Background(), 2)
					if err != nil {
						w.T.Error(err)
						return
					}
					if n := holders.Add(1); n != 1 {
						w.T.Errorf("%d have both permits", n)
					}
					holders.Add(-1)
					if err := h.Release(); err != nil {
						w.T.Error(err)
					}
				}
			})
		}
		wg.Wait()
		w.Empty("/s/requests")
	})
}

func (on semaphoreTests) TryAcquire(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h, err := a.TryAcquire(ctx, 2)
		h = must(w.T, h, err)
		_, err = b.TryAcquire(ctx, 2)
		coordtest.WantErr(w.T, err, coord.ErrLocked)
		if n := requests(w); n != 1 {
			w.T.Errorf("%d requests after a try that failed", n)
		}
		h2, err := a.TryAcquire(ctx, 1) // beside the client's other hold
		coordtest.MustRelease(w.T, must(w.T, h2, err))
		waiter := w.awaiting(b, 2)
		_, err = a.TryAcquire(ctx, 1)
		coordtest.WantErr(w.T, err, coord.ErrLocked) // it does not pass a waiter
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, waiter.Hold())
		w.Empty("/s/requests")
	})
}

func (on semaphoreTests) ForeignNodesOfASemaphoreAreIgnored(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a := w.semaphore("a", 2)
		coordtest.MustRelease(w.T, acquire(w.T, a, 1))
		s := w.Session("x")
		for _, name := range []string{
			"README", "permit-", "permit-1", "permit-1-", "permit-1-1", "permit--1-0000000001", "permit-0-0000000001",
			"permit-01-0000000001", "permit-+1-0000000001", "permit-x-0000000001", "permit-1-000000000x",
			"permit-99999999999-0000000001", "permit-1-99999999999999999999", "_c_" + someGUID + "-lock-0000000000",
			"_c_" + someGUID + "-lease-0000000000", "permit-1-0000000000-x",
		} {
			if _, err := s.Commit(ctx, backend.Create(w.Path("/s/requests/"+name), nil, backend.Persistent)); err != nil {
				w.T.Fatal(err)
			}
		}
		h := acquire(w.T, a, 2)
		waiter := w.awaiting(w.semaphore("b", 2), 2)
		list, err := a.Contenders(ctx)
		if err != nil || len(list) != 2 || list[0].Path != h.Path() || !list[0].Granted || list[1].Granted {
			w.T.Errorf("contenders %+v, %v", list, err)
		}
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, waiter.Hold())
		// A request of another library counts, whatever its prefix.
		res, err := s.Commit(ctx, backend.Create(w.Path("/s/requests/zz-permit-2-"), nil, backend.EphemeralSequential))
		if err != nil {
			w.T.Fatal(err)
		}
		_, err = a.TryAcquire(ctx, 1)
		coordtest.WantErr(w.T, err, coord.ErrLocked)
		if _, err := s.Commit(ctx, backend.Delete(res[0].Path, backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, acquire(w.T, a, 2))
	})
}

func (on semaphoreTests) ContendersOfASemaphore(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		semaphore := func(name string) *coord.Semaphore {
			return coord.NewSemaphore(w.Open(name, nil), "/s", 4, &coord.SemaphoreOptions{Data: []byte(name)})
		}
		a := semaphore("a")
		if list, err := a.Contenders(ctx); err != nil || len(list) != 0 {
			w.T.Error(list, err)
		}
		h := acquire(w.T, a, 3)
		second, third := w.awaiting(semaphore("b"), 2), w.awaiting(semaphore("c"), 1)
		check := func(want string) {
			w.T.Helper()
			var got string
			list, err := a.Contenders(ctx)
			for _, c := range list {
				got += fmt.Sprintf("%s %d %v, ", c.Data, c.Weight, c.Granted)
				if c.Session == 0 || c.Since.IsZero() {
					w.T.Errorf("%+v", c)
				}
			}
			if err != nil || got != want {
				w.T.Errorf("contenders %q, %v, want %q", got, err, want)
			}
		}
		check("a 3 true, b 2 false, c 1 false, ")
		coordtest.MustRelease(w.T, h)
		h2, h3 := second.Hold(), third.Hold()
		check("b 2 true, c 1 true, ") // the marks have kept the data
		coordtest.MustRelease(w.T, h2)
		coordtest.MustRelease(w.T, h3)
	})
}

// Curator-75: a raised limit woke no waiter. kazoo 213: a lowered limit granted too many
// permits.
func (on semaphoreTests) ARaisedLimitWakesAtOnceAndALoweredOneTakesNothingAway(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 1), w.semaphore("b", 1)
		h1 := acquire(w.T, a, 1)
		second := w.awaiting(b, 1)
		third := w.awaiting(w.semaphore("c", 1), 1)
		fourth := w.awaiting(w.semaphore("d", 1), 1)
		if err := a.SetLimit(ctx, 3); err != nil {
			w.T.Fatal(err)
		}
		h2, h3 := second.Hold(), third.Hold()
		w.Settle()
		fourth.Pending()
		if err := a.SetLimit(ctx, 1); err != nil {
			w.T.Fatal(err)
		}
		w.Settle()
		for _, h := range []*coord.Hold{h1, h2, h3} {
			if err := h.Verify(ctx); err != nil {
				w.T.Errorf("a lowered limit took %s away: %v", h.Path(), err)
			}
		}
		for _, h := range []*coord.Hold{h2, h1} {
			fourth.Pending()
			coordtest.MustRelease(w.T, h)
			w.Settle()
		}
		fourth.Pending()
		if n, err := b.Limit(ctx); err != nil || n != 1 {
			w.T.Errorf("limit %d, %v", n, err)
		}
		coordtest.MustRelease(w.T, h3)
		coordtest.MustRelease(w.T, fourth.Hold())
		w.Empty("/s/requests")
	})
}

func (on semaphoreTests) AClientThatExpectsAnotherLimitIsRefused(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a := w.semaphore("a", 3)
		_, err := a.Limit(ctx)
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		h := acquire(w.T, a, 2)
		c := w.Open("b", nil)
		other := coord.NewSemaphore(c, "/s", 5, nil)
		for range 2 {
			_, err = other.Acquire(ctx, 1)
			coordtest.WantErr(w.T, err, coord.ErrLimit)
			if err == nil || !strings.Contains(err.Error(), " 3 ") || !strings.Contains(err.Error(), " 5") {
				w.T.Errorf("%v: want both numbers", err)
			}
		}
		adopting := coord.NewSemaphore(c, "/s", 5, &coord.SemaphoreOptions{AdoptLimit: true})
		coordtest.MustRelease(w.T, acquire(w.T, adopting, 1))
		_, err = adopting.TryAcquire(ctx, 2)
		coordtest.WantErr(w.T, err, coord.ErrLocked)
		_, err = adopting.TryAcquire(ctx, 4)
		coordtest.WantErr(w.T, err, coord.ErrLimit)
		if n, err := adopting.Limit(ctx); err != nil || n != 3 {
			w.T.Errorf("limit %d, %v", n, err)
		}
		// A semaphore that changes the limit expects the new one; other semaphores still expect
		// the old one.
		if err := other.SetLimit(ctx, 5); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, acquire(w.T, other, 3))
		_, err = a.Acquire(ctx, 1)
		coordtest.WantErr(w.T, err, coord.ErrLimit)
		coordtest.MustRelease(w.T, acquire(w.T, adopting, 3))
		coordtest.MustRelease(w.T, h)
		w.Empty("/s/requests")
	})
}

// A request over the limit would block all requests behind it forever.
func (on semaphoreTests) ARequestOverTheLimitFails(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 4), w.semaphore("b", 4)
		_, err := a.Acquire(ctx, 5)
		coordtest.WantErr(w.T, err, coord.ErrLimit)
		adopting := coord.NewSemaphore(w.Open("c", nil), "/s", 9, &coord.SemaphoreOptions{AdoptLimit: true})
		h := acquire(w.T, a, 3)
		_, err = adopting.Acquire(ctx, 5)
		coordtest.WantErr(w.T, err, coord.ErrLimit)

		heavy := w.awaiting(b, 4)
		behind := w.awaiting(adopting, 1)
		if err := a.SetLimit(ctx, 3); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, heavy.Failed(), coord.ErrLimit)
		w.Settle()
		behind.Pending()
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, behind.Hold())
		w.Empty("/s/requests")
	})
}

func (on semaphoreTests) TheLimitMayBeSetByHand(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		s := w.Session("x")
		set := func(text string) {
			w.T.Helper()
			if _, err := s.Commit(ctx, backend.SetData(w.Path("/s/limit"), []byte(text), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		}
		a := coord.NewSemaphore(w.Open("a", nil), "/s", 1, &coord.SemaphoreOptions{AdoptLimit: true})
		b := coord.NewSemaphore(w.Open("b", nil), "/s", 1, &coord.SemaphoreOptions{AdoptLimit: true})
		h := acquire(w.T, a, 1)
		waiter := w.awaiting(b, 1)
		set(" 2\n")
		h2 := waiter.Hold()
		// If the limit is deleted, it is created again with the same value.
		waiter = w.awaiting(b, 1)
		if _, err := s.Commit(ctx, backend.Delete(w.Path("/s/limit"), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		w.Eventually("the limit is there again", func() bool {
			n, err := a.Limit(ctx)
			return err == nil && n == 2
		})
		w.Settle()
		waiter.Pending()
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, waiter.Hold())
		for _, text := range []string{"", "none", "0", "-1", "1e3", "2147483648", strings.Repeat("9", 1000)} {
			waiter := w.awaiting(b, 2)
			set(text)
			coordtest.WantErr(w.T, waiter.Failed(), coord.ErrInvalid)
			_, err := a.Acquire(ctx, 1)
			coordtest.WantErr(w.T, err, coord.ErrInvalid)
			_, err = a.Limit(ctx)
			coordtest.WantErr(w.T, err, coord.ErrInvalid)
			if n := len(err.Error()); n > 300 {
				w.T.Errorf("an error of %d bytes", n)
			}
			set("2")
		}
		coordtest.MustRelease(w.T, h2)
		w.Empty("/s/requests")
	})
}
