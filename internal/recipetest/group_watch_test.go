package recipetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// In other libraries such channels queue, drop the newest element or block their sender. Here
// the changes that were not received are merged.
func TestGroup_ASlowReaderGetsTheChangesMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		w := &world{&coordtest.World{Service: coordtest.MemoryService{Store: st}, T: t, Fake: true}}
		g := w.group("a", nil)
		x := w.watch(t.Context(), w.group("b", nil))
		a := mustJoin(t, g, "a", "1")
		b := mustJoin(t, g, "b", "1")
		synctest.Wait()
		if m := x.next(); brief(m.Joined) != "a=1 b=1" {
			t.Errorf("%+v", m)
		}
		c := mustJoin(t, g, "c", "1")
		synctest.Wait()
		mustLeave(t, a)
		synctest.Wait()
		mustLeave(t, c) // its join was never received
		synctest.Wait()
		mustLeave(t, b)
		synctest.Wait()
		b = mustJoin(t, g, "b", "2")
		synctest.Wait()
		if m := x.next(); brief(m.Members) != "b=2" || brief(m.Joined) != "b=2" || brief(m.Left) != "a=1 b=1" {
			t.Errorf("%+v", m)
		}
		select {
		case m := <-x.ch:
			t.Errorf("and then %+v", m)
		default:
		}
		// The final error is merged with the changes too.
		mustLeave(t, b)
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		other := w.Open("c", nil)
		y := w.watch(ctx, textGroup(other, false))
		mustJoin(t, g, "d", "1")
		synctest.Wait()
		other.Close()
		if m := y.next(); brief(m.Joined) != "d=1" || !errors.Is(m.Err, coord.ErrClosed) {
			t.Errorf("%+v", m)
		}
		if _, ok := <-y.ch; ok {
			t.Error("an element after the last")
		}
		cancel()
	})
}

// A Wait that gives up leaves no watch and no goroutine behind.
func TestGroup_AWaitThatGivesUpLeavesNothing(t *testing.T) {
	onMemory(t, func(w *world) {
		g := w.group("a", nil)
		mustJoin(w.T, g, "x", "0")
		for range 1000 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			_, err := g.Wait(ctx, 2)
			coordtest.WantErr(w.T, err, context.DeadlineExceeded)
			cancel()
		}
		w.Settle()
		// One goroutine of the client, one of the membership, that of the test and
		// those of the bubble; a thousand views would show.
		if n := runtime.NumGoroutine(); n > 500 {
			w.T.Errorf("%d goroutines", n)
		}
	})
}

func TestGroup_AWatchThatIsRefusedEndsWithTheError(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		g := w.group("a", &backendtest.Hooks{Before: before.Before})
		m := mustJoin(w.T, g, "x", "1")
		watch := w.watch(ctx, g)
		watch.until("x=1")
		before.Arm(1, func(c backendtest.Call) bool {
			return c.Path == "/g" && c.Op != "commit" || slices.Contains(c.Reads, backend.Read{Path: "/g"})
		}, func(context.Context, backendtest.Call, error) error {
			return backend.ErrDenied
		})
		y := mustJoin(w.T, w.group("other", nil), "y", "1")
		last := watch.closed()
		coordtest.WantErr(w.T, last.Err, coord.ErrDenied)
		if brief(last.Members) != "x=1" {
			w.T.Errorf("%+v, want the last list", last)
		}
		mustLeave(w.T, m)
		mustLeave(w.T, y)
		// A later Watch begins a new view.
		if e := w.watch(ctx, g).next(); e.Err != nil || len(e.Members) != 0 {
			w.T.Errorf("%+v", e)
		}
	})
}

