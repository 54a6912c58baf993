package coord_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// keeps are the options of a lock that no test waits out.
func keeps(data string) *coord.MutexOptions {
	return &coord.MutexOptions{Keep: time.Hour, Data: []byte(data)}
}

// idle takes and releases a lock, and returns its token. The client keeps the lock.
func idle(w *world, m *coord.Mutex) int64 {
	w.T.Helper()
	h := coordtest.MustLock(w.T, m)
	coordtest.MustRelease(w.T, h)
	w.Settle()
	if n := len(w.Children("/l")); n != 1 {
		w.T.Fatalf("%d nodes after the release, want that of the client that keeps the lock", n)
	}
	return h.Token()
}

func TestAKeptLockIsTakenAgainWithoutARequest(t *testing.T) {
	onEach(t, func(w *world) {
		var calls atomic.Int64
		c := w.Counting("a", &calls)
		m := coord.NewMutex(c, "/l", keeps(""))
		coordtest.Prime(w.T, coord.NewMutex(c, "/l", nil))
		calls.Store(0)
		var token int64
		for i := range 1000 {
			lock := m.Lock
			if i%2 > 0 {
				lock = m.TryLock
			}
			h, err := lock(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			if token == 0 {
				token = h.Token()
			}
			if h.Token() != token {
				w.T.Fatalf("token %d after %d", h.Token(), token)
			}
			coordtest.MustRelease(w.T, h)
		}
		w.Settle()
		w.T.Logf("figure: 1,000 cycles of a kept lock: %d requests", calls.Load())
		if n := calls.Load(); n > 3 {
			w.T.Errorf("%d requests for 1,000 cycles, want 3 at most", n)
		}
	})
}

func TestCallersOfAKeptLockTakeTurnsInMemory(t *testing.T) {
	onEach(t, func(w *world) {
		var calls atomic.Int64
		c := w.Counting("a", &calls)
		m := coord.NewMutex(c, "/l", keeps("x"))
		coordtest.Prime(w.T, coord.NewMutex(c, "/l", nil))
		calls.Store(0)
		var wg sync.WaitGroup
		var held atomic.Int32
		for range 16 {
			wg.Go(func() {
				for range 20 {
					h := coordtest.MustLock(w.T, m)
					if n := held.Add(1); n != 1 {
						w.T.Errorf("%d holders", n)
					}
					held.Add(-1)
					coordtest.MustRelease(w.T, h)
				}
			})
		}
		wg.Wait()
		w.Settle()
		if n := calls.Load(); n > 3 {
			w.T.Errorf("%d requests for 320 cycles, want 3 at most", n)
		}
	})
}

// Without Keep nothing is kept, and each hold has a token of its own.
func TestALockWithoutKeepIsNotKept(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		m := coord.NewMutex(c, "/l", nil)
		coordtest.Prime(w.T, m)
		h := coordtest.MustLock(w.T, m)
		coordtest.MustRelease(w.T, h)
		if n := len(w.Children("/l")); n != 0 {
			w.T.Errorf("%d nodes", n)
		}
		again := coordtest.MustLock(w.T, m)
		if again.Token() <= h.Token() {
			w.T.Errorf("token %d after %d", again.Token(), h.Token())
		}
		coordtest.MustRelease(w.T, again)
		if _, err := coord.NewMutex(c, "/l", &coord.MutexOptions{Keep: -1}).Lock(context.Background()); !errors.Is(err, coord.ErrInvalid) {
			w.T.Errorf("a negative Keep: %v", err)
		}
	})
}

func TestAnotherClientEndsAnIdleStay(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := coord.NewMutex(w.Open("a", nil), "/l", keeps("")), coord.NewMutex(w.Open("b", nil), "/l", nil)
		token := idle(w, a)
		h := coordtest.MustLock(w.T, b)
		if h.Token() <= token {
			w.T.Errorf("token %d after %d", h.Token(), token)
		}
		waits := w.Waiting(context.Background(), a)
		waits.Pending()
		coordtest.MustRelease(w.T, h)
		h = waits.Hold()
		coordtest.MustRelease(w.T, h)
		w.Empty("/l") // it was asked a moment ago, and keeps nothing
	})
}

