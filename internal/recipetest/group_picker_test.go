package recipetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestGroup_RoundRobinPicksOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		g := textGroup(coordtest.Open(t, st, nil), false)
		p := mustPicker(t, t.Context(), g, coord.PickRoundRobin)
		joined := make(map[string]*coord.Membership[string])
		for _, id := range []string{"c", "a", "b", "d"} {
			joined[id] = mustJoin(t, g, id, "1")
		}
		synctest.Wait()
		picks := func(want string) {
			t.Helper()
			got := ""
			for range want {
				got += mustPick(t, p)
			}
			if got != want {
				t.Errorf("picked %s, want %s", got, want)
			}
		}
		for mustPick(t, p) != "d" { // the first member is any of them
		}
		picks("abcdabc")
		// Members that leave or join do not change the order of the others.
		mustLeave(t, joined["c"])
		synctest.Wait()
		picks("dabdab")
		joined["b2"] = mustJoin(t, g, "b2", "1")
		mustLeave(t, joined["b"])
		synctest.Wait()
		if id := mustPick(t, p); id != "b2" {
			t.Errorf("picked %s, want b2", id)
		}
		picks("da")
		for _, id := range []string{"a", "b2", "d"} {
			mustLeave(t, joined[id])
		}
	})
}

func TestGroup_RandomPicksEachWithTheSameProbability(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := textGroup(coordtest.Open(t, memory.New(nil), nil), false)
		p := mustPicker(t, t.Context(), g, coord.PickRandom)
		const members, picks = 4, 4000
		for i := range members {
			mustJoin(t, g, fmt.Sprint(i), "1")
		}
		synctest.Wait()
		count := make(map[string]int)
		for range picks {
			count[mustPick(t, p)]++
		}
		for i := range members {
			// Six standard deviations of 27.
			if n := count[fmt.Sprint(i)]; n < picks/members-165 || n > picks/members+165 {
				t.Errorf("picked %v", count)
			}
		}
	})
}

// The view of a group ends with its last user. The next user begins a new one.
func TestGroup_WatchesAndPickersShareOneView(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx := context.Background()
		g := w.group("a", nil)
		for round := range 3 {
			m := mustJoin(w.T, w.group(fmt.Sprint("member", round), nil), "x", fmt.Sprint(round))
			life, cancel := context.WithCancel(ctx)
			p := mustPicker(w.T, life, g, coord.PickRoundRobin)
			x, y := w.watch(life, g), w.watch(life, g)
			x.until(fmt.Sprint("x=", round))
			y.until(fmt.Sprint("x=", round))
			mustLeave(w.T, m)
			x.until("")
			if got, ok := p.TryNext(); ok {
				w.T.Errorf("picked %+v, which has left", got)
			}
			cancel()
			x.closed()
			y.closed()
			w.Settle()
		}
	})
}

// The reader's next session may be on a server that lags behind: a member that was reported
// gone does not come back.
func TestGroup_AViewDoesNotGoBackOverALostSession(t *testing.T) {
	onMemories(t, func(w *world) {
		ctx := context.Background()
		var old atomic.Pointer[[]string]
		var stale atomic.Bool
		hooks := staleAfterLoss(&old, &stale)
		c := w.Open("reader", &hooks)
		g := textGroup(c, false)
		watch := w.watch(ctx, g)
		a := mustJoin(w.T, w.group("a", nil), "x", "1")
		watch.until("x=1")
		names := w.Children("/g")
		old.Store(&names)
		mustLeave(w.T, a)
		watch.until("")
		b := mustJoin(w.T, w.group("b", nil), "y", "1")
		watch.until("y=1")
		stale.Store(true)
		w.Link("reader").Expire(sessionOf(w.T, c))
		w.Settle()
		if err := b.SetValue(ctx, "2"); err != nil {
			w.T.Fatal(err)
		}
		for _, e := range watch.until("y=2") {
			if len(e.Members) != 1 || len(e.Left)+len(e.Joined) != 0 {
				w.T.Errorf("%+v", e)
			}
		}
	})
}

// staleAfterLoss returns hooks for a client whose next server lists the old names while stale
// is set, until a sync.
func staleAfterLoss(old *atomic.Pointer[[]string], stale *atomic.Bool) backendtest.Hooks {
	return backendtest.Hooks{
		Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "sync" {
				stale.Store(false)
			}
			return nil
		},
		Names: func(_ backendtest.Call, names []string) []string {
			if stale.Load() {
				return *old.Load()
			}
			return names
		},
	}
}

// Pickers that are made at the same time do not all begin at one member, and each goes round the group.
func TestPicker_TheFirstMemberIsAnyOfThem(t *testing.T) {
	onMemory(t, func(w *world) {
		servers, ctx := coord.NewGroup[string](w.Open("servers", nil), "/g", nil), context.Background()
		for i := range 4 {
			if _, err := servers.Join(ctx, fmt.Sprint("id", i), ""); err != nil {
				w.T.Fatal(err)
			}
		}
		c := w.Open("caller", nil)
		first := make(map[string]int)
		for range 60 {
			ctx, stop := context.WithCancel(ctx)
			p, err := coord.NewGroup[string](c, "/g", nil).Picker(ctx, coord.PickRoundRobin)
			if err != nil {
				w.T.Fatal(err)
			}
			seen := make(map[string]bool)
			for i := range 4 {
				m, err := p.Next(ctx)
				if err != nil {
					w.T.Fatal(err)
				}
				if seen[m.ID] = true; i == 0 {
					first[m.ID]++
				}
			}
			if len(seen) != 4 {
				w.T.Errorf("a round has %d of 4 members", len(seen))
			}
			stop()
			w.Settle()
		}
		if len(first) != 4 { // all 60 among three: once in 8 million runs
			w.T.Errorf("60 pickers began at %v, want each of four", first)
		}
	})
}
