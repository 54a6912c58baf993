//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/supervisor"
)

// crashTimeout is the session timeout of a holder. A lock that is granted within half of it was not granted by the timeout.
const crashTimeout = 30 * time.Second

// hold is a process that holds the lock at a path, and obeys its standard input. It is the command that guard runs.
func hold(service, servers, path, timeout string) int {
	ctx := context.Background()
	r := supervisor.FromEnv()
	length, _ := time.ParseDuration(timeout)
	var b backend.Backend
	switch addrs := strings.Split(servers, ","); service {
	case "zookeeper":
		b = zookeeper.New(addrs, &zookeeper.Options{SessionTimeout: length, Reporter: r, Digest: os.Getenv("HOLDER_DIGEST")})
	case "etcd":
		b = etcd.New(addrs, &etcd.Options{SessionTimeout: length, Reporter: r})
	case "postgres":
		b = postgres.New("postgres://"+servers+"/", &postgres.Options{SessionTimeout: length, Reporter: r})
	}
	interrupts := make(chan os.Signal, 10)
	signal.Notify(interrupts, syscall.SIGINT, syscall.SIGUSR1)
	c, err := coord.Open(ctx, b, nil)
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	h, err := coord.NewMutex(c, path, nil).Lock(ctx)
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	fmt.Println("held", os.Getpid())
	v := coord.NewValue(c, path+"-value", &coord.ValueOptions[string]{Codec: coord.Text()})
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch command, rest, _ := strings.Cut(in.Text(), " "); command {
		case "panic":
			panic("as told")
		case "exit":
			n, _ := strconv.Atoi(rest)
			os.Exit(n)
		case "close":
			c.Close()
			os.Exit(0)
		case "kill":
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "memory": // a Go process that gets none
			limit := syscall.Rlimit{Cur: 3 << 30, Max: 3 << 30}
			syscall.Setrlimit(syscall.RLIMIT_AS, &limit)
			for keep := [][]byte{}; ; {
				keep = append(keep, make([]byte, 256<<20))
			}
		case "eat": // until the kernel ends it
			for keep := [][]byte{}; ; {
				b := make([]byte, 8<<20)
				for i := 0; i < len(b); i += 4096 {
					b[i] = 1
				}
				keep = append(keep, b)
			}
		case "again": // waits for the loss, and for the next session
			<-h.Done()
			fmt.Println("lost")
			if _, err := coord.NewCounter(c, path+"-counter").Add(ctx, 1); err != nil {
				fmt.Println("failed", err)
				return 1
			}
		case "set":
			if _, err := v.Set(ctx, rest); err != nil {
				fmt.Println("failed", err)
				return 1
			}
		case "write": // without waiting for the reply
			go v.Set(ctx, rest)
		case "interrupts":
			fmt.Println(len(interrupts))
			continue
		case "lost":
			fmt.Println(h.Err())
			continue
		}
		fmt.Println("did", in.Text())
	}
	return 0 // its standard input is over: the test has ended
}

// A crash is a lock that a process holds, and the next contender.
type crash struct {
	*servers
	t       *testing.T
	path    string
	next    *coord.Client
	timeout time.Duration // of the holder
}

func newCrash(t *testing.T, v *servers) *crash {
	t.Helper()
	c, err := coord.Open(t.Context(), v.service, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &crash{v, t, fresh("/guard/" + v.backend), c, crashTimeout}
}

// holder is the command that holds the lock, when it reaches the servers at these addresses; nil are all.
func (x *crash) holder(addrs ...string) []string {
	if addrs == nil {
		addrs = x.addrs
	}
	return []string{os.Args[0], "-as-holder", x.backend, strings.Join(addrs, ","), x.path, x.timeout.String()}
}

// guard is the command line of guard.
func (x *crash) guard(flags ...string) []string {
	return append([]string{os.Args[0], "-as-coordctl", "-backend", x.backend, "-servers", strings.Join(x.addrs, ","), "guard"}, flags...)
}

func (x *crash) guarded(flags ...string) []string {
	return append(append(x.guard(flags...), "--"), x.holder()...)
}

// running is a process with a holder in it or below it.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.Writer
	lines  *bufio.Reader
	stderr bytes.Buffer // to be read when it has ended
	ended  chan struct{}
	pid    int // of the holder, in its namespace
}

