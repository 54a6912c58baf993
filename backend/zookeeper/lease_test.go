package zookeeper

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

func TestAJumpOfTheWallClockIsNoticedByTheNextCall(t *testing.T) {
	e := startServer(t, welcoming)
	var jump atomic.Int64
	b := New([]string{e}, &Options{Without: optional}).(*service)
	b.cfg.clock = func() func() instant {
		read := contact.Clock()
		return func() instant {
			now := read()
			now.Wall += time.Duration(jump.Load())
			return now
		}
	}
	open := func() backend.Session {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	for name, call := range map[string]func(s backend.Session) error{
		"Err":    func(s backend.Session) error { return s.Err() },
		"Get":    func(s backend.Session) error { _, _, err := s.Get(t.Context(), "/", nil); return err },
		"Commit": func(s backend.Session) error { _, err := s.Commit(t.Context(), backend.Delete("/a", 0)); return err },
		"Status": func(s backend.Session) error { s.Status(); return s.(*session).err },
	} {
		s := open()
		jump.Add(int64(5 * time.Second))
		if err := s.Err(); err != nil {
			t.Fatalf("after half the timeout: %v", err)
		}
		jump.Add(int64(5 * time.Second))
		err := call(s)
		if !errors.Is(err, backend.ErrSessionLost) || errors.Is(err, backend.ErrUncertain) {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case <-s.Done():
		default:
			t.Errorf("%s: Done is open", name)
		}
	}
}

func TestATimerNoticesTheEndOfTheLease(t *testing.T) {
	serve := func(conn net.Conn, n int) {
		if n == 1 { // another connect response would count as an answer
			welcome(conn, 400)
		}
		swallow(conn)
	}
	inBubble(t, Options{LossMargin: 100 * time.Millisecond}, serve, func(t *testing.T, b backend.Backend) {
		start := time.Now()
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		<-s.Done()
		if took := time.Since(start); took != 300*time.Millisecond {
			t.Errorf("a lease of 300ms ended after %v", took)
		}
	})
}
