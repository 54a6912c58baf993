package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/cmd/coordctl/internal/live"
	"github.com/go-coord/coord/cmd/coordctl/internal/top"
)

// topCommand returns the verb top.
func (t *tool) topCommand() *cobra.Command {
	var o live.Options
	cmd := t.command(verb{
		name: "top", words: "[PATH]", root: true, short: "show a tree live in the terminal: holders, waiters, leaders, queues with rates",
		long: `
It shows the recipes at and below PATH, or "/", a row each: who holds a lock or leads and since when,
how many wait and who is next, how long a queue is, how fast items come and go, and how long the
oldest one has waited. It follows each change, and says when it has lost contact. The keys filter,
sort, and open a recipe; ? lists them. It only shows. Stored data is shown only with --data.

It needs a terminal. Elsewhere --once prints the table once, and --json prints each view as JSON, a
line each, until it is interrupted or --wait has passed.

It costs one watch, and a few requests for each recipe that has changed, at most once a second.`,
		example: `
coordctl top /locks
coordctl top --once
coordctl top /queues --once --json`,
		no0: endless,
		do:  func(ctx context.Context, c *coord.Client) error { o.Data = t.data; return t.top(ctx, c, &o) },
	})
	t.dataFlag(cmd)
	cmd.Flags().BoolVar(&t.once, "once", false, "print the table once, and end")
	cmd.Flags().BoolVar(&o.Poll, "poll", false, "read the tree every two seconds instead of watching it")
	return cmd
}

func (t *tool) top(ctx context.Context, c *coord.Client, o *live.Options) error {
	if !t.once && !t.json {
		return t.topScreen(ctx, c, o)
	}
	stop := t.progress("reading the tree below %s", t.path)
	out := output{ctx, t.stdout}
	err := top.Follow(ctx, c, t.path, o, func(m *live.Model, v *live.Snapshot) (bool, error) {
		stop()
		stop = func() {}
		if t.json {
			return !t.once, json.NewEncoder(out).Encode(v)
		}
		_, err := io.WriteString(out, top.Page(m, v))
		return false, err
	})
	stop()
	if !t.once && errors.Is(err, errLate) {
		return nil
	}
	return err
}

func (t *tool) topScreen(ctx context.Context, c *coord.Client, o *live.Options) error {
	switch {
	case !onTerminal(t.stdin) || !onTerminal(t.stdout):
		return usage("top needs a terminal; --once prints the table once, --json prints each view")
	case os.Getenv("TERM") == "dumb" || os.Getenv("TERM") == "":
		return usage("top needs a terminal that can move its cursor, and TERM is %q; --once prints the table once", os.Getenv("TERM"))
	case t.verbose && onTerminal(t.stderr):
		return usage("--verbose would write over the screen; send standard error to a file")
	}
	in, out := t.stdin.(*os.File), t.stdout.(*os.File)
	err := top.Run(ctx, c, t.path, in, out, &top.Options{Live: *o, Colour: os.Getenv("NO_COLOR") == ""})
	switch {
	case errors.Is(err, top.ErrInterrupted):
		return interrupted(syscall.SIGINT)
	case errors.Is(err, errLate):
		return nil
	}
	return err
}
