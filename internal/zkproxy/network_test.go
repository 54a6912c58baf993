package zkproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zktest"
	"github.com/go-zookeeper/zk"
)

func TestFramesAreForwardedAndCounted(t *testing.T) {
	t.Parallel()
	path := unique("/counted")
	p := newProxy(t)
	var mu sync.Mutex
	var seen []string
	p.OnFrame(func(f Frame) {
		if f.Opcode != OpPing && f.Opcode != OpConnect {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprint(f.Dir, " ", OpName(f.Opcode), " ", f.Path, " ", f.Err))
		}
	})
	conn := connect(t, p.Addr())
	mustCreate(t, conn, path)
	if err := create(conn, path); !errors.Is(err, zk.ErrNodeExists) {
		t.Fatal(err)
	}
	_, _, events, err := conn.ChildrenW(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Delete(path, -1); err != nil {
		t.Fatal(err)
	}
	await(t, events, "the event")

	c := p.Count()
	if c.Requests() != 4 || c.Ops[OpCreate] != 2 || c.Ops[OpGetChildren2] != 1 || c.Ops[OpDelete] != 1 || c.Ops[OpConnect] != 1 ||
		c.Replies != 4 || c.Events != 1 || c.Connections != 1 {
		t.Errorf("counts: %v", c)
	}
	if c.AllRequests() != 5+c.Ops[OpPing] {
		t.Errorf("all requests %d, want 5 and pings (%d)", c.AllRequests(), c.Ops[OpPing])
	}
	if c.BytesUp < 100 || c.BytesDown < 100 {
		t.Errorf("bytes: %d up, %d down", c.BytesUp, c.BytesDown)
	}
	want := []string{
		"up create " + path + " 0", "down create " + path + " 0",
		"up create " + path + " 0", "down create " + path + " -110",
		"up getChildren2 " + path + " 0", "down getChildren2 " + path + " 0",
		"up delete " + path + " 0", "down event " + path + " 0", "down delete " + path + " 0",
	}
	mu.Lock()
	if !slices.Equal(seen, want) {
		t.Errorf("frames:\n%q\nwant\n%q", seen, want)
	}
	mu.Unlock()

	p.OnFrame(nil)
	p.ResetCounts()
	if _, _, err := conn.Get("/"); err != nil {
		t.Fatal(err)
	}
	if c := p.Count(); c.Requests() != 1 || c.Ops[OpGetData] != 1 || c.Replies != 1 || c.Connections != 0 {
		t.Errorf("counts after reset: %v", c)
	}
}

func TestPingsAreCountedApart(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	conn, _, err := zk.Connect([]string{p.Addr()}, time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	waitFor(t, "the answers to two pings", func() bool { c := p.Count(); return c.Ops[OpPing] >= 2 && c.AllReplies >= 2 })
	c := p.Count()
	if c.Requests() != 0 || c.Replies != 0 || c.AllRequests() != c.Ops[OpConnect]+c.Ops[OpPing] || c.AllReplies < 2 {
		t.Errorf("counts: %v, all replies %d", c, c.AllReplies)
	}
}

func TestCutEndsPresentConnections(t *testing.T) {
	t.Parallel()
	path := unique("/after-cut")
	p := newProxy(t)
	conn := connect(t, p.Addr())
	session := conn.SessionID()
	if n := p.Cut(); n != 1 {
		t.Errorf("%d connections cut, want 1", n)
	}
	waitFor(t, "the reconnect", func() bool { return conn.State() == zk.StateHasSession && p.Count().Connections == 2 })
	mustCreate(t, conn, path)
	if conn.SessionID() != session {
		t.Error("the session changed")
	}
	if p.CutConn(1) {
		t.Error("the first connection is still open")
	}
	if !p.CutConn(2) {
		t.Error("the second connection is missing")
	}
}

func TestRefusedConnectionsEndAtOnce(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.Refuse(true)
	if err := endOf(t, p.Addr(), nil); err != nil {
		t.Errorf("refused connection: %v", err)
	}
	if n := p.Count().Connections; n != 0 {
		t.Errorf("%d connections counted, want 0", n)
	}
	p.Refuse(false)
	connect(t, p.Addr())
}

// endOf sends bytes and returns nil if the other side then ends the connection
// without an answer.
func endOf(t *testing.T, addr string, send []byte) error {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(send); err != nil {
		return nil // the other side was faster
	}
	n, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	if n > 0 || errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("read %d bytes, %v", n, err)
	}
	return nil
}