// The table of a newcomer's wait: links with a round trip of 10 ms each, in fake time.
func TestWhatANewcomerWaitsForAKeptLock(t *testing.T) {
	const trip = 10 * time.Millisecond
	wait := func(t *testing.T, w *world, setUp func(a *coord.Client)) time.Duration {
		ca, cb := w.Open("a", nil), w.Open("b", nil)
		coordtest.Prime(t, coord.NewMutex(cb, "/l", nil))
		coordtest.Prime(t, coord.NewMutex(ca, "/l", nil))
		for _, name := range []string{"a", "b"} {
			w.Link(name).(*memory.Link).SetLatency(trip / 2)
		}
		setUp(ca)
		began := time.Now()
		h := coordtest.MustLock(t, coord.NewMutex(cb, "/l", nil))
		took := time.Since(began)
		coordtest.MustRelease(t, h)
		return took
	}
	cycle := func(t *testing.T, c *coord.Client) {
		coordtest.MustRelease(t, coordtest.MustLock(t, coord.NewMutex(c, "/l", keeps(""))))
		time.Sleep(10 * trip)
	}
	for _, v := range []struct {
		name  string
		setUp func(t *testing.T, w *world, a *coord.Client)
		most  time.Duration
	}{
		{"free", func(*testing.T, *world, *coord.Client) {}, trip},
		{"idle", func(t *testing.T, w *world, a *coord.Client) { cycle(t, a) }, 2 * trip},
		{"held for 100 ms more", func(t *testing.T, w *world, a *coord.Client) {
			h := coordtest.MustLock(t, coord.NewMutex(a, "/l", keeps("")))
			time.AfterFunc(100*time.Millisecond, func() { h.Release() })
		}, 100*time.Millisecond + trip},
		{"busy", func(t *testing.T, w *world, a *coord.Client) {
			m := coord.NewMutex(a, "/l", keeps(""))
			coordtest.MustRelease(t, coordtest.MustLock(t, m))
			go func() {
				for range 1000 {
					h, err := m.Lock(context.Background())
					if err != nil {
						return
					}
					time.Sleep(time.Millisecond)
					h.Release()
				}
			}()
			time.Sleep(10 * trip)
		}, 3 * trip},
		{"cut off", func(t *testing.T, w *world, a *coord.Client) {
			cycle(t, a)
			w.Link("a").Partition()
		}, coordtest.WorldTimeout + 2*trip},
		{"closed", func(t *testing.T, w *world, a *coord.Client) { cycle(t, a); a.Close() }, trip},
	} {
		t.Run(v.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				took := wait(t, w, func(a *coord.Client) { v.setUp(t, w, a) })
				w.T.Logf("figure: a newcomer waits %v (%v round trips) for a kept lock that is %s", took, float64(took)/float64(trip), v.name)
				if took > v.most {
					w.T.Errorf("%v, want %v at most", took, v.most)
				}
			})
		})
	}
}

// A newcomer that came before the watch was armed is not missed.
func TestAContenderThatCameBeforeTheWatchEndsTheStay(t *testing.T) {
	onEach(t, func(w *world) {
		var before coordtest.Nth
		a := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/l", keeps(""))
		b := coord.NewMutex(w.Open("b", nil), "/l", nil)
		armed := make(chan struct{})
		before.Arm(1, isArm, func(context.Context, backendtest.Call, error) error { <-armed; return nil })
		h := coordtest.MustLock(w.T, a)
		coordtest.MustRelease(w.T, h)
		waits := w.Waiting(context.Background(), b)
		close(armed)
		coordtest.MustRelease(w.T, waits.Hold())
	})
}

func isArm(c backendtest.Call) bool { return c.Op == "arm" }

// The TryLock of another client fails, and finds the lock free when the client has heard of it.
func TestATryOfAnotherClientEndsAnIdleStay(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := coord.NewMutex(w.Open("a", nil), "/l", keeps("")), coord.NewMutex(w.Open("b", nil), "/l", nil)
		// A try that has succeeded makes the next one create its node without a look.
		h, err := b.TryLock(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, h)
		idle(w, a)
		if h, err = b.TryLock(context.Background()); err == nil {
			coordtest.MustRelease(w.T, h) // the client was asked by the node, and gave way before the listing
			return
		}
		coordtest.WantErr(w.T, err, coord.ErrLocked)
		w.Empty("/l")
		if h, err = b.TryLock(context.Background()); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, h)
	})
}

// The same for a client that has never tried before, and so looks before it creates a node.
func TestAFirstTryOfAnotherClientEndsAnIdleStay(t *testing.T) {
	onEach(t, func(w *world) {
		a := coord.NewMutex(w.Open("a", nil), "/l", &coord.MutexOptions{Keep: time.Hour})
		b := coord.NewMutex(w.Open("b", nil), "/l", nil)
		idle(w, a)
		h, err := b.TryLock(context.Background())
		if err == nil {
			coordtest.MustRelease(w.T, h) // the client gave way before the listing
		} else {
			coordtest.WantErr(w.T, err, coord.ErrLocked)
		}
		w.Empty("/l")
		if h, err = b.TryLock(context.Background()); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, h)
	})
}

// While the lock is held, a short Keep costs nothing.
func TestAShortKeepDoesNotSpin(t *testing.T) {
	onMemory(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", &coord.MutexOptions{Keep: time.Nanosecond})
		h := coordtest.MustLock(w.T, m)
		time.Sleep(time.Hour) // some 10^12 turns of a loop
		coordtest.MustRelease(w.T, h)
		w.Empty("/l")
	})
}

