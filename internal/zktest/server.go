package zktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/proc"
)

// A Server is one ZooKeeper process and its data. Its methods are safe for
// concurrent use.
type Server struct {
	ensemble *Ensemble
	inst     installation
	id       int
	dir      string
	ports    portSet
	tls      bool
	javaArgs []string
	env      []string
	dataDir  string // "": in dir

	mu   sync.Mutex
	proc *process // the latest; nil before the first
}

type process struct {
	cmd    *exec.Cmd
	exited <-chan struct{}
	paused bool // guarded by Server.mu
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

// ID is the server's number in the ensemble, from 1.
func (s *Server) ID() int { return s.id }

// Addr is the address for clients, "127.0.0.1:port". It does not change on a restart.
func (s *Server) Addr() string { return loopback(s.ports.client) }

// SecureAddr is the address for clients with TLS. Without Options.TLS nothing listens there.
func (s *Server) SecureAddr() string { return loopback(s.ports.secure) }

// DataDir is the server's dataDir. It does not change on a restart.
func (s *Server) DataDir() string {
	if s.dataDir != "" {
		return s.dataDir
	}
	return filepath.Join(s.dir, "data")
}

// LogFile is the file that the server logs to. A restart appends to it.
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

// Pid returns the process id of the server, or 0 if it is not alive.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proc.alive() {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Alive reports whether the process runs. A paused process is alive.
func (s *Server) Alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.alive()
}

// Launch starts the process if it is not alive, and does not wait until it serves. Use it
// with Ensemble.Await when a majority is down.
func (s *Server) Launch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc.alive() {
		return nil
	}
	s.ensemble.starting.RLock()
	defer s.ensemble.starting.RUnlock()
	if s.ensemble.closed {
		return errClosed // the directory is deleted
	}
	if err := s.removeUnbegunLogs(); err != nil {
		return fmt.Errorf("zktest: %w", err)
	}
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("zktest: %w", err)
	}
	defer log.Close()
	cmd := s.command()
	cmd.Stdout, cmd.Stderr = log, log
	exited, err := proc.Launch(cmd, nil)
	if err != nil {
		return fmt.Errorf("zktest: start server %d: %w", s.id, err)
	}
	s.proc = &process{cmd: cmd, exited: exited}
	return nil
}

// removeUnbegunLogs removes the logs without a complete header, which have no transaction. A server
// that is killed while it begins a log leaves one. ZooKeeper up to 3.9.2 does not start with it
// (ZOOKEEPER-2332), and an operator deletes it.
func (s *Server) removeUnbegunLogs() error {
	const header = 16 // bytes
	files, err := filepath.Glob(filepath.Join(s.DataDir(), "version-2", "log.*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err == nil && info.Size() < header {
			err = os.Remove(file)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Kill ends the process at once (SIGKILL) and returns when it has ended. It
// does nothing if the process is not alive.
func (s *Server) Kill() {
	s.signal(os.Kill)
	s.waitExit()
}

// Pause stops the process (SIGSTOP): its connections stay open and it does not answer. Pause
// returns when every thread has stopped (on Linux), since threads continue for a while after the
// signal on a busy machine. Kill, Restart and Close work on a paused server too.
func (s *Server) Pause() error { return s.setPaused(true) }

// Resume continues a paused process (SIGCONT).
func (s *Server) Resume() error { return s.setPaused(false) }

func (s *Server) setPaused(paused bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.proc.alive() {
		return fmt.Errorf("zktest: server %d is not alive", s.id)
	}
	sig := sigCont
	if paused {
		sig = sigStop
	}
	if err := s.proc.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("zktest: server %d: %w", s.id, err)
	}
	s.proc.paused = paused
	for pid := s.proc.cmd.Process.Pid; paused && s.proc.alive() && !stopped(pid); {
		time.Sleep(time.Millisecond) // there is no signal for it
	}
	return nil
}

// Paused reports whether the server is alive and paused.
func (s *Server) Paused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.alive() && s.proc.paused
}

// Restart kills the process if it is alive, starts it again with its data and ports, and
// returns when it serves clients. In an ensemble that needs a majority; see Launch.
func (s *Server) Restart(ctx context.Context) error {
	s.Kill()
	if err := s.Launch(); err != nil {
		return err
	}
	return s.Await(ctx)
}

// Await returns when the server serves clients. It fails at once if the
// process ends.
func (s *Server) Await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return s.await(ctx, false)
}

// await waits for the server. first means that its ports have not been used before, so a port
// that is taken does not become free by waiting.
func (s *Server) await(ctx context.Context, first bool) error {
	for {
		err := s.serving(ctx)
		if err == nil {
			return nil
		}
		if !s.Alive() {
			err = fmt.Errorf("it ended: %s", s.exitState())
		} else if cause := pause(ctx); cause != nil {
			err = errors.Join(cause, err)
		} else if !first || !s.ensemble.portTaken() {
			continue
		}
		if first && s.ensemble.portTaken() {
			err = fmt.Errorf("%w: %w", errPortTaken, err)
		}
		return fmt.Errorf("zktest: server %d at %s does not serve: %w; end of its log:\n%s", s.id, s.Addr(), err, s.LogTail())
	}
}

// serving returns nil if this server, and not another one on its port, answers and has a
// role.
func (s *Server) serving(ctx context.Context) error {
	if _, err := s.Role(ctx); err != nil {
		return err
	}
	conf, err := s.FourLetter(ctx, "conf")
	if err != nil {
		return err
	}
	if !strings.Contains(conf, "dataDir="+s.DataDir()+string(filepath.Separator)) {
		return fmt.Errorf("another server answers: %w", errPortTaken)
	}
	if !s.tls {
		return nil
	}
	// The server opens the port with TLS after the plain one.
	conn, err := dial(ctx, s.SecureAddr())
	if err != nil {
		return err
	}
	return conn.Close()
}

func (s *Server) exitState() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.alive() {
		return "not started"
	}
	return s.proc.cmd.ProcessState.String()
}

// signal sends sig if the process is alive. It is not an error if the process has ended
// meanwhile.
func (s *Server) signal(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc.alive() {
		_ = s.proc.cmd.Process.Signal(sig)
	}
}

func (s *Server) waitExit() {
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p != nil {
		<-p.exited
	}
}
