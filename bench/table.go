package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// A table prints groups of results as they arrive, and again in the report.
type table struct {
	results []*result // all results so far, for the limits
}

// titles are the column heads of metrics.
var titles = map[metric]string{
	mRate: "a second", mP50: "p50 µs", mP90: "p90 µs", mP99: "p99 µs", mMax: "max µs",
	mTrips: "round trips", mRoundTrips: "round trips", mRequests: "requests", mBytesUp: "bytes up", mBytesDown: "bytes down",
	mEvents: "events", mWoken: "woken", mPackets: "server requests", mAllocs: "allocs", mAllocated: "bytes alloc.",
	mCPU: "CPU µs", mServerCPU: "servers' CPU µs", mBusy: "machine busy %", mMemory: "bytes", mTime: "ms", mTimeouts: "session timeouts",
	mMoves: "moves", mJoinTime: "join: ms", mJoinMoves: "moves", mJoinRequests: "requests", mLeaveTime: "leave: ms", mLeaveMoves: "moves", mLeaveRequests: "requests",
}

// titleCrash is the column head of what a consumer's crash does to the item that it processes.
const titleCrash = "the item of a consumer that crashes"

// rows returns a head and a row for every result of a group. The first metric has its lowest
// and highest round too.
func (t *table) rows(g *group, results []*result) [][]string {
	var limits, crashes bool
	for _, r := range results {
		_, ok := t.ofLimit(r)
		limits = limits || ok
		crashes = crashes || r.Crash != ""
	}
	head := []string{"what", "who", "where", "with"}
	for i, m := range g.shown {
		head = append(head, titles[m])
		if i == 0 && !g.exact {
			head = append(head, "min – max")
		}
	}
	if limits {
		head = append(head, "of the limit")
	}
	for _, what := range g.against {
		head = append(head, "times "+what)
	}
	if crashes {
		head = append(head, titleCrash)
	}
	rows := [][]string{head}
	for _, r := range results {
		row := []string{r.What, r.Who, r.Where, ""}
		if r.Axis != "" {
			row[3] = fmt.Sprintf("%g %s", r.X, r.Axis)
		}
		if r.Error != "" {
			row = append(row, "FAILED")
			for len(row) < len(head) {
				row = append(row, "")
			}
			rows = append(rows, row)
			continue
		}
		for i, m := range g.shown {
			f, ok := r.Figures[m]
			if !ok && r.Beyond != "" {
				row = append(row, r.Beyond)
			} else {
				row = append(row, show(f, ok, g.exact, r, m))
			}
			if i == 0 && !g.exact {
				row = append(row, showRange(f, ok))
			}
		}
		if limits {
			part, ok := t.ofLimit(r)
			if ok {
				row = append(row, fmt.Sprintf("%.2f", part))
			} else {
				row = append(row, "–")
			}
		}
		for _, what := range g.against {
			row = append(row, t.times(r, what, g.shown[0]))
		}
		if crashes {
			row = append(row, r.Crash)
		}
		rows = append(rows, row)
	}
	return rows
}

// times returns a metric as a multiple of that of a reference of PostgreSQL in the same group.
func (t *table) times(r *result, what string, m metric) string {
	to := find(t.results, func(x *result) bool { return x.Group == r.Group && x.Who == byPgx && x.What == what })
	if to == nil || to == r {
		return "–"
	}
	v, ok := ratio(m, r, to)
	if !ok {
		return "–"
	}
	return number(v)
}

// show formats a figure in a table: exact ones show their spread if there is one, and round
// trips list the steps.
func show(f figure, ok, exact bool, r *result, m metric) string {
	if !ok {
		return "–"
	}
	s := number(f.Median)
	if exact && f.Min != f.Max && m != mP50 {
		s += fmt.Sprintf(" (%s – %s)", number(f.Min), number(f.Max))
	}
	if m == mTrips {
		if steps := tripsOfSteps(r); steps != "" {
			s += ": " + steps
		}
	}
	return s
}

func showRange(f figure, ok bool) string {
	if !ok {
		return "–"
	}
	return number(f.Min) + " – " + number(f.Max)
}

// tripsOfSteps lists the round trips of each step of an operation.
func tripsOfSteps(r *result) string {
	steps := []string{"Lock", "Release"}
	for _, op := range operations() {
		if op.what == r.What {
			steps = op.steps
		}
	}
	var parts []string
	for _, s := range steps {
		if v, ok := r.value(mTripsOf + metric(s)); ok {
			parts = append(parts, s+" "+number(v))
		}
	}
	return strings.Join(parts, ", ")
}

// number formats a number with three digits, or with all digits before the point.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return trim(fmt.Sprintf("%.1f", v))
	default:
		return trim(fmt.Sprintf("%.2f", v))
	}
}

func trim(s string) string {
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// print appends a group to the table on the screen.
func (t *table) print(w io.Writer, g *group, results []*result) {
	t.results = append(t.results, results...)
	fmt.Fprintf(w, "\n%s\n", strings.ToUpper(g.name))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range t.rows(g, results) {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	tw.Flush()
	for _, r := range results {
		if r.Error != "" {
			fmt.Fprintf(w, "FAILED: %s: %s\n", r.name, r.Error)
		}
	}
}

// find returns the result of a cell, or nil if there is none or it failed.
func find(results []*result, want func(*result) bool) *result {
	for _, r := range results {
		if r.Error == "" && want(r) {
			return r
		}
	}
	return nil
}

// ofLimit returns a rate as a fraction of the physical limit of the same run, preferably of
// the same group: for concurrent callers the pairs of creates and deletes of as many callers,
// for sequential turns of clients the writes of one caller.
func (t *table) ofLimit(r *result) (float64, bool) {
	if r.Where == onMemory || r.Who == byRaw || strings.HasPrefix(r.Group, pgPrefix) { // those have limits of their own
		return 0, false
	}
	if n, ok := r.value(mPackets); ok && n < 0.01 {
		return 0, false // without the service
	}
	what, callers := whatPairs, r.X
	switch {
	case r.Group == "calls":
		what = r.What
	case r.Group == "uncontended", r.Axis == "callers" && strings.HasPrefix(r.Group, "recipes"):
	case r.What == whatContend && r.Where != onZooKeeper && r.Where != onEtcd:
		return 0, false // at another distance than the limit
	case r.What == whatContend, r.What == "put":
		what, callers = whatWrite, 1
	case r.Group == "queues" || r.Group == "two-phase commit":
		callers = 1
	default:
		return 0, false
	}
	for _, group := range []string{r.Group, "uncontended"} {
		limit := find(t.results, func(l *result) bool {
			return l.Group == group && l.Who == byRaw && l.What == what && l.X == callers
		})
		if limit != nil {
			return ratio(mRate, r, limit)
		}
	}
	return 0, false
}

// ratio returns the median of the ratios of a metric in each round, if both were measured in
// the same rounds. This cancels slowness that affected both.
func ratio(m metric, r, to *result) (float64, bool) {
	a, b := r.Figures[m], to.Figures[m]
	if len(a.Values) == 0 || len(b.Values) == 0 || b.Min <= 0 {
		return 0, false
	}
	if r.Group != to.Group || len(a.Values) != len(b.Values) {
		return a.Median / b.Median, true
	}
	rs := make([]float64, len(a.Values))
	for i := range rs {
		rs[i] = a.Values[i] / b.Values[i]
	}
	return median(rs), true
}
