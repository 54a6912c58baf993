//go:build linux

package supervise_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/supervise"
	"github.com/go-coord/coord/supervisor"
)

func TestMain(m *testing.M) {
	if role, _ := proc.Role(); role == "reporter" {
		os.Exit(report())
	}
	goleak.VerifyTestMain(m)
}

// said is what a process of these tests says after each command.
type said struct {
	Did string
	Pid int
}

func ticket(id int64) backend.Ticket {
	return backend.Ticket{Service: "test", ID: id, Password: []byte("secret"), Timeout: time.Minute}
}

// report is a process that obeys its standard input.
func report() int {
	var out proc.Output
	var r backend.Reporter
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := append(strings.Fields(in.Text()), "")
		number, _ := strconv.ParseInt(words[1], 10, 64)
		pid := os.Getpid()
		switch words[0] {
		case "begin":
			r = supervisor.FromEnv()
		case "open":
			r.Opened(ticket(number))
		case "close":
			r.Ended("test", number)
		case "panic":
			panic("as told")
		case "exit":
			os.Exit(int(number))
		case "kill":
			syscall.Kill(pid, syscall.SIGKILL)
		case "memory": // a Go process that gets none
			limit := syscall.Rlimit{Cur: 1 << 30, Max: 1 << 30}
			syscall.Setrlimit(syscall.RLIMIT_AS, &limit)
			for keep := [][]byte{}; ; {
				keep = append(keep, make([]byte, 128<<20))
			}
		case "hangup": // closes its sockets
			for fd := 3; fd < 64; fd++ {
				var st syscall.Stat_t
				if syscall.Fstat(fd, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFSOCK {
					syscall.Close(fd)
				}
			}
		case "child": // one that reads the same standard input from now on
			cmd := exec.Command(os.Args[0])
			cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
			if err := cmd.Start(); err != nil {
				panic(err)
			}
			out.Report(said{in.Text(), cmd.Process.Pid})
			select {}
		case "helper": // an exec'ed process that outlives this one
			cmd := exec.Command("sleep", "100")
			if err := cmd.Start(); err != nil {
				panic(err)
			}
			pid = cmd.Process.Pid
		}
		if words[0] == "begin" && r == nil {
			out.Report(said{"no supervisor", pid})
			continue
		}
		out.Report(said{in.Text(), pid})
	}
	return 0
}

// scene is a Watch that keeps which sessions it would end.
type scene struct {
	*testing.T
	watch  *supervise.Watch
	source *supervise.Source // the latest
	ended  chan int64

	mu   sync.Mutex
	says []string
}

func newScene(t *testing.T) *scene {
	s := &scene{T: t, ended: make(chan int64, 1000)}
	s.watch = &supervise.Watch{
		Room: 1000,
		End:  func(t backend.Ticket) { s.ended <- t.ID },
		Say: func(text string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.says = append(s.says, text)
		},
	}
	t.Cleanup(s.watch.Close)
	return s
}

// pair is unread, and reads reports.
func (s *scene) pair(pidfd bool) *supervise.Pair {
	s.Helper()
	p := s.unread(pidfd)
	s.receive(p.Ours)
	return p
}

// unread makes a pair of sockets. The processes that are started then inherit the other end.
func (s *scene) unread(pidfd bool) *supervise.Pair {
	s.Helper()
	p, err := supervise.NewPair(pidfd)
	if err != nil {
		s.Fatal(err)
	}
	if pidfd && !p.Pidfd {
		s.Skip(supervise.ErrNoPidfd)
	}
	s.Setenv(supervise.Env, p.Env)
	if err := p.Inherit(true); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { p.Theirs.Close(); p.Ours.Close() })
	return p
}

// receive reads reports until the end of the connection or of the test. The channel is closed when it has ended.
func (s *scene) receive(conn *net.UnixConn) <-chan struct{} {
	source, done := s.watch.Source(conn), make(chan struct{})
	s.source = source
	go func() {
		defer close(done)
		source.Receive()
	}()
	s.Cleanup(func() { conn.Close(); <-done })
	return done
}

