package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// besideScene is a Work of two handlers with the items 1 and 2. Handler 1 returns at its gate, so that its Ack claims an
// item. Handler 2 acknowledges its item at its gate, so that Work asks the feeder for an item.
type besideScene struct {
	*nextScene
	h     *handled
	x     *working
	gates [3]chan struct{}
}

func newBesideScene(w *world, items int, o *coord.QueueOptions[int]) *besideScene {
	sc := &besideScene{nextScene: newNextScene(w, o), h: newHandled()}
	for i := range sc.gates {
		sc.gates[i] = make(chan struct{})
	}
	putTogether(w.T, sc.q, 1, items)
	sc.x = w.work(sc.q, 2, func(_ context.Context, it *coord.Item[int]) error {
		sc.h.note(it)
		switch it.Value {
		case 1:
			<-sc.gates[1]
		case 2:
			<-sc.gates[2]
			return sc.q.AckAll(it) // it does not wait for another Ack
		}
		return nil
	})
	sc.h.await(w, 2)
	w.Settle()
	sc.sent()
	return sc
}

// check checks that Work has handled the items once, that none of them was given back, refused or read twice, and how
// many commits the client has made: acks is a maximum, since two Acks can share a commit.
func (sc *besideScene) check(items, acks, both, own int) {
	t := sc.w.T
	t.Helper()
	sc.w.Settle()
	if _, a, b, o := sc.sent(); a > acks || b != both || o != own {
		t.Errorf("%d commits acknowledge, %d acknowledge and claim, %d claim; want %d at most, %d and %d", a, b, o, acks, both, own)
	}
	sc.x.finish()
	got, want := strings.Fields(sc.h.String()), strings.Fields(inOrder(1, items))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("delivered %v", got)
	}
	sc.mu.Lock()
	reads, back, refused := sc.reads, sc.back, sc.refused
	sc.mu.Unlock()
	if reads != items || back > 0 || refused > 0 {
		t.Errorf("%d reads of %d items, %d commits give items back, %d claims were refused", reads, items, back, refused)
	}
	sc.w.drained(&sc.q.Consumer)
}

// The feeder claims an item for Work, and meanwhile an Ack claims the next one. Work handles both, whichever comes first.
func TestQueue_AnAckClaimsBesideTheFeeder(t *testing.T) {
	for name, during := range map[string]func(backendtest.Call) bool{
		"the commit": onlyClaims,
		"the read":   func(c backendtest.Call) bool { return itemsOf(c) == 1 },
	} {
		t.Run("during "+name+" of the feeder", func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc := newBesideScene(w, 4, nil)
				fed, feed := sc.hold(during)
				close(sc.gates[2])
				<-fed // for 3
				close(sc.gates[1])
				sc.h.await(w, 1) // 4
				w.Settle()
				feed()
				sc.h.await(w, 1)
				sc.check(4, 3, 1, 1)
			})
		})
	}
	t.Run("while Work decodes", func(t *testing.T) {
		onMemory(t, func(w *world) {
			decoding, decode := make(chan struct{}), make(chan struct{})
			sc := newBesideScene(w, 4, &coord.QueueOptions[int]{Codec: coord.Codec[int]{
				Encode: coord.JSON[int]().Encode,
				Decode: func(data []byte) (int, error) {
					if string(data) == "4" {
						close(decoding)
						<-decode
					}
					return coord.JSON[int]().Decode(data)
				},
			}})
			fed, feed := sc.hold(onlyClaims)
			close(sc.gates[2])
			<-fed
			close(sc.gates[1])
			<-decoding
			w.Settle()
			feed()
			w.Settle()
			close(decode)
			sc.h.await(w, 2)
			sc.check(4, 3, 1, 1)
		})
	})
	t.Run("before the feeder ends", func(t *testing.T) {
		onMemory(t, func(w *world) {
			sc := newBesideScene(w, 4, nil)
			fed, feed := sc.hold(onlyClaims)
			close(sc.gates[2])
			<-fed
			acked, ack := sc.hold(acksAndClaims)
			close(sc.gates[1])
			<-acked
			feed()
			sc.h.await(w, 1)
			ack()
			sc.h.await(w, 1)
			sc.check(4, 3, 1, 1)
		})
	})
}

// The names are too old while an Ack claims one of the items. The feeder lists only when that claim is made, so it does not
// try to claim the same item.
func TestQueue_TheFeederListsAfterTheClaimsOfAcks(t *testing.T) {
	for _, items := range []int{3, 4} { // the last of them are not remembered any more
		t.Run(fmt.Sprint(items), func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc := newBesideScene(w, items, nil)
				acked, ack := sc.hold(acksAndClaims)
				close(sc.gates[1])
				<-acked // with a claim on 3
				time.Sleep(2 * aheadTime)
				close(sc.gates[2])
				w.Settle()
				ack()
				sc.h.await(w, items-2)
				sc.check(items, items-1, 1, items-3)
			})
		})
	}
}

