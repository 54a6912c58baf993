package zkproxy

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zktest"
	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"
)

var shared zktest.Shared

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

// limit is the timeout of a test; nothing here takes nearly as long.
const limit = time.Minute

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// newProxy returns a proxy for the shared server.
func newProxy(t *testing.T) *Proxy {
	t.Helper()
	return proxyFor(t, shared.Get(t).Addrs()[0])
}

func proxyFor(t *testing.T, target string) *Proxy {
	t.Helper()
	p, err := New(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// connect returns a client with a session. The address is given twice, since
// the client sleeps for a second at the end of its list.
func connect(t *testing.T, addr string) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect([]string{addr, addr}, 8*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	timeout := time.After(limit)
	for conn.State() != zk.StateHasSession {
		select {
		case <-events:
		case <-timeout:
			t.Fatal("no session")
		}
	}
	return conn
}

// direct returns a client that does not use a proxy.
func direct(t *testing.T) *zk.Conn {
	t.Helper()
	return connect(t, shared.Get(t).Addrs()[0])
}

var lastPath atomic.Int64

// unique returns a path that no other test, and no repetition of this one, uses on the shared
// server.
func unique(prefix string) string {
	return fmt.Sprintf("%s-%d", prefix, lastPath.Add(1))
}

func create(conn *zk.Conn, path string) error {
	_, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
	return err
}

func exists(t *testing.T, conn *zk.Conn, path string) bool {
	t.Helper()
	found, _, err := conn.Exists(path)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func mustCreate(t *testing.T, conn *zk.Conn, path string) {
	t.Helper()
	if err := create(conn, path); err != nil {
		t.Fatalf("create %s: %v", path, err)
	}
}

// startCall runs f in a goroutine and returns a channel for its error.
func startCall(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// await fails the test if c delivers no value.
func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(limit):
		t.Fatalf("waited in vain for %s", what)
		panic("not reached")
	}
}

// waitFor polls a condition that has no signal.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func isRequest(opcode int32, path string) func(Frame) bool {
	return func(f Frame) bool { return f.Dir == Up && f.Opcode == opcode && f.Path == path }
}

func is(opcode int32) func(Frame) bool {
	return func(f Frame) bool { return f.Opcode == opcode }
}
