//go:build linux

package faulttest

import (
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/internal/zktest"
)

// server is the single server on which requests and round trips are counted.
// The tests that kill and pause servers start ensembles of their own.
var server zktest.Shared

func TestMain(m *testing.M) {
	if spec := os.Getenv(workerEnv); spec != "" {
		os.Exit(workerMain(spec))
	}
	goleak.VerifyTestMain(server.Main(m))
}

func long() bool { return os.Getenv("COORD_LONG") == "1" }

// rounds is how often a scenario is played.
func rounds(short int) int {
	if long() {
		return 20
	}
	return short
}

// subtest is one of those that run together.
type subtest struct {
	name string
	run  func(t *testing.T)
}

// together runs subtests concurrently, all of them, whatever -parallel says:
// they spend their time waiting for timeouts of servers.
func together(t *testing.T, tests ...subtest) {
	t.Helper()
	var wg sync.WaitGroup
	for _, s := range tests {
		wg.Go(func() { t.Run(s.name, s.run) })
	}
	wg.Wait()
}

// limit is how long the tests wait for something that must happen. It is
// generous: machines that run tests are busy.
const limit = 60 * time.Second

// eventually waits for a condition that nothing signals.
func eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(limit); !cond(); {
		if time.Now().After(deadline) {
			tb.Fatalf("never happened: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// receive waits for a value that must come.
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
