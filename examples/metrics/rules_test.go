package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"
)

// TestTheRulesAndTheDashboardNameWhatIsExported compares docs/alerts.yaml and
// docs/grafana-dashboard.json with what Prometheus gets of a run of all recipes: an expression with
// a wrong name is valid, and silent.
func TestTheRulesAndTheDashboardNameWhatIsExported(t *testing.T) {
	e := export(t)
	for _, r := range alerts(t) {
		for _, text := range append(slices.Collect(maps.Values(r.Annotations)), r.Expr) {
			for _, problem := range e.check(r.Expr, text) {
				t.Errorf("docs/alerts.yaml: %s: %s", r.Alert, problem)
			}
		}
	}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			for _, problem := range e.check(q.Expr, q.LegendFormat) {
				t.Errorf("docs/grafana-dashboard.json: %q: %s", p.Title, problem)
			}
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			for _, problem := range e.checkVariable(v.Query.Query) {
				t.Errorf("docs/grafana-dashboard.json: variable %s: %s", v.Name, problem)
			}
		}
	}
}

// TestTheDashboardShowsEveryMetric: whatever oteltrace counts is somewhere on the dashboard.
func TestTheDashboardShowsEveryMetric(t *testing.T) {
	text := readFile(t, "grafana-dashboard.json")
	for name := range export(t) {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if strings.HasPrefix(name, "coord_") && !regexp.MustCompile(`\b`+base+`(_bucket|_sum|_count)?\b`).MatchString(text) {
			t.Errorf("%s is on no panel", name)
		}
	}
}

// TestTheDashboardCanBeImported checks what Grafana needs and does not complain about.
func TestTheDashboardCanBeImported(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion == 0 || len(d.Panels) == 0 {
		t.Fatalf("uid %q, title %q, schema %d, %d panels", d.UID, d.Title, d.SchemaVersion, len(d.Panels))
	}
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
	}
	ids := make(map[int]string)
	type cell struct{ x, y int }
	cells := make(map[cell]string)
	for _, p := range d.Panels {
		if p.Title == "" || ids[p.ID] != "" || p.ID == 0 {
			t.Errorf("panel %q has the id %d, as %q", p.Title, p.ID, ids[p.ID])
		}
		ids[p.ID] = p.Title
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if at := (cell{x, y}); x >= 24 || cells[at] != "" {
					t.Errorf("panel %q covers %v, as %q", p.Title, at, cells[at])
				} else {
					cells[at] = p.Title
				}
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" || p.FieldConfig.Defaults.Unit == "" || p.Description == "" {
			t.Errorf("panel %q: %d queries, source %q, unit %q, description %q", p.Title, len(p.Targets), p.Datasource.UID, p.FieldConfig.Defaults.Unit, p.Description)
		}
		refs := make(map[string]bool)
		for _, q := range p.Targets {
			if refs[q.RefID] || q.RefID == "" || q.LegendFormat == "" {
				t.Errorf("panel %q: query %q twice, or without a legend", p.Title, q.RefID)
			}
			refs[q.RefID] = true
			for _, m := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
				if m[1] != "__rate_interval" && !slices.Contains(names, m[1]) {
					t.Errorf("panel %q: there is no variable $%s", p.Title, m[1])
				}
			}
		}
	}
}

// TestAWrongNameIsFound tests the checker.
func TestAWrongNameIsFound(t *testing.T) {
	e := export(t)
	for expr, want := range map[string]string{
		`sum(coord_session{coord_phase="lost"})`:                                              `no metric coord_session`,
		`sum(coord_sessions{phase="lost"})`:                                                   `coord_sessions has no label phase`,
		`sum(coord_sessions{coord_phase="gone"})`:                                             `coord_sessions has no coord_phase="gone"`,
		`sum(coord_sessions{coord_phase=~"lost|gone"})`:                                       `coord_sessions has no coord_phase="gone"`,
		`sum(coord_losses_total{coord_reason!="close"})`:                                      `coord_losses_total has no coord_reason="close"`,
		`sum by (coord_path) (coord_sessions)`:                                                `coord_sessions has no label coord_path`,
		`sum by (job, le) (coord_sessions)`:                                                   `coord_sessions has no label le`,
		`histogram_quantile(0.9, sum by (le) (rate(coord_wait_duration_bucket[1m])))`:         `no metric coord_wait_duration_bucket`,
		`coord_holds unless on (coord_op) coord_sessions{coord_phase="lost"}`:                 `coord_holds has no label coord_op`,
		`sum(rate(coord_queue_puts[5m]))`:                                                     `no metric coord_queue_puts`,
		`max by (coord_path) (coord_queue_items{coord_state="dead"}) > 0 and up`:              ``,
		`sum by (instance, coord_op, le) (rate(coord_backend_duration_seconds_bucket{}[5m]))`: ``,
	} {
		problems := strings.Join(e.check(expr, ""), "; ")
		if want == "" && problems != "" || !strings.Contains(problems, want) {
			t.Errorf("%s: %q, want %q", expr, problems, want)
		}
	}
	if got := e.check(`sum by (coord_phase) (coord_sessions)`, "{{ $labels.instance }} {{coord_phase}}"); len(got) != 1 {
		t.Errorf("a text that names a label which the sum drops: %q", got)
	}
	if got := e.checkVariable(`label_values(coord_sessions, coord_phases)`); len(got) != 1 {
		t.Errorf("a variable of a label that is not there: %q", got)
	}
}

