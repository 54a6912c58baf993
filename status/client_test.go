package status

import (
	"testing"
	"time"

	"github.com/go-coord/coord/trace"
)

// A run is reported when the service has confirmed its end. The next one can have begun and ended since.
func TestSchedule_ALateReportOfAnEarlierRunIsNotTheLatestOutcome(t *testing.T) {
	var x client
	now := time.Unix(1000, 0)
	end := func(planned int64, attempt int, o trace.RunOutcome, want string) {
		t.Helper()
		x.ran(trace.RunEnded{Subject: trace.Subject{Path: "/jobs"}, Planned: time.Unix(planned, 0), Attempt: attempt, Outcome: o}, now)
		if got := x.job("/jobs", now).Outcome; got != want {
			t.Errorf("after attempt %d of %d: %s, want %s", attempt, planned, got, want)
		}
	}
	end(2, 1, trace.RunFailed, "failed")
	end(1, 1, trace.RunDone, "failed")
	end(2, 2, trace.RunDone, "done")
	end(2, 1, trace.RunFailed, "done")
	end(3, 1, trace.RunAbandoned, "done")
	end(3, 1, trace.RunLost, "lost")
	end(3, 2, trace.RunDone, "done")
	if s := x.job("/jobs", now); s.Done != 3 || s.Failed != 2 || s.Lost != 1 || s.Abandoned != 1 {
		t.Errorf("counted %+v", s)
	}
}
