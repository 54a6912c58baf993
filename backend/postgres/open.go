package postgres

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-coord/coord/internal/usercode"
)

// Open starts a session.
func (b *service) Open(ctx context.Context) (backend.Session, error) {
	if b.err != nil {
		return nil, &backend.Error{Op: "open", Err: b.err}
	}
	s, err := b.cfg.open(ctx)
	if err != nil {
		return nil, &backend.Error{Op: "open", Err: err}
	}
	return s, nil
}

// open tries to connect until a session is ready.
func (c *config) open(ctx context.Context) (*session, error) {
	outage, log, now := contact.NewOutage(c.servers), outbox.NewLogger(c.logger), contact.Clock()
	budget := min(max(c.times.Timeout, time.Second), 10*time.Second)
	for tries := 1; ; tries++ {
		if err := backend.ContextError(ctx); err != nil {
			log.Drain(mostDrain)
			return nil, outage.Error(err, now())
		}
		s := &session{
			cfg: c, id: newID(), now: now, outage: outage, log: log,
			refused: make(chan struct{}), commits: make(map[*request]struct{}),
		}
		s.Life = contact.NewLife(now, s.end)
		s.hub = newHub(s)
		outage.Trying(c.target, now())
		attempt, cancel := context.WithTimeout(ctx, budget)
		err := s.open(attempt)
		cancel()
		if err == nil {
			return s, nil
		}
		if contact.Cut(ctx) {
			contact.Sleep(ctx, nil, firstPause)
			continue
		}
		s.failed(err)
		if why := refusal(err); why != nil {
			log.Drain(mostDrain)
			return nil, fmt.Errorf("%v: %w", c.target, why)
		}
		contact.Sleep(ctx, nil, contact.Growing(firstPause, mostPause, tries))
	}
}

// newID returns the id of a session. It is random: after a failover a sequence would go back.
func newID() int64 {
	var b [8]byte
	rand.Read(b[:])
	return int64(be.Uint64(b[:])>>2 | 1)
}

// open makes the session on a new connection.
func (s *session) open(ctx context.Context) error {
	l, err := s.dial(ctx, true)
	if err != nil {
		return err
	}
	if err := s.begin(ctx, l); err != nil {
		l.fail(err)
		s.hub.detach(l)
		l.close()
		s.cfg.reports.Ended(s.id)
		return err
	}
	s.connected()
	s.Watch(s.work.Go)
	s.work.Go(func() { s.run(l) })
	return nil
}

// begin begins the session on a link.
func (s *session) begin(ctx context.Context, l *link) error {
	// Open first ends the expired sessions and the lost sessions of this Backend. None of their commits is applied afterwards, and
	// their nodes are deleted, except nodes that the transaction of a user locks.
	if _, err := s.insist(ctx, l, nil, "k_reap", int8(s.cfg.interval.Milliseconds())); err != nil {
		return err
	}
	if err := s.cfg.lost.End(func(id int64) error {
		return s.finish(ctx, l, id)
	}); err != nil {
		return err
	}
	timeout := s.cfg.times.Timeout
	length := s.cfg.times.Lease(timeout)
	s.cfg.reports.Opened(backend.Ticket{ID: s.id, Timeout: timeout, Server: s.cfg.target.Address})
	sent := s.now()
	r, err := s.insist(ctx, l, func(r row) { s.hub.attach(l, integer(r[0]), string(r[2])) }, "k_open", int8(s.id), int4(int32(timeout.Milliseconds())), int4(int32((timeout - length).Milliseconds())), bool1(s.cfg.poll > 0))
	if err != nil {
		return err
	}
	s.Grant(timeout, contact.Lease{From: sent, Length: length})
	return s.attach(l, sent, 1, r[1])
}

// dial makes a link that is ready for the session, which does not know it yet. With create it makes or updates the layout.
// A session that connects again does not: an administrator may be restoring the schema.
func (s *session) dial(ctx context.Context, create bool) (*link, error) {
	c := s.cfg
	pg, err := c.connection(ctx)
	if err != nil {
		return nil, err
	}
	var pooler pooler
	pg.OnNotification = pooler.heard
	conn, err := connect(ctx, pg)
	if err != nil {
		return nil, err
	}
	lock := max(c.times.Timeout/8, 10*time.Millisecond)
	var pooled map[string]string
	if c.poll > 0 {
		pooled = unprepared(c.schema, lockTimeout(min(lock, mostPooledWait)))
		err = c.preparePooled(ctx, conn, create)
	} else if err = pooler.check(ctx, pg, conn); err == nil {
		err = c.prepare(ctx, conn, settingsFor(lock, c.times.Timeout), create)
	}
	if err != nil {
		discard(conn)
		return nil, err
	}
	return adopt(conn, pooled, c.early, s.hub.heard)
}

