package zookeeper

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
)

// refusedMulti is the body of a reply to a multi of n steps, the first of which has the code.
func refusedMulti(n int, code int32) []byte {
	body := be.AppendUint32(multiHead(opError, 0), uint32(code))
	for range n - 1 {
		after := int32(codeAfterFailure)
		body = append(body, be.AppendUint32(multiHead(opError, 0), uint32(after))...)
	}
	return append(body, multiHead(-1, 1)...)
}

// refusing returns a server that answers pings, and everything else as with says for the number of
// the connection. It counts the requests that it gets.
func refusing(asked *atomic.Int32, with func(n int, r []byte) []byte) func(net.Conn, int) {
	return func(conn net.Conn, n int) {
		welcome(conn, 10_000)
		for r := range requests(conn) {
			switch op := int32At(r, 4); {
			case answerPing(conn, r):
			case op == opClose:
				return
			default:
				asked.Add(1)
				if answer := with(n, r); answer != nil {
					conn.Write(framed(answer))
				}
			}
		}
	}
}

// A leader refuses each step of a multi if the session is over, and the header of the reply has no
// error. The server at the other end can continue answering pings, so the answer has to end the session.
func TestSessionCode_InTheReplyToAMultiEndsTheSession(t *testing.T) {
	t.Parallel()
	commit := func(ctx context.Context, s *session) error {
		_, err := s.Commit(ctx, backend.Create("/a", nil, backend.Ephemeral), backend.Delete("/b", 3))
		return err
	}
	many := func(ctx context.Context, s *session) error {
		s.cfg.abilities.has = backend.Batches
		_, err := s.ReadMany(ctx, backend.Read{Path: "/a"}, backend.Read{Path: "/b"})
		return err
	}
	check := func(ctx context.Context, s *session) error { // a multi of one step
		_, err := s.Commit(ctx, backend.Check("/a", 1))
		return err
	}
	for _, test := range []struct {
		name  string
		steps int
		call  func(context.Context, *session) error
	}{{"a commit", 2, commit}, {"a check", 1, check}, {"many reads", 2, many}} {
		for _, code := range []int32{codeSessionExpired, codeUnknownSession} {
			var asked atomic.Int32
			serve := refusing(&asked, func(_ int, r []byte) []byte {
				return reply(int32At(r, 0), 0, refusedMulti(test.steps, code)...)
			})
			inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
				open, err := b.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				s := open.(*session)
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err = test.call(ctx, s)
				if !errors.Is(err, backend.ErrSessionLost) || !errors.Is(s.Err(), backend.ErrSessionLost) || !errors.Is(err, errExpired) {
					t.Errorf("%s with %d: %v, and the session: %v", test.name, code, err, s.Err())
				}
				if took := time.Since(start); took > 0 || asked.Load() != 1 {
					t.Errorf("%s with %d: %d requests, %v", test.name, code, asked.Load(), took)
				}
				if err := s.Close(); err != nil || time.Since(start) > 0 {
					t.Errorf("close after %v: %v", time.Since(start), err)
				}
			})
		}
	}
}

// The session continues on another connection, and the commit is uncertain, as with the code in the
// header of the reply.
func TestSessionCode_InTheReplyToAMultiLeavesTheServer(t *testing.T) {
	t.Parallel()
	for _, code := range []int32{codeSessionMoved, codeClosing} {
		var asked atomic.Int32
		var conns []int
		serve := refusing(&asked, func(n int, r []byte) []byte {
			conns = append(conns, n)
			switch {
			case int32At(r, 4) != opMulti:
				return reply(int32At(r, 0), 0, str(nil, "/")...)
			case n < 3:
				return reply(int32At(r, 0), 0, refusedMulti(2, code)...)
			}
			return reply(int32At(r, 0), 0, slices.Concat(multiHead(opDelete, 0), multiHead(opDelete, 0), multiHead(-1, 1))...)
		})
		inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
			s, err := b.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for i := range 3 {
				_, err := s.Commit(t.Context(), backend.Delete("/a", 3), backend.Delete("/b", 3))
				if i == 2 && err != nil || i < 2 && !errors.Is(err, backend.ErrUncertain) {
					t.Errorf("%d: commit %d: %v", code, i, err)
				}
				if err := s.Sync(t.Context(), "/"); err != nil {
					t.Errorf("%d: sync %d: %v", code, i, err)
				}
			}
			if want := []int{1, 2, 2, 3, 3, 3}; !slices.Equal(conns, want) {
				t.Errorf("%d: requests on the connections %v, want %v", code, conns, want)
			}
		})
	}
}

// No server is known to answer a ping so, but it would mean the same as in another reply.
func TestSessionCode_InTheAnswerToAPing(t *testing.T) {
	t.Parallel()
	for _, code := range []int32{codeSessionExpired, codeUnknownSession, codeSessionMoved} {
		serve := func(conn net.Conn, n int) {
			welcome(conn, 10_000)
			for r := range requests(conn) {
				if n == 1 && int32At(r, 0) == xidPing {
					conn.Write(framed(reply(xidPing, code)))
				} else if !answerPing(conn, r) {
					conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
				}
			}
		}
		inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
			s, err := b.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			time.Sleep(s.Timeout())
			if lost := s.Err() != nil; lost != (code != codeSessionMoved) {
				t.Errorf("%d: %v", code, s.Err())
			}
		})
	}
}

// Pings renew the lease, so a server that answers nothing else would keep the session, and each of
// its calls, for ever.
func TestAServerThatAnswersOnlyPingsIsLeft(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	serve := refusing(&asked, func(n int, r []byte) []byte {
		if n == 1 {
			return nil
		}
		return reply(int32At(r, 0), 0, str(nil, "/")...)
	})
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		time.Sleep(time.Minute)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = s.Commit(ctx, backend.Delete("/a", 3))
		lease := leaseLength(s)
		if took := time.Since(start); !errors.Is(err, backend.ErrUncertain) || took < lease/2 || took > lease {
			t.Errorf("commit after %v: %v", took, err)
		}
		if err := s.Sync(t.Context(), "/"); err != nil || s.Err() != nil {
			t.Errorf("sync: %v, the session: %v", err, s.Err())
		}
	})
}

// leaseLength returns the length of the lease, which each new connection sets.
func leaseLength(s backend.Session) time.Duration {
	x := s.(*session)
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.lease.Length
}

// A session can be sealed and not over yet, while the operating system closes its connection.
func TestTheWaitForTheEndOfASessionLooksAtItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, err := newConfig([]string{"a"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := newSession(cfg)
		s.lease.From, s.lease.Length = s.now(), time.Minute
		s.sealedFlag.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Exists(ctx, "/a", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("exists: %v", err)
		}
	})
}
