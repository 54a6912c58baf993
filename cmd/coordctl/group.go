package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
)

// groupCommand returns the verb group and those below it.
func (t *tool) groupCommand() *cobra.Command {
	list := t.command(verb{
		name: "list", words: "PATH", short: "list the members of a group",
		long:    `The values of the members are shown only with --data.`,
		example: `coordctl group list /services/mail --data`,
		do:      t.listMembers,
	})
	watch := t.command(verb{
		name: "watch", words: "PATH", short: "print the members of a group, and each that joins or leaves",
		long:    `It ends when it is interrupted or --wait has passed.`,
		example: `coordctl group watch /services/mail`,
		no0:     endless,
		do:      t.watchMembers,
	})
	join := t.command(verb{
		name: "join", words: "PATH ID [VALUE]", short: "be a member of a group until interrupted",
		long: `
It is a member until it is interrupted or --wait has passed, also across lost sessions, and then
leaves. If another member has the ID, the exit status is 1.`,
		example: `coordctl group join /services/mail maintenance 10.0.0.7:25`,
		exits:   []int{exitNo},
		no0:     endless,
		do:      t.join,
	})
	t.dataFlag(list)
	t.dataFlag(watch)
	return t.command(verb{name: "group", short: "see and join the members of a group", below: []*cobra.Command{list, watch, join}})
}

func (t *tool) group(c *coord.Client) *coord.Group[[]byte] {
	return coord.NewGroup(c, t.path, &coord.GroupOptions[[]byte]{Codec: coord.Bytes()})
}

// member is a coord.Member as JSON.
type member struct {
	At      time.Time `json:"at,omitzero"`    // of watch
	Event   string    `json:"event,omitzero"` // of watch: "there", "joined" or "left"
	ID      string    `json:"id"`
	Token   int64     `json:"token"`
	Session string    `json:"session"`
	Since   time.Time `json:"since"`
	Size    int       `json:"size"`
	Unread  string    `json:"unread,omitempty"`
	*content
}

func (t *tool) member(m coord.Member[[]byte]) member {
	j := member{ID: m.ID, Token: m.Token, Session: hexSession(m.Session), Since: m.Since.UTC(), Size: len(m.Value)}
	if m.Err != nil {
		j.Unread = m.Err.Error()
	} else if t.data {
		data := contentOf(m.Value)
		j.content = &data
	}
	return j
}

func (m *member) value() string {
	switch {
	case m.Unread != "":
		return "not read: " + visible(m.Unread)
	case m.content != nil:
		return m.content.String()
	}
	return plural(m.Size, "byte")
}

func (t *tool) listMembers(ctx context.Context, c *coord.Client) error {
	members, err := t.group(c).Members(ctx)
	if err != nil {
		return err
	}
	all := []member{}
	rows := [][]string{{"id", "since", "session", "token", "value"}}
	for _, m := range members {
		j := t.member(m)
		all = append(all, j)
		rows = append(rows, []string{printable(j.ID), stamp(j.Since), j.Session, strconv.FormatInt(j.Token, 10), j.value()})
	}
	if len(all) == 0 && !t.json {
		t.say("%s has no members", t.path)
	}
	return t.report(ctx, all, table(rows))
}

func (t *tool) watchMembers(ctx context.Context, c *coord.Client) error {
	first := true
	for u := range t.group(c).Watch(ctx) {
		if u.Err != nil {
			return u.Err
		}
		at := time.Now().UTC()
		tell := func(event string, members []coord.Member[[]byte]) error {
			for _, m := range members {
				j := t.member(m)
				j.At, j.Event = at, event
				if err := t.print(ctx, j, strings.Join([]string{stamp(at), fmt.Sprintf("%-6s", event), printable(j.ID), j.Session, j.value()}, "  ")+"\n"); err != nil {
					return err
				}
			}
			return nil
		}
		joined := "joined"
		if first {
			joined = "there"
			if len(u.Members) == 0 {
				t.say("%s has no members; waiting for the first", t.path)
			}
		}
		first = false
		if err := errors.Join(tell("left", u.Left), tell(joined, u.Joined)); err != nil {
			return err
		}
	}
	return watched(ctx)
}

func (t *tool) join(ctx context.Context, c *coord.Client) error {
	var value []byte
	if len(t.values) > 1 {
		value = []byte(t.values[1])
	}
	m, err := t.group(c).Join(ctx, t.values[0], value)
	if err != nil {
		return answered(err)
	}
	defer m.Leave()
	if err := t.print(ctx, map[string]string{"id": m.ID(), "event": "joined"}, "joined "+printable(m.ID())+"\n"); err != nil {
		return err
	}
	select {
	case <-m.Done():
		return m.Err()
	case <-ctx.Done():
		return watched(ctx)
	}
}
