package recipetest

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

// mutexKeepTests are tests of Mutex on each service.
type mutexKeepTests struct{ Services }

func (on mutexKeepTests) AKeptLockIsTakenAgainWithoutARequest(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on mutexKeepTests) CallersOfAKeptLockTakeTurnsInMemory(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on mutexKeepTests) AnotherClientEndsAnIdleKeptLock(t *testing.T) {
	on.each(t, func(w *world) {
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
		w.Empty("/l") // contention was a moment ago, so it keeps nothing
	})
}

// A newcomer that came before the watch was armed is not missed.
func (on mutexKeepTests) AContenderThatCameBeforeTheWatchEndsTheKeptLock(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on mutexKeepTests) ATryOfAnotherClientEndsAnIdleKeptLock(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := coord.NewMutex(w.Open("a", nil), "/l", keeps("")), coord.NewMutex(w.Open("b", nil), "/l", nil)
		// A try that has succeeded makes the next one create its node without a look.
		h, err := b.TryLock(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, h)
		idle(w, a)
		if h, err = b.TryLock(context.Background()); err == nil {
			coordtest.MustRelease(w.T, h) // the client saw the node, and deleted its own before the listing
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
func (on mutexKeepTests) AFirstTryOfAnotherClientEndsAnIdleKeptLock(t *testing.T) {
	on.each(t, func(w *world) {
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

// After contention while the lock is held, the Release keeps nothing, and the local waiter goes to the tail.
func (on mutexKeepTests) AfterContentionLocalWaitersQueueLikeOthers(t *testing.T) {
	on.each(t, func(w *world) {
		var arms coordtest.Nth
		armed := make(chan struct{})
		arms.Arm(1, isArm, func(_ context.Context, _ backendtest.Call, err error) error { close(armed); return err })
		c := w.Open("a", &backendtest.Hooks{After: arms.After})
		m := coord.NewMutex(c, "/l", keeps(""))
		b := coord.NewMutex(w.Open("b", nil), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		<-armed // the watches are armed while it holds
		other := w.Waiting(context.Background(), b)
		s, err := c.Session(context.Background())
		w.must(err)
		w.must(s.Sync(context.Background(), w.Path("/l"))) // the event of the contention has come before the reply
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

func (on mutexKeepTests) ARevocationEndsAKeptLock(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := coord.NewMutex(w.Open("a", nil), "/l", keeps("")), coord.NewMutex(w.Open("b", nil), "/l", nil)
		idle(w, a)
		if err := b.Revoke(context.Background(), &coord.RevokeOptions{By: "b"}); err != nil {
			w.T.Fatal(err)
		}
		w.Empty("/l")
	})
}

// A hold that is not the first of its kept lock learns of a request to release, and of the deletion of
// its node.
func (on mutexKeepTests) ALaterHoldOfAKeptLockIsWatched(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := coord.NewMutex(w.Open("a", nil), "/l", keeps("")), coord.NewMutex(w.Open("b", nil), "/l", nil)
		token := idle(w, a)
		h := coordtest.MustLock(w.T, a)
		if h.Token() != token {
			w.T.Fatalf("token %d, want that of the kept lock, %d", h.Token(), token)
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
	on.eachLater(t, "deleted", func(w *world) {
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

// eachLater is each in a subtest, for a test with several parts.
func (on Services) eachLater(t *testing.T, name string, f func(w *world)) {
	t.Run(name, func(t *testing.T) { on.each(t, f) })
}

func (on mutexKeepTests) AnIdleKeptLockEndsWithItsNodeAndItsSession(t *testing.T) {
	t.Parallel()
	on.eachLater(t, "the node", func(w *world) {
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

// Without a watch the client would not see contention, so the lock is not kept.
func (on mutexKeepTests) ALockThatCannotBeWatchedIsNotKept(t *testing.T) {
	for _, denied := range []string{"arm", "children"} {
		t.Run(denied, func(t *testing.T) {
			refuses := &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
				if c.Op == denied && strings.HasSuffix(c.Path, "/l") {
					return &backend.Error{Op: c.Op, Path: c.Path, Err: backend.ErrDenied}
				}
				return err
			}}
			on.each(t, func(w *world) {
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
func (on mutexKeepTests) ALockDoesNotTakeANodeThatIsGivenUp(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on mutexKeepTests) AKeptLockIsFreeWhenKeepHasPassed(t *testing.T) {
	on.each(t, func(w *world) {
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
		// Each release starts the time again.
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

func (on mutexKeepTests) CloseDoesNotWaitForKeep(t *testing.T) {
	on.each(t, func(w *world) {
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

// A lock that was taken behind other contenders is not kept, so clients in turns lose nothing.
func (on mutexKeepTests) ALockThatWasNotAloneIsNotKept(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on mutexKeepTests) OnlyEqualDataSharesAKeptNode(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on mutexKeepTests) AKeptLockShowsThatItMayBeKept(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on mutexKeepTests) AGuardOfAKeptLockEndsWithItsHold(t *testing.T) {
	setup := func(w *world, hooks *backendtest.Hooks) (*coord.Client, *coord.Mutex) {
		if _, err := w.Session("x").Commit(context.Background(), backend.Create(w.Path("/data"), nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		c := w.Open("a", hooks)
		return c, coord.NewMutex(c, "/l", keeps(""))
	}
	t.Parallel()
	on.eachLater(t, "answered", func(w *world) {
		c, m := setup(w, nil)
		h := coordtest.MustLock(w.T, m)
		if _, err := coord.NewTxn(c).Under(h.Guard()).Set("/data", nil).Commit(context.Background()); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, h)
		if n := len(w.Children("/l")); n != 1 {
			w.T.Error("a guarded commit that was answered ended the kept lock")
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
	on.eachLater(t, "under way", func(w *world) {
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
	on.eachLater(t, "abandoned", func(w *world) {
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
	on.eachLater(t, "its operations", func(w *world) {
		_, m := setup(w, nil)
		h := coordtest.MustLock(w.T, m)
		ops := h.Guard().Ops()
		coordtest.MustRelease(w.T, h)
		w.Empty("/l")
		_, err := w.Session("x").Commit(context.Background(), ops...)
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
	})
}

// The guard of a hold whose node is kept is worth nothing to another client either.
func (on mutexKeepTests) AnotherClientsTxnUnderAKeptGuardIsRefused(t *testing.T) {
	on.each(t, func(w *world) {
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
