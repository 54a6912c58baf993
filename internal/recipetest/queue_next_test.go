package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
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
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// What a handler, or the queue, must have done so that its Ack claims no next item.
func TestQueue_AckAndClaimAreTwoCommits(t *testing.T) {
	bad := errors.New("bad")
	nothing := func(context.Context, *coord.Item[int]) error { return nil }
	for _, test := range []struct {
		name   string
		o      coord.QueueOptions[int]
		n      int
		handle func(context.Context, *coord.Item[int]) error // of the items 1 to 4 of 5
		both   int
	}{
		{"Prefetch", coord.QueueOptions[int]{Prefetch: 3}, 1, nothing, 0},
		{"MaxAttempts 1", coord.QueueOptions[int]{MaxAttempts: 1}, 1, nothing, 0},
		{"an error", coord.QueueOptions[int]{}, 1, func(context.Context, *coord.Item[int]) error { return bad }, 0},
		{"a panic", coord.QueueOptions[int]{}, 1, func(context.Context, *coord.Item[int]) error { panic(bad) }, 0},
		{"Goexit", coord.QueueOptions[int]{}, 1, func(context.Context, *coord.Item[int]) error { runtime.Goexit(); return nil }, 0},
		{"an Ack of the handler", coord.QueueOptions[int]{}, 1, func(_ context.Context, it *coord.Item[int]) error { return it.Ack() }, 0},
		{"the end of Work", coord.QueueOptions[int]{}, 1, nothing, 3}, // by the first three Acks
	} {
		t.Run(test.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc, h := newNextScene(w, &test.o), newHandled()
				putTogether(w.T, sc.q, 1, 5)
				ctx, cancel := context.WithCancel(context.Background())
				err := sc.q.Work(ctx, test.n, func(ctx context.Context, it *coord.Item[int]) error {
					if h.note(it); it.Value == 4 {
						defer cancel()
					}
					return test.handle(ctx, it)
				})
				if err != nil {
					w.T.Error(err)
				}
				if got := h.String(); got != inOrder(1, 4) {
					w.T.Errorf("delivered %s", got)
				}
				if _, _, both, _ := sc.sent(); both != test.both {
					w.T.Errorf("%d commits acknowledge and claim, want %d", both, test.both)
				}
				it, err := w.queue("b", nil).TryTake(context.Background())
				if err != nil || it.Attempt != 1 || it.Value != 5 {
					w.T.Errorf("%+v, %v, want item 5, attempt 1", it, err)
				}
			})
		})
	}
}

// An item that was claimed before is claimed by the feeder, with the version of its state. The items behind it
// wait for it.
func TestQueue_AnAckClaimsOnlyItemsThatWereNeverClaimed(t *testing.T) {
	for name, fail := range map[string]func(it *coord.Item[int]) error{
		"released after a failure": func(it *coord.Item[int]) error { return it.Nack(0) },
		"put off":                  func(it *coord.Item[int]) error { return it.Nack(time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc, h, b := newNextScene(w, nil), newHandled(), w.queue("b", nil)
				putTogether(w.T, sc.q, 1, 6)
				one, two, three := mustTake(w.T, b, 1), mustTake(w.T, b, 2), mustTake(w.T, b, 3)
				if err := fail(three); err != nil {
					w.T.Fatal(err)
				}
				if err := errors.Join(one.Release(), two.Release()); err != nil {
					w.T.Fatal(err)
				}
				time.Sleep(time.Second)
				x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
				h.await(w, 6)
				synctest.Wait()
				_, acks, both, own := sc.sent()
				x.finish()
				if got := h.String(); got != "1/1 2/1 3/2 4/1 5/1 6/1" {
					w.T.Errorf("delivered %s", got)
				}
				// 1; 1 and 2; 2; 3; 3 and 4; 4 and 5; 5 and 6; 6.
				if acks != 2 || both != 4 || own != 2 {
					w.T.Errorf("%d commits acknowledge and claim, %d acknowledge, %d claim, want 4, 2 and 2", both, acks, own)
				}
				w.drained(&sc.q.Consumer)
			})
		})
	}
}

