// Package postgres is the backend for PostgreSQL, from version 13 on. It is tested with 15.
//
// New makes a backend.Backend from a connection string. The nodes are rows of a separate schema in a database that the
// application already has. No superuser and no extension is needed. Besides what every backend has, a transaction of the
// application can depend on a hold, and commit a coord.Txn together with its own rows: see Check and Commit.
//
// # Sessions
//
// A session is a row, and a connection that nothing else uses. It sends a keep-alive every eighth of the timeout, or every
// quarter of the lease if that is less. The lease is counted from the moment at which the latest answered keep-alive was
// sent. Keep-alives are not flushed to disk: after a crash of the server all timeouts begin again. Each connection of a
// session has a new epoch, which its commits compare, so no request of an earlier connection is applied any more.
//
// Clients end the sessions that have expired, with each keep-alive that they send. Without a client no session ends, so Open
// looks for expired sessions first. Only the clock of the database counts. That clock can be set, and the server can be down. So
// of the time between two such searches, at most nine tenths of LossMargin count against a session, and a step of the clock
// forward ends no living session. After a restart of the server, or if the clock was set back, all timeouts begin again.
//
// A keep-alive waits for the commits that its session has sent. A commit that waits for its turn gives up after an eighth of
// the timeout and is sent again, so other sessions cannot delay the keep-alive. A flush can: if the disk, or a synchronous
// standby, does not answer for the length of the lease, the sessions that are committing are lost. With a synchronous standby
// every keep-alive waits for the standby: while it is away, all sessions are lost.
//
// # Commits
//
// A commit is one request: a function applies its operations, under an advisory lock that orders all commits of the schema.
// Commits that the callers of one session request during another commit share the next transaction and its flush. Commits of
// different sessions follow each other, each with its own flush: on a disk that needs a millisecond or two for a flush, a
// schema has some hundred commits a second, however many clients it has. Commits that are refused, or only check, cost no
// flush. Each commit sends a notification, which wakes every connection that listens in this database, on whatever channel:
// plan for at most 50 to 100 sessions in one database.
//
// A transaction that stays open for long keeps PostgreSQL from removing old versions of the rows that each commit changes. A
// saturated schema fell to a tenth of its rate within 20 seconds of such a transaction, and recovered afterwards. So run dumps
// and reports outside of busy times, or on a standby.
//
// A path has at most 2,600 bytes, since an index takes no more. A commit has up to 1 MB of paths and data, as in all backends.
//
// # Failover
//
// A commit is answered when the server says that it is durable: what that means is set by synchronous_commit and
// synchronous_standby_names. With an asynchronous standby, answered commits can be missing after a promotion. Positions then
// continue in a new epoch, so tokens still grow, and sessions that have seen a missing commit end. While the old server still
// runs apart from the new one, clients of either can hold the same lock. A guard in a transaction (Check) holds even then,
// since the transaction is lost together with its lock. The same applies to a restored backup.
//
// With a synchronous standby the old server cannot renew a lease once the standby is promoted, so its clients learn that they
// have lost their sessions before the new server ends them.
//
// # The layout
//
// A node's row has the number of its children and of those that it has ever had, so sequential nodes have the numbers of
// ZooKeeper. One row has the position of the latest commit. Each commit changes it and the rows of its parents. The schema has a
// version, so that it can change: see Migration.
package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/outbox"
)

