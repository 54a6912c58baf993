package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// queueConsumerTests are tests of Queue on each service.
type queueConsumerTests struct{ Services }

func (on queueConsumerTests) AllGivesBackItemsThatItDidNotHandOut(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, b := w.queue("a", &coord.QueueOptions[int]{Prefetch: 4}), w.queue("b", nil)
		mustPut(w.T, b, 1, 6)
		var kept *coord.Item[int]
		for it, err := range a.All(ctx) {
			if err != nil {
				w.T.Fatal(err)
			}
			if it.Value == 2 {
				kept = it // it is not given back when the body returns
				break
			}
			mustAck(w.T, it)
			// 2, 3 and 4 are claimed too.
			if five, err := b.TryTake(ctx); err != nil || five.Value != 5 {
				w.T.Fatal(five, err)
			} else if err := five.Release(); err != nil {
				w.T.Fatal(err)
			}
		}
		it := mustTake(w.T, a, 3) // the same client takes no later item before this one is back
		if it.Attempt != 1 {
			w.T.Errorf("attempt %d of what was only prefetched", it.Attempt)
		}
		mustAck(w.T, it)
		w.Eventually("the others come back", func() bool {
			it, err := b.TryTake(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			if err := it.Release(); err != nil {
				w.T.Fatal(err)
			}
			return it.Value == 4
		})
		if err := kept.Verify(ctx); err != nil {
			w.T.Error(err)
		}
		mustAck(w.T, kept)
		for n := 4; n <= 6; n++ {
			mustAck(w.T, mustTake(w.T, b, n))
		}
		w.drained(&b.Consumer)
	})
}

func (on queueConsumerTests) AllEndsWithItsContextAndReportsAFailure(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		q := coord.NewQueue[int](c, "/q", nil)
		mustPut(w.T, q, 1, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		n := 0
		for it, err := range q.All(ctx) {
			if err != nil {
				w.T.Error(err)
			}
			mustAck(w.T, it)
			n++
			time.AfterFunc(20*time.Millisecond, cancel)
		}
		if n != 1 {
			w.T.Errorf("%d items", n)
		}
		w.Empty("/q/waiters")
		c.Close()
		failures := 0
		for it, err := range q.All(context.Background()) {
			failures++
			if it != nil {
				w.T.Error("an item of a closed client")
			}
			coordtest.WantErr(w.T, err, coord.ErrClosed)
		}
		if failures != 1 {
			w.T.Errorf("%d pairs from a closed client, want one with the error", failures)
		}
	})
}

func (on queueConsumerTests) ItemsGivesBackAnItemThatIsNotReceived(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{Prefetch: 3})
		mustPut(w.T, q, 1, 4)
		ctx, cancel := context.WithCancel(context.Background())
		ch := q.Items(ctx)
		first := <-ch
		if first.Value != 1 {
			w.T.Errorf("got %d", first.Value)
		}
		cancel()
		for it := range ch { // at most the item that was being handed over
			if err := it.Release(); err != nil {
				w.T.Error(err)
			}
		}
		mustAck(w.T, first)
		for n := 2; n <= 4; n++ {
			it := mustTake(w.T, q, n)
			if it.Attempt != 1 {
				w.T.Errorf("attempt %d", it.Attempt)
			}
			mustAck(w.T, it)
		}
		w.drained(&q.Consumer)
	})
}

// When a loop has ended, another client can take the prefetched items at once.
func (on queueConsumerTests) TheEndOfALoopGivesBackPrefetchedItems(t *testing.T) {
	for _, how := range []string{"break", "cancel", "items"} {
		t.Run(how, func(t *testing.T) {
			on.each(t, func(w *world) { theEndGivesBack(w, how) })
		})
	}
}

