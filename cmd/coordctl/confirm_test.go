//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// openTerminal returns the two ends of a terminal: that of the operator, and that of coordctl.
func openTerminal(t *testing.T) (operator, own *os.File) {
	t.Helper()
	operator, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { operator.Close() })
	raw, err := operator.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var unlocked, number int32
	err = raw.Control(func(fd uintptr) {
		for request, value := range map[uintptr]*int32{syscall.TIOCSPTLCK: &unlocked, syscall.TIOCGPTN: &number} {
			if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(value))); errno != 0 {
				t.Fatal(errno)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	own, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	return operator, own
}

// TestNothingIsTakenByForceWithoutAnAnswer: neither without a terminal, nor at a terminal unless the
// operator says yes.
func TestNothingIsTakenByForceWithoutAnAnswer(t *testing.T) {
	x, c := within(t, io.Discard)
	x.path, x.force = "/lock", true
	h := coordtest.MustLock(t, coord.NewMutex(c, "/lock", nil))
	defer h.Release()
	status := func(err error) int {
		var e *exit
		if errors.As(err, &e) {
			return e.status
		}
		return -1
	}
	if err := x.revoke(t.Context(), c); status(err) != exitUsage || h.Err() != nil {
		t.Fatalf("without a terminal: %v; the hold: %v", err, h.Err())
	}
	operator, own := openTerminal(t)
	x.stdin, x.stderr = own, own
	for _, answer := range []string{"\n", "n\n", "no\n", "yess\n", "\x04"} { // the last one is the end of the input
		if _, err := io.WriteString(operator, answer); err != nil {
			t.Fatal(err)
		}
		if err := x.revoke(t.Context(), c); status(err) != exitNo || h.Err() != nil {
			t.Fatalf("the answer %q: %v; the hold: %v", answer, err, h.Err())
		}
	}
	if _, err := io.WriteString(operator, "y\n"); err != nil {
		t.Fatal(err)
	}
	if err := x.revoke(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	<-h.Done()
}
