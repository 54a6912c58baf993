package coord_test

import (
	"context"
	"errors"
	"fmt"
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

// semaphore returns the semaphore at /s as a client of its own sees it.
func (w *world) semaphore(name string, limit int) *coord.Semaphore {
	w.t.Helper()
	return coord.NewSemaphore(w.open(name, nil), "/s", limit, nil)
}

func acquire(t *testing.T, s *coord.Semaphore, n int) *coord.Hold {
	t.Helper()
	h, err := s.Acquire(context.Background(), n)
	return must(t, h, err)
}

// awaiting starts an Acquire, and returns when it waits.
func (w *world) awaiting(s *coord.Semaphore, n int) *locking {
	w.t.Helper()
	return w.side(func(ctx context.Context) (*coord.Hold, error) { return s.Acquire(ctx, n) })
}

// failed waits for the end of an Acquire that is to fail.
func (l *locking) failed() error {
	l.w.t.Helper()
	select {
	case <-l.done:
	case <-time.After(30 * time.Second):
		l.w.t.Fatal("the call never returned")
	}
	if l.err == nil {
		l.w.t.Fatal("granted")
	}
	return l.err
}

func requests(w *world) int { return len(w.children("/s/requests")) }

func TestPermitsAreGrantedInOrder(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h1, h2 := acquire(w.t, a, 1), acquire(w.t, b, 1)
		if h1.Token() != 0 || h2.Token() != 0 {
			w.t.Errorf("tokens %d and %d of holds that several have", h1.Token(), h2.Token())
		}
		large := w.awaiting(a, 3)
		small := w.awaiting(w.semaphore("c", 3), 1)
		last := w.awaiting(b, 2)
		w.settle()
		small.pending() // it would fit, and does not pass the large one
		mustRelease(w.t, h1)
		w.settle()
		large.pending()
		small.pending()
		mustRelease(w.t, h2)
		h := large.hold()
		small.pending()
		last.pending()
		mustRelease(w.t, h)
		mustRelease(w.t, small.hold()) // both fit, and go
		mustRelease(w.t, last.hold())
		w.empty("/s/requests")
	})
}

