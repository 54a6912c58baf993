package postgres_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/go-coord/coord/internal/elsewhere"
)

// Each recipe with one request, reply, connection or session lost at each of its requests: the run of
// internal/sweep. The short form plays a lock, permits, a queue and a transaction.
func TestSweep(t *testing.T) {
	t.Parallel()
	which, least := "(uncontended|semaphore|^queue$|^two-phase_commit$)", 4
	if os.Getenv("COORD_LONG") != "" {
		which, least = "", 20
	}
	out, err := module.Run(t, "internal/sweep", []string{"COORD_POSTGRES_SERVER=" + shared.Get(t).Addr()},
		"-timeout", "2h", "-run", "^TestEveryRecipeStandsAFaultAtEachOfItsRequests$/"+which)
	for _, line := range regexp.MustCompile(`figure: .*`).FindAllString(out, -1) {
		t.Log(line)
	}
	passed := regexp.MustCompile(`(?m)^    --- PASS: TestEveryRecipeStandsAFaultAtEachOfItsRequests/`).FindAllString(out, -1)
	if err != nil || len(passed) < least {
		t.Errorf("%d recipes passed, %v\n%s", len(passed), err, elsewhere.Tail(out))
	}
}
