//go:build unix

package zookeeper

import (
	"io"
	"net"
	"testing"
)

// pair returns the two ends of a TCP connection.
func pair(t *testing.T) (ours, theirs *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := l.Accept()
		accepted <- conn
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	other := <-accepted
	if other == nil {
		t.Fatal("no connection")
	}
	t.Cleanup(func() { other.Close() })
	return conn.(*net.TCPConn), other.(*net.TCPConn)
}

const mostWrites = 10_000

// The peer reads nothing until the operating system takes no more bytes. What write says that it has written is
// what the peer receives.
func TestDirectConn_WritesWhatItSays(t *testing.T) {
	ours, theirs := pair(t)
	d, written := newDirectConn(ours), 0
	full := false
	for range mostWrites {
		n, err := d.write(make([]byte, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		if written += n; n == 0 {
			full = true
			break
		}
	}
	if !full {
		t.Errorf("no write is refused after %d bytes", written)
	}
	ours.Close()
	if n, err := io.Copy(io.Discard, theirs); err != nil || n != int64(written) {
		t.Errorf("%d bytes were received, %v; %d were written", n, err, written)
	}
}

// The peer resets the connection.
func TestDirectConn_ReturnsTheErrorOfAWrite(t *testing.T) {
	ours, theirs := pair(t)
	if err := theirs.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	d := newDirectConn(ours)
	for range mostWrites {
		if _, err := d.write(make([]byte, 1<<10)); err != nil {
			return
		}
	}
	t.Error("no write fails after a reset")
}
