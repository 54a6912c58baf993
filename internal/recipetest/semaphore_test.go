package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

func TestSemaphore_BadInputOfASemaphoreIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c := coordtest.Open(t, st, nil)
		for name, test := range map[string]struct {
			path  string
			limit int
			n     int
			want  error
		}{
			"no permit":           {"/s", 3, 0, coord.ErrInvalid},
			"a negative number":   {"/s", 3, -1, coord.ErrInvalid},
			"more than the limit": {"/s", 3, 4, coord.ErrLimit},
			"no limit":            {"/s", 0, 1, coord.ErrInvalid},
			"a negative limit":    {"/s", -3, 1, coord.ErrInvalid},
			"a limit too high":    {"/s", 1 << 31, 1, coord.ErrInvalid},
			"a bad path":          {"s", 3, 1, coord.ErrBadPath},
			"the root":            {"/", 3, 1, coord.ErrBadPath},
		} {
			s := coord.NewSemaphore(c, test.path, test.limit, nil)
			_, err := s.Acquire(t.Context(), test.n)
			var e *backend.Error
			if !errors.Is(err, test.want) || !errors.As(err, &e) || e.Op != "acquire" {
				t.Errorf("%s: %v, want %v", name, err, test.want)
			}
			if _, err := s.TryAcquire(t.Context(), test.n); !errors.Is(err, test.want) {
				t.Errorf("%s: tried: %v, want %v", name, err, test.want)
			}
		}
		adopting := coord.NewSemaphore(c, "/s", 3, &coord.SemaphoreOptions{AdoptLimit: true})
		_, err := adopting.Acquire(t.Context(), 1<<31)
		coordtest.WantErr(t, err, coord.ErrLimit)
		s := coord.NewSemaphore(c, "/s", 3, nil)
		for _, n := range []int{0, -1, 1 << 31} {
			coordtest.WantErr(t, s.SetLimit(t.Context(), n), coord.ErrInvalid)
		}
		bad := coord.NewSemaphore(c, "/a//b", 3, nil)
		coordtest.WantErr(t, bad.SetLimit(t.Context(), 1), coord.ErrBadPath)
		_, err = bad.Limit(t.Context())
		coordtest.WantErr(t, err, coord.ErrBadPath)
		_, err = bad.Contenders(t.Context())
		coordtest.WantErr(t, err, coord.ErrBadPath)
		_, err = coord.NewSemaphore(c, "/s", 3, &coord.SemaphoreOptions{Data: make([]byte, backend.MaxRequest)}).Acquire(t.Context(), 1)
		coordtest.WantErr(t, err, coord.ErrTooLarge)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = s.Acquire(ctx, 1)
		coordtest.WantErr(t, err, context.Canceled)
		if left := coordtest.Children(t, st, "/s/requests"); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		c.Close()
		_, err = s.Acquire(t.Context(), 1)
		coordtest.WantErr(t, err, coord.ErrClosed)
	})
}

func TestSemaphore_TheRequestsDirectoryIsReplacedBeforeItsNumbersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		s := coord.NewSemaphore(coordtest.Open(t, st, nil), "/s", 2, nil)
		coordtest.MustRelease(t, acquire(t, s, 1))
		// The last holder removes a directory whose numbers are nearly used up.
		for _, next := range []int64{2_000_000_000, 2_100_000_000, 1<<31 - 1, -1 << 31, -5} {
			if err := st.SetSequence("/s/requests", next); err != nil {
				t.Fatal(err)
			}
			coordtest.MustRelease(t, acquire(t, s, 1))
			h := acquire(t, s, 1)
			if !strings.HasSuffix(h.Path(), "-permit-1-0000000000") && !strings.HasSuffix(h.Path(), "-permit-1-0000000001") {
				t.Errorf("after number %d: %s, want one of a new directory", next, h.Path())
			}
			coordtest.MustRelease(t, h)
		}
		// While such a directory is in use, further requests are refused.
		h := acquire(t, s, 1)
		if err := st.SetSequence("/s/requests", 2_100_000_000); err != nil {
			t.Fatal(err)
		}
		_, err := s.Acquire(t.Context(), 1)
		coordtest.WantErr(t, err, coord.ErrLimit)
		coordtest.MustRelease(t, h)
		coordtest.MustRelease(t, acquire(t, s, 2))
		coordtest.MustRelease(t, acquire(t, s, 2))
	})
}

