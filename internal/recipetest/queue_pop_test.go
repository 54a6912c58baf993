package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// An item that was read ahead is popped under the rules for names that are remembered: what other
// clients have given back comes first after a second, and after 32 items.
func TestQueue_APopDoesNotRelyOnAnOldRead(t *testing.T) {
	for _, how := range []string{"after a second", "after 32 claims"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				q, other := w.queue("a", nil), w.queue("b", nil)
				*coordtest.Inside(&q.Consumer).BucketSize = 100
				mustPut(w.T, q, 1, 60)
				first := mustTake(w.T, other, 1)
				mustPop(w.T, q, 2)
				if err := first.Release(); err != nil {
					w.T.Fatal(err)
				}
				if how == "after a second" {
					time.Sleep(1100 * time.Millisecond) // fake
					mustPop(w.T, q, 1)
					mustPop(w.T, q, 3)
					return
				}
				for next := 3; ; next++ {
					v, err := q.Pop(context.Background())
					if err != nil {
						w.T.Fatal(err)
					}
					if v == 1 && next > 3 {
						return
					}
					if v != next || next == 3+32 {
						w.T.Fatalf("popped %d after %d others", v, next-3)
					}
				}
			})
		})
	}
}

// While an item is being claimed for a Take that was given up, a Pop beside it has read the next
// one ahead. The Pop after it waits for the item that is given back.
func TestQueue_APopDoesNotPassAnItemThatIsGivenBack(t *testing.T) {
	onMemory(t, func(w *world) {
		var reads, commits coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			return errors.Join(reads.Before(ctx, c), commits.Before(ctx, c))
		}}, nil)
		mustPut(w.T, q, 1, 5)
		wait := func(gate chan struct{}) func(context.Context, backendtest.Call, error) error {
			return func(context.Context, backendtest.Call, error) error {
				<-gate
				return nil
			}
		}
		reading, claiming := make(chan struct{}), make(chan struct{})
		reads.Arm(2, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/i-") }, wait(reading))
		mustPop(w.T, q, 1)
		w.Settle() // no call is at the feeder any more, so the next Pop uses the read
		popped := make(chan int, 1)
		pop := func() {
			v, err := q.Pop(context.Background())
			if err != nil {
				w.T.Error(err)
			}
			popped <- v
		}
		go pop() // waits for the read of 2
		w.Settle()
		commits.Arm(1, func(c backendtest.Call) bool { return coordtest.Commits(c, backend.OpCheck) }, wait(claiming))
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan error, 1)
		go func() {
			_, err := q.Take(ctx)
			over <- err
		}()
		w.Settle() // 3 is being claimed
		cancel()
		if err := <-over; !errors.Is(err, context.Canceled) || !commits.Idle() {
			w.T.Fatal(err)
		}
		close(reading)
		if v := <-popped; v != 2 {
			w.T.Fatalf("popped %d, want 2", v)
		}
		w.Settle() // 4 was read ahead
		go pop()
		w.Settle()
		close(claiming)
		if v := <-popped; v != 3 {
			w.T.Errorf("popped %d, want 3", v)
		}
		mustPop(w.T, q, 4)
		mustPop(w.T, q, 5)
		w.drained(&q.Consumer)
	})
}

