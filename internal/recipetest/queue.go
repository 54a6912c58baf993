package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// queue returns the queue at /q on a client of its own, with small buckets, so that there are
// several.
func (w *world) queue(name string, o *coord.QueueOptions[int]) *coord.Queue[int] {
	w.T.Helper()
	return w.hookedQueue(name, nil, o)
}

func (w *world) hookedQueue(name string, hooks *backendtest.Hooks, o *coord.QueueOptions[int]) *coord.Queue[int] {
	w.T.Helper()
	q := coord.NewQueue[int](w.Open(name, hooks), "/q", o)
	*coordtest.Inside(&q.Consumer).BucketSize = 6
	return q
}

// mustPut puts the numbers from first to last.
func mustPut(t *testing.T, q *coord.Queue[int], first, last int) {
	t.Helper()
	for n := first; n <= last; n++ {
		if _, err := q.Put(context.Background(), n); err != nil {
			t.Fatal(err)
		}
	}
}

// mustTake takes an item and checks which one it is.
func mustTake(t *testing.T, q interface {
	Take(context.Context) (*coord.Item[int], error)
}, want int) *coord.Item[int] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), coordtest.Limit)
	defer cancel()
	it, err := q.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if it.Value != want {
		t.Fatalf("took %d, want %d", it.Value, want)
	}
	return it
}

func mustAck(t *testing.T, it *coord.Item[int]) {
	t.Helper()
	if err := it.Ack(); err != nil {
		t.Fatal(err)
	}
}

// taking is a Take under way.
type taking struct {
	w    *world
	done chan struct{}
	it   *coord.Item[int]
	err  error
}

func (w *world) take(ctx context.Context, q *coord.Queue[int]) *taking {
	x := &taking{w: w, done: make(chan struct{})}
	go func() {
		defer close(x.done)
		x.it, x.err = q.Take(ctx)
	}()
	return x
}

// takeWaits starts a Take and returns when it waits.
func (w *world) takeWaits(ctx context.Context, q *coord.Queue[int]) *taking {
	w.T.Helper()
	n := w.Waits.Load()
	x := w.take(ctx, q)
	w.Eventually("the Take waits", func() bool { return w.Waits.Load() > n })
	return x
}

func (x *taking) item(want int) *coord.Item[int] {
	x.w.T.Helper()
	select {
	case <-x.done:
	case <-time.After(coordtest.Limit):
		x.w.T.Fatal("nothing was taken")
	}
	if x.err != nil {
		x.w.T.Fatal(x.err)
	}
	if x.it.Value != want {
		x.w.T.Fatalf("took %d, want %d", x.it.Value, want)
	}
	return x.it
}

// drained checks that nothing is left but the one open bucket.
func (w *world) drained(q *coord.Consumer[int]) {
	w.T.Helper()
	ctx := context.Background()
	if n, err := q.Len(ctx); n != 0 || err != nil {
		w.T.Errorf("Len is %d, %v, want 0", n, err)
	}
	// If the removal of an empty bucket fails, the next call repeats it.
	w.Eventually("one empty bucket is left", func() bool {
		if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
			w.T.Error(err)
		}
		buckets := slices.DeleteFunc(w.Children("/q/items"), func(name string) bool { return !strings.HasPrefix(name, "b-") })
		return len(buckets) == 1 && len(w.Children("/q/items/"+buckets[0])) == 0
	})
	w.Empty("/q/waiters")
}

// queueTests are tests of Queue on each service.
type queueTests struct{ Services }

// A bucket is closed when it has its fill, and not by a number that counts nothing.
func (on queueTests) BucketsGetTheirFillWhateverTheNumbersAre(t *testing.T) {
	on.revisions(t, func(w *world) {
		q := w.queue("a", nil) // with buckets of six
		mustPut(w.T, q, 1, 20)
		if _, err := q.PutAll(context.Background(), 21, 22, 23, 24); err != nil {
			w.T.Fatal(err)
		}
		var sizes []int
		for n := range w.Children("/q/items") {
			sizes = append(sizes, len(w.Children(fmt.Sprintf("/q/items/b-0-%d", n))))
		}
		if !slices.Equal(sizes, []int{6, 6, 6, 6}) {
			w.T.Errorf("buckets of %v items", sizes)
		}
		for n := range 24 {
			mustAck(w.T, mustTake(w.T, q, n+1))
		}
		w.drained(&q.Consumer)
	})
}

func (on queueTests) AQueueKeepsTheOrderAcrossBuckets(t *testing.T) {
	on.revisions(t, func(w *world) {
		ctx := context.Background()
		a, b := w.queue("a", nil), w.queue("b", nil)
		mustPut(w.T, a, 1, 10)
		mustPut(w.T, b, 11, 15)
		ids, err := a.PutAll(ctx, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30)
		if err != nil || len(ids) != 15 {
			w.T.Fatal(ids, err)
		}
		mustPut(w.T, b, 31, 32)
		if n, err := b.Len(ctx); n != 32 || err != nil {
			w.T.Errorf("Len is %d, %v, want 32", n, err)
		}
		if n := len(w.Children("/q/items")); n < 4 {
			w.T.Errorf("%d buckets: this tests too little", n)
		}
		if v, err := b.Peek(ctx); v != 1 || err != nil {
			w.T.Errorf("Peek: %d, %v", v, err)
		}
		for n := 1; n <= 32; n++ {
			it := mustTake(w.T, b, n)
			if it.Attempt != 1 || (n == 20 && it.ID != ids[4]) || it.Token() == 0 {
				w.T.Errorf("item %+v", it)
			}
			mustAck(w.T, it)
			coordtest.WantErr(w.T, it.Err(), coord.ErrReleased)
			if err := it.Ack(); err != nil {
				w.T.Error("a second Ack:", err)
			}
			coordtest.WantErr(w.T, it.Nack(0), coord.ErrReleased)
		}
		w.drained(&a.Consumer)
		_, err = a.Peek(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
	})
}

func (on queueTests) AWaitingConsumerGetsTheNextItem(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.queue("a", nil), w.queue("b", nil)
		for n := 1; n <= 20; n++ { // the first one before there is anything
			x := w.takeWaits(context.Background(), b)
			mustPut(w.T, a, n, n)
			mustAck(w.T, x.item(n))
		}
		w.drained(&a.Consumer)
	})
}

