package recipetest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// counted returns the length of the queue at path by its counting nodes, and that by a list of
// its items.
func counted(t *testing.T, s backend.Session, path string) (byCounts, listed int) {
	t.Helper()
	ctx := context.Background()
	if err := s.Sync(ctx, path); err != nil {
		t.Fatal(err)
	}
	data, _, err := s.Get(ctx, path+"/items/in", nil)
	if err != nil {
		t.Fatal(err)
	}
	in, err := strconv.ParseUint(string(data), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Exists(ctx, path+"/items/out", nil)
	if err != nil {
		t.Fatal(err)
	}
	return int(int32(uint32(in) - uint32(out.Version))), listedItems(t, s, path)
}

func listedItems(t *testing.T, s backend.Session, path string) (n int) {
	t.Helper()
	ctx := context.Background()
	buckets, _, err := s.Children(ctx, path+"/items", nil)
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		t.Fatal(err)
	}
	for _, b := range buckets {
		names, _, err := s.Children(ctx, path+"/items/"+b, nil)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasPrefix(name, "i-") {
				n++
			}
		}
	}
	return n
}

// wantCounted checks that the counting nodes of /q are true.
func (w *world) wantCounted(want int) {
	w.T.Helper()
	if n, listed := counted(w.T, w.Session("counter"), w.Path("/q")); n != want || listed != want {
		w.T.Errorf("the nodes count %d items, a list shows %d, want %d", n, listed, want)
	}
}

func full(max int) *coord.QueueOptions[int] {
	return &coord.QueueOptions[int]{MaxLen: max, FailWhenFull: true}
}

func wantFull(t *testing.T, q *coord.Queue[int]) {
	t.Helper()
	_, err := q.Put(context.Background(), 99)
	coordtest.WantErr(t, err, coord.ErrFull)
}

// queueCountTests are tests of Queue on each service.
type queueCountTests struct{ Services }

// However an item leaves the queue, it is counted in the commit that deletes it.
func (on queueCountTests) EachItemThatLeavesAQueueIsCounted(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		o := full(20)
		o.MaxAttempts = 2
		p := w.queue("p", o)
		// A consumer need not know the limit.
		c := w.queue("c", &coord.QueueOptions[int]{MaxAttempts: 2})
		mustPut(w.T, p, 1, 2)
		if _, err := p.PutAll(ctx, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14); err != nil {
			w.T.Fatal(err)
		}
		w.wantCounted(14)
		if v, err := c.Pop(ctx); v != 1 || err != nil {
			w.T.Fatal(v, err)
		}
		w.wantCounted(13)
		mustAck(w.T, mustTake(w.T, c, 2))
		w.wantCounted(12)
		var items []*coord.Item[int]
		for n := 3; n <= 6; n++ {
			items = append(items, mustTake(w.T, c, n))
		}
		if err := c.AckAll(items...); err != nil {
			w.T.Fatal(err)
		}
		w.wantCounted(8)
		for range 2 { // the second failure buries it
			if err := mustTake(w.T, c, 7).Nack(0); err != nil {
				w.T.Fatal(err)
			}
		}
		w.wantCounted(7)
		for range 2 { // as does the third consumer that sees it
			it := mustTake(w.T, p, 8)
			w.Link("p").Expire(it.Session())
			<-it.Done()
		}
		// A client that has not listed the items before.
		mustAck(w.T, mustTake(w.T, w.queue("d", &coord.QueueOptions[int]{MaxAttempts: 2}), 9))
		w.wantCounted(5)
		if err := mustTake(w.T, c, 10).Release(); err != nil {
			w.T.Fatal(err)
		}
		held := mustTake(w.T, c, 10)
		w.wantCounted(5)
		if n, err := c.Purge(ctx); n != 4 || err != nil {
			w.T.Errorf("purged %d, %v, want 4", n, err)
		}
		w.wantCounted(1)
		mustAck(w.T, held)
		w.wantCounted(0)
		if n, err := coord.NewQueue[int](w.Open("d", nil), "/q/dead", nil).Len(ctx); n != 2 || err != nil {
			w.T.Errorf("%d dead letters, %v, want 2", n, err)
		}
		w.drained(&c.Consumer)
	})
}

