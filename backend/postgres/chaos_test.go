//go:build linux

package postgres_test

import (
	"cmp"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/go-coord/coord/internal/elsewhere"
)

// All recipes at once in several processes, on a primary and a synchronous standby that are killed, paused,
// restarted and promoted, over networks that fail: the run of internal/chaos, with its length.
func TestChaos(t *testing.T) {
	t.Parallel()
	out, err := module.Run(t, "internal/chaos", nil, "-timeout", "2h", "-run", "^(TestEveryRecipeStandsAllFaults|TestTheCheckOfHoldsFindsTwoHolders|TestALostAcknowledgedWriteIsDetected)$")
	for _, line := range regexp.MustCompile(`figure: .*`).FindAllString(out, -1) {
		t.Log(line)
	}
	for _, want := range []string{"TestEveryRecipeStandsAllFaults", "TestTheCheckOfHoldsFindsTwoHolders", "TestALostAcknowledgedWriteIsDetected"} {
		if !strings.Contains(out, "\n--- PASS: "+want+" ") {
			err = cmp.Or(err, errors.New(want+" has not passed"))
		}
	}
	if err != nil {
		t.Errorf("%v\n%s", err, elsewhere.Tail(out))
	}
}
