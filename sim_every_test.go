package coord_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// parting plays a seed until two histories differ, and returns what came before and
// where they part.
func (sc *scenario) parting(t *testing.T, seed uint64) string {
	_, first := sc.history(t, seed, make(map[string]int), false, make([]string, 0, 1000))
	for range 200 {
		_, other := sc.history(t, seed, make(map[string]int), false, make([]string, 0, 1000))
		for i, line := range other {
			if i < len(first) && line != first[i] {
				return strings.Join(append(first[max(0, i-12):i], "- "+first[i], "+ "+line), "\n")
			}
		}
	}
	return "(not again in 200 runs)"
}

// scenarios are all that are simulated.
func scenarios() []*scenario {
	return []*scenario{
		mutexScenario(), rwMutexScenario(), lockAllScenario(), revocationScenario(), semaphoreScenario(),
		barrierScenario(), doubleBarrierScenario(), electionScenario(), groupScenario(), valueScenario(), txnScenario(), cacheScenario(), commitScenario(),
		queueScenario("fifo", 8), queueScenario("priority", 4), queueScenario("delay", 4), queueScenario("limited", 3), queueScenario("dead letters", 4),
	}
}

// simSchedules is how many schedules are played of all recipes together.
func simSchedules() int {
	switch {
	case long():
		return 100_000
	case raceDetector:
		return 1_000
	}
	return 10_000
}

var alwaysFaults = []string{"partition", "blip", "expiry", "lost request", "lost reply", "pause", "latency", "close", "uncertain outcome"}

// Every recipe is simulated with many seeds. COORD_SEED plays one of them, and
// prints what happens.
func TestEveryRecipeInSimulation(t *testing.T) {
	one, _ := strconv.ParseUint(os.Getenv("COORD_SEED"), 10, 64)
	all, played, total := 0, 0, make(map[string]int)
	for _, sc := range scenarios() {
		all += sc.share
	}
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			count := make(map[string]int)
			if one != 0 {
				t.Logf("history %x", sc.run(t, one, count, true))
				return
			}
			seeds := max(1, simSchedules()*sc.share/all)
			for seed := range uint64(seeds) {
				if sc.run(t, seed+1, count, false); t.Failed() {
					return
				}
			}
			t.Logf("figure: simulation of the %s: %d schedules, 0 violations, %s", sc.name, seeds, countText(count))
			played += seeds
			for what, n := range count {
				total[what] += n
			}
			must := slices.DeleteFunc(slices.Clone(alwaysFaults), func(f string) bool { return slices.Contains(sc.without, f) })
			if seeds >= simEnough {
				must = append(must, sc.must...)
			}
			for _, what := range must {
				if count[what] == 0 {
					t.Errorf("%q never happened: the simulation tested nothing of it", what)
				}
			}
		})
	}
	if one == 0 {
		t.Logf("figure: simulation of all recipes: %d schedules, %s", played, countText(total))
	}
}

func countText(count map[string]int) string {
	var list []string
	for _, what := range slices.Sorted(maps.Keys(count)) {
		list = append(list, fmt.Sprint(count[what], " ", what))
	}
	return strings.Join(list, ", ")
}

// The same seed gives the same history, message by message.
func TestASimulationReplaysExactly(t *testing.T) {
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			seeds := max(3, simSchedules()/250)
			differ := 0
			for seed := range uint64(seeds) {
				a := sc.run(t, seed+1, make(map[string]int), false)
				b := sc.run(t, seed+1, make(map[string]int), false)
				if a != b {
					differ++
					t.Errorf("seed %d: the histories differ:\n%s", seed+1, sc.parting(t, seed+1))
					if differ == 3 {
						return
					}
				}
			}
			t.Logf("figure: %d of %d seeds of the %s have another history the second time", differ, seeds, sc.name)
		})
	}
}
