package backendtest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// Differ plays one random script on two services, step by step, and fails t at the first
// difference. It compares results, errors and the operations that they blame, Stats (zxids by
// their order, times not at all), children, the kinds of fired watches, and the owners of
// ephemerals. The script has several sessions that create in every mode, set, delete, check,
// read with and without watches, alone and many at once, arm several watches, watch trees,
// lose requests and replies, close and expire. The script depends on seed and steps only.
//
// Each step is made by one session; afterwards all sessions catch up by Sync, so that their
// reads do not depend on time. On a real service two results are random, and so not compared:
// whether a watch saw a deletion or the break of its own session first, and the operation
// that an uncertain commit names.
//
// Differ does not compare what the clauses of Harness.Unlike of either service are about: advisory
// fields, sequence numbers except their order, the certainty of a refused commit whose reply was lost,
// and what watches tell of a state between two operations, or of changes before their Arm.
//
// A difference is printed with the seed and the latest steps, after an attempt
// to find a shorter script that shows it. Differ does not use Harness.Leaf.
func Differ(t *testing.T, a, b Harness, seed uint64, steps int) {
	t.Helper()
	counts := differ(t, a, b, fmt.Sprint("seed ", seed), newScript(seed, steps, flavour{}))
	t.Logf("figure: seed %d, %d steps, no difference; %s", seed, steps, tally(counts))
	if missing := unplayed(counts); steps >= 1000 && len(missing) > 0 {
		t.Errorf("the script tested nothing of %v", missing)
	}
}

// differ plays a script on two fresh services, and returns the count of each kind of event.
func differ(t *testing.T, a, b Harness, name string, script []step) map[string]int {
	t.Helper()
	d, counts := compare(t, a, b, script)
	if d != nil {
		short, runs := shrink(t, a, b, script[:d.step+1], d)
		t.Fatalf("%s: the services differ at step %d of %d.\n%v\nShortened to %d steps in %d runs:\n%v",
			name, d.step, len(script), d, len(short.script), runs, short)
	}
	return counts
}

// tally formats the counts.
func tally(counts map[string]int) string {
	var all []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s %d", what, counts[what]))
	}
	return strings.Join(all, ", ")
}

// unplayed returns the kinds of events that a long script must include and that did not
// occur.
func unplayed(counts map[string]int) []string {
	var missing []string
	for _, what := range []string{
		"success", "error: not found", "error: exists", "error: bad version", "error: not empty", "error: no children",
		"error: uncertain", "error: bad path", "watch fired: look again", "watch fired: deleted", "close", "expire",
		"arm", "arm: look again", "arm: not fired", "error: invalid",
		"watch a tree", "stop a tree watch", "tree: created", "tree: changed", "tree: deleted", "tree watch over",
		"read many", "read of many: data", "read of many: children", "read of many: error",
	} {
		if counts[what] == 0 {
			missing = append(missing, what)
		}
	}
	return missing
}

// A difference is a point where two services disagree.
type difference struct {
	script []step
	step   int
	reason string
}

// String returns the latest steps and the reason.
func (d *difference) String() string {
	const most = 25
	var b strings.Builder
	first := max(0, d.step+1-most)
	if first > 0 {
		fmt.Fprintf(&b, "  … %d steps before\n", first)
	}
	for i := first; i <= d.step; i++ {
		fmt.Fprintf(&b, "  %d. %v\n", i, d.script[i])
	}
	b.WriteString(d.reason)
	return b.String()
}

// compare plays a script on two fresh services, and returns the count of each kind of event
// on the first.
func compare(t *testing.T, a, b Harness, script []step) (*difference, map[string]int) {
	t.Helper()
	u := unlikeOf(a, b)
	pa, pb := newPlayer(t, a, u), newPlayer(t, b, u)
	defer func() {
		for _, p := range []*player{pa, pb} {
			if err := p.end(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	}()
	var ranks ranking
	for i, st := range script {
		reason := ranks.disagree(pa.play(st), pb.play(st))
		if reason == "" && (i%20 == 19 || i == len(script)-1) {
			if reason = ranks.disagree(pa.picture(), pb.picture()); reason != "" {
				reason = "In the tree after this step:\n" + reason
			}
		}
		if reason != "" {
			return &difference{script, i, reason}, pa.counts
		}
	}
	return nil, pa.counts
}

// A ranking records which zxids of two services belong together.
type ranking struct {
	pairs []zxidPair // sorted by a, and so by b
}

type zxidPair struct{ a, b int64 }

// disagree returns how two observations differ, or "".
func (r *ranking) disagree(a, b *observation) string {
	if a.text.String() != b.text.String() {
		return fmt.Sprintf("The first returned:\n%sThe second returned:\n%s", indent(a.text.String()), indent(b.text.String()))
	}
	if len(a.zxids) != len(b.zxids) {
		return fmt.Sprintf("%d zxids and %d zxids", len(a.zxids), len(b.zxids))
	}
	for i := range a.zxids {
		if !r.fits(a.zxids[i], b.zxids[i]) {
			const fields = "czxid, mzxid, pzxid"
			return fmt.Sprintf("Both returned:\n%sbut zxid %#x of the first belongs to another commit than %#x of the second (number %d of: %s, …)",
				indent(a.text.String()), a.zxids[i], b.zxids[i], i+1, fields)
		}
	}
	return ""
}

// fits reports whether two zxids can belong to the same commit, and records the pair.
func (r *ranking) fits(a, b int64) bool {
	i, found := slices.BinarySearchFunc(r.pairs, a, func(p zxidPair, a int64) int { return cmp.Compare(p.a, a) })
	if found {
		return r.pairs[i].b == b
	}
	if i > 0 && r.pairs[i-1].b >= b || i < len(r.pairs) && r.pairs[i].b <= b {
		return false
	}
	r.pairs = slices.Insert(r.pairs, i, zxidPair{a, b})
	return true
}

func indent(s string) string {
	if s == "" {
		return "    (nothing)\n"
	}
	return "    " + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n    ") + "\n"
}

// shrink removes steps as long as a difference remains, within limits.
func shrink(t *testing.T, a, b Harness, script []step, found *difference) (*difference, int) {
	t.Helper()
	const mostRuns, mostTime = 150, 30 * time.Second
	start, runs := time.Now(), 0
	for size := (len(script) + 1) / 2; size > 0; size /= 2 {
		for at := 0; at < len(script); {
			if runs == mostRuns || time.Since(start) > mostTime {
				return found, runs
			}
			runs++
			rest := slices.Concat(script[:at], script[min(at+size, len(script)):])
			if d, _ := compare(t, a, b, rest); d != nil {
				found, script = d, rest[:d.step+1]
			} else {
				at += size
			}
		}
	}
	return found, runs
}