// Other consumers have the next three items. The refusal of the commit that acknowledges and claims is the first of
// the two failures after which a consumer lists again: it costs no further claim.
func TestQueue_ARefusedAckAndClaimCountsAsALostRace(t *testing.T) {
	for _, how := range []string{"claimed", "acknowledged"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc, h, b := newNextScene(w, nil), newHandled(), w.queue("b", nil)
				putTogether(w.T, sc.q, 1, 6)
				x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
					if h.note(it); it.Value == 1 {
						for n := 2; n <= 4; n++ {
							if other := mustTake(w.T, b, n); how == "acknowledged" {
								mustAck(w.T, other)
							}
						}
						sc.sent()
					}
					return nil
				})
				h.await(w, 3)
				synctest.Wait()
				_, acks, both, own := sc.sent()
				x.finish()
				if got := h.String(); got != "1/1 5/1 6/1" {
					w.T.Errorf("delivered %s", got)
				}
				// 1 and 2 refused; 1; 3 refused; 5, by a list; 5 and 6; 6.
				if acks != 2 || both != 2 || own != 2 {
					w.T.Errorf("%d commits acknowledge and claim, %d acknowledge, %d claim, want 2, 2 and 2", both, acks, own)
				}
			})
		})
	}
}

// A caller that waits for an item of the same queue value gets the next one, however busy Work is.
func TestQueue_WorkLeavesItemsToOtherCallers(t *testing.T) {
	for _, handlers := range []int{1, 8} {
		t.Run(fmt.Sprint(handlers), func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc, h := newNextScene(w, nil), newHandled()
				wide(sc.q)
				w.Link("a").(*memory.Link).SetLatency(tripTime / 2)
				items, takes := 60*handlers, 10
				putTogether(w.T, sc.q, 1, items)
				x := w.work(sc.q, handlers, func(_ context.Context, it *coord.Item[int]) error {
					time.Sleep(tripTime * time.Duration(handlers-1) * time.Duration(it.Value*7%13) / 50)
					h.note(it)
					return nil
				})
				h.await(w, 2)
				for n := range takes {
					began := time.Now()
					it, err := sc.q.Take(context.Background())
					if err != nil {
						w.T.Fatal(err)
					}
					// One commit of Work can be under way; then the Take claims its item, in a round trip, or in four after a race.
					if d := time.Since(began); d > 6*tripTime {
						w.T.Errorf("Take %d has waited for %v", n, d)
					}
					mustAck(w.T, it)
				}
				h.await(w, items-takes-2)
				w.Settle()
				x.finish()
				w.drained(&sc.q.Consumer)
			})
		})
	}
}

// An item that an Ack has claimed goes back to the queue, since Work ends. Another call of the same queue value,
// which began meanwhile, gets that item, and not the one behind it.
func TestQueue_NoCallPassesOverTheItemThatAnAckClaims(t *testing.T) {
	for _, how := range []string{"Take", "Pop", "All"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc := newNextScene(w, nil)
				putTogether(w.T, sc.q, 1, 4)
				held, goOn := make(chan struct{}), make(chan struct{})
				sc.after.Arm(1, acksAndClaims, func(_ context.Context, _ backendtest.Call, err error) error {
					close(held)
					<-goOn
					return err
				})
				x := w.work(sc.q, 1, func(context.Context, *coord.Item[int]) error { return nil })
				<-held
				got := make(chan int, 1)
				go func() {
					switch how {
					case "Take":
						it, err := sc.q.Take(context.Background())
						if err != nil {
							w.T.Error(err)
							close(got)
							return
						}
						got <- it.Value
						it.Release()
					case "Pop":
						v, err := sc.q.Pop(context.Background())
						if err != nil {
							w.T.Error(err)
						}
						got <- v
					case "All":
						for it, err := range sc.q.All(context.Background()) {
							if err != nil {
								w.T.Error(err)
							}
							got <- it.Value
							it.Release()
							break
						}
					}
				}()
				synctest.Wait()
				x.stop()
				synctest.Wait()
				close(goOn)
				if v := receive(w, "an item comes", got); v != 2 {
					w.T.Errorf("%s got %d, want 2", how, v)
				}
				if err := x.ended(); err != nil {
					w.T.Error(err)
				}
			})
		})
	}
}