// socketPath returns the path of a socket that does not exist.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") // TempDir has the name of the test, which is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// abandon makes a socket that nothing listens on, as after kill -9.
func abandon(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

// listen makes a socket for processes that are started then.
func (s *scene) listen() *net.UnixListener {
	s.Helper()
	path := socketPath(s.T)
	l, err := supervise.Listen(s.Context(), path)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { l.Close() })
	s.Setenv(supervise.Env, "unix:"+path)
	return l
}

func (s *scene) accept(l *net.UnixListener) <-chan struct{} {
	s.Helper()
	conn, err := l.AcceptUnix()
	if err == nil {
		_, err = supervise.PeerOf(conn)
	}
	if err != nil {
		s.Fatal(err)
	}
	return s.receive(conn)
}

type process struct {
	*proc.Worker[said]
	s *scene
}

func (s *scene) start() process {
	s.Helper()
	w, err := proc.Start[said]("reporter", "", nil)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(w.Kill)
	return process{w, s}
}

// tell gives commands, and returns what the process says to the last one.
func (p process) tell(commands ...string) said {
	p.s.Helper()
	n := len(p.Reports()) + len(commands)
	if err := p.Tell(commands...); err != nil {
		p.s.Fatal(err)
	}
	if err := p.Await(time.Minute, func(all []said) bool { return len(all) == n }); err != nil {
		p.s.Fatalf("%q: %v: %s", commands, err, p.Stderr())
	}
	return p.Reports()[n-1]
}

// die gives a command that ends the process.
func (p process) die(command string) {
	p.s.Helper()
	if err := p.Tell(command); err != nil {
		p.s.Fatal(err)
	}
	<-p.Exited
}

// await waits until the process is in a state: stopped (T), or dead and not reaped (Z).
func (p process) await(state string) {
	p.s.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // nothing signals it
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
		if err != nil {
			p.s.Fatal(err)
		}
		if strings.Contains(string(stat), ") "+state+" ") {
			return
		}
		if time.Now().After(end) {
			p.s.Fatalf("the state is %s", stat)
		}
	}
}

// wantEnded waits until these sessions are ended, and no others.
func (s *scene) wantEnded(ids ...int64) {
	s.Helper()
	var got []int64
	for range ids {
		select {
		case id := <-s.ended:
			got = append(got, id)
		case <-time.After(time.Minute):
			s.Fatalf("%v are ended, want %v", got, ids)
		}
	}
	if slices.Sort(got); !slices.Equal(got, ids) {
		s.Errorf("%v are ended, want %v", got, ids)
	}
	s.wantNone()
}

func (s *scene) wantNone() {
	s.Helper()
	select {
	case id := <-s.ended:
		s.Errorf("session %d is ended", id)
	default:
	}
}

func (s *scene) idle() {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	if n := s.watch.Idle(ctx); n > 0 {
		s.Errorf("%d sessions are left", n)
	}
}

func TestWatch_EndsTheSessionsOfAProcessHoweverItDies(t *testing.T) {
	for _, how := range []string{"exit 0", "exit 1", "panic", "kill", "memory"} {
		t.Run(how, func(t *testing.T) {
			s := newScene(t)
			s.pair(true)
			p := s.start()
			p.tell("begin", "open 1", "open 2", "open 3", "close 2")
			s.wantNone()
			p.die(how)
			s.wantEnded(1, 3)
			s.idle()
		})
	}
}

