package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/inspect"
)

// revokeCommand returns the verb revoke.
func (t *tool) revokeCommand() *cobra.Command {
	cmd := t.command(verb{
		name: "revoke", words: "PATH", short: "ask the holder of a lock, or a leader, to give it up, or force it to",
		long: `
PATH is that of a Mutex, an RWMutex, an Election, or one shard of Shards (PATH/shards/0). The
holder, of an election the leader, is asked to release the lock, and coordctl waits until it has, or --wait has passed. A
holder that is coordctl lock or elect ends its command. With --force the lock
is taken away after --after: the next waiter is granted, perhaps before the holder learns of the
loss. A question comes first. If another holder has the lock when it is answered, nothing is done,
and the exit status is 1. --wait counts from the answer, and with --force --after is added to it.`,
		example: `
coordctl revoke /locks/report --reason "maintenance" --wait 10s
coordctl revoke /locks/report --force --after 1s --yes`,
		exits: []int{exitNo, exitLate},
		no0:   "a holder takes a moment to release the lock",
		check: func() error {
			if t.after < 0 {
				return fmt.Errorf("--after %v: negative", t.after)
			}
			return nil
		},
		signals: true,
		do:      t.revoke,
	})
	f := cmd.Flags()
	f.BoolVar(&t.force, "force", false, "take the lock away after --after, whether the holder consents or not")
	f.DurationVar(&t.after, "after", 10*time.Second, "with --force: how long the holder has to consent")
	t.requestFlags(cmd)
	return cmd
}

// requestFlags defines the flags of a request to a holder.
func (t *tool) requestFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.by, "by", defaultID(), "the `name` of the requester, for the holder to read")
	cmd.Flags().StringVar(&t.reason, "reason", "", "the reason, as `text` for the holder to read")
}

func (t *tool) revoke(waiting context.Context, c *coord.Client) error {
	var h *holders
	look := func(ctx context.Context) (err error) {
		h, err = t.holders(ctx, c)
		return err
	}
	if err := t.await(waiting, look); err != nil {
		return err
	}
	o := &coord.RevokeOptions{By: t.by, Reason: t.reason}
	more := time.Duration(0)
	if t.force {
		more = t.after
		o.ForceAfter = max(t.after, 1)
		err := t.await(context.WithoutCancel(waiting), func(ctx context.Context) error {
			return t.confirm(ctx, "take %s from %s by force after %v", t.path, h.text, t.after)
		})
		if err != nil {
			return err
		}
	}
	waiting, cancel := t.waitAnew(waiting, more)
	defer cancel()
	return t.await(waiting, func(ctx context.Context) error {
		if t.force {
			asked := h.names
			if err := look(ctx); err != nil {
				return err
			}
			for _, name := range h.names {
				if !slices.Contains(asked, name) {
					return &exit{exitNo, fmt.Errorf("%s: the holder has changed to %s; nothing was done", t.path, h.text)}
				}
			}
		}
		defer t.progress("waiting for %s to release %s", h.text, t.path)()
		begun := time.Now()
		if err := h.revoke(ctx, o); err != nil {
			return err
		}
		took := time.Since(begun)
		return t.print(ctx, map[string]any{"path": t.path, "released": true, "seconds": took.Seconds()},
			fmt.Sprintf("%s: %s released it, or lost it, after %v\n", t.path, h.text, took.Round(time.Millisecond)))
	})
}

// holders are those of a lock that can be revoked. There is at least one.
type holders struct {
	names  []string // of their nodes
	text   string   // who they are
	revoke func(context.Context, *coord.RevokeOptions) error
}

// holders reads who holds the lock.
func (t *tool) holders(ctx context.Context, c *coord.Client) (*holders, error) {
	in, err := inspect.Path(ctx, c, t.path, nil)
	if err != nil {
		return nil, err
	}
	h := &holders{revoke: coord.NewMutex(c, t.path, nil).Revoke}
	line := in.Mutex
	if in.RWMutex != nil {
		line, h.revoke = in.RWMutex, coord.NewRWMutex(c, t.path, nil).Revoke
	}
	if in.Election != nil {
		line, h.revoke = in.Election, coord.NewElection(c, t.path, nil).Revoke
	}
	switch {
	case t.resign && in.Recipe != "election" && in.Recipe != "missing" && in.Recipe != "empty":
		return nil, &exit{exitNo, fmt.Errorf("%s is not an election; found %s: %s", t.path, in.Recipe, in.Summary)}
	case in.Recipe != "election" && in.Recipe != "mutex" && in.Recipe != "rwmutex" && in.Recipe != "missing" && in.Recipe != "empty":
		return nil, &exit{exitNo, fmt.Errorf("%s is not a lock that can be revoked; found %s: %s", t.path, in.Recipe, in.Summary)}
	case line == nil || line.Holders == 0:
		return nil, &exit{exitNo, fmt.Errorf("%s: no client holds it", t.path)}
	}
	for _, n := range line.Contenders {
		if !n.Holds {
			continue
		}
		if h.names = append(h.names, n.Name); h.text == "" {
			h.text = holderName(&n)
		}
	}
	if line.Holders > 1 {
		h.text += " and " + strconv.Itoa(line.Holders-1) + " more"
	}
	return h, nil
}

// holderName returns how a contender is called.
func holderName(h *inspect.Contender) string {
	if h.ID != "" {
		return printable(h.ID)
	}
	return "session " + h.Session
}

// shardsCommand returns the verb shards.
func (t *tool) shardsCommand() *cobra.Command {
	return t.command(verb{
		name: "shards", words: "PATH", short: "list the shards of a Shards with their owners",
		example: `coordctl shards /shards/timers`,
		exits:   []int{exitNo},
		do:      t.shards,
	})
}

func (t *tool) shards(ctx context.Context, c *coord.Client) error {
	in, err := inspect.Path(ctx, c, t.path, &inspect.Options{MaxReads: 500_000})
	if err != nil {
		return err
	}
	if in.Shards == nil {
		return &exit{exitNo, fmt.Errorf("%s has no shards; found %s: %s", t.path, in.Recipe, in.Summary)}
	}
	rows := [][]string{{"shard", "owner", "token", "waiting"}}
	for _, s := range in.Shards.Shards {
		token := "-"
		if s.Token != 0 {
			token = strconv.FormatInt(s.Token, 10)
		}
		rows = append(rows, []string{strconv.Itoa(s.Index), dash(s.ID), token, strconv.Itoa(s.Waiting)})
	}
	return t.report(ctx, in.Shards, in.Summary+"\n\n"+table(rows))
}
