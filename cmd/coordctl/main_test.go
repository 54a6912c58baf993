//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

// server is the service of all tests: one server, or in the long form an ensemble of three.
var server = zktest.Shared{Options: &zktest.Options{
	MaxSessionTimeout: crashTimeout,
	JavaArgs:          []string{"-Dznode.container.checkIntervalMs=86400000"}, // transcripts show empty directories
}}

func long() bool { return os.Getenv("COORD_LONG") == "1" }

// The test binary is also coordctl, and the command that coordctl runs.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "-as-coordctl":
			os.Args = append(os.Args[:1], os.Args[2:]...)
			main()
		case "-as-command":
			beat(os.Args[2], os.Args[3:])
		case "-as-signaled":
			os.Exit(tellSignals(os.Args[2:]))
		case "-as-holder":
			os.Exit(hold(os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
		}
	}
	os.Setenv("COORDCTL_CONFIG", os.DevNull) // not that of the developer
	// What a list of servers does not say of PostgreSQL.
	os.Setenv("PGUSER", "postgres")
	os.Setenv("PGDATABASE", "postgres")
	os.Setenv("PGSSLMODE", "disable")
	// Under nohup and in the background of a shell these are ignored, and a child would
	// inherit that.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	if long() {
		server.Options.Servers = 3
	}
	goleak.VerifyTestMain(postgresServer.Main(server.Main(m)))
}

// beat is the command: it keeps writing the time into a file. The first line has its process
// id and token. how selects further behaviour:
//
//	ignore     SIGTERM, SIGINT and SIGHUP do nothing
//	slow       after one of these it continues for a while and ends with status 7
//	end N      it ends with status N at SIGUSR1
//	leave F    as end 0, and leaves another one in its group, which ignores signals, on file F
func beat(file string, how []string) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
	signals := make(chan os.Signal, 8)
	const while = 300 * time.Millisecond
	status, end := 0, time.Duration(0)
	switch how[0] {
	case "ignore", "slow":
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	case "end":
		signal.Notify(signals, syscall.SIGUSR1)
		status, _ = strconv.Atoi(how[1])
	case "leave":
		other := exec.Command(os.Args[0], "-as-command", how[1], "ignore")
		if err := other.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(99)
		}
		for { // it beats
			if data, _ := os.ReadFile(how[1]); bytes.Count(data, []byte("\n")) > 2 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		end = proc.Now()
	}
	fmt.Fprintf(f, "%d %s %s\n", os.Getpid(), os.Getenv("COORD_TOKEN"), os.Getenv("COORD_PATH"))
	begun := proc.Now()
	for tick := time.Tick(2 * time.Millisecond); ; <-tick {
		now := proc.Now()
		if now > begun+3*time.Minute {
			os.Exit(98) // the test did not end it
		}
		fmt.Fprintf(f, "%d\n", now)
		select {
		case <-signals:
			switch {
			case how[0] == "slow" && end == 0:
				status, end = 7, now+while
			case how[0] == "end":
				os.Exit(status)
			}
		default:
		}
		if end > 0 && now > end {
			os.Exit(status)
		}
	}
}

// beats is the output of the latest command on a file.
type beats struct {
	pid, n int
	token  int64
	path   string
	last   time.Duration
	runs   int // number of commands that have written
}

func readBeats(t *testing.T, file string) (b beats) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if !strings.HasSuffix(line, "\n") {
			break // killed in the middle of it
		}
		switch len(words) {
		case 1:
			n, err := strconv.ParseInt(words[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			b.last = time.Duration(n)
			b.n++
		default:
			b = beats{runs: b.runs + 1}
			b.pid, _ = strconv.Atoi(words[0])
			if len(words) == 3 {
				b.token, _ = strconv.ParseInt(words[1], 10, 64)
				b.path = words[2]
			}
		}
	}
	return b
}

// alive reports whether a process runs. A process that has ended and was not reaped does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}

// limit is the timeout for events that must happen.
const limit = 60 * time.Second

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// socketDir returns a directory whose path is short enough for sockets: that of T.TempDir has the name of the test.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// sessionTimeout is the session timeout of coordctl in the tests. coordctl notices the loss
// of contact a third of it earlier than the servers.
const sessionTimeout = 5 * time.Second

// servers are those of a service.
type servers struct {
	backend string // the flag of coordctl
	addrs   []string
	proxy   func(target string) (*zkproxy.Proxy, error)
	service backend.Backend // with sessions that last longer than coordctl's
	expire  func(ctx context.Context, session int64) error
}

func onZooKeeper(t *testing.T) *servers {
	t.Helper()
	addrs := server.Get(t).Addrs()
	return &servers{
		"zookeeper", addrs, zkproxy.New, zookeeper.New(addrs, &zookeeper.Options{SessionTimeout: 8 * time.Second}),
		func(ctx context.Context, session int64) error {
			return zktest.ExpireSession(ctx, addrs[0], session, nil)
		},
	}
}

