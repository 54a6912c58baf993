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
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// itemReads counts the calls of clients, and the items that each of them reads.
type itemReads struct {
	mu    sync.Mutex
	calls int
	reads []int  // of items: how many a call reads
	log   string // the reads, and an L for each list of a bucket
}

func (r *itemReads) before(_ context.Context, c backendtest.Call) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	switch n := itemsOf(c); {
	case n > 0:
		r.reads = append(r.reads, n)
		r.log += fmt.Sprint(" ", n)
	case c.Op == "children" && strings.Contains(c.Path, "/b-"):
		r.log += " L"
	}
	return nil
}

func (r *itemReads) hooks() *backendtest.Hooks { return &backendtest.Hooks{Before: r.before} }

// reset returns the counts since its last call: of calls, of items that were read, and the log.
func (r *itemReads) reset() (calls, items int, log string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.reads {
		items += n
	}
	calls, log = r.calls, r.log
	r.calls, r.reads, r.log = 0, nil, ""
	return calls, items, log
}

// wide gives a queue large buckets, so that one list shows many items.
func wide(q *coord.Queue[int]) *coord.Queue[int] {
	*coordtest.Inside(&q.Consumer).BucketSize = 256
	return q
}

// An item of a backlog costs a client that takes the items alone little more than its commit. Clients that compete send
// no more than they would if each claim read its own item.
func TestQueue_AnItemOfABacklogCostsLittleMoreThanOneRequest(t *testing.T) {
	coordtest.CountsCost(t)
	for _, test := range []struct {
		clients, handlers int
		slow              time.Duration // how long a handler takes at most
		calls, reads      float64       // of an item, at most
	}{
		{1, 1, 0, 1.2, 1},
		{1, 8, 0, 1.3, 1.15},
		{1, 8, 5 * time.Millisecond, 1.3, 1.15},
		{1, 8, 18 * time.Millisecond, 1.3, 1.15},
		{1, 8, 50 * time.Millisecond, 1.3, 1.15},
		{1, 8, 200 * time.Millisecond, 1.3, 1.15},
		{8, 1, 0, 5.2, 1.85},
		{8, 1, 50 * time.Millisecond, 9.5, 3},
	} {
		t.Run(fmt.Sprintf("%d clients with %d handlers of %v", test.clients, test.handlers, test.slow), func(t *testing.T) {
			onMemory(t, func(w *world) {
				const items = 800
				perItem, read := backlogCost(w, test.clients, test.handlers, items, test.slow, nil, func(*coord.Item[int]) error { return nil })
				w.T.Logf("figure: %d clients with %d handlers of up to %v: %.2f requests an item, which is read %.2f times", test.clients, test.handlers, test.slow, perItem, read)
				if perItem > test.calls || read > test.reads {
					w.T.Errorf("%.3f requests an item, which is read %.3f times; want %.2f and %.2f at most", perItem, read, test.calls, test.reads)
				}
			})
		})
	}
}

// backlogCost returns how many requests an item of a backlog costs Work, and how often an item is read. A handler takes up to slow and returns the result of end.
func backlogCost(w *world, clients, handlers, items int, slow time.Duration, o *coord.QueueOptions[int], end func(*coord.Item[int]) error) (perItem, read float64) {
	w.T.Helper()
	var r itemReads
	var seen sync.Map
	var left sync.WaitGroup
	left.Add(items)
	putTogether(w.T, wide(w.queue("p", nil)), 1, items)
	var works []*working
	for i := range clients {
		name := fmt.Sprint("c", i)
		q := w.hookedQueue(name, r.hooks(), o)
		w.Link(name).(*memory.Link).SetLatency(time.Millisecond)
		works = append(works, w.work(q, handlers, func(_ context.Context, it *coord.Item[int]) error {
			if _, twice := seen.LoadOrStore(it.Value, true); twice {
				w.T.Errorf("%d came twice", it.Value)
				return nil
			}
			time.Sleep(slow * time.Duration(1+it.Value*7%13) / 13)
			left.Done()
			return end(it)
		}))
	}
	left.Wait()
	calls, reads, _ := r.reset()
	for _, x := range works {
		x.finish()
	}
	return float64(calls) / float64(items), float64(reads) / float64(items)
}

