package zookeeper_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/internal/zkservice"
	"github.com/go-coord/coord/internal/zktest"
	"go.uber.org/goleak"
)

// shared is the server of all tests that do not break it.
var shared = zktest.Shared{Options: &zktest.Options{
	MaxSessionTimeout: 40 * time.Second, // a stall of the machine must not look like a fault of the connection
	JavaArgs:          []string{"-Dznode.container.checkIntervalMs=300"},
}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

// limit is the longest wait for anything that has to happen at once or without further input. It
// protects from a test that hangs, and judges nothing.
const limit = time.Minute

// scene is a test's own part of the shared server, and a link to it.
type scene struct {
	*testing.T
	service *zkservice.Service
	link    *zkservice.Link
	ctx     context.Context
}

func newScene(t *testing.T, o zookeeper.Options) *scene {
	t.Helper()
	return sceneOn(t, shared.Get(t), o)
}

func sceneOn(t *testing.T, e *zktest.Ensemble, o zookeeper.Options) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // for a test that waits for ever
	t.Cleanup(cancel)
	if o.SessionTimeout == 0 {
		o.SessionTimeout = 40 * time.Second // a busy machine breaks the contact of shorter sessions
	}
	s := zkservice.New(t, e, o)
	return &scene{T: t, service: s, link: s.ZooKeeper("a"), ctx: ctx}
}

func (s *scene) path(name string) string { return s.service.Root() + "/" + name }

// open opens a session and closes it with the test.
func (s *scene) open(b backend.Backend) backend.Session {
	s.Helper()
	session, err := b.Open(s.ctx)
	if err != nil {
		s.Fatalf("open: %v", err)
	}
	s.Cleanup(func() { session.Close() })
	return session
}

// other opens a session over a link of its own.
func (s *scene) other() backend.Session {
	s.Helper()
	return s.open(s.service.ZooKeeper("other"))
}

func (s *scene) commit(session backend.Session, ops ...backend.Op) []backend.Result {
	s.Helper()
	results, err := session.Commit(s.ctx, ops...)
	if err != nil {
		s.Fatalf("commit: %v", err)
	}
	return results
}

// children returns the names below the root, as they are after a Sync.
func (s *scene) children(session backend.Session) []string {
	s.Helper()
	if err := session.Sync(s.ctx, s.service.Root()); err != nil {
		s.Fatalf("sync: %v", err)
	}
	names, _, err := session.Children(s.ctx, s.service.Root(), nil)
	if err != nil {
		s.Fatalf("children: %v", err)
	}
	return names
}

// await waits until ch is closed, and returns how long that took.
func (s *scene) await(ch <-chan struct{}, what string) time.Duration {
	s.Helper()
	start := time.Now()
	select {
	case <-ch:
	case <-time.After(limit):
		s.Fatalf("waited %v in vain for %s", limit, what)
	}
	return time.Since(start)
}

// quick measures n times, and fails the test if more than half of the times are above the limit. The
// time that the machine loses while a session without faults calls the server is not counted.
func (s *scene) quick(n int, limit time.Duration, measure func() time.Duration) {
	s.Helper()
	other := s.other()
	m := pace.Start(s.T, func() { _ = other.Sync(s.ctx, "/") })
	defer m.Stop()
	var times []time.Duration
	for range n {
		lost := m.Lost()
		took := measure()
		times = append(times, max(0, took-(m.Lost()-lost)))
	}
	if slices.Sort(times); times[n/2] > limit {
		s.Errorf("the times are %v, want less than %v", times, limit)
	}
}

// lostBy waits for the loss of the session, and fails the test if it comes more than a second later
// than end. On a busy machine the session's timer is served late.
func (s *scene) lostBy(session backend.Session, end time.Time) {
	s.Helper()
	m := pace.Start(s.T, nil)
	bound := time.Until(end) + time.Second
	s.await(session.Done(), "the loss of the session")
	m.Within(bound, "the loss of the session")
}

// phase waits until the session is in the phase, and returns how long that took.
func (s *scene) phase(session backend.Session, want backend.Phase) time.Duration {
	s.Helper()
	start := time.Now()
	for {
		got, change := session.Status()
		if got == want {
			return time.Since(start)
		}
		if got == backend.PhaseLost {
			s.Fatalf("the session is lost: %v", session.Err())
		}
		s.await(change, "the session to be "+want.String())
	}
}

// gone waits until a node that another session owns is deleted.
func (s *scene) gone(session backend.Session, path string) {
	s.Helper()
	for {
		w := backend.NewWatch()
		_, err := session.Exists(s.ctx, path, w)
		if errors.Is(err, backend.ErrNotFound) {
			w.Stop()
			return
		}
		if err != nil {
			s.Fatalf("exists: %v", err)
		}
		s.await(w.Fired(), "the deletion of "+path)
	}
}
