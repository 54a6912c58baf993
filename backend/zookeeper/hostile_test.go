package zookeeper

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

// startServer runs a server that handles each connection with serve, until the
// test ends.
func startServer(t *testing.T, serve func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	startOn(t, l, serve)
	return l.Addr().String()
}

// startOn is startServer with an existing listener, which it closes.
func startOn(t *testing.T, l net.Listener, serve func(net.Conn)) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var conns []net.Conn
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, conn := range conns {
			conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// nextRequest reads one frame and strips its length.
func nextRequest(conn net.Conn) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	body := make([]byte, be.Uint32(size[:]))
	_, err := io.ReadFull(conn, body)
	return body, err
}

func swallow(conn net.Conn) { io.Copy(io.Discard, conn) }

// welcome answers the connect request with a session.
func welcome(conn net.Conn, timeout int32) {
	nextRequest(conn)
	b := be.AppendUint32(be.AppendUint32(nil, 0), uint32(timeout))
	conn.Write(framed(str(be.AppendUint64(b, 0x77), strings.Repeat("p", 16))))
}

// welcoming answers everything with success and no body.
func welcoming(conn net.Conn) {
	welcome(conn, 10_000)
	for {
		r, err := nextRequest(conn)
		if err != nil {
			return
		}
		conn.Write(framed(reply(int32At(r, 0), 0)))
	}
}

func TestAHostileServerInTheHandshake(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer []byte
		says   string
	}{
		"a frame of a negative length": {[]byte{0xff, 0xff, 0xff, 0xff}, "invalid length: -1"},
		"a frame of 2 GB":              {[]byte{0x7f, 0xff, 0xff, 0xff}, "invalid length: 2147483647"},
		"a frame of 1 MB":              {[]byte{0, 0x10, 0, 0}, "invalid length: 1048576"},
		"an empty frame":               {[]byte{0, 0, 0, 0}, "malformed"},
		"half a frame":                 {[]byte{0, 0, 0, 40, 1, 2}, "closed the connection"},
		"no answer":                    {nil, "closed the connection during the handshake (maxClientCnxns reached, a limit on sessions, or TLS expected?)"},
		"HTTP":                         {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), `begins with "HTTP"`},
		"a TLS alert":                  {[]byte{0x15, 3, 3, 0, 2, 2, 80}, "speaks TLS, and Options.TLS is not set"},
		"no session":                   {framed(make([]byte, 37)), "malformed"},
		"a session without a timeout":  {framed(append(be.AppendUint64(make([]byte, 8), 5), make([]byte, 21)...)), "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := startServer(t, func(conn net.Conn) {
				nextRequest(conn)
				conn.Write(test.answer)
				conn.(*net.TCPConn).CloseWrite()
				swallow(conn)
			})
			o := &Options{Without: optional}
			ctx := untilLogged(t, o, test.says)
			_, err := New([]string{addr}, o).Open(ctx)
			if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("open: %v; want %q", err, test.says)
			}
		})
	}
}

// A server without TLS reads the first TLS record as a frame of 369 MB, and closes the
// connection.
func TestATLSClientAtAServerWithoutTLS(t *testing.T) {
	t.Parallel()
	addr := startServer(t, func(conn net.Conn) { conn.Read(make([]byte, 4)) })
	o := &Options{Without: optional, TLS: new(tls.Config)}
	ctx := untilLogged(t, o, "or no TLS expected?")
	_, err := New([]string{addr}, o).Open(ctx)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "or no TLS expected?") {
		t.Errorf("open: %v", err)
	}
}

