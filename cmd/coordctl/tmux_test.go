//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zktest"
)

// terminal is a terminal of tmux, in which a line of a shell runs.
type terminal struct {
	t      *testing.T
	socket string
	env    []string // a new terminal has the PATH of the client that opens it
}

// terminal starts the line in a terminal of that size. tmux ends with the test.
func (s *scene) terminal(width, height int, line string) *terminal {
	s.t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		zktest.Missing(s.t, err)
	}
	dir := socketDir(s.t)
	x := &terminal{s.t, filepath.Join(dir, "s"), append(s.shell("").Env, "LC_ALL=C.UTF-8")}
	// With -D it is a child of this process, and no daemon.
	server := exec.Command("tmux", "-S", x.socket, "-u", "-f", os.DevNull, "-D")
	server.Env = x.env
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said, err := os.Create(filepath.Join(dir, "said"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer said.Close()
	server.Stdout, server.Stderr = said, said
	if err := server.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Wait() }()
	s.t.Cleanup(func() {
		_, _ = x.tmux("kill-server")
		select {
		case <-ended:
		case <-time.After(limit):
			_ = server.Process.Kill()
			<-ended
		}
	})
	defer func() {
		if text, _ := os.ReadFile(said.Name()); s.t.Failed() && len(text) > 0 {
			s.t.Logf("tmux: %s", text)
		}
	}()
	eventually(s.t, "tmux answers", func() bool { _, err := x.tmux("show-options", "-g"); return err == nil })
	x.must("set-option", "-g", "default-terminal", "screen-256color")
	x.must("set-option", "-g", "remain-on-exit", "on")
	x.must("new-session", "-d", "-s", "top", "-c", s.dir, "-x", fmt.Sprint(width), "-y", fmt.Sprint(height), "exec sh -c '"+line+"'")
	return x
}

// tmux runs a command of tmux, and returns its output.
func (x *terminal) tmux(args ...string) (string, error) {
	cmd := exec.Command("tmux", append([]string{"-S", x.socket, "-u"}, args...)...)
	cmd.Env = x.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (x *terminal) must(args ...string) string {
	x.t.Helper()
	out, err := x.tmux(args...)
	if err != nil {
		x.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return out
}

// keys types keys, by the names that tmux has for them.
func (x *terminal) keys(keys ...string) {
	x.t.Helper()
	x.must(append([]string{"send-keys", "-t", "top"}, keys...)...)
}

// types types a text.
func (x *terminal) types(text string) {
	x.t.Helper()
	x.must("send-keys", "-t", "top", "-l", text)
}

func (x *terminal) resize(width, height int) {
	x.t.Helper()
	x.must("resize-window", "-t", "top", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height))
}

// screen returns what is on the terminal.
func (x *terminal) screen() string {
	x.t.Helper()
	return x.must("capture-pane", "-p", "-t", "top")
}

// is returns a variable of tmux for the terminal.
func (x *terminal) is(variable string) string {
	x.t.Helper()
	return strings.TrimSpace(x.must("display-message", "-p", "-t", "top", "#{"+variable+"}"))
}

// until waits for a screen that fits, and returns it.
func (x *terminal) until(what string, fits func(screen string) bool) string {
	x.t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(30 * time.Millisecond) {
		screen := x.screen()
		if fits(screen) {
			return screen
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("the screen never showed %s:\n%s", what, screen)
		}
	}
}

// shows waits for a screen with all texts.
func (x *terminal) shows(texts ...string) string {
	x.t.Helper()
	return x.until(fmt.Sprintf("%q", texts), func(screen string) bool {
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				return false
			}
		}
		return true
	})
}
