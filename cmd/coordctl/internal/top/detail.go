package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/cmd/coordctl/internal/live"
)

// detail returns the lines about the recipe that is open.
func (s *screen) detail(v *live.Snapshot, at time.Time) []line {
	r := v.Find(s.opened)
	if r == nil {
		return []line{words("There is no recipe at " + live.Clean(s.rel(s.opened)) + " now. It is shown when it is there.")}
	}
	lines := []line{{{r.Recipe, kind}, {": " + live.Clean(r.Summary), bold}}}
	if q := r.Queue; q != nil {
		text := fmt.Sprintf("ready %d, claimed %d, delayed %d, dead %d; in %s/s, out %s/s", q.Ready, q.Claimed, q.Delayed, q.Dead, live.Rate(q.In), live.Rate(q.Out))
		if !q.Oldest.IsZero() {
			text += "; oldest " + live.Age(at, q.Oldest)
		}
		lines = append(lines, words(text+fmt.Sprintf("; %d wait to take", q.Takers)))
	}
	if l := history(r); l != nil {
		lines = append(lines, l)
	}
	lines = append(lines, s.parties(r, at)...)
	if len(r.Turns) > 0 {
		title := "Turns"
		if r.Recipe == "election" {
			title = "Terms"
		}
		lines = append(lines, nil, line{{title, kind}, {" that were seen", quiet}})
		for i, t := range slices.Backward(r.Turns) {
			if len(r.Turns)-i > mostTurns {
				break
			}
			until := "until now"
			if !t.Until.IsZero() {
				until = "until " + live.Age(at, t.Until) + " ago"
			} else {
				t.Until = at
			}
			lines = append(lines, words(fmt.Sprintf("  %s, token %d, for %s, %s", live.Clean(t.Label), t.Token, live.Age(t.Until, t.From), until)))
		}
	}
	lines = append(lines, nil, line{{"Report", kind}})
	for text := range strings.SplitSeq(strings.TrimRight(r.Report.String(), "\n"), "\n") {
		lines = append(lines, words("  "+live.Clean(text)))
	}
	return lines
}

// parties returns the table of the clients.
func (s *screen) parties(r *live.Row, at time.Time) []line {
	if len(r.Holders)+len(r.Waiters) == 0 {
		return nil
	}
	table := [][]string{{"CLIENT", "IS", "SINCE", "TOKEN", "SESSION", "WAITS FOR"}}
	add := func(p live.Party, is string) {
		token := ""
		if p.Token != 0 {
			token = strconv.FormatInt(p.Token, 10)
		}
		if p.Role != "" && p.Role != is {
			is += ", " + p.Role
		}
		behind := make([]string, len(p.WaitsFor))
		for i, label := range p.WaitsFor {
			behind[i] = live.Clean(label)
		}
		table = append(table, []string{party(p), is, live.Age(at, p.Since), token, p.Session, strings.Join(behind, ", ")})
	}
	holds := map[string]string{"groups": "member", "leaders": "leads", "queues": "claims", "shards": "member"}[r.Class()]
	if holds == "" {
		holds = "holds"
	}
	for _, p := range r.Holders {
		add(p, holds)
		if p.Asked != "" {
			table = append(table, []string{"  " + live.Clean(p.Asked)})
		}
	}
	for _, p := range r.Waiters {
		add(p, "waits")
	}
	var widths [6]int
	for _, row := range table {
		for i, text := range row {
			if len(row) > 1 {
				widths[i] = min(max(widths[i], length(text)), 60)
			}
		}
	}
	lines := []line{nil}
	for n, row := range table {
		text := "  "
		for i, c := range row {
			if len(row) > 1 {
				c = fit(c, widths[i], cutRight) + gap
			}
			text += c
		}
		look := plain
		switch {
		case n == 0:
			look = quiet
		case len(row) == 1:
			look = warn
		}
		lines = append(lines, line{{strings.TrimRight(text, " "), look}})
	}
	if more := r.Holding + r.Waiting - len(r.Holders) - len(r.Waiters); more > 0 && r.Queue == nil && r.Recipe != "shards" {
		lines = append(lines, line{{fmt.Sprintf("  … and %d more", more), quiet}})
	}
	return lines
}

// bars are the heights of a point of a history.
var bars = []rune(" ▁▂▃▄▅▆▇█")

const historyWidth = 60

// history returns the figure of the recipe over time, or nil if there is nothing to see.
func history(r *live.Row) line {
	points := r.History
	if len(points) < 2 {
		return nil
	}
	first, last := points[0].At, points[len(points)-1].At
	most := 0
	for _, p := range points {
		most = max(most, p.Value)
	}
	if most == 0 || !last.After(first) {
		return nil
	}
	// The greatest value in each part of the time; a part without points has the value before.
	values := make([]int, historyWidth)
	i, value := 0, points[0].Value
	for n := range values {
		until := first.Add(last.Sub(first) * time.Duration(n+1) / historyWidth)
		values[n] = value
		for ; i < len(points) && !points[i].At.After(until); i++ {
			value = points[i].Value
			values[n] = max(values[n], value)
		}
	}
	var b strings.Builder
	for _, x := range values {
		b.WriteRune(bars[(x*(len(bars)-1)+most-1)/most])
	}
	what := map[string]string{"queues": "items", "groups": "members", "shards": "owned", "transactions": "transactions"}[r.Class()]
	if what == "" {
		what = "waiters"
	}
	return line{{what + " ", plain}, {b.String(), kind}, {fmt.Sprintf(" %d now, at most %d in %s", points[len(points)-1].Value, most, live.Age(last, first)), quiet}}
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}
