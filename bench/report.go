package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// A report holds all results of a run.
type report struct {
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	Rounds  int       `json:"rounds"`
	Command string    `json:"command"`
	Machine machine   `json:"machine"`
	Results []*result `json:"results"`
	Targets []target  `json:"targets"`
	Missing []missing `json:"missing,omitempty"`

	groups []*group
	table  *table
}

// A machine describes where the figures were measured.
type machine struct {
	Go         string            `json:"go"`
	System     string            `json:"system"`
	Processors int               `json:"processors"`
	Model      string            `json:"model,omitempty"`
	Kernel     string            `json:"kernel,omitempty"`
	Services   map[string]string `json:"services,omitempty"` // versions
}

func thisMachine() machine {
	m := machine{
		Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH,
		Processors: runtime.NumCPU(), Services: make(map[string]string),
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				m.Model = strings.TrimSpace(value)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(b))
	}
	return m
}

// failed returns the cells without figures.
func (r *report) failed() []*result {
	var failed []*result
	for _, x := range r.Results {
		if x.Error != "" {
			failed = append(failed, x)
		}
	}
	return failed
}

// write puts NAME.json, NAME.md and the plots into a directory.
func (r *report) write(dir, name string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	drawn, err := drawAll(dir, r.Results)
	if err != nil {
		return err
	}
	var md strings.Builder
	r.markdown(&md, drawn)
	return os.WriteFile(filepath.Join(dir, name+".md"), []byte(md.String()), 0o644)
}

// markdown writes the tables and shows the plots.
func (r *report) markdown(w io.Writer, drawn []*chart) {
	fmt.Fprintf(w, "# Benchmarks\n\n")
	r.conditions(w)
	fmt.Fprintf(w, "\n## Targets\n\n")
	_ = r.targetTable(w, "", false) // an empty expression is valid
	if failed := r.failed(); len(failed) > 0 {
		fmt.Fprintf(w, "\n## Failed\n\n")
		for _, x := range failed {
			fmt.Fprintf(w, "- %s: %s\n", x.name, x.Error)
		}
	}
	for _, g := range r.groups {
		fmt.Fprintf(w, "\n## %s\n\n%s\n\n", strings.ToUpper(g.name[:1])+g.name[1:], g.about)
		var results []*result
		for _, x := range r.Results {
			if x.Group == g.name {
				results = append(results, x)
			}
		}
		for i, row := range r.table.rows(g, results) {
			for k := range row {
				row[k] = strings.ReplaceAll(row[k], "|", `\|`)
			}
			fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
			if i == 0 {
				fmt.Fprintf(w, "|%s\n", strings.Repeat("---|", len(row)))
			}
		}
		for _, c := range drawn {
			if c.group == g.name {
				fmt.Fprintf(w, "\n![%s](%s.svg)\n", c.title, c.file)
			}
		}
	}
}

// conditions describes the run and the machine.
func (r *report) conditions(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "- began: %s, took %.0f s\n", r.Began.UTC().Format("2006-01-02 15:04 UTC"), r.Seconds)
	fmt.Fprintf(w, "- command: `%s`\n", r.Command)
	fmt.Fprintf(w, "- machine: %d processors, %s, %s, Linux %s, %s\n", m.Processors, m.Model, m.System, m.Kernel, m.Go)
	for _, who := range []string{onZooKeeper, byGoZK, byCurator, byKazoo, byEtcd, onPostgres} {
		if v := m.Services[who]; v != "" {
			fmt.Fprintf(w, "- %s: %s\n", who, v)
		}
	}
	fmt.Fprintf(w, "- %d rounds, interleaved; figures are medians\n", r.Rounds)
	for _, x := range r.Missing {
		fmt.Fprintf(w, "- skipped: %s, %s\n", x.Who, x.Why)
	}
}

// targetTable lists the targets whose names match, all or those that were measured, and whether they
// were met.
func (r *report) targetTable(w io.Writer, names string, measured bool) error {
	only, err := regexp.Compile(names)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "| target | figure | wanted | |\n|---|---:|---:|---|\n")
	for _, t := range r.Targets {
		if !only.MatchString(t.Name) || measured && !t.Known {
			continue
		}
		want, figure, met := "≤", number(t.Figure), "met"
		if t.AtLeast {
			want = "≥"
		}
		switch {
		case !t.Known:
			figure, met = "–", "not measured"
		case !t.Met:
			met = "**not met**"
		}
		fmt.Fprintf(w, "| %s | %s | %s %g | %s |\n", t.Name, figure, want, t.Bound, met)
	}
	return nil
}
