package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

type simMember struct {
	m     *coord.Membership[string]
	maybe map[string]bool // what its value can be
}

func groupScenario() *scenario {
	const at = "/g"
	group := func(a *actor, takeOver bool) *coord.Group[string] {
		return coord.NewGroup(a.client(), at, &coord.GroupOptions[string]{Codec: coord.Text(), TakeOver: takeOver})
	}
	return &scenario{
		name: "group", share: 10, clients: 4, dir: at,
		must:    []string{"join", "duplicate", "gave up", "set", "set uncertain", "element", "pick", "stayed", "ended", "cancel", "outsider's delete"},
		without: []string{"outsider's write"}, // of other values
		play: func(x *sim) {
			var stay []*simMember
			for i := range 4 {
				x.act("member", i, func(a *actor) {
					for round := range 3 {
						value := fmt.Sprint(a.name, ".", round)
						var m *coord.Membership[string]
						id := randomOf(a.r, "abc")
						a.try("join "+id, func(ctx context.Context) (err error) {
							if m, err = group(a, a.r.IntN(3) == 0).Join(ctx, id, value); errors.Is(err, coord.ErrDuplicate) {
								a.note("duplicate")
								return nil
							}
							return err
						})
						if m == nil {
							continue
						}
						a.note("join")
						e := &simMember{m, map[string]bool{value: true}}
						for n := range a.r.IntN(3) {
							a.linger(5)
							next := fmt.Sprint(value, ".", n)
							ctx, done := a.context()
							err := m.SetValue(ctx, next)
							done()
							switch {
							case err == nil:
								a.note("set")
								e.maybe = map[string]bool{next: true}
							case errors.Is(err, coord.ErrUncertain):
								a.note("set uncertain")
								e.maybe[next] = true
							case errors.Is(err, coord.ErrDuplicate), a.excused(err):
							default:
								a.errorf("set: %v", err)
							}
						}
						a.linger(5)
						if round == 2 {
							x.mu().Lock()
							stay = append(stay, e)
							x.mu().Unlock()
						} else if err := m.Leave(); err != nil && !errors.Is(err, coord.ErrDuplicate) && !a.excused(err) {
							a.errorf("leave: %v", err)
						}
					}
				})
			}
			told := make([]*coordtest.GroupReader, 2)
			for i := range told {
				x.watch("reader", i, func(ctx context.Context, a *actor) {
					g := group(a, false)
					p, err := g.Picker(ctx, coord.PickPolicy(i))
					if err != nil {
						if !a.excused(err) {
							a.errorf("picker: %v", err)
						}
						return
					}
					updates, w := g.Watch(ctx), new(coordtest.GroupReader)
					x.mu().Lock()
					told[i] = w
					x.mu().Unlock()
					for m := range updates {
						if m.Err != nil {
							continue
						}
						x.mu().Lock()
						err := w.Take(m)
						x.count["element"]++
						x.mu().Unlock()
						if err != nil {
							a.errorf("%v", err)
						}
						for range 1 + a.r.IntN(3) {
							if m, ok := p.TryNext(); ok {
								x.note("pick")
								if w.Gone[m.Path] {
									a.errorf("picked %s, which the watch had reported to be gone", m.Path)
								}
							}
							a.pause()
						}
					}
				})
			}
			x.finishing = func(a *actor) {
				truth, err := group(a, false).Members(context.Background())
				if err != nil {
					a.errorf("members: %v", err)
				}
				if list, _, _ := x.truth.Children(context.Background(), at, nil); len(list) != len(truth) {
					a.errorf("%d nodes for %d members", len(list), len(truth))
				}
				for i, w := range told {
					if !slices.Equal(w.Last.Members, truth) {
						a.errorf("reader %d received %v at last, the truth is %v", i, w.Last.Members, truth)
					}
				}
				left := make(map[string]string)
				for _, m := range truth {
					left[m.ID] = m.Value
				}
				for _, e := range stay {
					if e.m.Err() != nil {
						a.note("ended")
						continue
					}
					a.note("stayed")
					if v, ok := left[e.m.ID()]; !ok || !e.maybe[v] {
						a.errorf("the member %q has %q, want one of %v", e.m.ID(), v, e.maybe)
					}
					delete(left, e.m.ID())
					e.m.Leave()
				}
				if len(left) > 0 {
					a.errorf("members that no client is: %v", left)
				}
			}
			x.ending = func() { x.empty(at) }
		},
	}
}
