package main

import (
	"bytes"
	"encoding/json"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rates returns a result with these rates.
func rates(n name, values ...float64) *result {
	var samples []sample
	for _, v := range values {
		samples = append(samples, sample{mRate: v, mP99: 1000 * v})
	}
	return &result{name: n, Figures: summarize(samples)}
}

func someResults() []*result {
	return []*result{
		rates(name{"uncontended", whatPairs, byRaw, onZooKeeper, "callers", 1}, 100, 110, 200),
		rates(name{"uncontended", whatCycle, byCoord, onZooKeeper, "callers", 1}, 90, 88, 180),
		rates(name{"uncontended", whatPairs, byRaw, onZooKeeper, "callers", 16}, 1000),
		rates(name{"uncontended", whatCycle, byCoord, onZooKeeper, "callers", 16}, 500),
		{name: name{"uncontended", whatCycle, byKazoo, onZooKeeper, "callers", 16}, Error: "no | luck"},
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 2: "2", 0.014: "0.01", 1.5: "1.5", 12.34: "12.3", 999.6: "1000", 123456: "123456"} {
		if got := number(v); got != want {
			t.Errorf("%v is shown as %s, want %s", v, got, want)
		}
	}
}

func TestTheTableShowsSpreadAndLimit(t *testing.T) {
	tb := &table{}
	var out strings.Builder
	tb.print(&out, &group{name: "uncontended", shown: []metric{mRate, mP99}}, someResults())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range [][]string{
		{"UNCONTENDED"},
		{"what", "a second", "min – max", "p99 µs", "of the limit"},
		{"raw client", "1 callers", "110", "100 – 200", "–"},
		{"coord", "90", "88 – 180", "0.90"}, // the median of 0.9, 0.8 and 0.9
		{"raw client", "16 callers"},
		{"coord", "500", "0.50"},
		{"kazoo", "FAILED"},
		{"FAILED: uncontended: " + whatCycle + ", kazoo, ZooKeeper, 16 callers: no | luck"},
	} {
		for _, w := range want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("line %q lacks %q", lines[i], w)
			}
		}
	}
}

func TestTargetsAreJudged(t *testing.T) {
	results := append(someResults(),
		&result{name: name{"costs", "Mutex", byCoord, onZooKeeper, "", 0}, Figures: summarize([]sample{{mTripsOf + "Lock": 1, mRequests: 3}})},
		&result{name: name{"waiters", "release", byCoord, onZooKeeper, "waiters", 10}, Figures: summarize([]sample{{mWoken: 2}})},
		&result{name: name{"caches", whatSync, byCoord, onZooKeeper, "nodes", 10_000}, Figures: summarize([]sample{{mTime: 50, mMemory: 501}})},
		&result{name: name{"caches", whatSync, byCurator, onZooKeeper, "nodes", 10_000}, Figures: summarize([]sample{{mTime: 1000}})},
		&result{name: name{"caches", whatSync, byNewer, onZooKeeper, "nodes", 10_000}, Figures: summarize([]sample{{mTime: 200}})},
	)
	got := make(map[string]target)
	for _, x := range judge(results) {
		got[x.Name] = x
	}
	for name, want := range map[string]struct {
		known, met bool
		figure     float64
	}{
		"uncontended lock, 1 callers, as a part of create and delete pairs":  {true, true, 0.9},
		"uncontended lock, 16 callers, as a part of create and delete pairs": {true, false, 0.5},
		"uncontended lock, 64 callers, as a part of create and delete pairs": {false, false, 0},
		"uncontended lock: round trips":                                      {true, true, 1},
		"uncontended cycle: requests":                                        {true, false, 3},
		"clients woken by a release, 10 waiters":                             {true, true, 2},
		"first copy of 10000 nodes: time, as a part of Curator's TreeCache":  {true, true, 0.05},
		"first copy of 10000 nodes: time, as a part of CuratorCache":         {true, false, 0.25},
		"heap of a cache of 10000 nodes: bytes a node":                       {true, false, 501},
	} {
		x, ok := got[name]
		if !ok || x.Known != want.known || x.Met != want.met || x.Figure != want.figure {
			t.Errorf("%s: %+v, want %+v", name, x, want)
		}
	}
	if s := got["uncontended cycle: requests"].String(); s != "uncontended cycle: requests: 3, want ≤ 2: NOT MET" {
		t.Errorf("shown as %q", s)
	}
}

