//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// short is a sufficient timeout for a service in memory, also on a busy machine.
const short = time.Minute

// stuck is a terminal without input, or a pipe without a reader.
type stuck struct {
	reached func() // called when a read or write blocks
	free    chan struct{}
}

func newStuck(t *testing.T) (s *stuck, reached <-chan struct{}) {
	r := make(chan struct{})
	s = &stuck{reached: sync.OnceFunc(func() { close(r) }), free: make(chan struct{})}
	t.Cleanup(func() { close(s.free) })
	return s, r
}

func (s *stuck) Read([]byte) (int, error) {
	s.reached()
	<-s.free
	return 0, io.EOF
}

func (s *stuck) Write([]byte) (int, error) {
	s.reached()
	<-s.free
	return 0, io.ErrClosedPipe
}

// TestASignalEndsABlockedReadOrWrite: without input, and without a reader of the output,
// coordctl ends all the same.
func TestASignalEndsABlockedReadOrWrite(t *testing.T) {
	for _, args := range []string{
		"queue put /q",
		"queue len /q",
		"inspect /q",
		"inspect -json /q",
	} {
		t.Run(args, func(t *testing.T) {
			s, reached := newStuck(t)
			signals := make(chan os.Signal, 1)
			done := make(chan int, 1)
			var errs bytes.Buffer
			go func() {
				done <- run(append([]string{"-memory"}, strings.Fields(args)...), s, s, &errs, signals)
			}()
			select {
			case <-reached:
			case got := <-done:
				t.Fatalf("ended with %d: %s", got, errs.String())
			case <-time.After(short):
				t.Fatal("neither reads nor writes")
			}
			signals <- syscall.SIGINT
			select {
			case got := <-done:
				if got != exitSignal+int(syscall.SIGINT) {
					t.Errorf("status %d: %s", got, errs.String())
				}
			case <-time.After(short):
				t.Error("a signal does not end it")
			}
		})
	}
}

// within returns a tool and a client of one service in memory.
func within(t *testing.T, stdout io.Writer) (*tool, *coord.Client) {
	t.Helper()
	c, err := coord.Open(t.Context(), memory.New(nil), &coord.Options{Trace: onWait})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &tool{stdout: stdout, stderr: io.Discard, path: "/q", wait: -1, signals: make(chan os.Signal)}, c
}

// signalled puts a job, makes do write to an output that blocks, and checks that a signal
// ends it.
func signalled(t *testing.T, do func(context.Context, *tool, *coord.Client) error) (*tool, *coord.Client) {
	t.Helper()
	s, reached := newStuck(t)
	x, c := within(t, s)
	signals := make(chan os.Signal, 1)
	x.signals = signals
	if _, err := x.queue(c).Put(t.Context(), []byte("job")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- x.await(t.Context(), func(ctx context.Context) error { return do(ctx, x, c) }) }()
	<-reached
	signals <- syscall.SIGTERM
	select {
	case err := <-done:
		var e *exit
		if !errors.As(err, &e) || e.status != exitSignal+int(syscall.SIGTERM) {
			t.Errorf("%v", err)
		}
	case <-time.After(short):
		t.Fatal("a signal does not end it")
	}
	return x, c
}

// TestAnItemThatCannotBeWrittenGoesToAnotherConsumer: also when a signal ends the write.
func TestAnItemThatCannotBeWrittenGoesToAnotherConsumer(t *testing.T) {
	x, c := signalled(t, func(ctx context.Context, x *tool, c *coord.Client) error { return x.take(ctx, c) })
	item, err := x.queue(c).Take(t.Context())
	if err != nil || string(item.Value) != "job" {
		t.Fatal(item, err)
	}
	if err := item.Ack(); err != nil {
		t.Error(err)
	}
}

// TestASignalEndsAWatchWhoseOutputBlocks: as above, with something to print.
func TestASignalEndsAWatchWhoseOutputBlocks(t *testing.T) {
	signalled(t, func(ctx context.Context, x *tool, c *coord.Client) error { return x.watch(ctx, c) })
}

// TestADeviceThatIsNotATerminalIsInput: only a terminal is withheld.
func TestADeviceThatIsNotATerminalIsInput(t *testing.T) {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	var out, errs bytes.Buffer
	got := run([]string{"-memory", "lock", "/l", "--", "head", "-c", "5"}, zero, &out, &errs, make(chan os.Signal))
	if got != 0 || out.Len() != 5 {
		t.Errorf("status %d, %d bytes: %s", got, out.Len(), errs.String())
	}
}

// TestADeletedValueIsReportedAsJSON: as one that watch finds to be missing.
func TestADeletedValueIsReportedAsJSON(t *testing.T) {
	var out bytes.Buffer
	x, c := within(t, &out)
	x.json, x.yes = true, true
	if _, err := x.value(c).Set(t.Context(), []byte("text")); err != nil {
		t.Fatal(err)
	}
	if err := x.deleteValue(t.Context(), c); err != nil || out.String() != `{"path":"/q","exists":false,"version":0,"czxid":0,"mzxid":0}`+"\n" {
		t.Errorf("%v: %s", err, out.String())
	}
}
