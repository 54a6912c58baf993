package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// root returns the command coordctl with all verbs.
func (t *tool) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "coordctl [flags] VERB",
		Short: "Coordination for operators and scripts",
		Long: `Coordctl sees and changes what coord keeps on ZooKeeper, etcd or PostgreSQL: locks, leaders,
queues, groups, transactions, values. It runs a command under a lock.

Flags may stand before or after the verb, up to "--". Servers, TLS and credentials also come
from the environment and the config file; see coordctl help config.`,
		Version:               version(),
		SilenceErrors:         true,
		SilenceUsage:          true,
		DisableFlagsInUseLine: true,
		CompletionOptions:     cobra.CompletionOptions{DisableDefaultCmd: true},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown(cmd, args[0])
			}
			return usage("no verb given")
		},
		Run: func(*cobra.Command, []string) {},
	}
	root.SetIn(t.stdin)
	root.SetOut(t.stdout)
	root.SetErr(t.stderr)
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	root.SetUsageTemplate(usageTemplate)
	t.addFlags(root)
	see := &cobra.Group{ID: "see", Title: "To see:"}
	act := &cobra.Group{ID: "act", Title: "To act:"}
	own := &cobra.Group{ID: "own", Title: "About coordctl:"}
	root.AddGroup(see, act, own)
	for _, c := range []struct {
		group *cobra.Group
		cmd   *cobra.Command
	}{
		{see, t.checkCommand()},
		{see, t.treeCommand()},
		{see, t.inspectCommand()},
		{see, t.watchCommand()},
		{see, t.topCommand()},
		{see, t.uiCommand()},
		{see, t.shardsCommand()},
		{act, t.lockCommand()},
		{act, t.electCommand()},
		{act, t.guardCommand()},
		{act, t.revokeCommand()},
		{act, t.queueCommand()},
		{act, t.valueCommand()},
		{act, t.counterCommand()},
		{act, t.groupCommand()},
		{act, t.barrierCommand()},
		{act, t.scheduleCommand()},
		{act, t.txCommand()},
		{act, t.pruneCommand()},
		{act, t.postgresCommand()},
		{own, t.versionCommand()},
		{nil, configTopic()},
		{own, t.completionCommand()},
	} {
		if c.group != nil {
			c.cmd.GroupID = c.group.ID
		}
		root.AddCommand(c.cmd)
	}
	root.SetHelpCommand(t.helpCommand())
	root.SetHelpCommandGroupID(own.ID)
	root.InitDefaultHelpCmd()
	root.InitDefaultVersionFlag()
	return root
}

// helpCommand returns the verb help.
func (t *tool) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [VERB]",
		Short: "show how a verb is used",
		RunE: func(cmd *cobra.Command, args []string) error {
			of := cmd.Root()
			for _, name := range args {
				next := child(of, name)
				if next == nil {
					return unknown(of, name)
				}
				of = next
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			of := cmd.Root()
			for _, name := range args {
				if of = child(of, name); of == nil {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
			}
			var names []string
			for _, sub := range of.Commands() {
				names = append(names, sub.Name()+"\t"+sub.Short)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// completionCommand returns the verb completion.
func (t *tool) completionCommand() *cobra.Command {
	cmd := t.command(verb{
		name: "completion", words: "SHELL", short: "print a script that completes command lines",
		long: "SHELL is bash, zsh, fish or powershell.",
		example: `
source <(coordctl completion bash)
coordctl completion zsh > "${fpath[1]}/_coordctl"`,
		exits: []int{},
		local: func(cmd *cobra.Command) error {
			root := cmd.Root()
			switch shell := t.values[0]; shell {
			case "bash":
				return root.GenBashCompletionV2(t.stdout, true)
			case "zsh":
				return root.GenZshCompletion(t.stdout)
			case "fish":
				return root.GenFishCompletion(t.stdout, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(t.stdout)
			default:
				return usage("completion for %q: want bash, zsh, fish or powershell", strings.ToValidUTF8(shell, "?"))
			}
		},
	})
	cmd.ValidArgs = []string{"bash", "zsh", "fish", "powershell"}
	return cmd
}

// usageTemplate is cobra's, without the flags of all verbs, which the help of coordctl shows.
const usageTemplate = `Usage:
  {{if .HasParent}}{{if .HasAvailableSubCommands}}{{.CommandPath}} VERB …{{if gt (len .Use) (len .Name)}}
  {{.UseLine}}{{end}}{{else}}{{.UseLine}}{{end}}{{else}}coordctl [FLAGS] VERB …{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{if eq (len .Groups) 0}}

Verbs:{{range $cmds}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{else}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if (and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help")))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{end}}{{if not .HasParent}}

To read on:
  coordctl help VERB     what a verb does, its exit statuses and examples
  coordctl help config   the config file and the environment{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasParent}}

Run coordctl help for the flags of all verbs.{{end}}
`

// configTopic returns the help about the config file.
func configTopic() *cobra.Command {
	return &cobra.Command{Use: "config", Short: "the config file and the environment", Long: configHelp}
}