// An ask while the lock is held makes the release one without Keep, and the local waiter goes to
// the tail.
func TestAfterAnAskLocalWaitersQueueLikeOthers(t *testing.T) {
	onEach(t, func(w *world) {
		var arms coordtest.Nth
		asked := make(chan struct{})
		arms.Arm(1, isArm, func(_ context.Context, _ backendtest.Call, err error) error { close(asked); return err })
		c := w.Open("a", &backendtest.Hooks{After: arms.After})
		m := coord.NewMutex(c, "/l", keeps(""))
		b := coord.NewMutex(w.Open("b", nil), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		<-asked // the watches are armed while it holds
		other := w.Waiting(context.Background(), b)
		s, err := c.Session(context.Background())
		w.must(err)
		w.must(s.Sync(context.Background(), w.Path("/l"))) // the event of the ask has come before the reply
		local := w.Waiting(context.Background(), m)
		coordtest.MustRelease(w.T, h)
		second := other.Hold()
		local.Pending()
		if second.Token() <= h.Token() {
			w.T.Errorf("token %d after %d", second.Token(), h.Token())
		}
		coordtest.MustRelease(w.T, second)
		third := local.Hold()
		if third.Token() <= h.Token() {
			w.T.Errorf("token %d after %d", third.Token(), h.Token())
		}
		coordtest.MustRelease(w.T, third)
		w.Empty("/l")
	})
}

func TestARevocationEndsAStay(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := coord.NewMutex(w.Open("a", nil), "/l", keeps("")), coord.NewMutex(w.Open("b", nil), "/l", nil)
		idle(w, a)
		if err := b.Revoke(context.Background(), &coord.RevokeOptions{By: "b"}); err != nil {
			w.T.Fatal(err)
		}
		w.Empty("/l")
	})
}

// A hold that is not the first of its stay learns of a request to release, and of the deletion of
// its node.
func TestALaterHoldOfAStayIsWatched(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := coord.NewMutex(w.Open("a", nil), "/l", keeps("")), coord.NewMutex(w.Open("b", nil), "/l", nil)
		token := idle(w, a)
		h := coordtest.MustLock(w.T, a)
		if h.Token() != token {
			w.T.Fatalf("token %d, want that of the stay, %d", h.Token(), token)
		}
		done := revoking(b.Revoke, &coord.RevokeOptions{By: "b", Reason: "maintenance"})
		<-h.Revoked()
		if r, _ := h.Revocation(); r.Reason != "maintenance" {
			w.T.Errorf("%+v", r)
		}
		coordtest.MustRelease(w.T, h)
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		w.Empty("/l")
	})
	onEachLater(t, "deleted", func(w *world) {
		a := coord.NewMutex(w.Open("a", nil), "/l", keeps(""))
		idle(w, a)
		h := coordtest.MustLock(w.T, a)
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-h.Done()
		coordtest.WantErr(w.T, h.Err(), coord.ErrLost, coord.ErrDeleted)
		coordtest.WantErr(w.T, h.Release(), coord.ErrDeleted)
		next := coordtest.MustLock(w.T, a)
		if next.Token() <= h.Token() {
			w.T.Errorf("token %d after %d", next.Token(), h.Token())
		}
		coordtest.MustRelease(w.T, next)
	})
}

// onEachLater is onEach in a subtest, for a test with several parts.
func onEachLater(t *testing.T, name string, f func(w *world)) {
	t.Run(name, func(t *testing.T) { onEach(t, f) })
}

func TestAnIdleStayEndsWithItsNodeAndItsSession(t *testing.T) {
	t.Parallel()
	onEachLater(t, "the node", func(w *world) {
		a := coord.NewMutex(w.Open("a", nil), "/l", keeps(""))
		token := idle(w, a)
		name := w.Children("/l")[0]
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(w.Path("/l/"+name), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		w.Settle()
		var h *coord.Hold
		w.Eventually("the client has learned of the deletion", func() bool {
			h = coordtest.MustLock(w.T, a)
			if h.Token() != token {
				return true
			}
			h.Release() // before the event
			return false
		})
		coordtest.MustRelease(w.T, h)
	})
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		a := coord.NewMutex(c, "/l", keeps(""))
		token := idle(w, a)
		s, err := c.Session(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		waits := w.Lock(context.Background(), coord.NewMutex(w.Open("b", nil), "/l", nil))
		w.Link("a").(*memory.Link).Expire(s.ID())
		b := waits.Hold()
		again := w.Waiting(context.Background(), a)
		again.Pending()
		coordtest.MustRelease(w.T, b)
		h := again.Hold()
		if h.Token() <= token || h.Token() <= b.Token() {
			w.T.Errorf("token %d after %d and %d", h.Token(), token, b.Token())
		}
		coordtest.MustRelease(w.T, h)
	})
}

