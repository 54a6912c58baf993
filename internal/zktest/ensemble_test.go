package zktest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"
)

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func connect(t *testing.T, addrs ...string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect(addrs, 4*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func TestAServerServesClients(t *testing.T) {
	e := shared.Get(t)
	conn := connect(t, e.Addrs()...)
	if _, err := conn.Create("/served-", []byte("x"), zk.FlagSequence, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	s := e.Servers()[0]
	if role, err := s.Role(t.Context()); role != Standalone || err != nil {
		t.Errorf("role = %q, %v, want standalone", role, err)
	}
	if l, err := e.Leader(t.Context()); l != s || err != nil {
		t.Errorf("leader = %v, %v, want the only server", l, err)
	}
	m, err := s.Mntr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.Atoi(m["zk_num_alive_connections"]); err != nil || n < 1 {
		t.Errorf("mntr counts %q connections, want at least 1", m["zk_num_alive_connections"])
	}
	if !strings.HasPrefix(m["zk_version"], "3.") {
		t.Errorf("mntr gives version %q", m["zk_version"])
	}
	if answer, err := s.FourLetter(t.Context(), "ruok"); answer != "imok" || err != nil {
		t.Errorf("ruok: %q, %v", answer, err)
	}
}

func TestCloseEndsProcessesAndRemovesFiles(t *testing.T) {
	shared.Get(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	Require(t)
	e, err := Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := e.Servers()[0]
	process := s.proc.cmd.Process
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	if !s.Paused() || !s.Alive() {
		t.Error("a paused server is not paused and alive")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := process.Signal(sigCont); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("after Close the process gives %v, want it done", err)
	}
	if _, err := os.Stat(e.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close the directory gives %v, want it missing", err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := s.Launch(); !errors.Is(err, errClosed) {
		t.Errorf("Launch after Close: %v, want %v", err, errClosed)
	}
}

func TestDataSurvivesAKillAndARestart(t *testing.T) {
	e := Run(t, nil)
	s := e.Servers()[0]
	addr := s.Addr()
	conn := connect(t, addr)
	if _, err := conn.Create("/kept", []byte("x"), 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if s.Alive() || s.Pid() != 0 {
		t.Fatal("alive after Kill")
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Fatal("the port accepts connections after Kill")
	}
	if _, err := s.Role(t.Context()); err == nil {
		t.Error("a killed server has a role")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.Addr() != addr {
		t.Errorf("address changed from %s to %s", addr, s.Addr())
	}
	if data, _, err := connect(t, addr).Get("/kept"); string(data) != "x" || err != nil {
		t.Errorf("after restart: %q, %v", data, err)
	}
}

// A server that was killed while it began a log starts again, which ZooKeeper alone does not do.
func TestAServerStartsWithALogWithoutAHeader(t *testing.T) {
	t.Parallel()
	s := Run(t, nil).Servers()[0]
	if _, err := connect(t, s.Addr()).Create("/kept", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	files, err := filepath.Glob(filepath.Join(s.DataDir(), "version-2", "log.*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	begun := filepath.Join(s.DataDir(), "version-2", "log.ffff")
	if err := os.WriteFile(begun, []byte("ZKLG"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if _, err := os.Stat(file); err != nil {
			t.Error(err) // a log with transactions is kept
		}
	}
}

func TestAnEnsembleChangesItsLeader(t *testing.T) {
	e := Run(t, &Options{Servers: 3})
	ctx := t.Context()
	first, err := e.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(e.Followers(ctx)); n != 2 {
		t.Fatalf("%d followers, want 2", n)
	}

	// A paused leader is replaced, and becomes a follower when it resumes.
	if err := first.Pause(); err != nil {
		t.Fatal(err)
	}
	second, err := e.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if second == first {
		t.Fatal("the paused server leads")
	}
	if err := first.Resume(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the old leader to follow", func() bool {
		role, err := first.Role(ctx)
		return err == nil && role == Follower
	})

	// A killed leader is replaced as well.
	second.Kill()
	third, err := e.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if third == second {
		t.Fatal("the killed server leads")
	}
	if err := second.Restart(ctx); err != nil {
		t.Fatal(err)
	}

	// With one of three servers there is no service; Launch starts a server without waiting
	// for it.
	for _, s := range e.Servers()[:2] {
		s.Kill()
	}
	waitFor(t, "the last server to stop serving", func() bool {
		_, err := e.Servers()[2].Role(ctx)
		return err != nil
	})
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := e.Leader(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("leader without majority: %v, want the context's error", err)
	}
	for _, s := range e.Servers()[:2] {
		if err := s.Launch(); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Await(ctx); err != nil {
		t.Fatal(err)
	}
}

// waitFor polls, since servers do not signal a change of their state.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !cond() {
		if err := pause(ctx); err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

func TestAServerWithTLS(t *testing.T) {
	certs, err := NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e := Run(t, &Options{TLS: certs.ServerTLS()})
	dialer := func(cs *Certificates) zk.Dialer {
		// The zk client's own limit for a dial, a second, can be too short for the first
		// handshake of a server on a busy machine.
		return func(network, addr string, _ time.Duration) (net.Conn, error) {
			d := tls.Dialer{Config: cs.ClientConfig()}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return d.DialContext(ctx, network, addr)
		}
	}
	conn, _, err := zk.Connect(e.SecureAddrs(), 4*time.Second, zk.WithLogger(quiet{}), zk.WithDialer(dialer(certs)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, _, err := conn.Children("/"); err != nil {
		t.Fatal(err)
	}
	// The plain port also serves clients.
	if _, _, err := connect(t, e.Addrs()...).Children("/"); err != nil {
		t.Fatal(err)
	}
	// Clients and servers of another authority are refused by either side.
	strangers, err := NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if c, err := dialer(strangers)("tcp", e.SecureAddrs()[0], 4*time.Second); err == nil {
		c.Close()
		t.Error("a client trusts the server of another authority")
	}
	config := certs.ClientConfig()
	config.Certificates = nil
	if err := readTLS(t, e.SecureAddrs()[0], config); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a client without a certificate gets %v, want to be refused", err)
	}
}

// readTLS returns how the connection ends, in the handshake or after it.
func readTLS(t *testing.T, addr string, config *tls.Config) error {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

func TestServersDieWithTheirParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no parent-death signal on this system")
	}
	Require(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childMode+"="+t.TempDir())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	killErr := cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if err != nil || killErr != nil {
		t.Fatal(line, err, killErr)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "pid ")))
	if err != nil {
		t.Fatalf("child printed %q", line)
	}
	waitFor(t, "the server to die", func() bool { return !processRuns(pid) })
}

// processRuns reports whether a process with this pid exists that is not a zombie.
func processRuns(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// pid (comm) state …
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}
