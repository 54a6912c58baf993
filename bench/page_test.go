package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const emptyPage = `# Page
<!-- figures: group=uncontended; rows=whose; columns=with; show=rate,limit; spread=yes; only=ZooKeeper -->
old
<!-- end -->
between
<!-- figures: targets -->
<!-- end -->
`

func TestAPageIsFilledWithFigures(t *testing.T) {
	t.Parallel()
	r := &report{Results: someResults(), Targets: []target{{Name: "one", Bound: 2, Figure: 1, Known: true, Met: true}}}
	one := func(name string) (*report, error) {
		if name != "" {
			return nil, fmt.Errorf("there is no run %q", name)
		}
		return r, nil
	}
	got, err := fillPage(emptyPage, one)
	if err != nil {
		t.Fatal(err)
	}
	want := `# Page
<!-- figures: group=uncontended; rows=whose; columns=with; show=rate,limit; spread=yes; only=ZooKeeper -->

| | 1 caller | 16 callers |
|---|---:|---:|
| create and delete, raw client | 110 (100 – 200) | 1000 (1000 – 1000) |
| lock, released at once, coord | 90 (88 – 180) / 0.90 | 500 (500 – 500) / 0.50 |

<!-- end -->
between
<!-- figures: targets -->
| target | figure | wanted | |
|---|---:|---:|---|
| one | 1 | ≤ 2 | met |
<!-- end -->
`
	if got != want {
		t.Errorf("the page is\n%s\nwant\n%s", got, want)
	}
	again, err := fillPage(got, one)
	if err != nil || again != got {
		t.Errorf("filled once more it is\n%s\n%v", again, err)
	}
}

func TestAPageWithUnknownFiguresIsRefused(t *testing.T) {
	t.Parallel()
	r := &report{Results: someResults()}
	for _, spec := range []string{
		"group=none; rows=who; columns=with; show=rate",
		"group=uncontended; rows=luck; columns=with; show=rate",
		"group=uncontended; rows=where; columns=where; show=rate", // several in one cell
		"group=uncontended; rows=who; columns=with; show=rate; only=(",
		"uncontended",
		"targets; from=none",
		"targets; only=(",
		"group=uncontended; rows=whose; columns=with; show=rate; also=luck",
		"from=none; group=uncontended; rows=who; columns=with; show=rate",
	} {
		read := func(name string) (*report, error) {
			if name != "" {
				return nil, os.ErrNotExist
			}
			return r, nil
		}
		if _, err := fillPage("<!-- figures: "+spec+" -->\n<!-- end -->", read); err == nil {
			t.Errorf("%q was filled", spec)
		}
	}
	var notes strings.Builder
	if code := run(t.Context(), []string{"-page", filepath.Join(t.TempDir(), "none"), "none"}, &notes, &notes); code != 1 {
		t.Errorf("exit code %d for files that are missing: %s", code, notes.String())
	}
	if code := run(t.Context(), []string{"-page", "one"}, &notes, &notes); code != 2 {
		t.Errorf("exit code %d for one argument", code)
	}
}

func TestAPageShowsWhatACrashDoesToAnItem(t *testing.T) {
	t.Parallel()
	r := &report{
		Results: []*result{
			queueRates(whatTake, byCoord, crashRedelivers, 1, 10), queueRates(whatTake, byCoord, crashRedelivers, 8, 20),
			queueRates(whatSimple, byCurator, crashLoses, 1, 5),
		},
		Targets: []target{{Name: "items", Bound: 2, Figure: 1, Known: true, Met: true}, {Name: "locks"}},
	}
	page := "<!-- figures: group=" + queuesCompared + "; rows=whose; columns=with; show=rate; also=crash -->\n<!-- end -->\n" +
		"<!-- planned: group=none; rows=whose; columns=with; show=rate -->\n<!-- end -->\n" +
		"<!-- figures: targets; only=^items -->\n<!-- end -->\n"
	got, err := fillPage(page, func(string) (*report, error) { return r, nil })
	if err != nil {
		t.Fatal(err)
	}
	want := `<!-- figures: group=queues compared; rows=whose; columns=with; show=rate; also=crash -->

| | 1 consumer | 8 consumers | the item of a consumer that crashes |
|---|---:|---:|---|
| Take and Ack, coord | 10 | 20 | redelivered |
| SimpleDistributedQueue, Curator | 5 | – | lost |

<!-- end -->
<!-- planned: group=none; rows=whose; columns=with; show=rate -->
<!-- end -->
<!-- figures: targets; only=^items -->
| target | figure | wanted | |
|---|---:|---:|---|
| items | 1 | ≤ 2 | met |
<!-- end -->
`
	if got != want {
		t.Errorf("the page is\n%s\nwant\n%s", got, want)
	}
}

