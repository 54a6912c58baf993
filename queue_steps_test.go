package coord_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// script does all that there is to do with a queue once, and checks that all goes
// as if there were no faults.
func script(w *world, q *coord.Queue[int]) {
	ctx := context.Background()
	mustPut(w.t, q, 1, 7) // into two buckets
	if _, err := q.PutAll(ctx, 8, 9, 10); err != nil {
		w.t.Error(err)
	}
	mustAck(w.t, mustTake(w.t, q, 1))
	it := mustTake(w.t, q, 2)
	if err := it.Nack(0); err != nil {
		w.t.Error(err)
	}
	it = mustTake(w.t, q, 2)
	if it.Attempt != 2 {
		w.t.Errorf("attempt %d, want 2", it.Attempt)
	}
	if err := it.Nack(time.Millisecond); err != nil {
		w.t.Error(err)
	}
	third := mustTake(w.t, q, 3)
	time.Sleep(10 * time.Millisecond)
	it = mustTake(w.t, q, 2)
	if it.Attempt != 3 {
		w.t.Errorf("attempt %d, want 3", it.Attempt)
	}
	if err := third.Release(); err != nil {
		w.t.Error(err)
	}
	mustAck(w.t, it)
	third = mustTake(w.t, q, 3)
	if third.Attempt != 1 {
		w.t.Errorf("attempt %d, want 1", third.Attempt)
	}
	mustAck(w.t, third)
	for n := 4; n <= 10; n++ {
		if v, err := q.Pop(ctx); v != n || err != nil {
			w.t.Errorf("Pop: %d, %v, want %d", v, err, n)
		}
	}
	done := make(chan struct{})
	n := w.waits.Load()
	go func() {
		defer close(done)
		mustAck(w.t, mustTake(w.t, q, 11))
	}()
	w.eventually("the Take waits", func() bool { return w.waits.Load() > n })
	mustPut(w.t, q, 11, 11)
	<-done
	mustPut(w.t, q, 12, 12)
	if n, err := q.Purge(ctx); n != 1 || err != nil {
		w.t.Errorf("Purge: %d, %v", n, err)
	}
	w.drained(&q.Consumer)
}

func TestEveryLostMessageOfAQueueIsFoundOut(t *testing.T) {
	for _, kind := range []string{"request", "reply"} {
		t.Run(kind, func(t *testing.T) {
			steps := 0
			for n, hit := 1, true; hit && !t.Failed(); n++ {
				hit = false
				onMemory(t, func(w *world) {
					var x nth
					hooks := &backendtest.Hooks{Before: x.before}
					if kind == "reply" {
						hooks = &backendtest.Hooks{After: x.after}
					}
					q := w.hookedQueue("a", hooks, nil)
					x.arm(n, func(c backendtest.Call) bool { return c.Op == "commit" }, func(_ context.Context, c backendtest.Call, err error) error {
						if err != nil {
							return err // it was refused, and nothing was lost
						}
						hit = true
						steps++
						return backend.ErrUncertain
					})
					script(w, q)
					if !hit {
						// Either the script has fewer commits, or the n-th was refused.
						x.mu.Lock()
						hit = x.n == 0
						x.mu.Unlock()
					}
				})
			}
			t.Logf("figure: %d commits of a script whose %s was lost", steps, kind)
			if steps < 30 {
				t.Error("this tested too little")
			}
		})
	}
}

// ledger is what was put, delivered and acknowledged.
type ledger struct {
	mu        sync.Mutex
	put       map[int]bool // for certain
	maybe     map[int]bool
	delivered map[int]int
	acked     map[int]int64 // the token of the claim whose Ack returned nil
	unsure    map[int]bool  // an Ack was uncertain
	wrong     []string
}

func newLedger() *ledger {
	return &ledger{put: make(map[int]bool), maybe: make(map[int]bool), delivered: make(map[int]int), acked: make(map[int]int64), unsure: make(map[int]bool)}
}

func (l *ledger) did(n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.put[n] = true
	case errors.Is(err, coord.ErrUncertain):
		l.maybe[n] = true
	}
}

func (l *ledger) took(it *coord.Item[int]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delivered[it.Value]++
	if at, ok := l.acked[it.Value]; ok && it.Token() > at {
		l.wrong = append(l.wrong, fmt.Sprintf("%d came again after its Ack", it.Value))
	}
}

func (l *ledger) ended(it *coord.Item[int], err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		if _, ok := l.acked[it.Value]; ok {
			l.wrong = append(l.wrong, fmt.Sprintf("%d was acknowledged twice", it.Value))
		}
		l.acked[it.Value] = it.Token()
	case errors.Is(err, coord.ErrUncertain):
		l.unsure[it.Value] = true
	}
}

// check returns what is wrong at the end, when the queue is empty.
func (l *ledger) check() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	wrong := l.wrong
	for n := range l.put {
		if _, ok := l.acked[n]; !ok && !l.unsure[n] {
			wrong = append(wrong, fmt.Sprintf("%d was put, delivered %d times, and is lost", n, l.delivered[n]))
		}
	}
	for n := range l.delivered {
		if !l.put[n] && !l.maybe[n] {
			wrong = append(wrong, fmt.Sprintf("%d was delivered, and its Put had failed", n))
		}
	}
	return wrong
}

// The session of the one client expires at each of its commits, before or after
// it is applied.
func TestAnExpiryAtEachStepOfAQueueLosesNothing(t *testing.T) {
	for _, kind := range []string{"before", "after"} {
		t.Run(kind, func(t *testing.T) {
			steps, again := 0, 0
			for n, hit := 1, true; hit && !t.Failed(); n++ {
				hit = false
				onMemory(t, func(w *world) {
					var x nth
					hooks := &backendtest.Hooks{Before: x.before}
					if kind == "after" {
						hooks = &backendtest.Hooks{After: x.after}
					}
					q := w.hookedQueue("a", hooks, nil)
					x.arm(n, func(c backendtest.Call) bool { return c.Op == "commit" }, func(_ context.Context, c backendtest.Call, err error) error {
						hit = true
						steps++
						w.Link("a").Expire(c.Session.ID())
						if kind == "before" {
							return nil // the commit fails by itself
						}
						return backend.Uncertain(backend.ErrSessionLost)
					})
					l := newLedger()
					ctx := context.Background()
					for n := 1; n <= 8; n++ {
						_, err := q.Put(ctx, n)
						l.did(n, err)
					}
					for {
						it, err := q.TryTake(ctx)
						if errors.Is(err, coord.ErrEmpty) {
							break
						}
						if err != nil {
							w.t.Fatal(err)
						}
						l.took(it)
						if it.Attempt == 1 && it.Value%3 == 0 {
							err = it.Nack(0)
						} else if err = it.Ack(); true {
							l.ended(it, err)
						}
						if it.Attempt > 1 {
							again++
						}
						if err != nil {
							wantErr(w.t, err, coord.ErrLost)
						}
					}
					for _, wrong := range l.check() {
						w.t.Error(n, wrong)
					}
					w.drained(&q.Consumer)
				})
			}
			t.Logf("figure: expiry %s %d commits of a queue, %d items came again", kind, steps, again)
			if steps < 20 || again == 0 {
				t.Error("this tested too little")
			}
		})
	}
}
