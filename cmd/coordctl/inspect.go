package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/inspect"
)

// inspectCommand returns the verb inspect.
func (t *tool) inspectCommand() *cobra.Command {
	cmd := t.command(verb{
		name: "inspect", words: "PATH", root: true, short: "show what a path holds: the recipe, its holders, the waiters",
		long: `
It names the recipe at PATH, its holders, and which waiter waits for which. It only reads.
Stored data is shown only with --data. With --json the report is that of package inspect.`,
		example: `
coordctl inspect /locks/report
coordctl inspect /queues/mail --json`,
		do: t.inspect,
	})
	t.dataFlag(cmd)
	return cmd
}

// dataFlag defines the flag of verbs that can show stored data.
func (t *tool) dataFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&t.data, "data", false, "show stored data, which can be secret")
}

// inspect shows the state of the path.
func (t *tool) inspect(ctx context.Context, c *coord.Client) error {
	in, err := inspect.Path(ctx, c, t.path, &inspect.Options{Data: t.data})
	if err != nil {
		return err
	}
	head, rest, _ := strings.Cut(in.String(), "\n")
	return t.report(ctx, in, t.paint(bold, head)+"\n"+rest)
}
