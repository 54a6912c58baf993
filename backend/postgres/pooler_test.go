//go:build unix

package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"

	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zktest"
)

// poolMode says for how long a client of a pool keeps a connection of the server.
type poolMode string

const (
	sessionMode     poolMode = "session"
	transactionMode poolMode = "transaction"
)

// pool is a PgBouncer in front of a server.
type pool struct {
	tb   testing.TB
	addr string
	log  string // a file
}

// newPool starts a PgBouncer that has at most size connections of the server for each user and database, and ends it after
// the test. settings are further lines of its configuration. Like pgtest.Require it skips the test if the program is missing.
func newPool(tb testing.TB, server string, mode poolMode, size int, settings ...string) *pool {
	tb.Helper()
	program := findPgBouncer(tb)
	dir, err := os.MkdirTemp("", "coord-pgbouncer-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil { // for the user that it runs as
		tb.Fatal(err)
	}
	users := filepath.Join(dir, "users")
	if err := os.WriteFile(users, []byte(`"postgres" ""`+"\n"), 0o644); err != nil {
		tb.Fatal(err)
	}
	// Another program can take a port between the choice and the start.
	for attempt := 1; ; attempt++ {
		ports, err := zktest.FreePorts(1)
		if err != nil {
			tb.Fatal(err)
		}
		p := &pool{tb: tb, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0])), log: filepath.Join(dir, "log"+strconv.Itoa(attempt))}
		host, port, err := net.SplitHostPort(server)
		if err != nil {
			tb.Fatal(err)
		}
		config := filepath.Join(dir, "pgbouncer.ini")
		lines := append([]string{
			"[databases]", "missing = host=" + host + " port=" + port, "postgres = host=" + host + " port=" + port, "[pgbouncer]",
			"listen_addr = 127.0.0.1", "listen_port = " + strconv.Itoa(ports[0]), "unix_socket_dir =",
			"auth_type = trust", "auth_file = " + users, "admin_users = postgres",
			"pool_mode = " + string(mode), "default_pool_size = " + strconv.Itoa(size), "max_client_conn = 1000",
		}, settings...)
		if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			tb.Fatal(err)
		}
		if p.start(program, config) {
			return p
		}
		if log := p.logText(); attempt == 5 || !strings.Contains(log, "Address already in use") {
			tb.Fatalf("PgBouncer did not start; its log:\n%s", log)
		}
	}
}

// findPgBouncer returns the path of the program.
func findPgBouncer(tb testing.TB) string {
	tb.Helper()
	pgtest.Require(tb)
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/pgbouncer") // not in the PATH of all users
	}
	if err == nil {
		return path
	}
	const missing = "PgBouncer is not installed (Debian, Ubuntu: apt-get install pgbouncer)"
	if os.Getenv("COORD_REQUIRE_ZK") == "1" {
		tb.Fatalf("COORD_REQUIRE_ZK=1: %s", missing)
	}
	tb.Skip(missing)
	return ""
}

// start starts the program, which is ended after the test. It returns false if the program ended instead of listening.
func (p *pool) start(program, config string) bool {
	log, err := os.Create(p.log)
	if err != nil {
		p.tb.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, config)
	cmd.Stdout, cmd.Stderr = log, log
	if os.Geteuid() == 0 { // PgBouncer refuses to run as root
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: unprivileged(p.tb)}
	}
	exited, err := proc.Launch(cmd, nil)
	if err != nil {
		p.tb.Fatal(err)
	}
	p.tb.Cleanup(func() {
		_ = cmd.Process.Kill() // fails only if it has ended
		<-exited
		if p.tb.Failed() {
			p.tb.Logf("end of the log of PgBouncer at %s:\n%s", p.addr, p.logText())
		}
	})
	limit := time.Now().Add(time.Minute)
	for {
		conn, err := net.Dial("tcp", p.addr)
		if err == nil {
			conn.Close()
			return true
		}
		if time.Now().After(limit) {
			p.tb.Fatalf("PgBouncer does not listen; its log:\n%s", p.logText())
		}
		select {
		case <-exited:
			return false
		case <-time.After(5 * time.Millisecond): // nothing signals it
		}
	}
}

// unprivileged returns the user that the servers of pgtest run as.
func unprivileged(tb testing.TB) *syscall.Credential {
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			tb.Fatal(err)
		}
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		tb.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// logText returns the end of the log, at most 40 lines.
func (p *pool) logText() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-40):], []byte("\n")))
}

// url is the connection string through the pool.
func (p *pool) url() string { return pgtest.URL(p.addr, "") }

// ask runs SQL through the pool in a database, and returns the first column of the rows.
func (p *pool) ask(database, sql string) []string {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgconn.Connect(ctx, pgtest.URL(p.addr, database))
	if err != nil {
		p.tb.Fatal(err)
	}
	defer conn.Close(ctx)
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		p.tb.Fatalf("%s: %v", sql, err)
	}
	var column []string
	for _, r := range results {
		for _, row := range r.Rows {
			column = append(column, string(row[0]))
		}
	}
	return column
}