// However many waiters there are, a release wakes the first waiter, and its mark wakes the
// next.
func TestSemaphore_AReleaseOfPermitsWakesNoHerd(t *testing.T) {
	for _, n := range []int{5, 50} {
		t.Run(fmt.Sprint(n, " waiters"), func(t *testing.T) {
			onMemory(t, func(w *world) {
				const limit = 3
				first := w.semaphore("holder", limit)
				var holds []*coord.Hold
				for range limit {
					holds = append(holds, acquire(w.T, first, 1))
				}
				calls := make([]atomic.Int32, n)
				waiters := make([]*coordtest.Locking, n)
				for i := range n {
					c := w.Open(fmt.Sprint(i), &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
						calls[i].Add(1)
						return nil
					}})
					waiters[i] = w.awaiting(coord.NewSemaphore(c, "/s", limit, nil), 1)
				}
				most := 0
				for i := range n {
					w.Settle()
					time.Sleep(time.Second) // of fake time, so that the holds finish their delayed work
					w.Settle()
					before := make([]int32, n)
					for j := range n {
						before[j] = calls[j].Load()
					}
					coordtest.MustRelease(w.T, holds[i])
					w.Settle()
					woken := 0
					for j := i; j < n; j++ {
						if calls[j].Load() != before[j] {
							woken++
						}
					}
					most = max(most, woken)
					holds = append(holds, waiters[i].Hold())
				}
				if most != 2 {
					w.T.Errorf("a release woke %d clients, want 2: the next holder, and the waiter behind it", most)
				}
				w.T.Logf("figure: %d waiters: a release of a permit wakes %d", n, most)
				for _, h := range holds[n:] {
					coordtest.MustRelease(w.T, h)
				}
			})
		})
	}
}

// If a client is alone, one permit costs one request, as a mutex does, and its release one.
// Several permits cost one request more. With another holder, one permit costs two requests
// more.
func TestSemaphore_WhatPermitsCost(t *testing.T) {
	onMemory(t, func(w *world) {
		var calls atomic.Int32
		c := w.Open("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
			calls.Add(1)
			return nil
		}})
		s := coord.NewSemaphore(c, "/s", 3, nil)
		coordtest.MustRelease(w.T, acquire(w.T, s, 1))
		cost := func(permits int, want int32) {
			w.T.Helper()
			calls.Store(0)
			h := acquire(w.T, s, permits)
			coordtest.MustRelease(w.T, h)
			w.Settle()
			w.T.Logf("figure: acquisition and release of %d permits: %d requests", permits, calls.Load())
			if n := calls.Load(); n != want {
				w.T.Errorf("%d requests for an acquisition and a release, want %d", n, want)
			}
		}
		cost(1, 2)
		cost(2, 3)
		acquire(w.T, coord.NewSemaphore(w.Open("b", nil), "/s", 3, nil), 1)
		cost(1, 4)
	})
}

func TestSemaphore_TheLimitOutlivesTheClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c := coordtest.Open(t, st, nil)
		s := coord.NewSemaphore(c, "/a/s", 3, nil)
		coordtest.MustRelease(t, acquire(t, s, 1))
		if err := s.SetLimit(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		c.Close()
		st.ReapContainers()
		s = coord.NewSemaphore(coordtest.Open(t, st, nil), "/a/s", 3, nil)
		if n, err := s.Limit(t.Context()); err != nil || n != 7 {
			t.Errorf("limit %d, %v", n, err)
		}
		_, err := s.Acquire(t.Context(), 1)
		coordtest.WantErr(t, err, coord.ErrLimit)
		if names := coordtest.Children(t, st, "/a/s"); len(names) != 1 {
			t.Errorf("%v, want the limit alone", names)
		}
		// A SetLimit that comes first creates the semaphore.
		s = coord.NewSemaphore(coordtest.Open(t, st, nil), "/b/s", 3, nil)
		if err := s.SetLimit(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		coordtest.MustRelease(t, acquire(t, s, 2))
	})
}

func TestSemaphore_AChangeOfTheLimitIsMadeOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after coordtest.Nth
		a := coord.NewSemaphore(w.Open("a", &backendtest.Hooks{After: after.After}), "/s", 2, nil)
		b := coord.NewSemaphore(w.Open("b", nil), "/s", 2, nil)
		coordtest.MustRelease(w.T, acquire(w.T, a, 1))
		sets := func(c backendtest.Call) bool {
			return c.Path == w.Path("/s/limit") && coordtest.Commits(c, backend.OpSetData)
		}
		// The reply is lost, and another client changes the limit before the outcome is
		// determined.
		after.Arm(1, sets, func(context.Context, backendtest.Call, error) error {
			if err := b.SetLimit(ctx, 7); err != nil {
				w.T.Error(err)
			}
			return backend.ErrUncertain
		})
		if err := a.SetLimit(ctx, 5); err != nil {
			w.T.Fatal(err)
		}
		if n, err := a.Limit(ctx); err != nil || n != 7 {
			w.T.Errorf("limit %d, %v, want the later one", n, err)
		}
		// After the end of the session the outcome cannot be determined.
		after.Arm(1, sets, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			return backend.Uncertain(backend.ErrSessionLost)
		})
		coordtest.WantErr(w.T, a.SetLimit(ctx, 3), coord.ErrUncertain)
	})
}
