// Package pgtest is coordtest for PostgreSQL: it starts a real server from a test, and runs one test
// function in memory, on a ZooKeeper server and on a PostgreSQL server.
//
//	func TestMyService(t *testing.T) {
//		pgtest.Each(t, nil, func(t *testing.T, s *coordtest.Service) {
//			...
//		})
//	}
//
// The servers listen on the loopback interface, on ports that were free, and keep their data in
// temporary directories. They can be stopped, killed, paused and started again, and have standbys.
//
// The faults of a link mean what the comment of package coordtest says, with these notes:
//
//   - A link has a TCP proxy before the server. Cut, Refuse, Blackhole and Delay act on its bytes.
//   - DropRequest and DropReply act on commits, as on every service.
//   - Expire ends the sessions in the database. When it returns, their nodes are deleted.
//
// It needs PostgreSQL 13 or later, see [Find]. Tests that need it are skipped when it is missing, or
// fail with COORD_REQUIRE_ZK=1 in the environment.
//
// PostgreSQL refuses to run as root. For root the servers run as the user postgres, or nobody if there
// is none. Every user of the machine can connect to them, without a password.
//
// On Linux the kernel kills the servers however this process ends, also while they are paused. The
// temporary directories are left only if this process is killed. On other systems [Server.Close] has to
// run, and [Server.Pause], [Server.Resume] and [Server.Backends] do not work.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zktest"
)

// Options are the settings of a server. Nil means the defaults.
type Options struct {
	// Settings are lines of postgresql.conf, which override the defaults: "fsync": "off" makes a
	// server faster, which then still loses nothing when only its processes are killed. They must
	// not set the port and the addresses.
	Settings map[string]string

	// Env is added to the environment of the server, as KEY=value.
	Env []string

	// Dir is the directory in which the server makes its own one, for instance on a small file
	// system. The user that the server runs as must be able to enter it. Default: os.TempDir, or /tmp
	// if the user cannot enter that.
	Dir string
}

const (
	startLimit = 90 * time.Second // of a start, if its context does not end before
	stopLimit  = 60 * time.Second // of Stop and StopNow
	superuser  = "postgres"
)

var (
	errClosed    = errors.New("pgtest: server closed")
	errPortTaken = errors.New("port taken")
)

// A Server is a PostgreSQL server and its data. Its methods are safe for concurrent use.
type Server struct {
	inst installation
	dir  string
	data string
	env  []string
	done func() // gives up the template of the data

	mu           sync.Mutex
	port         int
	proc         *process // the latest; nil before the first
	closed       bool
	standbys     []*Server
	synchronous  []string // the names of standbys
	standbyCount int
	services     int
}

type process struct {
	cmd    *exec.Cmd
	exited <-chan struct{}
	pause  *pause // not nil while it is paused; guarded by Server.mu
}

func (p *process) alive() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// New starts a server and returns when it accepts connections. ctx bounds only the start. The error
// contains the end of the server's log. The caller must Close the server. Tests use [Start] or
// [Shared].
func New(ctx context.Context, o *Options) (*Server, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	inst, err := find()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	s, err := newServer(inst, opts.Dir)
	if err != nil {
		return nil, err
	}
	s.env = opts.Env
	template, done, err := useTemplate(ctx, inst)
	if err == nil {
		s.done = done
		_, err = s.run(ctx, "cp", "-R", "-p", template, s.data)
	}
	if err == nil {
		err = s.startFirst(ctx, opts.Settings)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// newServer makes the directory of a server.
func newServer(inst installation, parent string) (*Server, error) {
	dir, err := inst.tempDir(parent)
	if err != nil {
		return nil, err
	}
	return &Server{inst: inst, dir: dir, data: filepath.Join(dir, "data"), done: func() {}}, nil
}

// startFirst starts a server that has new data, on its port, or on one that it chooses if it has none.
func (s *Server) startFirst(ctx context.Context, settings map[string]string) error {
	// Another process can take a port between the choice and the start.
	const attempts = 5
	s.mu.Lock()
	chosen := s.port != 0
	s.mu.Unlock()
	for i := 1; ; i++ {
		if !chosen {
			ports, err := zktest.FreePorts(1)
			if err != nil {
				return err
			}
			s.mu.Lock()
			s.port = ports[0]
			s.mu.Unlock()
		}
		if err := s.configure(settings); err != nil {
			return err
		}
		err := s.Start(ctx)
		if err == nil || i == attempts || chosen || !errors.Is(err, errPortTaken) {
			return err
		}
		if err := os.Remove(s.LogFile()); err != nil { // it says that the port is taken
			return err
		}
	}
}

// configure appends the settings of a server to postgresql.conf. The last line for a setting counts.
func (s *Server) configure(settings map[string]string) error {
	sockets := `"` + s.dir + `"`
	if len(s.dir) > 80 { // the path of a socket has at most 103 to 107 bytes
		sockets = ""
	}
	all := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(s.port),
		"unix_socket_directories": sockets,
		// Shared memory that a killed server leaves is in its directory.
		"dynamic_shared_memory_type": "mmap",
		// A standby's copy of its primary's settings has one.
		"synchronous_standby_names": "",
	}
	maps.Copy(all, settings)
	return s.set(all)
}

// set appends settings to postgresql.conf.
func (s *Server) set(settings map[string]string) error {
	var lines strings.Builder
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&lines, "%s = '%s'\n", k, strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(settings[k]))
	}
	f, err := os.OpenFile(filepath.Join(s.data, "postgresql.conf"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteString(lines.String()); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	return nil
}

// Addr is the address of the server, "127.0.0.1:port". It does not change when the server is started
// again.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// URL is the connection string of a database, "" for the database postgres, as the superuser.
func (s *Server) URL(database string) string { return URL(s.Addr(), database) }

// URL is Server.URL through another address, for instance that of a proxy.
func URL(addr, database string) string {
	if database == "" {
		database = "postgres"
	}
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Host: addr, Path: database, RawQuery: "sslmode=disable"}
	return u.String()
}

