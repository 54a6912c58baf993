package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// until waits until a condition holds, which is read under the session's lock.
func (s *session) until(condition func() bool) {
	for holds := false; !holds; runtime.Gosched() {
		s.mu.Lock()
		holds = condition()
		s.mu.Unlock()
	}
}

// readLate is a server that reads nothing after the handshake until gate is closed. Then it
// answers everything, and passes each request but pings to got.
func readLate(gate chan struct{}, got chan []byte) func(net.Conn) {
	return func(conn net.Conn) {
		welcome(conn, 40_000)
		<-gate
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			if int32At(r, 0) != xidPing {
				got <- r
			}
			conn.Write(framed(reply(int32At(r, 0), 0, make([]byte, statSize)...)))
		}
	}
}

// smallBuffers is an Options.Dial whose connections take few bytes at once. They are not
// wrapped.
func smallBuffers(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		conn.(*net.TCPConn).SetWriteBuffer(64 << 10)
	}
	return conn, err
}

// The first request does not fit into the buffers of the connection. Its caller does not wait
// for it longer than its context, and the request still arrives whole, before the later ones.
func TestARequestThatDoesNotFitIsWrittenWhole(t *testing.T) {
	t.Parallel()
	gate, got := make(chan struct{}), make(chan []byte, 10)
	read := sync.OnceFunc(func() { close(gate) })
	addr := startServer(t, readLate(gate, got))
	b, err := New([]string{addr}, &Options{Without: optional, SessionTimeout: 40 * time.Second, Dial: smallBuffers}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	defer read()
	s := b.(*session)
	data := make([]byte, 900_000)
	for i := range data {
		data[i] = byte(i / 1000)
	}
	ctx, cancel := context.WithCancel(t.Context())
	errs := make([]chan error, 2)
	for i, op := range []backend.Op{backend.SetData("/a", data, 0), backend.Delete("/never", 0)} {
		errs[i] = make(chan error, 1)
		go func() {
			_, err := s.Commit(ctx, op)
			errs[i] <- err
		}()
		s.until(func() bool { return s.underWay == i+1 && s.queue.size == i && s.conn.writing })
	}
	cancel()
	for i, uncertain := range []bool{true, false} {
		select {
		case err := <-errs[i]:
			if !errors.Is(err, context.Canceled) || errors.Is(err, backend.ErrUncertain) != uncertain {
				t.Errorf("commit %d: %v", i, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("commit %d does not end with its context", i)
		}
	}
	read()
	if _, err := s.Commit(t.Context(), backend.Delete("/later", 0)); err != nil {
		t.Fatal(err)
	}
	first, second := <-got, <-got
	if d := (decoder{rest: first[8:]}); int32At(first, 4) != opSetData || d.text() != "/a" || !bytes.Equal(d.buffer(), data) {
		t.Errorf("the first request has opcode %d and %d bytes", int32At(first, 4), len(first))
	}
	if d := (decoder{rest: second[8:]}); int32At(second, 4) != opDelete || d.text() != "/later" {
		t.Errorf("the second request is %q", second)
	}
}

// encoding is a connection of Options.Dial that does more in its Write than the TCP connection
// of which it has the other methods.
type encoding struct {
	*net.TCPConn
	written *atomic.Int64
}

func (c encoding) Write(p []byte) (int, error) {
	c.written.Add(int64(len(p)))
	return c.TCPConn.Write(p)
}

func TestAConnectionOfDialWritesEverything(t *testing.T) {
	t.Parallel()
	var written, received atomic.Int64
	addr := startServer(t, func(conn net.Conn) {
		welcome(conn, 10_000)
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			received.Add(4 + int64(len(r)))
			conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
		}
	})
	s, err := New([]string{addr}, &Options{Without: optional, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return encoding{conn.(*net.TCPConn), &written}, nil
	}}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	handshake := written.Load()
	for range 3 {
		if err := s.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := written.Load() - handshake; n != received.Load() || handshake == 0 {
		t.Errorf("the connection wrote %d bytes, and %d arrived", n, received.Load())
	}
}

// A write that blocks ends with the connection, which the server's silence ends after half
// the lease, and no call waits for it longer than its context.
func TestAWriteThatBlocks(t *testing.T) {
	t.Parallel()
	got := make(chan string, 10)
	serve := func(conn net.Conn, n int) {
		welcome(conn, 9_000) // a lease of 6 s
		if n == 1 {
			time.Sleep(time.Hour) // reads nothing
			return
		}
		for r := range requests(conn) {
			if !answerPing(conn, r) {
				got <- fmt.Sprint(int32At(r, 4))
				conn.Write(framed(reply(int32At(r, 0), 0, make([]byte, statSize)...)))
			}
		}
	}
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for i, uncertain := range []bool{true, false} {
			wg.Go(func() {
				_, err := s.Commit(ctx, backend.Delete("/a", 0))
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrUncertain) != uncertain || time.Since(start) != time.Second {
					t.Errorf("commit %d: %v after %v", i, err, time.Since(start))
				}
			})
			synctest.Wait()
		}
		_, err = s.Commit(t.Context(), backend.SetData("/b", nil, 0))
		if took := time.Since(start); err != nil || took < 2*time.Second || took > 4*time.Second {
			t.Errorf("a commit that waits for contact: %v after %v", err, took)
		}
		wg.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		close(got)
		var all []string
		for op := range got {
			all = append(all, op)
		}
		if want := []string{fmt.Sprint(opSetData), fmt.Sprint(opClose)}; !slices.Equal(all, want) {
			t.Errorf("the second server received %v, want %v", all, want)
		}
	})
}

