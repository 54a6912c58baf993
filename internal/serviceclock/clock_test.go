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