const aheadTime = time.Second

// The feeder claims an item for a Take whose context ends. The item is given back, so no Ack claims the one behind it
// meanwhile.
func TestQueue_NoAckPassesOverTheItemOfATakeThatGivesUp(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h, gate := newNextScene(w, nil), newHandled(), make(chan struct{})
		putTogether(w.T, sc.q, 1, 4)
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
			if h.note(it); it.Value == 1 {
				<-gate
			}
			return nil
		})
		h.await(w, 1)
		held, goOn := make(chan struct{}), make(chan struct{})
		sc.before.Arm(1, onlyClaims, func(context.Context, backendtest.Call, error) error {
			close(held)
			<-goOn
			return nil
		})
		ctx, cancel := context.WithCancel(context.Background())
		take := w.take(ctx, sc.q)
		<-held // with a claim on 2
		cancel()
		<-take.done
		close(gate)
		w.Settle()
		close(goOn)
		h.await(w, 3)
		w.Settle()
		x.finish()
		if got := h.String(); got != inOrder(1, 4) {
			w.T.Errorf("delivered %s", got)
		}
		w.drained(&sc.q.Consumer)
	})
}

// Work has got an item from an Ack in place of the one that the feeder claims for it, and ends. The feeder gives its item
// back, which counts no attempt.
func TestQueue_WorkThatEndsGivesBackWhatTheFeederClaims(t *testing.T) {
	onMemory(t, func(w *world) {
		sc := newBesideScene(w, 4, nil)
		fed, feed := sc.hold(onlyClaims)
		close(sc.gates[2])
		<-fed // with a claim on 3
		close(sc.gates[1])
		sc.h.await(w, 1) // 4
		w.Settle()
		sc.x.finish()
		feed()
		w.Settle()
		b := w.queue("b", nil)
		it, err := b.TryTake(context.Background())
		if err != nil || it.Value != 3 || it.Attempt != 1 {
			w.T.Fatalf("%+v, %v, want item 3, attempt 1", it, err)
		}
		mustAck(w.T, it)
		w.drained(&b.Consumer)
	})
}

// The service has no space for claims, and Work has got items from Acks before. Each pause lasts.
func TestQueue_AnEarlierClaimOfAnAckCutsNoPauseShort(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h := newNextScene(w, nil), newHandled()
		putTogether(w.T, sc.q, 1, 3)
		var last time.Time
		tries, space := 0, make(chan struct{})
		var refuse func(context.Context, backendtest.Call, error) error
		refuse = func(context.Context, backendtest.Call, error) error {
			if d := time.Since(last); tries > 0 && d == 0 {
				w.T.Error("Work tries again without a pause")
			}
			last = time.Now()
			if tries++; tries < 5 {
				sc.before.Arm(1, claims, refuse)
			} else {
				close(space)
			}
			return backend.ErrNoSpace
		}
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
			if h.note(it); it.Value == 2 {
				sc.before.Arm(1, onlyClaims, refuse)
				return it.Ack()
			}
			return nil
		})
		<-space
		h.await(w, 3)
		w.Settle()
		x.finish()
		w.drained(&sc.q.Consumer)
	})
}