// The other queues count in the same way, whatever the buckets are.
func (on queueCountTests) TheOtherQueuesKeepTheirLimits(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		d, p := coord.NewDelayQueue(c, "/d", full(3)), coord.NewPriorityQueue(c, "/p", full(3))
		for n := range 3 {
			if _, err := d.PutAfter(ctx, time.Duration(n)*time.Hour, n); err != nil {
				w.T.Fatal(err)
			}
			if _, err := p.Put(ctx, int64(n), n); err != nil {
				w.T.Fatal(err)
			}
		}
		for range 2 {
			_, err := d.PutAfter(ctx, 0, 9)
			coordtest.WantErr(w.T, err, coord.ErrFull)
			_, err = p.PutAll(ctx, -1, 9)
			coordtest.WantErr(w.T, err, coord.ErrFull)
			mustAck(w.T, mustTake(w.T, d, 0))
			mustAck(w.T, mustTake(w.T, p, 0))
			if _, err := d.PutAfter(ctx, 0, 0); err != nil {
				w.T.Fatal(err)
			}
			if _, err := p.Put(ctx, -5, 0); err != nil {
				w.T.Fatal(err)
			}
		}
		s := w.Session("counter")
		for _, path := range []string{"/d", "/p"} {
			if n, listed := counted(w.T, s, w.Path(path)); n != 3 || listed != 3 {
				w.T.Errorf("%s: the nodes count %d items, a list shows %d, want 3", path, n, listed)
			}
		}
	})
}

// A request or a reply is lost: the put, the Ack and what they count happen once.
func (on queueCountTests) ALostReplyCountsOnce(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(backendtest.Link){
		"request lost": backendtest.Link.DropNextRequest,
		"reply lost":   backendtest.Link.DropNextReply,
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				q := w.queue("a", full(4))
				mustPut(w.T, q, 1, 1)
				for n := 2; n <= 10; n++ {
					fault(w.Link("a"))
					mustPut(w.T, q, n, n)
					w.wantCounted(2)
					it := mustTake(w.T, q, n-1)
					fault(w.Link("a"))
					mustAck(w.T, it)
					w.wantCounted(1)
				}
				for n := 11; n <= 13; n++ {
					fault(w.Link("a"))
					mustPut(w.T, q, n, n)
				}
				wantFull(w.T, q)
				fault(w.Link("a"))
				if n, err := q.Purge(context.Background()); n != 4 || err != nil {
					w.T.Errorf("purged %d, %v, want 4", n, err)
				}
				w.wantCounted(0)
				w.drained(&q.Consumer)
			})
		})
	}
}

// remove deletes nodes, as an outsider does.
func (w *world) remove(paths ...string) {
	w.T.Helper()
	var ops []backend.Op
	for _, path := range paths {
		ops = append(ops, backend.Delete(w.Path(path), backend.AnyVersion))
	}
	if _, err := w.Session("outsider").Commit(context.Background(), ops...); err != nil {
		w.T.Fatal(err)
	}
}

