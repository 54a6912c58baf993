package coord_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

func TestPurgeRemovesMinutesThatAreNotDue(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewDelayQueue[int](w.open("a", nil), "/q", nil)
		for n := range 50 {
			if _, err := q.Put(ctx, time.Now().Add(time.Duration(n+10)*time.Hour), n); err != nil {
				w.t.Fatal(err)
			}
		}
		if n, err := q.Purge(ctx); n != 50 || err != nil {
			w.t.Fatal(n, err)
		}
		if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
			w.t.Fatal(err)
		}
		if n := len(w.children("/q/items")); n > 2 {
			w.t.Errorf("%d empty buckets stay until they are due", n)
		}
	})
}

func TestWhatWasDueLongAgoIsDue(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewDelayQueue[int](w.open("a", nil), "/q", nil)
		for _, at := range []time.Time{{}, time.Unix(0, 0), time.Date(-290_000_000, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(-36028797018963968, 0)} {
			if _, err := q.Put(ctx, at, 1); err != nil {
				w.t.Error(err)
			}
			if it, err := q.TryTake(ctx); err != nil {
				w.t.Errorf("due in %d: %v", at.Year(), err)
			} else {
				mustAck(w.t, it)
			}
		}
	})
}

func TestMinutesThatAreEmptyMakeRoomBeforeALimit(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewDelayQueue[int](w.open("a", nil), "/q", nil)
		coord.SetBucketLimit(&q.Consumer, 10)
		hour := func(n int) time.Time { return time.Now().Add(time.Duration(n) * time.Hour) }
		for n := range 10 {
			if _, err := q.Put(ctx, hour(n+1), n); err != nil {
				w.t.Fatal(err)
			}
		}
		_, err := q.Put(ctx, hour(11), 11)
		wantErr(w.t, err, coord.ErrLimit)
		// Two are emptied by hand.
		s := w.session("x")
		buckets := w.children("/q/items")
		for _, b := range buckets[3:5] {
			for _, n := range w.children("/q/items/" + b) {
				if _, err := s.Commit(ctx, backend.Delete(w.path("/q/items/"+b+"/"+n), backend.AnyVersion)); err != nil {
					w.t.Fatal(err)
				}
			}
		}
		_, err = q.Put(ctx, hour(11), 11)
		wantErr(w.t, err, coord.ErrLimit) // it has looked just now
		time.Sleep(time.Minute)
		for n := 11; n <= 12; n++ {
			if _, err := q.Put(ctx, hour(n), n); err != nil {
				w.t.Error(err)
			}
		}
		_, err = q.Put(ctx, hour(13), 13)
		wantErr(w.t, err, coord.ErrLimit)
	})
}

func TestWhatWasDueLongAgoIsTakenInOrder(t *testing.T) {
	onEach(t, func(w *world) {
		q := coord.NewDelayQueue[int](w.open("a", nil), "/q", nil)
		base := time.Date(1969, 12, 31, 23, 58, 30, 0, time.UTC)
		for _, n := range []int{150, 3, 20, 1, 200, 2} { // seconds, across minutes and 1970
			if _, err := q.Put(context.Background(), base.Add(time.Duration(n)*time.Second), n); err != nil {
				w.t.Fatal(err)
			}
		}
		if _, err := q.Put(context.Background(), time.Time{}, 0); err != nil {
			w.t.Fatal(err)
		}
		for _, n := range []int{0, 1, 2, 3, 20, 150, 200} {
			mustAck(w.t, mustTake(w.t, q, n))
		}
		w.drained(&q.Consumer)
	})
}

// Due times are stored in milliseconds. The rest of one does not make an item come early.
func TestNothingIsTakenBeforeItIsDue(t *testing.T) {
	for _, put := range []string{"put", "putall"} {
		for _, d := range []time.Duration{1, 999_999, time.Millisecond, 1_500_000} {
			onMemory(t, func(w *world) {
				ctx := context.Background()
				q := coord.NewDelayQueue[int](w.open("a", nil), "/q", nil)
				due := time.Now().Truncate(time.Millisecond).Add(d)
				var err error
				if put == "put" {
					_, err = q.Put(ctx, due, 1)
				} else {
					_, err = q.PutAll(ctx, due, 1)
				}
				if err != nil {
					w.t.Fatal(err)
				}
				_, err = q.TryTake(ctx)
				wantErr(w.t, err, coord.ErrEmpty)
				it := mustTake(w.t, q, 1)
				if late := time.Since(due); late < 0 || late > 2*time.Millisecond {
					w.t.Errorf("%s %v: taken %v after it was due", put, d, late)
				}
				mustAck(w.t, it)
			})
		}
	}
}
