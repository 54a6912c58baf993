package coord_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// refuse makes a service that denies what match says while on is set.
func refuse(on *atomic.Bool, match func(backendtest.Call) bool) *backendtest.Hooks {
	return &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
		if on.Load() && match(c) {
			return &backend.Error{Op: c.Op, Path: c.Path, Index: -1, Err: backend.ErrDenied}
		}
		return nil
	}}
}

func TestARefusedClaimIsTold(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var on atomic.Bool
		q := w.hookedQueue("a", refuse(&on, claims), nil)
		mustPut(w.t, q, 1, 1)
		on.Store(true)
		_, err := q.Take(ctx)
		wantErr(w.t, err, coord.ErrDenied)
		for it, err := range q.All(ctx) {
			if it != nil {
				w.t.Error("an item")
			}
			wantErr(w.t, err, coord.ErrDenied)
		}
		if it, ok := <-q.Items(ctx); ok {
			w.t.Errorf("an item: %v", it)
		}
		on.Store(false)
		mustAck(w.t, mustTake(w.t, q, 1))
		w.drained(&q.Consumer)
	})
}

func TestARefusedReadGivesTheItemBack(t *testing.T) {
	onMemory(t, func(w *world) {
		var on atomic.Bool
		q := w.hookedQueue("a", refuse(&on, func(c backendtest.Call) bool { return c.Op == "get" }), &coord.QueueOptions[int]{Prefetch: 2})
		mustPut(w.t, q, 1, 2)
		on.Store(true)
		for _, err := range q.All(context.Background()) {
			wantErr(w.t, err, coord.ErrDenied)
		}
		on.Store(false)
		for n := 1; n <= 2; n++ {
			it := mustTake(w.t, q, n)
			if it.Attempt != 1 {
				w.t.Errorf("attempt %d", it.Attempt)
			}
			mustAck(w.t, it)
		}
		w.drained(&q.Consumer)
	})
}

func TestARefusedAckGoesOnInTheBackground(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var on atomic.Bool
		q := w.hookedQueue("a", refuse(&on, deletes), nil)
		other := w.queue("b", nil)
		mustPut(w.t, q, 1, 2)
		first, second := mustTake(w.t, q, 1), mustTake(w.t, q, 2)
		on.Store(true)
		wantErr(w.t, first.Ack(), coord.ErrDenied)
		wantErr(w.t, second.Release(), coord.ErrDenied)
		_, err := other.TryTake(ctx)
		wantErr(w.t, err, coord.ErrEmpty)
		on.Store(false)
		time.Sleep(5 * time.Second) // of fake time, for the pauses
		mustAck(w.t, mustTake(w.t, other, 2))
		w.drained(&other.Consumer)
	})
}

// What can be put can be moved to the dead letters, and no list grows too long.
func TestTheLargestItemFitsIntoTheDeadLetters(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewQueue(w.open("a", nil), "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes(), MaxAttempts: 1})
		size := backend.MaxRequest
		for {
			_, err := q.Put(ctx, make([]byte, size))
			if err == nil {
				break
			}
			wantErr(w.t, err, coord.ErrTooLarge)
			size -= 1_000
		}
		w.t.Logf("figure: the largest item has some %d bytes", size)
		if size < 900_000 {
			w.t.Errorf("an item of more than %d bytes is refused", size)
		}
		it, err := q.Take(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := it.Nack(0); err != nil {
			w.t.Fatal(err)
		}
		dead, err := coord.NewQueue(w.open("b", nil), "/q/dead", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()}).Pop(ctx)
		if err != nil || len(dead) != size {
			w.t.Errorf("a dead letter of %d bytes, %v", len(dead), err)
		}
	})
}

func TestARefusedPopGivesTheItemBack(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var on atomic.Bool
		q := w.hookedQueue("a", refuse(&on, deletes), nil)
		mustPut(w.t, q, 1, 1)
		on.Store(true)
		_, err := q.Pop(ctx)
		on.Store(false)
		wantErr(w.t, err, coord.ErrDenied)
		time.Sleep(10 * time.Second) // of fake time, for the pauses
		if errors.Is(err, coord.ErrUncertain) {
			w.t.Error(err)
		}
		it := mustTake(w.t, q, 1)
		if it.Attempt != 1 {
			w.t.Errorf("attempt %d", it.Attempt)
		}
		mustAck(w.t, it)
		w.drained(&q.Consumer)
	})
}

