package recipetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
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
	ctx, cancel := context.WithTimeout(context.Background(), coordtest.Limit)
	defer cancel()
	m, err := p.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return m.ID
}

// groupPickerTests are tests of Group on each service.
type groupPickerTests struct{ Services }

func (on groupPickerTests) APickerWaitsForAMemberAndEndsWithItsContext(t *testing.T) {
	on.all(t, func(w *world) {
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

// A Picker never lags behind a Watch of the same Group, however members join, leave and lose
// their sessions.
func (on groupPickerTests) APickerNeverReturnsAMemberThatAWatchReportedGone(t *testing.T) {
	on.all(t, func(w *world) {
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

// sessionOf returns the id of a client's session.
func sessionOf(t *testing.T, c *coord.Client) int64 {
	t.Helper()
	s, err := c.Session(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s.ID()
}
