//go:build unix

package postgres_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zktest"
)

// poolMode is for how long a client of a pool keeps a connection of the server.
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
			// After a connection to the server that failed, or was closed while it was made, no other one is made for 15 s by default.
			"server_login_retry = 0.1",
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
	if err != nil {
		zktest.Missing(tb, errors.New("PgBouncer is not installed (Debian, Ubuntu: apt-get install pgbouncer)"))
	}
	return path
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

// Notifications arrive through a pool in session mode. Statements that an earlier client has prepared do no harm.
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

// Open returns at once if a pool refuses it for good.
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
	// PgBouncer accepts these settings, and makes them on the connections of the server.
	s, err := postgres.New(p.url()+"&application_name=me&timezone=UTC&client_encoding=UTF8", &postgres.Options{Poll: time.Second, Schema: "refusals"}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The contract through a pool in transaction mode, with COORD_LONG=1 only. Five processes take part in each reply, so on a busy machine
// keep-alives need a longer timeout than without the pool: watches fire with LookAgain where contact breaks.
func TestPooler_TheContract(t *testing.T) {
	coordtest.OnlyLong(t)
	t.Parallel()
	server := shared.Get(t).Addr()
	p := newPool(t, server, transactionMode, 8)
	const timeout = 10 * time.Second
	backendtest.Run(t, backendtest.Harness{
		SessionTimeout: timeout,
		Parallel:       true,
		Collects:       true,
		New: func(t *testing.T) backendtest.Service {
			return newPooledService(t, server, p, postgres.Options{SessionTimeout: timeout, ContainerInterval: 200 * time.Millisecond, Poll: 100 * time.Millisecond})
		},
	})
}

// A pool hides from its clients that a copy has replaced the files of the server. A session that has seen what is lost ends at its next
// request, and no commit of it is applied. Another session continues.
func TestPooler_RestoredFiles(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"fsync": "off"}})
	p := newPool(t, server.Addr(), transactionMode, 3)
	b := postgres.New(p.url(), &postgres.Options{SessionTimeout: 5 * time.Minute, Poll: time.Minute}) // requests of the sessions themselves are rare
	reader, writer, idle, leaver := opened(t, b), opened(t, b), opened(t, b), opened(t, b)
	restart(t, server, func() { backUp(t, server) })
	create(t, writer, "/lost", backend.Persistent)
	if _, err := reader.Exists(t.Context(), "/lost", nil); err != nil {
		t.Fatal(err)
	}
	restart(t, server, func() { restore(t, server) })
	if err := leaver.Close(); err != nil {
		t.Error(err)
	}
	if n, err := server.Exec(t.Context(), "", fmt.Sprint("SELECT count(*) FROM coord.session WHERE id = ", leaver.ID())); err != nil || n != "0" {
		t.Errorf("a session that was closed there: %s rows, %v", n, err)
	}
	if _, err := reader.Exists(t.Context(), "/lost", nil); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("a read of a session that has seen what is lost: %v", err)
	}
	// By now the server has the next epoch.
	if _, err := writer.Commit(t.Context(), backend.Create("/after", nil, backend.Persistent)); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("a commit of a session that has seen what is lost: %v", err)
	}
	if _, err := idle.Exists(t.Context(), "/after", nil); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("a session that has seen nothing of what is lost: %v", err)
	}
}

// crowd is the clients of one pool, which contend for a lock and a queue.
type crowd struct {
	*shop
	clients  []*coord.Client
	sessions []backend.Session
	done     chan struct{} // closed when the clients shall finish
	work     sync.WaitGroup

	mu     sync.Mutex
	holder int   // the client that has the lock, from 1; 0: none
	token  int64 // of the latest hold
	holds  []int // of each client
	acks   []int // of each client
	taken  map[string]bool
}

