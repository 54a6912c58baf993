package zookeeper

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
)

// inBubble runs a test under fake time, with a backend that has one server. serve is called
// for each connection, with its number from 1; the connection is closed when serve returns.
func inBubble(t *testing.T, o Options, serve func(conn net.Conn, n int), test func(t *testing.T, b backend.Backend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		var conns atomic.Int32
		o.Without = optional
		o.Dial = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			wg.Go(func() {
				defer theirs.Close()
				serve(theirs, int(conns.Add(1)))
			})
			return ours, nil
		}
		test(t, New([]string{"server"}, &o))
		wg.Wait()
	})
}

// requests reads the frames of a client even while the server is busy.
func requests(conn net.Conn) <-chan []byte {
	c := make(chan []byte, 1000)
	go func() {
		defer close(c)
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			c <- r
		}
	}()
	return c
}

// answerPing answers r if it is a ping, and reports whether it is.
func answerPing(conn net.Conn, r []byte) bool {
	if int32At(r, 0) != xidPing {
		return false
	}
	conn.Write(framed(reply(xidPing, 0)))
	return true
}

func reads() map[string]func(context.Context, backend.Session) error {
	return map[string]func(context.Context, backend.Session) error{
		"get": func(ctx context.Context, s backend.Session) error {
			_, _, err := s.Get(ctx, "/a", nil)
			return err
		},
		"exists": func(ctx context.Context, s backend.Session) error {
			_, err := s.Exists(ctx, "/a", backend.NewWatch())
			return err
		},
		"children": func(ctx context.Context, s backend.Session) error {
			_, _, err := s.Children(ctx, "/a", nil)
			return err
		},
		"sync": func(ctx context.Context, s backend.Session) error { return s.Sync(ctx, "/a") },
		"arm":  func(ctx context.Context, s backend.Session) error { return s.Arm(ctx, 0, target("/a", false)) },
	}
}

// answers returns a server that answers each request but pings with code, and counts them.
// After a thousand it ends the connection.
func answers(code int32, asked *atomic.Int32) func(net.Conn, int) {
	return func(conn net.Conn, _ int) {
		welcome(conn, 10_000)
		for r := range requests(conn) {
			switch op := int32At(r, 4); {
			case answerPing(conn, r):
			case op == opClose, asked.Add(1) > 1000:
				return
			default:
				conn.Write(framed(reply(int32At(r, 0), code)))
			}
		}
	}
}

func TestAnUnknownAnswerEndsARead(t *testing.T) {
	t.Parallel()
	for name, read := range reads() {
		for _, code := range []int32{-1, -2, -4, -5, -7, -9, -13, -100, -105, -113, -117, -121, -123, 17} {
			var asked atomic.Int32
			inBubble(t, Options{}, answers(code, &asked), func(t *testing.T, b backend.Backend) {
				s, err := b.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				err = read(ctx, s)
				if !errors.Is(err, backend.ErrUnsupported) {
					t.Errorf("%s answered with %d: %v", name, code, err)
				}
				// An Arm that was refused reads one node after the other.
				if n := asked.Load(); n > 2 || time.Since(start) > 0 {
					t.Errorf("%s answered with %d: %d requests in %v", name, code, n, time.Since(start))
				}
			})
		}
	}
}

// A server has two answers to a request whose session has ended: one while it ends the
// session, and one when it has removed it.
func TestBothAnswersToARequestOfAnEndedSession(t *testing.T) {
	t.Parallel()
	calls := reads()
	calls["commit"] = func(ctx context.Context, s backend.Session) error {
		_, err := s.Commit(ctx, backend.SetData("/n", nil, backend.AnyVersion))
		return err
	}
	calls["multi"] = func(ctx context.Context, s backend.Session) error {
		_, err := s.Commit(ctx, backend.SetData("/n", nil, backend.AnyVersion), backend.Delete("/m", 3))
		return err
	}
	for name, call := range calls {
		for _, code := range []int32{codeSessionExpired, codeUnknownSession} {
			var asked atomic.Int32
			inBubble(t, Options{}, answers(code, &asked), func(t *testing.T, b backend.Backend) {
				s, err := b.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				err = call(t.Context(), s)
				// The loss can reach a commit before its answer, and the commit is uncertain then.
				if !errors.Is(err, backend.ErrSessionLost) || !errors.Is(s.Err(), backend.ErrSessionLost) {
					t.Errorf("%s answered with %d: %v, and the session: %v", name, code, err, s.Err())
				}
				if n := asked.Load(); n != 1 {
					t.Errorf("%s answered with %d: %d requests", name, code, n)
				}
			})
		}
	}
}

