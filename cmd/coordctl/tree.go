package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/layout"
)

// treeCommand returns the verb tree.
func (t *tool) treeCommand() *cobra.Command {
	cmd := t.command(verb{
		name: "tree", words: "[PATH]", root: true, short: "list the recipes below a path, a line each: holders, leaders, lengths, waiters",
		long: `
PATH is / by default. A line has the path, the kind of the recipe, and what it is about: who holds
a lock or leads and since when, how many wait, how long a queue is and how old its oldest ready
item. It only reads. With --json it is the report of inspect.Tree.`,
		example: `
coordctl tree
coordctl tree /locks --json`,
		check: func() error {
			if t.depth < 0 {
				return fmt.Errorf("--depth %d: negative", t.depth)
			}
			return nil
		},
		do: t.tree,
	})
	cmd.Flags().IntVar(&t.depth, "depth", 0, "how many `levels` below PATH it looks at (default 32)")
	return cmd
}

func (t *tool) tree(ctx context.Context, c *coord.Client) error {
	stop := t.progress("reading the tree below %s", t.path)
	v, err := inspect.Tree(ctx, c, t.path, &inspect.Options{MaxDepth: t.depth})
	stop()
	if err != nil {
		return err
	}
	for _, note := range v.Notes {
		t.say("%s", note)
	}
	if v.Truncated {
		t.say("the output is incomplete: there are more levels or nodes")
	}
	type line struct{ path, kind, text string }
	var lines []line
	for _, dir := range v.Directories {
		lines = append(lines, line{dir, "directory", ""})
	}
	width, kinds := 0, 0
	for _, r := range v.Reports {
		lines = append(lines, line{r.Path, r.Recipe, about(r, v.At)})
	}
	slices.SortFunc(lines, func(a, b line) int { return slices.Compare(strings.Split(a.path, "/"), strings.Split(b.path, "/")) })
	for i := range lines {
		l := &lines[i]
		l.path = pathText(layout.Namespace(t.namespace).Rel(l.path)) // as verbs take it
		width, kinds = max(width, len([]rune(l.path))), max(kinds, len(l.kind))
	}
	var b strings.Builder
	for _, l := range lines {
		text := l.path
		if l.text != "" || l.kind != "" {
			kind := l.kind + strings.Repeat(" ", kinds-len(l.kind))
			if l.kind != "directory" {
				kind = t.paint(blue, kind)
			}
			text += strings.Repeat(" ", width-len([]rune(l.path))) + "  " + kind + "  " + l.text
		}
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	if len(lines) == 0 && !t.json {
		t.say("there is nothing at %s", t.path)
	}
	return t.report(ctx, v, b.String())
}

// pathText returns a path that cannot confuse a terminal.
func pathText(path string) string {
	if text := printable(path); !strings.Contains(path, " ") || text != `"`+path+`"` {
		return text
	}
	return path
}

// about returns what tree says of a recipe.
func about(r *inspect.Report, at time.Time) string {
	for kind, line := range map[string]*inspect.Line{"mutex": r.Mutex, "rwmutex": r.RWMutex, "election": r.Election} {
		if kind != r.Recipe {
			continue
		}
		for _, h := range line.Contenders {
			if h.Holds {
				return aboutHolder(kind, line, &h, at)
			}
		}
	}
	if q := r.Queue; q != nil && !q.Oldest.IsZero() {
		return r.Summary + ", oldest ready for " + age(at.Sub(q.Oldest))
	}
	return r.Summary
}

// aboutHolder returns what tree says of a lock or an election with a holder.
func aboutHolder(kind string, line *inspect.Line, h *inspect.Contender, at time.Time) string {
	who := holderName(h)
	if !h.Since.IsZero() {
		who += " for " + age(at.Sub(h.Since))
	}
	text := "held by " + who
	switch {
	case kind == "election":
		text = "led by " + who
		if h.Ready {
			text += ", ready"
		}
	case kind == "rwmutex":
		text = "held by " + plural(line.Holders, h.Role) + ": " + who
	}
	if h.Revocation != nil {
		text += ", asked to release it"
	}
	switch line.Waiting {
	case 0:
		return text + ", no waiters"
	case 1:
		return text + ", 1 waits"
	}
	return text + fmt.Sprintf(", %d wait", line.Waiting)
}

// age returns a duration for people. The clocks of client and service can differ, so it can be
// negative.
func age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}