// newCrowd opens n clients and lets them work.
func newCrowd(sh *shop, n int) *crowd {
	c := &crowd{shop: sh, done: make(chan struct{}), holds: make([]int, n), acks: make([]int, n), taken: make(map[string]bool)}
	for range n {
		client, err := coord.Open(sh.ctx, postgres.New(pgtest.URL(cmp.Or(sh.pool, sh.server), ""), &sh.opts), nil)
		if err != nil {
			sh.tb.Fatal(err)
		}
		sh.tb.Cleanup(func() { client.Close() })
		session, err := client.Session(sh.ctx)
		if err != nil {
			sh.tb.Fatal(err)
		}
		c.clients, c.sessions = append(c.clients, client), append(c.sessions, session)
	}
	for i, client := range c.clients {
		lock, queue := coord.NewMutex(client, "/lock", nil), coord.NewQueue[string](client, "/queue", nil)
		for name, step := range map[string]func() error{
			"lock":  func() error { return c.lock(i, lock) },
			"queue": func() error { return c.queue(i, queue) },
		} {
			c.work.Go(func() {
				for {
					select {
					case <-c.done:
						return
					default:
					}
					if err := step(); err != nil {
						sh.tb.Errorf("client %d, %s: %v", i, name, err)
						return
					}
				}
			})
		}
	}
	return c
}

