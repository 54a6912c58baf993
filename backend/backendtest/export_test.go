package backendtest

import (
	"fmt"
	"testing"
)

// NearNames are the directories of DifferNear, below the root of the service.
var NearNames = nearNames

// DifferNear is Differ on services that have the directories called NearNames, whose sequence
// numbers reach their end.
func DifferNear(t *testing.T, a, b Harness, seed uint64, steps int) map[string]int {
	t.Helper()
	return differ(t, a, b, seedName(seed), newScript(seed, steps, flavour{near: true}))
}

// DifferWide is Differ with large data, and with children of containers, which the services
// must not remove.
func DifferWide(t *testing.T, a, b Harness, seed uint64, steps int) map[string]int {
	t.Helper()
	return differ(t, a, b, seedName(seed), newScript(seed, steps, flavour{boxes: true, large: true}))
}

// DifferCollecting is Differ with containers that the services remove.
func DifferCollecting(t *testing.T, a, b Harness, seed uint64, steps int) map[string]int {
	t.Helper()
	return differ(t, a, b, seedName(seed), newScript(seed, steps, flavour{collects: true}))
}

// DifferEverywhere plays every refusal at every place of a commit, and every short
// sequence of operations on one node as one commit.
func DifferEverywhere(t *testing.T, a, b Harness, mostOps int) (commits int, counts map[string]int) {
	t.Helper()
	script := everywhere(mostOps)
	return len(script), differ(t, a, b, "every refusal at every place", script)
}

// Tally formats the counts.
func Tally(counts map[string]int) string { return tally(counts) }

func seedName(seed uint64) string { return fmt.Sprint("seed ", seed) }