// The zk client cannot distinguish this answer from its own end.
func TestTheSessionLeavesAServerThatIsClosing(t *testing.T) {
	t.Parallel()
	for name, read := range reads() {
		var asked atomic.Int32
		inBubble(t, Options{}, answers(codeClosing, &asked), func(t *testing.T, b backend.Backend) {
			s, err := b.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := read(ctx, s); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			// The pause grows to a second, a tenth of the timeout.
			if n := asked.Load(); n < 10 || n > 200 {
				t.Errorf("%s: %d requests in a minute", name, n)
			}
		})
	}
}

// The lease is 6 s, and the zk client expects each reply to be complete within 3 s.
func TestAReplyThatArrivesSlowlyIsReadOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		takes time.Duration
		lost  bool
	}{
		"within the lease": {5 * time.Second, false},
		"beyond the lease": {20 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const parts = 50
			var asked atomic.Int32
			serve := func(conn net.Conn, _ int) {
				welcome(conn, 9_000)
				for r := range requests(conn) {
					if answerPing(conn, r) {
						continue
					}
					if int32At(r, 4) != opGetData || asked.Add(1) > 10 {
						return
					}
					body := make([]byte, 4+parts*100+statSize)
					be.PutUint32(body, parts*100)
					out := framed(reply(int32At(r, 0), 0, body...))
					for i := range parts {
						time.Sleep(test.takes / parts)
						if _, err := conn.Write(out[i*len(out)/parts : (i+1)*len(out)/parts]); err != nil {
							return
						}
					}
				}
			}
			inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
				s, err := b.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				data, _, err := s.Get(t.Context(), "/a", nil)
				if lost := errors.Is(err, backend.ErrSessionLost); lost != test.lost || !lost && len(data) != parts*100 {
					t.Errorf("get: %d bytes, %v", len(data), err)
				}
				if n := asked.Load(); n != 1 {
					t.Errorf("it was asked for %d times", n)
				}
			})
		})
	}
}

// A frame that stops half-way fails as early as one that never begins.
func TestAReplyThatStopsIsAskedForAgain(t *testing.T) {
	t.Parallel()
	serve := func(conn net.Conn, n int) {
		welcome(conn, 9_000)
		for r := range requests(conn) {
			if answerPing(conn, r) {
				continue
			}
			out := framed(reply(int32At(r, 0), 0, make([]byte, 4+statSize)...))
			if n == 1 {
				conn.Write(out[:30])
				swallow(conn)
				return
			}
			conn.Write(out)
		}
	}
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		start := time.Now()
		if _, _, err := s.Get(t.Context(), "/a", nil); err != nil || time.Since(start).Round(time.Second) != 3*time.Second {
			t.Errorf("get: %v after %v, want 3 s", err, time.Since(start))
		}
	})
}

// The zk client expects an answer to one of its pings every 3 s.
func TestAnswersToCallsKeepAConnection(t *testing.T) {
	t.Parallel()
	var conns, syncs atomic.Int32
	serve := func(conn net.Conn, n int) {
		conns.Store(int32(n))
		welcome(conn, 9_000)
		for r := range requests(conn) {
			if int32At(r, 4) == opSync {
				syncs.Add(1)
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
		for range 20 {
			if err := s.Sync(t.Context(), "/"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if conns.Load() != 1 || syncs.Load() != 20 {
			t.Errorf("%d connections, %d requests", conns.Load(), syncs.Load())
		}
	})
}

func TestOpenPausesAfterASessionThatEndedBeforeItWasReady(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	serve := func(conn net.Conn, _ int) {
		welcome(conn, 10_000)
		code := int32(codeSessionExpired)
		if conns.Add(1) > 1000 {
			code = 0
		}
		for r := range requests(conn) {
			if int32At(r, 4) == opAuth {
				conn.Write(framed(reply(int32At(r, 0), code)))
			}
		}
	}
	inBubble(t, Options{Digest: "user:secret"}, serve, func(t *testing.T, b backend.Backend) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, err := b.Open(ctx)
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrSessionLost) || !strings.Contains(err.Error(), errExpired.Error()) {
			t.Errorf("open: %v", err)
		}
		if n := conns.Load(); n < 10 || n > 70 {
			t.Errorf("%d sessions in a minute", n)
		}
	})
}

// An answer to the credentials that neither accepts nor refuses them is not requested again
// and again on the same connection, and does not keep a session alive.
func TestCredentialsThatGetAnUnknownAnswer(t *testing.T) {
	t.Parallel()
	var asked, strange atomic.Int32
	serve := func(conn net.Conn, _ int) {
		welcome(conn, 10_000)
		for r := range requests(conn) {
			switch op := int32At(r, 4); {
			case answerPing(conn, r):
			case op == opAuth && asked.Add(1) > 1000:
				return
			case op == opAuth:
				conn.Write(framed(reply(int32At(r, 0), strange.Load())))
			case op == opSync:
				return // hang up
			case op == opClose:
				conn.Write(framed(reply(int32At(r, 0), 0)))
				return
			}
		}
	}
	inBubble(t, Options{Digest: "user:secret"}, serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		strange.Store(-5)
		if err := s.Sync(t.Context(), "/"); !errors.Is(err, backend.ErrSessionLost) || !strings.Contains(err.Error(), "error -5") {
			t.Errorf("sync: %v", err)
		}
		asked.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := b.Open(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "error -5") {
			t.Errorf("open: %v", err)
		}
		if n := asked.Load(); n < 10 || n > 200 {
			t.Errorf("asked %d times in a minute", n)
		}
	})
}