// A malformed reply ends the connection. Some would make the zk client panic, others would
// make it allocate gigabytes.
func TestAHostileServerInTheSession(t *testing.T) {
	t.Parallel()
	for name, body := range map[string][]byte{
		"a reply without its body":         reply(1, 0),
		"a reply without its header":       {0, 0, 0, 1},
		"a negative number of children":    reply(1, 0, append([]byte{0xff, 0xff, 0xff, 0xff}, make([]byte, statSize)...)...),
		"two billion children":             reply(1, 0, append([]byte{0x7f, 0xff, 0xff, 0xff}, make([]byte, statSize)...)...),
		"a reply to nothing":               reply(12345, 0, make([]byte, 4+statSize)...),
		"a reply to a ping that was never": reply(xidPing, 0),
		"half an event":                    reply(xidEvent, 0, 0, 0),
		"credentials that were not sent":   reply(xidAuth, 0),
		"refused ones that were not sent":  reply(xidAuth, codeAuthFailed),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var conns atomic.Int32
			addr := startServer(t, func(conn net.Conn) {
				welcome(conn, 10_000)
				for {
					r, err := nextRequest(conn)
					if err != nil {
						return
					}
					b := append([]byte(nil), body...)
					if len(b) >= 4 && int32At(b, 0) == 1 {
						copy(b, r[:4])
					}
					if conns.Add(1) > 3 { // the server behaves from here on
						b = reply(int32At(r, 0), 0, make([]byte, 4+statSize)...)
					}
					conn.Write(framed(b))
				}
			})
			s, err := New([]string{addr}, &Options{Without: optional}).Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			names, _, err := s.Children(t.Context(), "/", backend.NewWatch())
			if err != nil || len(names) != 0 {
				t.Errorf("children: %v, %v", names, err)
			}
			if n := conns.Load(); n != 4 {
				t.Errorf("%d requests, want 4", n)
			}
		})
	}
}

func TestAMalformedReplyLeavesACommitUncertain(t *testing.T) {
	t.Parallel()
	s, err := New([]string{startServer(t, welcoming)}, &Options{Without: optional}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, ops := range [][]backend.Op{
		{backend.Create("/a", nil, backend.Persistent)},
		{backend.SetData("/a", nil, 0)},
		{backend.Check("/a", 0)},
		{backend.Delete("/a", 0), backend.Delete("/b", 0)},
	} {
		if _, err := s.Commit(t.Context(), ops...); !errors.Is(err, backend.ErrUncertain) {
			t.Errorf("commit of %d: %v", len(ops), err)
		}
	}
}

// Credentials that are refused when a session reconnects would leave it suspended for ever,
// since each attempt would renew its lease.
func TestCredentialsThatAreRefused(t *testing.T) {
	t.Parallel()
	var refuse atomic.Bool
	const authFailed = -115
	addr := startServer(t, func(conn net.Conn) {
		welcome(conn, 10_000)
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			code := int32(0)
			if refuse.Load() && int32At(r, 4) == opAuth {
				code = authFailed
			}
			conn.Write(framed(reply(int32At(r, 0), code)))
			if code != 0 {
				return
			}
			if int32At(r, 4) == opDelete && r[len(r)-1] == 9 {
				return // closes the connection
			}
		}
	})
	b := New([]string{addr}, &Options{Without: optional, Digest: "user:secret"})
	s, err := b.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	refuse.Store(true)
	if _, err := s.Commit(t.Context(), backend.Delete("/a", 9)); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if err := s.Err(); !errors.Is(err, backend.ErrSessionLost) || !errors.Is(err, backend.ErrDenied) {
		t.Errorf("Err: %v", err)
	}
	if _, err := b.Open(t.Context()); !errors.Is(err, backend.ErrDenied) || strings.Contains(err.Error(), "secret") {
		t.Errorf("open: %v", err)
	}
}

