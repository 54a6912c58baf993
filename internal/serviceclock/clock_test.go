package serviceclock

import (
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

// localClock is a clock of this process that begins with the test.
type localClock struct{ began time.Time }

func (c localClock) Monotonic() int64 { return int64(time.Since(c.began)) }
func (c localClock) Wall() time.Time  { return time.Now() }

// A Carry that was compared and not written returns the time of an earlier write. It tells nothing of when
// its commit was made.
func TestServiceClock_ACarryThatIsNotWrittenIsNoSample(t *testing.T) {
	k := New(true, localClock{time.Now()})
	p := k.Send(make(chan struct{}))
	stat := backend.Stat{Mzxid: 5, AsOf: 9, Mtime: time.Now().Add(-time.Hour).UnixMilli()}
	if k.Sent(p, &stat); k.Now().Known {
		t.Error("a mark that was written an hour ago counts as a sample")
	}
	stat = backend.Stat{Mzxid: 9, AsOf: 9, Mtime: time.Now().UnixMilli()}
	if k.Sent(p, &stat); !k.Now().Known {
		t.Error("a mark that was written does not count as a sample")
	}
}

// The stamp of a commit is judged in whole milliseconds, and only where the clock of the service counts.
func TestServiceClock_ACommitPrecedesOnlyLaterTimes(t *testing.T) {
	const at = 946_684_800_000
	refused := New(true, localClock{time.Now()})
	refused.Refuse()
	for _, tc := range []struct {
		name  string
		clock *Clock
		stamp int64
		due   int64
		want  bool
	}{
		{"a millisecond before", New(true, localClock{}), at, at + 1, true},
		{"at that time", New(true, localClock{}), at, at, false},
		{"after it", New(true, localClock{}), at + 1, at, false},
		{"long before the last year that counts", New(true, localClock{}), at, 1 << 62, true},
		{"in the last year that counts", New(true, localClock{}), maxStamp, maxStamp + 1, false},
		{"due at once", New(true, localClock{}), at, 0, false},
		{"no stamp", New(true, localClock{}), 0, at, false},
		{"no clock of the service", New(false, localClock{}), at, at + 1, false},
		{"a clock that the session may not learn", refused, at, at + 1, false},
	} {
		if got := tc.clock.Precedes(&backend.Stat{Mtime: tc.stamp}, tc.due); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