// A planned table becomes one with figures when there is a run that has them.
func TestAPlannedTableIsFilledByItsRun(t *testing.T) {
	t.Parallel()
	const page = "<!-- planned: from=later; group=uncontended; rows=whose; columns=with; show=rate; only=coord, ZooKeeper, 1 -->\n<!-- end -->\n" +
		"<!-- planned: group=none; rows=who; columns=with; show=rate -->\n<!-- end -->\n<!-- planned: run; from=later -->\n<!-- end -->\n" +
		"<!-- planned: plot; file=uncontended; from=later -->\n<!-- end -->\n<!-- planned: plot; file=kept; from=later -->\n<!-- end -->\n"
	with := func(later *report) string {
		got, err := fillPage(page, func(name string) (*report, error) {
			if name == "later" && later == nil {
				return nil, fmt.Errorf("read it: %w", os.ErrNotExist)
			}
			return &report{Results: someResults()}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := with(nil); got != page {
		t.Errorf("without its run the page is\n%s", got)
	}
	got := with(&report{})
	if !strings.HasPrefix(got, "<!-- figures: from=later; group=uncontended") || !strings.Contains(got, "| lock, released at once, coord | 90 |") ||
		!strings.Contains(got, "<!-- planned: group=none") || !strings.Contains(got, "- began: ") ||
		!strings.Contains(got, "![Uncontended lock and release](bench/results/uncontended.svg)") || !strings.Contains(got, "<!-- planned: plot; file=kept") {
		t.Errorf("with its run the page is\n%s", got)
	}
	if got := runsOf(got + "<!-- figure: from=last; target=a -->1<!-- end -->"); !slices.Equal(got, []string{"", "last", "later"}) { // that with a plot last
		t.Errorf("the runs are %q", got)
	}
	if _, err := fillPage("<!-- planned: group=uncontended; rows=luck; columns=with; show=rate -->\n<!-- end -->", func(string) (*report, error) {
		return &report{Results: someResults()}, nil
	}); err == nil {
		t.Error("a planned table with unknown rows is not refused")
	}
}

func TestASentenceHasFiguresOfARun(t *testing.T) {
	t.Parallel()
	r := &report{Results: someResults(), Targets: []target{{Name: "items, 1 consumers", Figure: 1.3849, Known: true}, {Name: "locks"}}}
	read := func(string) (*report, error) { return r, nil }
	const a, b, c = "<!-- figure: target=items, 1 consumers -->", "<!-- figure: group=uncontended; only=coord, ZooKeeper, 16; show=rate -->", "<!-- end -->"
	got, err := fillPage("Now "+a+c+" and "+b+"old"+c+".", read)
	if want := "Now " + a + "1.38" + c + " and " + b + "500" + c + "."; err != nil || got != want {
		t.Errorf("the sentence is %q, %v, want %q", got, err, want)
	}
	for _, spec := range []string{"target=locks", "target=luck", "group=uncontended; only=coord; show=rate", "group=none; show=rate", "group=uncontended; only=(; show=rate"} {
		if _, err := fillPage("<!-- figure: "+spec+" -->1<!-- end -->", read); err == nil {
			t.Errorf("%q was filled", spec)
		}
	}
}

// The targets of a stored run are those that its figures give: medians of the ratios of the rounds.
func TestStoredTargetsFollowFromTheStoredFigures(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("results/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		r, err := readReport(file)
		if err != nil {
			t.Fatal(err)
		}
		judged := make(map[string]target)
		for _, x := range judge(r.Results) {
			judged[x.Name] = x
		}
		measured := 0
		for _, x := range r.Targets {
			if now := judged[x.Name]; x.Known && now.Known { // an older run can have cells that are no more
				measured++
				if math.Abs(now.Figure-x.Figure) > 1e-9*math.Abs(x.Figure) {
					t.Errorf("%s: %s: stored %v, judged %v", file, x.Name, x.Figure, now.Figure)
				}
			}
		}
		if measured == 0 {
			t.Errorf("%s: no target was measured", file)
		}
	}
}

// The figures and tables of the pages are those of the runs that are stored beside them.
func TestPages_ShowTheStoredRuns(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"../BENCHMARKS.md", "results/figures.md"} {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		filled, err := fillPage(string(page), besides("results/results.json"))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if !strings.Contains(filled, "<!-- figures: ") || filled != string(page) {
			t.Errorf("%s has other figures than the stored runs: go run ./bench -page %s bench/results/results.json", file, strings.TrimPrefix(file, "../"))
		}
	}
}

// A table can come from another run.
func TestAPageHasTablesOfTwoRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, rate := range map[string]float64{"results": 7, "other": 8} {
		r := &report{Results: []*result{{name: someResults()[0].name, Figures: map[metric]figure{mRate: {Median: rate}}}}}
		data, err := json.Marshal(r)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".json"), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	table := "group=uncontended; rows=who; columns=where; show=rate -->\n<!-- end -->\n"
	got, err := fillPage("<!-- figures: "+table+"<!-- figures: from=other; "+table, besides(filepath.Join(dir, "results.json")))
	if err != nil || strings.Count(got, "| 7 |") != 1 || strings.Count(got, "| 8 |") != 1 {
		t.Errorf("got %v\n%s", err, got)
	}
}