func theEndGivesBack(w *world, how string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	q, b := w.queue("a", &coord.QueueOptions[int]{Prefetch: 10}), w.queue("b", nil)
	mustPut(w.T, q, 1, 5)
	w.Link("a").(interface{ SetLatency(time.Duration) }).SetLatency(10 * time.Millisecond)
	first := 2
	switch how {
	case "break":
		for it, err := range q.All(ctx) {
			if err != nil {
				w.T.Fatal(err)
			}
			mustAck(w.T, it)
			break
		}
	case "cancel":
		for it, err := range q.All(ctx) {
			if err != nil {
				w.T.Fatal(err)
			}
			mustAck(w.T, it)
			cancel()
		}
	case "items":
		ch := q.Items(ctx)
		mustAck(w.T, <-ch)
		w.Settle() // the second one waits to be received
		cancel()
		for it := range ch { // at most the item that was being handed over
			mustAck(w.T, it)
			first++
		}
	}
	if !w.Fake { // on a busy machine the loop ends after a second, before the items are back
		w.Eventually("the items are back", func() bool { st, _ := mustStats(w.T, b); return st.Claimed == 0 })
	}
	for n := first; n <= 5; n++ {
		it, err := b.TryTake(context.Background())
		if err != nil || it.Value != n || it.Attempt != 1 {
			w.T.Fatalf("%v, %v, want %d for the first time", it, err, n)
		}
		mustAck(w.T, it)
	}
}

func (on queueConsumerTests) AnOutsiderThatDeletesAClaimEndsTheHold(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a := w.queue("a", nil)
		mustPut(w.T, a, 1, 1)
		it := mustTake(w.T, a, 1)
		s := w.Session("x")
		if _, err := s.Commit(ctx, backend.Delete(it.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		<-it.Done()
		coordtest.WantErr(w.T, it.Err(), coord.ErrLost, coord.ErrDeleted)
		// The same client claims it again: the old item is still lost.
		again := mustTake(w.T, a, 1)
		coordtest.WantErr(w.T, it.Ack(), coord.ErrLost)
		if again.Attempt != 2 {
			w.T.Errorf("attempt %d", again.Attempt)
		}
		// The claim is deleted just before the Ack, which learns of it from the service.
		if _, err := s.Commit(ctx, backend.Delete(again.Path(), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, again.Ack(), coord.ErrLost, coord.ErrDeleted)
		mustAck(w.T, mustTake(w.T, a, 1))
		w.drained(&a.Consumer)
	})
}

// The first waiter is cut off while it waits. The others continue.
func (on queueConsumerTests) AWaiterThatIsCutOffDoesNotDelayTheOthers(t *testing.T) {
	on.each(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		first := w.takeWaits(ctx, w.queue("a", nil))
		second := w.takeWaits(context.Background(), w.queue("b", nil))
		third := w.takeWaits(context.Background(), w.queue("c", nil))
		w.Link("a").Partition()
		limit := w.Timeout / 2
		if !w.Fake {
			limit = coordtest.Limit // memory shows that it does not wait for the session of a
		}
		p := w.queue("p", nil)
		mustPut(w.T, p, 1, 1)
		// One of the two gets the first item, the other the second.
		select {
		case <-second.done:
		case <-third.done:
			second, third = third, second
		case <-time.After(limit):
			w.T.Fatal("it was not taken")
		}
		mustAck(w.T, second.item(1))
		mustPut(w.T, p, 2, 2)
		mustAck(w.T, third.item(2))
		w.Link("a").Heal()
		cancel()
		<-first.done
		coordtest.WantErr(w.T, first.err, context.Canceled)
		w.drained(&p.Consumer)
	})
}

func (on queueConsumerTests) ForeignNodesAreLeftAlone(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		s := w.Session("x")
		bucket := "/q/items/" + w.Children("/q/items")[0]
		var mine []string
		for _, p := range []string{
			"/q/items/README", "/q/items/b-", "/q/items/b-0", "/q/items/b-x-1", "/q/items/b-0-00", "/q/items/b--0-1", "/q/items/b-0-99999999999999999999",
			"/q/README", "/q/waiters",
			bucket + "/README", bucket + "/i-short-0-0000000001", bucket + "/i-00000000-0000-8000-8000-000000000000-0-99999999999999999999",
			bucket + "/i-00000000-0000-8000-8000-000000000000-x-0000000001", bucket + "/s-", bucket + "/m-x", bucket + "/d-00000000-0000-8000-8000-000000000000-soon",
		} {
			if _, err := s.Commit(ctx, backend.Create(w.Path(p), nil, backend.Persistent)); err != nil {
				w.T.Fatal(p, err)
			}
			mine = append(mine, p)
		}
		for _, p := range []string{"/q/waiters/README", "/q/waiters/_c_x-take--1"} {
			if _, err := s.Commit(ctx, backend.Create(w.Path(p), nil, backend.Persistent)); err != nil {
				w.T.Fatal(p, err)
			}
			mine = append(mine, p)
		}
		mustPut(w.T, q, 2, 20)
		for n := 1; n <= 20; n++ {
			mustAck(w.T, mustTake(w.T, q, n))
		}
		x := w.takeWaits(ctx, q)
		mustPut(w.T, q, 21, 21)
		mustAck(w.T, x.item(21))
		for _, p := range mine {
			if _, err := s.Exists(ctx, w.Path(p), nil); err != nil {
				w.T.Errorf("%s: %v", p, err)
			}
		}
	})
}

