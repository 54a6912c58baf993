package recipetest

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// queueRedriveTests are tests of Queue on each service.
type queueRedriveTests struct{ Services }

func (on queueRedriveTests) ARedriveMovesWhatWasAskedFor(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1})
		ids := w.bury(q, 1, 14)
		dead := w.deadQueue("d")
		claimed := mustTake(w.T, dead, 1)
		all := letters(w.T, &q.Consumer)
		if len(all) != 14 || !all[0].Claimed || all[1].Claimed {
			w.T.Fatalf("%+v", all)
		}
		n, err := q.Redrive(ctx, ids[0], ids[9], ids[4], "nothing", ids[9])
		if n != 2 {
			w.T.Errorf("%d moved, want 2", n)
		}
		coordtest.WantErr(w.T, err, coord.ErrLocked, coord.ErrNotFound)
		for _, v := range []int{5, 10} {
			it := mustTake(w.T, q, v)
			if it.ID != ids[v-1] || it.Attempt != 1 {
				w.T.Errorf("%+v", it)
			}
			mustAck(w.T, it)
		}
		_, err = q.Redrive(ctx, ids[9])
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		if n, err := q.Redrive(ctx); n != 11 || err != nil {
			w.T.Errorf("%d moved, %v, want 11", n, err)
		}
		if err := claimed.Verify(ctx); err != nil {
			w.T.Error(err)
		}
		if err := claimed.Release(); err != nil {
			w.T.Error(err)
		}
		if n, err := q.Redrive(ctx); n != 1 || err != nil {
			w.T.Errorf("%d moved, %v, want 1", n, err)
		}
		for _, v := range []int{2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 1} {
			mustAck(w.T, mustTake(w.T, q, v))
		}
		if n, err := q.Redrive(ctx); n != 0 || err != nil {
			w.T.Error(n, err)
		}
		if names := w.Children("/q/dead/items"); len(names) != 1 {
			w.T.Errorf("buckets left: %v", names)
		}
		w.drained(&q.Consumer)
	})
}

func (on queueRedriveTests) ARedrivenItemHasItsPriority(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewPriorityQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
		for range 3 {
			for i, p := range []int64{5, -3, 5, 0} {
				if _, err := q.Put(ctx, p, i); err != nil {
					w.T.Fatal(err)
				}
			}
			for _, v := range []int{1, 3, 0, 2} {
				if err := mustTake(w.T, q, v).Nack(0); err != nil {
					w.T.Fatal(err)
				}
			}
			if d := letters(w.T, &q.Consumer); len(d) != 4 || d[0].Priority != -3 || d[1].Priority != 0 || d[3].Priority != 5 {
				w.T.Errorf("%+v", d)
			}
			names := make(map[string]bool)
			for range 3 { // the items die again: no name of an item is used twice
				if n, err := q.Redrive(ctx); n != 4 || err != nil {
					w.T.Fatalf("%d, %v", n, err)
				}
				for _, b := range w.Children("/q/items") {
					for _, n := range itemNames(w, "/q/items/"+b) {
						if names[b+n] {
							w.T.Errorf("%s/%s is used twice", b, n)
						}
						names[b+n] = true
					}
				}
				for _, v := range []int{1, 3, 0, 2} {
					it := mustTake(w.T, q, v)
					if it.Attempt != 1 {
						w.T.Errorf("attempt %d", it.Attempt)
					}
					if err := it.Nack(0); err != nil {
						w.T.Fatal(err)
					}
				}
			}
			if n, err := q.Redrive(ctx); n != 4 || err != nil {
				w.T.Fatalf("%d, %v", n, err)
			}
			if _, err := q.Put(ctx, -4, 9); err != nil {
				w.T.Fatal(err)
			}
			for _, v := range []int{9, 1, 3, 0, 2} {
				mustAck(w.T, mustTake(w.T, q, v))
			}
		}
	})
}

func (on queueRedriveTests) ARedrivenItemIsDueAtOnce(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := coord.NewDelayQueue(w.Open("a", nil), "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
		if _, err := q.Put(ctx, time.Now().Add(-time.Minute), 1); err != nil {
			w.T.Fatal(err)
		}
		for range 3 {
			if err := mustTake(w.T, q, 1).Nack(time.Hour); err != nil {
				w.T.Fatal(err)
			}
			if n, err := q.Redrive(ctx); n != 1 || err != nil {
				w.T.Fatalf("%d, %v", n, err)
			}
		}
		mustAck(w.T, mustTake(w.T, q, 1))
		w.drained(&q.Consumer)
	})
}

