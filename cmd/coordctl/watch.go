package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
)

// watchCommand returns the verb watch.
func (t *tool) watchCommand() *cobra.Command {
	cmd := t.command(verb{
		name: "watch", words: "PATH", short: "print each change at a path and below",
		long: `
It prints a line for each node at PATH and below that exists, is created, changed or deleted,
until it is interrupted or --wait has passed. If PATH is missing, it says so on standard error
and waits for it.`,
		example: `coordctl watch /locks`,
		no0:     endless,
		do:      t.watch,
	})
	t.dataFlag(cmd)
	return cmd
}

// change is one line of watch as JSON.
type change struct {
	At      time.Time `json:"at"`
	Event   string    `json:"event"` // "there", "created", "changed" or "deleted"
	Path    string    `json:"path"`
	Size    int       `json:"size"`
	Session string    `json:"session,omitempty"`
	Data    []byte    `json:"data,omitempty"`
}

// watch prints the changes at the path and below.
func (t *tool) watch(ctx context.Context, c *coord.Client) error {
	cache := coord.NewCache(c, t.path, nil)
	ctx, cancel := context.WithCancelCause(ctx)
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		cancel(cache.Run(ctx))
	}()
	defer func() {
		cancel(nil)
		<-ran
	}()
	select {
	case <-cache.Synced():
		if _, ok := cache.Get(t.path); !ok {
			t.say("%s is missing; waiting for it", t.path)
		}
	case <-ctx.Done():
	}
	out := output{ctx, t.stdout}
	e := json.NewEncoder(out)
	first := true
	for batch, err := range cache.Events(ctx) {
		if err != nil {
			return err
		}
		for _, ev := range batch {
			ch := change{At: time.Now().UTC(), Event: ev.Kind.String(), Path: ev.Path, Size: len(ev.Node.Data)}
			if first {
				ch.Event = "there"
			}
			if owner := ev.Node.Stat.EphemeralOwner; owner != 0 {
				ch.Session = fmt.Sprintf("0x%x", uint64(owner))
			}
			if t.data {
				ch.Data = ev.Node.Data
			}
			if t.json {
				err = e.Encode(ch)
			} else {
				_, err = fmt.Fprintln(out, ch.String())
			}
			if err != nil {
				return err
			}
		}
		first = false
	}
	return watched(ctx)
}

// watched returns the error of a watch whose context has ended: none if --wait has passed.
func watched(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, errLate) {
		return err
	}
	return nil
}

func (c *change) String() string {
	s := fmt.Sprintf("%s  %-7s  %s", c.At.Format(time.RFC3339), c.Event, pathText(c.Path))
	if c.Event != "deleted" {
		s += "  " + plural(c.Size, "byte")
	}
	if c.Session != "" {
		s += "  " + c.Session
	}
	if len(c.Data) > 0 {
		s += "  " + strconv.Quote(string(c.Data))
	}
	return s
}
