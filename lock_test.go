package coord_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

// open opens a client that the test closes.
func open(t *testing.T, b backend.Backend, o *coord.Options) *coord.Client {
	t.Helper()
	c, err := coord.Open(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func mustLock(t *testing.T, m coord.Locker) *coord.Hold {
	t.Helper()
	h, err := m.Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustRelease(t *testing.T, h *coord.Hold) {
	t.Helper()
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
}

// mayBeReleased releases a hold although the reply may be lost.
func mayBeReleased(t *testing.T, h *coord.Hold) {
	t.Helper()
	if err := h.Release(); err != nil && (!errors.Is(err, coord.ErrUncertain) || errors.Is(err, coord.ErrLost)) {
		t.Fatal(err)
	}
}

// children lists the names under path, from a session of its own.
func children(t *testing.T, b backend.Backend, path string) []string {
	t.Helper()
	s, err := b.Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Sync(context.Background(), path); err != nil {
		t.Fatal(err)
	}
	names, _, err := s.Children(context.Background(), path, nil)
	if err != nil && !errors.Is(err, coord.ErrNotFound) {
		t.Fatal(err)
	}
	return names
}

func TestALockIsHeldByOneAndTokensGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		const clients, callers, rounds = 4, 3, 20
		var mu sync.Mutex
		holders, token, grants := 0, int64(0), 0
		var wg sync.WaitGroup
		for i := range clients {
			c := open(t, st.Link(fmt.Sprint(i)), nil)
			for range callers {
				wg.Go(func() {
					m := coord.NewMutex(c, "/locks/a", nil)
					for range rounds {
						h := mustLock(t, m)
						mu.Lock()
						holders++
						grants++
						if holders != 1 {
							t.Errorf("%d holders", holders)
						}
						if h.Token() <= token {
							t.Errorf("token %d after %d", h.Token(), token)
						}
						token = h.Token()
						mu.Unlock()
						time.Sleep(time.Millisecond)
						mu.Lock()
						holders--
						mu.Unlock()
						mustRelease(t, h)
					}
				})
			}
		}
		wg.Wait()
		if grants != clients*callers*rounds {
			t.Errorf("%d grants", grants)
		}
		if left := children(t, st, "/locks/a"); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

func TestWaitersAreGrantedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		first := mustLock(t, coord.NewMutex(open(t, st, nil), "/l", nil))
		var mu sync.Mutex
		var got []int
		var wg sync.WaitGroup
		for i := range 10 {
			m := coord.NewMutex(open(t, st, nil), "/l", nil)
			wg.Go(func() {
				h := mustLock(t, m)
				mu.Lock()
				got = append(got, i)
				mu.Unlock()
				mustRelease(t, h)
			})
			synctest.Wait() // it stands in line before the next comes
		}
		mustRelease(t, first)
		wg.Wait()
		if want := "[0 1 2 3 4 5 6 7 8 9]"; fmt.Sprint(got) != want {
			t.Errorf("order %v, want %v", got, want)
		}
	})
}

func TestTryLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		a := coord.NewMutex(open(t, st, nil), "/l", nil)
		b := coord.NewMutex(open(t, st, nil), "/l", nil)
		h, err := a.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for name, m := range map[string]*coord.Mutex{"the same client": a, "another client": b} {
			if _, err := m.TryLock(t.Context()); !errors.Is(err, coord.ErrLocked) {
				t.Errorf("%s: %v, want ErrLocked", name, err)
			}
		}
		if n := len(children(t, st, "/l")); n != 1 {
			t.Errorf("%d nodes, want the holder's", n)
		}
		mustRelease(t, h)
		h, err = b.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mustRelease(t, h)
	})
}

