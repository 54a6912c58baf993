package recipetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// Without Keep nothing is kept, and each hold has a token of its own.
func TestMutex_ALockWithoutKeepIsNotKept(t *testing.T) {
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

// The table of a newcomer's wait: links with a round trip of 10 ms each, in fake time.
func TestMutex_WhatANewcomerWaitsForAKeptLock(t *testing.T) {
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

// While the lock is held, a short Keep costs nothing.
func TestMutex_AShortKeepDoesNotSpin(t *testing.T) {
	onMemory(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", &coord.MutexOptions{Keep: time.Nanosecond})
		h := coordtest.MustLock(w.T, m)
		time.Sleep(time.Hour) // some 10^12 turns of a loop
		coordtest.MustRelease(w.T, h)
		w.Empty("/l")
	})
}

// A client that is cut off learns at its next Lock that its lease has passed.
func TestMutex_AKeptLockOfALostSessionIsNotGranted(t *testing.T) {
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
func TestMutex_AReconnectionEndsAnIdleKeptLock(t *testing.T) {
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

// Periodic tries of another client find an idle kept lock once.
func TestMutex_AfterContentionTheClientDoesNotKeep(t *testing.T) {
	onMemory(t, func(w *world) {
		m := coord.NewMutex(w.Open("a", nil), "/l", &coord.MutexOptions{Keep: 5 * time.Second})
		b := coord.NewMutex(w.Open("b", nil), "/l", nil)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
		w.Settle()
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, b))
		for range 5 {
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
			if n := len(w.Children("/l")); n != 0 {
				w.T.Error("kept a short time after contention")
			}
			time.Sleep(980 * time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
		idle(w, m)
	})
}

// A local waiter whose context ends when it is passed the turn does not keep it.
func TestMutex_ATurnPassedInMemoryIsNotLost(t *testing.T) {
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

// The end of an idle kept lock is reported once, with its reason.
func TestMutex_TheEndOfAKeptLockIsReportedOnce(t *testing.T) {
	for _, v := range []struct {
		name      string
		end       func(w *world, c *coord.Client, m *coord.Mutex)
		contended bool
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
				ends := eventsOf[trace.KeepEnded](x)
				if len(ends) != 1 {
					w.T.Fatalf("reported %d times, want once: %+v", len(ends), ends)
				}
				if e := ends[0]; e.Asked != v.contended || e.Token != token || e.Node != node || e.Path != w.Path("/l") {
					w.T.Errorf("%+v; want token %d, node %s, asked %t", e, token, node, v.contended)
				}
			})
		})
	}
}

// A kept lock that ends with a Release for another reason than contention does not keep the next one from
// beginning.
func TestMutex_AReleaseThatDoesNotKeepIsNoContention(t *testing.T) {
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
func TestMutex_ALeaseThatHasPassedGivesNoTurn(t *testing.T) {
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
func TestMutex_TwoClientsInTurnsSendWhatTheySendWithoutKeep(t *testing.T) {
	sent := func(w *world, o *coord.MutexOptions) int64 {
		var calls atomic.Int64
		a, b := coord.NewMutex(w.Counting("a", &calls), "/l", o), coord.NewMutex(w.Counting("b", &calls), "/l", o)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, a))
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, b))
		w.Settle()
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, b))
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, a)) // contention: from here on nothing is kept
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
func TestMutex_MostLocksByOneClientSendLessWithKeep(t *testing.T) {
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
		{10 * time.Millisecond, 1, 100}, // the other client comes more often than the time after contention
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