// lock takes the lock once.
func (c *crowd) lock(i int, lock *coord.Mutex) error {
	h, err := lock.Lock(c.ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if c.holder != 0 || h.Token() <= c.token {
		err = fmt.Errorf("token %d after %d, while client %d has the lock", h.Token(), c.token, c.holder-1)
	}
	c.holder, c.token = i+1, h.Token()
	c.mu.Unlock()
	err = errors.Join(err, h.Verify(c.ctx))
	c.mu.Lock()
	c.holder = 0
	c.holds[i]++
	c.mu.Unlock()
	return errors.Join(err, h.Release())
}

// queue puts an item and takes one, so that none waits for ever.
func (c *crowd) queue(i int, queue *coord.Queue[string]) error {
	if _, err := queue.Put(c.ctx, "from "+strconv.Itoa(i)); err != nil {
		return err
	}
	item, err := queue.Take(c.ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	twice := c.taken[item.ID]
	c.taken[item.ID] = true
	c.mu.Unlock()
	if twice {
		return fmt.Errorf("item %s was delivered twice", item.ID)
	}
	if err := item.Ack(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acks[i]++
	return nil
}

// progress waits until each client has had the lock and taken an item once more.
func (c *crowd) progress(when string) {
	c.tb.Helper()
	c.mu.Lock()
	holds, acks := slices.Clone(c.holds), slices.Clone(c.acks)
	c.mu.Unlock()
	err := c.eventually("each client makes progress "+when, func() (bool, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := range holds {
			if c.holds[i] <= holds[i] || c.acks[i] <= acks[i] {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		c.tb.Fatal(err)
	}
}

// finish ends the work, and checks that no session was lost and no item is left.
func (c *crowd) finish() {
	c.tb.Helper()
	close(c.done)
	c.work.Wait()
	for i, client := range c.clients {
		session, err := client.Session(c.ctx)
		if err != nil || session.ID() != c.sessions[i].ID() {
			c.tb.Errorf("client %d lost its session: %v, %v", i, c.sessions[i].Err(), err)
		}
	}
	n, err := coord.NewQueue[string](c.clients[0], "/queue", nil).Len(c.ctx)
	if n != 0 || err != nil {
		c.tb.Errorf("the queue has %d items, %v", n, err)
	}
	var holds, acks int
	for i := range c.holds {
		holds, acks = holds+c.holds[i], acks+c.acks[i]
	}
	if acks != len(c.taken) {
		c.tb.Errorf("%d items were taken, %d acknowledged", len(c.taken), acks)
	}
	c.tb.Logf("figure: %d clients: %d holds, %d items", len(c.clients), holds, acks)
}

// More clients than the pool has connections keep their sessions, however long a transaction keeps them from committing, and
// whatever the pool does with its connections.
func TestPooler_ManyClientsOnFewConnections(t *testing.T) {
	t.Parallel()
	server := shared.Get(t).Addr()
	rounds, n, timeout := 1, 10, 12*time.Second
	settings := []string{"server_lifetime = 1"}
	if os.Getenv("COORD_LONG") != "" {
		rounds, n = 4, 24
		settings = append(settings, "server_reset_query_always = 1")
	}
	p := newPool(t, server, transactionMode, 4, settings...)
	sh := newBareShop(t, newPooledService(t, server, p, postgres.Options{SessionTimeout: timeout, Poll: 50 * time.Millisecond}), "15s")
	c := newCrowd(sh, n)
	c.progress("at first")
	for range rounds {
		c.besideGuard()
		c.besideTurn(timeout * 5 / 6) // longer than a lease
		p.admin("RECONNECT")
		c.progress("on new connections")
		p.admin("PAUSE")
		time.Sleep(timeout / 8) // the length of the fault
		p.admin("RESUME")
		c.progress("after a pause")
	}
	c.finish()
}

// besideGuard has a transaction of a user with the guard of a hold that is released meanwhile.
func (c *crowd) besideGuard() {
	c.tb.Helper()
	h, err := coord.NewMutex(c.clients[0], "/guarded", nil).Lock(c.ctx)
	if err != nil {
		c.tb.Fatal(err)
	}
	tx, err := c.conn().Begin(c.ctx)
	if err != nil {
		c.tb.Fatal(err)
	}
	if err := postgres.Check(c.ctx, tx, h.Guard(), &postgres.CheckOptions{Schema: c.opts.Schema, Idle: -1}); err != nil {
		c.tb.Fatal(err)
	}
	released := make(chan error, 1)
	go func() { released <- h.Release() }()
	c.progress("beside a transaction with a guard")
	select {
	case err := <-released:
		c.tb.Errorf("the release did not wait for the transaction: %v", err)
		released <- err
	default:
	}
	if err := tx.Commit(c.ctx); err != nil {
		c.tb.Error(err)
	}
	if err := <-released; err != nil {
		c.tb.Errorf("Release: %v", err)
	}
}

// besideTurn has a transaction of a user that keeps the turn for a time.
func (c *crowd) besideTurn(d time.Duration) {
	c.tb.Helper()
	tx, err := c.conn().Begin(c.ctx)
	if err != nil {
		c.tb.Fatal(err)
	}
	if _, err := tx.Exec(c.ctx, c.sql("SELECT {s}.take_turn()")); err != nil {
		c.tb.Fatal(err)
	}
	time.Sleep(d) // the length of the fault
	if err := tx.Commit(c.ctx); err != nil {
		c.tb.Error(err)
	}
	c.progress("after a transaction that kept the turn")
}

// value returns the value of a query.
func value[T any](sh *shop, query string) T {
	sh.tb.Helper()
	v, err := ask[T](sh, query)
	if err != nil {
		sh.tb.Fatalf("%s: %v", query, err)
	}
	return v
}

// open opens a session with a timeout on a link.
func (sh *shop) open(b backend.Backend) backend.Session {
	sh.tb.Helper()
	s, err := b.Open(sh.ctx)
	if err != nil {
		sh.tb.Fatal(err)
	}
	sh.tb.Cleanup(func() { s.Close() })
	return s
}

// polling returns the backend for sessions that poll, beside those of the links, which listen.
func (sh *shop) polling(poll, timeout time.Duration) backend.Backend {
	o := sh.opts
	o.Poll, o.SessionTimeout = poll, timeout
	return postgres.New(pgtest.URL(sh.server, ""), &o)
}

// Sessions that listen and sessions that poll see the events of each other. Events are stored only while a session polls.
func TestPolling_BesideListening(t *testing.T) {
	t.Parallel()
	sh := newBareShop(t, newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: 20 * time.Second}), "15s")
	listening := sh.open(sh.link("listening"))
	stored := func() bool {
		before := value[int64](sh, "SELECT coalesce(max(zxid), 0) FROM {s}.change")
		if _, err := listening.Commit(t.Context(), backend.SetData("/", nil, -1)); err != nil {
			t.Fatal(err)
		}
		return value[int64](sh, "SELECT coalesce(max(zxid), 0) FROM {s}.change") > before
	}
	if stored() {
		t.Error("events are stored though no session polls")
	}
	a, b := sh.open(sh.polling(10*time.Millisecond, 20*time.Second)), sh.open(sh.polling(10*time.Millisecond, 20*time.Second))
	for _, p := range [][2]backend.Session{{listening, a}, {a, listening}, {a, b}} {
		seesEvent(t, p[0], p[1])
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if !stored() {
		t.Error("no events are stored though a session polls")
	}
	seesEvent(t, b, listening)

	// The last session that polls learns of its end.
	w := backend.NewWatch()
	if _, err := b.Exists(t.Context(), "/never", w); !errors.Is(err, backend.ErrNotFound) {
		t.Fatal(err)
	}
	if gone, err := sh.finish(b.ID()); err != nil || !gone {
		t.Fatal(gone, err)
	}
	if got := value[string](sh, "SELECT events[1] FROM {s}.change ORDER BY zxid DESC LIMIT 1"); got != fmt.Sprintf("x%d", b.ID()) {
		t.Errorf("the last event stored is %q", got)
	}
	if stored() {
		t.Error("events are stored though the last session that polls has ended")
	}
	<-b.Done()
	if !errors.Is(b.Err(), backend.ErrSessionLost) {
		t.Errorf("the session ended with %v", b.Err())
	}
}

// A request for events that waits for a lock is made again. The session keeps its connection.
func TestPolling_ALockedTable(t *testing.T) {
	t.Parallel()
	sh := newBareShop(t, newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: 20 * time.Second}), "15s")
	s := sh.open(sh.polling(10*time.Millisecond, 20*time.Second))
	_, changed := s.Status()
	tx, err := sh.conn().Begin(sh.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(sh.ctx, sh.sql("LOCK TABLE {s}.change")); err != nil {
		t.Fatal(err)
	}
	w := backend.NewWatch()
	if _, err := s.Exists(t.Context(), "/seen", w); !errors.Is(err, backend.ErrNotFound) {
		t.Fatal(err)
	}
	waits := make(map[string]bool) // each request that waits, by when it began
	err = sh.eventually("a third request waits", func() (bool, error) {
		began, err := ask[*string](sh, `SELECT min(query_start)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '/*k_events*/%"{s}".%'`)
		if began != nil {
			waits[*began] = true
		}
		return len(waits) == 3, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(sh.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), backend.Create("/seen", nil, backend.Persistent)); err != nil {
		t.Fatal(err)
	}
	<-w.Fired()
	select {
	case <-changed:
		t.Error("the session lost its connection")
	default:
	}
}

// A session that polls and expires ends the storing of events too.
func TestPolling_EndsWithTheSession(t *testing.T) {
	t.Parallel()
	sh := newBareShop(t, newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: time.Second, Poll: 10 * time.Millisecond}), "15s")
	gone := sh.open(sh.link("gone"))
	o := sh.opts
	o.Poll = 0
	sh.open(postgres.New(pgtest.URL(sh.server, ""), &o)) // ends sessions that have expired
	if !value[bool](sh, "SELECT polled FROM {s}.clock") {
		t.Error("polled is false though a session polls")
	}
	sh.link("gone").Partition()
	<-gone.Done()
	if err := sh.eventually("polled is false again", func() (bool, error) { return ask[bool](sh, "SELECT NOT polled FROM {s}.clock") }); err != nil {
		t.Error(err)
	}
}

// Of the events only the latest are stored. All watches of a session fire if events were removed before the session has seen them.
func TestPolling_BehindTheStoredEvents(t *testing.T) {
	t.Parallel()
	sh := newBareShop(t, newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: 20 * time.Second}), "15s")
	const timeout = 20 * time.Second
	slow := sh.open(sh.polling(timeout, timeout)) // asks only when a reply is ahead
	w, tree := backend.NewWatch(), backend.NewTreeWatch(1000)
	if _, err := slow.Exists(t.Context(), "/never", w); !errors.Is(err, backend.ErrNotFound) {
		t.Fatal(err)
	}
	if err := slow.WatchTree(t.Context(), "/", tree); err != nil {
		t.Fatal(err)
	}
	const many = 30000
	if err := sh.exec(sh.sql(fmt.Sprintf(`BEGIN; SELECT {s}.take_turn();
		INSERT INTO {s}.change SELECT zxid + i, ARRAY['s/many'] FROM {s}.clock, generate_series(1, %d) i; UPDATE {s}.clock SET zxid = zxid + %[1]d; COMMIT`, many))); err != nil {
		t.Fatal(err)
	}
	// A session that can still see them all handles them in parts.
	quick := sh.open(sh.polling(10*time.Millisecond, time.Second)) // looks for what is to be removed, too
	err := sh.eventually("old events are removed", func() (bool, error) {
		return ask[bool](sh, "SELECT count(*) BETWEEN 1 AND 20000 FROM {s}.change")
	})
	if err != nil {
		t.Fatal(err)
	}
	seesEvent(t, quick, slow)
	if err := slow.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	<-w.Fired()
	if w.Kind() != backend.LookAgain {
		t.Errorf("the watch fired with %v", w.Kind())
	}
	<-tree.Ready()
	if changes, over := tree.Take(); !over {
		t.Errorf("the watch of the tree is not over, after %v", changes)
	}
	// One reply has the events of a part of the commits only.
	seesEvent(t, quick, slow)
}
