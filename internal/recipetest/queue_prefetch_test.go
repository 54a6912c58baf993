package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func onlyAcks(c backendtest.Call) bool { return acknowledges(c) && !claims(c) }

// With Prefetch the next handlers begin while an Ack is under way, as many as Prefetch says. Their Acks share a commit.
func TestQueue_AcksOfPrefetchedItemsShareACommit(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h := newNextScene(w, &coord.QueueOptions[int]{Prefetch: 4}), newHandled()
		putTogether(w.T, sc.q, 1, 4)
		held, goOn := sc.hold(onlyAcks)
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
		<-held
		w.Settle()
		mustPut(w.T, w.queue("b", nil), 5, 5)
		w.Settle()
		if got := h.String(); got != inOrder(1, 4) {
			w.T.Errorf("while an Ack is under way %s are delivered", got)
		}
		if _, acks, _, own := sc.sent(); acks != 1 || own != 1 {
			w.T.Errorf("%d commits acknowledge and %d claim, want 1 and 1", acks, own)
		}
		goOn()
		h.await(w, 5)
		w.Settle()
		_, acks, _, own := sc.sent()
		x.finish()
		if got := h.String(); got != inOrder(1, 5) || acks != 2 || own != 1 { // 2 to 4, and 5
			w.T.Errorf("%d commits acknowledge and %d claim, want 2 and 1; delivered %s", acks, own, got)
		}
		w.drained(&sc.q.Consumer)
	})
}

// An item that is given back precedes those that are claimed later, so no handler begins before.
func TestQueue_TheNextHandlerWaitsForTheNackOfAPrefetchedItem(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h := newNextScene(w, &coord.QueueOptions[int]{Prefetch: 4}), newHandled()
		putTogether(w.T, sc.q, 1, 2)
		held, goOn := sc.hold(givesBack)
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
			if h.note(it); it.Value == 1 && it.Attempt == 1 {
				return errors.New("bad")
			}
			return nil
		})
		<-held
		w.Settle()
		if got := h.String(); got != "1/1" {
			w.T.Errorf("before the end of the Nack %s are delivered", got)
		}
		goOn()
		h.await(w, 3)
		w.Settle()
		x.finish()
		w.drained(&sc.q.Consumer)
	})
}

// The session ends while Acks are under way. What they have not deleted is delivered again.
func TestQueue_ItemsWhoseAckWasLostAreDeliveredAgain(t *testing.T) {
	onMemory(t, func(w *world) {
		sc, h := newNextScene(w, &coord.QueueOptions[int]{Prefetch: 4}), newHandled()
		putTogether(w.T, sc.q, 1, 4)
		held, goOn := sc.hold(onlyAcks)
		sessions := make(chan int64, 8)
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
			h.note(it)
			sessions <- it.Session()
			return nil
		})
		<-held
		h.await(w, 4)
		w.Link("a").Expire(<-sessions)
		goOn()
		h.await(w, 4)
		w.Settle()
		x.finish()
		if got := h.String(); got != "1/1 2/1 3/1 4/1 1/2 2/2 3/2 4/2" {
			w.T.Errorf("delivered %s", got)
		}
		w.drained(&sc.q.Consumer)
	})
}

// If the session is lost during the Ack of an item that has no attempt left, the item becomes a dead letter although its
// handler has succeeded. So the next handler waits for that Ack. With MaxAttempts 1 Prefetch has no effect.
func TestQueue_TheNextHandlerWaitsForTheAckOfALastAttempt(t *testing.T) {
	for name, test := range map[string]struct {
		attempts int // of the queue
		options  *coord.PutOptions
		failures int // of each item, before its handler succeeds
	}{
		"MaxAttempts 1":          {attempts: 1},
		"MaxAttempts 1 of items": {options: &coord.PutOptions{MaxAttempts: 1}},
		"MaxAttempts 2":          {attempts: 2, failures: 1},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc := newNextScene(w, &coord.QueueOptions[int]{Prefetch: 4, MaxAttempts: test.attempts, RetryDelay: func(int, error) time.Duration { return 0 }})
				for n := range 4 {
					if _, err := sc.q.PutWith(context.Background(), n, test.options); err != nil {
						w.T.Fatal(err)
					}
				}
				held, goOn := sc.hold(onlyAcks)
				succeeded := make(chan *coord.Item[int], 8)
				x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
					if it.Attempt <= test.failures {
						return errors.New("bad")
					}
					succeeded <- it
					return nil
				})
				<-held
				w.Settle()
				it := <-succeeded
				if more := len(succeeded); more > 0 {
					w.T.Errorf("while an Ack is under way %d further handlers have succeeded", more)
				}
				w.Link("a").Expire(it.Session())
				goOn()
				w.Eventually("an empty queue", func() bool { return mustLen(w.T, &w.queue("b", nil).Consumer) == 0 })
				x.finish()
				var dead []string
				for letter, err := range sc.q.Dead(context.Background()) {
					if err != nil {
						w.T.Fatal(err)
					}
					dead = append(dead, letter.ID)
				}
				if len(dead) != 1 || dead[0] != it.ID {
					w.T.Errorf("dead letters %q, want that of the item whose Ack was lost, %s", dead, it.ID)
				}
			})
		})
	}
}