func (on queueTests) ManyWaitingConsumersShareTheItems(t *testing.T) {
	on.each(t, func(w *world) {
		const consumers, each = 5, 6
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var mu sync.Mutex
		var got []int
		all := make(chan struct{})
		var wg sync.WaitGroup
		for i := range consumers {
			q := w.queue(fmt.Sprint(i), nil)
			for range 2 {
				wg.Go(func() {
					for {
						it, err := q.Take(ctx)
						if err != nil {
							coordtest.WantErr(w.T, err, context.Canceled)
							return
						}
						mu.Lock()
						if got = append(got, it.Value); len(got) == consumers*each {
							close(all)
						}
						mu.Unlock()
						if err := it.Ack(); err != nil {
							w.T.Error(err)
						}
					}
				})
			}
		}
		p := w.queue("p", nil)
		for n := range consumers * each {
			mustPut(w.T, p, n, n)
		}
		select {
		case <-all:
		case <-time.After(coordtest.Limit):
			w.T.Error("not all items were taken")
		}
		cancel()
		wg.Wait()
		slices.Sort(got)
		for i, n := range got {
			if i != n {
				w.T.Fatalf("took %v", got)
			}
		}
		w.drained(&p.Consumer)
	})
}

func (on queueTests) ATakeThatGivesUpLeavesNothing(t *testing.T) {
	on.each(t, func(w *world) {
		a := w.queue("a", nil)
		reason := errors.New("no time")
		ctx, cancel := context.WithCancelCause(context.Background())
		x, y := w.takeWaits(ctx, a), w.takeWaits(ctx, w.queue("b", nil))
		cancel(reason)
		<-x.done
		<-y.done
		coordtest.WantErr(w.T, x.err, context.Canceled, reason)
		coordtest.WantErr(w.T, y.err, context.Canceled, reason)
		w.Empty("/q/waiters")
		mustPut(w.T, a, 1, 1)
		mustAck(w.T, mustTake(w.T, a, 1))
		w.drained(&a.Consumer)
	})
}

func (on queueTests) NackAndReleaseKeepThePlace(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 3)
		it := mustTake(w.T, q, 1)
		if err := it.Release(); err != nil {
			w.T.Fatal(err)
		}
		it = mustTake(w.T, q, 1)
		if it.Attempt != 1 {
			w.T.Errorf("attempt %d after a Release, want 1", it.Attempt)
		}
		if err := it.Nack(0); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, it.Ack(), coord.ErrReleased)
		it = mustTake(w.T, q, 1)
		if it.Attempt != 2 {
			w.T.Errorf("attempt %d after a Nack, want 2", it.Attempt)
		}
		if err := it.Release(); err != nil {
			w.T.Fatal(err)
		}
		it = mustTake(w.T, q, 1)
		if it.Attempt != 2 {
			w.T.Errorf("attempt %d after a Nack and a Release, want 2", it.Attempt)
		}
		delay := 300 * time.Millisecond
		if !w.Fake {
			delay = 5 * time.Second // the others are taken by then
		}
		start := time.Now()
		if err := it.Nack(delay); err != nil {
			w.T.Fatal(err)
		}
		second := mustTake(w.T, q, 2)
		third := mustTake(w.T, q, 3)
		_, err := q.TryTake(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		it = mustTake(w.T, q, 1)
		if d := time.Since(start); d < delay-time.Millisecond {
			w.T.Errorf("came back after %v", d)
		}
		if it.Attempt != 3 {
			w.T.Errorf("attempt %d, want 3", it.Attempt)
		}
		mustAck(w.T, third)
		mustAck(w.T, it)
		mustAck(w.T, second)
		w.drained(&q.Consumer)
	})
}

func (on queueTests) TheBytesOfAnItemAreThoseOfTheCodec(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[string]{Codec: coord.Text()})
		if _, err := q.Put(ctx, "as it is"); err != nil {
			w.T.Fatal(err)
		}
		bucket := "/q/items/" + w.Children("/q/items")[0]
		data, _, err := w.Session("x").Get(ctx, w.Path(bucket+"/"+w.Children(bucket)[0]), nil)
		if string(data) != "as it is" || err != nil {
			w.T.Errorf("%q, %v", data, err)
		}
		if v, err := q.Pop(ctx); v != "as it is" || err != nil {
			w.T.Errorf("Pop: %q, %v", v, err)
		}
	})
}

func (on queueTests) AReleaseCanBeDeferred(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 2)
		it := mustTake(w.T, q, 1)
		mustAck(w.T, it)
		if err := it.Release(); err != nil {
			w.T.Errorf("after an Ack: %v", err)
		}
		it = mustTake(w.T, q, 2)
		if err := it.Release(); err != nil {
			w.T.Error(err)
		}
		coordtest.WantErr(w.T, it.Ack(), coord.ErrReleased)
		coordtest.WantErr(w.T, it.Nack(0), coord.ErrReleased)
		mustAck(w.T, mustTake(w.T, q, 2))
	})
}