// SocketDir is the directory of the server's Unix socket, for the parameter host of a connection
// string. There is no socket if the path is longer than 80 bytes.
func (s *Server) SocketDir() string { return s.dir }

// DataDir is the directory of the data.
func (s *Server) DataDir() string { return s.data }

// LogFile is the file that the server logs to. A further start appends to it.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "log") }

// LogTail returns the end of the server's log, at most 40 lines.
func (s *Server) LogTail() string {
	const most = 40
	log, err := os.ReadFile(s.LogFile())
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimRight(log, "\n"), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-most):], []byte("\n")))
}

// Pid returns the process id of the postmaster, or 0 if it is not alive.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proc.alive() {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Alive reports whether the postmaster runs. A paused server is alive.
func (s *Server) Alive() bool { return s.Pid() != 0 }

// Backends returns the process ids of the servers of clients: one for each connection, except those
// of standbys. They are known also while the server is paused.
func (s *Server) Backends() ([]int, error) {
	pid := s.Pid()
	if pid == 0 {
		return nil, fmt.Errorf("pgtest: the server at %s is not alive", s.Addr())
	}
	return backends(pid)
}

// Launch starts the server if it is not alive, and does not wait until it accepts connections. See
// Await.
func (s *Server) Launch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if s.proc.alive() {
		return nil
	}
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(s.inst.path("postgres"), "-D", s.data)
	s.inst.prepare(cmd, s.dir)
	cmd.Env = append(cmd.Env, s.env...)
	cmd.Stdout, cmd.Stderr = log, log
	exited, err := proc.Launch(cmd, nil)
	if err != nil {
		return fmt.Errorf("pgtest: start: %w", err)
	}
	s.proc = &process{cmd: cmd, exited: exited}
	return nil
}

// Await returns when the server accepts connections: those of a standby can only read. It fails at
// once if the server ends. The error contains the end of the server's log.
func (s *Server) Await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p == nil {
		return errors.New("pgtest: the server was never started")
	}
	return s.until(ctx, func() error {
		select {
		case <-p.exited:
			err := fmt.Errorf("%w: %v", errEnded, p.cmd.ProcessState)
			if log := s.LogTail(); strings.Contains(log, "Address already in use") {
				err = fmt.Errorf("%w: %w", errPortTaken, err)
			}
			return err
		default:
		}
		status, err := s.status(p.cmd.Process.Pid)
		if err == nil && status != "ready" && status != "standby" {
			err = fmt.Errorf("its status is %q", status)
		}
		return err
	})
}

var errEnded = errors.New("the server ended")

// until calls f again and again until it returns nil, ctx ends, or the server has.
func (s *Server) until(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		if !errors.Is(err, errEnded) {
			select {
			case <-time.After(5 * time.Millisecond): // nothing signals it
				continue
			case <-ctx.Done():
				err = fmt.Errorf("%w: %w", ctx.Err(), err)
			}
		}
		return fmt.Errorf("pgtest: the server at %s: %w; end of its log:\n%s", s.Addr(), err, s.LogTail())
	}
}