// A Work with a free handler waits for the feeder while the Ack of another handler claims the last item: the free
// handler begins with that item.
func TestQueue_AFreeHandlerGetsTheItemThatAnAckHasClaimed(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h := newNextScene(w, nil), newHandled()
		putTogether(w.T, sc.q, 1, 3)
		held, goOn, free := make(chan struct{}), make(chan struct{}), make(chan struct{})
		sc.after.Arm(1, acksAndClaims, func(_ context.Context, _ backendtest.Call, err error) error {
			close(held)
			<-goOn
			return err
		})
		x := w.work(sc.q, 2, func(_ context.Context, it *coord.Item[int]) error {
			if h.note(it); it.Value == 2 {
				<-free
				return it.Nack(time.Hour) // it does not wait for the Ack
			}
			return nil
		})
		<-held // item 3 is claimed with the Ack of 1
		close(free)
		synctest.Wait() // the other handler is free, and Work asks for an item
		close(goOn)
		h.await(w, 3)
		w.Settle()
		x.finish()
		if n := mustLen(w.T, &sc.q.Consumer); n != 1 {
			w.T.Errorf("%d items are left, want 1", n)
		}
	})
}

// The codec panics at an item that an Ack has claimed: the caller of Work gets the panic, as from each call that
// decodes. The old item is acknowledged, and the new one has failed once.
func TestQueue_APanicOfTheCodecAtTheNextItemIsOneOfWork(t *testing.T) {
	onMemory(t, func(w *world) {
		h := newHandled()
		var bad atomic.Bool
		bad.Store(true)
		sc := newNextScene(w, &coord.QueueOptions[int]{Codec: coord.Codec[int]{
			Encode: coord.JSON[int]().Encode,
			Decode: func(data []byte) (int, error) {
				if string(data) == "2" && bad.Load() {
					panic("cannot decode")
				}
				return coord.JSON[int]().Decode(data)
			},
		}})
		putTogether(w.T, sc.q, 1, 3)
		func() {
			defer func() {
				if v := recover(); v != "cannot decode" {
					w.T.Errorf("recovered %v", v)
				}
			}()
			err := sc.q.Work(context.Background(), 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
			w.T.Error("Work has returned", err)
		}()
		if _, _, both, _ := sc.sent(); both != 1 {
			w.T.Errorf("%d commits acknowledge and claim, want 1", both)
		}
		bad.Store(false)
		for _, want := range []string{"2/2", "3/1"} {
			it, err := sc.q.Take(context.Background())
			if err != nil || fmt.Sprintf("%d/%d", it.Value, it.Attempt) != want {
				w.T.Fatalf("%+v, %v, want %s", it, err, want)
			}
			mustAck(w.T, it)
		}
		if got := h.String(); got != "1/1" {
			w.T.Errorf("delivered %s", got)
		}
		w.drained(&sc.q.Consumer)
	})
}

// An item that an Ack has claimed cannot be decoded.
func TestQueue_AnUndecodableNextItemIsADeadLetter(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h := newNextScene(w, nil), newHandled()
		putTogether(w.T, sc.q, 1, 1)
		putWords(w.T, coord.NewQueue[string](w.Open("b", nil), "/q", nil), 1)
		putTogether(w.T, sc.q, 3, 4)
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
		h.await(w, 3)
		w.Settle()
		_, _, both, _ := sc.sent()
		x.finish()
		if got := h.String(); got != "1/1 3/1 4/1" || both != 2 {
			w.T.Errorf("delivered %s, %d commits acknowledge and claim", got, both)
		}
		if l := letters(w.T, &sc.q.Consumer); len(l) != 1 {
			w.T.Errorf("%d dead letters, want 1", len(l))
		}
		w.drained(&sc.q.Consumer)
	})
}

// An outsider has deleted the claim of the handled item: its Ack is refused, the item comes again, and then the
// next one.
func TestQueue_ARefusedAckClaimsNothing(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h, s := newNextScene(w, nil), newHandled(), w.Session("x")
		putTogether(w.T, sc.q, 1, 5)
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
			if h.note(it); it.Attempt == 1 && it.Value == 2 {
				if _, err := s.Commit(context.Background(), backend.Delete(it.Path(), backend.AnyVersion)); err != nil {
					w.T.Error(err)
				}
			}
			return nil
		})
		h.await(w, 6)
		w.Settle()
		x.finish()
		if got := h.String(); got != "1/1 2/1 2/2 3/1 4/1 5/1" {
			w.T.Errorf("delivered %s", got)
		}
		w.drained(&sc.q.Consumer)
	})
}