// Curator's leases are taken one by one: two takers of two of two had one each
// for ever.
func TestTwoTakersOfAllPermitsFinishInTurn(t *testing.T) {
	onEach(t, func(w *world) {
		var wg sync.WaitGroup
		var holders atomic.Int32
		for _, name := range []string{"a", "b"} {
			s := w.semaphore(name, 2)
			wg.Go(func() {
				for range 10 {
					h, err := s.Acquire(context.Background(), 2)
					if err != nil {
						w.t.Error(err)
						return
					}
					if n := holders.Add(1); n != 1 {
						w.t.Errorf("%d have both permits", n)
					}
					holders.Add(-1)
					if err := h.Release(); err != nil {
						w.t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		w.empty("/s/requests")
	})
}

func TestTryAcquire(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h, err := a.TryAcquire(ctx, 2)
		h = must(w.t, h, err)
		_, err = b.TryAcquire(ctx, 2)
		wantErr(w.t, err, coord.ErrLocked)
		if n := requests(w); n != 1 {
			w.t.Errorf("%d requests after a try that failed", n)
		}
		h2, err := a.TryAcquire(ctx, 1) // beside the other of the same client
		mustRelease(w.t, must(w.t, h2, err))
		waiter := w.awaiting(b, 2)
		_, err = a.TryAcquire(ctx, 1)
		wantErr(w.t, err, coord.ErrLocked) // it does not pass a waiter
		mustRelease(w.t, h)
		mustRelease(w.t, waiter.hold())
		w.empty("/s/requests")
	})
}

func TestForeignNodesOfASemaphoreAreIgnored(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a := w.semaphore("a", 2)
		mustRelease(w.t, acquire(w.t, a, 1))
		s := w.session("x")
		for _, name := range []string{
			"README", "permit-", "permit-1", "permit-1-", "permit-1-1", "permit--1-0000000001", "permit-0-0000000001",
			"permit-01-0000000001", "permit-+1-0000000001", "permit-x-0000000001", "permit-1-000000000x",
			"permit-99999999999-0000000001", "permit-1-99999999999", "_c_" + someGUID + "-lock-0000000000",
			"_c_" + someGUID + "-lease-0000000000", "permit-1-0000000000-x",
		} {
			if _, err := s.Commit(ctx, backend.Create(w.path("/s/requests/"+name), nil, backend.Persistent)); err != nil {
				w.t.Fatal(err)
			}
		}
		h := acquire(w.t, a, 2)
		waiter := w.awaiting(w.semaphore("b", 2), 2)
		list, err := a.Contenders(ctx)
		if err != nil || len(list) != 2 || list[0].Path != h.Path() || !list[0].Granted || list[1].Granted {
			w.t.Errorf("contenders %+v, %v", list, err)
		}
		mustRelease(w.t, h)
		mustRelease(w.t, waiter.hold())
		// A request of another make counts, whatever its name begins with.
		res, err := s.Commit(ctx, backend.Create(w.path("/s/requests/zz-permit-2-"), nil, backend.EphemeralSequential))
		if err != nil {
			w.t.Fatal(err)
		}
		_, err = a.TryAcquire(ctx, 1)
		wantErr(w.t, err, coord.ErrLocked)
		if _, err := s.Commit(ctx, backend.Delete(res[0].Path, backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, acquire(w.t, a, 2))
	})
}

func TestContendersOfASemaphore(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		semaphore := func(name string) *coord.Semaphore {
			return coord.NewSemaphore(w.open(name, nil), "/s", 4, &coord.SemaphoreOptions{Data: []byte(name)})
		}
		a := semaphore("a")
		if list, err := a.Contenders(ctx); err != nil || len(list) != 0 {
			w.t.Error(list, err)
		}
		h := acquire(w.t, a, 3)
		second, third := w.awaiting(semaphore("b"), 2), w.awaiting(semaphore("c"), 1)
		check := func(want string) {
			w.t.Helper()
			var got string
			list, err := a.Contenders(ctx)
			for _, c := range list {
				got += fmt.Sprintf("%s %d %v, ", c.Data, c.Weight, c.Granted)
				if c.Session == 0 || c.Since.IsZero() {
					w.t.Errorf("%+v", c)
				}
			}
			if err != nil || got != want {
				w.t.Errorf("contenders %q, %v, want %q", got, err, want)
			}
		}
		check("a 3 true, b 2 false, c 1 false, ")
		mustRelease(w.t, h)
		h2, h3 := second.hold(), third.hold()
		check("b 2 true, c 1 true, ") // the marks have kept the data
		mustRelease(w.t, h2)
		mustRelease(w.t, h3)
	})
}

func TestBadInputOfASemaphoreIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c := open(t, st, nil)
		for name, test := range map[string]struct {
			path  string
			limit int
			n     int
			want  error
		}{
			"no permit":          {"/s", 3, 0, coord.ErrInvalid},
			"less than none":     {"/s", 3, -1, coord.ErrInvalid},
			"more than there is": {"/s", 3, 4, coord.ErrLimit},
			"no limit":           {"/s", 0, 1, coord.ErrInvalid},
			"a negative limit":   {"/s", -3, 1, coord.ErrInvalid},
			"a limit too high":   {"/s", 1 << 31, 1, coord.ErrInvalid},
			"a bad path":         {"s", 3, 1, coord.ErrBadPath},
			"the root":           {"/", 3, 1, coord.ErrBadPath},
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
		wantErr(t, err, coord.ErrLimit)
		s := coord.NewSemaphore(c, "/s", 3, nil)
		for _, n := range []int{0, -1, 1 << 31} {
			wantErr(t, s.SetLimit(t.Context(), n), coord.ErrInvalid)
		}
		bad := coord.NewSemaphore(c, "/a//b", 3, nil)
		wantErr(t, bad.SetLimit(t.Context(), 1), coord.ErrBadPath)
		_, err = bad.Limit(t.Context())
		wantErr(t, err, coord.ErrBadPath)
		_, err = bad.Contenders(t.Context())
		wantErr(t, err, coord.ErrBadPath)
		_, err = coord.NewSemaphore(c, "/s", 3, &coord.SemaphoreOptions{Data: make([]byte, backend.MaxRequest)}).Acquire(t.Context(), 1)
		wantErr(t, err, coord.ErrTooLarge)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = s.Acquire(ctx, 1)
		wantErr(t, err, context.Canceled)
		if left := children(t, st, "/s/requests"); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		c.Close()
		_, err = s.Acquire(t.Context(), 1)
		wantErr(t, err, coord.ErrClosed)
	})
}