// Only changed members are read again. With trees nothing is listed again.
func TestGroup_ALookReadsOnlyChangedMembers(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		const n = 200
		var lists, gets, batches atomic.Int32
		g := w.group("a", nil)
		reader := w.Open("b", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			switch c.Op {
			case "children":
				lists.Add(1)
			case "get":
				gets.Add(1)
			case "read":
				batches.Add(1)
			}
			return nil
		}})
		var all []*coord.Membership[string]
		for i := range n {
			all = append(all, mustJoin(w.T, g, fmt.Sprintf("%03d", i), "1"))
		}
		r := textGroup(reader, false)
		x, y := w.watch(ctx, r), w.watch(ctx, r)
		x.next()
		y.next()
		type costs struct{ lists, gets, batches int32 }
		counted := func(what string, plain, trees, both costs) {
			w.T.Helper()
			w.Settle()
			want := both
			switch {
			case w.Without.Has(backend.Trees):
				want = plain
			case w.Without.Has(backend.Batches):
				want = trees
			}
			got := costs{lists.Swap(0), gets.Swap(0), batches.Swap(0)}
			// Two watches that one leave fires may be handled one after the other.
			if got.lists > want.lists || got.gets > want.gets || got.batches > want.batches {
				w.T.Errorf("%s: %+v, want at most %+v", what, got, want)
			}
		}
		counted("the first look, for two", costs{1, n, 0}, costs{1, n, 0}, costs{1, 0, 1})
		if err := all[7].SetValue(ctx, "2"); err != nil {
			w.T.Fatal(err)
		}
		counted("one value", costs{0, 1, 0}, costs{0, 1, 0}, costs{0, 1, 0})
		mustLeave(w.T, all[9])
		counted("one leaves", costs{2, 1, 0}, costs{}, costs{})
		mustJoin(w.T, g, "new", "1")
		counted("one joins", costs{1, 1, 0}, costs{0, 2, 0}, costs{0, 0, 1})
		if l := len(x.next().Members); l != n {
			w.T.Errorf("%d are listed", l)
		}
	})
}

// Wait does not answer from a view of before a partition.
func TestGroup_WaitDoesNotAnswerFromThePast(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx := context.Background()
		m := mustJoin(w.T, w.group("a", nil), "x", "1")
		for _, shared := range []bool{false, true} {
			name := map[bool]string{false: "alone", true: "shared"}[shared]
			g := w.group(name, nil)
			if shared {
				watch := w.watch(ctx, g)
				watch.until("x=1")
			}
			w.Link(name).Partition()
			time.Sleep(time.Hour)
			if !shared {
				defer w.Link(name).Heal()
			}
			if shared {
				mustLeave(w.T, m)
				time.Sleep(time.Hour)
			}
			short, cancel := context.WithTimeout(ctx, time.Second)
			list, err := g.Wait(short, 1)
			cancel()
			if err == nil {
				w.T.Errorf("%s: after two hours without contact Wait found %v", name, brief(list))
			}
			w.Link(name).Heal()
		}
	})
}

// The same without a fault: a member that left before the call of Wait, through the same
// client, is not counted.
func TestGroup_WaitDoesNotCountMembersThatLeftBefore(t *testing.T) {
	withoutTrees(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		g := w.group("a", &backendtest.Hooks{Before: before.Before})
		watch := w.watch(ctx, g)
		m := mustJoin(w.T, g, "x", "1")
		watch.until("x=1")
		let := make(chan struct{})
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "children" && c.Path == "/g" }, func(context.Context, backendtest.Call, error) error {
			<-let
			return nil
		})
		mustLeave(w.T, m)
		w.Settle() // the list that the watch looks at next is held back
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		list, err := g.Wait(short, 1)
		if err == nil {
			w.T.Errorf("Wait(1) after Leave returned %v", brief(list))
		}
		close(let)
	})
}

// When the last Watch of a group has ended, changes of the group cost its client nothing.
func TestGroup_AWatchThatHasEndedCostsNothing(t *testing.T) {
	onMemory(t, func(w *world) {
		var n atomic.Int64
		g := coord.NewGroup[string](w.Counting("watcher", &n), "/g", nil)
		other := coord.NewGroup[string](w.Open("member", nil), "/g", nil)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for range 2 {
			watch := g.Watch(ctx)
			<-watch
		}
		w.Settle()
		before := n.Load()
		m, err := other.Join(context.Background(), "m", "x")
		w.must(err)
		time.Sleep(time.Second)
		if n.Load() == before {
			w.T.Error("a member that joins costs the client that watches nothing: the count is wrong")
		}
		cancel()
		w.Settle()
		before = n.Load()
		next, err := other.Join(context.Background(), "n", "x")
		w.must(err)
		time.Sleep(time.Second)
		if k := n.Load() - before; k != 0 {
			w.T.Errorf("%d requests after the end of the watches", k)
		}
		w.must(next.Leave())
		w.must(m.Leave())
	})
}

// Wait reports members of a moment after the call, so it fails if its Sync does.
func TestGroup_WaitNeedsItsSync(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		g := coord.NewGroup[string](w.Open("a", &backendtest.Hooks{Before: before.Before}), "/g", nil)
		m, err := g.Join(context.Background(), "m", "x")
		w.must(err)
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "sync" }, func(context.Context, backendtest.Call, error) error {
			return backend.ErrDenied
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		list, err := g.Wait(ctx, 1)
		if !errors.Is(err, coord.ErrDenied) {
			w.T.Errorf("%s, %v", brief(list), err)
		}
		w.must(m.Leave())
	})
}