// If the context or the session ends before the outcome of a deletion is known, the Pop says so, and
// the item is deleted or goes to another consumer.
func TestQueue_ADeletionAheadOfUnknownOutcome(t *testing.T) {
	for _, ends := range []string{"context", "session"} {
		for _, name := range []string{"request lost", "reply lost"} {
			t.Run(ends+", "+name, func(t *testing.T) {
				onMemory(t, func(w *world) {
					var x, y coordtest.Nth
					q := w.ahead(&backendtest.Hooks{Before: x.Before, After: y.After}, nil, 3)
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					z := &x
					if name == "reply lost" {
						z = &y
					}
					want := context.Canceled
					if ends == "session" {
						want = coord.ErrSessionLost
					}
					z.Arm(1, popsAhead, func(_ context.Context, c backendtest.Call, _ error) error {
						if ends == "session" {
							w.Link("a").Expire(c.Session.ID())
							<-c.Session.Done()
							return backend.Uncertain(c.Session.Err())
						}
						cancel()
						return backend.Uncertain(backend.ContextError(ctx))
					})
					v, err := q.Pop(ctx)
					coordtest.WantErr(w.T, err, coord.ErrUncertain, want)
					if v != 0 {
						w.T.Errorf("popped %d with an error", v)
					}
					if name == "request lost" {
						it := mustTake(w.T, w.queue("b", nil), 2)
						if it.Attempt != 1 {
							w.T.Errorf("attempt %d", it.Attempt)
						}
						mustAck(w.T, it)
					}
					mustPop(w.T, q, 3)
					w.drained(&q.Consumer)
				})
			})
		}
	}
}

// The read of the next item fails, or lasts: that changes nothing for the Pop beside it, and the
// next Pop takes the item as others do, or ends with its context.
func TestQueue_AReadAheadThatFails(t *testing.T) {
	for _, how := range []string{"fails", "lasts"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x coordtest.Nth
				q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, nil)
				mustPut(w.T, q, 1, 3)
				gate := make(chan struct{})
				x.Arm(2, func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/i-") }, func(context.Context, backendtest.Call, error) error {
					if how == "fails" {
						return backend.ErrDenied
					}
					<-gate
					return nil
				})
				mustPop(w.T, q, 1)
				w.Settle() // else its feeder may still be there, and the next Pop claims its item
				if how == "lasts" {
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					_, err := q.Pop(ctx)
					cancel()
					coordtest.WantErr(w.T, err, context.DeadlineExceeded)
					if errors.Is(err, coord.ErrUncertain) {
						w.T.Error(err)
					}
				}
				mustPop(w.T, q, 2)
				close(gate)
				mustPop(w.T, q, 3)
				if !x.Idle() {
					w.T.Error("nothing was read")
				}
				w.drained(&q.Consumer)
			})
		})
	}
}

// The service refuses to delete the item: the Pop fails, and the item is given back.
func TestQueue_ARefusedDeletionAheadGivesTheItemBack(t *testing.T) {
	onMemory(t, func(w *world) {
		var on atomic.Bool
		q := w.ahead(refuse(&on, coordtest.Deletes), nil, 3)
		on.Store(true)
		_, err := q.Pop(context.Background())
		on.Store(false)
		coordtest.WantErr(w.T, err, coord.ErrDenied)
		if errors.Is(err, coord.ErrUncertain) {
			w.T.Error(err)
		}
		time.Sleep(10 * time.Second) // fake, for the pauses between retries
		it := mustTake(w.T, q, 2)
		if it.Attempt != 1 {
			w.T.Errorf("attempt %d", it.Attempt)
		}
		mustAck(w.T, it)
		mustPop(w.T, q, 3)
		w.drained(&q.Consumer)
	})
}

// An item that was read ahead and cannot be decoded is moved to the dead letters. If the codec
// panics, that counts as an attempt.
func TestQueue_AnItemReadAheadThatCannotBeDecoded(t *testing.T) {
	for _, panics := range []bool{false, true} {
		t.Run(fmt.Sprint("panics: ", panics), func(t *testing.T) {
			onMemory(t, func(w *world) {
				o := &coord.QueueOptions[int]{MaxAttempts: 2, Codec: coord.Codec[int]{
					Encode: func(v int) ([]byte, error) { return fmt.Append(nil, v), nil },
					Decode: func(data []byte) (v int, err error) {
						fmt.Sscan(string(data), &v)
						if v == 2 && panics {
							panic("the codec fails")
						}
						if v == 2 {
							err = errors.New("the codec fails")
						}
						return v, err
					},
				}}
				q := w.ahead(nil, o, 3)
				if panics {
					for range 2 {
						func() {
							defer func() {
								if recover() == nil {
									w.T.Error("the codec has not panicked")
								}
							}()
							q.Pop(context.Background())
						}()
					}
				}
				mustPop(w.T, q, 3)
				dead := coord.NewQueue(w.Open("b", nil), "/q/dead", &coord.QueueOptions[string]{Codec: coord.Text()})
				if v, err := dead.Pop(context.Background()); v != "2" || err != nil {
					w.T.Errorf("the dead letter is %q, %v", v, err)
				}
				w.drained(&q.Consumer)
			})
		})
	}
}

