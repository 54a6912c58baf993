package coord_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord"
)

// commitScenario is transactions in two phases: three sites and two proposers.
func commitScenario() *scenario {
	return &scenario{
		name: "two-phase commit", share: 10, clients: 4, timeout: txTimeout,
		must:    []string{"commit", "abort", "told", "gave up", "cancel", "call of prepare", "call of commit", "call of abort"},
		without: []string{"outsider's delete", "outsider's write"},
		play: func(x *sim) {
			w := &txWorld{t: x.simulation.t, name: fmt.Sprint("seed ", x.arbiter.seed), st: x.arbiter.st, count: make(map[string]int),
				history: txHistory{at: make(map[string]*txInstance), all: make(map[txKey]*txInstance)}}
			x.applied = func(c *simCall) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.history.apply(w, c.seen(x.truth))
			}
			for i, site := range txSimSites {
				x.watch("site "+site, i, func(ctx context.Context, a *actor) {
					call := func(what string) func(context.Context, coord.Ballot[string]) error {
						return func(_ context.Context, tx coord.Ballot[string]) error {
							// It returns in a step of its own.
							defer x.pass(context.Background(), &simCall{op: "step", path: a.name + " " + what + " " + tx.ID, after: a.name})
							w.mu.Lock()
							defer w.mu.Unlock()
							a.say(what + " " + tx.ID)
							w.history.call(w, what, tx)
							if what == "prepare" && a.r.IntN(6) == 0 {
								return errors.New("not today")
							}
							return nil
						}
					}
					err := coord.NewParticipant(a.client(), txPath, site, coord.Handler[string]{
						Prepare: call("prepare"), Commit: call("commit"), Abort: call("abort"),
					}).Serve(ctx)
					if !errors.Is(err, context.Canceled) && !errors.Is(err, coord.ErrClosed) {
						a.errorf("Serve: %v", err)
					}
				})
			}
			var told []coord.Decision
			for i := range 2 {
				x.act("proposer", 2+i, func(a *actor) {
					for served := 0; served < len(txSimSites); a.pause() {
						list, _, _ := x.truth.Children(context.Background(), txPath+"/sites", nil)
						served = len(list)
					}
					for n := range 2 {
						prop := txProposal(fmt.Sprint("p", i, "-", n), txSimSites[:1+a.r.IntN(3)])
						for {
							var d coord.Decision
							ctx, done := a.context()
							a.say("proposes " + prop.ID)
							o := &coord.CoordinatorOptions[string]{Unserved: coord.Unserved(a.r.IntN(3))}
							d, err := coord.NewCoordinator(a.client(), txPath, o).Propose(ctx, prop)
							done()
							if err == nil {
								a.note("told")
								x.mu().Lock()
								told = append(told, d)
								x.mu().Unlock()
								break
							}
							if errors.Is(err, coord.ErrUncertain) {
								a.note("uncertain")
							} else if errors.Is(err, coord.ErrNotFound) {
								a.note("not served")
							} else if !a.excused(err) {
								a.errorf("propose: %v", err)
								break
							}
							a.pause()
						}
						a.linger(5)
					}
				})
			}
			x.finishing = func(a *actor) {
				if _, err := coord.NewCoordinator[string](a.client(), txPath, nil).Recover(context.Background()); err != nil {
					a.errorf("recover: %v", err)
				}
			}
			x.ending = func() {
				x.empty(txPath + "/tx")
				for _, site := range txSimSites {
					x.empty(txPath + "/sites/" + site)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				w.history.end(w)
				w.checkTold(told)
				x.mu().Lock()
				defer x.mu().Unlock()
				for what, n := range w.count {
					x.count[what] += n
				}
			}
		},
	}
}
