package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The page for readers, BENCHMARKS.md, takes its tables from the results of a run, so that no
// figure is typed by hand. A table stands between two comments, the first of which specifies
// it:
//
//	<!-- figures: group=uncontended; rows=who; columns=with; show=rate; only=ZooKeeper -->
//	<!-- end -->
//
// Rows and columns are what, who, where, with, whose (what and who) or system (who and where). A cell shows the median of its metrics;
// spread adds the lowest and highest round of the first one. also=crash adds a column with
// what a consumer's crash does to its item. only is a regular expression for the names of the
// cells or targets. "figures: targets" is the list of targets, with which=measured of those that
// the run has measured; "figures: run" describes the run and the machine; "figures: plot; file=NAME" is the plot of that name. With from=NAME the
// figures are those of another run, whose results are in NAME.json beside those of the first.
//
// A specification that begins with "planned" instead of "figures" becomes one of figures as soon
// as there is a run with such cells. Until then the table is empty.
//
// A figure in a sentence is enclosed by two comments as well:
//
//	<!-- figure: from=queues; target=items popped -->0.91<!-- end -->
//
// It is that of a target, or with group and only, as for a table, the first of a single cell.
var (
	figuresOf = regexp.MustCompile(`(?s)<!-- (figures|planned): ([^\n]*?) -->\n.*?<!-- end -->`)
	figureOf  = regexp.MustCompile(`<!-- figure: ([^\n]*?) -->[^<\n]*<!-- end -->`)
)

// errNoCells: a run has no cells for a table.
var errNoCells = errors.New("no cell of the run matches")

// fillPage returns the page with the figures of runs. read reads the results of a run; the
// name of the first one is "".
func fillPage(page string, read func(name string) (*report, error)) (string, error) {
	var failed error
	fail := func(spec string, err error) {
		if failed == nil {
			failed = fmt.Errorf("figures %q: %w", spec, err)
		}
	}
	filled := figuresOf.ReplaceAllStringFunc(page, func(block string) string {
		match := figuresOf.FindStringSubmatch(block)
		planned, spec := match[1] == "planned", match[2]
		var b strings.Builder
		fmt.Fprintf(&b, "<!-- figures: %s -->\n", spec)
		what, keys := parseSpec(spec)
		r, err := read(keys["from"])
		switch {
		case err != nil:
		case what == "targets":
			err = r.targetTable(&b, keys["only"], keys["which"] == "measured")
		case what == "run":
			r.conditions(&b)
		case what == "plot":
			err = r.plot(&b, keys["file"])
		case what != "":
			err = fmt.Errorf("%q is not a key with a value", what)
		default:
			err = r.pivot(&b, keys)
		}
		if planned && (errors.Is(err, errNoCells) || errors.Is(err, fs.ErrNotExist)) {
			return block
		}
		if err != nil {
			fail(spec, err)
		}
		b.WriteString("<!-- end -->")
		return b.String()
	})
	filled = figureOf.ReplaceAllStringFunc(filled, func(figure string) string {
		spec := figureOf.FindStringSubmatch(figure)[1]
		_, keys := parseSpec(spec)
		r, err := read(keys["from"])
		text := ""
		if err == nil {
			text, err = r.single(keys)
		}
		if err != nil {
			fail(spec, err)
		}
		return fmt.Sprintf("<!-- figure: %s -->%s<!-- end -->", spec, text)
	})
	return filled, failed
}

// plot shows a chart.
func (r *report) plot(w io.Writer, file string) error {
	for _, c := range charts {
		if c.file == file && len(c.lines(r.Results)) > 0 {
			fmt.Fprintf(w, "![%s](bench/results/%s.svg)\n", c.title, file)
			return nil
		}
	}
	return errNoCells
}

// single returns the figure that the keys of a specification ask for.
func (r *report) single(keys map[string]string) (string, error) {
	if name := keys["target"]; name != "" {
		for _, t := range r.Targets {
			if t.Name == name && t.Known {
				return number(t.Figure), nil
			}
		}
		return "", fmt.Errorf("no target %q was measured", name)
	}
	only, err := regexp.Compile(keys["only"])
	if err != nil {
		return "", err
	}
	t, found := &table{results: r.Results}, ""
	for _, x := range r.Results {
		if x.Group != keys["group"] || x.Error != "" || !only.MatchString(x.name.String()) {
			continue
		}
		if found != "" {
			return "", errors.New("several cells match")
		}
		found, _ = t.figures(x, keys["show"], false)
	}
	if found == "" {
		return "", errNoCells
	}
	return found, nil
}

// runsOf returns the names of the runs of a page, those whose plots it shows last.
func runsOf(page string) (names []string) {
	var plotted []string
	specs := append(figuresOf.FindAllStringSubmatch(page, -1), figureOf.FindAllStringSubmatch(page, -1)...)
	for _, match := range specs {
		word, keys := parseSpec(match[len(match)-1])
		if !slices.Contains(names, keys["from"]) {
			names = append(names, keys["from"])
		}
		if word == "plot" {
			plotted = append(plotted, keys["from"])
		}
	}
	order := func(name string) int { return slices.Index(plotted, name) }
	slices.SortStableFunc(names, func(a, b string) int { return order(a) - order(b) })
	return names
}

