//go:build linux

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/supervise"
	"github.com/go-coord/coord/supervisor"
)

// tellSignals is a command that says which signals it gets. SIGUSR1 ends it. With "report" it
// reports a session of ZooKeeper that does not exist, after the malformed messages that follow.
func tellSignals(args []string) int {
	var fd int
	_, _ = fmt.Sscanf(os.Getenv(supervise.Env), "fd:%d:", &fd)
	if r := supervisor.FromEnv(); r != nil && len(args) > 0 {
		for _, text := range args[1:] {
			if err := syscall.Sendto(fd, []byte(text), 0, nil); err != nil {
				return 1
			}
		}
		r.Opened(backend.Ticket{Service: "zookeeper", ID: 1, Timeout: time.Minute})
	}
	signals := make(chan os.Signal, 100)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
	fmt.Println("ready", os.Getpid(), os.Getppid())
	for s := range signals {
		if s == syscall.SIGUSR1 {
			break
		}
		fmt.Println("got", s)
	}
	return 0
}

// guardOf is the command line of guard for a shell, with servers that do not exist.
func guardOf(command string) string { return guardWith("127.0.0.1:1", command) }

func guardWith(servers, command string) string {
	return "'" + os.Args[0] + "' -as-coordctl -servers " + servers + " guard " + command
}

// signaled is a command of guard that says which signals it gets.
func signaled() string { return "-- '" + os.Args[0] + "' -as-signaled" }

// runShell starts a shell for a script. With a terminal the shell is the leader of its session, and the operator types into r.in.
// Further files are descriptors 3 and on.
func runShell(t *testing.T, terminal bool, script string, further ...*os.File) *running {
	t.Helper()
	r := &running{t: t, cmd: exec.Command("sh", "-c", script), ended: make(chan struct{})}
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	if err := out.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr, r.lines = stdout, &r.stderr, bufio.NewReader(out)
	r.cmd.WaitDelay, r.cmd.ExtraFiles = time.Second, further
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if terminal {
		operator, own := openTerminal(t)
		r.in, r.cmd.Stdin, r.cmd.SysProcAttr.Setctty = operator, own, true
		defer own.Close()
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait()
	}()
	t.Cleanup(func() {
		// All of its session, also what is stopped.
		list, _ := exec.Command("ps", "-o", "pid=", "-s", strconv.Itoa(r.cmd.Process.Pid)).Output()
		for word := range strings.FieldsSeq(string(list)) {
			if pid, err := strconv.Atoi(word); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		<-r.ended
		out.Close()
	})
	return r
}

// says fails the test unless these are the next lines.
func (r *running) says(lines ...string) {
	r.t.Helper()
	for _, want := range lines {
		if got := r.line(); got != want {
			r.t.Fatalf("it says %q, want %q", got, want)
		}
	}
}

// ready waits for tellSignals, and returns its process id and that of guard.
func (r *running) ready() (command, guard int) {
	r.t.Helper()
	if line := r.line(); line == "" {
		r.t.Fatal("the command does not begin")
	} else if _, err := fmt.Sscanf(line, "ready %d %d", &command, &guard); err != nil {
		r.t.Fatal(line, err)
	}
	return command, guard
}

func (r *running) types(text string) {
	r.t.Helper()
	if _, err := r.in.Write([]byte(text)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) send(pid int, s syscall.Signal) {
	r.t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		r.t.Fatal(err)
	}
}

// Some servers take SIGTTIN and SIGTTOU for a larger and a smaller number of workers.
func TestGuard_PassesOnSignalsThatStop(t *testing.T) {
	t.Parallel()
	r := runShell(t, false, "exec "+guardOf(signaled()))
	_, guard := r.ready()
	for _, s := range []syscall.Signal{syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGTSTP} {
		r.send(guard, s)
		r.says("got " + s.String())
	}
	r.send(guard, syscall.SIGUSR1)
	if got := r.status(); got != 0 {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
}

// A shell with job control sees that the command has stopped, and continues it.
func TestGuard_StopsAndContinuesWithItsCommand(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ jobs, key string }{
		"^Z":                                 {guardOf("-- sh -c 'echo ready; read x; echo continued'") + "; echo stopped; fg >/dev/null", "\x1a"},
		"input in the background":            {guardOf("-- sh -c 'echo ready; read x; echo continued'") + "& wait; echo stopped; fg >/dev/null", ""},
		"no input, a stop in the background": {guardOf("-- sh -c 'echo ready; kill -TTIN $$; echo continued'") + "</dev/null & wait; echo stopped; fg >/dev/null", ""},
		"the same, continued by a signal":    {guardOf("-- sh -c 'echo ready; kill -TTOU $$; echo continued'") + "</dev/null & wait; echo stopped; kill -CONT $!", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runShell(t, true, "set -m; "+c.jobs+"; echo ended $?")
			r.says("ready")
			r.types(c.key)
			r.says("stopped")
			r.types("\n") // what the command reads, if it does
			if last := []string{r.line(), r.line()}; !slices.Contains(last, "continued") || !slices.Contains(last, "ended 0") {
				t.Errorf("at the end %q: %s", last, r.stderr.String())
			}
		})
	}
}