// A client that is cut off learns at its next Lock that its lease has passed.
func TestAKeptLockOfALostSessionIsNotGranted(t *testing.T) {
	onMemory(t, func(w *world) {
		a, b := coord.NewMutex(w.Open("a", nil), "/l", keeps("")), coord.NewMutex(w.Open("b", nil), "/l", nil)
		token := idle(w, a)
		w.Link("a").Partition()
		began := time.Now()
		h := coordtest.MustLock(w.T, b)
		if took := time.Since(began); took > w.Timeout+time.Second {
			w.T.Errorf("the next client waited for %v, with a timeout of %v", took, w.Timeout)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if got, err := a.Lock(ctx); err == nil {
			w.T.Fatalf("granted with token %d beside %d", got.Token(), h.Token())
		}
		w.Link("a").Heal()
		coordtest.MustRelease(w.T, h)
		h = coordtest.MustLock(w.T, a)
		if h.Token() <= token {
			w.T.Errorf("token %d after %d", h.Token(), token)
		}
		coordtest.MustRelease(w.T, h)
	})
}

// A contender that comes while the client is cut off for a moment is not missed.
func TestAReconnectionEndsAnIdleStay(t *testing.T) {
	onMemory(t, func(w *world) {
		a, b := coord.NewMutex(w.Open("a", nil), "/l", keeps("")), coord.NewMutex(w.Open("b", nil), "/l", nil)
		idle(w, a)
		w.Link("a").Partition()
		waits := w.Waiting(context.Background(), b)
		w.Settle()
		waits.Pending()
		w.Link("a").Heal()
		w.Settle()
		select {
		case <-waits.Done:
		default:
			w.T.Error("the contender still waits after the reconnection")
		}
		coordtest.MustRelease(w.T, waits.Hold())
	})
}

// Without a watch nobody could ask, so the lock is not kept.
func TestALockThatCannotBeWatchedIsNotKept(t *testing.T) {
	for _, denied := range []string{"arm", "children"} {
		t.Run(denied, func(t *testing.T) {
			refuses := &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
				if c.Op == denied && strings.HasSuffix(c.Path, "/l") {
					return &backend.Error{Op: c.Op, Path: c.Path, Err: backend.ErrDenied}
				}
				return err
			}}
			onEach(t, func(w *world) {
				m := coord.NewMutex(w.Open("a", refuses), "/l", keeps(""))
				coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
				w.Empty("/l")
			})
			onMemory(t, func(w *world) {
				m := coord.NewMutex(w.Open("a", refuses), "/l", keeps(""))
				h := coordtest.MustLock(w.T, m)
				time.Sleep(100 * time.Millisecond) // the refusal comes while the lock is held
				coordtest.MustRelease(w.T, h)
				if n := len(w.Children("/l")); n != 0 {
					w.T.Errorf("%d nodes", n)
				}
			})
		})
	}
}

// A Lock that comes while the client deletes the node takes another one.
func TestALockDoesNotTakeANodeThatIsGivenUp(t *testing.T) {
	onEach(t, func(w *world) {
		var before coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/l", &coord.MutexOptions{Keep: 300 * time.Millisecond})
		h := coordtest.MustLock(w.T, m)
		deletes, goOn := make(chan struct{}), make(chan struct{})
		before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error { close(deletes); <-goOn; return nil })
		coordtest.MustRelease(w.T, h)
		<-deletes
		waits := w.Waiting(context.Background(), m)
		waits.Pending()
		close(goOn)
		next := waits.Hold()
		if next.Token() <= h.Token() {
			w.T.Errorf("token %d after %d", next.Token(), h.Token())
		}
		coordtest.MustRelease(w.T, next)
	})
}

func TestAKeptLockIsFreeWhenKeepHasPassed(t *testing.T) {
	onEach(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", &coord.MutexOptions{Keep: 300 * time.Millisecond})
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
		began := time.Now()
		w.Empty("/l")
		if took := time.Since(began); w.Fake && (took < 290*time.Millisecond || took > 310*time.Millisecond) {
			w.T.Errorf("kept for %v, want 300 ms", took)
		}
		if !w.Fake {
			return
		}
		// The time begins anew with each release.
		for range 10 {
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
			time.Sleep(200 * time.Millisecond)
		}
		if n := len(w.Children("/l")); n != 1 {
			w.T.Errorf("%d nodes", n)
		}
		time.Sleep(101 * time.Millisecond)
		if n := len(w.Children("/l")); n != 0 {
			w.T.Errorf("%d nodes", n)
		}
	})
}

func TestCloseDoesNotWaitForKeep(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.Open("a", nil)
		idle(w, coord.NewMutex(c, "/l", keeps("")))
		began := time.Now()
		c.Close()
		if took := time.Since(began); took > time.Minute || w.Fake && took > 5*time.Second { // it is kept for an hour
			w.T.Errorf("Close took %v", took)
		}
		w.Empty("/l")
	})
}