// The control of the test above: handlers that acknowledge their items themselves, so that no Ack claims, cost more.
func TestQueue_AnItemOfABacklogCostsMoreIfNoAckClaims(t *testing.T) {
	coordtest.CountsCost(t)
	for _, slow := range []time.Duration{18 * time.Millisecond, 50 * time.Millisecond} {
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			onMemory(t, func(w *world) {
				perItem, _ := backlogCost(w, 1, 8, 800, slow, nil, (*coord.Item[int]).Ack)
				w.T.Logf("figure: 1 client with 8 handlers of up to %v that acknowledge their items themselves: %.2f requests an item", slow, perItem)
				if perItem < 1.5 {
					w.T.Errorf("%.2f requests an item, want 1.5 at least", perItem)
				}
			})
		})
	}
}

// The client reads together as many items as it has taken from the list, and then as many as the list before has given.
func TestQueue_ItemsAreReadTogether(t *testing.T) {
	for prefetch, want := range map[int]string{
		1:  " L 1 1 1 1 1 4 7 14 L 16 1", // the client lists again beside its claims
		3:  " L 3 3 3 6 12 16 15 15 15 ", // one of the three is read already
		20: " L 20 20 20 20 20",
	} {
		t.Run(fmt.Sprint("prefetch ", prefetch), func(t *testing.T) {
			onMemory(t, func(w *world) {
				var r itemReads
				q := wide(w.hookedQueue("a", r.hooks(), &coord.QueueOptions[int]{Prefetch: prefetch}))
				putTogether(w.T, q, 1, 100)
				w.Link("a").(*memory.Link).SetLatency(time.Millisecond)
				r.reset()
				h := newHandled()
				x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
				h.await(w, 100)
				w.Settle()
				_, items, log := r.reset()
				x.finish()
				if !strings.HasPrefix(log, want) || items != 100 {
					w.T.Errorf("read %d items:%s", items, log)
				}
				if got := h.String(); got != inOrder(1, 100) {
					w.T.Errorf("delivered %s", got)
				}
				w.drained(&q.Consumer)
			})
		})
	}
}

// The client lists a backlog again beside its claims, so that each Ack claims the next item: T15.
func TestQueue_AListIsRenewedBesideTheClaims(t *testing.T) {
	onMemory(t, func(w *world) {
		const items = 250
		var commits, lists atomic.Int64
		q := wide(w.hookedQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			switch {
			case c.Op == "commit":
				commits.Add(1)
			case c.Op == "children" && strings.Contains(c.Path, "/b-"):
				lists.Add(1)
			}
			return nil
		}}, nil))
		putTogether(w.T, q, 1, items)
		w.Link("a").(*memory.Link).SetLatency(time.Millisecond)
		commits.Store(0)
		lists.Store(0)
		h := newHandled()
		x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
		h.await(w, items)
		w.Settle()
		x.finish()
		// The first commit only claims, and the last Ack only acknowledges. One list in 28 claims, and those that find nothing more.
		if n := commits.Load(); n > items+4 {
			w.T.Errorf("%d commits for %d items", n, items)
		}
		if n := lists.Load(); n > items/28+4 {
			w.T.Errorf("%d lists for %d items", n, items)
		}
		if got := h.String(); got != inOrder(1, items) {
			w.T.Errorf("delivered %s", got)
		}
		w.drained(&q.Consumer)
	})
}

// A list that the client has read beside a claim shows items as claimed, which the client has given back meanwhile. It takes
// them next.
func TestQueue_AListBesideAClaimIsForgottenAfterANack(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		q := wide(w.hookedQueue("a", &backendtest.Hooks{After: x.After}, nil))
		putTogether(w.T, q, 1, 100)
		first, second := mustTake(w.T, q, 1), mustTake(w.T, q, 2)
		nacked := make(chan error, 1)
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "children" && strings.Contains(c.Path, "/b-") }, func(context.Context, backendtest.Call, error) error {
			err := errors.Join(first.Nack(0), second.Nack(0))
			mustAck(w.T, mustTake(w.T, q, 1)) // from a new list
			nacked <- err
			return nil
		})
		next := 3
		for ; len(nacked) == 0; next++ {
			mustAck(w.T, mustTake(w.T, q, next))
			w.Settle()
		}
		if err := <-nacked; err != nil || next > 32 {
			w.T.Fatalf("before item %d: %v", next, err)
		}
		mustAck(w.T, mustTake(w.T, q, 2))
		mustAck(w.T, mustTake(w.T, q, next))
	})
}

