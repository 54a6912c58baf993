package zktest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// recorder records how a test is ended, and ends the goroutine instead.
type recorder struct {
	testing.TB
	skipped, failed bool
	message         string
}

func (r *recorder) Skip(args ...any) {
	r.skipped, r.message = true, fmt.Sprint(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed, r.message = true, fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestAnExpiredSessionHasEnded(t *testing.T) {
	e := shared.Get(t)
	for _, timeout := range []time.Duration{2 * time.Second, 8 * time.Second} {
		conn, events, err := zk.Connect(e.Addrs(), timeout, zk.WithLogger(quiet{}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		path := fmt.Sprintf("/mortal-%v", timeout)
		if _, err := conn.Create(path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		_, stat, err := conn.Exists(path)
		if err != nil {
			t.Fatal(err)
		}
		id := conn.SessionID()
		if stat.EphemeralOwner != id {
			t.Fatalf("owner %#x, session %#x", stat.EphemeralOwner, id)
		}
		// Only the id is given: the password is derived from it.
		if err := ExpireSession(t.Context(), e.Addrs()[0], id, nil); err != nil {
			t.Fatal(err)
		}
		if found, _, err := connect(t, e.Addrs()...).Exists(path); found || err != nil {
			t.Errorf("the session's node: %v, %v, want it missing", found, err)
		}
		awaitState(t, events, zk.StateExpired)
		// A second call succeeds: the session has ended, as requested.
		if err := ExpireSession(t.Context(), e.Addrs()[0], id, nil); err != nil {
			t.Errorf("second time: %v", err)
		}
	}
}

func awaitState(t *testing.T, events <-chan zk.Event, state zk.State) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case e := <-events:
			if e.State == state {
				return
			}
		case <-limit:
			t.Fatalf("no event %v", state)
		}
	}
}

// A wrong password ends no session. So the end by the derived password shows that it is
// derived correctly.
func TestAWrongPasswordEndsNoSession(t *testing.T) {
	e := shared.Get(t)
	conn := connect(t, e.Addrs()...)
	if _, err := conn.Create("/immortal", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	wrong := SessionPassword(conn.SessionID())
	wrong[15]++
	if err := ExpireSession(t.Context(), e.Addrs()[0], conn.SessionID(), wrong); err != nil {
		t.Fatal(err)
	}
	if found, _, err := connect(t, e.Addrs()...).Exists("/immortal"); !found || err != nil {
		t.Errorf("the session's node: %v, %v, want it to exist", found, err)
	}
}

func TestExpireSessionEndsWithItsContext(t *testing.T) {
	ports, err := FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := ExpireSession(ctx, loopback(ports[0]), 1, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
}

func TestSessionPasswordIsJavas(t *testing.T) {
	// new java.util.Random(0x1234567890abcdefL ^ 0xB3415C00L).nextBytes(…)
	const want = "f7721b383fd583ba74d220ede39f7b43"
	if got := fmt.Sprintf("%x", SessionPassword(0x1234567890abcdef)); got != want {
		t.Errorf("password %s, want %s", got, want)
	}
}