// Reports that were sent and not read when the process dies are read first.
func TestWatch_ReadsAllReportsOfADeadProcess(t *testing.T) {
	s := newScene(t)
	source := s.watch.Source(s.unread(true).Ours)
	var commands []string
	for i := range 60 {
		commands = append(commands, fmt.Sprint("open ", i))
	}
	one := s.start()
	one.tell(append(append([]string{"begin"}, commands...), "close 7")...) // the supervisor is stopped: nothing blocks
	one.die("kill")
	orderly := s.start()
	orderly.tell("begin", "open 100", "close 100")
	orderly.die("exit 0")
	source.Drain()
	var want []int64
	for i := range int64(60) {
		if i != 7 {
			want = append(want, i)
		}
	}
	s.wantEnded(want...)
	s.idle()
}

// The report of an orderly close was not read when the process has died. It is read before the session is ended.
func TestWatch_AnOrderlyCloseLeavesNothing(t *testing.T) {
	s := newScene(t)
	source := s.watch.Source(s.unread(true).Ours)
	p := s.start()
	p.tell("begin", "open 1")
	source.Drain()
	p.tell("close 1")
	p.die("exit 0")
	s.idle()
	s.wantNone()
}

// A wrapper ends, and the process that it has started lives and holds the session.
func TestWatch_TheEndOfAnotherProcessEndsNothing(t *testing.T) {
	s := newScene(t)
	s.pair(true)
	p := s.start()
	p.tell("child")
	p.tell("begin", "open 1") // the child obeys
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.await("Z")
	s.wantNone()
	p.die("kill")
	s.wantEnded(1)
}

func TestWatch_AHelperThatInheritedTheSocketDelaysNothing(t *testing.T) {
	for name, begun := range map[string]bool{"before the library has taken it": false, "after that": true} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.pair(true)
			p := s.start()
			var helper int
			if begun {
				p.tell("begin")
				helper = p.tell("helper").Pid
			} else {
				helper = p.tell("helper").Pid
				p.tell("begin")
			}
			t.Cleanup(func() { syscall.Kill(helper, syscall.SIGKILL) })
			environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", helper))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(environ), supervise.Env) == begun {
				t.Errorf("the environment of the helper: %q", environ)
			}
			p.tell("open 1")
			p.Kill()
			s.wantEnded(1)
		})
	}
}

func TestWatch_AStoppedProcessIsNotDead(t *testing.T) {
	s := newScene(t)
	s.pair(true)
	p := s.start()
	p.tell("begin", "open 1")
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.await("T")
	s.wantNone()
	p.Kill()
	s.wantEnded(1)
}

func TestListen_TheEndOfAConnectionIsNoProof(t *testing.T) {
	s := newScene(t)
	l := s.listen()
	p := s.start()
	p.tell("begin", "open 1")
	over := s.accept(l)
	p.tell("hangup")
	<-over
	s.wantNone()
	p.tell("nothing") // it lives
	s.wantNone()
	p.Kill()
	s.wantEnded(1)
}

// A supervisor that is started again gets the sessions that have not ended with the next report.
func TestListen_ASupervisorThatIsStartedAgainLearnsAll(t *testing.T) {
	s := newScene(t)
	l := s.listen()
	p := s.start()
	p.tell("begin", "open 1", "open 2", "close 1")
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	path := l.Addr().String()
	l.SetUnlinkOnClose(false) // as after kill -9
	l.Close()
	p.tell("open 3") // in vain
	again, err := supervise.Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	p.tell("open 4")
	s.accept(again)
	p.Kill()
	s.wantEnded(2, 3, 4)
	if _, err := supervise.Listen(t.Context(), path); err == nil {
		t.Error("a socket in use was replaced")
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: others may connect", info.Mode(), err)
	}
}

