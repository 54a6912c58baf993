package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// agreement tells how far two runs agree: exact counts have to be equal; ratios, which depend
// on the machine less than rates do, have to be close.
type agreement struct {
	Counts, Ratios int      // in both runs
	Missing        []string // cells and targets that only one run has
	Differ         []string // counts that differ
	Apart          []string // ratios that differ by more than closeTo
	worst          float64
}

// closeTo is the largest quotient of two close ratios.
const closeTo = 1.25

// compare compares two runs.
func compare(a, b *report) *agreement {
	g := &agreement{worst: 1}
	ta, tb := &table{results: a.Results}, &table{results: b.Results}
	for _, x := range a.Results {
		y := find(b.Results, func(r *result) bool { return r.name == x.name })
		if x.Error != "" || y == nil {
			g.Missing = append(g.Missing, x.name.String()+": not in both")
			continue
		}
		for _, m := range counted(x) {
			f, other := x.Figures[m], y.Figures[m]
			g.Counts++
			if f.Median != other.Median {
				g.Differ = append(g.Differ, fmt.Sprintf("%s: %s is %s and %s", x.name, m, spread(f), spread(other)))
			}
		}
		rx, okx := ta.ofLimit(x)
		ry, oky := tb.ofLimit(y)
		if okx && oky {
			g.ratio(x.name.String()+", of the limit", rx, ry)
		}
	}
	for _, y := range b.Results {
		if find(a.Results, func(r *result) bool { return r.name == y.name }) == nil && y.Error == "" {
			g.Missing = append(g.Missing, y.name.String()+": not in both")
		}
	}
	for _, t := range a.Targets {
		i := slices.IndexFunc(b.Targets, func(u target) bool { return u.Name == t.Name })
		switch {
		case i < 0 || t.Known != b.Targets[i].Known:
			g.Missing = append(g.Missing, t.Name+": not in both")
		case t.AtLeast && t.Known:
			g.ratio(t.Name, t.Figure, b.Targets[i].Figure)
		}
	}
	return g
}

// counted returns the metrics of a result that do not depend on times.
func counted(r *result) []metric {
	var ms []metric
	for m := range r.Figures {
		switch {
		case r.Group != "costs" && r.Group != "waiters" && r.Group != severalLocks:
		case m == mTrips, m == mRequests, m == mEvents, m == mWoken, strings.HasPrefix(string(m), string(mTripsOf)):
			ms = append(ms, m)
		}
	}
	slices.Sort(ms)
	return ms
}

func spread(f figure) string {
	if f.Min == f.Max {
		return number(f.Median)
	}
	return fmt.Sprintf("%s (%s – %s)", number(f.Median), number(f.Min), number(f.Max))
}

func (g *agreement) ratio(what string, x, y float64) {
	g.Ratios++
	apart := math.Max(x/y, y/x)
	if !(apart <= closeTo) { // NaN is not close either
		g.Apart = append(g.Apart, fmt.Sprintf("%s: %s and %s", what, number(x), number(y)))
	}
	g.worst = math.Max(g.worst, apart)
}

// print shows the agreement.
func (g *agreement) print(w io.Writer) {
	fmt.Fprintf(w, "%d counts, %d differ; %d ratios, %d further apart than %g, at most %s; %d not compared\n",
		g.Counts, len(g.Differ), g.Ratios, len(g.Apart), closeTo, number(g.worst), len(g.Missing))
	for _, d := range slices.Concat(g.Differ, g.Apart, g.Missing) {
		fmt.Fprintln(w, " ", d)
	}
}

// readReport reads a results.json.
func readReport(file string) (*report, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := new(report)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// compareFiles is run for -compare.
func compareFiles(files []string, out, notes io.Writer) int {
	var both [2]*report
	for i, f := range files {
		r, err := readReport(f)
		if err != nil {
			fmt.Fprintf(notes, "bench: %v\n", err)
			return 2
		}
		both[i] = r
	}
	g := compare(both[0], both[1])
	g.print(out)
	if len(g.Differ)+len(g.Apart)+len(g.Missing) > 0 || g.Counts+g.Ratios == 0 {
		return 1
	}
	return 0
}