// Guard does not stop when its command does not.
func TestGuard_DoesNotStopBesideACommandThatRuns(t *testing.T) {
	t.Parallel()
	r := runShell(t, true, "set -m; "+guardOf(signaled())+"; echo ended $?")
	_, guard := r.ready()
	r.types("\x1a")
	r.says("got " + syscall.SIGTSTP.String())
	for _, s := range []syscall.Signal{syscall.SIGTTIN, syscall.SIGTTOU} {
		r.send(-guard, s) // as a read or a write of the terminal by one of the process group
		r.says("got " + s.String())
	}
	r.send(guard, syscall.SIGUSR2)
	r.says("got " + syscall.SIGUSR2.String())
	r.send(guard, syscall.SIGUSR1)
	r.says("ended 0")
}

// A terminal sends its signals to guard and to the command: each counts once. What is at standard input does not matter.
func TestGuard_TheTerminalsSignalsComeOnce(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"in a shell with job control":              "set -m; " + guardOf(signaled()) + "; true",
		"with a pipe as input":                     "set -m; true | " + guardOf(signaled()) + "; true",
		"in a script":                              "trap : INT QUIT; " + guardOf(signaled()) + " </dev/null; true",
		"in the background, and then in the front": "set -m; " + guardOf(signaled()) + " & fg >/dev/null; true",
		"as the first process of the terminal":     "exec " + guardOf(signaled()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runShell(t, true, script)
			command, guard := r.ready()
			if groupOf(t, command) != groupOf(t, guard) {
				t.Error("the command cannot read from the terminal: it is in another process group than guard")
			}
			if name == "in the background, and then in the front" {
				eventually(t, "it is in the front", func() bool { return foreground(t, r.in.(*os.File)) == groupOf(t, guard) })
			}
			for range 3 {
				for key, s := range map[string]syscall.Signal{"\x03": syscall.SIGINT, "\x1c": syscall.SIGQUIT} {
					r.types(key)
					r.says("got " + s.String())
					r.send(guard, syscall.SIGUSR2)
					r.says("got " + syscall.SIGUSR2.String())
				}
			}
			if err := r.in.(*os.File).Close(); err != nil {
				t.Fatal(err)
			}
			r.says("got " + syscall.SIGHUP.String())
			r.send(guard, syscall.SIGUSR2)
			r.says("got " + syscall.SIGUSR2.String())
			r.send(guard, syscall.SIGUSR1)
			r.says("")
		})
	}
}

// A command that the terminal does not send its signals gets all that guard gets, and has a process group of its own, whose processes end with it.
func TestGuard_PassesOnAllSignalsWithoutATerminal(t *testing.T) {
	t.Parallel()
	_, other := openTerminal(t)
	for name, c := range map[string]struct {
		terminal bool
		script   string
	}{
		"no terminal":                {false, "exec " + guardOf(signaled())},
		"another session's as input": {false, "(exec " + guardOf(signaled()) + "<" + other.Name() + "); true"}, // a leader of a session would take it over
		"a job in the background":    {true, "set -m; " + guardOf(signaled()) + "</dev/null & wait"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runShell(t, c.terminal, c.script)
			command, guard := r.ready()
			if groupOf(t, command) != command {
				t.Error("the command has no process group of its own")
			}
			for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGTERM} {
				r.send(guard, s)
				r.says("got " + s.String())
			}
			r.send(guard, syscall.SIGUSR1)
			r.says("")
		})
	}
}

func groupOf(t *testing.T, pid int) int {
	t.Helper()
	group, err := syscall.Getpgid(pid)
	if err != nil {
		t.Fatal(err)
	}
	return group
}

// foreground returns the process group in the foreground of a terminal.
func foreground(t *testing.T, operator *os.File) (group int) {
	t.Helper()
	raw, err := operator.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int32
	if err := raw.Control(func(fd uintptr) {
		_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&n)))
	}); err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// A signal that comes after the end of the command is not lost: the first one tells what guard waits for, the second one ends guard.
func TestGuard_SignalsAfterTheEndOfItsCommand(t *testing.T) {
	t.Parallel()
	for _, signals := range [][]syscall.Signal{{syscall.SIGTERM, syscall.SIGTERM}, {syscall.SIGINT, syscall.SIGTERM}, {syscall.SIGHUP, syscall.SIGQUIT}} {
		t.Run(fmt.Sprint(signals), func(t *testing.T) {
			t.Parallel()
			r := runShell(t, false, "exec "+guardOf("--delay 1h "+signaled())+" report 2>&1")
			command, guard := r.ready()
			r.send(command, syscall.SIGUSR1)
			eventually(t, "the command is reaped", func() bool { return syscall.Kill(command, 0) == syscall.ESRCH })
			r.send(guard, signals[0])
			r.says(fmt.Sprintf("coordctl: %v: COMMAND has ended, and guard waits for its sessions to end, up to 1h0m2s; another signal ends guard at once", signals[0]))
			r.send(guard, signals[1])
			r.says("coordctl: COMMAND has ended, and 1 sessions have not: they end after their timeout if their processes have died")
			if got := r.status(); got != 0 {
				t.Errorf("status %d", got)
			}
		})
	}
}
