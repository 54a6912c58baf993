package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

// The zk client keeps requests that it could not send, and opens another session when its own
// has expired. Then it sends the requests that it kept.
func TestAQueuedCreateNeverCrossesIntoTheNextSession(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	var conns atomic.Pointer[stuckConn]
	b := zookeeper.New(s.link.Addrs(), &zookeeper.Options{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			c := &stuckConn{Conn: conn, stuck: make(chan struct{}), closed: make(chan struct{})}
			conns.Store(c)
			return c, nil
		},
	})
	c, o := s.open(b), s.other()
	conn := conns.Load()
	conn.on.Store(true)
	const n = 60
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			_, errs[i] = c.Commit(s.ctx, backend.Create(s.path(fmt.Sprint("n", i)), nil, backend.Ephemeral))
		})
	}
	s.await(conn.stuck, "a write that gets stuck") // the other requests queue behind it
	for _, p := range s.link.Proxies {
		p.Refuse(true) // or the session takes its connection back, and lives
	}
	s.link.Expire(c.ID())
	s.link.Heal()
	s.await(c.Done(), "the loss of the session")
	wg.Wait()
	for i, err := range errs {
		if !errors.Is(err, backend.ErrSessionLost) && !errors.Is(err, backend.ErrUncertain) {
			t.Errorf("commit %d: %v", i, err)
		}
	}
	if names := s.children(o); len(names) != 0 {
		t.Fatalf("%d nodes of an expired session: %v", len(names), names)
	}
}

// stuckConn blocks all writes once it is switched on.
type stuckConn struct {
	net.Conn
	on        atomic.Bool
	stuckOnce sync.Once
	stuck     chan struct{}
	closeOnce sync.Once
	closed    chan struct{}
}

func (c *stuckConn) Write(p []byte) (int, error) {
	if !c.on.Load() {
		return c.Conn.Write(p)
	}
	c.stuckOnce.Do(func() { close(c.stuck) })
	<-c.closed
	return 0, net.ErrClosed
}

func (c *stuckConn) Close() error {
	c.closeOnce.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// expire ends a session. Its client cannot connect meanwhile. It would take the session back between
// the handshake of the connection that ends the session and its request: that request leaves the
// client's new connection open, and the server closes it only at the next ping, a third of the
// timeout later. (When the server expires a session itself, it closes the connection.)
func (s *scene) expire(session backend.Session) {
	s.Helper()
	for _, p := range s.link.Proxies {
		p.Refuse(true)
	}
	s.link.Expire(session.ID())
	s.link.Heal()
	s.await(session.Done(), "the loss of the session")
}

// sent returns the number of requests of the link except handshakes.
func (s *scene) sent() int {
	n := 0
	for _, p := range s.link.Proxies {
		c := p.Count()
		n += c.AllRequests() - c.Ops[zkproxy.OpConnect]
	}
	return n
}

// The loss is reported with the answer to the first handshake after it: before the client has sent a
// ping, which is due after 13 s.
func TestExpiryIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c := s.open(s.link)
	before := s.sent()
	s.expire(c)
	if n := s.sent() - before; n != 0 {
		t.Errorf("reported after %d requests, want none", n)
	}
	if err := c.Err(); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("Err: %v", err)
	}
	// A Close that waited for an answer would take a second or two.
	s.quick(3, 500*time.Millisecond, func() time.Duration {
		c := s.open(s.link)
		s.expire(c)
		before, start := s.sent(), time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		took := time.Since(start)
		if n := s.sent() - before; n != 0 {
			t.Errorf("Close sent %d requests, want none", n)
		}
		return took
	})
}