// Outsiders delete items, and leave the other nodes of these items behind.
func (on queueConsumerTests) TheRestOfAVanishedItemIsRemoved(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 8)
		bucket := "/q/items/b-0-0"
		for n := 1; n <= 8; n++ {
			it := mustTake(w.T, q, n)
			if err := it.Nack(time.Hour); err != nil {
				w.T.Fatal(err)
			}
		}
		s := w.Session("x")
		for _, bucket := range []string{bucket, "/q/items/b-0-1"} {
			for _, name := range w.Children(bucket) {
				if name[0] != 'i' {
					continue
				}
				if _, err := s.Commit(ctx, backend.Delete(w.Path(bucket+"/"+name), backend.AnyVersion)); err != nil {
					w.T.Fatal(err)
				}
			}
		}
		w.Eventually("the bucket is removed", func() bool {
			if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
				w.T.Fatal(err)
			}
			_, err := s.Exists(ctx, w.Path(bucket), nil)
			return errors.Is(err, coord.ErrNotFound)
		})
		w.drained(&q.Consumer) // the last bucket stays, and is empty
		if _, err := s.Exists(ctx, w.Path("/q/items/b-0-1"), nil); err != nil {
			w.T.Error("the open bucket:", err)
		}
	})
}

func (on queueConsumerTests) PurgeLeavesClaimedItems(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		a, b := w.queue("a", nil), w.queue("b", nil)
		if n, err := a.Purge(ctx); n != 0 || err != nil {
			w.T.Error(n, err)
		}
		mustPut(w.T, a, 1, 20)
		off := mustTake(w.T, b, 1)
		claimed := mustTake(w.T, b, 2)
		third := mustTake(w.T, b, 3)
		if err := off.Nack(time.Hour); err != nil {
			w.T.Fatal(err)
		}
		if err := third.Nack(0); err != nil {
			w.T.Fatal(err)
		}
		if n, err := a.Purge(ctx); n != 19 || err != nil {
			w.T.Errorf("purged %d, %v, want 19", n, err)
		}
		if n, err := a.Len(ctx); n != 1 || err != nil {
			w.T.Errorf("%d left, %v, want the one that is claimed", n, err)
		}
		mustAck(w.T, claimed)
		mustPut(w.T, a, 21, 21)
		mustAck(w.T, mustTake(w.T, b, 21))
		w.drained(&b.Consumer)
	})
}

// untouched takes the numbers from first to last and checks that each is taken for the
// first time.
func untouched(w *world, q *coord.Queue[int], first, last int) {
	w.T.Helper()
	for n := first; n <= last; n++ {
		it := mustTake(w.T, q, n)
		if it.Attempt != 1 {
			w.T.Errorf("item %d: attempt %d, want 1", n, it.Attempt)
		}
		mustAck(w.T, it)
	}
	if n, err := coord.NewQueue[int](w.Open("dead", nil), "/q/dead", nil).Len(context.Background()); n != 0 || err != nil {
		w.T.Errorf("%d dead letters, %v", n, err)
	}
}

