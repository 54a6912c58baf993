package coord_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

func electionScenario() *scenario {
	const at = "/sim/election"
	return &scenario{
		name: "election", share: 10, clients: 4, dir: at,
		must:    []string{"grant", "loss", "announced", "observed", "vacant", "leadership", "gave up", "cancel", "outsider's delete"},
		without: []string{"outsider's write"},
		play: func(x *sim) {
			election := func(a *actor) *coord.Election {
				return coord.NewElection(a.client(), at, &coord.ElectionOptions{ID: a.name, StepDown: a.slot.n == 3})
			}
			for i := range 4 {
				x.act("candidate", i, func(a *actor) {
					for range 3 {
						var t *coord.Term
						stop := func() {}
						if a.r.IntN(2) == 0 {
							a.try("campaign", func(ctx context.Context) (err error) {
								t, err = election(a).Campaign(ctx)
								return err
							})
						} else {
							a.note("leadership")
							ctx, cancel := a.context()
							ch := election(a).Leadership(ctx)
							t = <-ch
							if t != nil && t.Token() == 0 {
								if err := t.Err(); !a.excused(err) {
									a.errorf("leadership: %v", err)
								}
								t = nil
							}
							stop = func() {
								cancel()
								for t := range ch {
									t.Release() // it was sent in the same moment
								}
							}
						}
						if t != nil {
							x.takes(a, at, t.Hold, false)
							x.works(a, at, t.Hold, 3)
							if a.r.IntN(2) == 0 && t.Announce(context.Background(), []byte(a.name)) == nil {
								a.note("announced")
								x.works(a, at, t.Hold, 3)
							}
							x.releases(a, at, t.Hold)
						}
						stop()
					}
				})
			}
			last := make([]coord.Leader, 2)
			for i := range last {
				x.watch("observer", i, func(ctx context.Context, a *actor) {
					for l := range election(a).Observe(ctx) {
						if l.Err != nil {
							continue
						}
						a.say("sees " + l.Path)
						if l.Vacant() {
							x.note("vacant")
						} else {
							x.note("observed")
						}
						x.mu().Lock()
						if !l.Vacant() && !last[i].Vacant() && l.Token < last[i].Token {
							x.simulation.t.Errorf("seed %d: %s saw the leader %d after %d", x.arbiter.seed, a.name, l.Token, last[i].Token)
						}
						last[i] = l
						x.mu().Unlock()
					}
				})
			}
			x.ending = func() {
				x.empty(at)
				for _, l := range last {
					if !l.Vacant() {
						x.errorf("nobody leads, and an observer saw %s at last", l.Path)
					}
				}
			}
		},
	}
}

func groupScenario() *scenario {
	const at = "/g" // of textGroup
	return &scenario{
		name: "group", share: 10, clients: 4, dir: at,
		must:    []string{"join", "duplicate", "gave up", "set", "set uncertain", "element", "stayed", "ended", "cancel", "outsider's delete"},
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
							if m, err = textGroup(a.client(), a.r.IntN(3) == 0).Join(ctx, id, value); errors.Is(err, coord.ErrDuplicate) {
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
			told := make([]*watching, 2)
			for i := range told {
				x.watch("reader", i, func(ctx context.Context, a *actor) {
					w := &watching{ch: textGroup(a.client(), false).Watch(ctx), gone: make(map[string]bool)}
					x.mu().Lock()
					told[i] = w
					x.mu().Unlock()
					for m := range w.ch {
						if m.Err != nil {
							continue
						}
						x.mu().Lock()
						err := w.take(m)
						x.count["element"]++
						x.mu().Unlock()
						if err != nil {
							a.errorf("%v", err)
						}
						a.linger(3)
					}
				})
			}
			x.finishing = func(a *actor) {
				truth, err := textGroup(a.client(), false).Members(context.Background())
				if err != nil {
					a.errorf("members: %v", err)
				}
				if list, _, _ := x.truth.Children(context.Background(), at, nil); len(list) != len(truth) {
					a.errorf("%d nodes for %d members", len(list), len(truth))
				}
				for i, w := range told {
					if !slices.Equal(w.last.List, truth) {
						a.errorf("reader %d was told %v at last, the truth is %v", i, w.last.List, truth)
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
					a.errorf("nobody's members: %v", left)
				}
			}
			x.ending = func() { x.empty(at) }
		},
	}
}

// Found by the simulation: an announcement came after the removal of what was
// announced, and before the removal of the node that it depends on.
func TestAnAnnouncementUnderWayWhileSteppingDownIsRemoved(t *testing.T) {
	onMemory(t, func(w *world) {
		late := &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			ready := strings.Contains(c.Path, "-ready-")
			switch {
			case c.Op == "commit" && len(c.Ops) == 2 && c.Ops[0].Kind == backend.OpCheck:
				time.Sleep(200 * time.Millisecond)
			case deletes(c) && !ready:
				time.Sleep(400 * time.Millisecond)
			}
			return nil
		}}
		e := coord.NewElection(w.open("a", late), "/e", &coord.ElectionOptions{ID: "a", StepDown: true})
		term := mustLead(w.t, e)
		announced := make(chan error)
		go func() { announced <- term.Announce(context.Background(), []byte("here")) }()
		w.settle()
		w.Link("a").Partition()
		w.Link("a").Heal()
		<-announced
		wantErr(w.t, term.Err(), coord.ErrSuspended)
		w.empty("/e")
	})
}