func TestAReportIsWrittenWithItsPlots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	results := someResults()
	r := &report{
		Rounds: 3, Command: "go run ./bench", Machine: thisMachine(), Results: results, Targets: judge(results),
		Missing: []missing{{byEtcd, "not installed", "etcd-server"}},
		groups:  []*group{{name: "uncontended", about: "About it.", shown: []metric{mRate}}}, table: &table{results: results},
	}
	if err := r.write(dir, "results"); err != nil {
		t.Fatal(err)
	}
	read := func(file string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var back report
	if err := json.Unmarshal(read("results.json"), &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Results) != len(results) || back.Results[0].Figures[mRate].Median != 110 || back.Results[4].Error != "no | luck" {
		t.Errorf("read back: %+v", back.Results)
	}
	md := string(read("results.md"))
	for _, want := range []string{"## Targets", "**not met**", "not measured", "skipped: etcd", "## Failed", "## Uncontended", "About it.", "| 0.90 |", "(uncontended.svg)"} {
		if !strings.Contains(md, want) {
			t.Errorf("results.md lacks %q:\n%s", want, md)
		}
	}
	if svg := string(read("uncontended.svg")); !strings.Contains(svg, "<svg") || !strings.Contains(svg, "callers") {
		t.Error("uncontended.svg is not an SVG, or has no axis")
	}
	img, err := png.Decode(bytes.NewReader(read("uncontended.png")))
	if err != nil || img.Bounds().Dx() < 300 {
		t.Errorf("uncontended.png: %v", err)
	}
	for _, file := range []string{"cache-sync.svg", "kept.svg"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			t.Errorf("%s was drawn without its results", file)
		}
	}
	for n, rate := range map[float64]float64{1: 300_000, 16: 400_000} {
		results = append(results, rates(name{"uncontended", whatCycle, keeping.who, onZooKeeper, "callers", n}, rate))
	}
	if _, err := drawAll(dir, results); err != nil {
		t.Fatal(err)
	}
	kept := string(read("kept.svg"))
	for _, want := range []string{">coord, kept<", ">100<", ">1,000<", ">100,000<", ">1,000,000<"} { // labels of powers of ten
		if !strings.Contains(kept, want) {
			t.Errorf("kept.svg lacks %s", want)
		}
	}
	if strings.Contains(string(read("uncontended.svg")), keeping.who) {
		t.Error("uncontended.svg shows kept locks, beside which the others have no height")
	}
}

func TestALineNeedsTwoPointsInOrder(t *testing.T) {
	c := &chart{group: "g", metric: mRate, per: 0.5, unit: "u"}
	lines := c.lines([]*result{
		rates(name{"g", "a", byCoord, onZooKeeper, "items", 10}, 4),
		rates(name{"g", "a", byCoord, onZooKeeper, "items", 0}, 2),
		rates(name{"g", "b", byCoord, onZooKeeper, "items", 10}, 4),
		rates(name{"other", "a", byCoord, onZooKeeper, "items", 10}, 4),
		{name: name{"g", "a", byCoord, onZooKeeper, "items", 100}, Error: "failed"},
	})
	if len(lines) != 1 || lines[0].points.Len() != 2 {
		t.Fatalf("%d lines", len(lines))
	}
	if x, y := lines[0].points.XY(0); x != 1 || y != 1 {
		t.Errorf("first point %v, %v, want 1, 1: zero has no logarithm", x, y)
	}
}

func TestTicksAreRoundAndHaveThousands(t *testing.T) {
	for _, test := range []struct {
		low, high float64
		want      string
	}{
		{0, 1, "0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1"},
		{0, 12_300, "0 2,000 4,000 6,000 8,000 10,000 12,000"},
		{0, 3_400_000, "0 500,000 1,000,000 1,500,000 2,000,000 2,500,000 3,000,000"},
		{0, 47, "0 5 10 15 20 25 30 35 40 45"},
		{3, 3, "3"},
	} {
		var got []string
		for _, tick := range (roundTicks{}).Ticks(test.low, test.high) {
			got = append(got, tick.Label)
		}
		if s := strings.Join(got, " "); s != test.want {
			t.Errorf("from %v to %v: %s, want %s", test.low, test.high, s, test.want)
		}
	}
}

// A system has one colour, whatever else a chart shows, and the labels at the ends of the lines
// do not cover each other.
func TestLinesHaveColoursOfTheirSystemsAndLabels(t *testing.T) {
	if colourOf(byCoord) != colourOf(leading.who) || colourOf(byCurator) != colourOf(byNewer) || colourOf(byCoord) == colourOf(byEtcd) {
		t.Error("the colours are not those of the systems")
	}
	var lines []*line
	for i := range 6 {
		l := &line{name: "coord", who: byCoord, points: make(points, 2)}
		l.points[1].x, l.points[1].f.Median = 64, 100+float64(i%2)/10
		lines = append(lines, l)
	}
	labels, err := lineLabels(lines, 0, 105, false)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(labels.XYs); i++ {
		if d := labels.XYs[i].Y - labels.XYs[i-1].Y; d < 4 || labels.XYs[i].Y > 105 {
			t.Errorf("labels at %v", labels.XYs)
		}
	}
}
