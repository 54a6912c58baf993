package simulation_test

import (
	"context"
	"errors"

	"github.com/go-coord/coord"
)

func electionScenario() *scenario {
	const at = "/sim/election"
	return &scenario{
		name: "election", share: 10, clients: 4, dir: at,
		must:    []string{"grant", "loss", "announced", "observed", "vacant", "leadership", "led again", "late term", "run", "ran again", "gave up", "cancel", "outsider's delete"},
		without: []string{"outsider's write"},
		play: func(x *sim) {
			election := func(a *actor) *coord.Election {
				return coord.NewElection(a.client(), at, &coord.ElectionOptions{ID: a.name, StepDownOnSuspend: a.slot.n == 3})
			}
			for i := range 4 {
				x.act("candidate", i, func(a *actor) {
					lead := func(t *coord.Term) {
						x.takes(a, at, t.Hold, false)
						x.works(a, at, t.Hold, 3)
						if a.r.IntN(2) == 0 && t.Announce(context.Background(), []byte(a.name)) == nil {
							a.note("announced")
							x.works(a, at, t.Hold, 3)
						}
					}
					for range 3 {
						switch a.r.IntN(4) {
						case 0, 1:
							var t *coord.Term
							if a.try("campaign", func(ctx context.Context) (err error) {
								t, err = election(a).Campaign(ctx)
								return err
							}) {
								lead(t)
								x.releases(a, at, t.Hold)
							}
						case 2:
							x.leadership(a, election(a), at, lead)
						case 3:
							x.runs(a, election(a), at, lead)
						}
					}
				})
			}
			last := make([]coord.Leader, 2)
			for i := range last {
				x.watch("observer", i, func(ctx context.Context, a *actor) {
					for l := range election(a).WatchLeader(ctx) {
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
						x.errorf("no candidate leads, and an observer saw %s at last", l.Path)
					}
				}
			}
		},
	}
}

// leadership leads for one term of a Leadership, or for more.
func (x *sim) leadership(a *actor, e *coord.Election, path string, lead func(*coord.Term)) {
	a.note("leadership")
	ctx, cancel := a.context()
	terms := e.Leadership(ctx)
	for t := range terms {
		if t.Token() == 0 {
			if err := t.Err(); !a.excused(err) {
				a.errorf("leadership: %v", err)
			}
			break
		}
		lead(t)
		x.releases(a, path, t.Hold)
		a.pause() // the next campaign begins, or this is over
		if a.r.IntN(2) == 0 {
			break
		}
		a.note("led again")
	}
	if a.r.IntN(2) == 0 {
		select { // the next term may be there already
		case t, open := <-terms:
			if open && t.Token() != 0 {
				a.note("late term")
				t.Release()
			}
		default:
		}
	}
	cancel()
	a.pause() // or two would take what is in the channel now
	for t := range terms {
		t.Release()
	}
}

// runs leads in a Run.
func (x *sim) runs(a *actor, e *coord.Election, path string, lead func(*coord.Term)) {
	a.note("run")
	ctx, done := a.context()
	defer done()
	var last *coord.Hold
	err := e.Run(ctx, func(_ context.Context, t *coord.Term) error {
		if last != nil {
			a.note("ran again")
		}
		last = t.Hold
		lead(t)
		a.pause()
		x.heard(last)
		x.gives(path, last)
		x.ended(last)
		return nil
	})
	switch {
	case last != nil && (err == nil || errors.Is(err, coord.ErrLost) || errors.Is(err, coord.ErrUncertain)):
		x.gave(a, err, last)
	case !a.excused(err):
		a.errorf("run: %v", err)
	}
}