// Periodic tries of another client meet an idle stay once.
func TestAfterAnAskTheClientDoesNotKeep(t *testing.T) {
	onMemory(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", &coord.MutexOptions{Keep: 5 * time.Second})
		b := coord.NewMutex(w.Open("b", nil), "/l", nil)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
		w.Settle()
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, b))
		for range 5 {
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
			if n := len(w.Children("/l")); n != 0 {
				w.T.Error("kept a short time after an ask")
			}
			time.Sleep(980 * time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
		idle(w, m)
	})
}

// A lock that was taken behind other contenders is not kept, so clients in turns lose nothing.
func TestALockThatWasNotAloneIsNotKept(t *testing.T) {
	onEach(t, func(w *world) {
		a, b := coord.NewMutex(w.Open("a", nil), "/l", nil), coord.NewMutex(w.Open("b", nil), "/l", keeps(""))
		h := coordtest.MustLock(w.T, a)
		waits := w.Waiting(context.Background(), b)
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, waits.Hold())
		if n := len(w.Children("/l")); n != 0 {
			w.T.Errorf("%d nodes", n)
		}
	})
}

// Callers whose nodes would differ do not share one.
func TestOnlyEqualDataSharesAKeptNode(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, c := context.Background(), w.Open("a", nil)
		x, y := coord.NewMutex(c, "/l", keeps("x")), coord.NewMutex(c, "/l", keeps("y"))
		plain := coord.NewMutex(c, "/l", nil)
		token := idle(w, x)
		for name, m := range map[string]*coord.Mutex{"y": y, "": plain} {
			h, err := m.TryLock(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			list, err := m.Contenders(ctx)
			if err != nil || len(list) != 1 || string(list[0].Data) != name || h.Token() <= token {
				w.T.Errorf("%q: %+v, %v, token %d after %d", name, list, err, h.Token(), token)
			}
			waits := w.Waiting(ctx, x)
			coordtest.MustRelease(w.T, h)
			if h = waits.Hold(); h.Token() <= list[0].Token {
				w.T.Errorf("token %d after %d", h.Token(), list[0].Token)
			}
			token = h.Token()
			list, err = m.Contenders(ctx)
			if err != nil || len(list) != 1 || string(list[0].Data) != "x" {
				w.T.Errorf("x after %q: %+v, %v", name, list, err)
			}
			coordtest.MustRelease(w.T, h)
		}
	})
}

// Others see in the node that its client may keep it.
func TestAKeptLockShowsThatItMayBeKept(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, c := context.Background(), w.Open("a", nil)
		m := coord.NewMutex(c, "/l", &coord.MutexOptions{ID: "worker", Keep: 90 * time.Second, Data: []byte("data")})
		h := coordtest.MustLock(w.T, m)
		defer h.Release()
		list, err := m.Contenders(ctx)
		if err != nil || len(list) != 1 || list[0].ID != "worker" || string(list[0].Data) != "data" {
			w.T.Errorf("%+v, %v", list, err)
		}
		in, err := inspect.Path(ctx, c, "/l", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		if got := in.Mutex.Contenders[0].Keep; got != "1m30s" {
			w.T.Errorf("inspect shows %q", got)
		}
		if !strings.Contains(in.String(), "may keep the lock for 1m30s") {
			w.T.Errorf("the text does not show it:\n%s", in)
		}
	})
}

