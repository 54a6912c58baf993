//go:build linux

package postgres_test

import "testing"

// All recipes at once in several processes, on a primary and a synchronous standby that are killed, paused,
// restarted and promoted, over networks that fail: the run of internal/chaos, with its length.
func TestChaos(t *testing.T) {
	t.Parallel()
	module.Pass(t, "internal/chaos", nil, []string{"TestEveryRecipeStandsAllFaults", "TestTheCheckOfHoldsFindsTwoHolders", "TestALostAcknowledgedWriteIsDetected"},
		"-timeout", "2h", "-run", "^(TestEveryRecipeStandsAllFaults|TestTheCheckOfHoldsFindsTwoHolders|TestALostAcknowledgedWriteIsDetected)$")
}