// Servers that accept connections and stay silent, as paused ones do, must not use up the
// time that the third server needs.
func TestSilentServersDoNotFreezeTheSession(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	good := s.link.Proxies[0]
	addrs := []string{good.Addr()}
	var silent []*zkproxy.Proxy
	for range 2 {
		p, err := zkproxy.New(shared.Get(t).Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		silent = append(silent, p)
		addrs = append(addrs, p.Addr())
	}
	const timeout = 10 * time.Second
	for range 2 {
		// All servers but one fall silent, including the one that the session is connected
		// to.
		good.Refuse(true)
		c := s.open(zookeeper.New(addrs, &zookeeper.Options{SessionTimeout: timeout}))
		id := c.ID()
		s.commit(c, backend.Create(s.path("e"), nil, backend.Ephemeral))
		for _, p := range silent {
			p.Blackhole(true)
		}
		good.Refuse(false)
		start, m := time.Now(), pace.Start(t, nil)
		s.phase(c, backend.PhaseSuspended)
		noticed := time.Since(start)
		s.phase(c, backend.PhaseConnected)
		if c.ID() != id {
			t.Errorf("session %#x became %#x after %v", id, c.ID(), time.Since(start))
		}
		m.Within(timeout, "the way back to a server")
		t.Logf("noticed after %v, back after %v", noticed, time.Since(start))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for _, p := range silent {
			p.Blackhole(false)
		}
	}
}

func TestAPausedServer(t *testing.T) {
	t.Parallel()
	e := zktest.Run(t, nil)
	server := e.Servers()[0]
	s := sceneOn(t, e, zookeeper.Options{SessionTimeout: 10 * time.Second})
	c := s.open(s.link)
	s.commit(c, backend.Create(s.path("n"), nil, backend.Ephemeral))

	// A call returns when its context ends although the server does not answer.
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("the caller's reason")
	ctx, cancel := context.WithCancelCause(s.ctx)
	timer := time.AfterFunc(200*time.Millisecond, func() { cancel(cause) })
	defer timer.Stop()
	m := pace.Start(t, nil)
	if _, _, err := c.Get(ctx, s.path("n"), nil); !errors.Is(err, cause) || !errors.Is(err, context.Canceled) {
		t.Errorf("get: %v", err)
	}
	if _, err := c.Commit(ctx, backend.Delete(s.path("n"), 0)); !errors.Is(err, cause) || errors.Is(err, backend.ErrUncertain) {
		t.Errorf("a commit after its context had ended: %v", err)
	}
	m.Within(8*time.Second, "the calls")

	// The server resumes before the session is over.
	s.phase(c, backend.PhaseSuspended)
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	s.phase(c, backend.PhaseConnected)
	if _, _, err := c.Get(s.ctx, s.path("n"), nil); err != nil {
		t.Errorf("after the pause: %v", err)
	}

	// Close does not wait for the paused server.
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	m = pace.Start(t, nil)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	m.Within(8*time.Second, "Close")
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
}

// A lost session must not send anything any more, or the server would keep its nodes, and the
// recipe that owned it would wait behind its own node.
func TestALostSessionSendsNothing(t *testing.T) {
	t.Parallel()
	const timeout = 6 * time.Second // a busy machine declares the loss of a shorter one too late
	s := newScene(t, zookeeper.Options{SessionTimeout: timeout})
	c := s.open(s.link)
	o := s.open(zookeeper.New(s.service.ZooKeeper("other").Addrs(), &zookeeper.Options{SessionTimeout: 40 * time.Second}))
	s.commit(c, backend.Create(s.path("e"), nil, backend.Ephemeral))
	if got := c.Timeout(); got != timeout {
		t.Fatalf("negotiated %v", got)
	}
	proxy := s.link.Proxies[0]
	proxy.HoldDown(true) // requests arrive, answers are lost
	s.lostBy(c, time.Now().Add(timeout))
	if _, err := o.Exists(s.ctx, s.path("e"), nil); err != nil {
		t.Errorf("the server ended the session before the client declared it lost: %v", err)
	}
	proxy.HoldDown(false)
	// Frames that were sent before the loss can still be under way, the connect request of
	// another connection for instance. They have arrived when all connections have ended that
	// came before this one.
	later, err := s.link.Open(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := later.Close(); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); proxy.Open() > 0; coordtest.Pause(began) {
		if time.Since(began) > limit {
			t.Fatalf("%d connections of a lost session are open", proxy.Open())
		}
	}
	before := proxy.Count()
	s.gone(o, s.path("e"))
	after := proxy.Count()
	if after.AllRequests() != before.AllRequests() || after.Connections != before.Connections {
		t.Errorf("sent by a lost session: before %v, after %v", before, after)
	}
}

func TestTheLeaseIsRenewedByAnswersAlone(t *testing.T) {
	t.Parallel()
	const timeout, lease = 20 * time.Second, 6 * time.Second
	s := newScene(t, zookeeper.Options{SessionTimeout: timeout, LossMargin: timeout - lease})
	c, o := s.open(s.link), s.other()
	s.commit(o, backend.Create(s.path("n"), nil, backend.Persistent))

	// An idle time longer than the lease: pings keep the session alive.
	timer := time.NewTimer(lease + time.Second/2)
	defer timer.Stop()
	select {
	case <-c.Done():
		t.Fatalf("an idle session was lost: %v", c.Err())
	case <-timer.C:
	}

	// Events keep arriving while no request gets through: they do not renew the lease.
	var watches []*backend.Watch
	for i := range 60 { // for at least three seconds
		path := s.path(fmt.Sprint("w", i))
		s.commit(o, backend.Create(path, nil, backend.Persistent))
		w := backend.NewWatch()
		if _, _, err := c.Children(s.ctx, path, w); err != nil {
			t.Fatal(err)
		}
		watches = append(watches, w)
	}
	s.link.Proxies[0].HoldUp(true)
	start := time.Now()
	for i := range watches {
		select {
		case <-c.Done():
		case <-time.After(50 * time.Millisecond):
			s.commit(o, backend.Delete(s.path(fmt.Sprint("w", i)), 0))
		}
	}
	s.lostBy(c, start.Add(lease+500*time.Millisecond))
	if watches[0].Kind() != backend.Deleted {
		t.Errorf("no event came through: %v", watches[0].Kind())
	}
}