// stuckConn is a connection whose writes after the handshake wait for gate, even when it has
// been closed.
type stuckConn struct {
	net.Conn
	gate  chan struct{}
	asked bool
}

func (c *stuckConn) Write(p []byte) (int, error) {
	if c.asked {
		<-c.gate
	}
	c.asked = true
	return c.Conn.Write(p)
}

// The writer of the first connection is still in Write when the second one is in use.
func TestAWriterThatReturnsLateDisturbsNothing(t *testing.T) {
	t.Parallel()
	f := new(recording)
	var conns atomic.Int32
	drop := make(chan struct{})
	addr := startServer(t, func(conn net.Conn) {
		if conns.Add(1) == 1 {
			welcome(conn, 10_000)
			<-drop
			return
		}
		f.serve(conn)
	})
	gate := make(chan struct{})
	var dialled atomic.Int32
	b, err := New([]string{addr}, &Options{Without: optional, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if dialled.Add(1) == 1 {
			return &stuckConn{Conn: conn, gate: gate}, err
		}
		return conn, err
	}}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := b.(*session)
	first := make(chan error, 1)
	go func() {
		_, err := s.Commit(t.Context(), backend.Delete("/first", 0))
		first <- err
	}()
	s.until(func() bool { return s.underWay == 1 && s.queue.size == 0 })
	close(drop)
	if err := <-first; !errors.Is(err, backend.ErrUncertain) {
		t.Errorf("the first commit: %v", err)
	}
	var second *guardConn
	for i, path := range []string{"/second", "/third"} {
		if _, err := s.Commit(t.Context(), backend.Delete(path, 0)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		s.mu.Lock()
		if i == 0 {
			second = s.conn
			close(gate)
		} else if s.conn != second {
			t.Error("the late writer has broken the second connection")
		}
		s.mu.Unlock()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := f.list(); !slices.Equal(got, []string{"/second", "/third"}) {
		t.Errorf("the second server received %v", got)
	}
}

// Events, answers to pings and frames of kinds that this package does not use come between
// the replies to calls.
func TestFramesBetweenReplies(t *testing.T) {
	t.Parallel()
	const callers = 10
	var conns atomic.Int32
	serve := func(conn net.Conn, n int) {
		conns.Store(int32(n))
		welcome(conn, 9_000)
		var waiting [][]byte
		for r := range requests(conn) {
			switch op := int32At(r, 4); {
			case op == opClose:
				conn.Write(framed(reply(int32At(r, 0), 0)))
				return
			case int32At(r, 0) != xidPing:
				waiting = append(waiting, r)
				continue
			}
			var out []byte
			between := func(i int) {
				e := reply(xidEvent, 0)
				e = be.AppendUint32(be.AppendUint32(e, eventDataChanged), 3)
				out = append(out, framed(str(e, fmt.Sprint("/n", i)))...)
				out = append(out, framed(reply(-8, 0))...)
			}
			for i, r := range waiting {
				if between(i); i == len(waiting)/2 {
					out = append(out, framed(reply(xidPing, 0))...)
				}
				d := decoder{rest: r[8:]}
				out = append(out, framed(reply(int32At(r, 0), 0, append(str(nil, d.text()), make([]byte, statSize)...)...))...)
			}
			if len(waiting) == 0 {
				out = framed(reply(xidPing, 0))
			}
			waiting = nil
			conn.Write(out)
		}
	}
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var wg sync.WaitGroup
		for i := range callers {
			path := fmt.Sprint("/n", i)
			wg.Go(func() {
				for range 3 {
					w := backend.NewWatch()
					data, _, err := s.Get(t.Context(), path, w)
					if err != nil || string(data) != path {
						t.Errorf("get %s: %q, %v", path, data, err)
					}
					w.Stop()
				}
			})
		}
		wg.Wait()
		if n := conns.Load(); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

// A reply that comes twice would be that to the next call, were there no xids.
func TestAReplyThatComesTwiceBreaksContact(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	serve := func(conn net.Conn, n int) {
		conns.Store(int32(n))
		welcome(conn, 10_000)
		for r := range requests(conn) {
			if answerPing(conn, r) {
				continue
			}
			answer := framed(reply(int32At(r, 0), 0, str(nil, "/")...))
			if n == 1 {
				answer = append(answer, answer...)
			}
			conn.Write(answer)
		}
	}
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Commit(t.Context(), backend.Delete("/a", 0)); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if _, err := s.Commit(t.Context(), backend.Delete("/b", 0)); err != nil {
			t.Error(err)
		}
		if n := conns.Load(); n != 2 {
			t.Errorf("%d connections", n)
		}
	})
}

// The server ends the session while several commits wait for their answers. The answer to the
// first one says that it was refused; nothing is known of the others.
func TestASessionThatEndsAmongSeveralCommits(t *testing.T) {
	t.Parallel()
	serve := func(conn net.Conn, _ int) {
		welcome(conn, 10_000)
		n := 0
		for r := range requests(conn) {
			if answerPing(conn, r) {
				continue
			}
			if n++; n == 3 {
				conn.Write(framed(reply(int32At(r, 0)-2, codeSessionExpired)))
			}
		}
	}
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var wg sync.WaitGroup
		for i, uncertain := range []bool{false, true, true} {
			wg.Go(func() {
				_, err := s.Commit(t.Context(), backend.Delete("/a", 0))
				if !errors.Is(err, backend.ErrSessionLost) || errors.Is(err, backend.ErrUncertain) != uncertain {
					t.Errorf("commit %d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
	})
}

// The reply has arrived while the process was stopped, and the lease has passed meanwhile.
func TestAnAnswerAfterTheLeaseIsNone(t *testing.T) {
	t.Parallel()
	var answer chan struct{}
	serve := func(conn net.Conn, _ int) {
		welcome(conn, 10_000)
		for r := range requests(conn) {
			<-answer
			conn.Write(framed(reply(int32At(r, 0), 0)))
		}
	}
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		answer = make(chan struct{}) // of the bubble
		var later atomic.Int64
		b.(*service).cfg.clock = func() func() instant {
			now := contact.Clock()
			return func() instant {
				i := now()
				i.Wall += time.Duration(later.Load())
				return i
			}
		}
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		done := make(chan error, 1)
		go func() {
			_, err := s.Commit(t.Context(), backend.Delete("/a", 0))
			done <- err
		}()
		synctest.Wait()
		later.Store(int64(7 * time.Second)) // of a lease of 6.7 s
		close(answer)
		if err := <-done; !errors.Is(err, backend.ErrSessionLost) || !errors.Is(err, backend.ErrUncertain) {
			t.Errorf("commit: %v", err)
		}
	})
}

// A server that answers pings and not the credentials would keep the session suspended for
// ever, since each answer renews its lease.
func TestCredentialsThatGetNoAnswer(t *testing.T) {
	t.Parallel()
	for _, opened := range []bool{false, true} {
		var conns atomic.Int32
		var drop chan struct{}
		serve := func(conn net.Conn, n int) {
			conns.Store(int32(n))
			welcome(conn, 9_000)
			if opened && n == 1 {
				nextRequest(conn)
				conn.Write(framed(reply(xidAuth, 0)))
				<-drop
				return
			}
			mute := 1
			if opened {
				mute = 2
			}
			for r := range requests(conn) {
				if !answerPing(conn, r) && (int32At(r, 0) != xidAuth || n > mute) {
					conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
				}
			}
		}
		inBubble(t, Options{Digest: "user:secret"}, serve, func(t *testing.T, b backend.Backend) {
			drop = make(chan struct{}) // of the bubble
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s, err := b.Open(ctx)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			defer s.Close()
			close(drop)
			if err := s.Sync(ctx, "/"); err != nil {
				t.Errorf("sync: %v", err)
			}
			want := int32(2)
			if opened {
				want = 3
			}
			if n := conns.Load(); n != want {
				t.Errorf("%d connections, want %d", n, want)
			}
		})
	}
}

func TestCloseDuringAHandshake(t *testing.T) {
	t.Parallel()
	for _, digest := range []string{"", "user:secret"} {
		var opened, second chan struct{}
		serve := func(conn net.Conn, n int) {
			if n == 1 {
				welcome(conn, 10_000)
				if digest != "" {
					nextRequest(conn)
					conn.Write(framed(reply(xidAuth, 0)))
				}
				<-opened // the end of the connection could overtake the handshake
				return
			}
			if n == 2 {
				close(second)
			}
			if digest != "" {
				welcome(conn, 10_000) // and the credentials get no answer
			}
			io.Copy(io.Discard, conn)
		}
		inBubble(t, Options{Digest: digest}, serve, func(t *testing.T, b backend.Backend) {
			opened, second = make(chan struct{}), make(chan struct{}) // of the bubble
			s, err := b.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			close(opened)
			<-second
			waits := make(chan error, 1)
			go func() {
				_, err := s.Commit(t.Context(), backend.Delete("/a", 0))
				waits <- err
			}()
			synctest.Wait()
			start := time.Now()
			if err := s.Close(); err != nil || time.Since(start) > 3*time.Second {
				t.Errorf("close: %v after %v", err, time.Since(start))
			}
			if err := <-waits; !errors.Is(err, backend.ErrClosed) || errors.Is(err, backend.ErrUncertain) {
				t.Errorf("the commit that waited: %v", err)
			}
		})
	}
}

// loneConn notes how many connections are open, and how many are being read.
type loneConn struct {
	net.Conn
	open, read *atomic.Int32
	once       sync.Once
}

func (c *loneConn) Read(p []byte) (int, error) {
	c.read.Add(1)
	defer c.read.Add(-1)
	return c.Conn.Read(p)
}

func (c *loneConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// The zk client dials when it has closed the connection before, and when its reader has
// ended. So no reply of a connection arms a watch, or ends a call, of the next one.
func TestThereIsOneConnectionAtATime(t *testing.T) {
	t.Parallel()
	// With these timeouts a second attempt begins beside a slow one after 3 seconds, and later after 6.
	const most = 60
	var conns, open, read, served atomic.Int32
	addr := startServer(t, func(conn net.Conn) {
		n := conns.Add(1)
		if n%5 == 1 && n < most {
			return // during the handshake
		}
		welcome(conn, 60_000)
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			answer := framed(reply(int32At(r, 0), 0, str(nil, "/")...))
			switch {
			case n >= most:
			case n%5 == 2:
				answer = framed(reply(int32At(r, 0)+1, 0))
			case n%5 == 3:
				answer = answer[:10]
			case n%5 == 4:
				return
			}
			conn.Write(answer)
			if served.Add(1); n < most {
				return
			}
		}
	})
	s, err := New([]string{addr}, &Options{Without: optional, SessionTimeout: 6 * time.Second, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if o, r := open.Load(), read.Load(); o != 0 || r != 0 {
			t.Errorf("a dial while %d connections are open and %d are being read", o, r)
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		open.Add(1)
		return &loneConn{Conn: conn, open: &open, read: &read}, nil
	}}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for conns.Load() < most {
				if err := s.Sync(t.Context(), "/"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// The goroutines of an idle session are those of the zk client: its loop, its reader and its
// sender. The test is not parallel, because it counts bytes.
func TestWhatAnIdleSessionHolds(t *testing.T) {
	const sessions, mostBytes = 20, 300_000
	serve := func(conn net.Conn, _ int) {
		welcome(conn, 10_000)
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
		}
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what a sync.Pool holds goes with the second one
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	// Other tests can leave goroutines that end at any time, but not in this bubble.
	goroutines := func() int {
		all := make([]byte, 1<<20)
		return strings.Count(string(all[:runtime.Stack(all, true)]), "synctest bubble")
	}
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		synctest.Wait()
		before, bytes := goroutines(), heap()
		var all []backend.Session
		for range sessions {
			s, err := b.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := s.Sync(t.Context(), "/"); err != nil {
					t.Fatal(err)
				}
			}
			all = append(all, s)
		}
		synctest.Wait()
		const server = 1 // for each connection
		if n := goroutines() - before; n != sessions*(3+server) {
			t.Errorf("%d sessions have %d goroutines with those of the server", sessions, n)
		}
		if n := (heap() - bytes) / sessions; n > mostBytes {
			t.Errorf("a session holds %d bytes", n)
		} else {
			t.Logf("%d bytes for a session, with its server", n)
		}
		for _, s := range all {
			s.Close()
		}
	})
}

// The handshake has a deadline of 5 s at most. The first ping of a session with a long timeout
// comes later than that, with and without credentials.
func TestALongSessionOutlastsItsHandshake(t *testing.T) {
	t.Parallel()
	for _, digest := range []string{"", "user:secret"} {
		var conns atomic.Int32
		serve := func(conn net.Conn, n int) {
			conns.Store(int32(n))
			welcome(conn, 60_000)
			for r := range requests(conn) {
				conn.Write(framed(reply(int32At(r, 0), 0)))
			}
		}
		inBubble(t, Options{Digest: digest, SessionTimeout: time.Minute}, serve, func(t *testing.T, b backend.Backend) {
			s, err := b.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			time.Sleep(5 * time.Minute)
			if n := conns.Load(); n != 1 || s.Err() != nil {
				t.Errorf("an idle session with the credentials %q has had %d connections; its error: %v", digest, n, s.Err())
			}
		})
	}
}

// A server sends the names of the children of a node whatever their number. If the session
// asked again, it would get the same answer.
func TestAReplyThatIsTooLongIsTheErrorOfItsRead(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(ctx context.Context, s backend.Session, w *backend.Watch) error{
		"get":      watching()["get"],
		"children": watching()["children"],
	} {
		var conns, asked atomic.Int32
		serve := func(conn net.Conn, n int) {
			conns.Store(int32(n))
			welcome(conn, 10_000)
			zeros := make([]byte, 1<<20)
			for r := range requests(conn) {
				if op := int32At(r, 4); op != opGetData && op != opChildren {
					conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
					continue
				}
				asked.Add(1)
				long := framed(reply(int32At(r, 0), 0))
				be.PutUint32(long, maxFrame+replySize)
				conn.Write(long)
				for range maxFrame / len(zeros) {
					conn.Write(zeros)
				}
			}
		}
		inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
			s, err := b.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			w := backend.NewWatch()
			if err := read(ctx, s, w); !errors.Is(err, backend.ErrTooLarge) || asked.Load() != 1 {
				t.Errorf("%s: %v after %d requests", name, err, asked.Load())
			}
			if err := s.Sync(ctx, "/"); err != nil || conns.Load() != 1 || Interests(s) != 0 {
				t.Errorf("%s: a later sync: %v on connection %d; %d watches are armed", name, err, conns.Load(), Interests(s))
			}
		})
	}
}

func TestCallsLeaveTheQueueFromAnyPlace(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var q callQueue
	var want, out []*call
	for range 20 {
		out = append(out, new(call))
	}
	for turn := range 5000 {
		if i := r.IntN(20); i < len(out) {
			q.push(out[i])
			want = append(want, out[i])
			out = slices.Delete(out, i, i+1)
		} else {
			i -= len(out)
			q.remove(want[i])
			out = append(out, want[i])
			want = slices.Delete(want, i, i+1)
		}
		var forwards, backwards []*call
		for c := q.first; c != nil; c = c.behind {
			forwards = append(forwards, c)
		}
		for c := q.last; c != nil; c = c.before {
			backwards = append(backwards, c)
		}
		slices.Reverse(backwards)
		if !slices.Equal(forwards, want) || !slices.Equal(backwards, want) || q.size != len(want) {
			t.Fatalf("turn %d: %d calls forwards, %d backwards, size %d, want %d", turn, len(forwards), len(backwards), q.size, len(want))
		}
	}
}