func TestTryLockReturnsWhenItsContextEnds(t *testing.T) {
	onEach(t, func(w *world) {
		var after nth
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{After: after.after}), "/l", nil)
		// A try that has won makes its node at once the next time.
		h, err := m.TryLock(context.Background())
		if err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, h)
		holder := mustLock(w.t, coord.NewMutex(w.open("holder", nil), "/l", nil))
		after.arm(1, creates, func(_ context.Context, _ backendtest.Call, err error) error {
			w.Link("a").Partition()
			return err
		})
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err = m.TryLock(ctx)
		wantErr(w.t, err, context.DeadlineExceeded)
		if d := time.Since(start); d > time.Second {
			w.t.Errorf("took %v", d)
		}
		w.Link("a").Heal()
		w.eventually("only the holder is left", func() bool { return len(w.children("/l")) == 1 })
		mustRelease(w.t, holder)
	})
}

func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		link := st.Link("a")
		m := coord.NewMutex(open(t, link, nil), "/l", nil)
		failed := errors.New("failed")
		if err := m.Do(t.Context(), func(context.Context, *coord.Hold) error { return failed }); err != failed && !errors.Is(err, failed) {
			t.Errorf("got %v, want what the function returned", err)
		}
		err := m.Do(t.Context(), func(ctx context.Context, h *coord.Hold) error {
			link.Expire(h.Session())
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, coord.ErrLost) || !errors.Is(cause, coord.ErrSessionLost) {
				t.Errorf("cause %v", cause)
			}
			return nil
		})
		if !errors.Is(err, coord.ErrLost) {
			t.Errorf("got %v, want the loss", err)
		}
		func() {
			defer func() { recover() }()
			m.Do(t.Context(), func(context.Context, *coord.Hold) error { panic("under the lock") })
		}()
		synctest.Wait()
		if left := children(t, st, "/l"); len(left) != 0 {
			t.Errorf("left behind by a panic: %v", left)
		}
	})
}

func TestAHoldEndsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		link := st.Link("a")
		c := open(t, link, nil)
		m := coord.NewMutex(c, "/l", nil)

		h := mustLock(t, m)
		if h.Err() != nil {
			t.Fatal(h.Err())
		}
		ctx := h.Context(t.Context())
		mustRelease(t, h)
		mustRelease(t, h) // idempotent
		<-h.Done()
		if !errors.Is(h.Err(), coord.ErrReleased) || errors.Is(h.Err(), coord.ErrLost) {
			t.Errorf("released: %v", h.Err())
		}
		if !errors.Is(context.Cause(ctx), coord.ErrReleased) {
			t.Errorf("context: %v", context.Cause(ctx))
		}
		if c := h.Context(t.Context()); c.Err() == nil {
			t.Error("a context of an ended hold lives")
		}

		h = mustLock(t, m)
		link.Expire(h.Session())
		<-h.Done()
		if err := h.Release(); !errors.Is(err, coord.ErrLost) || !errors.Is(err, coord.ErrSessionLost) {
			t.Errorf("released after a loss: %v", err)
		}
	})
}

func TestContendersAreListedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		var first *coord.Mutex
		for i := range 3 {
			m := coord.NewMutex(open(t, st, nil), "/l", &coord.MutexOptions{Data: fmt.Append(nil, "node-", i)})
			if first == nil {
				first = m
			}
			wg.Go(func() {
				if h, err := m.Lock(ctx); err == nil {
					<-ctx.Done()
					h.Release()
				}
			})
			synctest.Wait()
		}
		list, err := first.Contenders(t.Context())
		if err != nil || len(list) != 3 {
			t.Fatal(list, err)
		}
		for i, c := range list {
			if string(c.Data) != fmt.Sprint("node-", i) || c.Session == 0 || c.Since.IsZero() || i > 0 && c.Token <= list[i-1].Token {
				t.Errorf("contender %d: %+v", i, c)
			}
		}
		cancel()
		wg.Wait()
		synctest.Wait()
		if list, err := first.Contenders(t.Context()); err != nil || len(list) != 0 {
			t.Error(list, err)
		}
	})
}