// A queue with MaxLen counts the items that were popped without a claim, also if the node that
// counts is gone for a while.
func TestQueue_APopAheadIsCounted(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{MaxLen: 5, FailWhenFull: true})
		*coordtest.Inside(&q.Consumer).BucketSize = 100
		mustPut(w.T, q, 1, 5)
		next := 1
		for range 4 {
			mustPop(w.T, q, next)
			next++
		}
		if out, err := w.Session("x").Exists(context.Background(), w.Path("/q/items/out"), nil); out.Version != 4 || err != nil {
			w.T.Errorf("%d items were counted, %v, want 4", out.Version, err)
		}
		mustPut(w.T, q, 6, 9)
		_, err := q.Put(context.Background(), 10)
		coordtest.WantErr(w.T, err, coord.ErrFull)
		mustPop(w.T, q, 5)
		if _, err := w.Session("x").Commit(context.Background(), backend.Delete(w.Path("/q/items/out"), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		for n := 6; n <= 9; n++ {
			mustPop(w.T, q, n)
		}
	})
}

// An item that was popped without a claim has the events of one that was taken and acknowledged.
func TestQueue_APopAheadIsTraced(t *testing.T) {
	onMemory(t, func(w *world) {
		var mu sync.Mutex
		var events []trace.Event
		c := coordtest.Open(w.T, w.Link("a"), &coord.Options{Trace: func(_ context.Context, e trace.Event) {
			mu.Lock()
			defer mu.Unlock()
			switch e.(type) {
			case trace.ItemClaimed, trace.ItemSettled:
				events = append(events, e)
			}
		}})
		q := coord.NewQueue[int](c, "/q", nil)
		mustPut(w.T, q, 1, 3)
		for n := 1; n <= 3; n++ {
			mustPop(w.T, q, n)
		}
		w.Settle()
		mu.Lock()
		defer mu.Unlock()
		if len(events) != 6 {
			w.T.Fatalf("%d events, want 6: %v", len(events), events)
		}
		last := int64(0)
		for i := 0; i < 6; i += 2 {
			claimed, ok := events[i].(trace.ItemClaimed)
			settled, ok2 := events[i+1].(trace.ItemSettled)
			if !ok || !ok2 || claimed.Item != settled.Item || claimed.ID != settled.ID || claimed.ID == 0 || claimed.Attempt != 1 || settled.Outcome != trace.ItemAcked {
				w.T.Errorf("item %d: %+v, %+v", i/2+1, events[i], events[i+1])
			}
			if claimed.Token <= last {
				w.T.Errorf("item %d has the token %d after %d", i/2+1, claimed.Token, last)
			}
			last = claimed.Token
		}
	})
}

// A Pop of an item that was just put costs one commit, as a Pop of one that was read ahead does, and
// as many round trips as one that claims.
func TestQueue_APopOfWhatWasJustPutIsOneCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r callCount
		st := memory.New(&memory.Options{SessionTimeout: time.Hour})
		link := st.Link("far")
		q := coord.NewQueue[int](coordtest.Open(t, backendtest.Intercept(link, *r.hooks()), nil), "/q", nil)
		link.SetLatency(tripTime / 2)
		const turns = 20
		var trips time.Duration
		commits, requests := 0, 0
		for n := range turns + 1 {
			mustPut(t, q, n, n)
			r.reset()
			began := time.Now()
			mustPop(t, q, n)
			if n > 0 { // the first does not know that there is something
				trips += time.Since(began)
				commits += r.writes()
				requests += r.reset()
			}
		}
		t.Logf("figure: a Pop of what was just put: %.2f round trips, %.2f requests, %.2f commits",
			float64(trips)/float64(tripTime)/turns, float64(requests)/turns, float64(commits)/turns)
		if commits != turns || requests > 3*turns || trips > 3*turns*tripTime {
			t.Errorf("%d Pops: %d commits, %d requests, %v", turns, commits, requests, trips)
		}
	})
}