func TestAnItemThatCannotBeBuriedDoesNotHoldUpTheOthers(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var on atomic.Bool
		on.Store(true)
		o := &coord.QueueOptions[int]{MaxAttempts: 1}
		var calls atomic.Int64
		hooks := refuse(&on, func(c backendtest.Call) bool {
			calls.Add(1)
			return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return strings.Contains(op.Path, "/dead") })
		})
		a, b := w.queue("a", o), w.hookedQueue("b", hooks, o)
		mustPut(w.t, a, 1, 3)
		mustTake(w.t, a, 1)
		w.Link("a").Expire(claimant(w))
		w.settle()
		for n := 2; n <= 3; n++ {
			mustAck(w.t, mustTake(w.t, b, n))
		}
		// It is tried again now and then, and goes in the end.
		calls.Store(0)
		short, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		_, err := b.Take(short)
		wantErr(w.t, err, context.DeadlineExceeded)
		if n := calls.Load(); n < 60 || n > 2_000 {
			w.t.Errorf("%d requests in an hour", n)
		}
		on.Store(false)
		time.Sleep(2 * time.Minute)
		_, err = b.TryTake(ctx)
		wantErr(w.t, err, coord.ErrEmpty)
		dead := coord.NewQueue[int](w.open("d", nil), "/q/dead", nil)
		mustAck(w.t, mustTake(w.t, dead, 1))
		w.drained(&b.Consumer)
	})
}

// claimant is the session that has an item of the first bucket.
func claimant(w *world) int64 {
	s := w.session("z")
	for _, n := range w.children("/q/items/b-0-0") {
		if strings.HasPrefix(n, "m-") {
			st, err := s.Exists(context.Background(), w.path("/q/items/b-0-0/"+n), nil)
			if err != nil {
				w.t.Fatal(err)
			}
			return st.EphemeralOwner
		}
	}
	w.t.Fatal("no mark")
	return 0
}

// The item that it panics at has had an attempt, the others none.
func TestACodecThatPanicsLeavesNothingClaimed(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.open("a", nil)
		bad := true
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{Prefetch: 3, Codec: coord.Codec[int]{Encode: func(int) ([]byte, error) { return nil, nil }, Decode: func([]byte) (int, error) {
			if bad {
				panic("bad")
			}
			return 1, nil
		}}})
		mustPut(w.t, q, 1, 3)
		func() {
			defer func() {
				if recover() == nil {
					w.t.Error("no panic")
				}
			}()
			for range q.All(ctx) {
				w.t.Error("an item")
			}
		}()
		bad = false
		for i := range 3 {
			want := 1
			if i == 0 {
				want = 2
			}
			if it, err := q.TryTake(ctx); err != nil || it.Attempt != want {
				w.t.Errorf("item %d is still claimed, or has another attempt than %d: %v, %v", i, want, it, err)
			}
		}
	})
}

func TestAnItemAtWhichACodecPanicsIsNotTheFirstForEver(t *testing.T) {
	onMemory(t, func(w *world) {
		codec := coord.JSON[int]()
		decode := codec.Decode
		codec.Decode = func(data []byte) (int, error) {
			v, err := decode(data)
			if v == 1 {
				panic("bad")
			}
			return v, err
		}
		q := w.queue("a", &coord.QueueOptions[int]{Codec: codec, MaxAttempts: 2})
		mustPut(w.t, q, 1, 2)
		panics := 0
		for panics < 5 {
			bad := false
			func() {
				defer func() { bad = recover() != nil }()
				mustAck(w.t, mustTake(w.t, q, 2))
			}()
			if !bad {
				break
			}
			panics++
		}
		if panics != 2 {
			w.t.Errorf("%d panics, want one for each attempt", panics)
		}
		mustAck(w.t, mustTake(w.t, coord.NewQueue[int](w.open("d", nil), "/q/dead", nil), 1))
		w.drained(&q.Consumer)
	})
}

func TestAPopEndsWithItsContext(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		var x nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.before}, nil)
		mustPut(w.t, q, 1, 1)
		x.arm(1, deletes, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			return nil
		})
		start := time.Now()
		_, err := q.Pop(ctx)
		wantErr(w.t, err, context.DeadlineExceeded)
		if d := time.Since(start); d > 500*time.Millisecond {
			w.t.Errorf("Pop with a context of 100 ms returned after %v: %v", d, err)
		}
		w.Link("a").Heal()
		// The request was lost, so the item is there.
		it := mustTake(w.t, q, 1)
		mustAck(w.t, it)
		w.drained(&q.Consumer)
	})
}

func TestATakeOfWhatCannotBeDecodedEndsWithItsContext(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		var x nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.before}, nil)
		p := coord.NewQueue(w.open("b", nil), "/q", &coord.QueueOptions[string]{Codec: coord.Text()})
		if _, err := p.Put(ctx, "no number"); err != nil {
			w.t.Fatal(err)
		}
		x.arm(1, deletes, func(context.Context, backendtest.Call, error) error {
			w.Link("a").Partition()
			return nil
		})
		start := time.Now()
		_, err := q.Take(ctx)
		wantErr(w.t, err, context.DeadlineExceeded)
		if d := time.Since(start); d > 500*time.Millisecond {
			w.t.Errorf("Take with a context of 100 ms returned after %v: %v", d, err)
		}
		w.Link("a").Heal()
		dead := coord.NewQueue(w.open("d", nil), "/q/dead", &coord.QueueOptions[string]{Codec: coord.Text()})
		if v, err := dead.Pop(context.Background()); v != "no number" || err != nil {
			w.t.Errorf("dead letter %q, %v", v, err)
		}
		w.drained(&q.Consumer)
	})
}
