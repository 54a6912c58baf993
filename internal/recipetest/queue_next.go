package recipetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// nextScene is a client whose commits are counted by what they do, and can be held and broken.
type nextScene struct {
	w             *world
	c             *coord.Client
	q             *coord.Queue[int]
	before, after coordtest.Nth

	began time.Time

	mu                     sync.Mutex
	calls, acks, both, own int // calls; commits that acknowledge, acknowledge and claim, claim
	reads, back, refused   int // items that were read; commits that give items back; claims that were refused; never reset
}

func newNextScene(w *world, o *coord.QueueOptions[int]) *nextScene {
	sc := &nextScene{w: w, began: time.Now()}
	sc.c = w.Open("a", &backendtest.Hooks{
		Before: func(ctx context.Context, c backendtest.Call) error {
			sc.mu.Lock()
			sc.calls++
			sc.reads += itemsOf(c)
			switch ack, claim := acknowledges(c), claims(c); {
			case !ack && !claim && givesBack(c):
				sc.back++
			case ack && claim:
				sc.both++
			case ack:
				sc.acks++
			case claim:
				sc.own++
			}
			sc.mu.Unlock()
			return sc.before.Before(ctx, c)
		},
		After: func(ctx context.Context, c backendtest.Call, err error) error {
			if claims(c) && err != nil {
				sc.mu.Lock()
				sc.refused++
				sc.mu.Unlock()
			}
			return sc.after.After(ctx, c, err)
		},
	})
	sc.q = coord.NewQueue(sc.c, "/q", o)
	return sc
}

// hold holds the next call that match reports, before it is made, until the returned function is called.
func (sc *nextScene) hold(match func(backendtest.Call) bool) (held <-chan struct{}, goOn func()) {
	at, proceed := make(chan struct{}), make(chan struct{})
	sc.before.Arm(1, match, func(context.Context, backendtest.Call, error) error {
		close(at)
		<-proceed
		return nil
	})
	return at, sync.OnceFunc(func() { close(proceed) })
}

// exact reports whether the counts are exact. A client remembers a list for a second. On a real server and a busy
// machine more time can have passed, so that an Ack claims nothing.
func (sc *nextScene) exact() bool { return sc.w.Fake || time.Since(sc.began) < time.Second }

// items is how many items a scene needs for at least one Ack that claims the next item.
func (sc *nextScene) items(n int) int {
	if sc.w.Fake {
		return n
	}
	return 24
}

// acknowledges reports whether a call deletes a claimed item.
func acknowledges(c backendtest.Call) bool {
	return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return op.Kind == backend.OpDelete && strings.Contains(op.Path, "/i-") })
}

// givesBack reports whether a call deletes a claim.
func givesBack(c backendtest.Call) bool {
	return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return op.Kind == backend.OpDelete && strings.Contains(op.Path, "/m-") })
}

// onlyClaims reports whether a call claims items and acknowledges none.
func onlyClaims(c backendtest.Call) bool { return claims(c) && !acknowledges(c) }

// itemsOf returns how many items a call reads.
func itemsOf(c backendtest.Call) (n int) {
	if c.Op == "get" && strings.Contains(c.Path, "/i-") {
		n++
	}
	for _, r := range c.Reads {
		if strings.Contains(r.Path, "/i-") {
			n++
		}
	}
	return n
}

// acksAndClaims reports whether a call acknowledges items and claims the next ones.
func acksAndClaims(c backendtest.Call) bool { return acknowledges(c) && claims(c) }

// sent returns the counts since its last call.
func (sc *nextScene) sent() (calls, acks, both, own int) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	calls, acks, both, own = sc.calls, sc.acks, sc.both, sc.own
	sc.calls, sc.acks, sc.both, sc.own = 0, 0, 0, 0
	return calls, acks, both, own
}

// putTogether puts the numbers from first to last in one commit.
func putTogether(t *testing.T, q *coord.Queue[int], first, last int) {
	t.Helper()
	var values []int
	for n := first; n <= last; n++ {
		values = append(values, n)
	}
	if ids, err := q.PutAll(context.Background(), values...); err != nil || len(ids) != len(values) {
		t.Fatal(ids, err)
	}
}

