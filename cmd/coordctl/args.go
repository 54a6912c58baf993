package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// arrange brings a command line into the order "verbs flags -- words", in which cobra
// understands all of them, and returns what follows "--" separately. So flags may stand before
// the verb too, whichever verb they belong to; a long flag may have a single dash; and a
// negative number is a word.
func arrange(root *cobra.Command, args []string) (arranged, command []string) {
	if i := slices.Index(args, "--"); i >= 0 {
		args, command = args[:i], args[i+1:]
	}
	known := make(map[string]*pflag.Flag)
	short := make(map[string]*pflag.Flag)
	collect(root, known, short)
	verb := root
	var verbs, flags, words []string
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if !strings.HasPrefix(arg, "-") || arg == "-" || arg[1] >= '0' && arg[1] <= '9' {
			if next := child(verb, arg); next != nil && len(words) == 0 {
				verb = next
				verbs = append(verbs, arg)
			} else {
				words = append(words, arg)
			}
			continue
		}
		name, _, assigned := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		flag := known[name]
		switch {
		case strings.HasPrefix(arg, "--"):
		case flag != nil:
			arg = "-" + arg
		case name != "":
			// -abc: the last of them can have a value.
			last := name[len(name)-1:]
			if len(name) > 1 && short[name[:1]] != nil && short[name[:1]].NoOptDefVal == "" {
				last = "" // -ojson
			}
			flag = short[last]
		}
		flags = append(flags, arg)
		if flag != nil && flag.NoOptDefVal == "" && !assigned && len(args) > 0 {
			flags = append(flags, args[0])
			args = args[1:]
		}
	}
	return slices.Concat(verbs, flags, []string{"--"}, words), command
}

// collect collects the flags of a command and those below it, by name and by shorthand.
func collect(c *cobra.Command, known, short map[string]*pflag.Flag) {
	c.InitDefaultHelpFlag()
	add := func(f *pflag.Flag) {
		known[f.Name] = f
		if f.Shorthand != "" {
			short[f.Shorthand] = f
		}
	}
	c.PersistentFlags().VisitAll(add)
	c.Flags().VisitAll(add)
	for _, sub := range c.Commands() {
		collect(sub, known, short)
	}
}

// child returns the command of this name directly below c, or nil.
func child(c *cobra.Command, name string) *cobra.Command {
	for _, sub := range c.Commands() {
		if sub.Name() == name || sub.HasAlias(name) {
			return sub
		}
	}
	return nil
}