// connection returns the configuration of the next connection.
func (c *config) connection(ctx context.Context) (*pgconn.Config, error) {
	pg := c.pg.Copy()
	if c.before != nil {
		if err := usercode.Call(func() error { return c.before(ctx, pg) }); err != nil {
			return nil, fmt.Errorf("Options.BeforeConnect: %w", err)
		}
	}
	// The hosts are tried one after the other. A host that hangs must leave time for the others.
	if deadline, ok := ctx.Deadline(); ok && c.hosts > 1 {
		share := time.Until(deadline) / time.Duration(c.hosts+1)
		if pg.ConnectTimeout == 0 || pg.ConnectTimeout > share {
			pg.ConnectTimeout = max(share, time.Millisecond)
		}
	}
	return pg, nil
}

var errNoCancel = errors.New("postgres: requests are not canceled")

// connect makes a connection. When ctx ends during a later query, pgx would cancel the query by a second connection. The queries here
// are short, and such a request can crash PgBouncer 1.18, so that connection is refused.
func connect(ctx context.Context, pg *pgconn.Config) (*pgconn.PgConn, error) {
	pg = pg.Copy()
	dial := pg.DialFunc
	var connected atomic.Bool
	pg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if connected.Load() {
			return nil, errNoCancel
		}
		return dial(ctx, network, address)
	}
	conn, err := pgconn.ConnectConfig(ctx, pg)
	connected.Store(true)
	return conn, err
}

// mostPooledWait bounds how long a commit through a pool waits for its turn, since keep-alives of other sessions wait for its
// connection. The client then sends the commit again.
const mostPooledWait = 50 * time.Millisecond

// lockTimeout is the value of the setting lock_timeout.
func lockTimeout(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

// preparePooled makes the layout if it is missing, on a connection to a pool, which has no settings of its own.
func (c *config) preparePooled(ctx context.Context, conn *pgconn.PgConn, create bool) error {
	results, err := conn.Exec(ctx, "SELECT current_setting('default_transaction_isolation'), current_setting('server_encoding')").ReadAll()
	if err != nil {
		return err
	}
	row := results[0].Rows[0]
	if level := string(row[0]); level != "read committed" {
		return contact.Invalid("default_transaction_isolation is %q: through a pool it must be \"read committed\" for the role", level)
	}
	if err := checkEncoding(string(row[1])); err != nil {
		return err
	}
	if err := c.ensureLayout(ctx, conn, create); err != nil || !create {
		return err
	}
	return c.checkRights(ctx, conn)
}

func checkEncoding(encoding string) error {
	if encoding != "UTF8" {
		return contact.Invalid("the encoding of the database is %s, want UTF8", encoding)
	}
	return nil
}

// prepare makes the settings of a connection, and the layout if it is missing, listens, and prepares the statements.
func (c *config) prepare(ctx context.Context, conn *pgconn.PgConn, settings string, create bool) error {
	for _, sql := range []string{"SET statement_timeout = 0", settings} { // a statement has the limit that is set when it begins
		if err := conn.Exec(ctx, sql).Close(); err != nil {
			return err
		}
	}
	if err := checkEncoding(conn.ParameterStatus("server_encoding")); err != nil {
		return err
	}
	if err := c.ensureLayout(ctx, conn, create); err != nil {
		return err
	}
	if create {
		if err := c.checkRights(ctx, conn); err != nil {
			return err
		}
	}
	if err := conn.Exec(ctx, "LISTEN "+quote(channel(c.schema))).Close(); err != nil {
		return err
	}
	p := conn.StartPipeline(ctx)
	for name, sql := range statements {
		p.SendPrepare(name, fill(sql, c.schema), nil)
	}
	if err := p.Sync(); err != nil {
		p.Close()
		return err
	}
	for {
		r, err := p.GetResults()
		if err != nil {
			p.Close()
			return err
		}
		if _, ok := r.(*pgconn.PipelineSync); ok || r == nil {
			return p.Close()
		}
	}
}

// sessionFunctions are the functions of schema.sql that execute with the rights of a session's role.
const sessionFunctions = "'open', 'attach', 'beat', 'reap', 'finish', 'collect', 'commit', 'apply', 'tell', 'take_turn', 'see_history', 'same_history', 'identity', 'name_of', 'now'"

// checkRights returns an error that names the rights that the role lacks on the tables and functions of a session. Otherwise
// only the first call that needs a missing right would fail.
func (c *config) checkRights(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, `SELECT (SELECT string_agg(x.lacks, ', ' ORDER BY x.lacks) FROM (
		SELECT p || ' on table ' || t.relname AS lacks FROM pg_class t, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p
			WHERE t.relnamespace = n.oid AND t.relname IN ('clock', 'epoch', 'session', 'reaper', 'node', 'change') AND NOT has_table_privilege(t.oid, p)
		UNION ALL SELECT 'EXECUTE on function ' || f.proname FROM pg_proc f WHERE f.pronamespace = n.oid
			AND f.proname IN (`+sessionFunctions+`)
			AND NOT has_function_privilege(f.oid, 'EXECUTE')) x)
		FROM pg_namespace n WHERE n.nspname = `+literal(c.schema)).ReadAll()
	if err != nil {
		return err
	}
	if len(results[0].Rows) == 0 {
		return fmt.Errorf("postgres: schema %q was dropped meanwhile", c.schema)
	}
	if lacks := results[0].Rows[0][0]; lacks != nil {
		return fmt.Errorf("%w: the role lacks rights in schema %q: %s", backend.ErrDenied, c.schema, lacks)
	}
	return nil
}