// With several handlers, each of them can wait for its Ack beside those that Prefetch allows.
func TestQueue_AcksUnderWayAreThoseOfTheHandlersAndOfPrefetch(t *testing.T) {
	onMemory(t, func(w *world) {
		const handlers, prefetch = 3, 4
		sc, h := newNextScene(w, &coord.QueueOptions[int]{Prefetch: prefetch}), newHandled()
		putTogether(w.T, sc.q, 1, 20)
		held, goOn := sc.hold(onlyAcks)
		x := w.work(sc.q, handlers, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
		<-held
		w.Settle()
		if got := len(strings.Fields(h.String())); got != handlers+prefetch-1 {
			w.T.Errorf("while an Ack is under way %d handlers have returned, want %d", got, handlers+prefetch-1)
		}
		goOn()
		h.await(w, 20)
		w.Settle()
		x.finish()
		w.drained(&sc.q.Consumer)
	})
}

// Work returns, and Close ends the session, when the Acks are done.
func TestQueue_TheEndOfWorkWaitsForTheAcksOfPrefetchedItems(t *testing.T) {
	for _, how := range []string{"ctx", "Close"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc, h := newNextScene(w, &coord.QueueOptions[int]{Prefetch: 4}), newHandled()
				putTogether(w.T, sc.q, 1, 8)
				held, goOn := sc.hold(onlyAcks)
				x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
				<-held
				h.await(w, 4)
				w.Settle()
				closed := make(chan error, 1)
				if how == "ctx" {
					x.stop()
				} else {
					go func() { closed <- sc.c.Close() }()
				}
				w.Settle()
				select {
				case <-x.done:
					w.T.Error("Work has returned before the Acks")
				default:
				}
				goOn()
				err := x.ended()
				if how == "ctx" && err != nil || how != "ctx" && !errors.Is(err, coord.ErrClosed) {
					w.T.Error(err)
				}
				if how == "Close" {
					if err := <-closed; err != nil {
						w.T.Error(err)
					}
				}
				if n := mustLen(w.T, &w.queue("b", nil).Consumer); n != 4 {
					w.T.Errorf("%d items are left, want the 4 that no handler had", n)
				}
			})
		})
	}
}

// A handler that hangs has no place. Its return frees none, with Prefetch too.
func TestQueue_AHandlerThatHungLeavesNoPlaceTwice(t *testing.T) {
	onMemory(t, func(w *world) {
		const timeout = 10 * time.Second
		q, gate := w.queue("a", &coord.QueueOptions[int]{Prefetch: 3, ClaimTimeout: timeout}), make(chan struct{})
		putTogether(w.T, q, 1, 3)
		running, most := make(chan struct{}, 10), 0
		h := newHandled()
		x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
			h.note(it)
			if it.Value == 1 && it.Attempt == 1 {
				<-gate
				return nil
			}
			running <- struct{}{}
			most = max(most, len(running)) // one handler at a time beside the one that hangs
			time.Sleep(time.Second)
			<-running
			return nil
		})
		h.await(w, 4) // 1, 2, 3 and 1 again
		close(gate)
		w.Settle()
		mustPut(w.T, q, 4, 12)
		h.await(w, 9)
		w.Settle()
		x.finish()
		if most != 1 {
			w.T.Errorf("%d handlers at a time, want 1", most)
		}
		w.drained(&q.Consumer)
	})
}

// What an item of a backlog costs Work with Prefetch: a part of a claim and a part of an Ack.
func TestQueue_APrefetchedItemOfABacklogCostsLessThanOneRequest(t *testing.T) {
	coordtest.CountsCost(t)
	for _, test := range []struct {
		prefetch int
		calls    float64
	}{{4, 0.85}, {16, 0.35}, {64, 0.15}} {
		t.Run(fmt.Sprint(test.prefetch), func(t *testing.T) {
			onMemory(t, func(w *world) {
				const items = 640
				perItem, _ := backlogCost(w, 1, 1, items, 0, &coord.QueueOptions[int]{Prefetch: test.prefetch}, func(*coord.Item[int]) error { return nil })
				w.T.Logf("figure: 1 client with 1 handler and a prefetch of %d: %.2f requests an item", test.prefetch, perItem)
				if perItem > test.calls {
					w.T.Errorf("%.3f requests an item, want %.2f at most", perItem, test.calls)
				}
			})
		})
	}
}
