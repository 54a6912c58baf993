package coord_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

func TestANackOfLessThanAMillisecondIsADelay(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.t, q, 1, 1)
		if err := mustTake(w.t, q, 1).Nack(time.Microsecond); err != nil {
			w.t.Fatal(err)
		}
		began := time.Now()
		_, err := q.TryTake(context.Background())
		wantErr(w.t, err, coord.ErrEmpty)
		it := mustTake(w.t, q, 1)
		if d := time.Since(began); d < time.Microsecond || d > 10*time.Millisecond {
			w.t.Errorf("it came back after %v", d)
		}
		if err := it.Nack(-time.Second); err != nil {
			w.t.Fatal(err)
		}
		it, err = q.TryTake(context.Background())
		if err != nil || it.Attempt != 3 {
			w.t.Fatalf("%v, %v, want it at once", it, err)
		}
		mustAck(w.t, it)
		w.drained(&q.Consumer)
	})
}

// The longest delay is one, and not a time long ago.
func TestANackForEverIsADelay(t *testing.T) {
	onEach(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.t, q, 1, 1)
		if err := mustTake(w.t, q, 1).Nack(math.MaxInt64); err != nil {
			w.t.Fatal(err)
		}
		_, err := q.TryTake(context.Background())
		wantErr(w.t, err, coord.ErrEmpty)
		if n, err := q.Len(context.Background()); n != 1 || err != nil {
			w.t.Errorf("%d items, %v", n, err)
		}
	})
}
