package fence

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// Dialect is the kind of a database.
type Dialect int

const (
	PostgreSQL Dialect = iota + 1 // tested with pgx, also through its driver of database/sql
	MySQL                         // and MariaDB, tested with go-sql-driver/mysql; your tables must use InnoDB too

	// SQLite is tested with modernc.org/sqlite. Its connections need a busy timeout, such as _pragma=busy_timeout(5000),
	// and WAL mode is better. Only that timeout ends the wait for another writer: the end of ctx does not.
	SQLite
)

// Options are the settings of a Fence. The zero value of a field means its default, and so does a nil *Options.
type Options struct {
	// Table is the table of tokens, and ItemTable that of items: names of up to 58 ASCII letters, digits and underscores,
	// without a digit at the start. They differ in more than their case. If a table is not on the search path, its name
	// begins with the schema, by the same rule, and a dot. Default: coord_fence and coord_item. Use a table of its own for
	// each service.
	Table, ItemTable string

	// Isolation is the isolation level of the transactions of Tx. The default is that of the database.
	Isolation sql.IsolationLevel
}

// A Fence is the pair of tables in a database of some kind. It keeps no connection, and is safe for concurrent use.
type Fence struct {
	dialect   Dialect
	isolation sql.IsolationLevel
	schema    []string // the statements that make the tables
	check     string   // raises a token
	once      string   // inserts an item
	prune     string   // deletes items
	err       error    // of the options
}

// New returns the Fence of a database. It does no I/O: the first call reports a bad argument, with coord.ErrInvalid.
func New(d Dialect, o *Options) *Fence {
	if o == nil {
		o = new(Options)
	}
	f := &Fence{dialect: d, isolation: o.Isolation}
	tokens, items := o.Table, o.ItemTable
	if tokens == "" {
		tokens = "coord_fence"
	}
	if items == "" {
		items = "coord_item"
	}
	for _, name := range []string{tokens, items} {
		if !identifier.MatchString(name) {
			f.err = invalid("%q is not the name of a table: want up to 58 ASCII letters, digits and underscores, no digit first; before them at most such a schema and a dot", name)
		}
	}
	if strings.EqualFold(tokens, items) {
		f.err = invalid("the tables of tokens and of items are both %q", tokens)
	}
	// The names of the columns are no keywords. Text compares by bytes.
	var quote, text, now, options string
	switch d {
	case PostgreSQL:
		quote, text, now = `"`, `text COLLATE "C"`, "extract(epoch FROM now())::bigint"
		f.check = "INSERT INTO {f} AS f (path, token) VALUES ($1, $2) ON CONFLICT (path) DO UPDATE SET token = EXCLUDED.token WHERE f.token <= EXCLUDED.token"
		f.once = "INSERT INTO {i} (id, seen) VALUES ($1, {now}) ON CONFLICT (id) DO NOTHING"
		f.prune = "DELETE FROM {i} WHERE seen < {now} - $1"
	case MySQL:
		// The numbers of affected rows depend on the flags of the connection, and do not tell an equal token from a
		// refused one. LAST_INSERT_ID(x) returns x, and the server sends x with its reply.
		quote, text, now, options = "`", "varbinary({size})", "unix_timestamp()", " ENGINE=InnoDB"
		f.check = "INSERT INTO {f} (path, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = greatest(last_insert_id(token), ?)"
		f.once = "INSERT INTO {i} (id, seen) VALUES (?, {now}) ON DUPLICATE KEY UPDATE seen = last_insert_id(seen)"
		f.prune = "DELETE FROM {i} WHERE seen < {now} - ?"
	case SQLite:
		quote, text, now = `"`, "text", "CAST(strftime('%s', 'now') AS integer)"
		f.check = "INSERT INTO {f} AS f (path, token) VALUES (?, ?) ON CONFLICT (path) DO UPDATE SET token = excluded.token WHERE f.token <= excluded.token"
		f.once = "INSERT INTO {i} (id, seen) VALUES (?, {now}) ON CONFLICT (id) DO NOTHING"
		f.prune = "DELETE FROM {i} WHERE seen < {now} - ?"
	default:
		f.err = invalid("unknown dialect %d", d)
	}
	f.schema = []string{
		"CREATE TABLE IF NOT EXISTS {f} (path " + strings.ReplaceAll(text, "{size}", fmt.Sprint(maxPath)) + " NOT NULL PRIMARY KEY, token bigint NOT NULL)" + options,
		"CREATE TABLE IF NOT EXISTS {i} (id " + strings.ReplaceAll(text, "{size}", fmt.Sprint(maxItem)) + " NOT NULL PRIMARY KEY, seen bigint NOT NULL{key})" + options,
	}
	schema, bare, _ := strings.Cut(items, ".")
	if bare == "" {
		schema, bare = "", items
	}
	key, index := "", bare+"_seen"
	switch d {
	case PostgreSQL:
		f.schema = append(f.schema, `CREATE INDEX IF NOT EXISTS "`+index+`" ON {i} (seen)`)
	case MySQL:
		key = ", KEY (seen)"
	case SQLite:
		if schema != "" {
			schema = `"` + schema + `".`
		}
		f.schema = append(f.schema, "CREATE INDEX IF NOT EXISTS "+schema+`"`+index+`" ON "`+bare+`" (seen)`)
	}
	quoted := func(name string) string {
		return quote + strings.ReplaceAll(name, ".", quote+"."+quote) + quote
	}
	fill := strings.NewReplacer("{f}", quoted(tokens), "{i}", quoted(items), "{now}", now, "{key}", key)
	f.check, f.once, f.prune = fill.Replace(f.check), fill.Replace(f.once), fill.Replace(f.prune)
	for i, s := range f.schema {
		f.schema[i] = fill.Replace(s)
	}
	return f
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,57}(\.[A-Za-z_][A-Za-z0-9_]{0,57})?$`)

// Schema returns the statements that create the tables, each with a semicolon at its end. They do nothing if the tables exist,
// but need the right to create them. A role that only writes needs SELECT, INSERT and UPDATE of the tables, and DELETE for Prune.
func (f *Fence) Schema() (string, error) {
	if err := f.valid(); err != nil {
		return "", failed("schema", "", err)
	}
	return strings.Join(f.schema, ";\n") + ";\n", nil
}

// Migrate creates the tables if they are missing. Its role needs the right to create them, even if they exist. Several processes may
// call it at once; on SQLite they need a busy timeout.
func (f *Fence) Migrate(ctx context.Context, db *sql.DB) error {
	if err := f.valid(); err != nil {
		return failed("migrate", "", err)
	}
	if db == nil {
		return failed("migrate", "", invalid("no database"))
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return failed("migrate", "", err)
	}
	defer tx.Rollback()
	statements := f.schema
	if f.dialect == PostgreSQL {
		// Two processes that create a table at once can fail otherwise. The number has no meaning.
		statements = append([]string{"SELECT pg_advisory_xact_lock(7165069202131457)"}, statements...)
	}
	for _, s := range statements {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return failed("migrate", "", err)
		}
	}
	return failed("migrate", "", tx.Commit())
}

// valid reports whether New has made f, with good options.
func (f *Fence) valid() error {
	if f == nil || f.schema == nil {
		return invalid("a Fence that New has not made")
	}
	return f.err
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{coord.ErrInvalid}, args...)...)
}

// failed wraps err, if it is not nil.
func failed(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &backend.Error{Op: "fence: " + op, Path: path, Err: err}
}
