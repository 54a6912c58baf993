//go:build linux

package etcd_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// pausedEnv makes the test binary a client that is paused. It holds the address of the server.
const pausedEnv = "COORD_ETCD_PAUSED"

func init() {
	if addr := os.Getenv(pausedEnv); addr != "" {
		if err := bePaused(addr); err != nil {
			fmt.Println("error", err)
		}
		os.Exit(0)
	}
}

// bePaused has requests under way all the time, and a watch. For each line of its input it says when each of its callers has had
// an answer since.
func bePaused(addr string) error {
	const callers = 20
	ctx := context.Background()
	s, err := etcd.New([]string{addr}, &etcd.Options{SessionTimeout: 12 * time.Second, LossMargin: time.Second, Prefix: "paused"}).Open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	w := backend.NewWatch()
	defer w.Stop()
	if _, _, err := s.Children(ctx, "/", w); err != nil {
		return err
	}
	_, suspended := s.Status()
	var answers [callers]atomic.Int64
	failed := make(chan error, callers)
	for i := range callers {
		go func() {
			for {
				var err error
				if i%2 == 0 {
					_, err = s.Commit(ctx, backend.SetData("/", nil, backend.AnyVersion))
				} else {
					_, err = s.Exists(ctx, "/", nil)
				}
				if err != nil {
					failed <- err
					return
				}
				answers[i].Add(1)
			}
		}()
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		for i := range callers {
			for before := answers[i].Load(); answers[i].Load() < before+2; {
				select {
				case err := <-failed:
					return err
				case <-suspended:
					return fmt.Errorf("the session was suspended: %v", s.Err())
				case <-time.After(time.Millisecond):
				}
			}
		}
		fmt.Println("answered")
	}
	return nil
}

// A client process does not run for longer than half the lease, with requests under way. Its session and its
// connection last.
func TestSupervise_APausedProcessKeepsItsLink(t *testing.T) {
	t.Parallel()
	f := newFront(t, shared.get(t))
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), pausedEnv+"="+f.addr)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	end := func() { once.Do(func() { in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() }) }
	defer end()
	said := bufio.NewScanner(out)
	step := func() string {
		fmt.Fprintln(in)
		if !said.Scan() {
			return "the process has ended"
		}
		return strings.TrimSpace(said.Text())
	}
	if text := step(); text != "answered" {
		t.Fatal(text)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	time.Sleep(6 * time.Second) // more than half the lease, which is 11 s
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	text := step()
	if took := time.Since(begun); took > 8*time.Second && text != "answered" {
		t.Skipf("the machine is too slow: the process was paused for up to %v", took)
	}
	if text != "answered" {
		t.Error(text)
	}
	if n := f.conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}