// Callers that pop from one queue value do not take each other for another consumer: what comes after
// is taken in order. A single one never claims.
func TestQueue_PopsOfOneQueueValueDoNotCompete(t *testing.T) {
	for _, x := range []struct {
		callers int
		decode  time.Duration
	}{{1, 0}, {2, 0}, {4, 0}, {16, 0}, {2, 20 * time.Millisecond}, {16, 20 * time.Millisecond}} {
		callers := x.callers
		t.Run(fmt.Sprint(callers, " ", x.decode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const pops, rest = 160, 60
				var r callCount
				st := memory.New(&memory.Options{SessionTimeout: time.Hour})
				link := st.Link("far")
				slow := coord.JSON[int]()
				decode := slow.Decode
				slow.Decode = func(data []byte) (int, error) { time.Sleep(x.decode); return decode(data) }
				q := coord.NewQueue(coordtest.Open(t, backendtest.Intercept(link, *r.hooks()), nil), "/q", &coord.QueueOptions[int]{Codec: slow})
				mustPut(t, q, 1, 1)
				mustPop(t, q, 1)
				mustPut(t, q, 2, 1+pops+rest)
				link.SetLatency(time.Millisecond)
				r.reset()
				var wg sync.WaitGroup
				for i := range callers {
					wg.Go(func() {
						for range pops / callers {
							if i%4 == 3 { // some take and acknowledge
								it, err := q.Take(t.Context())
								if err == nil {
									err = it.Ack()
								}
								if err != nil {
									t.Error(err)
								}
							} else if _, err := q.Pop(t.Context()); err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				commits := r.writes()
				t.Logf("figure: %d Pops by %d callers of one queue value: %d commits", pops, callers, commits)
				if callers == 1 && commits != pops {
					t.Errorf("%d commits", commits)
				}
				if n := coordtest.Inside(&q.Consumer).Rivals(); n != 0 {
					t.Errorf("the queue value looks %d items further", n)
				}
				for n := 2 + pops; n < 2+pops+rest; n++ {
					time.Sleep(2 * time.Second) // each take lists
					mustAck(t, mustTake(t, q, n))
				}
			})
		})
	}
}

// A Pop is about to delete an item that it has read ahead. Another call of the client takes the next
// one, or that one if there is no other; neither is a sign of another consumer.
func TestQueue_ATakeLeavesTheItemToAPopOfItsClient(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		q := w.ahead(&backendtest.Hooks{Before: x.Before}, nil, 2)
		pop := func(want int) (gate, <-chan struct{}) {
			g := w.stop(&x, popsAhead)
			done := make(chan struct{})
			go func() {
				defer close(done)
				mustPop(w.T, q, want)
			}()
			<-g.reached
			return g, done
		}
		for n := 2; n <= 6; n += 2 {
			g, done := pop(n)
			mustPut(w.T, q, n+1, n+1)
			mustAck(w.T, mustTake(w.T, q, n+1))
			close(g.open)
			<-done
			w.Settle()
			mustPut(w.T, q, n+2, n+2)
		}
		for n := 8; n <= 12; n += 2 {
			g, done := pop(n + 1)
			mustAck(w.T, mustTake(w.T, q, n))
			mustPut(w.T, q, n+1, n+1)
			close(g.open)
			<-done
			w.Settle()
			mustPut(w.T, q, n+2, n+2)
		}
		if n := coordtest.Inside(&q.Consumer).Rivals(); n != 0 {
			w.T.Errorf("the queue value looks %d items further", n)
		}
	})
}