// A server accepts the credentials, and contact breaks at once. They must come first on the
// next connection as well. The zk client, which numbers its requests from 1, cannot do this:
// it may not know yet that they were accepted.
func TestCredentialsGoAheadOnEachConnection(t *testing.T) {
	t.Parallel()
	var first, second atomic.Int32
	serve := func(conn net.Conn, _ int) {
		welcome(conn, 10_000)
		r, err := nextRequest(conn)
		if err != nil || int32At(r, 0) != xidAuth || int32At(r, 4) != opAuth {
			t.Errorf("the first request: %v, %v", r, err)
			return
		}
		conn.Write(framed(reply(int32At(r, 0), 0)))
		if first.Add(1)%2 == 1 {
			return
		}
		second.Add(1)
		for r := range requests(conn) {
			if answerPing(conn, r) {
				continue
			}
			conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
			if int32At(r, 4) == opClose {
				return
			}
		}
	}
	const sessions = 200
	inBubble(t, Options{Digest: "user:secret"}, serve, func(t *testing.T, b backend.Backend) {
		for i := range sessions {
			s, err := b.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := s.Sync(ctx, "/"); err != nil {
				t.Errorf("session %d: %v", i, err)
			}
			cancel()
			s.Close()
			if t.Failed() {
				break
			}
		}
		if n := second.Load(); n != sessions {
			t.Errorf("%d second connections of %d sessions", n, sessions)
		}
	})
}

// The service counts the timeout from when it received the request, which can be long before
// the answer arrives. So the lease runs from when the request was sent.
func TestTheLeaseRunsFromTheRequestAndNotFromItsAnswer(t *testing.T) {
	t.Parallel()
	const timeout, lease = 9 * time.Second, 6 * time.Second
	for name, test := range map[string]struct {
		serve func(requests <-chan []byte, answer func(r []byte), pinged func())
		get   func(pinged <-chan struct{}) // waits for when the request is to be sent
	}{
		"of a read": {
			func(requests <-chan []byte, answer func([]byte), _ func()) {
				r := <-requests
				time.Sleep(time.Second)
				answer(r)
			},
			func(<-chan struct{}) {},
		},
		// The answer to a ping is matched with the first ping without an answer.
		"of a ping": {
			func(requests <-chan []byte, answer func([]byte), pinged func()) {
				first := <-requests
				pinged()
				answer(<-requests)
				<-requests
				answer(first)
			},
			func(pinged <-chan struct{}) { <-pinged },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var pinged chan struct{}
			serve := func(conn net.Conn, n int) {
				if n > 1 {
					swallow(conn) // a welcome would be an answer
					return
				}
				welcome(conn, int32(timeout/time.Millisecond))
				c := requests(conn)
				test.serve(c, func(r []byte) {
					if !answerPing(conn, r) {
						conn.Write(framed(reply(int32At(r, 0), 0, make([]byte, 4+statSize)...)))
					}
				}, func() { close(pinged) })
				for range c { // without another answer
				}
			}
			inBubble(t, Options{LossMargin: timeout - lease}, serve, func(t *testing.T, b backend.Backend) {
				pinged = make(chan struct{})
				s, err := b.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				test.get(pinged)
				sent := time.Now()
				if _, _, err := s.Get(t.Context(), "/a", nil); err != nil {
					t.Fatal(err)
				}
				<-s.Done()
				if left := time.Since(sent); left > lease || left < lease-time.Second/2 {
					t.Errorf("the session was lost %v after the last request that was answered, want %v", left, lease)
				}
			})
		})
	}
}
