package coord_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

func mustPicker(t *testing.T, ctx context.Context, g *coord.Group[string], policy coord.PickPolicy) *coord.Picker[string] {
	t.Helper()
	p, err := g.Picker(ctx, policy)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustPick(t *testing.T, p *coord.Picker[string]) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	m, err := p.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return m.ID
}

func TestRoundRobinPicksOneAfterTheOther(t *testing.T) {
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

func TestRandomPicksEachWithTheSameProbability(t *testing.T) {
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

func TestAPickerWaitsForAMemberAndEndsWithItsContext(t *testing.T) {
	onAll(t, func(w *world) {
		ctx := context.Background()
		life, cancel := context.WithCancel(ctx)
		g := w.group("a", nil)
		p := mustPicker(w.T, life, g, coord.PickRoundRobin)
		if m, ok := p.TryNext(); ok {
			w.T.Errorf("picked %+v from no members", m)
		}
		short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
		defer stop()
		_, err := p.Next(short)
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		picked := make(chan string)
		go func() { picked <- mustPick(w.T, p) }()
		// A member whose value cannot be decoded is not picked.
		type instance struct{ Port int }
		c := w.Open("b", nil)
		ports := coord.NewGroup[instance](c, "/g", nil)
		pp, err := ports.Picker(life, coord.PickRandom)
		if err != nil {
			w.T.Fatal(err)
		}
		m := mustJoin(w.T, g, "x", "no json")
		if id := <-picked; id != "x" {
			w.T.Errorf("picked %q", id)
		}
		if got, ok := p.TryNext(); !ok || got.Value != "no json" {
			w.T.Errorf("%+v, %v", got, ok)
		}
		if _, err := ports.Wait(ctx, 1); err != nil {
			w.T.Fatal(err)
		}
		if got, ok := pp.TryNext(); ok {
			w.T.Errorf("picked %+v", got)
		}
		if err := m.SetValue(ctx, `{"Port":80}`); err != nil {
			w.T.Fatal(err)
		}
		if got, err := pp.Next(ctx); err != nil || got.Value.Port != 80 {
			w.T.Errorf("%+v, %v", got, err)
		}
		mustLeave(w.T, m)
		w.Eventually("no member is picked", func() bool { _, ok := p.TryNext(); return !ok })
		ended := make(chan error)
		go func() {
			_, err := p.Next(ctx)
			ended <- err
		}()
		w.Settle()
		cancel()
		coordtest.WantErr(w.T, <-ended, context.Canceled)
		_, err = p.Next(ctx)
		coordtest.WantErr(w.T, err, context.Canceled)
	})
}

// The view of a group ends with its last user. The next user begins a new one.
func TestWatchesAndPickersShareOneView(t *testing.T) {
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

// A Picker never lags behind a Watch of the same Group, however members join, leave and lose
// their sessions.
func TestAPickerNeverReturnsAMemberThatAWatchReportedGone(t *testing.T) {
	onAll(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		g := w.group("reader", nil)
		rounds := 60
		if coordtest.Long() {
			rounds = 600
		}
		var mu sync.Mutex
		gone := make(map[string]int) // by path: its rank among those reported to have left
		var picks, none atomic.Int64
		var readers, members sync.WaitGroup
		for range 2 {
			ch := g.Watch(ctx)
			readers.Go(func() {
				for e := range ch {
					mu.Lock()
					for _, m := range e.Left {
						if gone[m.Path] == 0 {
							gone[m.Path] = len(gone) + 1
						}
					}
					mu.Unlock()
				}
			})
		}
		for i := range 4 {
			p := mustPicker(w.T, ctx, g, coord.PickPolicy(i%2))
			for range 2 {
				readers.Go(func() {
					for ctx.Err() == nil {
						mu.Lock()
						before := len(gone) // reported before the pick began
						mu.Unlock()
						m, ok := p.TryNext()
						if !ok {
							none.Add(1)
						} else {
							picks.Add(1)
						}
						mu.Lock()
						n := gone[m.Path]
						mu.Unlock()
						if n > 0 && n <= before {
							w.T.Errorf("picked %s, which was reported to have left", m.Path)
							return
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
		}
		for i := range 3 {
			c := w.Open(fmt.Sprint(i), nil)
			members.Go(func() {
				own, r := textGroup(c, false), rand.New(rand.NewPCG(1, uint64(i)))
				for range rounds {
					m := mustJoin(w.T, own, fmt.Sprint(i), "1")
					time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
					if r.IntN(8) == 0 {
						w.Link(fmt.Sprint(i)).Expire(sessionOf(w.T, c))
					}
					if err := m.Leave(); err != nil {
						w.T.Error(err)
					}
				}
			})
		}
		// The reader's own contact breaks for a moment.
		for range 4 {
			time.Sleep(50 * time.Millisecond)
			w.Link("reader").Partition()
			w.Link("reader").Heal()
		}
		members.Wait()
		w.Eventually("all have left", func() bool { list, err := g.Members(ctx); return err == nil && len(list) == 0 })
		cancel()
		readers.Wait()
		w.T.Logf("figure: %d reported gone, %d picks, %d times no member", len(gone), picks.Load(), none.Load())
		if len(gone) == 0 || picks.Load() == 0 {
			w.T.Error("no member left, or none was picked: nothing was tested")
		}
	})
}

// The reader's next session may be on a server that lags behind: a member that was reported
// gone does not come back.
func TestAViewDoesNotGoBackOverALostSession(t *testing.T) {
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

// sessionOf returns the id of a client's session.
func sessionOf(t *testing.T, c *coord.Client) int64 {
	t.Helper()
	s, err := c.Session(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s.ID()
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