func TestTheRequestsDirectoryIsReplacedBeforeItsNumbersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		s := coord.NewSemaphore(open(t, st, nil), "/s", 2, nil)
		mustRelease(t, acquire(t, s, 1))
		// The last holder takes an old directory along.
		for _, next := range []int32{2_000_000_000, 2_100_000_000, 1<<31 - 1, -1 << 31, -5} {
			if err := st.SetSequence("/s/requests", next); err != nil {
				t.Fatal(err)
			}
			mustRelease(t, acquire(t, s, 1))
			h := acquire(t, s, 1)
			if !strings.HasSuffix(h.Path(), "-permit-1-0000000000") && !strings.HasSuffix(h.Path(), "-permit-1-0000000001") {
				t.Errorf("after number %d: %s, want one of a new directory", next, h.Path())
			}
			mustRelease(t, h)
		}
		// While it is in use nobody comes in.
		h := acquire(t, s, 1)
		if err := st.SetSequence("/s/requests", 2_100_000_000); err != nil {
			t.Fatal(err)
		}
		_, err := s.Acquire(t.Context(), 1)
		wantErr(t, err, coord.ErrLimit)
		mustRelease(t, h)
		mustRelease(t, acquire(t, s, 2))
		mustRelease(t, acquire(t, s, 2))
	})
}

// However long the line is, a release wakes the first waiter, and his mark the
// next.
func TestAReleaseOfPermitsWakesNoHerd(t *testing.T) {
	for _, n := range []int{5, 50} {
		t.Run(fmt.Sprint(n, " waiters"), func(t *testing.T) {
			onMemory(t, func(w *world) {
				const limit = 3
				first := w.semaphore("holder", limit)
				var holds []*coord.Hold
				for range limit {
					holds = append(holds, acquire(w.t, first, 1))
				}
				calls := make([]atomic.Int32, n)
				waiters := make([]*locking, n)
				for i := range n {
					c := w.open(fmt.Sprint(i), &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
						calls[i].Add(1)
						return nil
					}})
					waiters[i] = w.awaiting(coord.NewSemaphore(c, "/s", limit, nil), 1)
				}
				most := 0
				for i := range n {
					w.settle()
					time.Sleep(time.Second) // of fake time, for what holds do later
					w.settle()
					before := make([]int32, n)
					for j := range n {
						before[j] = calls[j].Load()
					}
					mustRelease(w.t, holds[i])
					w.settle()
					woken := 0
					for j := i; j < n; j++ {
						if calls[j].Load() != before[j] {
							woken++
						}
					}
					most = max(most, woken)
					holds = append(holds, waiters[i].hold())
				}
				if most != 2 {
					w.t.Errorf("a release woke %d clients, want 2: the next holder, and the one behind him", most)
				}
				w.t.Logf("figure: %d waiters: a release of a permit wakes %d", n, most)
				for _, h := range holds[n:] {
					mustRelease(w.t, h)
				}
			})
		})
	}
}

// One permit for who is alone costs one request, as a mutex does, and a release
// one. Several of them cost one more, and so do others who have some.
func TestWhatPermitsCost(t *testing.T) {
	onMemory(t, func(w *world) {
		var calls atomic.Int32
		c := w.open("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
			calls.Add(1)
			return nil
		}})
		s := coord.NewSemaphore(c, "/s", 3, nil)
		mustRelease(w.t, acquire(w.t, s, 1))
		cost := func(permits int, want int32) {
			w.t.Helper()
			calls.Store(0)
			h := acquire(w.t, s, permits)
			mustRelease(w.t, h)
			w.settle()
			w.t.Logf("figure: acquisition and release of %d permits: %d requests", permits, calls.Load())
			if n := calls.Load(); n != want {
				w.t.Errorf("%d requests for an acquisition and a release, want %d", n, want)
			}
		}
		cost(1, 2)
		cost(2, 3)
		acquire(w.t, coord.NewSemaphore(w.open("b", nil), "/s", 3, nil), 1)
		cost(1, 4)
	})
}

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
