package recipetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestQueue_ALossOfTheSessionInACombinedAckIsReportedToEach(t *testing.T) {
	for _, name := range []string{"before", "after"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc := newAckScene(w)
				items := sc.take(8)
				x, n := &sc.after, 2
				if name == "before" {
					x, n = &sc.before, 1
				}
				errs := sc.gather(items, func() {
					x.Arm(n, coordtest.Deletes, func(_ context.Context, c backendtest.Call, _ error) error {
						w.Link("a").Expire(c.Session.ID())
						if name == "before" {
							return nil // the commit fails by itself
						}
						return backend.Uncertain(backend.ErrSessionLost)
					})
				})
				if errs[0] != nil {
					w.T.Error(errs[0])
				}
				for i, err := range errs[1:] {
					coordtest.WantErr(w.T, err, coord.ErrLost, coord.ErrSessionLost)
					if name == "after" {
						coordtest.WantErr(w.T, err, coord.ErrUncertain)
					}
					var inner *backend.Error
					for e := err; errors.As(e, &inner); e = inner.Err {
					}
					if path := items[i+1].Path(); inner == nil || inner.Path != path {
						w.T.Errorf("%v does not name %s", err, path)
					}
				}
				if name == "before" {
					for i := 1; i < 8; i++ {
						it := mustTake(w.T, sc.q, i)
						if it.Attempt != 2 {
							w.T.Errorf("attempt %d", it.Attempt)
						}
						mustAck(w.T, it)
					}
				}
				w.drained(&sc.q.Consumer)
			})
		})
	}
}

// An outsider deletes the node that proves the commit whose reply is lost. The error must not
// say that the claims were lost.
func TestQueue_ACombinedAckOfUnknownOutcomeIsReportedToEach(t *testing.T) {
	onMemory(t, func(w *world) {
		sc := newAckScene(w)
		items := sc.take(8)
		errs := sc.gather(items, func() {
			sc.after.Arm(2, coordtest.Deletes, func(_ context.Context, c backendtest.Call, _ error) error {
				sc.outsider(backend.Delete(c.Ops[len(c.Ops)-1].Path, backend.AnyVersion))
				return backend.ErrUncertain
			})
		})
		for i, err := range errs[1:] {
			coordtest.WantErr(w.T, err, coord.ErrUncertain)
			if errors.Is(err, coord.ErrLost) {
				w.T.Errorf("%d: %v", i+1, err)
			}
		}
		w.drained(&sc.q.Consumer)
	})
}

func TestQueue_ADeniedCombinedAckIsRepeatedForEachAlone(t *testing.T) {
	onMemory(t, func(w *world) {
		sc := newAckScene(w)
		items := sc.take(8)
		denied := 0
		deny := func(context.Context, backendtest.Call, error) error {
			denied++
			return backend.ErrDenied
		}
		errs := sc.gather(items, func() { sc.before.Arm(1, coordtest.Deletes, deny) })
		for i, err := range errs {
			if err != nil { // each of them alone was not denied
				w.T.Errorf("%d: %v", i, err)
			}
		}
		if n := sc.sent(); denied != 1 || n != 9 {
			w.T.Errorf("%d commits, %d denied", n, denied)
		}
		w.drained(&sc.q.Consumer)
	})
}

func TestQueue_AckAllRefusesItemsOfOtherQueues(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q, other := coord.NewQueue[int](c, "/q", nil), coord.NewQueue[int](c, "/other", nil)
		mustPut(w.T, q, 1, 1)
		mustPut(w.T, other, 2, 2)
		mine, foreign := mustTake(w.T, q, 1), mustTake(w.T, other, 2)
		for name, items := range map[string][]*coord.Item[int]{
			"nil":              {mine, nil},
			"of another queue": {mine, foreign},
			"made by hand":     {{}, mine},
		} {
			err := q.AckAll(items...)
			coordtest.WantErr(w.T, err, coord.ErrInvalid)
			if mine.Err() != nil || foreign.Err() != nil {
				t.Errorf("%s: an item was acknowledged", name)
			}
		}
		if err := mine.Verify(ctx); err != nil {
			w.T.Error(err)
		}
		mustAck(w.T, mine)
		mustAck(w.T, foreign)
		if err := coord.NewQueue[int](c, "//", nil).AckAll(); err != nil {
			w.T.Error(err)
		}
	})
}

