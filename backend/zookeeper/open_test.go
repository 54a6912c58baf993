package zookeeper_test

import (
	"bytes"
	"context"
	"errors"
	"log"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/internal/zktest"
)

func TestOptionsThatMakeNoSenseAreReportedByOpen(t *testing.T) {
	t.Parallel()
	one := []string{"127.0.0.1:1"}
	for _, test := range []struct {
		name    string
		servers []string
		options zookeeper.Options
	}{
		{"no server", nil, zookeeper.Options{}},
		{"an empty server", []string{"127.0.0.1:1", ""}, zookeeper.Options{}},
		{"a list with a path", []string{"a:1,b:2/root"}, zookeeper.Options{}},
		{"a path after the server", []string{"a:1/root"}, zookeeper.Options{}},
		{"a port out of range", []string{"a:65536"}, zookeeper.Options{}},
		{"a port without digits", []string{"a:zk"}, zookeeper.Options{}},
		{"no host", []string{":2181"}, zookeeper.Options{}},
		{"too many colons", []string{"a:b:c"}, zookeeper.Options{}},
		{"a negative timeout", one, zookeeper.Options{SessionTimeout: -1}},
		{"a timeout below a millisecond", one, zookeeper.Options{SessionTimeout: time.Microsecond}},
		{"a timeout beyond the protocol", one, zookeeper.Options{SessionTimeout: 1000 * 24 * time.Hour}},
		{"a negative margin", one, zookeeper.Options{LossMargin: -1}},
		{"a margin as long as the timeout", one, zookeeper.Options{SessionTimeout: time.Second, LossMargin: time.Second}},
		{"a digest without a password", one, zookeeper.Options{Digest: "secret"}},
		{"a digest without a user", one, zookeeper.Options{Digest: ":secret"}},
		{"an ACL without a scheme", one, zookeeper.Options{ACL: []zookeeper.ACL{{ID: "anyone", Perms: zookeeper.PermAll}}}},
		{"an ACL without permissions", one, zookeeper.Options{ACL: []zookeeper.ACL{{Scheme: "world", ID: "anyone"}}}},
		{"an ACL of parents without a scheme", one, zookeeper.Options{ParentACL: []zookeeper.ACL{{ID: "anyone", Perms: zookeeper.PermAll}}}},
		{"an ACL with unknown permissions", one, zookeeper.Options{ACL: []zookeeper.ACL{{Scheme: "world", ID: "anyone", Perms: 32}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := zookeeper.New(test.servers, &test.options).Open(t.Context())
			var e *backend.Error
			if !errors.Is(err, backend.ErrInvalid) || !errors.As(err, &e) || e.Op != "open" {
				t.Fatalf("got %v", err)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the digest is in the error: %v", err)
			}
		})
	}
}

func TestAMarginLongerThanTheNegotiatedTimeoutIsReportedByOpen(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	// The server grants 40 s at most.
	b := zookeeper.New(s.link.Addrs(), &zookeeper.Options{SessionTimeout: 2 * time.Minute, LossMargin: time.Minute})
	if _, err := b.Open(s.ctx); !errors.Is(err, backend.ErrInvalid) {
		t.Fatalf("got %v", err)
	}
}

func TestTheTimeoutIsNegotiated(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	for _, test := range []struct{ asked, granted time.Duration }{
		{0, 10 * time.Second},
		{time.Minute, 40 * time.Second},
		{3 * time.Second, 3 * time.Second},
		{10 * time.Millisecond, time.Second},
	} {
		c := s.open(zookeeper.New(s.link.Addrs(), &zookeeper.Options{SessionTimeout: test.asked}))
		if got := c.Timeout(); got != test.granted {
			t.Errorf("asked for %v: got %v, want %v", test.asked, got, test.granted)
		}
		// The timeout is the same after a reconnect, though the zk client uses another one.
		_, change := c.Status()
		s.link.Proxies[0].Cut()
		s.await(change, "the suspension")
		s.phase(c, backend.PhaseConnected)
		if got := c.Timeout(); got != test.granted {
			t.Errorf("asked for %v: after a reconnect %v, want %v", test.asked, got, test.granted)
		}
		c.Close()
	}
}

func TestOpenWaitsForAServer(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	s.link.Proxies[0].Refuse(true)
	type result struct {
		session backend.Session
		err     error
	}
	done := make(chan result, 1)
	go func() {
		c, err := s.link.Open(s.ctx)
		done <- result{c, err}
	}()
	timer := time.NewTimer(1500 * time.Millisecond)
	defer timer.Stop()
	select {
	case r := <-done:
		t.Fatalf("open returned without a server: %v", r.err)
	case <-timer.C:
	}
	s.link.Proxies[0].Refuse(false)
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	if err := r.session.Sync(s.ctx, "/"); err != nil {
		t.Error(err)
	}
	if err := r.session.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenReportsTheServersThatItTried(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	closes, silent := s.service.ZooKeeper("closes").Proxies[0], s.service.ZooKeeper("silent").Proxies[0]
	closes.Refuse(true)
	silent.Blackhole(true)
	defer silent.Blackhole(false)
	const nobody = "127.0.0.1:1"

	cause := errors.New("the caller's reason")
	ctx, cancel := context.WithTimeoutCause(s.ctx, 8*time.Second, cause)
	defer cancel()
	m := pace.Start(t, nil)
	b := zookeeper.New([]string{nobody, closes.Addr(), silent.Addr(), "no.such.name.invalid:1"}, &zookeeper.Options{
		SessionTimeout: 4 * time.Second,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasPrefix(address, "no.such") {
				return nil, &net.DNSError{Err: "no such host", Name: address, IsNotFound: true}
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	})
	_, err := b.Open(ctx)
	m.Within(20*time.Second, "Open")
	if !errors.Is(err, cause) || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("open: %v", err)
	}
	for _, want := range []string{
		nobody + ": connect: connection refused",
		closes.Addr() + ": the server closed the connection during the handshake (maxClientCnxns",
		silent.Addr() + ": the server accepted the connection and gave no answer",
		"no.such.name.invalid:1: lookup",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q: %v", want, err)
		}
	}
}

// In a bubble: the error contains a measured time.
func TestOpenReportsHowLongAnAttemptTook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const budget = 500 * time.Millisecond // half of the session timeout
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var dials atomic.Int32
		_, err := zookeeper.New([]string{"server.test:1"}, &zookeeper.Options{
			SessionTimeout: 2 * budget,
			Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				if until, ok := ctx.Deadline(); !ok || time.Until(until) != budget {
					t.Errorf("the context of an attempt has %v left, want %v", time.Until(until), budget)
				}
				if dials.Add(1) == 4 { // the first has failed
					cancel()
				}
				<-ctx.Done()
				return nil, ctx.Err()
			},
		}).Open(ctx)
		// The end of an attempt's own time is not the caller's deadline.
		if !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("open: %v", err)
		}
		if want := "no connection within 500ms"; !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q: %v", want, err)
		}
	})
}