// handled is what handlers have got.
type handled struct {
	mu    sync.Mutex
	order []string // value, and attempt
	came  chan int
}

func newHandled() *handled { return &handled{came: make(chan int, 1000)} }

// note records a delivery.
func (h *handled) note(it *coord.Item[int]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.order = append(h.order, fmt.Sprintf("%d/%d", it.Value, it.Attempt))
	h.came <- it.Value
}

func (h *handled) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.order, " ")
}

// await waits for n deliveries.
func (h *handled) await(w *world, n int) {
	w.T.Helper()
	for range n {
		receive(w, "an item is delivered", h.came)
	}
}

// inOrder is the record of the first deliveries of the numbers from first to last, in order.
func inOrder(first, last int) string {
	var all []string
	for n := first; n <= last; n++ {
		all = append(all, fmt.Sprintf("%d/1", n))
	}
	return strings.Join(all, " ")
}

// queueNextTests are tests of Queue on each service.
type queueNextTests struct{ Services }

// An item of a backlog costs a write and a share of a read, and each item is handled once, in order.
func (on queueNextTests) AnItemOfABacklogCostsOneCommit(t *testing.T) {
	on.each(t, func(w *world) {
		sc, h := newNextScene(w, nil), newHandled()
		const items = 64
		putTogether(w.T, sc.q, 1, items)
		sc.sent()
		var calls, acks, both, own int
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
			if it.Value == items {
				calls, acks, both, own = sc.sent()
			}
			h.note(it)
			return nil
		})
		h.await(w, items)
		x.finish()
		w.T.Logf("figure: Work with one handler, %d items in the queue: %.2f requests an item, %d commits that acknowledge and claim, %d that only acknowledge, %d that only claim", items, float64(calls)/items, both, acks, own)
		// One item of 32 is found by another list. Without batches, each item has a read of its own.
		most := 1.4
		if !w.Session("features").Features().Has(backend.Batches) {
			most = 2.2
		}
		if got := float64(calls) / items; got > most && sc.exact() {
			w.T.Errorf("%.2f requests an item, want %.1f at most", got, most)
		}
		if sc.exact() && both < items-3 || acks+both != items-1 || own+both != items {
			w.T.Errorf("%d commits acknowledge and claim, %d acknowledge, %d claim", both, acks, own)
		}
		if got := h.String(); got != inOrder(1, items) {
			w.T.Errorf("delivered %s", got)
		}
		w.drained(&sc.q.Consumer)
	})
}

// The Acks that share a commit claim an item for each of their handlers.
func (on queueNextTests) HandlersOfOneWorkShareTheCommits(t *testing.T) {
	for name, o := range map[string]*coord.QueueOptions[int]{"": nil, "with MaxLen": {MaxLen: 1000}} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				const handlers, rounds = 8, 6
				sc, h := newNextScene(w, o), newHandled()
				putTogether(w.T, sc.q, 1, handlers*rounds)
				sc.sent()
				gates := make(chan chan struct{}, handlers*rounds)
				x := w.work(sc.q, handlers, func(_ context.Context, it *coord.Item[int]) error {
					gate := make(chan struct{})
					h.note(it)
					gates <- gate
					<-gate
					return nil
				})
				for range rounds {
					// All handlers end while the Ack of the first of them is under way.
					var round []chan struct{}
					for range handlers {
						round = append(round, receive(w, "a handler begins", gates))
					}
					held, goOn := make(chan struct{}), make(chan struct{})
					sc.before.Arm(1, acknowledges, func(context.Context, backendtest.Call, error) error {
						close(held)
						<-goOn
						return nil
					})
					close(round[0])
					<-held
					for _, gate := range round[1:] {
						close(gate)
					}
					w.Eventually("the others wait", func() bool { return coordtest.Inside(&sc.q.Consumer).AcksWaiting() == handlers-1 })
					close(goOn)
				}
				h.await(w, handlers*rounds)
				w.Eventually("all are acknowledged", func() bool { return mustLen(w.T, &sc.q.Consumer) == 0 })
				_, acks, both, own := sc.sent()
				x.finish()
				// Two commits a round: that of the first Ack, and that of the others. The last round has no next items.
				if sc.exact() && (both+acks > 2*rounds || both < 2*(rounds-1) || own > 1) {
					w.T.Errorf("%d commits acknowledge and claim, %d acknowledge, %d claim, want %d, 2 and 1", both, acks, own, 2*(rounds-1))
				}
				h.mu.Lock()
				slices.Sort(h.order)
				if len(slices.Compact(h.order)) != handlers*rounds {
					w.T.Errorf("delivered %v", h.order)
				}
				h.mu.Unlock()
				w.drained(&sc.q.Consumer)
			})
		})
	}
}

