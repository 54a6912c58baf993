package backendtest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/backendtest"
)

// Two memory stores show no difference. This tests that scripts depend only on their seed,
// and that the player compares nothing random.
func TestScriptsShowNoDifferenceBetweenTwoStores(t *testing.T) {
	h := memoryHarness(5 * time.Second)
	below := h
	below.New = func(t *testing.T) backendtest.Service { return storeBelow(t, "/deep/down") }
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			backendtest.Differ(t, h, below, seed, 1500)
		})
	}
}
