package coord_test

import (
	"context"
	"errors"
	"path"

	"github.com/go-coord/coord"
)

func semaphoreScenario() *scenario {
	const at, dir = "/sim/s", "/sim/s/requests"
	return &scenario{
		name: "semaphore", share: 10, clients: 4, dir: dir,
		must: []string{"grant", "loss", "gave up", "locked", "all permits were taken", "cancel", "outsider's delete"},
		play: func(x *sim) {
			p := newPermitCount(2 + x.draw.IntN(4))
			p.void = func(h *coord.Hold) bool {
				x.mu().Lock()
				defer x.mu().Unlock()
				return x.void(h)
			}
			for i := range 5 {
				x.act("worker", i, func(a *actor) {
					for range 3 {
						s := coord.NewSemaphore(a.client(), at, p.limit, nil)
						n := 1 + a.r.IntN(p.limit)
						lock := s.Acquire
						if a.r.IntN(6) == 0 {
							lock = s.TryAcquire
						}
						h := x.lock(a, func(ctx context.Context) (*coord.Hold, error) { return lock(ctx, n) })
						if h == nil {
							continue
						}
						a.note("grant")
						x.mu().Lock()
						x.standing(a, h, true)
						x.mu().Unlock()
						if err := p.take(h, n); err != nil {
							a.errorf("%v", err)
						}
						if p.most == p.limit {
							x.note("all permits were taken")
						}
						x.works(a, at, h, 4)
						p.give(h)
						x.releases(a, at, h)
					}
				})
			}
		},
		end: func(x *sim) { x.empty(dir) },
	}
}

func barrierScenario() *scenario {
	const at = "/sim/barrier"
	return &scenario{
		name: "barrier", share: 5, clients: 4,
		must:    []string{"set", "removed", "passed", "gave up", "cancel"},
		without: []string{"outsider's delete", "outsider's write"},
		play: func(x *sim) {
			stands, open := false, 0 // how often it came to stand open
			x.applied = func(c *simCall) {
				for _, op := range c.ops {
					if op.Path != at {
						continue
					}
					_, err := x.truth.Exists(context.Background(), at, nil)
					if stands = err == nil; !stands {
						open++
					}
				}
			}
			for i := range 3 {
				x.act("waiter", i, func(a *actor) {
					for range 4 {
						b := coord.NewBarrier(a.client(), at, nil)
						was, before := stands, open // nothing moves while actors run
						if a.try("wait", b.Wait) {
							if was && open == before {
								a.errorf("Wait returned before the barrier was open")
							}
							a.note("passed")
						}
						a.linger(6)
					}
				})
			}
			x.act("keeper", 3, func(a *actor) {
				for range 3 {
					if a.try("set", func(ctx context.Context) error {
						return ignore(coord.NewBarrier(a.client(), at, nil).Set(ctx), coord.ErrUncertain)
					}) {
						a.note("set")
					}
					a.linger(20)
					if a.try("remove", func(ctx context.Context) error {
						return ignore(coord.NewBarrier(a.client(), at, nil).Remove(ctx), coord.ErrUncertain)
					}) {
						a.note("removed")
					}
				}
				for stands {
					a.try("remove", func(context.Context) error {
						return ignore(coord.NewBarrier(a.client(), at, nil).Remove(context.Background()), coord.ErrUncertain)
					})
				}
			})
		},
	}
}

// ignore returns nil for what is no error to the caller.
func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

func doubleBarrierScenario() *scenario {
	const at, dir = "/sim/d", "/sim/d/members"
	return &scenario{
		name: "double barrier", share: 10, clients: 4, dir: dir,
		must:    []string{"round", "entry", "extra", "release", "loss", "gave up", "gave up leaving", "cancel", "outsider's delete"},
		without: []string{"outsider's write"},
		play: func(x *sim) {
			n, o := 3, &coord.DoubleBarrierOptions{NextRound: x.draw.IntN(2) == 0}
			if x.draw.IntN(3) == 0 {
				n = 4
			}
			r := newRounds(n, at+"/ready", x.note)
			r.exists = func(path string) bool {
				_, err := x.truth.Exists(context.Background(), path, nil)
				return err == nil
			}
			r.void = func(e *coord.Entry) bool {
				x.mu().Lock()
				defer x.mu().Unlock()
				return x.void(e.Hold)
			}
			all, finish := context.WithCancel(context.Background())
			x.stop = finish // whose round cannot come any more
			for i := range 4 {
				x.act("member", i, func(a *actor) {
					for left := 3; left > 0 && all.Err() == nil; {
						if x.enterOnce(a, r, coord.NewDoubleBarrier(a.client(), at, n, o), all) {
							left--
						}
					}
					x.stop()
				})
			}
		},
		end: func(x *sim) { x.empty(dir) },
	}
}

// enterOnce enters a double barrier and leaves it. It reports whether it entered.
func (x *sim) enterOnce(a *actor, r *rounds, d *coord.DoubleBarrier, all context.Context) bool {
	bounded := func(f func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if all.Err() != nil {
				cancel()
			}
			defer context.AfterFunc(all, cancel)()
			return f(ctx)
		}
	}
	call := r.begin()
	var e *coord.Entry
	if !a.try("enter", bounded(func(ctx context.Context) (err error) {
		e, err = d.Enter(ctx)
		return err
	})) {
		return false // its node goes in the background, so the call counts on
	}
	a.say("entered " + path.Base(e.Path()))
	if err := r.entered(x.truth, call, e); err != nil {
		a.errorf("%v", err)
	}
	r.end(call)
	a.linger(4)
	round := r.leaves(e)
	ctx, done := a.context()
	defer done()
	if a.r.IntN(10) == 0 {
		a.note("release")
		e.Release()
		return true
	}
	switch err := bounded(e.Leave)(ctx); {
	case errors.Is(err, coord.ErrLost):
		a.note("loss")
	case err == nil && round != 0:
		if err := r.left(round); err != nil {
			a.errorf("%v", err)
		}
	case err == nil:
	case errors.Is(err, context.Canceled):
		a.note("gave up leaving")
	case a.excused(err):
	default:
		a.errorf("leave: %v", err)
	}
	return true
}
