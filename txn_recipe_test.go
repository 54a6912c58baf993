package coord_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// A leader writes its state, and puts the work that follows from it, all at once
// and only while it leads.
func TestAValueAndAnItemAreWrittenTogetherUnderAGuard(t *testing.T) {
	onEach(t, func(w *world) {
		t := w.t
		ctx := context.Background()
		c := w.open("a", nil)
		v := coord.NewValue[int](c, "/state/step", nil)
		q := coord.NewQueue[string](c, "/jobs", nil)
		h := mustLock(t, coord.NewMutex(c, "/l", nil))
		for i := range 3 {
			results, err := coord.NewTxn(c).Under(h.Guard()).Do(v.SetOp(i), q.PutOp(fmt.Sprint("first of ", i)), q.PutOp(fmt.Sprint("second of ", i))).Commit(ctx)
			if err != nil || len(results) != 3 || results[0].Path != w.path("/state/step") || results[0].Zxid != results[2].Zxid {
				t.Fatalf("%+v, %v", results, err)
			}
		}
		mustRelease(t, h)
		_, err := coord.NewTxn(c).Under(h.Guard()).Do(v.SetOp(9), q.PutOp("late")).Commit(ctx)
		wantErr(t, err, coord.ErrConflict, coord.ErrNotFound)
		if got := getValue(t, v); got.Value != 2 {
			t.Errorf("the value is %d", got.Value)
		}
		for i := range 6 {
			item, err := q.TryTake(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprint([]string{"first", "second"}[i%2], " of ", i/2); item.Value != want {
				t.Errorf("item %d is %q, want %q", i, item.Value, want)
			}
			if err := item.Ack(); err != nil {
				t.Error(err)
			}
		}
		if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
			t.Errorf("one more: %v", err)
		}
	})
}

func TestItemsPutByTransactionsKeepTheirOrderOverBuckets(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.t
		ctx := context.Background()
		c := w.open("a", nil)
		q := coord.NewQueue[int](c, "/jobs", nil)
		const n = 900
		for i := 0; i < n; {
			tx := coord.NewTxn(c)
			for range 45 {
				tx.Do(q.PutOp(i))
				i++
			}
			if _, err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if i%90 == 0 { // others put too
				if _, err := q.Put(ctx, -i); err != nil {
					t.Fatal(err)
				}
			}
		}
		if buckets := len(w.children("/jobs/items")); buckets < 3 {
			t.Errorf("%d buckets for %d items", buckets, n)
		}
		next := 0
		for range n + n/90 {
			item, err := q.TryTake(ctx)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case item.Value < 0 && -item.Value == next:
			case item.Value == next:
				next++
			default:
				t.Fatalf("item %d, want %d", item.Value, next)
			}
			if err := item.Ack(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The bucket is closed, or the value deleted, between the look and the commit.
func TestWhatAnOperationOfARecipeReliedOnIsReadAgain(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.t
		ctx := context.Background()
		var x nth
		c := w.open("a", &backendtest.Hooks{Before: x.before, After: x.after})
		v := coord.NewValue[int](c, "/v", nil)
		q := coord.NewQueue[int](c, "/jobs", nil)
		old := setValue(t, v, 1)
		if _, err := q.Put(ctx, 1); err != nil {
			t.Fatal(err)
		}
		other := w.open("b", nil)
		checks := func(c backendtest.Call) bool { return commits(c, backend.OpCheck) }
		x.arm(1, checks, func(_ context.Context, _ backendtest.Call, err error) error {
			if err := coord.NewValue[int](other, "/v", nil).Delete(ctx, old); err != nil {
				t.Error(err)
			}
			bucket := w.children("/jobs/items")[0]
			if _, err := w.session("x").Commit(ctx, backend.SetData("/jobs/items/"+bucket, nil, 0)); err != nil {
				t.Error(err)
			}
			return err
		})
		if _, err := coord.NewTxn(c).Do(v.SetOp(2), q.PutOp(2)).Commit(ctx); err != nil {
			t.Fatal(err)
		}
		x.arm(2, checks, lose) // the reply; the request of the same call comes first
		if _, err := coord.NewTxn(c).Do(v.SetOp(3), q.PutOp(3)).Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if got := getValue(t, v); got.Value != 3 {
			t.Errorf("the value is %d", got.Value)
		}
		for i := 1; i <= 3; i++ {
			item, err := q.Pop(ctx)
			if err != nil || item != i {
				t.Fatalf("%v, %v, want %d", item, err, i)
			}
		}
		if n, err := q.Len(ctx); err != nil || n != 0 {
			t.Errorf("%d left, %v", n, err)
		}
	})
}

func TestAnOperationThatCannotBeIsRefusedAtOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", nil)
		bad := func(int) ([]byte, error) { return nil, errors.New("no") }
		for name, x := range map[string]struct {
			op   coord.TxnOp
			want error
		}{
			"path of a value":  {coord.NewValue[int](c, "v", nil).SetOp(1), coord.ErrBadPath},
			"codec of a value": {coord.NewValue(c, "/v", &coord.ValueOptions[int]{Codec: coord.Codec[int]{Encode: bad, Decode: coord.JSON[int]().Decode}}).SetOp(1), coord.ErrInvalid},
			"size of a value":  {coord.NewValue(c, "/v", &coord.ValueOptions[[]byte]{Codec: coord.Bytes()}).SetOp(make([]byte, 1<<20)), coord.ErrTooLarge},
			"path of a queue":  {coord.NewQueue[int](c, "q", nil).PutOp(1), coord.ErrBadPath},
			"limit of a queue": {coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxLen: 1}).PutOp(1), coord.ErrUnsupported},
			"due time":         {coord.NewDelayQueue[int](c, "/q", nil).PutOp(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), 1), coord.ErrInvalid},
		} {
			_, err := coord.NewTxn(c).Do(x.op).Commit(context.Background())
			if !errors.Is(err, x.want) {
				w.t.Errorf("%s: %v, want %v", name, err, x.want)
			}
		}
		if left := w.children("/"); len(left) != 0 {
			w.t.Errorf("something was made: %v", left)
		}
	})
}
