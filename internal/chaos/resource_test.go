//go:build linux

package chaos

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-coord/coord/internal/fence"
)

// resourceMain is the process of the resource that locks protect: a register for each lock.
// arg holds its socket and its history file.
func resourceMain(arg string) int {
	socket, history, _ := strings.Cut(arg, ":")
	rec, err := newRecorder(history)
	if err != nil {
		return 1
	}
	s, err := fence.Listen(socket, func(w fence.Write) {
		e := event{Kind: "write", Work: w.Register, Token: w.Token, ID: w.Hold, Op: "refused"}
		if w.Accepted {
			e.Op = "accepted"
		}
		if w.Overlap {
			e.Value = "overlap"
		}
		rec.say(e)
	})
	if err != nil {
		return 1
	}
	os.Stdout.WriteString("\"ok\"\n")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	s.Close()
	return 0
}

// newResource starts it and returns its socket.
func newResource(t *testing.T, dir string) string {
	t.Helper()
	// The path of a socket must be short, so not in t.TempDir.
	tmp, err := os.MkdirTemp("", "coord")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	socket := filepath.Join(tmp, "s")
	ready := make(chan struct{})
	_, stdin, done, err := spawn("resource", socket+":"+filepath.Join(dir, "resource.jsonl"), new(syscall.SysProcAttr), os.Stderr, func([]byte) { close(ready) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		<-done
	})
	select {
	case <-ready:
	case <-done:
		t.Fatal("the resource has ended")
	}
	return socket
}
