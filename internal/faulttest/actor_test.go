//go:build linux

package faulttest

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zkproxy"
)

// stage is the environment of one scenario: an ensemble, a lock and a resource.
type stage struct {
	t        *testing.T
	e        servers
	lock     string
	election string
	resource *resource
}

var stages atomic.Int64

func newStage(t *testing.T, e servers) *stage {
	t.Helper()
	n := stages.Add(1)
	return &stage{t: t, e: e, lock: fmt.Sprintf("/locks/%d", n), election: fmt.Sprintf("/elections/%d", n), resource: newResource(t)}
}

// actor is a worker process with its connections to the servers, and its output.
type actor struct {
	t       *testing.T
	name    string
	e       servers
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	exited  chan struct{}
	proxies []ensemble.Line // one in front of each server, only for this actor
	greeted []atomic.Int64  // by proxy: connections on which the session was established
	pings   atomic.Int64    // pings that were answered

	mu    sync.Mutex
	lines []line
	news  chan struct{} // closed and replaced with every line, and closed at the end
	over  bool
	errs  strings.Builder // standard error
	next  int             // index of the first line after those that await returned
}

// start starts a worker and waits until it has a session.
func (s *stage) start(name string, timeout, margin time.Duration) *actor {
	s.t.Helper()
	a := s.launch(name, workerSpec{SessionTimeout: timeout, LossMargin: margin})
	a.await("opened")
	return a
}

// launch starts a worker, with what the specification says beside the parts of the stage.
func (s *stage) launch(name string, spec workerSpec) *actor {
	t := s.t
	t.Helper()
	a := &actor{
		t: t, name: name, e: s.e,
		exited: make(chan struct{}), news: make(chan struct{}),
		greeted: make([]atomic.Int64, len(s.e.Addrs())),
	}
	spec.Lock, spec.Election, spec.ID, spec.Resource = s.lock, s.election, name, s.resource.socket
	for i, addr := range s.e.Addrs() {
		p := newLine(t, addr)
		p.OnFrame(func(f zkproxy.Frame) {
			switch {
			case f.Dir == zkproxy.Down && f.Opcode == zkproxy.OpConnect && f.Session != 0:
				a.greeted[i].Add(1)
			case f.Dir == zkproxy.Down && f.Opcode == zkproxy.OpPing:
				a.pings.Add(1)
				if elsewhere() { // nothing else tells there that a connection is that of the session
					a.greeted[i].Add(1)
				}
			}
		})
		a.proxies = append(a.proxies, p)
		spec.Servers = append(spec.Servers, p.Addr())
	}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a.cmd = exec.Command(exe)
	a.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	a.cmd.Stderr = (*errorsOf)(a)
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if a.stdin, err = a.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go a.run(out, started)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.end)
	return a
}

// run is the life of the process. The kernel kills a child when the thread that started it
// ends, so that thread stays locked.
func (a *actor) run(out io.Reader, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(a.exited)
	err := a.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	for d := json.NewDecoder(out); ; {
		var l line
		err := d.Decode(&l)
		a.mu.Lock()
		close(a.news)
		a.news = make(chan struct{})
		if err != nil {
			a.over = true
			a.mu.Unlock()
			break
		}
		a.lines = append(a.lines, l)
		a.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, out) // a line cut short by a kill
	_ = a.cmd.Wait()                // the exit status does not matter
}

// errorsOf collects the standard error of a worker.
type errorsOf actor

func (a *errorsOf) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.errs.Write(p)
}

// end ends the process, and shows its last output if the test failed.
func (a *actor) end() {
	a.kill()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.errs.Len() > 0 {
		a.t.Errorf("%s wrote to standard error:\n%s", a.name, a.errs.String())
	}
	if a.t.Failed() {
		var b strings.Builder
		for _, l := range a.lines[max(0, len(a.lines)-40):] {
			fmt.Fprintln(&b, l)
		}
		a.t.Logf("the last lines of %s:\n%s", a.name, b.String())
	}
}

// kill sends SIGKILL. It returns when the process has ended.
func (a *actor) kill() {
	_ = a.cmd.Process.Kill() // it may have ended by itself
	<-a.exited
}

func (a *actor) signal(sig syscall.Signal) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(sig); err != nil {
		a.t.Fatalf("%s: %v", a.name, err)
	}
}

// tell sends commands.
func (a *actor) tell(commands ...string) {
	a.t.Helper()
	if _, err := io.WriteString(a.stdin, strings.Join(commands, "\n")+"\n"); err != nil {
		a.t.Fatalf("%s: %v", a.name, err)
	}
}