// The outcome of the commit stays unknown, since an outsider deletes the node that proves it. It was applied: the
// old item is gone, and the next one does not stay claimed.
func TestQueue_AnUnknownOutcomeLeavesNoItemClaimed(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h, s := newNextScene(w, nil), newHandled(), w.Session("x")
		putTogether(w.T, sc.q, 1, 3)
		sc.after.Arm(1, acksAndClaims, func(_ context.Context, c backendtest.Call, _ error) error {
			if _, err := s.Commit(context.Background(), backend.Delete(c.Ops[len(c.Ops)-1].Path, backend.AnyVersion)); err != nil {
				w.T.Error(err)
			}
			return backend.ErrUncertain
		})
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
		h.await(w, 3)
		w.Settle()
		x.finish()
		if got := h.String(); got != "1/1 2/2 3/1" {
			w.T.Errorf("delivered %s", got)
		}
		w.drained(&sc.q.Consumer)
	})
}

// The read of the next item hangs. The Ack has ended by then, and Work can end without the read.
func TestQueue_AnAckDoesNotWaitForTheReadOfTheNextItem(t *testing.T) {
	for _, name := range []string{"the read comes late", "the read fails", "Work ends"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				h, goOn := newHandled(), make(chan struct{})
				var holds coordtest.Nth
				holds.Arm(2, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/i-") }, func(ctx context.Context, _ backendtest.Call, _ error) error {
					<-goOn
					if name == "the read fails" {
						return backend.ErrUncertain
					}
					return nil
				})
				acked := make(chan struct{}, 10)
				c := coordtest.Open(w.T, backendtest.Intercept(w.Link("a"), backendtest.Hooks{Before: holds.Before}), &coord.Options{
					Trace: func(_ context.Context, e trace.Event) {
						if e, ok := e.(trace.ItemSettled); ok && e.Outcome == trace.ItemAcked {
							acked <- struct{}{}
						}
					},
				})
				q := coord.NewQueue[int](c, "/q", nil)
				putTogether(w.T, q, 1, 3)
				x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
				receive(w, "the first item is acknowledged", acked)
				if name == "Work ends" {
					x.finish()
					it, err := w.queue("b", nil).TryTake(context.Background())
					if err != nil || it.Value != 2 || it.Attempt != 1 {
						w.T.Errorf("%+v, %v, want item 2, attempt 1", it, err)
					}
					close(goOn)
					return
				}
				synctest.Wait()
				close(goOn)
				h.await(w, 3)
				w.Settle()
				x.finish()
				if got := h.String(); got != inOrder(1, 3) {
					w.T.Errorf("delivered %s", got)
				}
				w.drained(&q.Consumer)
			})
		})
	}
}

// The service's clock shows an earlier time when the commit is made. No handler gets the next item before it is
// due.
func TestDelayQueue_AnAckClaimsNoItemBeforeItIsDue(t *testing.T) {
	onMemory(t, func(w *world) {
		var step coordtest.Nth
		var both atomic.Int32
		q := w.delays("a", 0, &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			if acksAndClaims(c) {
				both.Add(1)
			}
			return step.Before(ctx, c)
		}})
		const back = -time.Minute + 2*time.Second
		base := w.serviceTime()
		for n := 1; n <= 3; n++ {
			if _, err := q.Put(context.Background(), base.Add(time.Duration(n)*time.Second), n); err != nil {
				w.T.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		step.Arm(2, acksAndClaims, func(context.Context, backendtest.Call, error) error {
			w.setClock(back)
			return nil
		})
		h := newHandled()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- q.Work(ctx, 1, func(_ context.Context, it *coord.Item[int]) error {
				if h.note(it); it.Value == 3 && time.Now().Add(serviceAhead+back).Before(base.Add(3*time.Second)) {
					w.T.Error("item 3 is early")
				}
				return nil
			})
		}()
		h.await(w, 2)
		synctest.Wait()
		if got := h.String(); got != inOrder(1, 2) || both.Load() != 2 {
			w.T.Errorf("delivered %s, %d commits acknowledge and claim", got, both.Load())
		}
		h.await(w, 1)
		w.Settle()
		cancel()
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		if got := h.String(); got != inOrder(1, 3) {
			w.T.Errorf("delivered %s", got)
		}
	})
}

