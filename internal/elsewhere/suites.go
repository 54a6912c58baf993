package elsewhere

import (
	"os"
	"regexp"
	"testing"
)

// Pass runs tests of a package of the root module as Run does, logs their figures, and fails unless all pass, and the wanted ones are among
// them. It returns what they print.
func (m Module) Pass(t *testing.T, folder string, env, wanted []string, args ...string) string {
	t.Helper()
	out, err := m.Run(t, folder, env, args...)
	for _, line := range regexp.MustCompile(`figure: .*`).FindAllString(out, -1) {
		t.Log(line)
	}
	for _, name := range wanted {
		if !Passed(out, name) {
			t.Errorf("%s has not passed", name)
		}
	}
	if err != nil || t.Failed() {
		t.Errorf("%v\n%s", err, Tail(out))
	}
	return out
}

// Sweep plays each recipe with one request, reply, connection or session lost at each of its requests: the run of internal/sweep. The short
// form plays a lock, permits, a queue and a transaction.
func (m Module) Sweep(t *testing.T, env ...string) {
	t.Helper()
	which, least := "(uncontended|semaphore|^queue$|^work$|^two-phase_commit$)", 5
	if os.Getenv("COORD_LONG") != "" {
		which, least = "", 20
	}
	out := m.Pass(t, "internal/sweep", env, nil, "-timeout", "2h", "-run", "^TestEveryRecipeStandsAFaultAtEachOfItsRequests$/"+which)
	passed := regexp.MustCompile(`(?m)^    --- PASS: TestEveryRecipeStandsAFaultAtEachOfItsRequests/`).FindAllString(out, -1)
	if len(passed) < least {
		t.Errorf("%d recipes passed\n%s", len(passed), Tail(out))
	}
}

// Crowds runs the forms of internal/simulation that run on a real server.
func (m Module) Crowds(t *testing.T, env ...string) {
	t.Helper()
	wanted := []string{"TestAHundredWorkersNeverHaveMoreThanElevenPermits/zookeeper", "TestRoundsOfADoubleBarrierOnZooKeeper"}
	m.Pass(t, "internal/simulation", append(env, "COORD_LONG="), wanted,
		"-timeout", "10m", "-run", "^(TestAHundredWorkersNeverHaveMoreThanElevenPermits|TestRoundsOfADoubleBarrierOnZooKeeper)$", "-skip", "/^memory")
}