func TestHoldDeliversAfterwardsInOrder(t *testing.T) {
	t.Parallel()
	path := unique("/hold")
	p := newProxy(t)
	conn := connect(t, p.Addr())
	mustCreate(t, conn, path)
	for name, hold := range map[string]func(bool){"both": p.Hold, "up": p.HoldUp, "down": p.HoldDown} {
		hold(true)
		const n = 5
		var results []<-chan error
		for i := range n {
			before := p.Count().Ops[OpCreate]
			results = append(results, startCall(func() error { return create(conn, fmt.Sprintf(path+"/%s-%d", name, i)) }))
			waitFor(t, "the request", func() bool { return p.Count().Ops[OpCreate] == before+1 })
		}
		for i, r := range results {
			select {
			case err := <-r:
				t.Errorf("%s: create %d returned while held: %v", name, i, err)
			default:
			}
		}
		hold(false)
		last := int64(0)
		for i, r := range results {
			if err := await(t, r, "create"); err != nil {
				t.Errorf("%s: create %d: %v", name, i, err)
			}
			_, stat, err := conn.Exists(fmt.Sprintf(path+"/%s-%d", name, i))
			if err != nil || stat.Czxid <= last {
				t.Errorf("%s: create %d has zxid %d after %d, %v", name, i, stat.Czxid, last, err)
			} else {
				last = stat.Czxid
			}
		}
	}
	if n := p.Count().Connections; n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// The lower bounds hold on any machine. A busy one delays most requests, so the upper ones need one
// of many to be quick.
func TestDelayAddsLatencyAndKeepsThroughput(t *testing.T) {
	p := newProxy(t)
	conn := connect(t, p.Addr())
	const up, down, n = 30 * time.Millisecond, 20 * time.Millisecond, 100
	get := func() error { _, _, err := conn.Get("/"); return err }
	one := func() {
		if err := get(); err != nil {
			t.Fatal(err)
		}
	}
	all := func() {
		var results []<-chan error
		for range n {
			results = append(results, startCall(get))
		}
		for _, r := range results {
			if err := await(t, r, "get"); err != nil {
				t.Error(err)
			}
		}
	}
	// quick requires that do takes least, and once less than most.
	quick := func(what string, least, most time.Duration, do func()) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; {
			start := time.Now()
			do()
			switch d := time.Since(start); {
			case d < least:
				t.Errorf("%s took %v, want at least %v", what, d, least)
			case d < most:
				t.Logf("%s: %v", what, d)
				return
			case time.Now().After(end):
				t.Errorf("%s took %v and never less than %v", what, d, most)
				return
			}
		}
	}
	p.SetDelay(up, down)
	quick("one request", up+down, 2*(up+down), one)
	quick("many at once", up+down, n*(up+down)/4, all)
	p.SetDelay(0, 0)
	quick("one without delay", 0, up+down, one)
}

func TestANewTargetServesNewConnections(t *testing.T) {
	t.Parallel()
	path := unique("/only-on-the-first")
	e := zktest.Run(t, nil)
	p := newProxy(t)
	mustCreate(t, direct(t), path)
	if !exists(t, connect(t, p.Addr()), path) {
		t.Error("not connected to the first")
	}
	p.SetTarget(e.Addrs()[0])
	conn := connect(t, p.Addr())
	if exists(t, conn, path) {
		t.Error("not connected to the second")
	}
	// The end of a server reaches the client.
	e.Servers()[0].Kill()
	waitFor(t, "the client to notice", func() bool { return conn.State() != zk.StateHasSession })
	// A missing listener reaches the client as well.
	if err := endOf(t, p.Addr(), nil); err != nil {
		t.Errorf("connection without a server: %v", err)
	}
}

func TestTheEndOfAStreamPassesBehindItsLastByte(t *testing.T) {
	t.Parallel()
	target := newFakeServer(t)
	p, err := NewRaw(target.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client, server := target.through(t, p)
	p.SetDelay(50*time.Millisecond, 0)
	if _, err := client.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(server); string(got) != "last words" || err != nil {
		t.Errorf("server read %q, %v", got, err)
	}
	if _, err := server.Write([]byte("farewell")); err != nil {
		t.Fatal(err)
	}
	server.Close()
	if got, err := io.ReadAll(client); string(got) != "farewell" || err != nil {
		t.Errorf("client read %q, %v", got, err)
	}
}