// The events are those of an Ack and a claim that follows it.
func TestQueue_TheEventsOfAnAckThatClaims(t *testing.T) {
	onMemory(t, func(w *world) {
		x, c := w.taped("a", nil)
		putTogether(w.T, w.queue("b", nil), 1, 2)
		q := coord.NewQueue[int](c, "/q", nil)
		wk := w.work(q, 1, func(context.Context, *coord.Item[int]) error { return nil })
		const item = "node=/items/b-0-0/i-*-0-* "
		x.want("#1 ItemClaimed queue /q take "+item+"item=1 attempt=1 token=true",
			"#1 ItemSettled queue /q take "+item+"item=1 attempt=1 acked delay=0s err=nil",
			"#2 ItemClaimed queue /q take "+item+"item=2 attempt=1 token=true",
			"#2 ItemSettled queue /q take "+item+"item=2 attempt=1 acked delay=0s err=nil",
			"#3 WaitBegan queue /q work ahead=-1")
		wk.finish()
		x.mu.Lock()
		defer x.mu.Unlock()
		var tokens []int64
		for _, e := range x.all {
			if e, ok := e.(trace.ItemClaimed); ok {
				tokens = append(tokens, e.Token)
			}
		}
		if len(tokens) != 2 || tokens[0] >= tokens[1] {
			w.T.Errorf("tokens %v", tokens)
		}
	})
}

// A service limits the operations of a commit. No commit of Acks and claims exceeds that.
func TestQueue_AcksAndClaimsKeepTheLimitsOfTheService(t *testing.T) {
	for _, limits := range []backend.Limits{{Ops: 20}, {Ops: 63}, {Checks: 3}, {Bytes: 20_000}} {
		t.Run(fmt.Sprintf("%+v", limits), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limits.Sequence = 1<<31 - 1
				if limits.Bytes == 0 {
					limits.Bytes = backend.MaxRequest
				}
				st := memory.New(&memory.Options{SessionTimeout: time.Minute, Limits: limits})
				w := &world{&coordtest.World{Service: coordtest.MemoryService{Store: st}, T: t, Timeout: time.Minute, Fake: true}}
				var both atomic.Int32
				q := coord.NewQueue(w.Open("a", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
					if acksAndClaims(c) {
						both.Add(1)
					}
					if acknowledges(c) && err != nil {
						t.Error(err)
					}
					return err
				}}), "/q", &coord.QueueOptions[int]{MaxLen: 1000})
				w.Link("a").(*memory.Link).SetLatency(tripTime / 2)
				const items = 200
				for n := 0; n < items; n += 2 {
					putTogether(t, q, n, n+1)
				}
				h := newHandled()
				x := w.work(q, 24, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
				h.await(w, items)
				w.Settle()
				time.Sleep(time.Second)
				x.finish()
				if both.Load() == 0 {
					t.Error("no commit acknowledges and claims")
				}
				w.counted(items, items)
				w.drained(&q.Consumer)
			})
		})
	}
}

// Work is stopped at random moments and started again. No item is lost, handled twice, or counted as an attempt
// that no handler has seen, and with one handler the order is kept.
func TestQueue_WorkThatStopsAndStartsKeepsTheOrder(t *testing.T) {
	for _, n := range []int{1, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc := newNextScene(w, &coord.QueueOptions[int]{MaxLen: 10_000})
				r := rand.New(rand.NewPCG(uint64(n), 1))
				const items = 400
				for i := 0; i < items; i += 100 {
					putTogether(w.T, sc.q, i, i+99)
				}
				var mu sync.Mutex
				seen := make(map[int]int)
				last, runs := -1, 0
				for len(seen) < items {
					runs++
					stopAfter, count := r.IntN(12), 0
					ctx, cancel := context.WithCancel(context.Background())
					err := sc.q.Work(ctx, n, func(_ context.Context, it *coord.Item[int]) error {
						mu.Lock()
						defer mu.Unlock()
						seen[it.Value]++
						if it.Attempt != 1 {
							w.T.Errorf("attempt %d of %d", it.Attempt, it.Value)
						}
						if n == 1 && it.Value != last+1 {
							w.T.Errorf("%d after %d", it.Value, last)
						}
						last = it.Value
						if count++; count == stopAfter {
							go cancel() // before the Ack, or during it, or after it
						}
						if len(seen) == items || count > 20 {
							cancel()
						}
						return nil
					})
					cancel()
					if err != nil {
						w.T.Fatal(err)
					}
				}
				for v, times := range seen {
					if times != 1 {
						w.T.Errorf("%d was handled %d times", v, times)
					}
				}
				_, acks, both, own := sc.sent()
				w.T.Logf("figure: Work with %d handlers stopped %d times in %d items: %d commits acknowledge and claim, %d only acknowledge, %d only claim", n, runs, items, both, acks, own)
				if both == 0 {
					w.T.Error("no commit acknowledges and claims")
				}
				w.counted(items, items)
				w.drained(&sc.q.Consumer)
			})
		})
	}
}

