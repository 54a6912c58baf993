//go:build linux

package postgres_test

import (
	"errors"
	"regexp"
	"testing"

	"github.com/go-coord/coord/internal/zktest"
)

// All recipes at once in several processes, on a primary and a synchronous standby that are killed, paused,
// restarted and promoted, over networks that fail, with a disk that is full and a clock that is set: the run of
// internal/chaos, with its length. An asynchronous standby is not part of it: its promotion loses commits that were
// answered, as the package comment says, so a judge would have to excuse what it must find.
//
// A full disk needs the right to mount, and a clock a C compiler. Without them the test does as zktest.Missing, after
// the other faults.
func TestChaos(t *testing.T) {
	t.Parallel()
	out := module.Pass(t, "internal/chaos", nil, []string{"TestEveryRecipeStandsAllFaults", "TestTheCheckOfHoldsFindsTwoHolders", "TestALostAcknowledgedWriteIsDetected"},
		"-timeout", "2h", "-run", "^(TestEveryRecipeStandsAllFaults|TestTheCheckOfHoldsFindsTwoHolders|TestALostAcknowledgedWriteIsDetected)$")
	if missing := regexp.MustCompile(`[^,]*NOT INJECTED \([^)]*\)`).FindString(out); missing != "" {
		zktest.Missing(t, errors.New(missing))
	}
}