func (on queueRedriveTests) ARedriveKeepsMaxLen(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1, MaxLen: 3})
		ids := w.bury(q, 1, 4)
		mustPut(w.T, q, 5, 5)
		n, err := q.Redrive(ctx)
		coordtest.WantErr(w.T, err, coord.ErrFull)
		if n != 2 || mustLen(w.T, &q.Consumer) != 3 {
			w.T.Errorf("%d moved, %d in the queue", n, mustLen(w.T, &q.Consumer))
		}
		for _, v := range []int{5, 1, 2} {
			mustAck(w.T, mustTake(w.T, q, v))
		}
		if n, err := q.Redrive(ctx, ids[3], ids[2]); n != 2 || err != nil {
			w.T.Error(n, err)
		}
		mustAck(w.T, mustTake(w.T, q, 3))
		mustAck(w.T, mustTake(w.T, q, 4))
		w.drained(&q.Consumer)
	})
}

// Two queues share their dead letters, and one item is nobody's.
func (on queueRedriveTests) ARedriveMovesItsOwnItems(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		o := &coord.QueueOptions[int]{MaxAttempts: 1, DeadLetterPath: "/dead"}
		p, q := coord.NewQueue(c, "/p", o), coord.NewQueue(c, "/q", o)
		of := w.bury(p, 1, 2)
		w.bury(q, 3, 4)
		stray, err := coord.NewQueue[int](c, "/dead", nil).Put(ctx, 5)
		if err != nil {
			w.T.Fatal(err)
		}
		d := letters(w.T, &q.Consumer)
		if len(d) != 3 || d[0].Value != 3 || d[1].Value != 4 || d[2].ID != stray || d[2].Queue != "" {
			w.T.Errorf("%+v", d)
		}
		_, err = q.Redrive(ctx, of[0])
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		if n, err := q.Redrive(ctx); n != 2 || err != nil {
			w.T.Error(n, err)
		}
		if n, err := q.Redrive(ctx, stray); n != 1 || err != nil {
			w.T.Error(n, err)
		}
		if n, err := p.Redrive(ctx); n != 2 || err != nil {
			w.T.Error(n, err)
		}
		for v := 1; v <= 5; v++ {
			if v < 3 {
				mustAck(w.T, mustTake(w.T, p, v))
			} else {
				mustAck(w.T, mustTake(w.T, q, v))
			}
		}
	})
}

func (on queueRedriveTests) AnItemIsRemoved(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 2})
		id := make([]string, 9)
		for n := 1; n <= 8; n++ {
			var err error
			if id[n], err = q.Put(ctx, n); err != nil {
				w.T.Fatal(err)
			}
		}
		// 1 is claimed, 2 is dead, 3 is put off, 4 was taken before, 5 is in another bucket.
		claimed := mustTake(w.T, q, 1)
		for range 2 {
			if err := mustTake(w.T, q, 2).Nack(0); err != nil {
				w.T.Fatal(err)
			}
		}
		if err := mustTake(w.T, q, 3).Nack(time.Hour); err != nil {
			w.T.Fatal(err)
		}
		if err := mustTake(w.T, q, 4).Nack(0); err != nil {
			w.T.Fatal(err)
		}
		for _, n := range []int{2, 3, 4, 5, 8} {
			if err := q.Remove(ctx, id[n]); err != nil {
				w.T.Errorf("%d: %v", n, err)
			}
			coordtest.WantErr(w.T, q.Remove(ctx, id[n]), coord.ErrNotFound)
		}
		coordtest.WantErr(w.T, q.Remove(ctx, id[1]), coord.ErrLocked)
		coordtest.WantErr(w.T, q.Remove(ctx, "a/b"), coord.ErrNotFound)
		if err := claimed.Verify(ctx); err != nil {
			w.T.Error(err)
		}
		mustAck(w.T, claimed)
		mustAck(w.T, mustTake(w.T, q, 6))
		mustAck(w.T, mustTake(w.T, q, 7))
		w.drained(&q.Consumer)
		if l := letters(w.T, &q.Consumer); len(l) != 0 {
			w.T.Errorf("%+v", l)
		}
	})
}