// When a client closes in order, an item that no handler has received does not count as an
// attempt.
func (on queueConsumerTests) AnOrderlyEndGivesBackItemsThatNoHandlerReceived(t *testing.T) {
	for _, how := range []string{"cancel and close", "close"} {
		// end closes the client, and reports whether Close had the time to give everything back:
		// it waits for two seconds, which a busy machine can need for a request.
		end := func(w *world, cancel context.CancelFunc, c *coord.Client) bool {
			if how != "close" {
				cancel()
			}
			began := time.Now()
			c.Close()
			return w.Fake || time.Since(began) < 2*time.Second
		}
		t.Run(how+", prefetched, in the loop", func(t *testing.T) {
			on.each(t, func(w *world) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				c := w.Open("a", nil)
				q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{Prefetch: 10, MaxAttempts: 2})
				mustPut(w.T, q, 1, 10)
				inTime := true
				for it, err := range q.All(ctx) {
					if err != nil {
						coordtest.WantErr(w.T, err, coord.ErrClosed)
						break
					}
					if it.Value > 1 {
						w.T.Errorf("got %d after Close", it.Value)
					}
					mustAck(w.T, it)
					inTime = end(w, cancel, c) && inTime
				}
				if !inTime {
					return
				}
				untouched(w, w.queue("b", &coord.QueueOptions[int]{MaxAttempts: 1}), 2, 10)
			})
		})
		t.Run(how+", waits in Items", func(t *testing.T) {
			on.each(t, func(w *world) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				c := w.Open("a", nil)
				q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{Prefetch: 3, MaxAttempts: 2})
				mustPut(w.T, q, 1, 5)
				ch := q.Items(ctx)
				w.Eventually("three are claimed", func() bool {
					return len(slices.DeleteFunc(w.Children("/q/items/b-0-0"), func(name string) bool { return !strings.HasPrefix(name, "m-") })) == 3
				})
				w.Settle()
				inTime := end(w, cancel, c)
				if it, ok := <-ch; ok {
					w.T.Errorf("got %v after Close", it)
				}
				if !inTime {
					return
				}
				untouched(w, w.queue("b", &coord.QueueOptions[int]{MaxAttempts: 1}), 1, 5)
			})
		})
		t.Run(how+", a Take that decodes", func(t *testing.T) {
			on.each(t, func(w *world) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				c := w.Open("a", nil)
				closed := make(chan bool, 1)
				codec := coord.JSON[int]()
				decode := codec.Decode
				codec.Decode = func(data []byte) (int, error) {
					go func() { closed <- end(w, cancel, c) }()
					for !closing(c) {
						time.Sleep(time.Millisecond)
					}
					return decode(data)
				}
				q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxAttempts: 1, Codec: codec})
				mustPut(w.T, q, 1, 2)
				_, err := q.Take(ctx)
				coordtest.WantErr(w.T, err, coord.ErrClosed)
				if !<-closed {
					return
				}
				untouched(w, w.queue("b", &coord.QueueOptions[int]{MaxAttempts: 1}), 1, 2)
			})
		})
		// The end comes at each step of a Take.
		for step, match := range map[string]func(backendtest.Call) bool{
			"the claim": claims,
			"the read":  func(c backendtest.Call) bool { return c.Op == "get" && strings.Contains(c.Path, "/i-") },
		} {
			for _, late := range []bool{false, true} {
				t.Run(fmt.Sprint(how, ", a Take before ", step, " or its reply: ", late), func(t *testing.T) {
					on.each(t, func(w *world) {
						ctx, cancel := context.WithCancel(context.Background())
						defer cancel()
						var x coordtest.Nth
						hooks := &backendtest.Hooks{Before: x.Before}
						if late {
							hooks = &backendtest.Hooks{After: x.After}
						}
						c := w.Open("a", hooks)
						q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
						mustPut(w.T, q, 1, 2)
						closed := make(chan bool, 1)
						x.Arm(1, match, func(_ context.Context, _ backendtest.Call, err error) error {
							go func() { closed <- end(w, cancel, c) }()
							// Close has begun: it refuses new calls.
							for !closing(c) {
								time.Sleep(time.Millisecond)
							}
							return err
						})
						_, err := q.Take(ctx)
						if how == "close" || !errors.Is(err, context.Canceled) {
							coordtest.WantErr(w.T, err, coord.ErrClosed)
						}
						if !<-closed {
							return
						}
						untouched(w, w.queue("b", &coord.QueueOptions[int]{MaxAttempts: 1}), 1, 2)
					})
				})
			}
		}
	}
}

// closing reports whether the client refuses new calls.
func closing(c *coord.Client) bool {
	_, err := coord.NewQueue[int](c, "/other", nil).Len(context.Background())
	return errors.Is(err, coord.ErrClosed)
}
