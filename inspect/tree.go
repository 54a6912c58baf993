package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

const (
	defaultTreeReads = 10_000
	defaultDepth     = 32
	mostBelow        = 100 // nodes of a directory that its Report describes
	mostNotes        = 20  // of a Survey
)

// A Survey lists the recipes at and below a path. Its JSON has stable names in lower case;
// String is a text for people.
type Survey struct {
	Path  string    `json:"path"`  // absolute, the namespace included
	At    time.Time `json:"at"`    // when it was read, by this client's clock
	Reads int       `json:"reads"` // of nodes and lists, which it took

	// Truncated reports that MaxReads or MaxDepth was reached, or that a Report is
	// truncated.
	Truncated bool     `json:"truncated,omitempty"`
	Notes     []string `json:"notes,omitempty"` // such as paths without permission; the first 20

	// Reports describes each recipe, in the order of their paths: a path comes before
	// those below it.
	Reports []*Report `json:"reports"`

	// Directories are the paths of nodes that are of no recipe and have nodes below
	// them, in the same order.
	Directories []string `json:"directories"`
}

// Tree describes the recipes at and below a path, which is below the client's namespace or "/".
// It walks down from the path, describes each recipe as Path does, and continues below nodes that
// belong to no recipe. The inner nodes of a recipe are described with it, and are not recipes of
// their own. Nodes that the service or this library keeps for itself, such as /zookeeper, are left
// out.
//
// Tree only reads, after one Sync. Like Path it reads the nodes at different moments, and begins
// again if the session is lost. A path without a node is not an error: the Survey is empty.
// The errors are those of Path.
//
// Each node outside recipes costs a read, and a second one if it has children; recipes cost what
// Path costs. If the service has batches, Tree describes 256 recipes at a time and makes their
// reads together, up to 128 in one request (ZooKeeper: 64). Without Options.Data it still reads
// the data of values to tell counters from them.
func Tree(ctx context.Context, c *coord.Client, path string, o *Options) (*Survey, error) {
	const op = "survey"
	full, root, err := place(c, op, path)
	if err != nil {
		return nil, err
	}
	opts, err := o.withDefaults(op, full, defaultTreeReads)
	if err != nil {
		return nil, err
	}
	v, err := onSession(ctx, c, func(s backend.Session) (*Survey, error) {
		w := &walker{
			s: &pool{Session: s}, root: root, data: opts.Data, at: time.Now().UTC(), budget: &budget{left: opts.MaxReads},
			out: &Survey{Path: full, Reports: []*Report{}, Directories: []string{}},
		}
		err := w.walk(ctx, full, opts.MaxDepth)
		return w.out, err
	})
	if err != nil {
		return nil, &backend.Error{Op: op, Path: full, Err: err}
	}
	return v, nil
}

// place returns the absolute path of a path, and the client's namespace.
func place(c *coord.Client, op, path string) (full, root string, err error) {
	full, ns, err := layout.Place(c.FullPath, path)
	if e := (*backend.Error)(nil); errors.As(err, &e) {
		return "", "", &backend.Error{Op: op, Path: e.Path, Err: e.Err}
	}
	return full, string(ns), err
}

// under returns the path of a node below dir.
func under(dir, name string) string { return strings.TrimSuffix(dir, "/") + "/" + name }

// reserved returns what a node is that no recipe can be at, or "".
func (w *walker) reserved(path string) string {
	switch {
	case base(path) == "_coord":
		return "the records of this library"
	case w.s.CheckPath(path) != nil && backend.CheckPath(path) == nil:
		return "kept by the service"
	case w.s.CheckPath(path) != nil:
		return "a name that cannot be used"
	}
	return ""
}

// A walker is one call of Tree under way, on one session.
type walker struct {
	s      *pool
	root   string
	data   bool
	at     time.Time
	budget *budget
	out    *Survey
}

// walk describes path and what is below it, level by level.
func (w *walker) walk(ctx context.Context, path string, depth int) error {
	v := w.out
	v.At = w.at
	if err := w.s.Sync(ctx, path); err != nil {
		return err
	}
	level := []string{path}
	for n := 0; len(level) > 0; n++ {
		if n > depth {
			v.Truncated = true
			break
		}
		all, err := w.describe(ctx, level)
		if err != nil {
			return err
		}
		if n == 0 && all[0].denied {
			return backend.ErrDenied
		}
		next := []string{}
		for i, f := range all {
			switch {
			case f.denied:
				v.note("no permission to read %s", printable(level[i]))
			case f.in == nil:
			case f.in.Recipe == "directory":
				v.Directories = append(v.Directories, level[i])
			default:
				v.Reports = append(v.Reports, f.in)
				v.Truncated = v.Truncated || f.in.Truncated
			}
			for _, name := range f.below {
				if child := under(level[i], name); w.reserved(child) == "" {
					next = append(next, child)
				}
			}
		}
		level = next
	}
	v.Truncated = v.Truncated || w.budget.short
	v.Reads = w.budget.reads
	slices.SortFunc(v.Reports, func(a, b *Report) int { return comparePaths(a.Path, b.Path) })
	slices.SortFunc(v.Directories, comparePaths)
	return nil
}

func (v *Survey) note(format string, args ...any) {
	if len(v.Notes) < mostNotes {
		v.Notes = append(v.Notes, fmt.Sprintf(format, args...))
	}
}