// Options are the settings of a backend. The zero value of a field means its default, and so
// does a nil *Options. New copies them.
type Options struct {
	// SessionTimeout is the session timeout; zero means 10 s. It is at least 100 ms and at most a day.
	SessionTimeout time.Duration

	// LossMargin is how long before the end of the timeout a session whose renewals are
	// not answered declares itself lost. Zero means a third of the timeout; it is at least a tenth. If the clock of the
	// database is set forward, or no session searches for expired ones for a while, at most the margin counts against a
	// timeout.
	LossMargin time.Duration

	// Schema is the name of the schema that has the nodes; empty means "coord". Applications that must be kept
	// apart use different schemas. It has at most 40 bytes, no control character and no $$, and does not begin with pg_.
	Schema string

	// KeepSchema makes Open fail with backend.ErrInvalid where it would make or update the schema. It is for tools, and for
	// programs whose schema an administrator updates: an update can exclude older versions of the library.
	KeepSchema bool

	// ContainerInterval is how long a container stays after its last child was deleted; zero means a
	// minute. The sessions of each backend with the same Schema delete containers by their own interval. If it is negative,
	// the sessions of this backend delete none. Less than 10 ms counts as 10 ms.
	ContainerInterval time.Duration

	// Poll, if it is not zero, is for a connection through a pool that gives each transaction another connection of the server
	// (PgBouncer in transaction mode), where notifications do not arrive and statements cannot be prepared. A session with
	// watches then asks for events after each Poll, and at once when a reply shows that there are some. So watches fire up to
	// Poll later, an idle session with watches costs a request each Poll, and each commit in the schema stores its events while
	// there is such a session. The role's default_transaction_isolation must be read committed. Less than 5 ms counts as 5 ms.
	//
	// A keep-alive waits for a connection of the pool like any request. Commits keep one for 50 ms at most while they wait for
	// others, so sessions outlive a crowd of clients, but not a pool whose connections are all taken by long transactions of the
	// application. PgBouncer makes no connection for server_login_retry (15 s) after one that failed: set it well below SessionTimeout.
	Poll time.Duration

	// EarlyRelease lets the next commit begin before the present one is durable; the caller waits for that in a second
	// transaction of the same round trip. So commits of many clients share flushes, which is worth it where flushes are slow.
	// Other sessions can see a commit that a crash of the server then loses. These sessions end when they connect again, and
	// tokens still grow. Each client of a schema may choose for itself.
	EarlyRelease bool

	// Without switches off backend.Trees, backend.Batches, backend.Containers or backend.Clock.
	Without backend.Features

	// Logger gets a line for each connection that a session makes (Info), and for each that breaks, with the reason (Warn).
	// While no connection can be made, a line reports the error at intervals that grow from a second to a minute (Warn). The
	// client logs the loss of a session: see Logger of coord.Options. Nil means no logging.
	//
	// It is called on a goroutine of its own, one line at a time and in order for each session.
	// Nothing waits for it, except that the session's Close waits up to a second for the last lines.
	Logger *slog.Logger

	// Reporter, if it is not nil, learns of each session before the session can hold anything, and of its end. With
	// package supervisor and coordctl guard, the sessions of a process that dies end at once.
	Reporter backend.Reporter

	// BeforeConnect, if it is not nil, is called before each connection is made, with a copy of the configuration that
	// the connection string gives. It may change that, for example set a password that is valid for a short time. It must
	// return soon after ctx ends. If it returns an error, panics or ends its goroutine, the attempt to connect fails.
	BeforeConnect func(ctx context.Context, c *pgconn.Config) error
}

const defaultSchema = "coord"

// The limits of ContainerInterval and Poll.
const (
	leastPoll       = 5 * time.Millisecond
	defaultInterval = time.Minute
	leastInterval   = 10 * time.Millisecond
	mostInterval    = 365 * 24 * time.Hour
)

// New returns a backend for the database of a connection string, in the form of a URL or of keywords and values, as
// pgconn.ParseConfig takes them: hosts, TLS, user, password, and settings of the server. The environment variables of libpq set
// what the string omits: an empty string leads to PGHOST, or to the local socket. New does no I/O. Open reports an invalid string
// and invalid options (backend.ErrInvalid).
//
// With several hosts the session uses the host that accepts writes. The user needs the right to create the schema, or the
// administrator makes it: see Migration. The connection must lead to the server itself, or through a pool in session mode,
// unless Options.Poll is set: Open refuses a pool through which notifications do not arrive. To test that, each new connection
// to a pool needs a second connection of the server for a moment. Open recognises a pool because its clients see another
// process id than the server's. A pool that shows the server's ids is not tested, and must be in session mode.
func New(connString string, o *Options) backend.Backend {
	cfg, err := newConfig(connString, o)
	return &service{cfg: cfg, err: err}
}

type service struct {
	cfg *config
	err error // why cfg is invalid
}