// launch starts a command without waiting for the lock.
func (x *crash) launch(attr *syscall.SysProcAttr, env []string, command ...string) *running {
	x.t.Helper()
	r := &running{t: x.t, cmd: exec.Command(command[0], command[1:]...), ended: make(chan struct{})}
	r.cmd.Env, r.cmd.SysProcAttr, r.cmd.Stderr = append(os.Environ(), env...), attr, &r.stderr
	in, w, err := os.Pipe()
	if err != nil {
		x.t.Fatal(err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		x.t.Fatal(err)
	}
	r.cmd.Stdin, r.cmd.Stdout, r.in, r.lines = in, stdout, w, bufio.NewReader(out)
	r.cmd.WaitDelay = time.Second // a process that it leaves has its standard error
	if err := r.cmd.Start(); err != nil {
		x.t.Fatal(err)
	}
	in.Close()
	stdout.Close()
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait()
	}()
	x.t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.ended
		w.Close()
		out.Close()
	})
	return r
}

// start starts a command, and returns when its holder has the lock.
func (x *crash) start(command ...string) *running {
	x.t.Helper()
	r := x.launch(nil, nil, command...)
	r.awaitHeld()
	return r
}

func (r *running) awaitHeld() {
	r.t.Helper()
	line := r.line()
	if _, err := fmt.Sscanf(line, "held %d", &r.pid); err != nil {
		_ = r.cmd.Process.Kill()
		<-r.ended
		r.t.Fatalf("the holder says %q: %s", line, r.stderr.String())
	}
	pid := r.pid
	r.t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
}

func (r *running) line() string {
	line, _ := r.lines.ReadString('\n')
	return strings.TrimSpace(line)
}

// tell gives the holder a command, and returns what it says.
func (r *running) tell(command string) string {
	r.t.Helper()
	if _, err := io.WriteString(r.in, command+"\n"); err != nil {
		r.t.Fatal(err)
	}
	return r.line()
}

// status waits for the end of the command.
func (r *running) status() int {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(limit):
		r.t.Fatal("it does not end")
	}
	ws := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return exitSignal + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// wait begins to wait for the lock. The channel gets the time of the grant.
func (x *crash) wait() <-chan time.Time {
	x.t.Helper()
	granted := make(chan time.Time, 1)
	m := coord.NewMutex(x.next, x.path, nil)
	ctx, cancel := context.WithCancel(x.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h, err := m.Lock(ctx)
		if err != nil {
			return
		}
		granted <- time.Now()
		h.Release()
	}()
	x.t.Cleanup(func() { cancel(); <-done })
	eventually(x.t, "the contender is queued", func() bool {
		list, err := m.Contenders(x.t.Context())
		return err == nil && len(list) >= 2
	})
	return granted
}

// soon returns how long the grant took. It must not be that of the session timeout.
func (x *crash) soon(from time.Time, granted <-chan time.Time) time.Duration {
	x.t.Helper()
	select {
	case at := <-granted:
		took := at.Sub(from)
		if took > x.timeout/2 {
			x.t.Errorf("granted after %v", took)
		}
		return took
	case <-time.After(crashTimeout + limit):
		x.t.Fatal("never granted")
		return 0
	}
}

// held fails the test if the lock is granted, when it may already have been.
func (x *crash) held(granted <-chan time.Time) {
	x.t.Helper()
	if err := x.sync(); err != nil {
		x.t.Fatal(err)
	}
	list, err := coord.NewMutex(x.next, x.path, nil).Contenders(x.t.Context())
	if err != nil || len(list) < 2 {
		x.t.Errorf("the queue has %d contenders, %v", len(list), err)
	}
	select {
	case <-granted:
		x.t.Error("the lock is granted")
	default:
	}
}

// sync returns when all that was committed before shows.
func (x *crash) sync() error {
	_, err := coord.NewCounter(x.next, fresh("/sync")).Add(x.t.Context(), 1)
	return err
}

