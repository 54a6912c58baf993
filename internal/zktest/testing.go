package zktest

import (
	"context"
	"os"
	"sync"
	"testing"
)

// Require skips the test if ZooKeeper is not installed. With COORD_REQUIRE_ZK=1 in the
// environment it fails instead, so that a machine that must have ZooKeeper cannot pass by
// skipping.
func Require(tb testing.TB) {
	tb.Helper()
	if _, err := Find(); err != nil {
		Missing(tb, err)
	}
}

// Missing skips a test that needs a program which is not installed, or fails it with COORD_REQUIRE_ZK=1.
func Missing(tb testing.TB, err error) {
	tb.Helper()
	if os.Getenv("COORD_REQUIRE_ZK") == "1" {
		tb.Fatalf("COORD_REQUIRE_ZK=1: %v", err)
	}
	tb.Skip(err)
}

// Run starts an ensemble for one test and closes it at the end of the test. If the test
// fails, Run logs the end of the servers' logs. It skips as Require does.
func Run(tb testing.TB, opts *Options) *Ensemble {
	tb.Helper()
	Require(tb)
	e, err := Start(tb.Context(), opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			for _, s := range e.Servers() {
				tb.Logf("end of the log of server %d at %s:\n%s", s.ID(), s.Addr(), s.LogTail())
			}
		}
		if err := e.Close(); err != nil {
			tb.Errorf("close ensemble: %v", err)
		}
	})
	return e
}

// Shared is one ensemble for all tests of a package. Declare it as a variable
// next to TestMain:
//
//	var shared zktest.Shared
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }
//
//	func TestX(t *testing.T) { e := shared.Get(t) … }
//
// The first Get starts the ensemble, so a run without tests that need it costs nothing. The
// tests must use separate paths, and must not kill or pause its servers. A test that checks
// for its own leaked goroutines calls Get before goleak.IgnoreCurrent.
type Shared struct {
	Options *Options // of the ensemble, nil for the default; set before the first Get

	once     sync.Once
	ensemble *Ensemble
	err      error
}

// Get returns the shared ensemble. It skips as Require does, and fails the test
// if the ensemble did not start.
func (s *Shared) Get(tb testing.TB) *Ensemble {
	tb.Helper()
	Require(tb)
	s.once.Do(func() { s.ensemble, s.err = Start(context.Background(), s.Options) })
	if s.err != nil {
		tb.Fatal(s.err)
	}
	return s.ensemble
}

// Close ends the ensemble if it was started. No test may use it any more.
func (s *Shared) Close() error {
	s.once.Do(func() { s.err = errClosed })
	if s.ensemble == nil {
		return nil
	}
	return s.ensemble.Close()
}

// Main wraps the argument of TestMain so that the ensemble is closed after the tests have run
// and before the check for leaked goroutines.
func (s *Shared) Main(m interface{ Run() int }) *SharedMain { return &SharedMain{s, m} }

// SharedMain runs tests and closes their shared ensemble. See Shared.
type SharedMain struct {
	shared *Shared
	m      interface{ Run() int }
}

// Run runs the tests, closes the shared ensemble, and returns the exit code.
func (r *SharedMain) Run() int {
	code := r.m.Run()
	if err := r.shared.Close(); err != nil {
		println("zktest: close shared ensemble:", err.Error())
		return max(code, 1)
	}
	return code
}
