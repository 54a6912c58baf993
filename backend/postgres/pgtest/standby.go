package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// StandbyOptions are the settings of a standby. Nil means the defaults.
type StandbyOptions struct {
	// Settings are lines of postgresql.conf, which override those of the primary.
	Settings map[string]string

	// Env is added to the environment of the standby, as KEY=value. Rebuild does not change it.
	Env []string

	// Synchronous makes the commits of the primary wait until the standby has written them, and
	// those of all other synchronous standbys have.
	Synchronous bool
}

// Standby makes a copy of the server that follows it by streaming replication, and returns when it
// does. The standby has a replication slot, so that it catches up after any pause. The server's Close
// closes the standby, also after its promotion; its own Close may be called before. A standby can have
// standbys.
func (s *Server) Standby(ctx context.Context, o *StandbyOptions) (*Server, error) {
	var opts StandbyOptions
	if o != nil {
		opts = *o
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	standby, err := newServer(s.inst, "")
	if err != nil {
		return nil, err
	}
	standby.env = opts.Env
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errors.Join(errClosed, standby.Close())
	}
	s.standbys = append(s.standbys, standby)
	s.mu.Unlock()
	if err := s.follow(ctx, standby, opts); err != nil {
		return nil, errors.Join(err, standby.Close())
	}
	return standby, nil
}

// Rebuild kills the server, and makes it a standby of another one: its data are replaced by a copy. The
// address stays, and so does the directory of the data, which can be a mount point. A former primary
// follows the one that was promoted instead of it.
func (s *Server) Rebuild(ctx context.Context, primary *Server, o *StandbyOptions) error {
	var opts StandbyOptions
	if o != nil {
		opts = *o
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	s.Kill()
	s.releaseMemory()
	files, err := os.ReadDir(s.data)
	for _, f := range files {
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.data, f.Name())))
	}
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	s.mu.Lock()
	s.synchronous = nil // those that followed it
	s.mu.Unlock()
	return primary.follow(ctx, s, opts)
}

// follow copies the data of the server to a standby, and starts that.
func (s *Server) follow(ctx context.Context, standby *Server, o StandbyOptions) error {
	s.mu.Lock()
	s.standbyCount++
	name := fmt.Sprintf("standby%d", s.standbyCount)
	s.mu.Unlock()
	_, err := standby.run(ctx, s.inst.path("pg_basebackup"), "-D", standby.data, "-d", s.URL("")+"&application_name="+name,
		"-R", "-X", "stream", "-C", "-S", name, "-c", "fast", "--no-sync")
	if err != nil {
		return err
	}
	if err := standby.startFirst(ctx, o.Settings); err != nil {
		return err
	}
	if err := s.replicates(ctx, name, "state", "streaming"); err != nil || !o.Synchronous {
		return err
	}
	s.mu.Lock()
	s.synchronous = append(s.synchronous, name)
	names := fmt.Sprintf("FIRST %d (%s)", len(s.synchronous), strings.Join(s.synchronous, ", "))
	err = s.set(map[string]string{"synchronous_standby_names": names})
	if err == nil && s.proc.alive() {
		err = s.proc.cmd.Process.Signal(syscall.SIGHUP)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.replicates(ctx, name, "sync_state", "sync")
}

// replicates waits until a column of pg_stat_replication has a value for a standby.
func (s *Server) replicates(ctx context.Context, name, column, want string) error {
	return s.until(ctx, func() error {
		got, err := s.Exec(ctx, "", fmt.Sprintf("SELECT %s FROM pg_stat_replication WHERE application_name = '%s'", column, name))
		if err == nil && got != want {
			err = fmt.Errorf("the %s of %s is %q, want %q", column, name, got, want)
		}
		return err
	})
}

// Promote makes a standby a primary, on a new timeline, and returns when it accepts writes. The former
// primary is not changed: kill, stop or pause it before, or there are two.
func (s *Server) Promote(ctx context.Context) error {
	got, err := s.Exec(ctx, "", fmt.Sprintf("SELECT pg_promote(true, %d)", int(startLimit.Seconds())))
	if err == nil && got != "t" {
		err = fmt.Errorf("pgtest: the standby at %s was not promoted within %v; end of its log:\n%s", s.Addr(), startLimit, s.LogTail())
	}
	return err
}