// A commit under the guard of a hold never lands under a later hold of the same client.
func TestAGuardOfAKeptLockEndsWithItsHold(t *testing.T) {
	setup := func(w *world, hooks *backendtest.Hooks) (*coord.Client, *coord.Mutex) {
		if _, err := w.Session("x").Commit(context.Background(), backend.Create(w.Path("/data"), nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		c := w.Open("a", hooks)
		return c, coord.NewMutex(c, "/l", keeps(""))
	}
	t.Parallel()
	onEachLater(t, "answered", func(w *world) {
		c, m := setup(w, nil)
		h := coordtest.MustLock(w.T, m)
		if _, err := coord.NewTxn(c).Under(h.Guard()).Set("/data", nil).Commit(context.Background()); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, h)
		if n := len(w.Children("/l")); n != 1 {
			w.T.Error("a guarded commit that was answered ended the stay")
		}
		set, err := coord.LockAll(context.Background(), m, coord.NewMutex(c, "/k", nil))
		if err != nil {
			w.T.Fatal(err)
		}
		ofSet := set.Guard()
		if err := set.Release(); err != nil {
			w.T.Fatal(err)
		}
		next := coordtest.MustLock(w.T, m)
		defer next.Release()
		for _, g := range []coord.Guard{h.Guard(), ofSet} {
			_, err := coord.NewTxn(c).Under(g).Set("/data", nil).Commit(context.Background())
			coordtest.WantErr(w.T, err, coord.ErrConflict, coord.ErrNotFound)
			var conflict *coord.ConflictError
			if !errors.As(err, &conflict) || conflict.Op != "guard" || conflict.Path == "" {
				w.T.Errorf("%v", err)
			}
		}
		_, err = w.Session("x").Commit(context.Background(), h.Guard().Ops()...)
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		if _, err := coord.NewTxn(c).Under(next.Guard()).Set("/data", nil).Commit(context.Background()); err != nil {
			w.T.Errorf("under the hold that stands: %v", err)
		}
	})
	onEachLater(t, "under way", func(w *world) {
		var before coordtest.Nth
		c, m := setup(w, &backendtest.Hooks{Before: before.Before})
		h := coordtest.MustLock(w.T, m)
		sent, land := make(chan struct{}), make(chan struct{})
		before.Arm(1, func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpCheck) },
			func(context.Context, backendtest.Call, error) error { close(sent); <-land; return nil })
		done := make(chan error, 1)
		go func() {
			_, err := coord.NewTxn(c).Under(h.Guard()).Set("/data", nil).Commit(context.Background())
			done <- err
		}()
		<-sent
		coordtest.MustRelease(w.T, h)
		next := coordtest.MustLock(w.T, m)
		defer next.Release()
		close(land)
		coordtest.WantErr(w.T, <-done, coord.ErrConflict)
		if next.Token() <= h.Token() {
			w.T.Errorf("token %d after %d", next.Token(), h.Token())
		}
	})
	onEachLater(t, "abandoned", func(w *world) {
		var after coordtest.Nth
		c, m := setup(w, &backendtest.Hooks{After: after.After})
		h := coordtest.MustLock(w.T, m)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		after.Arm(1, func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpCheck) },
			func(context.Context, backendtest.Call, error) error {
				cancel()
				return backend.Uncertain(context.Canceled)
			})
		_, err := coord.NewTxn(c).Under(h.Guard()).Set("/data", nil).Commit(ctx)
		coordtest.WantErr(w.T, err, coord.ErrUncertain)
		coordtest.MustRelease(w.T, h)
		w.Empty("/l")
	})
	onEachLater(t, "its operations", func(w *world) {
		_, m := setup(w, nil)
		h := coordtest.MustLock(w.T, m)
		ops := h.Guard().Ops()
		coordtest.MustRelease(w.T, h)
		w.Empty("/l")
		_, err := w.Session("x").Commit(context.Background(), ops...)
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
	})
}

// A local waiter whose context ends when it is passed the turn does not keep it.
func TestATurnPassedInMemoryIsNotLost(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		m := coord.NewMutex(c, "/l", keeps(""))
		for range 200 {
			h := coordtest.MustLock(w.T, m)
			ctx, cancel := context.WithCancel(context.Background())
			waits := w.Waiting(ctx, m)
			var wg sync.WaitGroup
			wg.Go(cancel)
			wg.Go(func() { coordtest.MustRelease(w.T, h) })
			wg.Wait()
			<-waits.Done
			if waits.Err == nil {
				coordtest.MustRelease(w.T, waits.H)
			}
			h, err := m.TryLock(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			coordtest.MustRelease(w.T, h)
		}
	})
}

// The end of an idle stay is reported once, with its reason.
func TestTheEndOfAStayIsReportedOnce(t *testing.T) {
	for _, v := range []struct {
		name  string
		end   func(w *world, c *coord.Client, m *coord.Mutex)
		asked bool
	}{
		{"another client", func(w *world, _ *coord.Client, _ *coord.Mutex) {
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/l", nil)))
		}, true},
		{"a try", func(w *world, _ *coord.Client, _ *coord.Mutex) {
			if h, err := coord.NewMutex(w.Open("b", nil), "/l", nil).TryLock(context.Background()); err == nil {
				coordtest.MustRelease(w.T, h)
			}
		}, true},
		{"the node is deleted", func(w *world, _ *coord.Client, _ *coord.Mutex) {
			if _, err := w.Session("x").Commit(context.Background(), backend.Delete(w.Path("/l")+"/"+w.Children("/l")[0], backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		}, true},
		{"contact was lost and made again", func(w *world, _ *coord.Client, _ *coord.Mutex) {
			w.Link("a").Partition()
			w.Settle()
			w.Link("a").Heal()
		}, true},
		{"Keep has passed", func(*world, *coord.Client, *coord.Mutex) { time.Sleep(time.Minute) }, false},
		{"the session is over", func(w *world, c *coord.Client, _ *coord.Mutex) {
			s, err := c.Session(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			w.Link("a").Expire(s.ID())
		}, false},
	} {
		t.Run(v.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				x, c := w.taped("a", nil)
				m := coord.NewMutex(c, "/l", &coord.MutexOptions{Keep: time.Minute})
				token := idle(w, m)
				node := w.Path("/l") + "/" + w.Children("/l")[0]
				v.end(w, c, m)
				w.Settle()
				time.Sleep(2 * time.Minute)
				w.Settle()
				ends := toldOf[trace.KeepEnded](x)
				if len(ends) != 1 {
					w.T.Fatalf("reported %d times, want once: %+v", len(ends), ends)
				}
				if e := ends[0]; e.Asked != v.asked || e.Token != token || e.Node != node || e.Path != w.Path("/l") {
					w.T.Errorf("%+v; want token %d, node %s, asked %t", e, token, node, v.asked)
				}
			})
		})
	}
}

