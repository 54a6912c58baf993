//go:build linux

package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// childMode makes the test binary start a server, pause it, print the process ids, and wait. See
// TestServersDieWithTheirParent.
const childMode = "COORD_PGTEST_CHILD"

var shared Shared

func TestMain(m *testing.M) {
	if os.Getenv(childMode) != "" {
		childMain()
		return
	}
	goleak.VerifyTestMain(shared.Main(m))
}

func query(t *testing.T, s *Server, sql string) string {
	t.Helper()
	got, err := s.Exec(t.Context(), "", sql)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func processes(t *testing.T, s *Server) []int {
	t.Helper()
	pids, err := childrenOf(s.Pid())
	if err != nil || len(pids) < 4 {
		t.Fatalf("children %v, %v", pids, err)
	}
	return append(pids, s.Pid())
}

func gone(pid int) bool { state, _ := stateOf(pid); return ended(state) }

// untilGone waits until processes have ended.
func untilGone(t *testing.T, pids []int) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); slices.ContainsFunc(pids, func(pid int) bool { return !gone(pid) }); {
		if time.Now().After(limit) {
			t.Fatalf("of the processes %v some live", pids)
		}
		time.Sleep(time.Millisecond) // nothing signals it
	}
}

func TestServer_KeepsItsDataHoweverItEnds(t *testing.T) {
	t.Parallel()
	s := Start(t, &Options{Settings: map[string]string{"fsync": "off", "application_name": `it's a \ name`}})
	if got := query(t, s, "SHOW application_name"); got != "psql" { // which the client sets
		t.Errorf("application_name %q", got)
	}
	query(t, s, "CREATE TABLE n (n int)")
	addr := s.Addr()
	for i, end := range []func() error{
		s.Stop,
		s.StopNow,
		func() error { s.Kill(); return nil },
		func() error { return errors.Join(s.Pause(), s.Stop()) },
		func() error { return errors.Join(s.Pause(), s.StopNow()) },
		func() error { err := s.Pause(); s.Kill(); return err },
	} {
		query(t, s, fmt.Sprintf("INSERT INTO n VALUES (%d)", i))
		c, err := pgx.Connect(t.Context(), s.URL(""))
		if err != nil {
			t.Fatal(err)
		}
		pids := processes(t, s)
		if err := end(); err != nil {
			t.Fatalf("end %d: %v", i, err)
		}
		for _, pid := range pids {
			if !gone(pid) {
				t.Errorf("end %d: the process %d lives", i, pid)
			}
		}
		if s.Alive() {
			t.Errorf("end %d: it is alive", i)
		}
		c.Close(context.Background())
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := query(t, s, "SELECT count(*), max(n) FROM n"); got != fmt.Sprintf("%d|%d", i+1, i) || s.Addr() != addr {
			t.Errorf("end %d: rows %s at %s, before at %s", i, got, s.Addr(), addr)
		}
	}
}