// The zk client asks for the timeout that it believes in; the server must receive that of the
// options, on each connection.
func TestTheServerReceivesTheTimeoutOfTheOptions(t *testing.T) {
	t.Parallel()
	var asked []int32
	var mu sync.Mutex
	addr := startServer(t, func(conn net.Conn) {
		r, err := nextRequest(conn)
		if err != nil {
			return
		}
		// The last byte says whether a read-only server is acceptable. Servers log that a
		// client without it is old.
		if len(r) != 4+8+4+8+4+16+1 || r[len(r)-1] != 0 {
			t.Errorf("the connect request is %x", r)
		}
		mu.Lock()
		asked = append(asked, int32At(r, askedFrom))
		n := len(asked)
		mu.Unlock()
		b := be.AppendUint32(be.AppendUint32(nil, 0), 6000)
		conn.Write(framed(str(binary.BigEndian.AppendUint64(b, 0x77), strings.Repeat("p", 16))))
		if n < 3 {
			return
		}
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
		}
	})
	s, err := New([]string{addr}, &Options{Without: optional, SessionTimeout: 8 * time.Second}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(t.Context(), "/"); err != nil || s.Timeout() != 6*time.Second {
		t.Errorf("%v, %v", s.Timeout(), err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, ms := range asked {
		if ms != 8000 || len(asked) < 3 {
			t.Errorf("asked for: %v", asked)
		}
	}
}

// A server that is behind what the session has seen must be able to refuse it.
func TestTheNextServerLearnsWhatTheSessionHasSeen(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	learned := make(chan int64, 10)
	addr := startServer(t, func(conn net.Conn) {
		r, err := nextRequest(conn)
		if err != nil {
			return
		}
		d := decoder{rest: r[seenFrom:]}
		learned <- d.int64()
		b := be.AppendUint32(be.AppendUint32(nil, 0), 10_000)
		conn.Write(framed(str(be.AppendUint64(b, 0x77), strings.Repeat("p", 16))))
		if n := conns.Add(1); n == 3 {
			welcoming(conn)
			return
		}
		for zxid, code := range map[uint64]int32{5: 0, 1 << 40: codeNoNode, 7: codeNoNode} {
			// Replies to different calls, in any order; an event has no zxid.
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			body := reply(int32At(r, 0), code)
			be.PutUint64(body[4:], zxid)
			conn.Write(framed(body))
		}
		e := reply(xidEvent, 0)
		be.PutUint64(e[4:], 1<<50)
		conn.Write(framed(str(be.AppendUint32(be.AppendUint32(e, eventCreated), 3), "/a")))
	})
	s, err := New([]string{addr}, &Options{Without: optional}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 3 {
		if _, err := s.Commit(t.Context(), backend.Delete("/a", 0)); err != nil && !errors.Is(err, backend.ErrNotFound) {
			t.Fatal(err)
		}
	}
	if first, second := <-learned, <-learned; first != 0 || second != 1<<40 {
		t.Errorf("the first server learned %d and the second one %d", first, second)
	}
}

// Bytes that a broken connection has not sent yet must not arrive when the session is lost
// and the network is back.
func TestABrokenConnectionIsReset(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"as it was dialled": func(conn net.Conn) net.Conn { return conn },
		"in a wrapper":      func(conn net.Conn) net.Conn { return wrapper{conn.(*net.TCPConn)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			var conns atomic.Int32
			addr := startServer(t, func(conn net.Conn) {
				if conns.Add(1) > 1 {
					return
				}
				welcome(conn, 400)
				_, err := io.Copy(io.Discard, conn)
				ended <- err
			})
			s, err := New([]string{addr}, &Options{
				Without: optional,
				Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, address)
					if err != nil {
						return nil, err
					}
					return wrap(conn), nil
				},
			}).Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the server saw the end of the connection as %v", err)
			}
		})
	}
}

// wrapper is a connection of another type that passes SetLinger through.
type wrapper struct{ *net.TCPConn }

// The server drops the connection for a request of one kind, as servers do for a request that
// is too long.
func TestAConnectionThatLastsIsGood(t *testing.T) {
	t.Parallel()
	addr := startServer(t, func(conn net.Conn) {
		welcome(conn, 10_000)
		for {
			r, err := nextRequest(conn)
			if err != nil || int32At(r, 4) == opExists {
				return
			}
			conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
		}
	})
	b, err := New([]string{addr}, &Options{Without: optional}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s := b.(*session)
	short := s.hosts.Short
	ask := func() {
		t.Helper()
		if err := s.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		ask()
		if n := short(); n != i+1 {
			t.Errorf("connection %d: %d in a row have not lasted", i, n)
		}
		_, change := s.Status()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-change
			cancel()
		}()
		if _, err := s.Exists(ctx, "/", nil); !errors.Is(err, context.Canceled) {
			t.Fatalf("exists: %v", err)
		}
	}
	start := time.Now()
	ask()
	for short() != 0 && time.Since(start) < 5*s.hosts.Spell() {
		ask()
	}
	if took := time.Since(start); short() != 0 || took < s.hosts.Spell() {
		t.Errorf("a connection was good after %v, want %v", took, s.hosts.Spell())
	}
}