// The request or the reply of a commit that acknowledges and claims is lost.
func (on queueNextTests) ALostMessageIsResolved(t *testing.T) {
	for _, name := range []string{"request", "reply"} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				sc, h := newNextScene(w, &coord.QueueOptions[int]{MaxLen: 100}), newHandled()
				items := sc.items(5)
				putTogether(w.T, sc.q, 1, items)
				x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
					if h.note(it); it.Value == 2 {
						hook := &sc.before
						if name == "reply" {
							hook = &sc.after
						}
						hook.Arm(1, acksAndClaims, coordtest.Lose)
					}
					return nil
				})
				h.await(w, items)
				w.Eventually("all are acknowledged", func() bool { return mustLen(w.T, &sc.q.Consumer) == 0 })
				x.finish()
				if got := h.String(); got != inOrder(1, items) || !sc.before.Idle() || !sc.after.Idle() {
					w.T.Errorf("delivered %s", got)
				}
				w.counted(items, items)
				w.drained(&sc.q.Consumer)
			})
		})
	}
}

// counted checks the nodes that count the items of a queue with MaxLen.
func (w *world) counted(in, out int) {
	w.T.Helper()
	s := w.Session("counts")
	data, _, err := s.Get(context.Background(), w.Path("/q/items/in"), nil)
	if err != nil || string(data) != fmt.Sprint(in) {
		w.T.Errorf("%q items came in, %v, want %d", data, err, in)
	}
	stat, err := s.Exists(context.Background(), w.Path("/q/items/out"), nil)
	if err != nil || int(stat.Version) != out {
		w.T.Errorf("%d items went out, %v, want %d", stat.Version, err, out)
	}
}

// Another consumer has the next item already. The Ack is sent alone, and Work takes the item after it.
func (on queueNextTests) AnAckIsSentAloneWhenItsClaimIsRefused(t *testing.T) {
	on.each(t, func(w *world) {
		sc, h, b := newNextScene(w, nil), newHandled(), w.queue("b", nil)
		putTogether(w.T, sc.q, 1, 4)
		var other *coord.Item[int]
		begun, proceed := make(chan struct{}), make(chan struct{})
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error {
			if h.note(it); it.Value == 1 {
				close(begun)
				<-proceed
			}
			return nil
		})
		receive(w, "the first handler begins", begun)
		other = mustTake(w.T, b, 2)
		sc.sent()
		close(proceed)
		h.await(w, 3)
		w.Eventually("they are acknowledged", func() bool { return mustLen(w.T, &b.Consumer) == 1 })
		_, acks, both, own := sc.sent()
		if got := h.String(); got != "1/1 3/1 4/1" {
			w.T.Errorf("delivered %s", got)
		}
		// Refused, and alone; item 3 in its own commit; with item 4; the last one alone, or with no item left.
		if sc.exact() && (both != 2 || acks != 2 || own != 1) {
			w.T.Errorf("%d commits acknowledge and claim, %d acknowledge, %d claim, want 2, 2 and 1", both, acks, own)
		}
		mustAck(w.T, other)
		x.finish()
		w.drained(&b.Consumer)
	})
}

