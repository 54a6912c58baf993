//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// Nothing that guard does waits for its standard error: a session is ended although a message cannot be printed, and guard ends.
func TestGuard_StandardErrorDelaysNothing(t *testing.T) {
	t.Parallel()
	for name, noReader := range map[string]bool{"a full pipe": false, "a pipe without a reader": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader, stderr, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			defer stderr.Close()
			if noReader {
				reader.Close()
			} else {
				fill(t, stderr)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			r := runShell(t, false, "exec "+guardWith(l.Addr().String(), signaled()+" report garbage 2>&3 3>&-"), stderr)
			command, _ := r.ready()
			r.send(command, syscall.SIGKILL)
			awaitEnding(t, l)
			if got := r.status(); got != 137 {
				t.Errorf("status %d", got)
			}
		})
	}
}

// fill fills a pipe.
func fill(t *testing.T, w *os.File) {
	t.Helper()
	raw, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		for err == nil { // until it would block
			_, err = syscall.Write(int(fd), make([]byte, 4096))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err != syscall.EAGAIN {
		t.Fatal(err)
	}
	if err := syscall.SetNonblock(int(w.Fd()), false); err != nil {
		t.Fatal(err)
	}
}

// A message in the background does not stop guard, also if the terminal is set to stop what prints there.
func TestGuard_AMessageInTheBackgroundStopsNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(socketDir(t), "s")
	r := runShell(t, true, "set -m; stty tostop; "+guardOf("--listen "+path)+" 2>/dev/tty & echo $!; wait $!; echo over $?")
	var guard int
	if _, err := fmt.Sscan(r.line(), &guard); err != nil {
		t.Fatal(err)
	}
	conn := dialGuard(t, path)
	if _, err := conn.Write([]byte("garbage")); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	go func() {
		var all []byte
		for buf := make([]byte, 100); !bytes.Contains(all, []byte("malformed")); {
			n, err := r.in.(*os.File).Read(buf)
			if err != nil {
				break
			}
			all = append(all, buf[:n]...)
		}
		said <- string(all)
	}()
	select {
	case text := <-said:
		if !strings.Contains(text, "malformed") {
			t.Fatalf("it prints %q", text)
		}
	case <-time.After(limit):
		t.Fatal("it prints nothing")
	}
	r.send(guard, syscall.SIGTERM)
	r.says("over 0")
}

// dialGuard connects to the socket of guard as soon as it listens.
func dialGuard(t *testing.T, path string) (conn net.Conn) {
	t.Helper()
	eventually(t, "guard listens", func() (done bool) {
		var err error
		conn, err = net.Dial("unixpacket", path)
		return err == nil
	})
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestGuard_MessagesThatCannotBePrintedAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		var out bytes.Buffer
		m := newMessages(writerFunc(func(b []byte) (int, error) { <-free; return out.Write(b) }))
		for i := range mostMessages + 11 { // one more is being printed
			fmt.Fprintf(m, "message %d\n", i)
			if i == 0 {
				synctest.Wait()
			}
		}
		begin := time.Now()
		m.close()
		if took := time.Since(begin); took != sayLimit {
			t.Errorf("close took %v", took)
		}
		close(free)
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != mostMessages+2 || lines[0] != "message 0" || lines[1] != "coordctl: 10 messages could not be printed" {
			t.Errorf("it prints %q", lines)
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A process that makes many connections leaves room for the others.
func TestGuard_AProcessHasFewConnections(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	path := filepath.Join(socketDir(t), "s")
	side := runShell(t, false, "exec "+guardWith(l.Addr().String(), "--listen "+path)+" 2>&1")
	for range mostOfProcess {
		dialGuard(t, path)
	}
	for range 3 {
		conn := dialGuard(t, path)
		if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%d, %v: the connection is not closed", n, err)
		}
	}
	side.says("coordctl: too many connections, refusing further ones: sessions that they would report end after their timeout")
	r := runShell(t, false, "COORD_SUPERVISOR=unix:"+path+" exec '"+os.Args[0]+"' -as-signaled report")
	command, _ := r.ready()
	r.send(command, syscall.SIGKILL)
	awaitEnding(t, l)
	if err := side.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := side.status(); got != 0 {
		t.Errorf("status %d", got)
	}
}

// awaitEnding waits until guard connects to a server that listens at l, to end a session.
func awaitEnding(t *testing.T, l net.Listener) {
	t.Helper()
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal("guard has not tried to end the session:", err)
	}
	conn.Close()
}
