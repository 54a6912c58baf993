package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/inspect"
)

// barrierCommand returns the verb barrier and those below it.
func (t *tool) barrierCommand() *cobra.Command {
	barrier := func(c *coord.Client) *coord.Barrier { return coord.NewBarrier(c, t.path, nil) }
	return t.command(verb{
		name: "barrier", short: "set, remove and await a barrier",
		below: []*cobra.Command{
			t.command(verb{
				name: "set", words: "PATH", short: "set a barrier, at which all waiters stop",
				example: `coordctl barrier set /maintenance`,
				exits:   []int{exitNo},
				do:      func(ctx context.Context, c *coord.Client) error { return answered(barrier(c).Set(ctx)) },
			}),
			t.command(verb{
				name: "remove", words: "PATH", short: "remove a barrier, so that all waiters pass, after a question",
				example: `coordctl barrier remove /maintenance --yes`,
				exits:   []int{exitNo},
				do: func(ctx context.Context, c *coord.Client) error {
					if err := t.confirm(ctx, "remove the barrier %s, so that all waiters pass", t.path); err != nil {
						return err
					}
					return answered(barrier(c).Remove(ctx))
				},
			}),
			t.command(verb{
				name: "wait", words: "PATH", short: "wait until a barrier is not set",
				long:    `With --wait 0 it looks once, and does not wait.`,
				example: `coordctl barrier wait /startup --wait 1m`,
				exits:   []int{exitLate},
				do: func(ctx context.Context, c *coord.Client) error {
					if t.wait == 0 {
						in, err := inspect.Path(ctx, c, t.path, nil)
						switch {
						case err != nil:
							return err
						case in.Recipe == "missing":
							return nil
						case in.Barrier != nil:
							return errLate
						}
					}
					defer t.progress("waiting at the barrier %s", t.path)()
					return barrier(c).Wait(ctx) // or the error that the path is another recipe's
				},
			}),
			t.command(verb{
				name: "status", words: "PATH", short: "say whether a barrier is set, or how a double barrier stands",
				long:    `The exit status is 1 if the barrier is not set, or no round of a double barrier is open.`,
				example: `coordctl barrier status /maintenance`,
				exits:   []int{exitNo},
				do:      t.barrierStatus,
			}),
		},
	})
}

// barrierState is the state of a barrier as JSON.
type barrierState struct {
	Path    string                 `json:"path"`
	Set     bool                   `json:"set"`
	Barrier *inspect.Barrier       `json:"barrier,omitempty"`
	Double  *inspect.DoubleBarrier `json:"doublebarrier,omitempty"`
}

func (t *tool) barrierStatus(ctx context.Context, c *coord.Client) error {
	in, err := inspect.Path(ctx, c, t.path, nil)
	if err != nil {
		return err
	}
	st := barrierState{Path: t.path, Barrier: in.Barrier, Double: in.DoubleBarrier}
	text := t.path + ": not set\n"
	switch {
	case st.Barrier != nil:
		st.Set = true
		text = fmt.Sprintf("%s: %s, since %s\n", t.path, in.Summary, stamp(st.Barrier.Since))
	case st.Double != nil:
		st.Set = st.Double.Open
		text = fmt.Sprintf("%s: double barrier: %s\n", t.path, in.Summary)
	case in.Recipe != "missing" && in.Recipe != "empty":
		return &exit{exitNo, fmt.Errorf("%s is no barrier but: %s: %s", t.path, in.Recipe, in.Summary)}
	}
	if err := t.print(ctx, st, text); err != nil {
		return err
	}
	if !st.Set {
		return &exit{exitNo, nil}
	}
	return nil
}
