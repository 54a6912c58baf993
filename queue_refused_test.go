package coord_test

import (
	"context"
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
