package fence_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zktest"
)

// mariaServer is one MariaDB for all tests of the package, on a socket in a temporary directory. The zero value is ready.
type mariaServer struct {
	once sync.Once
	dir  string
	cmd  *exec.Cmd
	end  <-chan struct{}
	err  error
}

// dsn returns the address of the server, which the first call starts.
func (s *mariaServer) dsn(t *testing.T) string {
	t.Helper()
	server, err := exec.LookPath("mariadbd")
	if err != nil {
		if server, err = exec.LookPath("/usr/sbin/mariadbd"); err != nil {
			zktest.Missing(t, errors.New("MariaDB is not installed: install mariadb-server-core and mariadb-client-core (Debian, Ubuntu)"))
		}
	}
	s.once.Do(func() { s.err = s.start(server) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return "root@unix(" + s.socket() + ")/fence"
}

func (s *mariaServer) socket() string { return filepath.Join(s.dir, "socket") }

func (s *mariaServer) start(server string) (err error) {
	if s.dir, err = os.MkdirTemp("", "coord-maria-"); err != nil {
		return err
	}
	data := filepath.Join(s.dir, "data")
	prepare := func(cmd *exec.Cmd) {}
	if os.Geteuid() == 0 { // it does not run as root
		nobody, err := user.Lookup("nobody")
		if err != nil {
			return err
		}
		uid, err := strconv.Atoi(nobody.Uid)
		if err != nil {
			return err
		}
		gid, err := strconv.Atoi(nobody.Gid)
		if err != nil {
			return err
		}
		if err := os.Chown(s.dir, uid, gid); err != nil {
			return err
		}
		prepare = func(cmd *exec.Cmd) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		}
	}
	// Nothing of the machine's configuration applies. A transaction that waits for a lock waits for as long as its test.
	settings := []string{"--no-defaults", "--datadir=" + data, "--tmpdir=" + s.dir, "--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M",
		"--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=300", "--performance-schema=0"}
	install := exec.Command("mariadb-install-db", append(settings, "--auth-root-authentication-method=normal", "--skip-test-db")...)
	install.Dir = s.dir
	prepare(install)
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("mariadb-install-db: %w\n%s", err, out)
	}
	var log bytes.Buffer
	s.cmd = exec.Command(server, append(settings, "--socket="+s.socket(), "--skip-networking", "--skip-log-bin", "--max-connections=300", "--pid-file="+filepath.Join(s.dir, "pid"))...)
	s.cmd.Dir = s.dir
	s.cmd.Stdout, s.cmd.Stderr = &log, &log
	prepare(s.cmd)
	if s.end, err = proc.Launch(s.cmd, nil); err != nil {
		return err
	}
	db, err := sql.Open("mysql", "root@unix("+s.socket()+")/")
	if err != nil {
		return err
	}
	defer db.Close()
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err = db.Exec("CREATE DATABASE fence"); err == nil {
			return nil
		}
		select {
		case <-s.end:
			return fmt.Errorf("mariadbd has ended: %w\n%s", err, &log)
		case <-time.After(20 * time.Millisecond): // the server gives no signal when it is ready
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// main wraps the argument of TestMain so that the server ends after the tests have run.
func (s *mariaServer) main(m interface{ Run() int }) *mariaMain { return &mariaMain{s, m} }

type mariaMain struct {
	s *mariaServer
	m interface{ Run() int }
}

func (r *mariaMain) Run() int {
	code := r.m.Run()
	if r.s.end != nil {
		r.s.cmd.Process.Kill()
		<-r.s.end
	}
	os.RemoveAll(r.s.dir)
	return code
}
