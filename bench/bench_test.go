package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/zktest"
)

func requireZooKeeper(t *testing.T) {
	t.Helper()
	zktest.Require(t)
}

// children returns the child processes of this process.
func children(t *testing.T) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(files) == 0 {
		t.Skip("this system does not list processes")
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil { // otherwise the thread has ended
			pids = append(pids, strings.Fields(string(b))...)
		}
	}
	return pids
}

var tinySizes = sizes{
	rounds: 2, long: 5 * time.Millisecond, short: 4 * time.Millisecond, widths: []int{1, 3},
	waiters: []int{1, 3}, depths: []int{0, 10}, batches: []int{1, 5},
	members: []int{2, 3}, sites: []int{1, 2}, nodes: []int{50, 250}, idle: 20,
	clients: []int{2, 3}, crowd: []int{3}, watches: []int{20},
	divisions: []division{{12, 3}}, patience: 20 * time.Second, together: []int{1, 3}, consumers: []int{1, 3}, batch: 5, producers: []int{1, 2}, backlog: 6,
	callers: []int{1, 3}, putters: []int{1, 2}, handlers: []int{1, 8}, fill: 50,
}

// Every cell without servers yields its figures.
func TestEveryCellOnMemoryYieldsFigures(t *testing.T) {
	e := &env{root: "/bench", direct: &place{}, near: &place{oneWay: nearOneWay}, far: &place{oneWay: farOneWay}, counted: &place{}}
	e.memory = &place{where: onMemory, root: e.root, store: memory.New(&memory.Options{SessionTimeout: time.Minute})}
	e.atEnd(e.memory.Close)
	defer e.Close()
	groups, err := plan(e, &peers{}, tinySizes, nil)
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, g := range groups {
		for _, c := range g.cells {
			if names[c.String()] {
				t.Errorf("two cells are called %s", c)
			}
			names[c.String()] = true
		}
		g.cells = slices.DeleteFunc(g.cells, func(c *cell) bool { return c.Where != onMemory })
	}
	r := &runner{out: io.Discard, notes: io.Discard, rounds: tinySizes.rounds, table: &table{}}
	results, err := r.run(t.Context(), groups)
	if err != nil {
		t.Fatal(err)
	}
	want := len(operations())*len(tinySizes.widths) + 1 + 2 + len(tinySizes.nodes)
	want += 2*(len(tinySizes.widths)+len(tinySizes.clients)) + len(tinySizes.watches) // of the services
	want += len(tinySizes.divisions)
	if len(results) != want {
		t.Errorf("%d cells on memory, want %d", len(results), want)
	}
	for _, x := range results {
		switch {
		case x.Error != "":
			t.Errorf("%s: %s", x.name, x.Error)
		case x.Group == "caches":
			checkFigures(t, x, mTime, mRate)
		case x.Group == servicesWatches:
			if x.Figures[mTime].Min <= 0 || x.Figures[mP50].Min <= 0 { // fewer rounds
				t.Errorf("%s: %+v", x.name, x.Figures)
			}
		case x.Group == shardsGroupName:
			if x.Figures[mTime].Min <= 0 || x.Figures[mMoves].Min < 12 || x.Figures[mJoinMoves].Median != 3 || x.Figures[mLeaveMoves].Median != 3 { // fewer rounds
				t.Errorf("%s: %+v", x.name, x.Figures)
			}
		case x.Group == "memory":
			checkFigures(t, x, mMemory)
		default:
			checkFigures(t, x, mRate, mP50, mAllocs)
		}
	}
}

// checkFigures requires one value for each round, none of which is negative.
func checkFigures(t *testing.T, x *result, metrics ...metric) {
	t.Helper()
	for _, m := range metrics {
		f, ok := x.Figures[m]
		if !ok || len(f.Values) != tinySizes.rounds || f.Max < f.Median || f.Median < f.Min || (m != mMemory && f.Min < 0) {
			t.Errorf("%s: %s is %+v", x.name, m, f)
		}
	}
}

// The counts on servers are the same in every run.
func TestARunOnZooKeeperCountsExactly(t *testing.T) {
	requireZooKeeper(t)
	dir := t.TempDir()
	var out, notes strings.Builder
	if code := run(t.Context(), []string{"-quick", "-run", "^(costs|waiters|double barriers)$", "-out", dir}, &out, &notes); code != 0 {
		t.Fatalf("exit code %d:\n%s\n%s", code, out.String(), notes.String())
	}
	for _, want := range []string{
		`Mutex +coord +ZooKeeper +2: Lock 1, Release 1 +2 `,
		`Txn under a guard +coord +ZooKeeper +1: Commit 1 +1 `,
		`release with others waiting +coord +ZooKeeper +50 waiters +2 +2 +2 `,
		`uncontended lock: round trips: 1, want ≤ 1: met`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "barrier-time.svg")); err != nil {
		t.Error(err)
	}
	if c := children(t); len(c) > 0 {
		t.Errorf("processes %v are left", c)
	}
}

// Given servers are left as they were.
func TestARunOnGivenServersLeavesNoNodes(t *testing.T) {
	requireZooKeeper(t)
	e := zktest.Run(t, nil)
	var out, notes strings.Builder
	args := []string{"-quick", "-run", "^(memory|caches|failover)$", "-out", t.TempDir(), "-servers", strings.Join(e.Addrs(), ",")}
	if code := run(t.Context(), args, &out, &notes); code != 0 {
		t.Fatalf("exit code %d:\n%s\n%s", code, out.String(), notes.String())
	}
	if !strings.Contains(out.String(), "the holder dies") || strings.Contains(out.String(), "the leading server dies") {
		t.Errorf("given servers were killed:\n%s", out.String())
	}
	c, err := dialRaw(t.Context(), e.Addrs(), sessionTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if names, _, err := c.Children("/"); err != nil || !slices.Equal(names, []string{"zookeeper"}) {
		t.Errorf("nodes left: %v, %v", names, err)
	}
}

// The quick form with all peers takes minutes, so it is only in the long run.
func TestTheQuickRunWithPeers(t *testing.T) {
	if os.Getenv("COORD_LONG") != "1" {
		t.Skip("set COORD_LONG=1")
	}
	requireZooKeeper(t)
	var out, notes strings.Builder
	began := time.Now()
	code := run(t.Context(), []string{"-quick", "-peers", "-out", t.TempDir()}, &out, &notes)
	fmt.Fprintln(os.Stderr, out.String())
	if code != 0 {
		t.Errorf("exit code %d:\n%s", code, notes.String())
	}
	t.Logf("figure: the quick benchmarks with all peers took %.0f s", time.Since(began).Seconds())
}