func TestServer_AnswersNothingWhileItIsPaused(t *testing.T) {
	t.Parallel()
	s := Start(t, nil)
	c, err := pgx.Connect(t.Context(), s.URL("template1"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if pids, err := s.Backends(); err != nil || len(pids) != 1 || pids[0] != int(c.PgConn().PID()) {
		t.Errorf("backends %v, %v, want %d", pids, err, c.PgConn().PID())
	}
	pids := processes(t, s)
	if err := errors.Join(s.Pause(), s.Pause()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if state, _ := stateOf(pid); state != 'T' {
			t.Errorf("the process %d has the state %c", pid, state)
		}
	}
	answer := make(chan error, 1)
	go func() {
		_, err := c.Exec(context.Background(), "SELECT 1")
		answer <- err
	}()
	if !s.Alive() || len(answer) > 0 {
		t.Error("a paused server has ended or answered")
	}
	if err := errors.Join(s.Resume(), s.Resume()); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Error(err)
	}
	query(t, s, "SELECT 1")
}

func TestStandby_HasWhatThePrimaryCommitted(t *testing.T) {
	t.Parallel()
	s := Start(t, nil)
	query(t, s, "CREATE TABLE n (n int)")
	var standbys []*Server
	for range 2 {
		standby, err := s.Standby(t.Context(), &StandbyOptions{Synchronous: true, Settings: map[string]string{"work_mem": "1MB"}})
		if err != nil {
			t.Fatal(err)
		}
		standbys = append(standbys, standby)
	}
	// Those of psql end by themselves, and those of the standbys do not count.
	if err := s.until(t.Context(), func() error {
		pids, err := s.Backends()
		if err == nil && len(pids) > 0 {
			err = fmt.Errorf("backends %v, want none", pids)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	query(t, s, "INSERT INTO n VALUES (1)")
	s.Kill()
	second := standbys[1] // a copy of a primary that waits for another standby
	if got := query(t, second, "SELECT pg_is_in_recovery(), current_setting('work_mem')"); got != "t|1MB" {
		t.Errorf("the standby is in recovery and has the memory %s", got)
	}
	if err := second.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	query(t, second, "INSERT INTO n VALUES (2)")
	if got := query(t, second, "SELECT count(*) FROM n"); got != "2" {
		t.Errorf("%s rows, want 2", got)
	}
	if err := second.Promote(t.Context()); err == nil {
		t.Error("a primary was promoted")
	}
	addr := s.Addr()
	data, err := os.Stat(s.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Rebuild(t.Context(), second, &StandbyOptions{Synchronous: true}); err != nil {
		t.Fatal(err)
	}
	if now, err := os.Stat(s.DataDir()); err != nil || !os.SameFile(data, now) {
		t.Errorf("the directory of the data was replaced: %v", err)
	}
	query(t, second, "INSERT INTO n VALUES (3)")
	second.Kill()
	if err := s.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, s, "SELECT count(*) FROM n"); got != "3" || s.Addr() != addr {
		t.Errorf("%s rows at %s, want 3 at %s", got, s.Addr(), addr)
	}
}

func TestStart_ShowsWhyItFailed(t *testing.T) {
	t.Parallel()
	Require(t)
	s, err := New(t.Context(), &Options{Settings: map[string]string{"fsync": "never"}})
	if err == nil {
		s.Close()
		t.Fatal("started with a bad setting")
	}
	if !strings.Contains(err.Error(), `"fsync"`) || !strings.Contains(err.Error(), "exit status") {
		t.Errorf("the error shows neither why nor how the server ended: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := New(ctx, nil); !errors.Is(err, context.Canceled) {
		if err == nil {
			s.Close()
		}
		t.Errorf("with a context that has ended: %v", err)
	}
}

// The server that has the port is not mistaken for the one that is to start.
func TestStart_NoticesThatItsPortIsTaken(t *testing.T) {
	t.Parallel()
	s := Start(t, nil)
	addr := s.Addr()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	other := shared.Get(t)
	s.port = other.port
	if err := s.configure(nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("error %v, want %v", err, errPortTaken)
	}
	s.port = 0 // it chooses one
	if err := s.startFirst(t.Context(), nil); err != nil || s.Addr() == addr || s.Addr() == other.Addr() {
		t.Errorf("started at %s, %v", s.Addr(), err)
	}
}

// openDir returns a temporary directory that every user can enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "coord-pgtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestClose_LeavesNothing(t *testing.T) {
	t.Parallel()
	Require(t)
	dir := openDir(t)
	s, err := New(t.Context(), &Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	pid, err := os.ReadFile(filepath.Join(s.DataDir(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	memory := strings.Fields(strings.Split(string(pid), "\n")[6])[1]
	segments := func() bool {
		text, err := os.ReadFile("/proc/sysvipc/shm")
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
			fields := strings.Fields(line)
			return len(fields) > 1 && fields[1] == memory
		})
	}
	if !segments() {
		t.Errorf("no shared memory %s", memory)
	}
	standby, err := s.Standby(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	pids := append(processes(t, s), processes(t, standby)...)
	if err := errors.Join(s.Close(), s.Close(), standby.Close()); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if !gone(pid) {
			t.Errorf("the process %d lives", pid)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 || segments() {
		t.Errorf("left %v, %v, and the shared memory: %v", left, err, segments())
	}
	if _, err := os.Stat(standby.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the standby: %v", err)
	}
	if err := s.Start(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("start of a closed server: %v", err)
	}
	if _, err := s.Standby(t.Context(), nil); !errors.Is(err, errClosed) {
		t.Errorf("standby of a closed server: %v", err)
	}
}

func childMain() {
	s, err := New(context.Background(), &Options{Dir: os.Getenv(childMode)})
	if err == nil && os.Getenv(childMode+"_PAUSE") != "" {
		err = s.Pause()
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	children, err := childrenOf(s.Pid())
	fmt.Println(err, s.Pid(), children)
	signal.Ignore(os.Interrupt)
	_, _ = io.Copy(io.Discard, os.Stdin) // until killed
}

func TestServersDieWithTheirParent(t *testing.T) {
	t.Parallel()
	Require(t)
	for _, pause := range []string{"", "1"} {
		dir := openDir(t)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childMode+"="+dir, childMode+"_PAUSE="+pause, "TMPDIR="+dir)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer stdin.Close()
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(stdout).ReadString('\n')
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		rest, ok := strings.CutPrefix(line, "<nil> ")
		if !ok || err != nil {
			t.Fatalf("the child says %q, %v", line, err)
		}
		var pids []int
		for _, word := range strings.FieldsFunc(rest, func(r rune) bool { return r < '0' || r > '9' }) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
		if len(pids) < 4 {
			t.Fatalf("processes %v", pids)
		}
		untilGone(t, pids)
		data, err := filepath.Glob(filepath.Join(dir, "*", "data"))
		if err != nil || len(data) != 2 { // of the server and of the template
			t.Errorf("data %v, %v", data, err)
		}
		for _, data := range data {
			s := &Server{dir: dir, data: data}
			s.releaseMemory()
		}
	}
}

func TestFind_SaysWhatToInstall(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("COORD_POSTGRES", dir)
	_, err := Find()
	if !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "apt-get install postgresql") || !strings.Contains(err.Error(), "COORD_POSTGRES is set") {
		t.Errorf("a directory without programs: %v", err)
	}
	if _, err := New(t.Context(), nil); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("start without programs: %v", err)
	}
	if _, err := findIn(dir, "install it"); !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "install it") {
		t.Errorf("no version: %v", err)
	}
	for _, version := range []string{"9.6", "15", "16", "9.5", "17"} {
		bin := filepath.Join(dir, version, "bin")
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"initdb", "postgres", "psql", "pg_basebackup"} {
			if version == "17" && name == "psql" {
				continue
			}
			if err := os.WriteFile(filepath.Join(bin, name), nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := filepath.Join(dir, "16", "bin")
	if got, err := findIn(dir, ""); err != nil || got != want {
		t.Errorf("found %s, %v, want %s", got, err, want)
	}
	t.Setenv("COORD_POSTGRES", want)
	if got, err := Find(); err != nil || got != want {
		t.Errorf("found %s, %v, want %s", got, err, want)
	}
	t.Setenv("COORD_POSTGRES", "")
	t.Setenv("PATH", want)
	if got, err := Find(); err != nil || got != want {
		t.Errorf("found %s, %v, want %s", got, err, want)
	}
}

// recorder records how a test ends.
type recorder struct {
	testing.TB
	skipped, failed bool
	message         string
}

func (r *recorder) Helper() {}

func (r *recorder) Skip(args ...any) {
	r.skipped, r.message = true, fmt.Sprint(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed, r.message = true, fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestRequire_FailsWhereItMustNotSkip(t *testing.T) {
	t.Setenv("COORD_POSTGRES", t.TempDir())
	for _, c := range []struct {
		env           string
		skips, failed bool
	}{{"", true, false}, {"1", false, true}} {
		t.Setenv("COORD_REQUIRE_ZK", c.env)
		tb := &recorder{TB: t}
		var wg sync.WaitGroup
		wg.Go(func() { Require(tb) })
		wg.Wait()
		if tb.skipped != c.skips || tb.failed != c.failed || !strings.Contains(tb.message, "install") {
			t.Errorf("COORD_REQUIRE_ZK=%q: skipped %v, failed %v, %q", c.env, tb.skipped, tb.failed, tb.message)
		}
	}
}