// Requests and replies of commits that acknowledge are lost at random, and with expiry sessions too. No item is
// lost, and none is delivered after its Ack.
func TestQueue_AcksThatClaimStandLostMessages(t *testing.T) {
	for _, expire := range []bool{false, true} {
		for _, n := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d handlers, lost sessions %t", n, expire), func(t *testing.T) {
				onMemory(t, func(w *world) {
					const items, consumers = 300, 4
					opts := &coord.QueueOptions[int]{MaxLen: 100_000}
					p := w.queue("p", opts)
					*coordtest.Inside(&p.Consumer).BucketSize = 64
					for i := 0; i < items; i += 50 {
						putTogether(w.T, p, i, i+49)
					}
					var mu sync.Mutex
					r := rand.New(rand.NewPCG(uint64(n), 2))
					dice := func(n int) int {
						mu.Lock()
						defer mu.Unlock()
						return r.IntN(n)
					}
					var both, lost, expired atomic.Int32
					seen, attempts := make(map[int]int), make(map[[2]int]bool)
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					var wg sync.WaitGroup
					for i := range consumers {
						name := fmt.Sprint(i)
						l := w.Link(name)
						c := coordtest.Open(w.T, backendtest.Intercept(l, backendtest.Hooks{
							Before: func(_ context.Context, c backendtest.Call) error {
								if acknowledges(c) && dice(10) == 0 {
									lost.Add(1)
									return backend.ErrUncertain
								}
								return nil
							},
							After: func(_ context.Context, c backendtest.Call, err error) error {
								if acksAndClaims(c) && err == nil {
									both.Add(1)
								}
								if acknowledges(c) && err == nil && dice(10) == 0 {
									lost.Add(1)
									return backend.ErrUncertain
								}
								return err
							},
						}), nil)
						l.(*memory.Link).SetLatency(time.Duration(i) * time.Millisecond)
						q := coord.NewQueue(c, "/q", opts)
						wg.Go(func() {
							if err := q.Work(ctx, n, func(_ context.Context, it *coord.Item[int]) error {
								if expire && dice(25) == 0 {
									expired.Add(1)
									id := it.Session()
									time.AfterFunc(time.Duration(dice(4000))*time.Microsecond, func() { l.Expire(id) })
								}
								time.Sleep(time.Duration(dice(3)*dice(2000)) * time.Microsecond)
								mu.Lock()
								defer mu.Unlock()
								seen[it.Value]++
								if at := [2]int{it.Value, it.Attempt}; attempts[at] {
									w.T.Errorf("attempt %d of %d came twice", it.Attempt, it.Value)
								} else {
									attempts[at] = true
								}
								return nil
							}); err != nil {
								w.T.Error(err)
							}
						})
					}
					w.Eventually("all are acknowledged", func() bool { return mustLen(w.T, &p.Consumer) == 0 })
					cancel()
					wg.Wait()
					for v := range items {
						if times := seen[v]; times == 0 || times > 1 && !expire {
							w.T.Errorf("%d was handled %d times", v, times)
						}
					}
					w.T.Logf("figure: %d consumers with %d handlers: %d of %d items claimed by Acks, %d lost messages, %d lost sessions", consumers, n, both.Load(), items, lost.Load(), expired.Load())
					if both.Load() == 0 || lost.Load() == 0 || expire && expired.Load() == 0 {
						w.T.Error("this tests too little")
					}
					w.counted(items, items)
					w.drained(&p.Consumer)
				})
			})
		}
	}
}