// A holder dies, and the next contender gets the lock at once. A holder that closes its client leaves nothing to do.
func TestGuard_ACrashHandsOverAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, v *servers) {
		ways := []string{"kill", "panic", "exit 3", "memory", "close"}
		if !long() && v.backend != "zookeeper" {
			ways = []string{"kill", "exit 3"}
		}
		for _, how := range ways {
			x := newCrash(t, v)
			r := x.start(x.guarded()...)
			granted := x.wait()
			begin := time.Now()
			if _, err := io.WriteString(r.in, how+"\n"); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: granted after %v", how, x.soon(begin, granted))
			want := map[string]int{"kill": 137, "panic": 2, "exit 3": 3, "memory": 2, "close": 0}[how]
			if got := r.status(); got != want || strings.Contains(r.stderr.String(), "coordctl: ") {
				t.Errorf("%s: status %d, want %d: %s", how, got, want, r.stderr.String())
			}
		}
	})
}

// Fencing by the service: what a dead process has sent to it is refused after the grant. Without the grant it is a write like others.
func TestGuard_AWriteInFlightDoesNotArriveAfterTheGrant(t *testing.T) {
	onEach(t, func(t *testing.T, v *servers) {
		inFlight := strings.Repeat("x", 20_000)
		for name, guarded := range map[string]bool{"with guard": true, "as a control without": false} {
			p, err := v.proxy(v.addrs[0])
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { p.Close() })
			x := newCrash(t, v)
			command := x.holder(p.Addr())
			if guarded {
				command = slices.Concat(x.guard(), []string{"--"}, command)
			}
			r := x.start(command...)
			granted := x.wait()
			value := coord.NewValue(x.next, x.path+"-value", &coord.ValueOptions[string]{Codec: coord.Text()})
			r.tell("set before") // the next one needs no read
			p.HoldUp(true)
			before := p.Count().BytesUp
			r.tell("write " + inFlight)
			eventually(t, "the write is at the proxy", func() bool { return p.Count().BytesUp >= before+int64(len(inFlight)) })
			begin := r.kill()
			if guarded {
				x.soon(begin, granted)
			}
			p.HoldUp(false)
			if guarded {
				eventually(t, "the connections are over", func() bool { return p.Open() == 0 })
				for range 20 {
					if err := x.sync(); err != nil {
						t.Fatal(err)
					}
				}
				if got, err := value.Get(t.Context()); err != nil || got.Value != "before" {
					t.Errorf("%s: the value has %d bytes, %v", name, len(got.Value), err)
				}
				continue
			}
			eventually(t, "the write arrives", func() bool {
				got, err := value.Get(t.Context())
				return err == nil && got.Value == inFlight
			})
		}
	})
}

// The cases that were found with a prototype, on one service.
func TestGuard_Cases(t *testing.T) {
	for name, f := range map[string]func(t *testing.T, x *crash){
		"a session that is lost by its clock is ended too": lostByItsClock,
		"guard dies first": guardDiesFirst,
		"guard is stopped while sessions are reported":                    guardIsStopped,
		"the command ends, and a process of another group holds the lock": processOfAnotherGroup,
		"a wrapper outlives the holder":                                   wrapperOutlives,
		"the holder is stopped":                                           holderIsStopped,
		"guard of a guard":                                                guardOfAGuard,
		"SIGTERM":                                                         sigterm,
		"a delay":                                                         delayed,
		"guard is process 1":                                              processOne,
		"guard beside a container that is killed":                         besideAContainer,
		"all of a container is killed, and guard with it":                 containerIsKilled,
		"another service":                                                 otherService,
		"guard cannot reach the servers":                                  serversAway,
		"the nodes have an ACL, and guard has no user":                    nodesWithACL,
		"an interrupt at a terminal":                                      interruptAtATerminal,
		"the command ends, and a process of its group holds the lock":     processOfItsGroup,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, newCrash(t, onZooKeeper(t)))
		})
	}
}

