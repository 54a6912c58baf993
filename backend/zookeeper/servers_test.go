package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/internal/zktest"
)

// hole makes an address on which connections are neither accepted nor refused: a listener whose queue
// is full.
func hole(t *testing.T, ip, port string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	a := syscall.SockaddrInet4{}
	if a.Port, err = net.LookupPort("tcp", port); err != nil {
		t.Fatal(err)
	}
	copy(a.Addr[:], net.ParseIP(ip).To4())
	if err := syscall.Bind(fd, &a); errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skip("the loopback interface has only one address:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 { // fill the queue
		c, err := net.DialTimeout("tcp", net.JoinHostPort(ip, port), 300*time.Millisecond)
		if err != nil {
			return
		}
		t.Cleanup(func() { c.Close() })
	}
}

// A name has three addresses, two of which lead nowhere. The session opens, and is not lost when its
// connection breaks.
func TestServers_AddressesOfANameAreBlackHoles(t *testing.T) {
	t.Parallel()
	e := zktest.Run(t, nil)
	_, port, _ := net.SplitHostPort(e.Addrs()[0])
	hole(t, "127.0.0.12", port)
	hole(t, "127.0.0.13", port)
	for _, timeout := range []time.Duration{2 * time.Second, 10 * time.Second} {
		cfg, err := newConfig([]string{"zk.test.:" + port}, &Options{SessionTimeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		cfg.resolver = naming(t, "127.0.0.12", "127.0.0.13", "127.0.0.1")
		for range 4 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			s, err := (&service{cfg: cfg}).Open(ctx)
			if err != nil {
				t.Fatalf("a session of %v: %v", timeout, err)
			}
			m := pace.Start(t, nil)
			s.(*session).breakContact()
			if err := s.Sync(ctx, "/"); err != nil && m.Lost() > timeout/4 {
				t.Logf("a session of %v is not judged: %v, and the machine did other work for %v", timeout, err, m.Lost())
			} else if err != nil {
				t.Errorf("a session of %v, after its connection broke: %v", timeout, err)
			}
			m.Stop()
			cancel()
			s.Close()
		}
	}
}

// breakContact breaks the connection of a session.
func (s *session) breakContact() {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	c.raw.Close()
}

// shake is a server's side of a handshake that the test finishes.
type shake struct {
	conn net.Conn
	id   uint64 // that the client asked for
}

func (s shake) welcome(session uint64) {
	b := be.AppendUint32(be.AppendUint32(nil, 0), 10_000)
	s.conn.Write(framed(str(be.AppendUint64(b, session), "pppppppppppppppp")))
}

// startShaking starts a server that hands each handshake to the test, and then answers everything. It
// counts the requests to close a session.
func startShaking(t *testing.T) (addr string, shakes <-chan shake, closed *atomic.Int32) {
	ch := make(chan shake, 10)
	closed = new(atomic.Int32)
	return startServer(t, func(conn net.Conn) {
		r, err := nextRequest(conn)
		if err != nil {
			return
		}
		ch <- shake{conn, be.Uint64(r[seenFrom+8+4:])}
		for r := range requests(conn) {
			if int32At(r, 4) == opClose {
				closed.Add(1)
				conn.Write(framed(reply(int32At(r, 0), 0)))
				return
			}
			if !answerPing(conn, r) {
				conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
			}
		}
	}), ch, closed
}

// Both servers have got the request for a new session when the first answer comes. The session of the
// other one is closed on it.
func TestServers_ASessionTooManyIsClosed(t *testing.T) {
	t.Parallel()
	one, first, closedFirst := startShaking(t)
	two, second, closedSecond := startShaking(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	opened := make(chan backend.Session, 1)
	go func() {
		defer close(opened)
		s, err := New([]string{one, two}, &Options{Without: optional}).Open(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		opened <- s
	}()
	a, b := <-first, <-second // the second attempt begins while the first is silent
	a.welcome(0x111)
	s := <-opened
	if s == nil {
		return
	}
	defer s.Close()
	if s.ID() != 0x111 {
		t.Errorf("the session is %x", s.ID())
	}
	b.welcome(0x222)
	for closedSecond.Load() == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if closedFirst.Load() != 0 || closedSecond.Load() != 1 {
		t.Errorf("closed: %d and %d sessions", closedFirst.Load(), closedSecond.Load())
	}
	if err := s.Sync(ctx, "/"); err != nil {
		t.Error(err)
	}
}

// Both servers have got the request for a session that exists. The one that got it last keeps the
// session, so its connection is used, although the other one answers first.
func TestServers_TheLatestRequestKeepsTheSession(t *testing.T) {
	t.Parallel()
	one, first, closedFirst := startShaking(t)
	two, second, closedSecond := startShaking(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// At the first server alone; then both are reached through Dial.
	var both atomic.Bool
	var asked []string
	var mu sync.Mutex
	b := New([]string{"s1", "s2"}, &Options{Without: optional, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == "s2:2181" && !both.Load() {
			return nil, syscall.ECONNREFUSED
		}
		mu.Lock()
		asked = append(asked, address)
		mu.Unlock()
		return new(net.Dialer).DialContext(ctx, network, map[string]string{"s1:2181": one, "s2:2181": two}[address])
	}})
	opened := make(chan backend.Session, 1)
	go func() {
		defer close(opened)
		s, err := b.Open(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		opened <- s
	}()
	(<-first).welcome(0x77)
	s := <-opened
	if s == nil {
		return
	}
	defer s.Close()
	if err := s.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	both.Store(true)
	mu.Lock()
	asked = nil
	mu.Unlock()
	s.(*session).breakContact()
	x, y := <-first, <-second
	mu.Lock()
	order := asked
	mu.Unlock()
	if x.id != 0x77 || y.id != 0x77 {
		t.Errorf("the sessions %x and %x are asked for", x.id, y.id)
	}
	early, late := x, y
	if order[0] == "s2:2181" {
		early, late = y, x
	}
	_, change := s.Status()
	early.welcome(0x77)
	select {
	case <-change:
		t.Error("the answer to the earlier request is used at once")
	case <-time.After(100 * time.Millisecond):
	}
	late.welcome(0x77)
	if err := s.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	s.(*session).mu.Lock()
	at := s.(*session).conn.target.Server
	s.(*session).mu.Unlock()
	if at != order[len(order)-1] {
		t.Errorf("asked %v, and the session is at %s", order, at)
	}
	if closedFirst.Load()+closedSecond.Load() != 0 {
		t.Error("the session was closed on the connection that is not used")
	}
}

// A server drops the first requests of many clients, as one does whose listen queue is full: they seem to
// be connected. Each client gets contact with its second attempt, not after a third of its timeout.
func TestServers_AClientAsksALoneServerAgainAfterASecond(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	inBubble(t, Options{SessionTimeout: time.Minute}, func(conn net.Conn, n int) {
		if conns.Add(1); n == 2 {
			swallow(conn)
			return
		}
		welcome(conn, 60_000)
		for r := range requests(conn) {
			if !answerPing(conn, r) {
				conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
			}
		}
	}, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		begin := time.Now()
		s.(*session).breakContact()
		// A third of the lease is 13 s, in which the first attempt alone would be made.
		if err := s.Sync(t.Context(), "/"); err != nil {
			t.Error(err)
		}
		if took, n := time.Since(begin), conns.Load(); took < time.Second || took > 1500*time.Millisecond || n != 3 {
			t.Errorf("contact after %v, with connection %d; want 1 s and a pause, and 3", took, n)
		}
	})
}

func TestServers_AnIPv6AddressWithAZone(t *testing.T) {
	t.Parallel()
	addr := startServer(t, welcoming)
	for _, server := range []string{"fe80::1%eth0", "[fe80::1%eth0]", "[fe80::1%eth0]:2181"} {
		var dialed atomic.Value
		s, err := New([]string{server}, &Options{Without: optional, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			dialed.Store(address)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}}).Open(t.Context())
		if err != nil {
			t.Errorf("%s: %v", server, err)
			continue
		}
		s.Close()
		if got := dialed.Load(); got != "[fe80::1%eth0]:2181" {
			t.Errorf("%s: %v is dialed", server, got)
		}
	}
}

// While no server answers, the error of a call says so beside that of its ctx, whether its request was
// sent or not.
func TestServers_ACallWithoutContactSaysSo(t *testing.T) {
	t.Parallel()
	var quiet, down atomic.Bool
	var dropped atomic.Int32
	addr := startServer(t, func(conn net.Conn) {
		if down.Load() {
			dropped.Add(1)
			return
		}
		welcome(conn, 40_000)
		for r := range requests(conn) {
			if down.Load() {
				return
			}
			if !quiet.Load() && !answerPing(conn, r) {
				conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
			}
		}
	})
	s, err := New([]string{addr}, &Options{Without: optional, SessionTimeout: 40 * time.Second}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	try := func(d time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		return s.Sync(ctx, "/")
	}
	if err := try(time.Minute); err != nil {
		t.Fatal(err)
	}
	quiet.Store(true)
	// The lease is 26.7 s, so an answer is overdue after 3.3 s.
	if err := try(10 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrNoContact) {
		t.Errorf("a call that gives up at once: %v", err)
	}
	if err := try(4 * time.Second); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, backend.ErrNoContact) || !strings.Contains(err.Error(), addr+": no answer") {
		t.Errorf("a call whose request the server left without an answer: %v", err)
	}
	down.Store(true)
	s.(*session).breakContact()
	for phase, change := s.Status(); phase == backend.PhaseConnected; phase, change = s.Status() {
		<-change
	}
	for dropped.Load() < 2 && s.Err() == nil { // the second attempt begins when the first has failed
		time.Sleep(time.Millisecond)
	}
	err = try(300 * time.Millisecond)
	var cut *backend.NoContactError
	if !errors.As(err, &cut) || !errors.Is(err, context.DeadlineExceeded) || cut.For < 250*time.Millisecond || !strings.Contains(cut.Why, addr+": the server closed the connection") {
		t.Errorf("a call without a connection: %v", err)
	}
	quiet.Store(false)
	down.Store(false)
	if err := try(time.Minute); err != nil {
		t.Error(err)
	}
}

// The error of Open says what is wrong with an address, also if its ctx ends during the first attempt.
func TestServers_OpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	plain, secure := httptest.NewUnstartedServer(http.NotFoundHandler()), httptest.NewUnstartedServer(http.NotFoundHandler())
	for _, s := range []*httptest.Server{plain, secure} {
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
	}
	plain.Start()
	t.Cleanup(plain.Close)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	mute := startServer(t, func(conn net.Conn) { swallow(conn) })
	o := &Options{TLS: &tls.Config{InsecureSkipVerify: true}}
	var all sync.WaitGroup
	for name, test := range map[string]struct {
		addr string
		o    *Options
		want string
	}{
		"nothing listens":    {"127.0.0.1:1", nil, "connection refused"},
		"TLS is expected":    {secure.Listener.Addr().String(), nil, "TLS expected?"},
		"a mute server":      {mute, nil, "it accepts connections, and gave no answer within "},
		"an HTTP server":     {plain.Listener.Addr().String(), nil, "it accepts connections, and gave no answer within "},
		"no TLS is expected": {plain.Listener.Addr().String(), o, "first record does not look like a TLS handshake"},
	} {
		all.Go(func() {
			within := 10 * time.Second // many attempts
			if strings.Contains(test.want, "gave no answer within") {
				within = 3 * time.Second // the first attempt lasts longer
			}
			ctx, cancel := context.WithTimeout(t.Context(), within)
			_, err := New([]string{test.addr}, test.o).Open(ctx)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, backend.ErrNoContact) || !strings.Contains(err.Error(), test.addr+": ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want %q", name, err, test.want)
			}
		})
	}
	all.Wait()
}
