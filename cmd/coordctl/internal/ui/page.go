package ui

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/cmd/coordctl/internal/live"
)

const mostRows = 500 // of the overview

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"clean": live.Clean, "age": live.Age, "rate": live.Rate, "spark": spark, "stamp": stamp, "count": count,
}).ParseFS(assets, "assets/*.html"))

// printing returns the characters of a text that print.
func printing(text string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return -1
		}
		return r
	}, text)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// page is what a template shows.
type page struct {
	View   *live.Snapshot
	Title  string
	Words  string // of the filter
	Order  string
	Orders []string
	Rows   []*live.Row
	More   int // rows that are not shown
	Tiles  []tile
	Graph  *graph
	Stream string // the address of the events

	Path  string
	Row   *live.Row // of the page of a recipe
	Chart *chart
	Terms *timeline
	Acts  []act

	rel     func(path string) string
	Actions bool // the server offers actions
	MayAct  bool
	Token   string
}

// A tile is a figure with a link to the rows that it counts.
type tile struct {
	Label, Figure, Detail, Words string
	Bad                          bool
}

// newPage returns the contents of a page for a request.
func (s *server) newPage(name string, v *live.Snapshot, r *http.Request) *page {
	q := r.URL.Query()
	p := &page{View: v, rel: s.m.Rel, Title: live.Clean(v.Path), Orders: live.Orders, Actions: s.o.AllowActions, MayAct: s.mayAct(r)}
	if p.MayAct {
		p.Token = s.token
	}
	if name == "recipe" {
		p.Path = q.Get("path")
		p.Title = p.Rel(p.Path)
		p.Stream = "/events?" + url.Values{"path": {p.Path}}.Encode()
		p.Acts = s.actsOf(p.Path)
		if p.Row = v.Find(p.Path); p.Row != nil {
			p.Chart = newChart(p.Row.History)
			p.Terms = newTimeline(p.Row.Turns, v.At)
		}
		return p
	}
	p.Words, p.Order = clip(printing(q.Get("q")), 200), q.Get("sort")
	if !slices.Contains(live.Orders, p.Order) {
		p.Order = live.Orders[0]
	}
	p.Stream = "/events?" + url.Values{"q": {p.Words}, "sort": {p.Order}}.Encode()
	rows := v.Select(p.Words, p.Order)
	p.Graph = newGraph(rows, p.Rel)
	p.Rows = rows[:min(len(rows), mostRows)]
	p.More = len(rows) - len(p.Rows)
	p.Tiles = tiles(v.Totals())
	return p
}

// render returns the text of a whole page.
func (s *server) render(name string, p *page) ([]byte, int, error) {
	var text bytes.Buffer
	if err := templates.ExecuteTemplate(&text, name, p); err != nil {
		return nil, 0, err
	}
	if name == "recipe" && p.Row == nil {
		return text.Bytes(), http.StatusNotFound, nil
	}
	return text.Bytes(), http.StatusOK, nil
}

// First returns the first of the parties, for a cell of the table.
func (p *page) First(list []live.Party) *live.Party {
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}

// Rest returns how many there are besides the first one.
func (p *page) Rest(n int) int { return n - 1 }

// Rel returns the path by which verbs of coordctl and other clients in the namespace know the path of
// a recipe.
func (p *page) Rel(path string) string { return live.Clean(p.rel(path)) }

// Link returns the address of the page of a recipe.
func (p *page) Link(path string) string {
	return "/recipe?" + url.Values{"path": {path}}.Encode()
}

// By returns the address of the same rows in another order.
func (p *page) By(order string) string {
	return "/?" + url.Values{"q": {p.Words}, "sort": {order}}.Encode()
}

// tiles returns the sums as tiles.
func tiles(t live.Totals) []tile {
	flow := ""
	if t.In != nil {
		flow = fmt.Sprintf("%s/s in, %s/s out", live.Rate(t.In), live.Rate(t.Out))
	}
	list := []tile{
		{Label: "locks held", Figure: fmt.Sprintf("%d of %d", t.Held, t.Locks), Detail: count(t.Waiting, "waiter", "waiters"), Words: "locks"},
		{Label: "elections led", Figure: fmt.Sprintf("%d of %d", t.Led, t.Elections), Words: "leaders", Bad: t.Led < t.Elections},
		{Label: "items in queues", Figure: strconv.Itoa(t.Items), Detail: cmp.Or(flow, count(t.Queues, "queue", "queues")), Words: "queues"},
		{Label: "dead letters", Figure: strconv.Itoa(t.Dead), Words: "queues", Bad: t.Dead > 0},
		{Label: "groups and shards", Figure: strconv.Itoa(t.Groups), Detail: count(t.Members, "member", "members"), Words: ""},
	}
	if t.Stuck > 0 {
		list = append(list, tile{Label: "queues without consumers", Figure: strconv.Itoa(t.Stuck), Words: "stuck", Bad: true})
	}
	if t.InDoubt > 0 {
		list = append(list, tile{Label: "with transactions in doubt", Figure: strconv.Itoa(t.InDoubt), Words: "in doubt", Bad: true})
	}
	if t.Elections > t.Led {
		list[1].Detail = fmt.Sprintf("%d without a leader", t.Elections-t.Led)
	}
	return list
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
