// Package fence_test tests package fence on real servers: PostgreSQL, MariaDB and SQLite. It shows that
//
//   - a transaction is refused after a later holder has committed, at each isolation level, whether Check is first or last, and
//     also if its process was stopped or killed;
//   - the transactions of many holders leave a ledger in the order of their tokens, and without Check they do not;
//   - Once is true for one transaction of an item.
//
// Each test has its own tables. COORD_LONG=1 makes the race of the holders longer.
package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"
	"modernc.org/sqlite"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/fence"
	"github.com/go-coord/coord/internal/proc"
)

var (
	postgres = pgtest.Shared{Options: &pgtest.Options{Settings: map[string]string{"fsync": "off", "max_connections": "300"}}}
	maria    mariaServer
)

func TestMain(m *testing.M) {
	if role, task := proc.Role(); role == holderRole {
		serveHolder(task)
		return
	}
	mysql.SetLogger(log.New(io.Discard, "", 0)) // of connections that tests have ended
	goleak.VerifyTestMain(postgres.Main(maria.main(m)))
}

// A database is a Fence and its tables, and a ledger: the writes that the fence protects.
type database struct {
	t       *testing.T
	kind    string
	dialect fence.Dialect
	driver  string
	dsn     string
	tables  fence.Options
	levels  []sql.IsolationLevel
	db      *sql.DB
	f       *fence.Fence
}

var tests atomic.Int64

// each runs a test on each database.
func each(t *testing.T, test func(d *database)) {
	t.Parallel()
	for _, kind := range []string{"postgres", "mariadb", "sqlite"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(newDatabase(t, kind))
		})
	}
}

func newDatabase(t *testing.T, kind string) *database {
	n := strconv.FormatInt(tests.Add(1), 10)
	d := &database{t: t, kind: kind, tables: fence.Options{Table: "fence" + n, ItemTable: "item" + n}}
	d.levels = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
	switch kind {
	case "postgres":
		d.dialect, d.driver = fence.PostgreSQL, "pgx"
		d.dsn = postgres.Get(t).URL("")
	case "mariadb":
		d.dialect, d.driver = fence.MySQL, "mysql"
		d.dsn = maria.dsn(t)
	case "sqlite":
		d.dialect, d.driver = fence.SQLite, "sqlite"
		d.levels = d.levels[:0]
		d.levels = append(d.levels, sql.LevelDefault)
		file := url.URL{Scheme: "file", Opaque: filepath.Join(t.TempDir(), "fence.db"), RawQuery: "_pragma=journal_mode(wal)&_pragma=synchronous(off)"}
		d.dsn = file.String()
	}
	d.db = d.open(d.patience())
	d.f = fence.New(d.dialect, &d.tables)
	if err := d.f.Migrate(t.Context(), d.db); err != nil {
		t.Fatal(err)
	}
	d.exec(d.db, "CREATE TABLE "+d.ledger()+" (seq bigint NOT NULL PRIMARY KEY, token bigint NOT NULL)")
	return d
}

// patience is the setting with which a connection waits for a lock, as long as a test may take.
func (d *database) patience() string {
	if d.kind == "sqlite" {
		return "_pragma=busy_timeout(60000)"
	}
	return ""
}

// open opens a pool of its own, with more settings.
func (d *database) open(settings string) *sql.DB {
	dsn := d.dsn
	if settings != "" {
		sep := "?"
		if strings.Contains(dsn, "?") {
			sep = "&"
		}
		dsn += sep + settings
	}
	db, err := sql.Open(d.driver, dsn)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { db.Close() })
	return db
}

func (d *database) ledger() string { return "ledger_of_" + d.tables.Table }

func (d *database) exec(x fence.Execer, query string, args ...any) {
	d.t.Helper()
	if _, err := x.ExecContext(d.t.Context(), query, args...); err != nil {
		d.t.Fatalf("%s: %v", query, err)
	}
}

// at returns a Fence of the same tables at a level.
func (d *database) at(level sql.IsolationLevel) *fence.Fence {
	o := d.tables
	o.Isolation = level
	return fence.New(d.dialect, &o)
}

// begin begins a transaction.
func (d *database) begin(level sql.IsolationLevel) *sql.Tx {
	d.t.Helper()
	tx, err := d.db.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { tx.Rollback() })
	return tx
}

// write appends a token to the ledger.
func (d *database) write(ctx context.Context, tx *sql.Tx, token int64) error {
	var seq int64
	if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) + 1 FROM "+d.ledger()).Scan(&seq); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s (seq, token) VALUES (%d, %d)", d.ledger(), seq, token))
	return err
}

// written returns the tokens of the ledger in their order.
func (d *database) written() (tokens []int64) {
	d.t.Helper()
	rows, err := d.db.Query("SELECT token FROM " + d.ledger() + " ORDER BY seq")
	if err != nil {
		d.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var token int64
		if err := rows.Scan(&token); err != nil {
			d.t.Fatal(err)
		}
		tokens = append(tokens, token)
	}
	if err := rows.Err(); err != nil {
		d.t.Fatal(err)
	}
	return tokens
}

func (d *database) wantWritten(want ...int64) {
	d.t.Helper()
	if got := d.written(); !slices.Equal(got, want) {
		d.t.Errorf("the ledger has the tokens %v, want %v", got, want)
	}
}

// code returns the code with which the database has refused a statement, or "".
func code(err error) string {
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) {
		return pg.Code
	}
	if my := (*mysql.MySQLError)(nil); errors.As(err, &my) {
		return strconv.Itoa(int(my.Number))
	}
	if lite := (*sqlite.Error)(nil); errors.As(err, &lite) {
		return "sqlite " + strconv.Itoa(lite.Code())
	}
	return ""
}

// again reports whether the package comment says to run the transaction again.
func again(err error) bool {
	return slices.Contains([]string{"40001", "40P01", "1213", "1020", "sqlite 5", "sqlite 517"}, code(err))
}

func wantErr(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("error %v, want %v", err, target)
		}
	}
}

func wantFenced(t *testing.T, err error) {
	t.Helper()
	wantErr(t, err, coord.ErrFenced, coord.ErrConflict)
	if again(err) {
		t.Errorf("error %v asks for another run", err)
	}
}

// tokenOf returns a token of the path /p as of another process.
func tokenOf(n int64) fence.Token { return fence.Token{Path: "/p", Number: n} }

// client opens a client on a store in memory.
func client(t *testing.T, b interface{ Link(string) *memory.Link }, name string) (*coord.Client, *memory.Link) {
	t.Helper()
	link := b.Link(name)
	c, err := coord.Open(t.Context(), link, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, link
}

func long() bool { return os.Getenv("COORD_LONG") != "" }