// recording is a server that answers everything, and records what it receives.
type recording struct {
	mu  sync.Mutex
	got []string // the paths of deletions, and "sync"
}

func (f *recording) serve(conn net.Conn) {
	welcome(conn, 10_000)
	for {
		r, err := nextRequest(conn)
		if err != nil {
			return
		}
		f.mu.Lock()
		switch int32At(r, 4) {
		case opSync:
			f.got = append(f.got, "sync")
		case opDelete:
			d := decoder{rest: r[8:]}
			f.got = append(f.got, d.text())
		}
		f.mu.Unlock()
		conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
	}
}

func (f *recording) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.got)
}

// blockedConn is a connection whose writes after the handshake wait.
type blockedConn struct {
	net.Conn
	begun chan struct{} // gets a value for each write that waits
	gate  chan struct{} // closed when they may continue
	asked bool
}

func (c *blockedConn) Write(p []byte) (int, error) {
	if c.asked {
		c.begun <- struct{}{}
		<-c.gate
	}
	c.asked = true
	return c.Conn.Write(p)
}

// The first commit is being written when its caller gives up, the second one waits behind it.
// Whatever is called afterwards reaches the server behind the first, and the second is never
// sent.
func TestACallThatIsGivenUpKeepsItsPlaceOrIsNeverSent(t *testing.T) {
	t.Parallel()
	f := new(recording)
	addr := startServer(t, f.serve)
	begun, gate := make(chan struct{}, 100), make(chan struct{})
	b, err := New([]string{addr}, &Options{
		Without: optional,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return &blockedConn{Conn: conn, begun: begun, gate: gate}, err
		},
	}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s := b.(*session)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make([]chan error, 2)
	for i, path := range []string{"/written", "/queued"} {
		errs[i] = make(chan error, 1)
		go func() {
			_, err := s.Commit(ctx, backend.Delete(path, 0))
			errs[i] <- err
		}()
		if i == 0 {
			<-begun
		}
		s.waitForQueue(i)
	}
	cancel()
	for i, uncertain := range []bool{true, false} {
		if err := <-errs[i]; !errors.Is(err, context.Canceled) || errors.Is(err, backend.ErrUncertain) != uncertain {
			t.Errorf("commit %d: %v", i, err)
		}
	}
	done := make(chan error)
	go func() { done <- s.Sync(t.Context(), "/") }()
	s.waitForQueue(1)
	go func() {
		_, err := s.Commit(t.Context(), backend.Delete("/later", 0))
		done <- err
	}()
	s.waitForQueue(2)
	close(gate)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := f.list(); !slices.Equal(got, []string{"/written", "sync", "/later"}) {
		t.Errorf("the server received %v", got)
	}
	if s.underWay != 0 {
		t.Errorf("%d calls under way", s.underWay)
	}
}

// waitForQueue waits until so many calls are in the queue.
func (s *session) waitForQueue(n int) {
	for there := false; !there; runtime.Gosched() {
		s.mu.Lock()
		there = s.queue.size == n
		s.mu.Unlock()
	}
}

// The calls of a suspended session are sent in the order in which they were made, and
// together.
func TestCallsWaitForContactInTheirOrder(t *testing.T) {
	t.Parallel()
	f := new(recording)
	var conns, later atomic.Int32
	held := make(chan struct{})
	addr := startServer(t, func(conn net.Conn) {
		switch conns.Add(1) {
		case 1:
			welcome(conn, 10_000)
			return
		default: // a handshake that lasts for a second is tried again beside it
			<-held
		}
		f.serve(conn)
	})
	b, err := New([]string{addr}, &Options{
		Without: optional,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return &countedConn{Conn: conn, later: &later}, err
		},
	}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s := b.(*session)
	for phase, change := s.Status(); phase != backend.PhaseSuspended; phase, change = s.Status() {
		<-change
	}
	const n = 50
	done := make(chan error, n)
	var want []string
	for i := range n {
		path := fmt.Sprint("/n", i)
		if i == n/2 {
			path = "sync"
		}
		want = append(want, path)
		go func() {
			if path == "sync" {
				done <- s.Sync(t.Context(), "/")
				return
			}
			_, err := s.Commit(t.Context(), backend.Delete(path, 0))
			done <- err
		}()
		s.waitForQueue(i + 1)
	}
	close(held)
	for range n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := f.list(); !slices.Equal(got, want) {
		t.Errorf("the server received %v", got)
	}
	if n := later.Load(); n != 1 {
		t.Errorf("%d writes for all calls", n)
	}
}