// Work of several handlers, which stops and starts again, shares its queue value with a Take, a Pop and an All, beside
// another client. Messages are lost, and with expiry sessions too. Each item is acknowledged once, no call starves, and
// there are never more claims than places.
func TestQueue_WorkBesideAllOtherCalls(t *testing.T) {
	t.Parallel()
	for seed := range uint64(coordtest.Count(2, 100)) {
		for _, kind := range []struct {
			expire   bool
			prefetch int
		}{{false, 1}, {true, 1}, {false, 4}, {true, 4}} {
			expire, late := kind.expire, kind.prefetch-1
			if first := expire == (late > 0); !coordtest.Long() && first != (seed == 0) {
				continue // each kind with one of the two seeds
			}
			t.Run(fmt.Sprintf("%d, lost sessions %t, prefetch %d", seed, expire, kind.prefetch), func(t *testing.T) {
				onMemory(t, func(w *world) {
					const items, handlers = 600, 4
					opts := &coord.QueueOptions[int]{MaxLen: 100_000, Prefetch: kind.prefetch}
					p := wide(w.queue("p", opts))
					putTogether(w.T, p, 1, items)
					var mu sync.Mutex
					r := rand.New(rand.NewPCG(seed, 5))
					dice := func(n int) int {
						mu.Lock()
						defer mu.Unlock()
						return r.IntN(n)
					}
					lossy := func(c backendtest.Call, err error) error {
						if c.Op == "commit" && err == nil && dice(12) == 0 {
							return backend.ErrUncertain
						}
						return err
					}
					var both, unknown atomic.Int32
					open := func(name string) (*coord.Queue[int], backendtest.Link) {
						l := w.Link(name)
						c := coordtest.Open(w.T, backendtest.Intercept(l, backendtest.Hooks{
							Before: func(_ context.Context, c backendtest.Call) error { return lossy(c, nil) },
							After: func(_ context.Context, c backendtest.Call, err error) error {
								if acksAndClaims(c) && err == nil {
									both.Add(1)
								}
								return lossy(c, err)
							},
						}), nil)
						l.(*memory.Link).SetLatency(time.Duration(1+dice(3)) * time.Millisecond)
						return wide(coord.NewQueue(c, "/q", opts)), l
					}
					q, link := open("a")
					other, _ := open("b")
					seen, got := make(map[int]int), make(map[string]int)
					note := func(who string, v, attempt int) {
						mu.Lock()
						defer mu.Unlock()
						got[who]++
						if seen[v]++; !expire && (seen[v] > 1 || attempt != 1) {
							w.T.Errorf("%s got %d, attempt %d, for the %d. time", who, v, attempt, seen[v])
						}
					}
					expired := func(it *coord.Item[int]) {
						if id := it.Session(); expire && dice(60) == 0 {
							time.AfterFunc(time.Duration(dice(4000))*time.Microsecond, func() { link.Expire(id) })
						}
					}
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					var calls sync.WaitGroup
					work := func(who string, q *coord.Queue[int], slow int) {
						for ctx.Err() == nil {
							one, end := context.WithCancel(ctx)
							count := 10 + dice(60)
							var n atomic.Int32
							if err := q.Work(one, handlers, func(_ context.Context, it *coord.Item[int]) error {
								if who == "Work" {
									expired(it)
								}
								time.Sleep(time.Duration(dice(1+slow)) * time.Millisecond)
								note(who, it.Value, it.Attempt)
								if int(n.Add(1)) == count {
									end()
								}
								return nil
							}); err != nil {
								w.T.Error(err)
							}
							end()
						}
					}
					calls.Go(func() { work("Work", q, 3*int(seed%4)) })
					calls.Go(func() { work("another client", other, 8) })
					each := func(who string, f func() (it *coord.Item[int], err error)) {
						calls.Go(func() {
							for ctx.Err() == nil {
								it, err := f()
								if err == nil {
									note(who, it.Value, it.Attempt)
									err = it.Ack()
								}
								if err != nil && ctx.Err() == nil && !expire {
									w.T.Error(who, err)
								}
								time.Sleep(time.Duration(dice(20)) * time.Millisecond)
							}
						})
					}
					each("Take", func() (*coord.Item[int], error) { return q.Take(ctx) })
					each("All", func() (*coord.Item[int], error) {
						for it, err := range q.All(ctx) {
							return it, err
						}
						return nil, context.Cause(ctx)
					})
					calls.Go(func() {
						for ctx.Err() == nil {
							v, err := q.Pop(ctx)
							switch {
							case err == nil:
								note("Pop", v, 1)
							case errors.Is(err, coord.ErrUncertain):
								unknown.Add(1)
							case ctx.Err() == nil && !expire:
								w.T.Error("Pop", err)
							}
							time.Sleep(time.Duration(dice(20)) * time.Millisecond)
						}
					})
					most := 0
					for mustLen(w.T, &p.Consumer) > 0 {
						most = max(most, len(claimNames(w)))
						time.Sleep(time.Millisecond)
					}
					cancel()
					calls.Wait()
					if missing := items - len(seen); missing > int(unknown.Load()) {
						w.T.Errorf("%d items were not delivered, %d Pops have an unknown outcome", missing, unknown.Load())
					}
					for _, who := range []string{"Work", "another client", "Take", "Pop", "All"} {
						if got[who] == 0 {
							w.T.Errorf("%s got nothing: %v", who, got)
						}
					}
					w.T.Logf("figure: %v, %d commits acknowledge and claim, %d claims at once", got, both.Load(), most)
					// Beside each place, what is in stock, and what is being acknowledged.
					if places := 2*(handlers+2*late) + 3 + late; most > places {
						w.T.Errorf("%d items were claimed at once, for %d places", most, places)
					}
					w.counted(items, items)
					w.drained(&p.Consumer)
				})
			})
		}
	}
}
