package recipetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// retries returns the items of a queue that wait for another attempt.
func retries[T any](t *testing.T, q *coord.Consumer[T]) (all []*coord.Retry) {
	t.Helper()
	for r, err := range q.Retries(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// endingError is an error whose text ends the goroutine that asks for it.
type endingError struct{}

func (*endingError) Error() string { runtime.Goexit(); return "" }

// putOffNodes returns the paths of the nodes that put items of /q off.
func (w *world) putOffNodes() (paths []string) {
	for _, b := range w.Children("/q/items") {
		for _, n := range w.Children("/q/items/" + b) {
			if strings.HasPrefix(n, "d-") {
				paths = append(paths, w.Path("/q/items/"+b+"/"+n))
			}
		}
	}
	return paths
}

// queueRetryTests are tests of the retries of a queue on each service.
type queueRetryTests struct{ Services }

func (on queueRetryTests) ARetrySaysWhenAndWhy(t *testing.T) {
	on.all(t, func(w *world) {
		q := w.queue("a", nil)
		if all := retries(w.T, &q.Consumer); len(all) != 0 {
			w.T.Fatalf("%+v in a queue that does not exist", all)
		}
		mustPut(w.T, q, 1, 8)
		began := time.Now()
		ids := make(map[string]int)
		for n, c := range []struct {
			delay time.Duration
			cause error
		}{
			{3 * time.Hour, errors.New("busy")},
			{time.Hour, errors.New("no room\xff" + strings.Repeat("é", 5000))},
			{2 * time.Hour, nil},
			{0, errors.New("at once")},
			{4 * time.Hour, new(badError)},
			{5 * time.Hour, new(endingError)},
		} {
			it := mustTake(w.T, q, n+1)
			ids[it.ID] = n + 1
			if err := it.NackCause(c.delay, c.cause); err != nil {
				w.T.Fatal(err)
			}
			if c.delay == 0 {
				mustAck(w.T, mustTake(w.T, q, n+1))
			}
		}
		claimed := mustTake(w.T, q, 7)
		all := retries(w.T, &q.Consumer)
		want := []struct {
			value, hours int
			text         string
		}{{2, 1, "no room\uFFFDé"}, {3, 2, ""}, {1, 3, "busy"}, {5, 4, "PANIC"}, {6, 5, "ended its goroutine"}}
		if len(all) != len(want) {
			w.T.Fatalf("%d retries, want %d", len(all), len(want))
		}
		for i, r := range all {
			v := want[i]
			if ids[r.ID] != v.value || r.Attempts != 1 || !strings.Contains(r.Error, v.text) || v.text == "" && r.Error != "" || len(r.Error) > 1024 {
				w.T.Errorf("%d: %+v, want %+v", i, r, v)
			}
			if early := r.Next.Sub(began) - time.Duration(v.hours)*time.Hour; early.Abs() > 10*time.Minute {
				w.T.Errorf("%d: again %v after %d hours", i, early, v.hours)
			}
		}
		mustAck(w.T, claimed)
		if err := q.Remove(context.Background(), all[0].ID); err != nil {
			w.T.Fatal(err)
		}
		if all := retries(w.T, &q.Consumer); len(all) != 4 || ids[all[0].ID] != 3 {
			w.T.Errorf("after a Remove: %+v", all)
		}
	})
}

// The latest cause replaces the earlier ones, and is gone when the item is taken.
func (on queueRetryTests) TheLatestCauseCounts(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		for attempt := 1; attempt <= 3; attempt++ {
			it := mustTake(w.T, q, 1)
			if all := retries(w.T, &q.Consumer); len(all) != 0 {
				w.T.Errorf("while a consumer has the item: %+v", all[0])
			}
			if err := it.NackCause(time.Millisecond, fmt.Errorf("failure %d", attempt)); err != nil {
				w.T.Fatal(err)
			}
			all := retries(w.T, &q.Consumer)
			if len(all) != 1 || all[0].ID != it.ID || all[0].Attempts != attempt || all[0].Error != fmt.Sprintf("failure %d", attempt) {
				w.T.Errorf("attempt %d: %+v", attempt, all)
			}
		}
		mustAck(w.T, mustTake(w.T, q, 1))
		w.drained(&q.Consumer)
		if n := len(w.putOffNodes()); n != 0 {
			w.T.Errorf("%d nodes are left", n)
		}
	})
}

func (on queueRetryTests) WorkStoresWhyAHandlerHasFailed(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		failed := 0
		wk := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
			failed = max(failed, it.Attempt)
			if it.Attempt < 4 {
				return fmt.Errorf("no %d", it.Attempt)
			}
			return it.NackCause(time.Hour, errors.New("no more"))
		})
		w.Eventually("the item is put off for an hour", func() bool {
			all := retries(w.T, &q.Consumer)
			if len(all) == 1 && all[0].Attempts < 4 && all[0].Error != fmt.Sprintf("no %d", all[0].Attempts) {
				w.T.Errorf("%+v", all[0])
			}
			return len(all) == 1 && all[0].Error == "no more"
		})
		wk.finish()
		if failed != 4 {
			w.T.Errorf("%d attempts", failed)
		}
	})
}