// await returns the next line of a kind, and moves past it.
func (a *actor) await(kind string) line {
	a.t.Helper()
	l, ok := a.within(limit, kind)
	if !ok {
		a.t.Fatalf("%s never reported %q", a.name, kind)
	}
	return l
}

// within is await for a line that may not come.
func (a *actor) within(d time.Duration, kind string) (line, bool) {
	a.t.Helper()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	for {
		a.mu.Lock()
		for i := a.next; i < len(a.lines); i++ {
			switch l := a.lines[i]; l.Kind {
			case kind:
				a.next = i + 1
				a.mu.Unlock()
				return l, true
			case "failed":
				a.mu.Unlock()
				a.t.Fatalf("%s failed: %s", a.name, l.Text)
			}
		}
		news, over := a.news, a.over
		a.mu.Unlock()
		if over {
			a.t.Fatalf("%s ended before it reported %q", a.name, kind)
		}
		select {
		case <-news:
		case <-deadline.C:
			return line{}, false
		}
	}
}

// ask sends a command and returns the line that answers it.
func (a *actor) ask(command, answer string) line {
	a.t.Helper()
	a.tell(command)
	return a.await(answer)
}

// mark returns a position in the actor's output, for silent.
func (a *actor) mark() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.lines)
}

// silent fails the test if the actor has reported one of the kinds since mark. The end of a
// hold that was released may be reported late, and does not count.
func (a *actor) silent(mark int, kinds ...string) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.lines[mark:] {
		if slices.Contains(kinds, l.Kind) && !(l.Kind == "done" && strings.HasSuffix(l.Text, " released")) {
			a.t.Errorf("%s reported: %v", a.name, l)
		}
	}
}

// hasSaid reports whether the actor has reported a line of a kind since mark.
func (a *actor) hasSaid(mark int, kind string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.lines[mark:], func(l line) bool { return l.Kind == kind })
}

// hold makes the actor the holder.
func (a *actor) hold() line {
	a.t.Helper()
	return a.ask("lock", "granted")
}

// wait makes the actor a waiter.
func (a *actor) wait() line {
	a.t.Helper()
	return a.ask("lock", "waiting")
}

// write makes the actor write without checking its hold.
func (a *actor) write(want string) {
	a.t.Helper()
	if l := a.ask("write", "wrote"); l.Text != want {
		a.t.Errorf("the write of %s with token %#x was %s, want %s", a.name, l.Token, l.Text, want)
	}
}

// stands makes the holder ask the service whether it still holds, and returns when the answer
// has come.
func (a *actor) stands() line {
	a.t.Helper()
	l := a.ask("verify", "verified")
	if l.Text != "ok" {
		a.t.Errorf("%s: %s", a.name, l.Text)
	}
	return l
}

// passTo hands the lock over, and returns the duration and the grant.
func (a *actor) passTo(b *actor) (time.Duration, line) {
	a.t.Helper()
	a.tell("release")
	releasing := a.await("releasing")
	granted := b.await("granted")
	if l := a.await("released"); l.Text != "ok" {
		a.t.Errorf("%s released: %s", a.name, l.Text)
	}
	if granted.At < releasing.At || granted.Token <= releasing.Token {
		a.t.Errorf("%s was granted token %#x at %v, %s released %#x at %v",
			b.name, granted.Token, granted.At, a.name, releasing.Token, releasing.At)
	}
	return granted.At - releasing.At, granted
}

// pin moves the actors' connections to one server and refuses them at the others.
func pin(s member, actors ...*actor) {
	for _, a := range actors {
		a.t.Helper()
		at := slices.Index(a.e.members(), s)
		for i, p := range a.proxies {
			p.Refuse(i != at)
		}
		before := a.greeted[at].Load()
		for _, p := range a.proxies {
			p.Cut()
		}
		if elsewhere() { // a renewal may have been answered before
			before = a.greeted[at].Load()
		}
		eventually(a.t, a.name+" connects to the chosen server", func() bool { return a.greeted[at].Load() > before })
	}
}

// unpin allows all servers again. Connections stay where they are.
func unpin(actors ...*actor) {
	for _, a := range actors {
		for _, p := range a.proxies {
			p.Refuse(false)
		}
	}
}

// blackhole drops all traffic between the actor and the servers.
func (a *actor) blackhole(on bool) {
	for _, p := range a.proxies {
		p.Blackhole(on)
	}
}