// A pooler between the client and the server can give each transaction another connection of the server. Then
// notifications do not arrive.
type pooler struct {
	mu       sync.Mutex
	channels []string // of the notifications that the connection has received
}

func (p *pooler) heard(_ *pgconn.PgConn, n *pgconn.Notification) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.channels = append(p.channels, n.Channel)
}

func (p *pooler) has(channel string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.channels, channel)
}

var errPooled = fmt.Errorf("%w: notifications do not arrive, as through a connection pooler in transaction mode: use a connection string that leads to the server itself or to a pool in session mode, or set Options.Poll", backend.ErrInvalid)

// idleWait is how long check waits for its notification.
const idleWait = 2 * time.Second

// check refuses a pool that gives each transaction another connection of the server. It does so before any setting is made, since
// other clients of the pool would get the setting.
//
// The client of a pool sees another process id than the server's. (The ids of PgBouncer are random: one in 2^32 is the server's.) A
// pool that shows the server's ids is not recognised, see New.
func (p *pooler) check(ctx context.Context, pg *pgconn.Config, conn *pgconn.PgConn) error {
	pid, err := backendPID(ctx, conn)
	if err != nil || pid == int64(conn.PID()) {
		return err
	}
	pg = pg.Copy()
	pg.OnNotification = nil // p counts the notifications of the first connection only
	other, err := connect(ctx, pg)
	if err != nil {
		return fmt.Errorf("a second connection to the pool, which tests whether notifications arrive: %w", err)
	}
	defer discard(other)
	otherPID, err := backendPID(ctx, other)
	if err != nil {
		return fmt.Errorf("a second connection to the pool, which tests whether notifications arrive: %w", err)
	}
	if otherPID == pid {
		// Both have the same connection of the server, unless the first one is lost.
		if _, err := backendPID(ctx, conn); err != nil {
			return err
		}
		return errPooled
	}
	hello := "coord hello " + contact.Hex(newID())
	if err := conn.Exec(ctx, "LISTEN "+quote(hello)).Close(); err != nil {
		return err
	}
	if err := other.Exec(ctx, "NOTIFY "+quote(hello)).Close(); err != nil {
		return err
	}
	// A pool in transaction mode drops messages of the server outside of transactions.
	wait, cancel := context.WithTimeout(ctx, idleWait)
	defer cancel()
	for !p.has(hello) && wait.Err() == nil {
		if err := conn.WaitForNotification(wait); err != nil && wait.Err() == nil {
			return err
		}
	}
	// A late notification arrives before this reply. UNLISTEN also removes the channels of earlier clients of the connection.
	if err := conn.Exec(ctx, "UNLISTEN *").Close(); err != nil {
		return err
	}
	if !p.has(hello) {
		return errPooled
	}
	return conn.Exec(ctx, "DEALLOCATE ALL").Close()
}

// backendPID returns the process id of the server that answers.
func backendPID(ctx context.Context, conn *pgconn.PgConn) (int64, error) {
	results, err := conn.Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(results[0].Rows[0][0]), 10, 64)
}

// refusal returns the error of the contract if further attempts to open are useless, or nil.
func refusal(err error) error {
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var e *pgconn.PgError
	switch {
	case errors.Is(err, backend.ErrInvalid), errors.Is(err, backend.ErrDenied):
		return err
	case errors.As(err, &verify), errors.As(err, &unknown):
		return fmt.Errorf("%w: %w", backend.ErrDenied, err)
	case !errors.As(err, &e):
		return nil
	}
	switch e.Code {
	case "28P01", "28000", "42501": // password, authorization, privilege
		return fmt.Errorf("%w: %w", backend.ErrDenied, err)
	case "3D000", "42704", "22023": // database, and names and values of settings in the connection string
		return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
	case "08P01": // PgBouncer has one code for all its errors, and passes errors of the server on with it
		switch m := e.Message; {
		case strings.HasPrefix(m, "unsupported startup parameter"):
			return fmt.Errorf("%w: a pool takes few settings in the connection string: %w", backend.ErrInvalid, err)
		case strings.HasPrefix(m, "no such database"), strings.HasPrefix(m, "database ") && strings.HasSuffix(m, " does not exist"):
			return fmt.Errorf("%w: %w", backend.ErrInvalid, err)
		case strings.HasPrefix(m, "no such user"), strings.Contains(m, "authentication failed"), strings.HasPrefix(m, "role ") && strings.HasSuffix(m, " does not exist"):
			return fmt.Errorf("%w: %w", backend.ErrDenied, err)
		}
	}
	return nil
}