// Another consumer has item 10, when 10 to 16 are read. The client reads each of the items behind them alone, until it
// lists again, and then reads items together again.
func TestQueue_NothingIsReadAheadAfterALostRace(t *testing.T) {
	onMemory(t, func(w *world) {
		var r itemReads
		b, q := w.queue("b", nil), wide(w.hookedQueue("a", r.hooks(), nil))
		putTogether(w.T, q, 1, 60)
		r.reset()
		h := newHandled()
		x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
			if h.note(it); it.Value == 9 {
				mustAck(w.T, mustTake(w.T, b, 10))
			}
			return nil
		})
		h.await(w, 59)
		w.Settle()
		_, _, log := r.reset()
		x.finish()
		if ones := strings.Repeat(" 1", 17); !strings.HasPrefix(log, " L 1 1 1 1 1 4 7"+ones+" L 1 1 1 1 1 4 ") {
			w.T.Errorf("read%s", log)
		}
		w.drained(&q.Consumer)
	})
}

// Large items are read one by one, and small ones behind them together again.
func TestQueue_LargeItemsAreNotReadTogether(t *testing.T) {
	for size, want := range map[int]int{1 << 10: 16, 10 << 10: 6, 40 << 10: 1, 100 << 10: 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			onMemory(t, func(w *world) {
				var r itemReads
				q := coord.NewQueue(w.Open("a", r.hooks()), "/q", &coord.QueueOptions[string]{Codec: coord.Text()})
				for n := range 70 {
					if _, err := q.Put(context.Background(), fmt.Sprintf("%*d", size, n)); err != nil {
						w.T.Fatal(err)
					}
				}
				for n := range 70 {
					it, err := q.Take(context.Background())
					if err != nil || it.Value != fmt.Sprintf("%*d", size, n) {
						w.T.Fatal(n, err)
					}
					if err := it.Ack(); err != nil {
						w.T.Fatal(err)
					}
				}
				w.Settle()
				r.mu.Lock()
				defer r.mu.Unlock()
				if most := slices.Max(r.reads); most != want {
					w.T.Errorf("%d items at once, want %d", most, want)
				}
			})
		})
	}
}

// Items are larger than those before: what exceeds the limit is not kept in memory, and is read again.
func TestQueue_AReadAheadKeepsLittle(t *testing.T) {
	onMemory(t, func(w *world) {
		var r itemReads
		q := coord.NewQueue(w.Open("a", r.hooks()), "/q", &coord.QueueOptions[string]{Codec: coord.Text()})
		value := func(n int) string { return fmt.Sprintf("%*d", 1+n/10*(100<<10), n) }
		for n := 1; n < 20; n++ {
			if _, err := q.Put(context.Background(), value(n)); err != nil {
				w.T.Fatal(err)
			}
		}
		r.reset()
		for n := 1; n < 20; n++ {
			if v, err := q.Take(context.Background()); err != nil || v.Value != value(n) || v.Ack() != nil {
				w.T.Fatal(n, err)
			}
		}
		w.Settle()
		// One request reads the items 10 to 16. Item 10 is not read again when it is claimed.
		if _, _, log := r.reset(); !strings.HasPrefix(log, " L 1 1 1 1 1 4 7"+strings.Repeat(" 1", 9)) {
			w.T.Errorf("read%s", log)
		}
	})
}

// aheadOf runs Work with one handler on the items 1 to 30 until spoil has returned, which is called beside the handler of
// item 12, when 10 to 17 are read. It returns what was delivered, of the items that are still there.
func aheadOf(w *world, hooks *backendtest.Hooks, spoil func(q *coord.Queue[int], it *coord.Item[int], ids []string)) (h *handled, q *coord.Queue[int]) {
	w.T.Helper()
	const items = 30
	q = wide(w.hookedQueue("a", hooks, nil))
	var values []int
	for n := 1; n <= items; n++ {
		values = append(values, n)
	}
	ids, err := q.PutAll(context.Background(), values...)
	if err != nil {
		w.T.Fatal(err)
	}
	h = newHandled()
	x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
		if h.note(it); it.Value == 12 && it.Attempt == 1 {
			w.Settle()
			spoil(q, it, ids)
		}
		return nil
	})
	w.Eventually("all are acknowledged", func() bool { return mustLen(w.T, &q.Consumer) == 0 })
	x.finish()
	return h, q
}