// config holds the checked arguments of New. It is not changed afterwards.
type config struct {
	pg       *pgconn.Config
	before   func(ctx context.Context, c *pgconn.Config) error
	target   contact.Target // the hosts, for reports
	hosts    int            // their number
	servers  *contact.Servers
	times    contact.Times
	has      backend.Features
	schema   string
	keep     bool          // the schema is neither made nor updated
	interval time.Duration // of containers; 0: the sessions remove none
	poll     time.Duration // 0: the sessions listen
	early    bool
	logger   *slog.Logger // nil: silence
	lost     contact.Lost
	reports  *contact.Reports
}

func newConfig(connString string, o *Options) (*config, error) {
	if o == nil {
		o = new(Options)
	}
	times, err := contact.CheckTimes(o.SessionTimeout, o.LossMargin, 24*time.Hour)
	if err != nil {
		return nil, err
	}
	pg, err := pgconn.ParseConfig(connString)
	switch {
	case err != nil && (strings.Contains(connString, "@") || strings.Contains(strings.ToLower(connString), "password")):
		// The error quotes the string, and hides a password only as well as it can find it.
		return nil, contact.Invalid("connection string: want postgres://user@host:port/database, or host=… dbname=… user=…; special characters of a password in a URL are written as %%40")
	case err != nil:
		return nil, contact.Invalid("connection string: %v", err)
	}
	if pg.ValidateConnect == nil {
		pg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
		if o.Poll == 0 { // a session switches default_transaction_read_only off
			pg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
		}
	}
	if pg.RuntimeParams["application_name"] == "" {
		pg.RuntimeParams["application_name"] = "coord"
	}
	c := &config{
		pg:       pg,
		before:   o.BeforeConnect,
		times:    times,
		has:      (backend.Trees | backend.Batches | backend.Containers | backend.Clock) &^ o.Without,
		schema:   o.Schema,
		keep:     o.KeepSchema,
		interval: min(o.ContainerInterval, mostInterval),
		early:    o.EarlyRelease,
		logger:   o.Logger,
		reports:  contact.NewUser(outbox.NewLogger(o.Logger)).Reports(o.Reporter, "postgres"),
	}
	if c.schema == "" {
		c.schema = defaultSchema
	}
	switch {
	case times.Timeout < 100*time.Millisecond:
		return nil, contact.Invalid("SessionTimeout %v, want at least %v", times.Timeout, 100*time.Millisecond)
	case o.Poll < 0 || o.Poll > times.Timeout:
		return nil, contact.Invalid("Poll %v, want 0 to SessionTimeout %v", o.Poll, times.Timeout)
	case times.Margin > 0 && times.Margin < times.Timeout/10:
		return nil, contact.Invalid("LossMargin %v, want 0 or at least a tenth of SessionTimeout %v", times.Margin, times.Timeout)
	case len(c.schema) > 40 || !utf8.ValidString(c.schema) || strings.IndexFunc(c.schema, func(r rune) bool { return r < ' ' }) >= 0 || strings.Contains(c.schema, "$$") || strings.HasPrefix(c.schema, "pg_"):
		return nil, contact.Invalid("Schema %q", c.schema)
	}
	switch {
	case c.interval == 0:
		c.interval = defaultInterval
	case c.interval < 0 || !c.has.Has(backend.Containers):
		c.interval = 0
	default:
		c.interval = max(c.interval, leastInterval)
	}
	if o.Poll > 0 {
		c.poll = max(o.Poll, leastPoll)
	}
	hosts := []string{address(pg.Host, pg.Port)}
	for _, f := range pg.Fallbacks {
		if a := address(f.Host, f.Port); a != hosts[len(hosts)-1] {
			hosts = append(hosts, a)
		}
	}
	c.hosts = len(hosts)
	all := strings.Join(hosts, ",")
	c.target = contact.Target{Server: all, Address: all}
	c.servers = contact.NewServers([]string{all}, nil, times.Timeout)
	return c, nil
}

func address(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// String names the backend without the password.
func (b *service) String() string {
	if b.err != nil {
		return fmt.Sprintf("postgres: %v", b.err)
	}
	return "postgres " + b.cfg.target.String()
}