func TestOpenNamesALimitOfConnections(t *testing.T) {
	t.Parallel()
	e := zktest.Run(t, &zktest.Options{MaxClientCnxns: 1})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	refused, cancel := context.WithCancel(ctx) // ends when the log has the reason, however long that takes
	defer cancel()
	b := zookeeper.New(e.Addrs(), &zookeeper.Options{
		SessionTimeout: 10 * time.Second,
		Logger: slog.New(slog.NewTextHandler(writerFunc(func(p []byte) {
			if bytes.Contains(p, []byte("maxClientCnxns")) {
				cancel()
			}
		}), nil)),
	})
	c, err := b.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Open(refused); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "maxClientCnxns") {
		t.Errorf("open: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if c, err = b.Open(ctx); err != nil {
		t.Fatalf("after the first has closed: %v", err)
	}
	c.Close()

	// Servers log that a client without the flag for read-only servers is old.
	log, err := os.ReadFile(e.Servers()[0].LogFile())
	if err != nil || !bytes.Contains(log, []byte("Too many connections")) || bytes.Contains(log, []byte("old client")) {
		t.Errorf("the log of the server: %v\n%s", err, log)
	}
}

func TestACanceledContextOpensNothing(t *testing.T) {
	t.Parallel()
	dialled := false
	b := zookeeper.New([]string{"127.0.0.1"}, &zookeeper.Options{
		Dial: func(context.Context, string, string) (net.Conn, error) {
			dialled = true
			return nil, errors.New("dialled")
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Open(ctx); !errors.Is(err, context.Canceled) || dialled {
		t.Errorf("dialled %v, %v", dialled, err)
	}
}

// writerFunc is a writer for logs that calls itself with each line.
type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// buffer is a writer for logs.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Not parallel: it inspects the output of the whole process.
func TestLogs(t *testing.T) {
	s := newScene(t, zookeeper.Options{})
	var all buffer
	before := log.Writer()
	log.SetOutput(&all)
	defer log.SetOutput(before)
	eventful := func(logger *slog.Logger) {
		c := s.open(zookeeper.New(s.link.Addrs(), &zookeeper.Options{SessionTimeout: 10 * time.Second, Digest: "user:hidden", Logger: logger}))
		s.commit(c, backend.Create(s.path("n"), nil, backend.Ephemeral))
		_, change := c.Status()
		s.link.Proxies[0].Cut()
		s.await(change, "the suspension")
		s.phase(c, backend.PhaseConnected)
		s.expire(c)
		c.Close()
	}
	eventful(nil)
	if out := all.String(); out != "" {
		t.Errorf("printed without a logger: %s", out)
	}
	var own buffer
	eventful(slog.New(slog.NewTextHandler(&own, &slog.HandlerOptions{Level: slog.LevelDebug})))
	out := own.String()
	for _, want := range []string{"level=INFO", "session connected", "level=WARN", "session suspended", "level=DEBUG"} {
		if !strings.Contains(out, want) {
			t.Errorf("the log does not contain %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "session lost") {
		t.Errorf("a loss, which the session's user logs, is logged twice:\n%s", out)
	}
	if strings.Contains(out+all.String(), "hidden") {
		t.Errorf("the log holds the password:\n%s", out)
	}
	if all.String() != "" {
		t.Errorf("printed without the logger: %s", all.String())
	}
}
