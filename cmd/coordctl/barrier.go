package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
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
				do: func(ctx context.Context, c *coord.Client) error {
					if err := barrier(c).Set(ctx); err != nil {
						return answered(err)
					}
					return t.print(ctx, barrierState{Path: t.path, Set: true}, "")
				},
			}),
			t.command(verb{
				name: "remove", words: "PATH", short: "remove a barrier, so that all waiters pass, after a question",
				example: `coordctl barrier remove /maintenance --yes`,
				exits:   []int{exitNo},
				do: func(ctx context.Context, c *coord.Client) error {
					if err := t.confirm(ctx, "remove the barrier %s, so that all waiters pass", t.path); err != nil {
						return err
					}
					if err := barrier(c).Remove(ctx); err != nil {
						return answered(err)
					}
					return t.print(ctx, barrierState{Path: t.path}, "")
				},
			}),
			t.command(verb{
				name: "wait", words: "PATH", short: "wait until a barrier is not set",
				long:    `With --wait 0 it looks once, and does not wait.`,
				example: `coordctl barrier wait /startup --wait 1m`,
				exits:   []int{exitLate},
				do:      t.awaitBarrier,
			}),
			t.command(verb{
				name: "status", words: "PATH", short: "say whether a barrier is set, or how a double barrier stands",
				long: `
The exit status is 1 if the barrier is not set, or no round of a double barrier is open. A node of
another program, such as a barrier of Curator, is a barrier that is set if waiters stop at it.`,
				example: `coordctl barrier status /maintenance`,
				exits:   []int{exitNo},
				do:      t.barrierStatus,
			}),
		},
	})
}

func (t *tool) awaitBarrier(ctx context.Context, c *coord.Client) error {
	var err error
	if t.wait == 0 {
		err = t.lookAtBarrier(ctx, c)
	} else {
		stop := t.progress("waiting at the barrier %s", t.path)
		err = coord.NewBarrier(c, t.path, nil).Wait(ctx)
		stop()
	}
	if err != nil {
		return err
	}
	return t.print(ctx, barrierState{Path: t.path}, "")
}

// lookAtBarrier is Wait without the wait.
func (t *tool) lookAtBarrier(ctx context.Context, c *coord.Client) error {
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	set, err := t.barrierSet(ctx, c)
	if err == nil && set {
		err = errLate
	}
	return err
}

// waitKey is the key of the function that a context has for the beginning of a wait.
type waitKey struct{}

// onWait is the Trace of the client. It tells the caller that its call has to wait.
func onWait(ctx context.Context, e trace.Event) {
	if begun, ok := ctx.Value(waitKey{}).(func()); ok {
		if _, waits := e.(trace.WaitBegan); waits {
			begun()
		}
	}
}

var errWaits = errors.New("the barrier is set, a waiter would wait")

// barrierSet looks once whether a waiter stops at the barrier. It lets Wait decide: a waiter also stops
// at nodes that inspect does not call a barrier, such as those of Curator. It needs a client with
// onWait as Trace.
func (t *tool) barrierSet(ctx context.Context, c *coord.Client) (bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx = context.WithValue(ctx, waitKey{}, func() { cancel(errWaits) })
	err := coord.NewBarrier(c, t.path, nil).Wait(ctx)
	if errors.Is(err, errWaits) {
		return true, nil
	}
	return false, err
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
	if st.Double != nil {
		st.Set = st.Double.Open
		text = fmt.Sprintf("%s: double barrier: %s\n", t.path, in.Summary)
	} else {
		var kind *coord.KindError
		st.Set, err = t.barrierSet(ctx, c)
		switch {
		case errors.As(err, &kind) && in.Recipe == "empty" && kind.Found == string(layout.KindDoubleBarrier):
		case errors.As(err, &kind):
			return &exit{exitNo, fmt.Errorf("%s is not a barrier; found %s: %s", t.path, in.Recipe, in.Summary)}
		case err != nil:
			return err
		case st.Set && st.Barrier != nil:
			text = fmt.Sprintf("%s: %s, since %s\n", t.path, in.Summary, stamp(st.Barrier.Since))
		case st.Set:
			text = fmt.Sprintf("%s: set, by the node of another program: %s: %s\n", t.path, in.Recipe, in.Summary)
		}
	}
	if err := t.print(ctx, st, text); err != nil {
		return err
	}
	if !st.Set {
		return &exit{exitNo, nil}
	}
	return nil
}
