//go:build linux

package etcd_test

import (
	"cmp"
	"errors"
	"regexp"
	"strings"
	"testing"
)

// All recipes at once in several processes, on three members that are killed, paused, cut off from
// each other, compacted and without space, over networks that fail: the run of internal/chaos, with its length.
func TestEveryRecipeStandsAllFaultsOnEtcd(t *testing.T) {
	t.Parallel()
	out, err := elsewhere(t, "internal/chaos", nil, "-timeout", "2h", "-run", "^(TestEveryRecipeStandsAllFaults|TestTheCheck.*|TestSettling.*|TestALostAcknowledgedWriteIsDetected)$")
	for _, line := range regexp.MustCompile(`figure: .*`).FindAllString(out, -1) {
		t.Log(line)
	}
	for _, want := range []string{"TestEveryRecipeStandsAllFaults", "TestTheCheckOfHoldsFindsTwoHolders", "TestALostAcknowledgedWriteIsDetected"} {
		if !strings.Contains(out, "\n--- PASS: "+want+" ") {
			err = cmp.Or(err, errors.New(want+" has not passed"))
		}
	}
	if err != nil {
		t.Errorf("%v\n%s", err, tail(out))
	}
}