// Items that this client removes are no sign of another consumer: a Pop does not pass over the next ones.
func TestQueue_APopKeepsTheOrderAfterRemovals(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.ahead(nil, nil, 10)
		for n := 20; n <= 50; n += 10 {
			if _, err := q.Purge(context.Background()); err != nil {
				w.T.Fatal(err)
			}
			mustPut(w.T, q, n, n+9)
			mustPop(w.T, q, n)
			w.Settle()
		}
		if _, err := q.Purge(context.Background()); err != nil {
			w.T.Fatal(err)
		}
		var ids []string
		for n := range 10 {
			id, err := q.Put(context.Background(), n)
			if err != nil {
				w.T.Fatal(err)
			}
			ids = append(ids, id)
		}
		mustPop(w.T, q, 0)
		w.Settle()
		for n := 1; n <= 7; n += 3 {
			if err := q.Remove(context.Background(), ids[n]); err != nil {
				w.T.Fatal(err)
			}
			mustPop(w.T, q, n+1)
			mustPop(w.T, q, n+2)
			w.Settle()
		}
		if n := coordtest.Inside(&q.Consumer).Rivals(); n != 0 {
			w.T.Errorf("the queue value looks %d items further", n)
		}
	})
}

// Two Pops delete items that a Purge, or two Removes, of the same queue value have deleted. That is no
// race that was lost to other consumers, whenever the Pops begin and end.
func TestQueue_ARemovalBesidePopsIsNoLostRace(t *testing.T) {
	for _, c := range []struct {
		name                   string
		rounds                 int // each with two Pops, or one of them
		remove, inside, within bool
	}{
		{name: "a purge", rounds: 1},
		{name: "removes", rounds: 1, remove: true},
		{name: "a purge that returns when the pops have failed", rounds: 1, within: true},
		{name: "purges that were applied when the pops began", rounds: 2, inside: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				var pops, removal coordtest.Nth
				q := w.hookedQueue("a", &backendtest.Hooks{Before: pops.Before, After: removal.After}, nil)
				*coordtest.Inside(&q.Consumer).BucketSize = 100
				for n := 0; n < c.rounds; n++ {
					var ids []string
					for n := 1; n <= 9; n++ {
						id, err := q.Put(ctx, n)
						if err != nil {
							w.T.Fatal(err)
						}
						ids = append(ids, id)
					}
					mustPop(w.T, q, 1)
					w.Settle()
					gate := make(chan struct{})
					results := make(chan int, 2)
					begin := func(n int) {
						for range n {
							pops.Arm(1, popsAhead, func(context.Context, backendtest.Call, error) error { <-gate; return nil })
							go func() {
								v, err := q.Pop(ctx)
								if err != nil {
									w.T.Error(err)
								}
								results <- v
							}()
							time.Sleep(time.Millisecond) // of fake time: its deletion is sent
						}
					}
					if !c.inside {
						begin(2)
					}
					removal.Arm(1, coordtest.Deletes, func(_ context.Context, _ backendtest.Call, err error) error {
						if c.inside {
							begin(1)
						}
						if c.within {
							close(gate)
							time.Sleep(time.Millisecond)
						}
						return err
					})
					if c.remove {
						for _, id := range ids[1:3] {
							if err := q.Remove(ctx, id); err != nil {
								w.T.Fatal(err)
							}
						}
					} else if n, err := q.Purge(ctx); n != 8 || err != nil {
						w.T.Fatal(n, err)
					}
					mustPut(w.T, q, 4, 9)
					if !c.within {
						close(gate)
					}
					got := []int{<-results}
					if !c.inside {
						got = append(got, <-results)
					}
					if slices.Sort(got); !slices.Equal(got, []int{4, 5}[:len(got)]) {
						w.T.Errorf("popped %v, want 4 and the next", got)
					}
					if n := coordtest.Inside(&q.Consumer).Rivals(); n != 0 {
						w.T.Errorf("the queue value looks %d items further", n)
					}
					if _, err := q.Purge(ctx); err != nil {
						w.T.Fatal(err)
					}
				}
			})
		})
	}
}

