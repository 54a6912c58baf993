package simulation_test

import (
	"context"
	"errors"

	"github.com/go-coord/coord"
)

func barrierScenario() *scenario {
	const at = "/sim/barrier"
	return &scenario{
		name: "barrier", share: 5, clients: 4,
		must:    []string{"set", "removed", "passed", "gave up", "cancel"},
		without: []string{"outsider's delete", "outsider's write"},
		play: func(x *sim) {
			stands, open := false, 0 // how often it was opened
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