// Concurrent Acks, AckAlls with common items, Nacks and Releases of the same items all return.
// One of them takes effect for each item, and their results agree.
func TestQueue_ConcurrentAcksOfAllKindsAgree(t *testing.T) {
	rounds := 20
	if coordtest.Long() {
		rounds = 300
	}
	onMemory(t, func(w *world) {
		commits, struck := 0, 0
		for round := range rounds {
			sc := newAckScene(w)
			r := rand.New(rand.NewPCG(uint64(round), 7))
			items := sc.take(12)
			type call struct {
				kind  int
				items []*coord.Item[int]
			}
			var calls []call
			for range 10 {
				c := call{kind: r.IntN(6)}
				for range 1 + r.IntN(12) {
					c.items = append(c.items, items[r.IntN(len(items))])
				}
				calls = append(calls, c)
			}
			if lost := r.IntN(40); lost > 0 && round%2 == 0 {
				sc.after.Arm(1+lost%4, coordtest.Deletes, func(_ context.Context, _ backendtest.Call, err error) error {
					if err != nil {
						return err
					}
					return backend.ErrUncertain
				})
			}
			if round%4 == 1 {
				sc.before.Arm(1+r.IntN(4), coordtest.Deletes, func(_ context.Context, c backendtest.Call, _ error) error {
					struck++
					w.Link("a").Expire(c.Session.ID())
					return nil
				})
			}
			var wg sync.WaitGroup
			for _, c := range calls {
				wg.Go(func() {
					switch c.kind {
					case 0:
						c.items[0].Nack(0)
					case 1:
						c.items[0].Release()
					case 2:
						c.items[0].Ack()
					default:
						sc.q.AckAll(c.items...)
					}
				})
			}
			wg.Wait()
			acked := make(map[string]bool)
			for _, it := range items {
				err := it.Ack() // the first call, for some
				acked[it.ID] = err == nil
				if err != nil && !errors.Is(err, coord.ErrReleased) && !errors.Is(err, coord.ErrLost) {
					w.T.Errorf("round %d: %v", round, err)
				}
			}
			// A fault that these calls were too few for must not meet the next ones.
			sc.before.Arm(0, nil, nil)
			sc.after.Arm(0, nil, nil)
			commits += sc.sent()
			if n := coordtest.Inside(&sc.q.Consumer).AckLines(); n != 0 {
				w.T.Errorf("round %d: %d lines are left", round, n)
			}
			// The remaining items were given back or lost; none of them was acknowledged.
			left := 0
			for {
				it, err := sc.q.TryTake(context.Background())
				if errors.Is(err, coord.ErrEmpty) {
					break
				}
				if err != nil {
					w.T.Fatal(err)
				}
				left++
				if acked[it.ID] {
					w.T.Errorf("round %d: %d came again after its Ack", round, it.Value)
				}
				mustAck(w.T, it)
			}
			want := 0
			for _, done := range acked {
				if !done {
					want++
				}
			}
			if left != want {
				w.T.Errorf("round %d: %d items are left, %d were given back or lost", round, left, want)
			}
		}
		w.T.Logf("figure: Acks of all kinds at a time: %d commits in %d rounds, %d sessions lost", commits, rounds, struck)
		if struck == 0 {
			w.T.Error("no session was lost in a commit")
		}
	})
}

func TestQueue_ANackOfLessThanAMillisecondIsADelay(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		if err := mustTake(w.T, q, 1).Nack(time.Microsecond); err != nil {
			w.T.Fatal(err)
		}
		began := time.Now()
		_, err := q.TryTake(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		it := mustTake(w.T, q, 1)
		if d := time.Since(began); d < time.Microsecond || d > 10*time.Millisecond {
			w.T.Errorf("it came back after %v", d)
		}
		if err := it.Nack(-time.Second); err != nil {
			w.T.Fatal(err)
		}
		it, err = q.TryTake(context.Background())
		if err != nil || it.Attempt != 3 {
			w.T.Fatalf("%v, %v, want it at once", it, err)
		}
		mustAck(w.T, it)
		w.drained(&q.Consumer)
	})
}

// The delay of a Nack counts from its call, also if the Nack is refused at first and repeated later.
func TestQueue_TheDelayOfANackBeginsWithItsCall(t *testing.T) {
	onMemory(t, func(w *world) {
		const delay = time.Minute
		var on atomic.Bool
		q := w.hookedQueue("a", refuse(&on, coordtest.Deletes), nil)
		other := w.queue("b", nil)
		mustPut(w.T, q, 1, 1)
		it := mustTake(w.T, q, 1)
		on.Store(true)
		began := time.Now()
		coordtest.WantErr(w.T, it.Nack(delay), coord.ErrDenied)
		time.Sleep(delay / 2)
		on.Store(false)
		time.Sleep(delay/2 - time.Second)
		_, err := other.TryTake(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		again := mustTake(w.T, other, 1)
		if d := time.Since(began); d < delay || d > delay+time.Second {
			w.T.Errorf("it came back %v after a Nack with a delay of %v", d, delay)
		}
		if again.Attempt != 2 {
			w.T.Errorf("attempt %d", again.Attempt)
		}
		mustAck(w.T, again)
		w.drained(&other.Consumer)
	})
}
