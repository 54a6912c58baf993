package coord_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// What other programs leave among the records of transactions stops nobody: List and
// Recover pass it over, a site goes on serving, and a transaction goes through.
func TestStrangeRecordsAmongTransactions(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s := w.session("x")
		var calls atomic.Int64
		x := &useRun{w: w, a: w.counting("a", &calls), b: w.counting("b", &calls), path: "/r", payload: "v"}
		cy := fullUseOf(w.t, "two-phase commit")
		if err := cy.run(ctx, x); err != nil {
			w.t.Fatal(err)
		}
		records := make(map[string][]byte)
		eachStrange(func(what string, data []byte) { records[strings.ReplaceAll(what, " ", "-")] = data })
		for what, rec := range map[string]map[string]any{
			"site-with-a-slash": {"mark": strangeID, "sites": []string{"../x"}, "deadline": 1},
			"site-of-nothing":   {"mark": strangeID, "sites": []string{""}, "deadline": 1},
			"site-refused":      {"mark": strangeID, "sites": []string{"a\u202eb"}, "deadline": 1},
			"mark-with-a-slash": {"mark": "../../x", "sites": []string{"s"}, "deadline": 1},
			"mark-refused":      {"mark": "\u202e", "sites": []string{"s"}, "deadline": 1},
			"many-sites":        {"mark": strangeID, "sites": strings.Split(strings.Repeat("s,", 5000), ","), "deadline": 1},
		} {
			records[what], _ = json.Marshal(rec)
		}
		for name, data := range records {
			if _, err := s.Commit(ctx, backend.Create(w.path("/r/tx/"+name), data, backend.Persistent)); err != nil {
				w.t.Fatal(err)
			}
			if _, err := s.Commit(ctx, backend.Create(w.path("/r/sites/s/"+name+"~"+strangeID), data, backend.Persistent)); err != nil {
				w.t.Fatal(err)
			}
		}
		co := coord.NewCoordinator[string](x.a, "/r", nil)
		if list, err := co.List(ctx); err != nil || len(list) != 0 {
			w.t.Errorf("list: %d, %v", len(list), err)
		}
		if list, err := co.Recover(ctx); err != nil || len(list) != 0 {
			w.t.Errorf("recover: %d, %v", len(list), err)
		}
		for name := range records {
			_, err := co.Status(ctx, name)
			wantErr(w.t, err, coord.ErrDecode)
			if len(err.Error()) > 500 {
				w.t.Errorf("an error of %d bytes", len(err.Error()))
			}
		}
		calls.Store(0)
		if err := cy.run(ctx, x); err != nil {
			w.t.Errorf("a transaction among them: %v", err)
		}
		if n := calls.Load(); n > 3000 {
			w.t.Errorf("%d requests", n)
		}
	})
}

// Names of items with the largest and smallest numbers, and states that hold anything.
func TestStrangeItemsOfAQueue(t *testing.T) {
	t.Parallel()
	onMemory(t, func(w *world) {
		ctx := context.Background()
		s := w.session("x")
		var calls atomic.Int64
		hooks := &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { calls.Add(1); return nil }}
		q := w.hookedQueue("a", hooks, &coord.QueueOptions[int]{MaxAttempts: 3})
		mustPut(w.t, q, 1, 1)
		mustAck(w.t, mustTake(w.t, q, 1))
		bucket := "/q/items/b-0-0"
		w.ensured(bucket)
		id := func(n int) string { return fmt.Sprintf("01234567-89ab-8def-8123-%012d", n) }
		node := func(name string, data string) {
			w.t.Helper()
			if _, err := s.Commit(ctx, backend.Create(w.path(bucket+"/"+name), []byte(data), backend.Persistent)); err != nil {
				w.t.Fatal(err)
			}
		}
		for i, due := range []int64{math.MaxInt64, math.MaxInt64 - 1, 1 << 53} {
			node(fmt.Sprintf("i-%s-%d-%010d", id(i), due, i), "1") // never
		}
		node(fmt.Sprintf("i-%s-0-2147483647", id(10)), "1")
		node(fmt.Sprintf("d-%s-%d", id(10), int64(math.MaxInt64)), "") // put off for ever
		node(fmt.Sprintf("i-%s-0--2147483648", id(11)), "11")
		node(fmt.Sprintf("d-%s-%d", id(11), int64(math.MinInt64)), "") // due long since
		node(fmt.Sprintf("i-%s-0-0000000005", id(12)), "12")
		node("s-"+id(12), "-7")
		node(fmt.Sprintf("i-%s-0-0000000006", id(13)), "13")
		node("s-"+id(13), strings.Repeat("9", 1000))
		node(fmt.Sprintf("i-%s-0-0000000007", id(14)), "{not a number")
		node(fmt.Sprintf("i-%s-0-0000000008", id(15)), "15")
		node("s-"+id(15), "9223372036854775807") // claimed more often than may be
		got := make(map[int]bool)
		for range 3 {
			tctx, cancel := context.WithTimeout(ctx, time.Minute)
			it, err := q.Take(tctx)
			cancel()
			if err != nil {
				w.t.Fatal(err)
			}
			got[it.Value] = true
			if it.Attempt < 1 || it.Attempt > 3 {
				w.t.Errorf("item %d, attempt %d", it.Value, it.Attempt)
			}
			mustAck(w.t, it)
		}
		if !got[11] || !got[12] || !got[13] {
			w.t.Errorf("got %v", got)
		}
		_, err := q.TryTake(ctx)
		wantErr(w.t, err, coord.ErrEmpty)
		calls.Store(0)
		tctx, cancel := context.WithTimeout(ctx, 24*time.Hour)
		defer cancel()
		_, err = q.Take(tctx)
		wantErr(w.t, err, context.DeadlineExceeded)
		if n := calls.Load(); n > 200 {
			w.t.Errorf("%d requests in a day of waiting for what never is due", n)
		}
		if n := len(w.children("/q/dead/items/b-0-0")); n < 2 {
			w.t.Errorf("%d dead letters, want those that cannot be decoded, or were claimed too often", n)
		}
	})
}

// A ready that nobody of the barrier made, and members that nobody is.
func TestStrangeRoundsOfADoubleBarrier(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s := w.session("x")
		var calls atomic.Int64
		x := &useRun{w: w, a: w.counting("a", &calls), b: w.counting("b", &calls), path: "/r", payload: "v"}
		cy := fullUseOf(w.t, "double barrier")
		if err := cy.run(ctx, x); err != nil {
			w.t.Fatal(err)
		}
		eachStrange(func(what string, data []byte) {
			w.ensured("/r")
			if _, err := s.Commit(ctx, backend.Create(w.path("/r/ready"), data, backend.Persistent)); err != nil {
				w.t.Fatal(err)
			}
			calls.Store(0)
			if err := cy.run(ctx, x); err != nil {
				w.t.Errorf("%s: %v", what, err)
			}
			if n := calls.Load(); n > 200 {
				w.t.Errorf("%s: %d requests", what, n)
			}
			if _, err := s.Exists(ctx, w.path("/r/ready"), nil); !errors.Is(err, backend.ErrNotFound) {
				w.t.Errorf("%s: the ready is still there, %v", what, err)
			}
		})
	})
}

// fullUseOf is the full use of one recipe.
func fullUseOf(t *testing.T, recipe string) fullUse {
	t.Helper()
	for _, y := range fullUses() {
		if y.recipe == recipe {
			return y
		}
	}
	t.Fatalf("no full use of %s", recipe)
	return fullUse{}
}