// parseSpec returns the keys of a specification with their values, and the word without a
// value, if there is one.
func parseSpec(spec string) (word string, keys map[string]string) {
	keys = make(map[string]string)
	for part := range strings.SplitSeq(spec, ";") {
		k, v, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			word = k
			continue
		}
		keys[k] = v
	}
	return word, keys
}

// pivot writes the table that the keys of a specification ask for.
func (r *report) pivot(w io.Writer, keys map[string]string) error {
	only, err := regexp.Compile(keys["only"])
	if err != nil {
		return err
	}
	rowOf, colOf := aspects[keys["rows"]], aspects[keys["columns"]]
	if rowOf == nil || colOf == nil {
		return fmt.Errorf("rows and columns must be what, who, where, with, whose or system")
	}
	crashes := keys["also"] == "crash"
	if keys["also"] != "" && !crashes {
		return fmt.Errorf("there is no column %q", keys["also"])
	}
	var rows, cols []string
	cells := make(map[[2]string]string)
	crashOf := make(map[string]string)
	t := &table{results: r.Results}
	for _, x := range r.Results {
		if x.Group != keys["group"] || x.Error != "" || !only.MatchString(x.name.String()) {
			continue
		}
		text, ok := t.figures(x, keys["show"], keys["spread"] == "yes")
		if !ok {
			continue
		}
		row, col := rowOf(x), colOf(x)
		if !slices.Contains(rows, row) {
			rows = append(rows, row)
		}
		if !slices.Contains(cols, col) {
			cols = append(cols, col)
		}
		at := [2]string{row, col}
		if cells[at] != "" {
			return fmt.Errorf("two figures for %s, %s", row, col)
		}
		cells[at] = text
		crashOf[row] = x.Crash
	}
	if len(rows) == 0 {
		return errNoCells
	}
	last, dashes := "", ""
	if crashes {
		last, dashes = " "+titleCrash+" |", "---|"
	}
	fmt.Fprintf(w, "\n| | %s |%s\n|---|%s%s\n", strings.Join(cols, " | "), last, strings.Repeat("---:|", len(cols)), dashes)
	for _, row := range rows {
		fmt.Fprintf(w, "| %s |", row)
		for _, col := range cols {
			text := cells[[2]string{row, col}]
			if text == "" {
				text = "–"
			}
			fmt.Fprintf(w, " %s |", text)
		}
		if crashes {
			fmt.Fprintf(w, " %s |", crashOf[row])
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	return nil
}

// aspects are the possible rows and columns.
var aspects = map[string]func(*result) string{
	"what":   func(r *result) string { return r.What },
	"who":    func(r *result) string { return r.Who },
	"where":  func(r *result) string { return r.Where },
	"with":   func(r *result) string { return with(r.X, r.Axis) },
	"system": func(r *result) string { return r.Who + " on " + r.Where },
	"whose": func(r *result) string {
		if r.Where == onEtcd && r.Who != byEtcd {
			return r.What + ", " + r.Who + " on etcd"
		}
		return r.What + ", " + r.Who
	},
}

// with formats a number and its unit: "1 caller", "10 items a batch".
func with(n float64, axis string) string {
	if things, rest, _ := strings.Cut(axis, " "); n == 1 {
		axis = strings.TrimSpace(strings.TrimSuffix(things, "s") + " " + rest)
	}
	return fmt.Sprintf("%g %s", n, axis)
}

// figures formats metrics of a result, separated by slashes. "limit" is the rate as a
// fraction of the physical limit.
func (t *table) figures(r *result, show string, spreads bool) (string, bool) {
	var parts []string
	for i, name := range strings.Split(show, ",") {
		if name == "limit" {
			if v, ok := t.ofLimit(r); ok {
				parts = append(parts, fmt.Sprintf("%.2f", v))
			}
			continue
		}
		f, ok := r.Figures[metric(name)]
		switch {
		case !ok && r.Beyond != "":
			parts = append(parts, r.Beyond)
		case !ok:
		case spreads && i == 0:
			parts = append(parts, fmt.Sprintf("%s (%s)", number(f.Median), showRange(f, true)))
		default:
			parts = append(parts, number(f.Median))
		}
	}
	return strings.Join(parts, " / "), len(parts) > 0
}

// besides returns a function that reads the results of the run at path if its argument is "",
// or those of another run beside it.
func besides(path string) func(name string) (*report, error) {
	read := make(map[string]*report)
	return func(name string) (*report, error) {
		file := path
		if name != "" {
			file = filepath.Join(filepath.Dir(path), filepath.Base(name)+".json")
		}
		if read[file] == nil {
			r, err := readReport(file)
			if err != nil {
				return nil, err
			}
			read[file] = r
		}
		return read[file], nil
	}
}

// writePage fills the figures of a run, and of those beside it, into a page, and draws the
// plots of these runs again. Where two of them have a plot, it is that of the one whose plots the
// page shows.
func writePage(page, results string, notes io.Writer) int {
	text, err := os.ReadFile(page)
	filled := ""
	read := besides(results)
	if err == nil {
		filled, err = fillPage(string(text), read)
	}
	if err == nil && filled != string(text) {
		err = os.WriteFile(page, []byte(filled), 0o644)
	}
	if err == nil {
		err = drawAgain(filepath.Dir(results), runsOf(filled), read)
	}
	if err != nil {
		fmt.Fprintf(notes, "bench: %v\n", err)
		return 1
	}
	return 0
}