// Items of several buckets and of each kind of queue come in the order of their times.
func (on queueRetryTests) TheNextRetryComesFirst(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		const items = 40 // more than are read at once, in more than one bucket
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, items)
		var want []string
		for n := 1; n <= items; n++ {
			it := mustTake(w.T, q, n)
			want = append(want, it.ID)
			if err := it.NackCause(time.Duration(items-n+1)*time.Hour, errors.New(it.ID)); err != nil {
				w.T.Fatal(err)
			}
		}
		if n := len(w.Children("/q/items")); n < 3 {
			w.T.Fatalf("%d buckets: this tests too little", n)
		}
		slices.Reverse(want)
		var got []string
		for r, err := range q.Retries(ctx) {
			if err != nil {
				w.T.Fatal(err)
			}
			if r.Error != r.ID {
				w.T.Errorf("%+v: the cause of another item", r)
			}
			if got = append(got, r.ID); len(got) == 20 {
				// What goes during the loop is left out.
				for _, id := range want[35:38] {
					if err := q.Remove(ctx, id); err != nil {
						w.T.Fatal(err)
					}
				}
			}
		}
		if all := slices.Delete(slices.Clone(want), 35, 38); !slices.Equal(got, all) {
			w.T.Errorf("%q, want %q", got, all)
		}
		for r, err := range q.Retries(ctx) {
			if err != nil || r.ID != want[0] {
				w.T.Errorf("%+v, %v", r, err)
			}
			break
		}
	})
}

func (on queueRetryTests) QueuesOfEachKindHaveRetries(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		jobs, later := coord.NewPriorityQueue[int](c, "/jobs", nil), coord.NewDelayQueue[int](c, "/later", nil)
		_, err := jobs.Put(ctx, 7, 1)
		if err == nil {
			_, err = later.PutAfter(ctx, 0, 1)
		}
		if err != nil {
			w.T.Fatal(err)
		}
		for name, q := range map[string]*coord.Consumer[int]{"jobs": &jobs.Consumer, "later": &later.Consumer} {
			if err := mustTake(w.T, q, 1).NackCause(time.Hour, errors.New(name)); err != nil {
				w.T.Fatal(err)
			}
			if all := retries(w.T, q); len(all) != 1 || all[0].Error != name {
				w.T.Errorf("%s: %+v", name, all)
			}
		}
		for r, err := range coord.NewQueue[int](c, "/jobs", nil).Retries(ctx) {
			if r != nil {
				w.T.Error(r)
			}
			coordtest.WantErr(w.T, err, coord.ErrKind)
		}
	})
}

// Earlier versions store no cause, and an outsider can write anything.
func (on queueRetryTests) StrangeCausesDoNotMatter(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		if err := mustTake(w.T, q, 1).NackCause(time.Hour, errors.New("busy")); err != nil {
			w.T.Fatal(err)
		}
		off := w.putOffNodes()
		if len(off) != 1 {
			w.T.Fatalf("%q", off)
		}
		for _, data := range []string{"", "\xff{", "7", `{"error":7}`, `{"later":true}`} {
			if _, err := w.Session("x").Commit(ctx, backend.SetData(off[0], []byte(data), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
			if all := retries(w.T, &q.Consumer); len(all) != 1 || all[0].Error != "" || all[0].Attempts != 1 {
				w.T.Errorf("%q: %+v", data, all)
			}
		}
		if _, err := w.Session("x").Commit(ctx, backend.Delete(off[0], backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		if all := retries(w.T, &q.Consumer); len(all) != 0 {
			w.T.Errorf("%+v", all[0])
		}
		mustAck(w.T, mustTake(w.T, q, 1))
	})
}

// A loop that is not complete ends with an error.
func (on queueRetryTests) AListOfRetriesThatIsCutOffSaysSo(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", nil)
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		for _, x := range []struct {
			ctx  context.Context
			q    *coord.Queue[int]
			want error
		}{{ended, q, context.Canceled}, {context.Background(), coord.NewQueue[int](w.Open("b", nil), "//", nil), coord.ErrBadPath}} {
			n := 0
			for r, err := range x.q.Retries(x.ctx) {
				if n++; r != nil {
					w.T.Errorf("%+v", r)
				}
				coordtest.WantErr(w.T, err, x.want)
			}
			if n != 1 {
				w.T.Errorf("%d pairs", n)
			}
		}
	})
}
