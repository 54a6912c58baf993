//go:build linux

package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/go-coord/coord"
)

// The leader learns of the request, and the next candidate leads when it has resigned.
func TestRevokeAsksALeaderToResign(t *testing.T) {
	var out bytes.Buffer
	x, c := within(t, &out)
	x.path, x.by, x.reason = "/leaders/report", "operator", "upgrade"
	term, err := coord.NewElection(c, x.path, &coord.ElectionOptions{ID: "web-1"}).Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-term.Revoked()
		term.Release()
	}()
	if err := x.revoke(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if term.Err() == nil || !strings.Contains(out.String(), "web-1 released it") {
		t.Errorf("the term: %v; printed %q", term.Err(), out.String())
	}
}

// The reason of each server stands on stderr before the client has given up.
func TestCheckPrintsWhyEachServerFails(t *testing.T) {
	for _, backend := range []string{"zookeeper", "etcd", "postgres"} {
		var errs bytes.Buffer
		args := []string{"-backend", backend, "-servers", "127.0.0.1:1,127.0.0.1:2", "-wait", "2s", "check"}
		if got := run(args, strings.NewReader(""), io.Discard, &errs, nil); got == 0 {
			t.Errorf("%s: status 0", backend)
		}
		lines := strings.Split(errs.String(), "\n")
		slices.Sort(lines[:min(2, len(lines))]) // in the order in which they fail
		if len(lines) < 3 || !strings.HasPrefix(lines[0], "coordctl: 127.0.0.1:1: ") || !strings.HasPrefix(lines[1], "coordctl: 127.0.0.1:2: ") ||
			!strings.Contains(lines[0], "refused") || !strings.Contains(lines[1], "refused") {
			t.Errorf("%s: printed %q", backend, errs.String())
		}
	}
}

// The other verbs say so too, and continue.
func TestCoordctl_SaysAtOnceThatNoServerCanBeReached(t *testing.T) {
	for _, backend := range []string{"zookeeper", "etcd", "postgres"} {
		lines, stderr := io.Pipe()
		signals := make(chan os.Signal, 1)
		status := make(chan int, 1)
		go func() {
			status <- run([]string{"-backend", backend, "-servers", "127.0.0.1:1", "-wait", "20s", "tree", "/"}, strings.NewReader(""), io.Discard, stderr, signals)
			stderr.Close()
		}()
		all := bufio.NewScanner(lines)
		if !all.Scan() || !strings.HasPrefix(all.Text(), "coordctl: no server can be reached yet, trying for 20s: 127.0.0.1:1: ") || !strings.Contains(all.Text(), "refused") {
			t.Errorf("%s: printed %q", backend, all.Text())
		}
		signals <- syscall.SIGINT
		told := 0
		for all.Scan() {
			if strings.Contains(all.Text(), "no server can be reached") {
				told++
			}
		}
		if got := <-status; got != exitSignal+int(syscall.SIGINT) || told > 0 {
			t.Errorf("%s: status %d, told %d times more", backend, got, told)
		}
	}
}

// askedServer is a server that says nothing until it is released.
func askedServer(t *testing.T, answer <-chan string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if text, ok := <-answer; ok {
					_, _ = io.WriteString(c, text)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// The reason of a server that fails is printed while the answer of another one is awaited, which then counts as reached.
func TestCheck_PrintsAFailureWhileOthersAreAsked(t *testing.T) {
	t.Parallel()
	answer := make(chan string, 1)
	slow := askedServer(t, answer)
	x := &tool{backend: "zookeeper", servers: "127.0.0.1:1," + slow}
	var failed []string
	states := x.askServers(t.Context(), func(v *serverState) {
		failed = append(failed, v.Addr)
		answer <- "Zookeeper version: 3.8.0-1\nMode: follower\n" // only now
		close(answer)
	})
	if !slices.Equal(failed, []string{"127.0.0.1:1"}) || states[0].Reached || !states[1].Reached {
		t.Errorf("failed: %v, states %+v", failed, states)
	}
}

// One server of two fails: the check prints the reason on stderr and checks the other server.
func TestCheck_PrintsTheFailureOfOneServerOfTwo(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, v *servers) {
		var errs, out bytes.Buffer
		if got := run([]string{"-backend", v.backend, "-servers", "127.0.0.1:1," + v.addrs[0], "check"}, strings.NewReader(""), &out, &errs, nil); got != exitNo {
			t.Errorf("status %d", got)
		}
		if text := errs.String(); !strings.HasPrefix(text, "coordctl: 127.0.0.1:1: ") || strings.Contains(text, v.addrs[0]) {
			t.Errorf("printed %q", text)
		}
	})
}