// Work that ends gives the item back that the last Ack has claimed, before it returns, and counts no attempt.
func (on queueNextTests) WorkThatEndsGivesTheNextItemBack(t *testing.T) {
	on.each(t, func(w *world) {
		sc, h, b := newNextScene(w, nil), newHandled(), w.queue("b", nil)
		items := sc.items(3)
		putTogether(w.T, sc.q, 1, items)
		var x *working
		started := make(chan struct{})
		sc.after.Arm(1, acksAndClaims, func(_ context.Context, _ backendtest.Call, err error) error {
			<-started
			x.stop() // the commit is applied, and its reply comes
			if l, ok := w.Link("a").(*memory.Link); ok {
				l.SetLatency(time.Second / 8) // Work waits for the end of the claim
			}
			return err
		})
		x = w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
		close(started)
		if err := x.ended(); err != nil {
			w.T.Error(err)
		}
		n := len(h.came)
		if got := h.String(); got != inOrder(1, n) || w.Fake && n != 1 {
			w.T.Errorf("delivered %s", got)
		}
		for n++; n <= items; n++ { // at once
			it, err := b.TryTake(context.Background())
			if err != nil || it.Value != n || it.Attempt != 1 {
				w.T.Fatalf("%+v, %v, want item %d, attempt 1", it, err, n)
			}
			mustAck(w.T, it)
		}
		w.drained(&b.Consumer)
	})
}

// Close gives the item back that the last Ack has claimed, and counts no attempt.
func (on queueNextTests) CloseGivesTheNextItemBack(t *testing.T) {
	on.each(t, func(w *world) {
		sc, h, b := newNextScene(w, nil), newHandled(), w.queue("b", nil)
		items := sc.items(3)
		putTogether(w.T, sc.q, 1, items)
		closed := make(chan time.Duration, 1)
		sc.after.Arm(1, acksAndClaims, func(_ context.Context, _ backendtest.Call, err error) error {
			began := time.Now()
			go func() {
				sc.c.Close()
				closed <- time.Since(began)
			}()
			w.Eventually("the client is closing", func() bool {
				_, err := sc.q.Len(context.Background())
				return err != nil
			})
			return err
		})
		x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
		coordtest.WantErr(w.T, x.ended(), coord.ErrClosed)
		n := len(h.came)
		if got := h.String(); got != inOrder(1, n) || w.Fake && n != 1 {
			w.T.Errorf("delivered %s", got)
		}
		late := !w.Fake && receive(w, "the client is closed", closed) >= 2*time.Second // a busy machine: Close does not wait for longer
		for n++; n <= items; n++ {
			it := mustTake(w.T, b, n)
			if it.Attempt != 1 && !late {
				w.T.Errorf("item %d: attempt %d, want 1", n, it.Attempt)
			}
			mustAck(w.T, it)
		}
		w.drained(&b.Consumer)
	})
}

// The session ends with a commit that acknowledges and claims. No handler has seen the next item, and it is no
// dead letter.
func (on queueNextTests) ALostSessionBuriesNoItemThatNoHandlerSaw(t *testing.T) {
	for name, want := range map[string]string{ // in memory
		"before the commit": "1/1 1/2 2/1 3/1",
		"after the commit":  "1/1 2/2 3/1",
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				sc, h := newNextScene(w, &coord.QueueOptions[int]{MaxAttempts: 2}), newHandled()
				items := sc.items(3)
				putTogether(w.T, sc.q, 1, items)
				if name == "before the commit" {
					sc.before.Arm(1, acksAndClaims, func(_ context.Context, c backendtest.Call, _ error) error {
						w.Link("a").Expire(c.Session.ID())
						return nil // it fails by itself
					})
				} else {
					sc.after.Arm(1, acksAndClaims, func(_ context.Context, c backendtest.Call, err error) error {
						if err != nil {
							w.T.Error(err)
						}
						w.Link("a").Expire(c.Session.ID())
						return backend.Uncertain(backend.ErrSessionLost)
					})
				}
				x := w.work(sc.q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
				w.Eventually("all are acknowledged", func() bool { return mustLen(w.T, &sc.q.Consumer) == 0 })
				x.finish()
				if got := h.String(); w.Fake && got != want || !sc.before.Idle() || !sc.after.Idle() {
					w.T.Errorf("delivered %s, want %s", got, want)
				}
				for n := 1; n <= items; n++ {
					if got := " " + h.String(); !strings.Contains(got, fmt.Sprintf(" %d/", n)) {
						w.T.Errorf("item %d is lost: delivered%s", n, got)
					}
				}
				if n := len(letters(w.T, &sc.q.Consumer)); n > 0 {
					w.T.Errorf("%d dead letters", n)
				}
				w.drained(&sc.q.Consumer)
			})
		})
	}
}
