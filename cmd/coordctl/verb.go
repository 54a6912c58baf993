package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// verb describes a verb of coordctl. Its command is made by tool.command.
type verb struct {
	name    string
	words   string      // its arguments, such as "PATH [VALUE…]"
	root    bool        // PATH can be "/", which is its default
	runs    bool        // a command follows after "--"
	bare    func() bool // if not nil and true, no command follows although runs is set
	signals bool        // do receives the signals
	no0     string      // why the verb refuses --wait 0; empty if it does not
	backend string      // the only one that the verb is for; empty for any
	short   string
	long    string // what follows short in the help; may be empty
	example string // lines
	exits   []int  // the statuses in the help besides exitUsage, exitFailed and exitSignal
	below   []*cobra.Command

	// check, unless nil, checks the flags and words of the verb before a client is opened.
	check func() error

	// do is the work, with a client. The context ends with a signal and after --wait. The
	// words are in t.path and t.values. If the verb runs a command or has signals set, the
	// context ends only after --wait, and do receives the signals.
	do func(ctx context.Context, c *coord.Client) error

	// local is the work of a verb that needs no service.
	local func(cmd *cobra.Command) error
}

// endless is why verbs refuse --wait 0 that run until it has passed.
const endless = "it would end before it has begun"

// command returns the command of a verb.
func (t *tool) command(v verb) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   strings.TrimSpace(v.name + " " + v.words),
		Short:                 v.short,
		Long:                  v.help(),
		Example:               indent(v.example),
		DisableFlagsInUseLine: true,
	}
	cmd.AddCommand(v.below...)
	words := strings.Fields(v.words)
	if v.runs {
		cmd.Use += " -- COMMAND [ARGUMENT…]"
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := t.accept(cmd, words, &v, args); err != nil || v.check == nil {
			return err
		}
		if err := v.check(); err != nil {
			return usage("%w", err)
		}
		return nil
	}
	run := func(cmd *cobra.Command, args []string) error {
		switch {
		case v.local != nil:
			return v.local(cmd)
		case len(args) == 0 && len(v.below) > 0:
			return cmd.Help()
		case v.runs || v.signals:
			return t.connect(cmd.Context(), v.do)
		}
		return t.connect(cmd.Context(), func(waiting context.Context, c *coord.Client) error {
			return t.await(waiting, func(ctx context.Context) error { return v.do(ctx, c) })
		})
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if late := (*exit)(nil); errors.As(err, &late) && late.status == exitLate && !slices.Contains(v.exits, exitLate) {
			// A verb that waits for nothing but the service has lost contact.
			return &exit{exitFailed, late.err}
		}
		return err
	}
	return cmd
}

// help returns the long text of a verb.
func (v *verb) help() string {
	text := strings.ToUpper(v.short[:1]) + v.short[1:] + "."
	if v.long != "" {
		text += "\n\n" + strings.TrimSpace(v.long)
	}
	if v.no0 != "" {
		text += "\n\nIt refuses --wait 0: " + v.no0 + "."
	}
	if v.do == nil && v.exits == nil {
		return text
	}
	text += "\n\nExit status:\n  0    success\n"
	exits := append(v.exits, exitUsage)
	if v.do != nil {
		exits = append(exits, exitFailed, exitSignal)
	}
	slices.Sort(exits)
	for _, n := range exits {
		text += fmt.Sprintf("  %-3d  %s\n", n, statuses[n])
	}
	if v.runs {
		text += "  otherwise the status of COMMAND, or 128 plus the number of the signal that killed it\n"
	}
	return strings.TrimSpace(text)
}

func indent(lines string) string {
	lines = strings.TrimSpace(lines)
	if lines == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(lines, "\n", "\n  ")
}

// accept checks the words of a verb, and keeps them.
func (t *tool) accept(cmd *cobra.Command, words []string, v *verb, args []string) error {
	name := strings.TrimPrefix(cmd.CommandPath(), "coordctl ")
	if len(args) > 0 && cmd.HasSubCommands() && (len(words) == 0 || !strings.HasPrefix(args[0], "/")) {
		return unknown(cmd, args[0])
	}
	if len(args) == 0 && cmd.HasSubCommands() {
		return nil // prints the help
	}
	t.only = v.backend
	if err := t.checkFlags(); err != nil {
		return err
	}
	if err := cmd.ValidateFlagGroups(); err != nil {
		return usage("%w", err)
	}
	if v.no0 != "" && t.wait == 0 {
		return usage("%s --wait 0: %s", name, v.no0)
	}
	runs := v.runs && (v.bare == nil || !v.bare())
	switch {
	case runs && len(args) > 0 && len(t.dashed) == 0:
		if len(args) > 1 {
			return usage("unexpected argument %q; a command comes after --", args[1])
		}
		return usage("%s needs a command after --", name)
	case !runs && len(words) < 2 && t.dashed != nil:
		return usage("%s takes no command", name)
	case !runs:
		args, t.dashed = append(args, t.dashed...), nil // words that begin with a dash
	}
	for i, word := range words {
		if i >= len(args) && !strings.HasPrefix(word, "[") {
			return usage("%s needs %s", name, article(word))
		}
	}
	if most := len(words); len(args) > most && (most == 0 || !strings.HasSuffix(words[most-1], "…]")) {
		return usage("unexpected argument %q", args[most])
	}
	if len(args) == 0 && v.root {
		args = []string{"/"}
	}
	if len(words) > 0 && strings.Contains(words[0], "PATH") {
		if args[0] == "/" && v.root {
			t.path = "/"
			return nil
		}
		if err := backend.CheckPath(args[0]); err != nil {
			return usage("%w", err)
		}
		t.path, t.values = args[0], args[1:]
		return nil
	}
	t.values = args
	return nil
}

func article(word string) string {
	if strings.ContainsAny(word[:1], "AEIOU") {
		return "an " + word
	}
	return "a " + word
}

// unknown returns the error for a verb that is not there.
func unknown(cmd *cobra.Command, name string) error {
	text := fmt.Sprintf("unknown command %q", strings.TrimSpace(strings.TrimPrefix(cmd.CommandPath(), "coordctl")+" "+name))
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, ", ") + "?"
	}
	return usage("%s", text)
}