// A stay that ends with a Release for another reason than an ask does not keep the next one from
// beginning.
func TestAReleaseThatDoesNotKeepIsNoAsk(t *testing.T) {
	onMemory(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", keeps(""))
		idle(w, m)
		h := coordtest.MustLock(w.T, m)
		h.Guard().Ops()
		coordtest.MustRelease(w.T, h)
		w.Settle()
		if n := len(w.Children("/l")); n != 0 {
			w.T.Fatalf("%d nodes", n)
		}
		idle(w, m)
	})
}

// The guard of a hold whose node is kept is worth nothing to another client either.
func TestAnotherClientsTxnUnderAKeptGuardIsRefused(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		if _, err := w.Session("x").Commit(ctx, backend.Create(w.Path("/data"), nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		b := w.Open("b", nil)
		m := coord.NewMutex(w.Open("a", nil), "/l", keeps(""))
		h := coordtest.MustLock(w.T, m)
		g := h.Guard()
		if _, err := coord.NewTxn(b).Under(g).Set("/data", []byte("stands")).Commit(ctx); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, h)
		if n := len(w.Children("/l")); n != 1 {
			w.T.Fatalf("%d nodes, want that of the client that keeps the lock", n)
		}
		_, err := coord.NewTxn(b).Under(g).Set("/data", []byte("idle")).Commit(ctx)
		coordtest.WantErr(w.T, err, coord.ErrConflict, coord.ErrNotFound)
		next := coordtest.MustLock(w.T, m)
		if next.Token() != h.Token() {
			w.T.Fatalf("token %d after %d: not kept", next.Token(), h.Token())
		}
		_, err = coord.NewTxn(b).Under(g).Set("/data", []byte("later")).Commit(ctx)
		coordtest.WantErr(w.T, err, coord.ErrConflict, coord.ErrNotFound)
		data, _, err := w.Session("y").Get(ctx, w.Path("/data"), nil)
		if err != nil || string(data) != "stands" {
			w.T.Errorf("the data is %q, %v", data, err)
		}
		coordtest.MustRelease(w.T, next)
	})
}

// resumed is a service for a client whose process was paused for longer than its lease: its
// session is lost when the client compares the lease with the clock, and not earlier.
type resumed struct {
	backend.Backend
	over atomic.Bool // the lease of the first session has passed
	n    atomic.Int32
}

type resumedSession struct {
	backend.Session
	b    *resumed
	once sync.Once
	done chan struct{}
}

func (b *resumed) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	if err != nil || b.n.Add(1) > 1 {
		return s, err
	}
	return &resumedSession{Session: s, b: b, done: make(chan struct{})}, nil
}

func (s *resumedSession) Err() error {
	if s.b.over.Load() {
		s.once.Do(func() { close(s.done) })
		return &backend.Error{Op: "session", Err: backend.ErrSessionLost}
	}
	return s.Session.Err()
}

func (s *resumedSession) Done() <-chan struct{} { return s.done }

// A process that was paused between two turns in memory, for longer than its lease, does not get
// the second one.
func TestALeaseThatHasPassedGivesNoTurn(t *testing.T) {
	onMemory(t, func(w *world) {
		b := &resumed{Backend: w.Link("a")}
		m := coord.NewMutex(coordtest.Open(w.T, b, &coord.Options{Namespace: w.Path("")}), "/l", keeps(""))
		token := idle(w, m)
		if again := coordtest.MustLock(w.T, m); again.Token() != token {
			w.T.Fatalf("token %d after %d: not kept", again.Token(), token)
		} else {
			coordtest.MustRelease(w.T, again)
		}
		b.over.Store(true)
		h := coordtest.MustLock(w.T, m)
		if h.Token() <= token {
			w.T.Errorf("granted in memory, with token %d, after the lease has passed", h.Token())
		}
		if err := h.Err(); err != nil {
			w.T.Error(err)
		}
		coordtest.MustRelease(w.T, h)
	})
	// The same for a caller that waits: the release does not pass the turn to it.
	onMemory(t, func(w *world) {
		b := &resumed{Backend: w.Link("a")}
		m := coord.NewMutex(coordtest.Open(w.T, b, &coord.Options{Namespace: w.Path("")}), "/l", keeps(""))
		idle(w, m)
		h := coordtest.MustLock(w.T, m)
		waits := w.Lock(context.Background(), m)
		w.Settle()
		b.over.Store(true)
		coordtest.WantErr(w.T, h.Release(), coord.ErrLost, coord.ErrSessionLost)
		next := waits.Hold()
		if next.Token() <= h.Token() {
			w.T.Errorf("token %d after %d", next.Token(), h.Token())
		}
		coordtest.MustRelease(w.T, next)
	})
}

