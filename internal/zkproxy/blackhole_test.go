package zkproxy

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

func TestABlackholeLosesAll(t *testing.T) {
	t.Parallel()
	path := unique("/black")
	p := newProxy(t)
	conn := connect(t, p.Addr())
	session := conn.SessionID()
	p.Blackhole(true)
	result := startCall(func() error { return create(conn, path) })

	// A new connection is accepted and gets no bytes.
	silent, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if err := silent.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := silent.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("read in the black hole: %v, want a timeout", err)
	}
	select {
	case err := <-result:
		t.Errorf("create returned in the black hole: %v", err)
	default:
	}

	waitFor(t, "the request in the black hole", func() bool { return p.swallow.Load() > 0 })
	p.Blackhole(false)
	if err := await(t, result, "create"); !errors.Is(err, zk.ErrConnectionClosed) {
		t.Errorf("create: %v, want %v", err, zk.ErrConnectionClosed)
	}
	if exists(t, direct(t), path) {
		t.Error("the request was delivered")
	}
	mustCreate(t, conn, path)
	if conn.SessionID() != session {
		t.Error("the session changed")
	}
}

func TestABlackholeHidesTheEndOfAConnection(t *testing.T) {
	t.Parallel()
	target := newFakeServer(t)
	p := proxyFor(t, target.addr())
	client, server := target.through(t, p)
	p.Blackhole(true)
	client.Close()
	if err := server.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := server.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("the server reads %v, want a timeout", err)
	}
	p.Blackhole(false)
	if err := server.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Read(make([]byte, 1)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("after it is lifted the server reads %v, want the end", err)
	}
}

func TestAHalfOpenConnection(t *testing.T) {
	t.Parallel()
	path := unique("/half-down")
	otherPath := unique("/half-up")
	t.Run("down: requests are applied and replies lost", func(t *testing.T) {
		p := newProxy(t)
		conn, other := connect(t, p.Addr()), direct(t)
		p.BlackholeDown(true)
		result := startCall(func() error { return create(conn, path) })
		waitFor(t, "the node", func() bool { return exists(t, other, path) })
		select {
		case err := <-result:
			t.Errorf("create returned: %v", err)
		default:
		}
		p.BlackholeDown(false)
		if err := await(t, result, "create"); !errors.Is(err, zk.ErrConnectionClosed) {
			t.Errorf("create: %v, want %v", err, zk.ErrConnectionClosed)
		}
	})
	t.Run("up: requests are lost and events arrive", func(t *testing.T) {
		p := newProxy(t)
		conn, other := connect(t, p.Addr()), direct(t)
		mustCreate(t, conn, otherPath)
		_, _, events, err := conn.ExistsW(otherPath)
		if err != nil {
			t.Fatal(err)
		}
		p.BlackholeUp(true)
		result := startCall(func() error { return create(conn, otherPath+"/child") })
		if _, err := other.Set(otherPath, nil, -1); err != nil {
			t.Fatal(err)
		}
		if e := await(t, events, "the event"); e.Type != zk.EventNodeDataChanged {
			t.Errorf("event %v, want a change", e)
		}
		waitFor(t, "the request in the black hole", func() bool { return p.swallow.Load() > 0 })
		p.BlackholeUp(false)
		if err := await(t, result, "create"); !errors.Is(err, zk.ErrConnectionClosed) {
			t.Errorf("create: %v, want %v", err, zk.ErrConnectionClosed)
		}
		if exists(t, other, otherPath+"/child") {
			t.Error("the request was delivered")
		}
	})
}