var (
	clauseForm   = regexp.MustCompile(`\b(by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	selectorForm = regexp.MustCompile(`\b(coord_[a-z_]+)\b\s*(?:\{([^}]*)\})?`)
	matcherForm  = regexp.MustCompile(`([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	usedForm     = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}|\$labels\.([a-z_]+)`)
	variableForm = regexp.MustCompile(`^label_values\((?:(.*), *)?([a-z_]+)\)$`)
)

// ours are the labels that Prometheus itself adds.
var ours = []string{"job", "instance"}

// check returns what is wrong with the names in an expression, and with the labels that a text beside
// it uses.
func (e exposition) check(expr, text string) (problems []string) {
	add := func(format string, args ...any) {
		if p := fmt.Sprintf(format, args...); !slices.Contains(problems, p) {
			problems = append(problems, p)
		}
	}
	var kept []string // labels that the result has
	for _, m := range clauseForm.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(m[2], ",") {
			kept = append(kept, strings.TrimSpace(label))
		}
	}
	selectors := selectorForm.FindAllStringSubmatch(clauseForm.ReplaceAllString(expr, ""), -1)
	if len(selectors) == 0 {
		add("%q has no metric", expr)
	}
	for _, s := range selectors {
		labels := e[s[1]]
		if labels == nil {
			add("there is no metric %s", s[1])
			continue
		}
		has := func(label string) bool {
			if labels[label] == nil && !slices.Contains(ours, label) {
				add("%s has no label %s", s[1], label)
				return false
			}
			return true
		}
		for _, label := range kept {
			has(label)
		}
		for _, m := range matcherForm.FindAllStringSubmatch(s[2], -1) {
			if !has(m[1]) || strings.HasPrefix(m[3], "$") {
				continue
			}
			for value := range strings.SplitSeq(m[3], "|") {
				if !labels[m[1]][value] {
					add("%s has no %s=%q", s[1], m[1], value)
				}
			}
		}
	}
	for _, m := range usedForm.FindAllStringSubmatch(text, -1) {
		if label := m[1] + m[2]; !slices.Contains(kept, label) && len(kept) > 0 {
			add("the text %q uses %s, which the result does not have", text, label)
		}
	}
	return problems
}

// checkVariable is check for the query of a variable.
func (e exposition) checkVariable(query string) (problems []string) {
	m := variableForm.FindStringSubmatch(query)
	if m == nil {
		return []string{fmt.Sprintf("%q is no label_values(…)", query)}
	}
	if strings.Contains(m[1], "coord_") && !strings.Contains(m[1], "__name__") {
		problems = e.check(m[1], "")
	}
	for name, labels := range e {
		if (strings.HasPrefix(m[1], name) || strings.Contains(m[1], "__name__")) && labels[m[2]] != nil {
			return problems
		}
	}
	if slices.Contains(ours, m[2]) {
		return problems
	}
	return append(problems, "there is no label "+m[2])
}

type rule struct {
	Alert, Expr string
	Annotations map[string]string
}

func alerts(t *testing.T) (rules []rule) {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []rule }
	}
	if err := yaml.Unmarshal([]byte(readFile(t, "alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	if len(rules) < 10 {
		t.Fatalf("%d rules", len(rules))
	}
	return rules
}

type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name, Type string
			Query      query
		}
	}
	Panels []panel
}

type panel struct {
	ID                       int
	Title, Type, Description string
	GridPos                  struct{ X, Y, W, H int }
	Datasource               struct{ UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct{ Expr, LegendFormat, RefID string }
}

// query is that of a variable: a text for a data source, an object for values of it.
type query struct{ Query string }

func (q *query) UnmarshalJSON(b []byte) error {
	if b[0] == '"' {
		return json.Unmarshal(b, &q.Query)
	}
	type object query
	return json.Unmarshal(b, (*object)(q))
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(readFile(t, "grafana-dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
