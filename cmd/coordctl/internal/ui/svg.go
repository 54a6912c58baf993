package ui

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord/cmd/coordctl/internal/live"
)

// line returns the points of a polyline in a box, and the greatest value.
func line(points []live.Point, width, height float64) (text string, most int) {
	if len(points) < 2 {
		return "", 0
	}
	first, last := points[0].At, points[len(points)-1].At
	for _, p := range points {
		most = max(most, p.Value)
	}
	span := max(last.Sub(first), time.Second)
	var b strings.Builder
	before := 0.0
	for i, p := range points {
		x := float64(p.At.Sub(first)) / float64(span) * width
		y := height - float64(p.Value)/float64(max(most, 1))*height
		if i > 0 {
			fmt.Fprintf(&b, "%.1f,%.1f ", x, before) // the value held until now
		}
		fmt.Fprintf(&b, "%.1f,%.1f ", x, y)
		before = y
	}
	return strings.TrimSpace(b.String()), most
}

// A sparkline is a history in a cell of the table.
type sparkline struct {
	Points string
	Label  string
}

// spark returns the line of a history, or nil if there is nothing to see.
func spark(points []live.Point) *sparkline {
	text, most := line(points, 96, 20)
	if most == 0 {
		return nil
	}
	return &sparkline{text, fmt.Sprintf("%d now, at most %d in %s", points[len(points)-1].Value, most, span(points))}
}

func span(points []live.Point) string {
	return live.Age(points[len(points)-1].At, points[0].At)
}

// A chart is a history on the page of a recipe.
type chart struct {
	Points   string
	Most     int
	Now      int
	Span     string
	From, To string
}

func newChart(points []live.Point) *chart {
	text, most := line(points, 640, 110)
	if most == 0 {
		return nil
	}
	last := points[len(points)-1]
	return &chart{text, most, last.Value, span(points), points[0].At.Format("15:04:05"), last.At.Format("15:04:05 UTC")}
}

// A timeline shows the turns of a lock, or the terms of an election, side by side.
type timeline struct {
	Span  string
	Turns []bar
	List  []live.Turn // the latest first
}

type bar struct {
	X, Width float64
	Color    int
	Label    string
}

const colors = 6

func newTimeline(turns []live.Turn, now time.Time) *timeline {
	if len(turns) == 0 {
		return nil
	}
	first := turns[0].From
	span := max(now.Sub(first), time.Second)
	t := &timeline{Span: live.Age(now, first)}
	for _, x := range turns {
		until := x.Until
		if until.IsZero() {
			until = now
		}
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(x.Label))
		t.Turns = append(t.Turns, bar{
			X:     float64(x.From.Sub(first)) / float64(span) * 640,
			Width: max(1, float64(until.Sub(x.From))/float64(span)*640),
			Color: int(hash.Sum32() % colors), Label: fmt.Sprintf("%s for %s", live.Clean(x.Label), live.Age(until, x.From)),
		})
	}
	t.List = slices.Clone(turns)
	slices.Reverse(t.List)
	return t
}

// A graph shows clients on the left and recipes on the right. A line means that the client holds, a
// dashed one that it waits.
type graph struct {
	Height  int
	Clients []node
	Recipes []node
	Edges   []edge
	More    int // recipes that are not shown
}

type node struct {
	Y    int
	Text string // cut
	Full string
	Link string
	Busy bool // clients wait for it
}

type edge struct {
	From, To int // heights
	Waits    bool
	Label    string
}

const (
	mostGraphRecipes = 40
	mostGraphEdges   = 8 // of one recipe
	graphStep        = 30
)

// newGraph returns the graph of rows, or nil if they have no holder and no waiter.
func newGraph(rows []*live.Row, rel func(path string) string) *graph {
	g := &graph{}
	var shown []*live.Row
	for _, r := range rows {
		switch r.Class() {
		case "locks", "leaders", "queues", "barriers", "shards", "groups":
		default:
			continue
		}
		if len(r.Holders)+len(r.Waiters) > 0 {
			shown = append(shown, r)
		}
	}
	// Those for which clients wait come first if there is not room for all.
	if len(shown) > mostGraphRecipes {
		slices.SortStableFunc(shown, func(a, b *live.Row) int { return cmp.Compare(b.Waiting, a.Waiting) })
		g.More = len(shown) - mostGraphRecipes
		shown = shown[:mostGraphRecipes]
		slices.SortFunc(shown, func(a, b *live.Row) int { return live.ComparePaths(a.Path, b.Path) })
	}
	if len(shown) == 0 {
		return nil
	}
	// A client is a session; the best name is that which says most.
	labels := make(map[string]string)
	sums := make(map[string][2]int) // of the places of its recipes, and their number
	key := func(p live.Party) string { return cmp.Or(p.Session, p.Label) }
	parties := func(r *live.Row) (list []live.Party, holders int) {
		list = append(list, r.Holders[:min(len(r.Holders), mostGraphEdges)]...)
		return append(list, r.Waiters[:min(len(r.Waiters), mostGraphEdges)]...), min(len(r.Holders), mostGraphEdges)
	}
	for i, r := range shown {
		list, _ := parties(r)
		for _, p := range list {
			k := key(p)
			if labels[k] == "" || labels[k] == p.Session {
				labels[k] = p.Label
			}
			sum := sums[k]
			sums[k] = [2]int{sum[0] + i, sum[1] + 1}
		}
	}
	clients := slices.SortedFunc(maps.Keys(labels), func(a, b string) int {
		return cmp.Or(cmp.Compare(sums[a][0]*sums[b][1], sums[b][0]*sums[a][1]), cmp.Compare(labels[a], labels[b]), cmp.Compare(a, b))
	})
	most := max(len(clients), len(shown))
	g.Height = most*graphStep + 10
	place := func(i, of int) int { return 20 + i*graphStep + (most-of)*graphStep/2 }
	at := make(map[string]int)
	for i, k := range clients {
		at[k] = place(i, len(clients))
		g.Clients = append(g.Clients, node{Y: at[k], Text: short(live.Clean(labels[k]), 30), Full: live.Clean(labels[k])})
	}
	for i, r := range shown {
		y := place(i, len(shown))
		g.Recipes = append(g.Recipes, node{Y: y, Text: short(rel(r.Path), 34), Full: rel(r.Path) + ": " + r.Recipe, Link: (&page{}).Link(r.Path), Busy: r.Waiting > 0})
		list, holders := parties(r)
		for j, p := range list {
			e := edge{From: at[key(p)], To: y, Waits: j >= holders}
			what := "holds"
			if e.Waits {
				what = "waits for"
			} else if r.Class() == "groups" {
				what = "is in"
			}
			e.Label = live.Clean(p.Label) + " " + what + " " + rel(r.Path)
			g.Edges = append(g.Edges, e)
		}
	}
	return g
}

// short cuts a text at its beginning, since the ends of paths and addresses tell more.
func short(text string, most int) string {
	n := utf8.RuneCountInString(text)
	if n <= most {
		return text
	}
	return "…" + string([]rune(text)[n-most+1:])
}
