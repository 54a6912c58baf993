package zookeeper

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

// hanging answers pings, and calls unless they hang.
func hanging(conn net.Conn, hangs func(op int32) bool) {
	welcome(conn, 9000)
	for r := range requests(conn) {
		switch op := int32At(r, 4); {
		case answerPing(conn, r), op != opClose && hangs(op):
		case op == opClose:
			return
		case op == opSync:
			conn.Write(framed(reply(int32At(r, 0), 0, 0, 0, 0, 1, '/')))
		default:
			conn.Write(framed(reply(int32At(r, 0), 0, make([]byte, 4+statSize)...)))
		}
	}
}

// A server answers pings and leaves a call without an answer. The session leaves it after half the lease.
func TestZooKeeper_ServerThatAnswersOnlyPingsIsLeft(t *testing.T) {
	t.Parallel()
	serve := func(conn net.Conn, n int) { hanging(conn, func(int32) bool { return n == 1 }) }
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		begin := time.Now()
		if _, _, err := s.Get(t.Context(), "/a", nil); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < 3*time.Second || d > 6*time.Second {
			t.Errorf("the read was answered after %v", d)
		}
	})
}

// No connection gets answers to calls of a kind. The session is lost, with the callers that have no context.
func TestZooKeeper_SessionEndsIfNoServerAnswersCalls(t *testing.T) {
	t.Parallel()
	for name, hangs := range map[string]func(op int32) bool{
		"all":     func(int32) bool { return true },
		"commits": func(op int32) bool { return op == opDelete || op == opMulti },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			serve := func(conn net.Conn, _ int) { hanging(conn, hangs) }
			inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
				s, err := b.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				begin := time.Now()
				for {
					_, err = s.Commit(context.Background(), backend.Delete("/a", backend.AnyVersion))
					if !errors.Is(err, backend.ErrUncertain) || errors.Is(err, backend.ErrSessionLost) {
						break
					}
					if err = s.Sync(context.Background(), "/"); err != nil {
						break
					}
				}
				if !errors.Is(err, backend.ErrSessionLost) || !errors.Is(s.Err(), errUnanswered) {
					t.Errorf("the commit ends with %v, the session with %v", err, s.Err())
				}
				if d := time.Since(begin); d > 15*time.Second {
					t.Errorf("after %v", d)
				}
			})
		})
	}
}