// Clients that pop from one queue have lists that are alike. They do not compete for each item.
func TestQueue_PopsOfSeveralClientsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, items = 4, 1000
		st := memory.New(&memory.Options{SessionTimeout: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if _, err := coord.NewQueue[int](coordtest.Open(t, st, nil), "/q", nil).PutAll(ctx, make([]int, items)...); err != nil {
			t.Fatal(err)
		}
		var popped atomic.Int32
		var wg sync.WaitGroup
		counts := make([]callCount, clients)
		began := time.Now()
		for i := range clients {
			link := st.Link(fmt.Sprint(i))
			q := coord.NewQueue[int](coordtest.Open(t, backendtest.Intercept(link, *counts[i].hooks()), nil), "/q", nil)
			link.SetLatency(tripTime / 2)
			wg.Go(func() {
				for {
					if _, err := q.Pop(ctx); err != nil {
						if ctx.Err() == nil {
							t.Error(err)
						}
						return
					}
					if popped.Add(1) == items {
						cancel()
					}
				}
			})
		}
		wg.Wait()
		calls := 0
		for i := range counts {
			calls += counts[i].reset()
		}
		trips, requests := float64(time.Since(began))/float64(tripTime)*clients/items, float64(calls)/items
		t.Logf("figure: %d clients pop from one queue: %.2f round trips for each item of a client, %.2f requests", clients, trips, requests)
		if trips > 2.3 || requests > 4.2 {
			t.Error("that is too much")
		}
	})
}

// The item of a claim that has timed out comes first again: a Pop waits for the removal of the
// claim, as a Take does.
func TestQueue_APopWaitsForTheRemovalOfATimedOutClaim(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before}, &coord.QueueOptions[int]{ClaimTimeout: claimTime})
		mustPut(w.T, q, 1, 4)
		it := mustTake(w.T, q, 1)
		removal := w.stop(&x, func(c backendtest.Call) bool {
			return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return op.Kind == backend.OpDelete && op.Path == it.Path() })
		})
		<-it.Done()
		<-removal.reached
		popped := make(chan error, 1)
		go func() {
			v, err := q.Pop(context.Background())
			if v != 1 {
				err = fmt.Errorf("popped %d before the item whose claim has timed out: %w", v, err)
			}
			popped <- err
		}()
		w.Settle()
		close(removal.open)
		if err := receive(w, "the Pop", popped); err != nil {
			w.T.Error(err)
		}
		for n := 2; n <= 4; n++ {
			mustPop(w.T, q, n)
		}
		w.drained(&q.Consumer)
	})
}

// A list that was under way while another was kept shows items that are gone. It is not kept.
func TestQueue_AListThatAnotherHasOvertakenIsNotKept(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		var claims atomic.Int64
		q := w.hookedQueue("a", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				if coordtest.Creates(c) && !coordtest.Deletes(c) && strings.Contains(c.Path, "/items/") {
					claims.Add(1)
				}
				return nil
			},
			After: x.After,
		}, nil)
		*coordtest.Inside(&q.Consumer).BucketSize = 100
		p := w.queue("p", nil)
		*coordtest.Inside(&p.Consumer).BucketSize = 100
		mustPut(w.T, p, 1, 10)
		mustPop(w.T, q, 1)
		w.Settle()
		time.Sleep(time.Minute) // what the queue value remembers is too old
		claims.Store(0)
		list := w.stop(&x, func(c backendtest.Call) bool { return c.Op == "children" })
		late := make(chan error, 1)
		go func() {
			v, err := q.Pop(context.Background())
			if v != 3 {
				err = fmt.Errorf("popped %d, %w", v, err)
			}
			late <- err
		}()
		<-list.reached
		mustPop(w.T, q, 2)
		close(list.open)
		if err := receive(w, "the Pop", late); err != nil {
			w.T.Error(err)
		}
		mustPop(w.T, q, 4)
		if n := claims.Load(); n > 0 {
			w.T.Errorf("%d claims: an item that was gone was read", n)
		}
	})
}
