package coord_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

func TestAckAllCostsOneCommit(t *testing.T) {
	onEach(t, func(w *world) {
		sc := newAckScene(w)
		for _, test := range []struct{ items, commits int }{{0, 0}, {1, 1}, {2, 1}, {64, 1}, {128, 1}, {200, 2}} {
			items := sc.take(test.items)
			rand.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
			if err := sc.q.AckAll(items...); err != nil {
				w.t.Error(err)
			}
			if n := sc.sent(); n != test.commits {
				w.t.Errorf("AckAll of %d: %d commits, want %d", test.items, n, test.commits)
			}
			for _, it := range items {
				wantErr(w.t, it.Err(), coord.ErrReleased)
				if err := it.Release(); err != nil {
					w.t.Error(err)
				}
				wantErr(w.t, it.Nack(0), coord.ErrReleased)
			}
		}
		w.drained(&sc.q.Consumer)
	})
}

func TestAckAllEndsEachItemAsItsAck(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		sc := newAckScene(w)
		items := sc.take(12)
		nodes := sc.nodes(items[4])
		note := nodes["i"] + "/note"
		sc.outsider(backend.Create(note, nil, backend.Persistent))
		sc.outsider(backend.Delete(items[5].Path(), backend.AnyVersion))
		if err := items[5].Verify(ctx); !errors.Is(err, coord.ErrLost) {
			w.t.Fatal(err)
		}
		mustAck(w.t, items[1])
		if err := items[2].Nack(0); err != nil {
			w.t.Fatal(err)
		}
		if err := items[3].Release(); err != nil {
			w.t.Fatal(err)
		}
		// Some twice, and in any order.
		args := append(slices.Clone(items), items[6], items[7], items[6], items[1])
		rand.Shuffle(len(args), func(i, j int) { args[i], args[j] = args[j], args[i] })
		err := sc.q.AckAll(args...)
		wantErr(w.t, err, coord.ErrReleased, coord.ErrLost, coord.ErrDeleted, backend.ErrNotEmpty)
		bad := map[int]error{2: coord.ErrReleased, 3: coord.ErrReleased, 4: backend.ErrNotEmpty, 5: coord.ErrLost}
		for i, it := range items {
			err := it.Ack()
			if want := bad[i]; want != nil {
				wantErr(w.t, err, want)
			} else if err != nil {
				w.t.Errorf("%d: %v", i, err)
			}
		}
		sc.outsider(backend.Delete(note, backend.AnyVersion))
		for _, n := range []int{2, 3, 5} {
			mustAck(w.t, mustTake(w.t, sc.q, n))
		}
		w.eventually("the background acknowledges the one with a node below it", func() bool { return mustLen(w.t, &sc.q.Consumer) == 0 })
	})
}

func TestAckAllRefusesWhatIsNotOfTheQueue(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.open("a", nil)
		q, other := coord.NewQueue[int](c, "/q", nil), coord.NewQueue[int](c, "/other", nil)
		mustPut(w.t, q, 1, 1)
		mustPut(w.t, other, 2, 2)
		mine, foreign := mustTake(w.t, q, 1), mustTake(w.t, other, 2)
		for name, items := range map[string][]*coord.Item[int]{
			"nil":              {mine, nil},
			"of another queue": {mine, foreign},
			"made by hand":     {{}, mine},
		} {
			err := q.AckAll(items...)
			wantErr(w.t, err, coord.ErrInvalid)
			if mine.Err() != nil || foreign.Err() != nil {
				t.Errorf("%s: an item was acknowledged", name)
			}
		}
		if err := mine.Verify(ctx); err != nil {
			w.t.Error(err)
		}
		mustAck(w.t, mine)
		mustAck(w.t, foreign)
		if err := coord.NewQueue[int](c, "//", nil).AckAll(); err != nil {
			w.t.Error(err)
		}
	})
}

// Acks, AckAlls with items in common, Nacks and Releases of the same items at a
// time: all of them return, one of them counts for each item, and they agree.
func TestAcksOfAllKindsAtATimeAgree(t *testing.T) {
	rounds := 20
	if long() {
		rounds = 300
	}
	onMemory(t, func(w *world) {
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
				sc.after.arm(1+lost%4, deletes, func(_ context.Context, _ backendtest.Call, err error) error {
					if err != nil {
						return err
					}
					return backend.ErrUncertain
				})
			}
			if round%4 == 1 {
				sc.before.arm(1+r.IntN(4), deletes, func(_ context.Context, c backendtest.Call, _ error) error {
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
					w.t.Errorf("round %d: %v", round, err)
				}
			}
			if n := coord.AckLines(&sc.q.Consumer); n != 0 {
				w.t.Errorf("round %d: %d lines are left", round, n)
			}
			// What is left was given back, and nothing that was acknowledged.
			left := 0
			for {
				it, err := sc.q.TryTake(context.Background())
				if errors.Is(err, coord.ErrEmpty) {
					break
				}
				if err != nil {
					w.t.Fatal(err)
				}
				left++
				if acked[it.ID] {
					w.t.Errorf("round %d: %d came again after its Ack", round, it.Value)
				}
				mustAck(w.t, it)
			}
			want := 0
			for _, done := range acked {
				if !done {
					want++
				}
			}
			if left != want {
				w.t.Errorf("round %d: %d items are left, %d were given back or lost", round, left, want)
			}
		}
	})
}