// onEach runs a test on each service.
func onEach(t *testing.T, f func(t *testing.T, v *servers)) {
	t.Run("zookeeper", func(t *testing.T) { t.Parallel(); f(t, onZooKeeper(t)) })
	t.Run("etcd", func(t *testing.T) { t.Parallel(); f(t, onEtcd(t)) })
	t.Run("postgres", func(t *testing.T) { t.Parallel(); f(t, onPostgres(t)) })
}

var used = struct {
	sync.Mutex
	times map[string]int
}{times: make(map[string]int)}

// fresh returns path, with a number after it if this process has used it already: the shared
// server keeps the nodes of an earlier run of the same test.
func fresh(path string) string {
	used.Lock()
	defer used.Unlock()
	used.times[path]++
	if n := used.times[path]; n > 1 {
		return fmt.Sprint(path, "-", n)
	}
	return path
}

// stage is one lock, a coordctl that uses it, and the next contender.
type stage struct {
	*servers
	t     *testing.T
	path  string
	file  string           // file of the command's beats
	links []*zkproxy.Proxy // between coordctl and the servers
	next  *coord.Client    // client of the next contender, which bypasses the proxies
}

func newStage(t *testing.T, v *servers) *stage {
	t.Helper()
	s := &stage{servers: v, t: t, path: fresh("/" + strings.ReplaceAll(t.Name(), "/", "-")), file: t.TempDir() + "/beats"}
	for _, addr := range v.addrs {
		p, err := v.proxy(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		s.links = append(s.links, p)
	}
	c, err := coord.Open(t.Context(), v.service, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s.next = c
	return s
}

func (s *stage) mutex() *coord.Mutex { return coord.NewMutex(s.next, s.path, nil) }

// ctl is a running coordctl.
type ctl struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout bytes.Buffer // to be read when it has ended
	stderr bytes.Buffer
	ended  chan struct{}
}

// start starts coordctl. Flags that every test needs are added.
func (s *stage) start(args ...string) *ctl {
	s.t.Helper()
	return s.startTo(nil, args...)
}

// startTo is start with another standard output.
func (s *stage) startTo(stdout *os.File, args ...string) *ctl {
	s.t.Helper()
	var addrs []string
	for _, p := range s.links {
		addrs = append(addrs, p.Addr())
	}
	args = append([]string{"-as-coordctl", "-timeout", sessionTimeout.String(), "-backend", s.backend}, args...)
	x := &ctl{t: s.t, cmd: exec.Command(os.Args[0], args...), ended: make(chan struct{})}
	x.cmd.Env = append(os.Environ(), "COORD_SERVERS="+strings.Join(addrs, ","))
	x.cmd.Stdout, x.cmd.Stderr = &x.stdout, &x.stderr
	if stdout != nil {
		x.cmd.Stdout = stdout
	}
	x.cmd.WaitDelay = time.Second // a command that it leaves has them open too
	if err := x.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(x.ended)
		_ = x.cmd.Wait()
	}()
	s.t.Cleanup(func() {
		_ = x.cmd.Process.Kill()
		<-x.ended
	})
	return x
}

// command starts coordctl with a verb and flags, and the command that beats. It returns when
// the command beats.
func (s *stage) command(verb []string, how ...string) *ctl {
	s.t.Helper()
	args := append(append([]string{}, verb...), s.path, "--", os.Args[0], "-as-command", s.file)
	x := s.start(append(args, how...)...)
	eventually(s.t, "the command runs", func() bool {
		select {
		case <-x.ended:
			s.t.Fatalf("coordctl has ended: %s", x.stderr.String())
		default:
		}
		return readBeats(s.t, s.file).n > 2
	})
	return x
}

// status waits for the end of coordctl, and returns its exit status.
func (x *ctl) status() int {
	x.t.Helper()
	select {
	case <-x.ended:
	case <-time.After(limit):
		x.t.Fatal("coordctl does not end")
	}
	if ws := x.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return -int(ws.Signal())
	}
	return x.cmd.ProcessState.ExitCode()
}

// grant is the time and the hold of the next grant.
type grant struct {
	at   time.Duration
	hold *coord.Hold
	err  error
}

// await makes the next contender wait, and returns when it is queued.
func (s *stage) await() <-chan grant {
	s.t.Helper()
	granted := make(chan grant, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		h, err := s.mutex().Lock(ctx)
		granted <- grant{proc.Now(), h, err}
	})
	s.t.Cleanup(func() { cancel(); wg.Wait() })
	eventually(s.t, "the next contender is queued", func() bool {
		list, err := s.mutex().Contenders(ctx)
		return err == nil && len(list) == 2
	})
	return granted
}
