package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
)

// txSim is two proposers and three sites that crash, lose messages and sessions,
// and are slow, all drawn from one seed.
type txSim struct {
	*txWorld
	seed  uint64
	rng   *rand.Rand // for faults and delays; under mu
	calm  bool       // no more faults; under mu
	told  []coord.Decision
	recov bool // a Recover runs beside the proposers
}

var txSimSites = []string{"a", "b", "c"}

// fault draws what happens around a call.
func (x *txSim) fault(p *txProc, _ int, c backendtest.Call, after bool, err error) error {
	if x.calm || x.rng.IntN(40) > 0 {
		return err
	}
	how := []string{"loss", "loss", "loss", "expiry", "kill", "late write"}[x.rng.IntN(6)]
	if how == "late write" && (after || c.Op != "commit") {
		return err
	}
	x.count[how]++
	return txFaults[how](p, c, after, err)
}

func (x *txSim) delay() time.Duration {
	if x.rng.IntN(10) == 0 {
		return time.Duration(x.rng.IntN(300)) * time.Millisecond
	}
	return time.Duration(x.rng.IntN(5)) * time.Millisecond
}

func (x *txSim) draw(n int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.rng.IntN(n)
}

// alive runs f in a process, and again in a new one when that dies, until f has
// returned in one that lives.
func (x *txSim) alive(name string, f func(p *txProc)) {
	for {
		p := x.start(name, x.fault)
		x.mu.Lock()
		p.delay = x.delay
		x.mu.Unlock()
		f(p)
		x.mu.Lock()
		dead := p.dead
		x.mu.Unlock()
		p.stop()
		if !dead {
			return
		}
		time.Sleep(time.Duration(x.draw(1500)) * time.Millisecond)
	}
}

// proposer proposes one transaction after the other, each until it has received the decision.
func (x *txSim) proposer(ids []string) {
	next := 0
	x.alive("proposer", func(p *txProc) {
		for ; next < len(ids); next++ {
			prop := txProposal(ids[next], txSimSites[:1+len(ids[next])%3]) // a retry has the same sites
			if !x.propose(p, prop) {
				return
			}
			time.Sleep(time.Duration(x.draw(300)) * time.Millisecond)
		}
	})
}

// propose proposes until it has received the decision. It reports false if the process died.
func (x *txSim) propose(p *txProc, prop coord.Proposal[string]) bool {
	co := coord.NewCoordinator(p.c, txPath, &coord.CoordinatorOptions[string]{Unserved: coord.Unserved(x.draw(3))})
	for {
		ctx, cancel := p.ctx, context.CancelFunc(func() {})
		if x.draw(4) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(x.draw(1000))*time.Millisecond)
		}
		d, err := co.Propose(ctx, prop)
		cancel()
		if err == nil {
			// From here on a retry is a second transaction, also if the process dies in
			// the next moment: the record may be gone.
			time.Sleep(time.Duration(x.draw(2)) * time.Millisecond)
		}
		x.mu.Lock()
		if p.dead && err == nil {
			x.count["told and died"]++
		} else if p.dead {
			x.mu.Unlock()
			return false
		}
		switch {
		case err == nil:
			x.told = append(x.told, d)
			x.count["told"]++
			x.mu.Unlock()
			return true
		case errors.Is(err, coord.ErrInDoubt) && x.recov:
			x.count["told to Recover"]++
			x.mu.Unlock()
			return true
		case errors.Is(err, context.DeadlineExceeded):
			x.count["gave up"]++
		case errors.Is(err, coord.ErrNotFound):
			x.count["not served"]++
			x.mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			continue
		case errors.Is(err, coord.ErrUncertain):
			x.count["uncertain"]++
		default:
			x.errorf("Propose: %v", err)
			x.mu.Unlock()
			return true
		}
		x.mu.Unlock()
	}
}

func (x *txSim) play() {
	x.rng = rand.New(rand.NewPCG(x.seed, 1))
	x.prepare = func(string, string) error {
		if x.rng.IntN(8) == 0 {
			return errors.New("not today")
		}
		return nil
	}
	x.recov = x.rng.IntN(4) == 0
	first := x.start("first", nil)
	for _, site := range txSimSites {
		first.serve(site)
	}
	synctest.Wait()
	first.stop()

	over, end := context.WithCancel(context.Background())
	var sites, proposers sync.WaitGroup
	for _, site := range txSimSites {
		sites.Go(func() {
			x.alive("site "+site, func(p *txProc) {
				defer context.AfterFunc(over, p.cancel)()
				p.serve(site)
				p.wg.Wait()
			})
		})
	}
	for i := range 2 {
		ids := make([]string, 3)
		for j := range ids {
			// The length of an id decides how many sites its transaction has.
			ids[j] = fmt.Sprintf("p%d-%d-%s", i, j, "xyz"[:x.draw(4)])
		}
		proposers.Go(func() { x.proposer(ids) })
	}
	if x.recov {
		proposers.Go(func() {
			time.Sleep(time.Duration(x.draw(2000)) * time.Millisecond)
			x.alive("recovery", func(p *txProc) {
				_, err := coord.NewCoordinator[string](p.c, txPath, nil).Recover(p.ctx)
				if err != nil && p.ctx.Err() == nil {
					x.errorf("Recover: %v", err)
				}
			})
		})
	}
	proposers.Wait()
	x.mu.Lock()
	x.calm = true
	x.mu.Unlock()
	time.Sleep(txDeadline + 2*txTimeout)
	synctest.Wait()
	x.finish(txSimSites)
	x.check()
	end()
	sites.Wait()
}

// checkTold checks that the decisions that proposers received are those that were made.
func (x *txWorld) checkTold(told []coord.Decision) {
	for _, d := range told {
		if in := x.history.all[txKey{d.ID, d.Zxid}]; in == nil || (in.decided == "commit") != d.Commit {
			x.errorf("reported %+v; the history has %+v", d, in)
		}
	}
}

func (x *txSim) check() {
	commits := make(map[string]int)
	for key, in := range x.history.all {
		if in.decided == "commit" {
			commits[key.id]++
		}
	}
	x.checkTold(x.told)
	for id, n := range commits {
		if n > 1 && !x.recov {
			x.errorf("%s was committed %d times", id, n)
		}
	}
}

func TestTheTwoPhaseCommitUnderRandomFaults(t *testing.T) {
	t.Parallel()
	first, seeds, all := simRange(900, 30_000)
	count, commits := make(map[string]int), 0
	for seed := first; seed < first+seeds && !t.Failed(); seed++ {
		if *simTrace {
			fmt.Println("seed", seed)
		}
		synctest.Test(t, func(t *testing.T) {
			x := &txSim{txWorld: newTxWorld(t, fmt.Sprint("seed ", seed)), seed: seed}
			x.play()
			for what, n := range x.count {
				count[what] += n
			}
			commits += x.history.commits
		})
	}
	t.Logf("figure: simulation of the two-phase commit, %d seeds, %d commits replayed: %v", seeds, commits, count)
	if !all {
		return
	}
	for _, what := range []string{"commit", "abort", "told", "gave up", "not served", "loss", "expiry", "kill", "late write", "late write landed", "told and died"} {
		if count[what] == 0 {
			t.Errorf("%q never happened: the simulation tested nothing of it", what)
		}
	}
}

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
					call := func(what string) func(context.Context, coord.Branch[string]) error {
						return func(_ context.Context, tx coord.Branch[string]) error {
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
