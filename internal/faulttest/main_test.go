//go:build linux

package faulttest

import (
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zktest"
)

// server is the single server for counting requests and round trips. The tests that kill and
// pause servers start their own ensembles.
var server = zktest.Shared{Options: &zktest.Options{
	MaxSessionTimeout: countTimeout, // a stall of the machine must not break what is counted
}}

const countTimeout = 40 * time.Second

func TestMain(m *testing.M) {
	if role, task := proc.Role(); role == workerRole {
		os.Exit(workerMain(task))
	}
	goleak.VerifyTestMain(server.Main(m))
}

func long() bool { return os.Getenv("COORD_LONG") == "1" }

// rounds returns the number of rounds of a scenario.
func rounds(short int) int {
	if long() {
		return 20
	}
	return short
}

// subtest is one of several concurrent subtests.
type subtest struct {
	name string
	run  func(t *testing.T)
}

// together runs all subtests concurrently, whatever the value of -parallel: they spend their
// time waiting for timeouts of servers.
func together(t *testing.T, tests ...subtest) {
	t.Helper()
	var wg sync.WaitGroup
	for _, s := range tests {
		wg.Go(func() { t.Run(s.name, s.run) })
	}
	wg.Wait()
}

// limit is the timeout for events that must happen. It is generous, since test machines are
// busy.
const limit = 60 * time.Second

// eventually polls a condition that has no signal.
func eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for began := time.Now(); !cond(); coordtest.Pause(began) {
		if time.Since(began) > limit {
			tb.Fatalf("never happened: %s", what)
		}
	}
}

// receive waits for a value that must arrive.
func receive[T any](tb testing.TB, ch <-chan T, what string) T {
	tb.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		tb.Fatalf("never came: %s", what)
		panic("unreachable")
	}
}

// wallOffset returns the difference of the wall clock and the clock of proc.Now.
func wallOffset() time.Duration {
	best, offset := time.Hour, time.Duration(0)
	for range 10 {
		from, wall, to := proc.Now(), time.Now(), proc.Now()
		if to-from < best {
			best, offset = to-from, time.Duration(wall.UnixNano())-from-(to-from)/2
		}
	}
	return offset
}