// status reads what the postmaster with this process id says of itself.
func (s *Server) status(pid int) (string, error) {
	text, err := os.ReadFile(filepath.Join(s.data, "postmaster.pid"))
	if err != nil {
		return "", err
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 8 || lines[0] != strconv.Itoa(pid) {
		return "", errors.New("it has not said that it starts")
	}
	return strings.TrimSpace(lines[7]), nil
}

// Start starts the server if it is not alive, with its data and its port, and returns when it accepts
// connections.
func (s *Server) Start(ctx context.Context) error {
	if err := s.Launch(); err != nil {
		return err
	}
	return s.Await(ctx)
}

// Stop ends the server in the mode fast: it ends the sessions, and writes a checkpoint. Stop returns
// when the server has ended. A paused server is resumed. If the server does not end within a minute,
// Stop kills it and returns an error. Stop does nothing if the server is not alive.
func (s *Server) Stop() error { return s.stop(syscall.SIGINT) }

// StopNow is Stop in the mode immediate: the server aborts its sessions and writes nothing. The next
// start recovers its data.
func (s *Server) StopNow() error { return s.stop(syscall.SIGQUIT) }

func (s *Server) stop(sig syscall.Signal) error {
	s.mu.Lock()
	p := s.proc
	if !p.alive() {
		s.mu.Unlock()
		return nil
	}
	_ = p.cmd.Process.Signal(sig) // fails only if it has ended
	err := p.resume()
	s.mu.Unlock()
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-p.exited:
		return err
	case <-limit.C:
		tail := s.LogTail()
		s.Kill()
		return fmt.Errorf("pgtest: the server at %s did not end within %v after %v and was killed; end of its log:\n%s", s.Addr(), stopLimit, sig, tail)
	}
}

// Kill ends all processes of the server at once (SIGKILL), also those that are paused, and returns when
// they have ended. It does nothing if the postmaster is not alive. On systems other than Linux the
// processes for connections end a moment later.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proc.alive() {
		return
	}
	killTree(s.proc.cmd.Process)
	<-s.proc.exited
	_ = s.proc.resume() // ends what guards the paused processes
}

// Pause stops all processes of the server (SIGSTOP), as a machine that hangs: their connections stay
// open and they do not answer. It returns when they have stopped. It does nothing if the server is
// paused.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proc.alive() {
		return errors.New("pgtest: pause: the server is not alive")
	}
	if s.proc.pause != nil {
		return nil
	}
	p, err := pauseTree(s.proc.cmd.Process)
	if err != nil {
		return fmt.Errorf("pgtest: pause: %w", err)
	}
	s.proc.pause = p
	return nil
}

// Resume continues the processes of a paused server (SIGCONT).
func (s *Server) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proc.alive() {
		return errors.New("pgtest: resume: the server is not alive")
	}
	return s.proc.resume()
}

// resume continues a process that is paused.
func (p *process) resume() error {
	if p.pause == nil {
		return nil
	}
	err := p.pause.end()
	p.pause = nil
	if err != nil {
		return fmt.Errorf("pgtest: resume: %w", err)
	}
	return nil
}

// Exec runs SQL commands in a database, "" for the database postgres, through a connection of its own,
// and returns the rows as psql prints them: a line for each, with | between the columns.
func (s *Server) Exec(ctx context.Context, database, sql string) (string, error) {
	return s.run(ctx, s.inst.path("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql, s.URL(database))
}

// run runs a program as the user of the server, and returns what it prints.
func (s *Server) run(ctx context.Context, name string, args ...string) (string, error) {
	return s.inst.run(ctx, s.dir, name, args...)
}

// Close kills the server and its standbys and removes their data. They cannot be started any more. A
// second Close does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true // nothing starts any more
	standbys := s.standbys
	s.mu.Unlock()
	var err error
	for _, standby := range standbys {
		err = errors.Join(err, standby.Close())
	}
	s.Kill()
	s.releaseMemory()
	s.done()
	return errors.Join(err, os.RemoveAll(s.dir))
}

// releaseMemory removes the segment of System V shared memory that a killed server leaves. It has a
// few bytes, but their number is limited.
func (s *Server) releaseMemory() {
	text, err := os.ReadFile(filepath.Join(s.data, "postmaster.pid"))
	if err != nil {
		return // the server removed it when it stopped
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return
	}
	if _, id, ok := strings.Cut(strings.TrimSpace(lines[6]), " "); ok {
		ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
		defer cancel()
		_, _ = s.run(ctx, "ipcrm", "-m", strings.TrimSpace(id)) // without the program the segment stays
	}
}