// kill kills the holder, and returns when.
func (r *running) kill() time.Time {
	r.t.Helper()
	begin := time.Now()
	if err := syscall.Kill(r.pid, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	return begin
}

func guardDiesFirst(t *testing.T, x *crash) {
	x.timeout = 4 * time.Second
	r := x.start(x.guarded()...)
	granted := x.wait()
	_ = r.cmd.Process.Kill()
	<-r.ended
	if got := r.tell("lost"); got != "<nil>" {
		t.Errorf("the hold is %s", got)
	}
	x.held(granted)
	x.waitedOut(r.kill(), granted)
}

// waitedOut waits for a grant that only the session timeout makes.
func (x *crash) waitedOut(from time.Time, granted <-chan time.Time) {
	x.t.Helper()
	select {
	case at := <-granted:
		x.t.Logf("granted after %v, as without guard", at.Sub(from))
	case <-time.After(limit):
		x.t.Fatal("never granted")
	}
}

// Guard dies with the processes of its container, also if it is not process 1: what covers that is guard beside it.
func containerIsKilled(t *testing.T, x *crash) {
	x.timeout = 4 * time.Second
	r := x.contain(nil, x.guarded()...)
	granted := x.wait()
	begin := time.Now()
	_ = r.cmd.Process.Kill()
	x.waitedOut(begin, granted)

	y := newCrash(t, x.servers)
	_, beside := y.sidecar()
	r = y.contain([]string{beside}, y.holder()...)
	granted = y.wait()
	begin = time.Now()
	_ = r.cmd.Process.Kill()
	y.soon(begin, granted)
}

// contain starts a command in a PID namespace of its own, as process 1, and returns when its holder has the lock.
func (x *crash) contain(env []string, command ...string) *running {
	x.t.Helper()
	r := x.launch(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, env, command...)
	var inside int
	if _, err := fmt.Sscanf(r.line(), "held %d", &inside); err != nil {
		_ = r.cmd.Process.Kill()
		<-r.ended
		x.t.Fatalf("no lock in a PID namespace: %v: %s", err, r.stderr.String())
	}
	return r
}

func guardIsStopped(t *testing.T, x *crash) {
	r := x.launch(nil, nil, append(append(x.guard(), "--", "sh", "-c", `kill -STOP $PPID; exec "$@"`, "sh"), x.holder()...)...)
	r.awaitHeld() // the holder does not wait for guard
	granted := x.wait()
	r.kill()
	x.held(granted)
	begin := time.Now()
	if err := r.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	x.soon(begin, granted)
}

// killShell kills the command of guard, and returns when.
func (r *running) killShell() time.Time {
	r.t.Helper()
	list, err := exec.Command("ps", "-o", "pid=", "--ppid", strconv.Itoa(r.cmd.Process.Pid)).Output()
	if err != nil {
		r.t.Fatal(err)
	}
	shell, err := strconv.Atoi(strings.TrimSpace(string(list)))
	if err != nil {
		r.t.Fatal(err)
	}
	begin := time.Now()
	if err := syscall.Kill(shell, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	return begin
}

func processOfItsGroup(t *testing.T, x *crash) {
	r := x.launch(nil, nil, append(append(x.guard(), "--", "sh", "-c", `exec 3<&0; "$@" <&3 & wait`, "sh"), x.holder()...)...)
	r.awaitHeld()
	granted := x.wait()
	x.soon(r.killShell(), granted)
	if got := r.status(); got != 137 || r.stderr.Len() > 0 {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
}

func processOfAnotherGroup(t *testing.T, x *crash) {
	r := x.launch(nil, nil, append(append(x.guard(), "--", "sh", "-c", `exec 3<&0; setsid "$@" <&3 & wait`, "sh"), x.holder()...)...)
	r.awaitHeld()
	granted := x.wait()
	r.killShell()
	if got := r.status(); got != 137 || !strings.Contains(r.stderr.String(), "1 sessions") {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
	if got := r.tell("lost"); got != "<nil>" {
		t.Errorf("the hold is %s", got)
	}
	x.held(granted)
}

func wrapperOutlives(t *testing.T, x *crash) {
	r := x.launch(nil, nil, append(append(x.guard(), "--", "sh", "-c", `"$@"; sleep 100`, "sh"), x.holder()...)...)
	r.awaitHeld()
	granted := x.wait()
	x.soon(r.kill(), granted)
	select {
	case <-r.ended:
		t.Error("guard has ended before its command")
	default:
	}
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := r.status(); got != 143 {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
}

func holderIsStopped(t *testing.T, x *crash) {
	r := x.start(x.guarded()...)
	granted := x.wait()
	if err := syscall.Kill(r.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.pid))
		return err == nil && bytes.Contains(stat, []byte(") T "))
	})
	x.held(granted)
	if err := syscall.Kill(r.pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := r.tell("lost"); got != "<nil>" {
		t.Errorf("the hold is %s", got)
	}
	x.soon(r.kill(), granted)
}

func guardOfAGuard(t *testing.T, x *crash) {
	r := x.start(slices.Concat(x.guard(), []string{"--"}, x.guarded())...)
	granted := x.wait()
	x.soon(r.kill(), granted)
	if got := r.status(); got != 137 || strings.Contains(r.stderr.String(), "coordctl: ") {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
}

func sigterm(t *testing.T, x *crash) {
	r := x.start(x.guarded()...)
	granted := x.wait()
	if err := r.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the signal is passed on", func() bool { return r.tell("interrupts") == "1" })
	begin := time.Now()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	x.soon(begin, granted)
	if got := r.status(); got != 143 {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
}

func delayed(t *testing.T, x *crash) {
	r := x.start(x.guarded("--delay", "1s")...)
	granted := x.wait()
	if took := x.soon(r.kill(), granted); took < time.Second {
		t.Errorf("granted after %v", took)
	}
	if got := r.status(); got != 137 {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
}

// In a PID namespace guard reaps the orphans, and its status is that of its command.
func processOne(t *testing.T, x *crash) {
	script := `sh -c 'sleep 0 & exec true'; "$@"`
	r := x.contain(nil, append(append(x.guard(), "--", "sh", "-c", script, "sh"), x.holder()...)...)
	granted := x.wait()
	eventually(t, "no orphan is left", func() bool {
		out, err := exec.Command("ps", "-o", "state=", "--ppid", strconv.Itoa(r.cmd.Process.Pid)).Output()
		return err == nil && !strings.Contains(string(out), "Z") && len(strings.Fields(string(out))) == 1
	})
	begin := time.Now()
	if _, err := io.WriteString(r.in, "kill\n"); err != nil {
		t.Fatal(err)
	}
	x.soon(begin, granted)
	if got := r.status(); got != 137 {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
}

// sidecar starts guard --listen, and returns it and the variable for the processes beside it.
func (x *crash) sidecar() (r *running, env string) {
	x.t.Helper()
	path := filepath.Join(socketDir(x.t), "guard.sock")
	r = x.launch(nil, nil, x.guard("--listen", path)...)
	dialGuard(x.t, path).Close()
	return r, "COORD_SUPERVISOR=unix:" + path
}

// All of the holder's container is killed, its process 1 and the holder: guard is in another one.
func besideAContainer(t *testing.T, x *crash) {
	side, env := x.sidecar()
	r := x.contain([]string{env}, append([]string{"sh", "-c", `"$@"; true`, "sh"}, x.holder()...)...)
	granted := x.wait()
	begin := time.Now()
	_ = r.cmd.Process.Kill()
	x.soon(begin, granted)
	if err := side.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := side.status(); got != 0 || side.stderr.Len() > 0 {
		t.Errorf("status %d: %s", got, side.stderr.String())
	}
}

// The holder loses contact, and gets another session. The servers still have the first one.
func lostByItsClock(t *testing.T, x *crash) {
	p, err := zkproxy.New(x.addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	x.timeout = 9 * time.Second // the lease is 6 s
	r := x.start(slices.Concat(x.guard("-v"), []string{"--"}, x.holder(p.Addr()))...)
	granted := x.wait()
	x.timeout = crashTimeout // that guard ends both sessions shows in what it prints
	p.HoldUp(true)           // the servers do not learn that the connection ends
	if got := r.tell("again"); got != "lost" {
		t.Fatal(got)
	}
	p.HoldUp(false) // the requests that the proxy has held renew the session
	if got := r.line(); got != "did again" {
		t.Fatal(got)
	}
	x.soon(r.kill(), granted)
	if got := r.status(); got != 137 || strings.Count(r.stderr.String(), "ended zookeeper session") != 2 {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
}

func otherService(t *testing.T, x *crash) {
	r := x.start(slices.Concat([]string{os.Args[0], "-as-coordctl", "-backend", "etcd", "-servers", "127.0.0.1:1", "guard", "--"}, x.holder())...)
	granted := x.wait()
	r.kill()
	if got := r.status(); got != 137 || !strings.Contains(r.stderr.String(), "this guard ends sessions of etcd") {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
	x.held(granted)
}

func serversAway(t *testing.T, x *crash) {
	r := x.start(slices.Concat([]string{os.Args[0], "-as-coordctl", "-backend", x.backend, "-servers", "127.0.0.1:1", "guard", "--"}, x.holder())...)
	granted := x.wait()
	r.kill()
	if got := r.status(); got != 137 || !strings.Contains(r.stderr.String(), "ends after its timeout, 30s") || !strings.Contains(r.stderr.String(), "refused") {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
	x.held(granted)
}

func nodesWithACL(t *testing.T, x *crash) {
	r := x.launch(nil, []string{"HOLDER_DIGEST=app:secret"}, append(append(x.guard("-v"), "--"), x.holder()...)...)
	r.awaitHeld()
	r.kill()
	if got := r.status(); got != 137 || !strings.Contains(r.stderr.String(), "ended zookeeper session") || strings.Contains(r.stderr.String(), "secret") {
		t.Errorf("status %d: %s", got, r.stderr.String())
	}
}

// The terminal sends its signal to the process group, which is that of guard and of the command.
func interruptAtATerminal(t *testing.T, x *crash) {
	master, slave := openTerminal(t)
	cmd := exec.Command(os.Args[0], x.guarded()[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	r := &running{t: t, cmd: cmd, in: master, lines: bufio.NewReader(master), ended: ended}
	r.awaitHeld()
	say := func(command, want string) {
		t.Helper()
		if _, err := io.WriteString(master, command); err != nil {
			t.Fatal(err)
		}
		for line := r.line(); line != want; line = r.line() {
			if line == "" {
				t.Fatalf("no %q", want)
			}
		}
	}
	say("\x03lost\n", "<nil>") // the terminal has sent the signal when it passes the line on
	for {
		if _, err := io.WriteString(master, "interrupts\n"); err != nil {
			t.Fatal(err)
		}
		line := r.line()
		for line == "interrupts" || line == "<nil>" || strings.HasPrefix(line, "^C") {
			line = r.line()
		}
		if line == "1" {
			break
		}
		if line != "0" {
			t.Fatalf("the command has got %s interrupts", line)
		}
	}
	say("lost\n", "<nil>") // guard lives, and could have passed the signal on by now
	say("interrupts\n", "1")
	granted := x.wait()
	x.soon(r.kill(), granted)
}

func TestGuard_RefusesAnInvalidCommandLine(t *testing.T) {
	for args, want := range map[string]string{
		"guard -- true":                                    "no servers",
		"-memory guard -- true":                            "--memory",
		"-servers a guard":                                 "needs a command",
		"-servers a guard --delay -1s -- true":             "negative",
		"-servers a guard --listen /x -- true":             "takes no command",
		"-servers 127.0.0.1:1 guard -- /none":              "not found",
		"-servers 127.0.0.1:1 guard --listen /none/x/y":    "no such file",
		"-servers 127.0.0.1:1 -tls-ca /none guard -- true": "--tls-ca",
	} {
		var errs bytes.Buffer
		if got := run(strings.Fields(args), strings.NewReader(""), io.Discard, &errs, nil); got == 0 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: status %d: %s", args, got, errs.String())
		}
	}
}