// Between bind and listen, the socket of another process looks like one that nothing listens on.
func TestListen_DoesNotRemoveTheSocketOfAProcessThatIsAboutToListen(t *testing.T) {
	path := socketPath(t)
	abandon(t, path)
	lock, err := os.Create(path + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if l, err := supervise.Listen(t.Context(), path); err == nil || !strings.Contains(err.Error(), path+".lock") {
		t.Errorf("Listen returned %v, %v", l, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	lock.Close()
	l, err := supervise.Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestListen_OfManyAtOnceOneListens(t *testing.T) {
	path := socketPath(t)
	for range 100 {
		abandon(t, path)
		const many = 8
		begin, listeners := make(chan struct{}), make(chan *net.UnixListener, many)
		var all sync.WaitGroup
		for range many {
			all.Go(func() {
				<-begin
				if l, err := supervise.Listen(t.Context(), path); err == nil {
					listeners <- l
				}
			})
		}
		close(begin)
		all.Wait()
		close(listeners)
		if n := len(listeners); n != 1 {
			t.Errorf("%d listen", n)
		}
		for l := range listeners {
			l.Close()
		}
		os.Remove(path) // without a listener
	}
}

// Without pidfds only the direct child counts.
func TestWatch_OnAnOlderKernelTheDirectChildCounts(t *testing.T) {
	s := newScene(t)
	source := s.watch.Source(s.unread(false).Ours)
	child, other := s.start(), s.start()
	s.watch.TrustChild(child.Pid())
	child.tell("begin", "open 1", "open 2", "close 2")
	other.tell("begin", "open 3")
	source.Drain()
	other.Kill()
	s.wantNone()
	if len(s.says) != 1 {
		t.Errorf("says %q", s.says)
	}
	child.Kill() // it is reaped by package proc; the scene of coordctl does it in order
	source.Drain()
	s.watch.ChildEnded()
	s.wantEnded(1)
}

func TestWatch_RefusesWhatIsNoReport(t *testing.T) {
	s := newScene(t)
	p := s.pair(true)
	good, err := supervise.Encode(supervise.Opened, ticket(1))
	if err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		for _, message := range [][]byte{{}, {0}, good[:11], append(slices.Clone(good), 0), make([]byte, 4000)} {
			if err := syscall.Sendmsg(int(p.Theirs.Fd()), message, syscall.UnixRights(int(null.Fd())), nil, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	null.Close()
	ended, err := supervise.Encode(supervise.Ended, ticket(2))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 * supervise.Most { // of this process, which lives
		if _, err := p.Theirs.Write(good); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Theirs.Write(ended); err != nil {
			t.Fatal(err)
		}
	}
	s.source.Drain()
	if n := openFiles(t) - before; n > 1 {
		t.Errorf("%d more descriptors are open", n)
	}
	last, err := supervise.Encode(supervise.Ended, ticket(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Theirs.Write(last); err != nil {
		t.Fatal(err)
	}
	s.idle()
	if n := openFiles(t) - before; n > 0 {
		t.Errorf("%d descriptors stay open", n)
	}
	s.wantNone()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.says) != 1 {
		t.Errorf("says %q", s.says)
	}
}

// A process that reports what it likes, also by several connections, leaves room for the others.
func TestListen_OneProcessDoesNotUseUpTheRoom(t *testing.T) {
	s := newScene(t)
	s.watch.Room = supervise.Most + 1
	l := s.listen()
	before := openFiles(t)
	for n := range 3 {
		conn, err := net.Dial("unixpacket", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		s.accept(l)
		for i := range supervise.Most {
			report, err := supervise.Encode(supervise.Opened, ticket(int64(1000*(n+1)+i)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(report); err != nil {
				t.Fatal(err)
			}
		}
		s.source.Drain()
	}
	if n := openFiles(t) - before; n > supervise.Most+6 { // both ends of the connections
		t.Errorf("%d more descriptors are open", n)
	}
	one, two := s.start(), s.start()
	one.tell("begin", "open 1")
	s.accept(l)
	s.source.Drain()
	two.tell("begin", "open 2") // there is no room
	s.accept(l)
	s.source.Drain()
	two.Kill()
	one.Kill()
	s.wantEnded(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.says) != 2 || !strings.Contains(s.says[0], "more than 64") || !strings.Contains(s.says[1], "too many") {
		t.Errorf("says %q", s.says)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