// admin runs a command of the admin console.
func (p *pool) admin(command string) {
	p.tb.Helper()
	p.ask("pgbouncer", command)
}

// newPooledService returns a service whose links lead through a pool.
func newPooledService(t testing.TB, server string, p *pool, o postgres.Options) *service {
	s := newService(t, server, o)
	s.pool = p.addr
	return s
}

// onEach runs SQL on n connections of the server at a time, which the pool opens as far as needed. It returns the first columns.
func (p *pool) onEach(n int, sql string) (column []string) {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range n { // each keeps its connection of the server until all have one
		conn, err := pgconn.Connect(ctx, p.url())
		if err != nil {
			p.tb.Fatal(err)
		}
		defer func() {
			if err := errors.Join(conn.Exec(ctx, "ROLLBACK").Close(), conn.Close(ctx)); err != nil { // else the pool closes it
				p.tb.Error(err)
			}
		}()
		results, err := conn.Exec(ctx, "BEGIN; "+sql).ReadAll()
		if err != nil {
			p.tb.Fatal(err)
		}
		for _, row := range results[len(results)-1].Rows {
			column = append(column, string(row[0]))
		}
	}
	return column
}

// Without Options.Poll Open refuses a pool in transaction mode, and leaves no settings on its connections.
func TestPooler_TransactionModeNeedsPoll(t *testing.T) {
	t.Parallel()
	server := shared.Get(t).Addr()
	const size = 3
	for name, settings := range map[string][]string{"the same connection again": nil, "another connection": {"server_round_robin = 1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPool(t, server, transactionMode, size, settings...)
			p.onEach(size, "SELECT 1")
			s := newPooledService(t, server, p, postgres.Options{})
			for range 2 { // the second time on connections that have seen the first
				session, err := s.Link("a").Open(t.Context())
				if err == nil {
					session.Close()
				}
				if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "Options.Poll") {
					t.Fatalf("Open: %v", err)
				}
			}
			got := p.onEach(size, "SELECT name FROM pg_settings WHERE name IN ('lock_timeout', 'enable_seqscan') AND source <> 'default' UNION ALL SELECT name FROM pg_prepared_statements")
			if len(got) > 0 {
				t.Errorf("the connections of the pool have %q", got)
			}
		})
	}
}

// A pool in session mode passes notifications on. It can leave what the client before has prepared.
func TestPooler_SessionMode(t *testing.T) {
	t.Parallel()
	server := shared.Get(t).Addr()
	p := newPool(t, server, sessionMode, 3, "server_reset_query =")
	s := newPooledService(t, server, p, postgres.Options{SessionTimeout: 20 * time.Second})
	for range 3 {
		a, err := s.Link("a").Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.Link("b").Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seesEvent(t, a, b)
		seesEvent(t, b, a)
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	}
}

// seesEvent checks that a watch of one session fires when the other one creates a node.
func seesEvent(t *testing.T, watching, acting backend.Session) {
	t.Helper()
	w := backend.NewWatch()
	path := fmt.Sprintf("/seen%d", schemas.Add(1))
	if _, err := watching.Exists(t.Context(), path, w); !errors.Is(err, backend.ErrNotFound) {
		t.Fatalf("Exists: %v", err)
	}
	if _, err := acting.Commit(t.Context(), backend.Create(path, nil, backend.Ephemeral)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.Fired():
	case <-watching.Done():
		t.Fatal(watching.Err())
	case <-time.After(time.Minute):
		t.Fatal("the watch did not fire within a minute")
	}
}

// Open tells at once what a pool refuses for good.
func TestPooler_RefusalsAreTyped(t *testing.T) {
	t.Parallel()
	server := shared.Get(t).Addr()
	p := newPool(t, server, transactionMode, 3)
	for _, c := range []struct {
		name, url string
		want      error
		message   string
	}{
		{"a setting", p.url() + "&search_path=x", backend.ErrInvalid, "unsupported startup parameter: search_path"},
		{"options", p.url() + "&options=-c%20statement_timeout%3D5", backend.ErrInvalid, "unsupported startup parameter: options"},
		{"a database that the pool lacks", pgtest.URL(p.addr, "none"), backend.ErrInvalid, "no such database"},
		{"a database that the server lacks", pgtest.URL(p.addr, "missing"), backend.ErrInvalid, "does not exist"},
		{"a user", strings.Replace(p.url(), "postgres@", "other@", 1), backend.ErrDenied, "authentication failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := postgres.New(c.url, &postgres.Options{Poll: time.Second}).Open(t.Context())
			if err == nil {
				s.Close()
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.message) {
				t.Errorf("Open: %v", err)
			}
		})
	}
	// These settings are those that PgBouncer sets itself on the connections of the server.
	s, err := postgres.New(p.url()+"&application_name=me&timezone=UTC&client_encoding=UTF8", &postgres.Options{Poll: time.Second, Schema: "refusals"}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