// The counts are wrong, for one reason or another. That neither blocks the queue nor, once it
// was full, makes it longer than the limit.
func (on queueCountTests) CountsThatAreWrongAreRepaired(t *testing.T) {
	const most = 4
	set := func(name, data string) func(w *world) {
		return func(w *world) {
			if _, err := w.Session("outsider").Commit(context.Background(), backend.SetData(w.Path("/q/items/"+name), []byte(data), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		}
	}
	items := func(w *world) (all []string) {
		for _, b := range w.Children("/q/items") {
			for _, name := range itemNames(w, "/q/items/"+b) {
				all = append(all, "/q/items/"+b+"/"+name)
			}
		}
		return all
	}
	for name, spoil := range map[string]func(w *world){
		"an outsider deletes an item":       func(w *world) { w.remove(items(w)[1]) },
		"an outsider deletes all items":     func(w *world) { w.remove(items(w)...) },
		"in is missing":                     func(w *world) { w.remove("/q/items/in") },
		"out is missing":                    func(w *world) { w.remove("/q/items/out") },
		"both are missing":                  func(w *world) { w.remove("/q/items/in", "/q/items/out") },
		"in has no number":                  set("in", "many"),
		"in is empty":                       set("in", ""),
		"in is much too large":              set("in", "1000000"),
		"in is less than out":               set("in", "0"),
		"out is as large as in":             func(w *world) { set("out", "")(w); set("out", "")(w); set("out", "")(w); set("out", "")(w) },
		"a client without a limit puts":     func(w *world) { mustPut(w.T, w.queue("b", nil), 50, 50) },
		"a client without a limit fills it": func(w *world) { mustPut(w.T, w.queue("b", nil), 50, 53) },
	} {
		for _, first := range []string{"a put", "a take"} {
			t.Run(name+", then "+first, func(t *testing.T) {
				on.each(t, func(w *world) {
					ctx := context.Background()
					unlimited := strings.Contains(name, "without a limit") || strings.Contains(name, "out is as large")
					a, c := w.queue("a", full(most)), w.queue("c", nil)
					mustPut(w.T, a, 1, 3)
					mustAck(w.T, mustTake(w.T, c, 1))
					mustPut(w.T, a, 4, 5)
					wantFull(w.T, a)
					spoil(w)
					s := w.Session("s")
					if first == "a take" {
						if it, err := c.TryTake(ctx); err == nil {
							mustAck(w.T, it)
						} else {
							coordtest.WantErr(w.T, err, coord.ErrEmpty)
						}
					}
					// The second producer remembers nothing.
					for _, q := range []*coord.Queue[int]{a, w.queue("d", full(most))} {
						room := most - listedItems(w.T, s, w.Path("/q"))
						n := 0
						for ; n < 3*most; n++ {
							if _, err := q.Put(ctx, 60); err != nil {
								coordtest.WantErr(w.T, err, coord.ErrFull)
								break
							}
						}
						if n != room && (n < room || !unlimited) {
							w.T.Errorf("%d puts, there was room for %d", n, room)
						}
						for n := max(listedItems(w.T, s, w.Path("/q"))-most, 0) + 1; n > 0; n-- {
							mustAck(w.T, sure(c.Take(ctx)))
						}
						unlimited = false // the queue was full, and has repaired the counts
					}
					mustPut(w.T, a, 60, 60)
					wantFull(w.T, a)
					w.wantCounted(most)
				})
			})
		}
	}
}

func sure[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A queue that has items but no counts gets them with the first put that has a limit.
func (on queueCountTests) AnOlderQueueGetsCounts(t *testing.T) {
	on.each(t, func(w *world) {
		old := w.queue("old", nil)
		mustPut(w.T, old, 1, 9)
		if names := w.Children("/q/items"); slices.Contains(names, "in") || slices.Contains(names, "out") {
			w.T.Fatalf("counts without a limit: %v", names)
		}
		held := mustTake(w.T, old, 1) // by a client that does not know of counts
		wantFull(w.T, w.queue("a", full(9)))
		b := w.queue("b", full(10))
		mustPut(w.T, b, 10, 10)
		wantFull(w.T, b)
		w.wantCounted(10)
		mustAck(w.T, held) // is not counted
		mustPut(w.T, b, 11, 11)
		wantFull(w.T, b)
		w.wantCounted(10)
		for n := 2; n <= 11; n++ {
			mustAck(w.T, mustTake(w.T, old, n))
		}
		for n := 1; n <= 10; n++ {
			mustPut(w.T, b, n, n)
		}
		wantFull(w.T, b)
	})
}

// A producer that waits for room gets it although the items are deleted by clients that do not
// count them.
func (on queueCountTests) AProducerThatWaitsNoticesItemsThatLeaveUncounted(t *testing.T) {
	for name, leave := range map[string]func(w *world, it *coord.Item[int]){
		"an outsider deletes all": func(w *world, _ *coord.Item[int]) {
			for _, name := range itemNames(w, "/q/items/b-0-0") {
				w.remove("/q/items/b-0-0/" + name)
			}
		},
		"a consumer that began before there was a limit": func(w *world, it *coord.Item[int]) { mustAck(w.T, it) },
		"an outsider deletes the nodes that count":       func(w *world, it *coord.Item[int]) { w.remove("/q/items/out"); mustAck(w.T, it) },
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				old := w.queue("old", nil)
				mustPut(w.T, old, 1, 3)
				it := mustTake(w.T, old, 1)
				put := w.putWaits(w.queue("a", &coord.QueueOptions[int]{MaxLen: 3}), 4)
				leave(w, it)
				put.done()
			})
		})
	}
}

