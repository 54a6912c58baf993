package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func counts(n name, trips, requests float64) *result {
	return &result{name: n, Figures: summarize([]sample{{mTrips: trips, mRequests: requests, mP50: 1000 * trips}})}
}

func TestTwoRunsAreCompared(t *testing.T) {
	t.Parallel()
	lock := name{Group: "costs", What: "Mutex", Who: byCoord, Where: onZooKeeper}
	one := &report{
		Results: append(someResults()[:4], counts(lock, 2, 2)),
		Targets: []target{{Name: "times another", AtLeast: true, Figure: 2, Known: true}, {Name: "unknown", AtLeast: true}},
	}
	same := compare(one, one)
	// Two cells have a limit, and there is a target.
	if same.Counts != 2 || same.Ratios != 3 || len(same.Differ)+len(same.Apart)+len(same.Missing) != 0 || same.worst != 1 {
		t.Errorf("a run compared with itself: %+v", same)
	}
	other := &report{
		Results: append(someResults()[:4], counts(lock, 2, 3)),
		Targets: []target{{Name: "times another", AtLeast: true, Figure: 2.4, Known: true}, {Name: "unknown", AtLeast: true}},
	}
	other.Results[3] = rates(other.Results[3].name, 700) // 0.7 instead of 0.5
	got := compare(one, other)
	if len(got.Differ) != 1 || !strings.Contains(got.Differ[0], "requests is 2 and 3") {
		t.Errorf("counts that differ: %q", got.Differ)
	}
	if len(got.Apart) != 1 || !strings.Contains(got.Apart[0], "16 callers, of the limit: 0.5 and 0.7") {
		t.Errorf("ratios that are apart: %q", got.Apart)
	}

	less := &report{Results: someResults(), Targets: one.Targets[:1]} // a failed cell, a missing cell, one target less
	if got := compare(one, less); len(got.Missing) != 2 {
		t.Errorf("not compared: %q", got.Missing)
	}
	if got := compare(less, one); len(got.Missing) != 2 {
		t.Errorf("not compared the other way: %q", got.Missing)
	}

	var files []string
	for i, r := range []*report{one, other} {
		dir := filepath.Join(t.TempDir(), string(rune('a'+i)))
		r.table = &table{}
		if err := r.write(dir, "results"); err != nil {
			t.Fatal(err)
		}
		files = append(files, filepath.Join(dir, "results.json"))
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-compare", files[0], files[0]}, 0, "2 counts, 0 differ; 3 ratios, 0 further apart than 1.25, at most 1; 0 not compared"},
		{[]string{"-compare", files[0], files[1]}, 1, "2 counts, 1 differ; 3 ratios, 1 further apart"},
		{[]string{"-compare", files[0]}, 2, "two results.json"},
		{[]string{"-compare", files[0], filepath.Join(t.TempDir(), "none")}, 2, "no such file"},
	} {
		var out strings.Builder
		if code := run(t.Context(), c.args, &out, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%q: code %d, want %d with %q:\n%s", c.args, code, c.code, c.says, out.String())
		}
	}
}
