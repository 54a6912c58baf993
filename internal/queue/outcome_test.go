package queue

import (
	"math"
	"testing"
	"time"
)

// The delay after a failed attempt grows up to the longest one, and stays there however many attempts fail.
func TestWork_DelayAfterAFailureNeverShrinks(t *testing.T) {
	before := time.Duration(0)
	for attempt := 1; attempt < 1000; attempt++ {
		d := defaultRetry(attempt)
		if d < before || d < firstRetry || d > lastRetry {
			t.Fatalf("%v after attempt %d, %v after the previous attempt", d, attempt, before)
		}
		before = d
	}
	if before != lastRetry || defaultRetry(math.MaxInt) != lastRetry {
		t.Errorf("%v after many attempts, want %v", before, lastRetry)
	}
}
