//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/layout"
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

// TestTheOperatorReadsThatThereIsNoContactYet: a verb that waits for a server that does not answer is not
// silent.
func TestTheOperatorReadsThatThereIsNoContactYet(t *testing.T) {
	x, _ := within(t, io.Discard)
	operator, own := openTerminal(t)
	x.stderr, x.servers, x.backend, x.wait = own, "127.0.0.1:1,127.0.0.1:2", "zookeeper", time.Minute
	signals := make(chan os.Signal, 1)
	x.signals = signals
	ended := make(chan error, 1)
	go func() { ended <- x.connect(t.Context(), nil) }()
	var text string
	for chunk := make([]byte, 100); !strings.Contains(text, "1 s: connecting to 127.0.0.1:1 and 1 more …"); {
		n, err := operator.Read(chunk)
		if err != nil {
			t.Fatalf("%v after %q", err, text)
		}
		text += string(chunk[:n])
	}
	signals <- syscall.SIGINT
	if err := <-ended; status(err) != exitSignal+int(syscall.SIGINT) {
		t.Errorf("connect: %v", err)
	}
}

// status returns the exit status of an error, or -1.
func status(err error) int {
	var e *exit
	if errors.As(err, &e) {
		return e.status
	}
	return -1
}

// TestNothingIsTakenByForceWithoutAnAnswer: neither without a terminal, nor at a terminal unless the
// operator says yes.
func TestNothingIsTakenByForceWithoutAnAnswer(t *testing.T) {
	x, c := within(t, io.Discard)
	x.path, x.force = "/lock", true
	h := coordtest.MustLock(t, coord.NewMutex(c, "/lock", nil))
	defer h.Release()
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

// asked waits for a question on the terminal of the operator.
func asked(t *testing.T, operator io.Reader) {
	t.Helper()
	var text string
	for chunk := make([]byte, 100); !strings.Contains(text, "[y/N] "); {
		n, err := operator.Read(chunk)
		if err != nil {
			t.Fatalf("%v after %q", err, text)
		}
		text += string(chunk[:n])
	}
}

// TestForceTakesTheLockFromTheHolderOfTheQuestion: a holder that has got the lock since keeps it.
func TestForceTakesTheLockFromTheHolderOfTheQuestion(t *testing.T) {
	x, c := within(t, io.Discard)
	x.path, x.force = "/lock", true
	first := coordtest.MustLock(t, coord.NewMutex(c, "/lock", nil))
	operator, own := openTerminal(t)
	x.stdin, x.stderr = own, own
	ended := make(chan error, 1)
	go func() { ended <- x.revoke(t.Context(), c) }()
	asked(t, operator)
	first.Release()
	second := coordtest.MustLock(t, coord.NewMutex(c, "/lock", &coord.MutexOptions{ID: "web-2"}))
	defer second.Release()
	if _, err := io.WriteString(operator, "y\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; status(err) != exitNo || !strings.Contains(err.Error(), "the holder has changed to web-2") || second.Err() != nil {
		t.Errorf("%v; the second hold: %v", err, second.Err())
	}
}

// TestTheQuestionDoesNotCountForTheWait: --wait is for the holder, not for the operator.
func TestTheQuestionDoesNotCountForTheWait(t *testing.T) {
	x, c := within(t, io.Discard)
	x.path, x.force = "/lock", true
	h := coordtest.MustLock(t, coord.NewMutex(c, "/lock", nil))
	defer h.Release()
	operator, own := openTerminal(t)
	x.stdin, x.stderr = own, own
	waiting, late := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- x.revoke(waiting, c) }()
	asked(t, operator)
	late(errLate)
	if _, err := io.WriteString(operator, "y\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	<-h.Done()
}

// TestForceComesBeforeTheWaitIsOver: the holder has --after to consent, and --wait is beyond that.
func TestForceComesBeforeTheWaitIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, c := within(t, io.Discard)
		x.path, x.force, x.yes, x.after, x.wait = "/lock", true, true, 10*time.Second, 10*time.Second
		h := coordtest.MustLock(t, coord.NewMutex(c, "/lock", nil))
		defer h.Release()
		waiting, cancel := context.WithTimeoutCause(t.Context(), x.wait, errLate)
		defer cancel()
		if err := x.revoke(waiting, c); err != nil {
			t.Fatal(err)
		}
		<-h.Done()
	})
}

// TestNoTransactionIsAbortedWithoutAnAnswer: also one whose proposer the service does not know to
// be dead yet.
func TestNoTransactionIsAbortedWithoutAnAnswer(t *testing.T) {
	const mark = "00000000-0000-8000-8000-000000000001"
	for _, proposed := range []bool{false, true} {
		x, c := within(t, io.Discard)
		x.path = "/tx"
		s, err := c.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		node := func(path, data string) backend.Op { return backend.Create(path, []byte(data), backend.Persistent) }
		ops := []backend.Op{
			node("/tx", ""), node("/tx/sites", ""), node("/tx/sites/db", ""), node("/tx/tx", ""),
			node("/tx/tx/t1", `{"mark":"`+mark+`","sites":["db"],"deadline":4102444800000,"payload":"InAi"}`),
			node("/tx/tx/t1/"+layout.OpenName(mark), ""), node("/tx/sites/db/"+layout.BranchName("t1", mark), ""),
		}
		question := "abort 1 undecided transaction of dead proposers, and take over 0 decisions?"
		live := "/tx/tx/t1/" + layout.LiveName(mark)
		if proposed {
			ops = append(ops, backend.Create(live, nil, backend.Ephemeral))
			question = "abort 0 undecided transactions of dead proposers, and take over 0 decisions, and do so with 1 transaction if the proposers die meanwhile?"
		}
		if _, err := s.Commit(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), short)
		defer cancel()
		if err := x.recoverTx(ctx, c); status(err) != exitUsage || !strings.Contains(err.Error(), question) {
			t.Errorf("proposed %v: %v, want the question %q", proposed, err, question)
		}
		if st, err := coord.NewCoordinator[string](c, "/tx", nil).Status(t.Context(), "t1"); err != nil || st.Decided {
			t.Errorf("proposed %v: decided %v, %v", proposed, st.Decided, err)
		}
	}
}