// A producer that waits is woken when another one repairs the counts and leaves some room.
func (on queueCountTests) ARepairOfTheCountsWakesTheProducersThatWait(t *testing.T) {
	on.each(t, func(w *world) {
		mustPut(w.T, w.queue("old", nil), 1, 6)
		put := w.putWaits(w.queue("a", &coord.QueueOptions[int]{MaxLen: 6}), 7)
		items := itemNames(w, "/q/items/b-0-0")
		number := func(name string) string { return name[strings.LastIndexByte(name, '-'):] }
		slices.SortFunc(items, func(a, b string) int { return strings.Compare(number(a), number(b)) })
		// The waiting producer has not chosen these two.
		w.remove("/q/items/b-0-0/"+items[1], "/q/items/b-0-0/"+items[4])
		w.Settle()
		select {
		case err := <-put.err:
			w.T.Fatalf("the Put was not waiting: %v", err)
		default:
		}
		b := w.queue("b", full(6))
		mustPut(w.T, b, 8, 8)
		put.done()
		wantFull(w.T, b)
		w.wantCounted(6)
	})
}

// An outsider deletes the whole queue, in one case while a producer waits for room. The next put makes the queue again.
func (on queueCountTests) ALimitedQueueThatWasDeletedBeginsAnew(t *testing.T) {
	for _, first := range []string{"a put", "a put that waits"} {
		t.Run(first, func(t *testing.T) {
			on.each(t, func(w *world) {
				var commits atomic.Int64
				q := w.hookedQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					if slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return op.Path == w.Path("/q/items/in") }) && commits.Add(1) > 50 {
						return backend.ErrDenied // it would not end
					}
					return nil
				}}, &coord.QueueOptions[int]{MaxLen: 1})
				mustPut(w.T, q, 1, 1)
				var put *putting
				if first == "a put that waits" {
					put = w.putWaits(q, 2)
					w.Eventually("the producer has a slot", func() bool { return len(w.Children("/q/producers")) == 1 })
				}
				all := []string{"/q"}
				for i := 0; i < len(all); i++ {
					for _, name := range w.Children(all[i]) {
						all = append(all, all[i]+"/"+name)
					}
				}
				slices.Reverse(all)
				w.remove(all...)
				if put != nil {
					put.done()
				} else {
					mustPut(w.T, q, 2, 2)
				}
				w.wantCounted(1)
				mustAck(w.T, mustTake(w.T, w.queue("b", nil), 2))
				w.wantCounted(0)
			})
		})
	}
}

// putting is a Put under way.
type putting struct {
	w   *world
	err chan error
}

func (w *world) putWaits(q *coord.Queue[int], v int) *putting {
	w.T.Helper()
	n := w.Waits.Load()
	x := &putting{w, make(chan error, 1)}
	go func() {
		_, err := q.Put(context.Background(), v)
		x.err <- err
	}()
	w.Eventually("the Put waits", func() bool { return w.Waits.Load() > n })
	w.Settle()
	return x
}

func (x *putting) done() {
	x.w.T.Helper()
	select {
	case err := <-x.err:
		if err != nil {
			x.w.T.Error(err)
		}
	case <-time.After(coordtest.Limit):
		x.w.T.Fatal("the Put did not return")
	}
}