// A read of many items fails, or reports items as missing, or is too large. Each item is read again with its claim.
func TestQueue_AReadAheadThatFailsCostsNoItem(t *testing.T) {
	none := &backend.Error{Op: "get", Err: backend.ErrNotFound}
	for name, hooks := range map[string]*backendtest.Hooks{
		"refused": {Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "read" {
				return backend.ErrDenied
			}
			return nil
		}},
		"reply lost": {After: func(_ context.Context, c backendtest.Call, err error) error {
			if c.Op == "read" {
				return backend.ErrSessionLost
			}
			return err
		}},
		"missing": {Results: func(_ backendtest.Call, results []backend.ReadResult) {
			for i := range results {
				if i%2 == 0 {
					results[i] = backend.ReadResult{Err: none}
				}
			}
		}},
		"larger than before": {Results: func(_ backendtest.Call, results []backend.ReadResult) {
			for i := range results {
				if i > 0 && i%3 == 0 { // what is behind is dropped
					results[i].Data = slices.Concat(results[i].Data, []byte(strings.Repeat(" ", 1<<20)))
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				h, q := aheadOf(w, hooks, func(*coord.Queue[int], *coord.Item[int], []string) {})
				if got := h.String(); got != inOrder(1, 30) {
					w.T.Errorf("delivered %s", got)
				}
				if n := len(letters(w.T, &q.Consumer)); n > 0 {
					w.T.Errorf("%d dead letters", n)
				}
				w.drained(&q.Consumer)
			})
		})
	}
}

// Items that were read are removed, by this client or another one, or claimed by another client.
func TestQueue_AnItemThatWasReadAndIsGoneIsNotDelivered(t *testing.T) {
	without := func(n int) string { return strings.Replace(inOrder(1, 30), fmt.Sprintf(" %d/1", n), "", 1) }
	for _, test := range []struct {
		name  string
		spoil func(w *world, q *coord.Queue[int], ids []string)
		want  string
	}{
		{"removed", func(w *world, q *coord.Queue[int], ids []string) { w.must(q.Remove(context.Background(), ids[13])) }, without(14)},
		{"removed by another client", func(w *world, _ *coord.Queue[int], ids []string) {
			w.must(w.queue("b", nil).Remove(context.Background(), ids[13]))
		}, without(14)},
		{"popped by another client", func(w *world, _ *coord.Queue[int], _ []string) { mustPop(w.T, w.queue("b", nil), 13) }, without(13)},
		{"purged", func(w *world, q *coord.Queue[int], _ []string) {
			if n, err := q.Purge(context.Background()); n != 18 || err != nil {
				w.T.Error(n, err)
			}
		}, inOrder(1, 12)},
		{"purged by another client", func(w *world, _ *coord.Queue[int], _ []string) {
			if n, err := w.queue("b", nil).Purge(context.Background()); n != 18 || err != nil {
				w.T.Error(n, err)
			}
		}, inOrder(1, 12)},
		{"given back by another client", func(w *world, _ *coord.Queue[int], _ []string) {
			w.must(mustTake(w.T, w.queue("b", nil), 13).Release())
		}, inOrder(1, 30)},
		{"failed at another client", func(w *world, _ *coord.Queue[int], _ []string) {
			w.must(mustTake(w.T, w.queue("b", nil), 13).Nack(0))
		}, without(13) + " 13/2"}, // T1: the next list shows it,
	} {
		t.Run(test.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				h, q := aheadOf(w, nil, func(q *coord.Queue[int], _ *coord.Item[int], ids []string) { test.spoil(w, q, ids) })
				if got := h.String(); got != test.want {
					w.T.Errorf("delivered %s, want %s", got, test.want)
				}
				w.drained(&q.Consumer)
			})
		})
	}
}

// What the earlier session has read is not delivered on the next one: in between, an outsider has overwritten the items.
func TestQueue_ANewSessionReadsTheItemsAnew(t *testing.T) {
	onMemory(t, func(w *world) {
		h, q := aheadOf(w, nil, func(q *coord.Queue[int], it *coord.Item[int], _ []string) {
			s := w.Session("outsider")
			for _, b := range w.Children("/q/items") {
				for _, name := range w.Children("/q/items/" + b) {
					path := w.Path("/q/items/" + b + "/" + name)
					data, _, err := s.Get(context.Background(), path, nil)
					if n := 0; strings.HasPrefix(name, "i-") && err == nil {
						fmt.Sscan(string(data), &n)
						_, err = s.Commit(context.Background(), backend.SetData(path, fmt.Append(nil, n+100), backend.AnyVersion))
					}
					w.must(err)
				}
			}
			w.Link("a").Expire(it.Session())
		})
		want := inOrder(1, 12) + " 112/2 " + inOrder(113, 130)
		if got := h.String(); got != want {
			w.T.Errorf("delivered %s, want %s", got, want)
		}
		w.drained(&q.Consumer)
	})
}

