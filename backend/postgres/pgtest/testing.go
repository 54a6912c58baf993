package pgtest

import (
	"context"
	"sync"
	"testing"

	"github.com/go-coord/coord/internal/zktest"
)

// Require skips the test if PostgreSQL is not installed. With COORD_REQUIRE_ZK=1 in the environment
// it fails instead, so that a machine that must have the servers cannot pass by skipping.
func Require(tb testing.TB) {
	tb.Helper()
	if _, err := Find(); err != nil {
		zktest.Missing(tb, err)
	}
}

// Start starts a server for one test and closes it at the end of the test. If the test fails, Start
// logs the end of the server's log, and those of its standbys. It skips as Require does.
func Start(tb testing.TB, o *Options) *Server {
	tb.Helper()
	Require(tb)
	s, err := New(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			s.logTo(tb)
		}
		if err := s.Close(); err != nil {
			tb.Errorf("close server: %v", err)
		}
	})
	return s
}

func (s *Server) logTo(tb testing.TB) {
	tb.Logf("end of the log of the server at %s:\n%s", s.Addr(), s.LogTail())
	s.mu.Lock()
	standbys := s.standbys
	s.mu.Unlock()
	for _, standby := range standbys {
		standby.logTo(tb)
	}
}

// Shared is one server for all tests of a package. Declare it as a variable next to TestMain:
//
//	var shared pgtest.Shared
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }
//
//	func TestX(t *testing.T) { s := shared.Get(t) … }
//
// The first Get starts the server, so a run without tests that need it costs nothing. The tests must
// use separate schemas or databases, and must not stop or pause it. A test that checks for its own
// leaked goroutines calls Get before goleak.IgnoreCurrent.
type Shared struct {
	Options *Options // of the server, nil for the defaults; set before the first Get

	once   sync.Once
	server *Server
	err    error
}

// Get returns the shared server. It skips as Require does, and fails the test if the server did not
// start.
func (s *Shared) Get(tb testing.TB) *Server {
	tb.Helper()
	Require(tb)
	s.once.Do(func() { s.server, s.err = New(context.Background(), s.Options) })
	if s.err != nil {
		tb.Fatal(s.err)
	}
	return s.server
}

// Close closes the server if it was started. No test may use it any more.
func (s *Shared) Close() error {
	s.once.Do(func() { s.err = errClosed })
	if s.server == nil {
		return nil
	}
	return s.server.Close()
}

// Main wraps the argument of TestMain so that the server is closed after the tests have run and
// before the check for leaked goroutines.
func (s *Shared) Main(m interface{ Run() int }) *SharedMain { return &SharedMain{s, m} }

// SharedMain runs tests and closes their shared server. See Shared.
type SharedMain struct {
	shared *Shared
	m      interface{ Run() int }
}

// Run runs the tests, closes the shared server, and returns the exit code.
func (r *SharedMain) Run() int {
	code := r.m.Run()
	if err := r.shared.Close(); err != nil {
		println("pgtest: close shared server:", err.Error())
		return max(code, 1)
	}
	return code
}