// comparePaths orders paths such that those below a path follow it.
func comparePaths(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

// found is what there is at a path.
type found struct {
	in     *Report  // nil: there is no node, or the limit was reached
	below  []string // names of nodes that belong to no recipe
	denied bool
}

// describe describes paths.
func (w *walker) describe(ctx context.Context, paths []string) ([]found, error) {
	all := make([]found, len(paths))
	tops := make([]seen, len(paths))
	lists := make([]children, len(paths))
	err := w.s.each(ctx, len(paths), func(ctx context.Context, i int) error {
		x := w.inspector(paths[i])
		var err error
		if tops[i], err = x.get(ctx, paths[i], true); err != nil {
			return err
		}
		top := &tops[i]
		switch {
		case top.gone || top.skip:
			return nil
		case top.unread != "" && (top.stat.Czxid == 0 || top.stat.NumChildren == 0):
			all[i].denied = true
			return nil
		}
		l := &lists[i]
		if top.stat.NumChildren > 0 {
			if l.names, l.ok, err = x.list(ctx, paths[i]); err != nil {
				return err
			}
			if !l.ok {
				all[i].denied = len(x.in.Notes) > 0
				return nil
			}
		}
		all[i].in = x.in
		if err := x.describe(ctx, l.names, top.stat, top); err != nil {
			return err
		}
		x.in.Reads = x.reads
		all[i].below = x.below
		return nil
	})
	return all, err
}

// inspector returns an inspector of a path.
func (w *walker) inspector(path string) *inspector {
	return &inspector{
		s: w.s, dir: strings.TrimSuffix(path, "/"), root: w.root, data: w.data, left: defaultReads, shared: w.budget,
		in: &Report{Path: path, At: w.at},
	}
}

// A Directory is a node of no recipe that has nodes below it.
type Directory struct {
	Nodes int `json:"nodes"` // its children

	// Below describes the children, the first 100 in order.
	Below []Below `json:"below,omitempty"`
}

// Below is what there is at a child of a Directory.
type Below struct {
	Name string `json:"name"`

	// Recipe and Summary are as in a Report. Recipe may also be "directory"; "denied": there
	// is no permission to read the node; "reserved": the service, or this library, keeps it.
	Recipe  string `json:"recipe"`
	Summary string `json:"summary"`
}

// directory describes a directory for Path: also what there is at its children.
func (x *inspector) directory(ctx context.Context, names []string) error {
	w := &walker{s: &pool{Session: x.s}, root: x.root, at: x.in.At, budget: &budget{left: x.left}}
	d := x.in.Directory
	var paths []string
	var entries []*Below
	d.Below = make([]Below, min(len(names), mostBelow))
	for i := range d.Below {
		b := &d.Below[i]
		b.Name = names[i]
		path := under(x.in.Path, b.Name)
		if is := w.reserved(path); is != "" {
			b.Recipe, b.Summary = "reserved", is
			continue
		}
		paths, entries = append(paths, path), append(entries, b)
	}
	all, err := w.describe(ctx, paths)
	if err != nil {
		return err
	}
	x.reads, x.left = x.reads+w.budget.reads, x.left-w.budget.reads
	x.in.Truncated = x.in.Truncated || w.budget.short
	for i, f := range all {
		switch {
		case f.denied:
			entries[i].Recipe, entries[i].Summary = "denied", "no permission to read it"
		case f.in != nil:
			entries[i].Recipe, entries[i].Summary = f.in.Recipe, f.in.Summary
		}
	}
	d.Below = slices.DeleteFunc(d.Below, func(b Below) bool { return b.Recipe == "" })
	x.in.Summary = d.summary()
	return nil
}

// summary counts the children by what there is at them.
func (d *Directory) summary() string {
	count := make(map[string]int)
	var recipes []string
	for _, b := range d.Below {
		if count[b.Recipe]++; count[b.Recipe] == 1 {
			recipes = append(recipes, b.Recipe)
		}
	}
	slices.Sort(recipes)
	for i, r := range recipes {
		recipes[i] = countOf(count[r], r)
	}
	text := plural(d.Nodes, "node")
	if len(recipes) > 0 {
		text += ": " + strings.Join(recipes, ", ")
	}
	return text
}

// countOf returns n with the name of a recipe.
func countOf(n int, recipe string) string {
	if n != 1 {
		switch recipe {
		case "mutex", "rwmutex", "inbox":
			recipe += "es"
		case "directory":
			recipe = "directories"
		case "missing", "empty", "denied", "reserved", "shards":
		default:
			recipe += "s"
		}
	}
	return fmt.Sprintf("%d %s", n, recipe)
}

// String returns the Survey as a text of several lines for people: a table of the recipes. As
// in the text of a Report, nothing that other clients have written can confuse a terminal.
func (v *Survey) String() string {
	p := &page{}
	rows := [][]string{{"path", "is", "summary"}}
	for _, in := range v.Reports {
		rows = append(rows, []string{printable(in.Path), in.Recipe, in.Summary})
	}
	p.line("%s: %s in %s", printable(v.Path), plural(len(v.Reports), "recipe"), countOf(len(v.Directories), "directory"))
	p.table(rows...)
	p.line("")
	for _, note := range v.Notes {
		p.line("note: %s", note)
	}
	if v.Truncated {
		p.line("truncated: there is more than %s show", plural(v.Reads, "read"))
	}
	p.line("read at %s, one node after the other: no picture of one moment (%s)", stamp(v.At), plural(v.Reads, "read"))
	return p.text.String()
}