// countedConn counts the writes behind the connect request.
type countedConn struct {
	net.Conn
	asked atomic.Bool
	later *atomic.Int32
}

func (c *countedConn) Write(p []byte) (int, error) {
	if c.asked.Swap(true) {
		c.later.Add(1)
	}
	return c.Conn.Write(p)
}

// The answers have the xids of the requests, but not in their order. An answer that goes to
// another call would report the success of what was refused.
func TestAnAnswerOutOfTurnBreaksContact(t *testing.T) {
	t.Parallel()
	var conns, used atomic.Int32 // used: those with a request, since a slow handshake is tried again beside it
	addr := startServer(t, func(conn net.Conn) {
		first := conns.Add(1) == 1
		welcome(conn, 10_000)
		var once sync.Once
		var waiting [][]byte
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			once.Do(func() { used.Add(1) })
			if op := int32At(r, 4); !first || op != opDelete {
				conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
				continue
			}
			if waiting = append(waiting, r); len(waiting) == 2 {
				conn.Write(framed(reply(int32At(waiting[1], 0), 0)))
				conn.Write(framed(reply(int32At(waiting[0], 0), codeNoNode)))
			}
		}
	})
	s, err := New([]string{addr}, &Options{Without: optional}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	done := make(chan error)
	for _, path := range []string{"/a", "/b"} {
		go func() {
			_, err := s.Commit(t.Context(), backend.Delete(path, 0))
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; !errors.Is(err, backend.ErrUncertain) {
			t.Errorf("commit: %v", err)
		}
	}
	if err := s.Sync(t.Context(), "/"); err != nil || used.Load() != 2 {
		t.Errorf("sync: %v; %d connections were used", err, used.Load())
	}
}

// The zk client counts its xids from 1, and the session's begin beyond those that it can
// reach. After the last one they begin again, and stay apart from those of the zk client.
func TestXidsStayInTheirRange(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var xids []int32
	addr := startServer(t, func(conn net.Conn) {
		welcome(conn, 10_000)
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			mu.Lock()
			if xid := int32At(r, 0); xid != xidPing {
				xids = append(xids, xid)
			}
			mu.Unlock()
			conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
		}
	})
	b, err := New([]string{addr}, &Options{Without: optional}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := b.(*session)
	for i := range 4 {
		if i == 2 {
			s.mu.Lock()
			s.conn.lastXid = math.MaxInt32 - 1
			s.mu.Unlock()
		}
		if err := s.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []int32{1 << 30, 1<<30 + 1, math.MaxInt32, 1 << 30, 1}; !slices.Equal(xids, want) {
		t.Errorf("xids %v, want %v", xids, want)
	}
}

// Other clients distinguish absent data from empty data.
func TestNoDataIsSentAsEmptyData(t *testing.T) {
	t.Parallel()
	var requests []string
	var mu sync.Mutex
	addr := startServer(t, func(conn net.Conn) {
		welcome(conn, 10_000)
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			mu.Lock()
			requests = append(requests, string(r[8:]))
			mu.Unlock()
			conn.Write(framed(reply(int32At(r, 0), 0, make([]byte, 4+statSize)...)))
		}
	})
	s, err := New([]string{addr}, &Options{Without: optional}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, ops := range [][]backend.Op{
		{backend.Create("/a", nil, backend.Persistent)},
		{backend.SetData("/a", nil, 0)},
		{backend.Create("/a", nil, backend.Ephemeral), backend.SetData("/a", nil, 0)},
	} {
		s.Commit(t.Context(), ops...) // the reply fits the first two only
		mu.Lock()
		request := requests[0]
		requests = nil
		mu.Unlock()
		empty := string(str(str(nil, "/a"), ""))
		if n := strings.Count(request, empty); n != len(ops) {
			t.Errorf("%d of %d operations have empty data: %q", n, len(ops), request)
		}
	}
}