// Another consumer has taken the first item that was read ahead. The list is too old, and the next one shows other items.
func TestQueue_AReadBelongsToItsList(t *testing.T) {
	onMemory(t, func(w *world) {
		q := wide(w.queue("a", nil))
		mustPut(w.T, q, 1, 30)
		for n := 1; n <= 12; n++ {
			mustPop(w.T, q, n)
		}
		mustPop(w.T, w.queue("b", nil), 13)
		time.Sleep(2 * time.Second) // fake
		for n := 14; n <= 30; n++ {
			mustPop(w.T, q, n)
		}
		w.drained(&q.Consumer)
	})
}

// An item that was read with others and cannot be decoded is a dead letter, and the others are delivered.
func TestQueue_AnItemReadWithOthersThatCannotBeDecoded(t *testing.T) {
	onMemory(t, func(w *world) {
		text := coord.NewQueue[string](w.Open("p", nil), "/q", nil)
		q := wide(w.queue("a", nil))
		for n := 1; n <= 30; n++ {
			if n%10 == 3 {
				putWords(w.T, text, 1)
				continue
			}
			mustPut(w.T, q, n, n)
		}
		h := newHandled()
		x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
		h.await(w, 27)
		w.Eventually("all are acknowledged", func() bool { return mustLen(w.T, &q.Consumer) == 0 })
		x.finish()
		want := strings.NewReplacer(" 3/1", "", " 13/1", "", " 23/1", "").Replace(inOrder(1, 30))
		if got := h.String(); got != want {
			w.T.Errorf("delivered %s, want %s", got, want)
		}
		if n := len(letters(w.T, &text.Consumer)); n != 3 {
			w.T.Errorf("%d dead letters, want 3", n)
		}
		w.drained(&q.Consumer)
	})
}

// A read of many items has no reply. It holds up neither the end of Work, nor a call whose context ends, nor Close, and
// no item stays claimed.
func TestQueue_AReadAheadThatHangsHoldsNothingUp(t *testing.T) {
	for _, how := range []string{"Work ends", "the client closes", "the context of a Take ends", "the context of a Pop ends"} {
		t.Run(how, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x coordtest.Nth
				c := w.Open("a", &backendtest.Hooks{Before: x.Before})
				q := wide(coord.NewQueue[int](c, "/q", nil))
				putTogether(w.T, q, 1, 30)
				reading := make(chan struct{})
				x.Arm(1, func(c backendtest.Call) bool { return itemsOf(c) > 1 }, func(ctx context.Context, c backendtest.Call, _ error) error {
					close(reading)
					return coordtest.Silence(ctx, c)
				})
				began := time.Now()
				next := 1
				if strings.HasPrefix(how, "the context") {
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
					defer cancel()
					var err error
					for {
						var it *coord.Item[int]
						if strings.Contains(how, "Pop") {
							_, err = q.Pop(ctx)
						} else if it, err = q.Take(ctx); err == nil {
							mustAck(w.T, it)
						}
						if err != nil {
							break
						}
						next++
					}
					coordtest.WantErr(w.T, err, context.DeadlineExceeded)
					w.Settle() // the item is given back
				} else {
					h := newHandled()
					x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error { h.note(it); return nil })
					receive(w, "items are read", reading)
					w.Settle()
					next += len(h.came)
					if how == "Work ends" {
						x.finish()
					} else {
						c.Close()
						if err := x.ended(); !errors.Is(err, coord.ErrClosed) {
							w.T.Error(err)
						}
					}
				}
				if took := time.Since(began); took > 6*time.Second {
					w.T.Errorf("it took %v", took)
				}
				if !x.Idle() || next < 5 {
					w.T.Errorf("nothing was read ahead before item %d", next)
				}
				b := w.queue("b", nil)
				for ; next <= 30; next++ {
					it, err := b.TryTake(context.Background())
					if err != nil || it.Value != next || it.Attempt != 1 {
						w.T.Fatalf("%+v, %v, want item %d, attempt 1", it, err, next)
					}
					mustAck(w.T, it)
				}
				c.Close()
				w.drained(&b.Consumer)
			})
		})
	}
}
