package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/cmd/coordctl/internal/live"
	"github.com/go-coord/coord/cmd/coordctl/internal/ui"
)

// uiCommand returns the verb ui.
func (t *tool) uiCommand() *cobra.Command {
	o := ui.Options{}
	var poll bool
	cmd := t.command(verb{
		name: "ui", words: "[PATH]", root: true, short: "show a tree as a live web page, on this machine",
		long: `
It serves a page with the recipes at and below PATH, or "/": who holds and leads, who waits for
whom, how long queues are and how fast they move. The page follows each change, and works without
JavaScript as a table. Stored data is shown only with --data.

It listens on 127.0.0.1. The page has no passwords, so an address that other machines can reach
needs --allow-remote. It only shows; with --allow-actions a browser that has opened the printed
address can revoke locks, and put back or remove dead letters.

It costs one watch, and a few requests for each recipe that has changed, at most once a second.`,
		example: `
coordctl ui /app
coordctl ui --listen 127.0.0.1:8080 --allow-actions`,
		no0:   endless,
		check: func() error { return o.Check() },
		do: func(ctx context.Context, c *coord.Client) error {
			o.By = t.id
			o.Live = live.Options{Data: t.data, Poll: poll}
			o.Started = func(address string) { t.say("the page is at %s", address) }
			if err := ui.Serve(ctx, c, t.path, &o); !errors.Is(err, errLate) {
				return err
			}
			return nil
		},
	})
	t.dataFlag(cmd)
	fs := cmd.Flags()
	fs.StringVar(&o.Listen, "listen", "127.0.0.1:8765", "the `address` to listen on")
	fs.BoolVar(&o.AllowRemote, "allow-remote", false, "allow an address that other machines can reach")
	fs.StringSliceVar(&o.Hosts, "host", nil, "a further `name` by which browsers reach the page, such as that of a proxy")
	fs.BoolVar(&o.AllowActions, "allow-actions", false, "offer to revoke locks, and to put back or remove dead letters")
	fs.BoolVar(&poll, "poll", false, "read the tree every two seconds instead of watching it")
	return cmd
}