// Two clients in turns send as much as without Keep.
func TestTwoClientsInTurnsSendWhatTheySendWithoutKeep(t *testing.T) {
	sent := func(w *world, o *coord.MutexOptions) int64 {
		var calls atomic.Int64
		a, b := coord.NewMutex(w.Counting("a", &calls), "/l", o), coord.NewMutex(w.Counting("b", &calls), "/l", o)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, a))
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, b))
		w.Settle()
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, b))
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, a)) // an ask: from here on nothing is kept
		w.Settle()
		calls.Store(0)
		for range 100 {
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, a))
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, b))
		}
		w.Settle()
		return calls.Load()
	}
	contended := func(w *world, o *coord.MutexOptions) int64 {
		var calls atomic.Int64
		list := []*coord.Mutex{coord.NewMutex(w.Counting("a", &calls), "/l", o), coord.NewMutex(w.Counting("b", &calls), "/l", o)}
		for _, m := range list {
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
			w.Settle()
		}
		h := coordtest.MustLock(w.T, list[0])
		for i := range 204 {
			if i == 4 {
				calls.Store(0)
			}
			waits := w.Waiting(context.Background(), list[(i+1)%2])
			w.Settle()
			coordtest.MustRelease(w.T, h)
			h = waits.Hold()
		}
		w.Settle()
		n := calls.Load()
		coordtest.MustRelease(w.T, h)
		return n
	}
	for name, count := range map[string]func(*world, *coord.MutexOptions) int64{"without waiting": sent, "waiting for each other": contended} {
		t.Run(name, func(t *testing.T) {
			var with, without int64
			onMemory(t, func(w *world) { with = count(w, keeps("")) })
			onMemory(t, func(w *world) { without = count(w, nil) })
			t.Logf("figure: 200 turns of two clients, %s: %d requests with Keep, %d without", name, with, without)
			if with != without {
				t.Errorf("%d requests with Keep, %d without", with, without)
			}
		})
	}
}

// Of a thousand locks, one client takes nine tenths and another one the rest: what both send.
func TestMostLocksByOneClientSendLessWithKeep(t *testing.T) {
	sent := func(w *world, keep, gap time.Duration, run int) (requests int64) {
		var calls atomic.Int64
		o := &coord.MutexOptions{Keep: keep}
		a, b := coord.NewMutex(w.Counting("a", &calls), "/l", o), coord.NewMutex(w.Counting("b", &calls), "/l", o)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, b))
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, a))
		time.Sleep(10 * time.Second)
		calls.Store(0)
		for i := range 1000 {
			m := a
			if i/run%10 == 9 {
				m = b
			}
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
			time.Sleep(gap)
		}
		w.Settle()
		return calls.Load()
	}
	for _, v := range []struct {
		gap  time.Duration // between two locks
		run  int           // the other client takes so many in a row
		most int64         // requests for 100 without Keep
	}{
		{10 * time.Millisecond, 1, 100}, // the other client comes more often than the time after an ask
		{time.Second, 1, 80},
		{10 * time.Millisecond, 100, 2},
		{100 * time.Millisecond, 100, 2},
	} {
		var with, without int64
		onMemory(t, func(w *world) { with = sent(w, 5*time.Second, v.gap, v.run) })
		onMemory(t, func(w *world) { without = sent(w, 0, v.gap, v.run) })
		t.Logf("figure: 1,000 locks, 90 %% by one client, the others in runs of %d, %v between them: %d requests with Keep of 5 s, %d without", v.run, v.gap, with, without)
		if with > without*v.most/100 {
			t.Errorf("%d requests with Keep, %d without; want at most %d %%", with, without, v.most)
		}
	}
}

// A commit that is refused for the guard of an ended hold does not keep the locks of the other
// guards from being kept.
func TestGuard_RefusalLeavesTheOtherHolds(t *testing.T) {
	onMemory(t, func(w *world) {
		var l sentLog
		c := w.Open("a", l.hooks())
		first, second := coord.NewMutex(c, "/l", keeps("")), coord.NewMutex(c, "/m", keeps(""))
		idle(w, first)
		h, ended := coordtest.MustLock(w.T, first), coordtest.MustLock(w.T, second)
		coordtest.MustRelease(w.T, ended)
		w.Settle()
		l.since()
		for range 3 {
			_, err := coord.NewTxn(c).Under(h.Guard()).Under(ended.Guard()).Create("/written", nil, backend.Persistent).Commit(context.Background())
			coordtest.WantErr(w.T, err, coord.ErrConflict)
		}
		coordtest.MustRelease(w.T, h)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, first))
		w.Settle()
		if commits, others := l.since(); commits+others != 0 {
			w.T.Errorf("%d commits and %d other requests: the lock was not kept", commits, others)
		}
	})
}
