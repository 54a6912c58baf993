package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend/postgres"
)

// leastPostgres is the oldest version that the backend is for.
const leastPostgres = 130000

// finding is something that check says of a PostgreSQL database.
type finding struct {
	What string `json:"what"`
	OK   bool   `json:"ok"`             // a session works
	Warn bool   `json:"warn,omitempty"` // but an operator should know this
	Text string `json:"text"`
}

// askPostgres logs in at one server.
func (t *tool) askPostgres(ctx context.Context, v *serverState) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	var own []*pgconn.FallbackConfig
	for _, f := range postgresAttempts(t.pg) {
		if net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))) == v.Addr {
			own = append(own, f)
		}
	}
	conn, err := t.dialPostgres(ctx, own)
	if err != nil {
		v.Error = plainError(ctx, err)
		return
	}
	defer closePostgres(conn)
	row, err := queryRow(ctx, conn, "SELECT split_part(current_setting('server_version'), ' ', 1), CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'primary' END")
	if err != nil {
		v.Error = plainError(ctx, err)
		return
	}
	v.Reached, v.Version, v.Mode = true, row[0], row[1]
}

// plainError returns the text of an error of a connection in one line. It has no password.
func plainError(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return fmt.Sprintf("the server does not answer within %v", serverTimeout)
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

// queryRow returns the columns of the one row of a query, "" for null.
func queryRow(ctx context.Context, conn *pgconn.PgConn, sql string) ([]string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return nil, errors.New("the answer is not one row")
	}
	var row []string
	for _, column := range results[0].Rows[0] {
		row = append(row, string(column))
	}
	return row, nil
}

// examinePostgres fills found: what a session needs, and what an operator should know.
func (t *tool) examinePostgres(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*serverTimeout)
	defer cancel()
	conn, err := t.dialPostgres(ctx, nil)
	if err != nil {
		t.fail("connection", "no server that accepts writes: %s", plainError(ctx, err))
		return
	}
	defer closePostgres(conn)
	for _, look := range []func(ctx context.Context, conn *pgconn.PgConn) error{
		t.findVersion, t.findClock, t.findSchema, t.findNotifications, t.findDurability, t.findTimeouts, t.findConnections,
	} {
		if err := look(ctx, conn); err != nil {
			t.fail("question", "the server does not answer it: %s", plainError(ctx, err))
			if conn.IsClosed() || ctx.Err() != nil {
				return
			}
		}
	}
}

func (t *tool) fail(what, format string, args ...any) { t.find(what, false, false, format, args...) }
func (t *tool) warn(what, format string, args ...any) { t.find(what, true, true, format, args...) }
func (t *tool) fine(what, format string, args ...any) { t.find(what, true, false, format, args...) }

func (t *tool) find(what string, ok, warn bool, format string, args ...any) {
	t.found = append(t.found, finding{what, ok, warn, fmt.Sprintf(format, args...)})
}

func (t *tool) findVersion(ctx context.Context, conn *pgconn.PgConn) error {
	row, err := queryRow(ctx, conn, "SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('server_encoding'), current_database(), current_user")
	if err != nil {
		return err
	}
	version, err := strconv.Atoi(row[0])
	switch {
	case err != nil:
		return err
	case version < leastPostgres:
		t.fail("database", "PostgreSQL %s is too old: want %d or later", row[1], leastPostgres/10000)
	case row[2] != "UTF8":
		t.fail("database", "%s as role %s has the encoding %s: want UTF8", printable(row[3]), printable(row[4]), row[2])
	default:
		t.fine("database", "%s as role %s", printable(row[3]), printable(row[4]))
	}
	return nil
}

// findClock compares the clocks without a node. The first query of its kind is slow, so the second one counts.
func (t *tool) findClock(ctx context.Context, conn *pgconn.PgConn) error {
	for range 2 {
		sent := time.Now()
		row, err := queryRow(ctx, conn, "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
		answer := time.Now()
		if err != nil {
			return err
		}
		at, err := strconv.ParseInt(row[0], 10, 64)
		if err != nil {
			return err
		}
		t.foundClock = compareClocks(time.UnixMilli(at), sent, answer)
	}
	return nil
}

// findSchema looks at the schema, its layout, and the rights of the role in it.
func (t *tool) findSchema(ctx context.Context, conn *pgconn.PgConn) error {
	name := t.schemaName()
	shown := printable(name)
	in := literal(name)
	row, err := queryRow(ctx, conn, "SELECT count(n.oid), coalesce(bool_or(has_schema_privilege(n.oid, 'USAGE')), false), has_database_privilege(current_database(), 'CREATE'), current_user,"+
		" count(c.oid), coalesce(bool_or(has_table_privilege(c.oid, 'SELECT')), false)"+
		" FROM (SELECT oid FROM pg_namespace WHERE nspname = "+in+") n LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'layout'")
	if err != nil {
		return err
	}
	there, usage, create, role, table, read := row[0] != "0", row[1] == "t", row[2] == "t", row[3], row[4] != "0", row[5] == "t"
	grants := fmt.Sprintf("GRANT USAGE ON SCHEMA %[1]s TO %[2]s; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %[1]s TO %[2]s; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %[1]s TO %[2]s",
		identifier(name), identifier(role))
	switch {
	case !there && create:
		t.fail("schema", "%s is missing: run coordctl postgres migrate; a program with this role makes it itself", shown)
		return nil
	case !there:
		t.fail("schema", "%s is missing, and the role %s may not create it: have an administrator run coordctl postgres migrate", shown, printable(role))
		return nil
	case !usage:
		t.fail("rights", "the role %s may not use the schema %s: an administrator runs %s", printable(role), shown, grants)
		return nil
	case !table:
		t.fail("schema", "%s has no table layout, so it is not one of coord: give another --schema, or run coordctl postgres migrate", shown)
		return nil
	case !read:
		t.fail("rights", "the role %s may not read %s.layout: an administrator runs %s", printable(role), shown, grants)
		return nil
	}
	row, err = queryRow(ctx, conn, "SELECT version, oldest FROM "+identifier(name)+".layout")
	if err != nil {
		return err
	}
	version, err1 := strconv.Atoi(row[0])
	oldest, err2 := strconv.Atoi(row[1])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	switch known := postgres.Layout(); {
	case version < known:
		t.fail("schema", "%s has layout %d, this version of coord wants %d: run coordctl postgres migrate", shown, version, known)
	case oldest > known:
		t.fail("schema", "%s has layout %d, this version of coord knows %d: update coordctl", shown, version, known)
	case version > known:
		t.fine("schema", "%s has layout %d, newer than the %d of this coordctl, which can use it", shown, version, known)
	default:
		t.fine("schema", "%s has layout %d", shown, version)
	}
	// Each column lists what is missing.
	row, err = queryRow(ctx, conn, `SELECT
		(SELECT string_agg(p || ' on ' || c.relname, ', ' ORDER BY c.relname, p) FROM pg_class c, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p
			WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND c.relname <> 'layout' AND NOT has_table_privilege(c.oid, p)),
		(SELECT string_agg(f.proname, ', ' ORDER BY f.proname) FROM pg_proc f WHERE f.pronamespace = n.oid AND NOT has_function_privilege(f.oid, 'EXECUTE')),
		(SELECT string_agg(f.proname, ', ' ORDER BY f.proname) FROM pg_proc f WHERE f.pronamespace = 'pg_catalog'::regnamespace
			AND f.proname IN ('pg_control_system', 'pg_walfile_name', 'pg_current_wal_lsn', 'pg_postmaster_start_time', 'pg_notify', 'hashtextextended', 'pg_advisory_xact_lock', 'pg_try_advisory_xact_lock', 'set_config')
			AND NOT has_function_privilege(f.oid, 'EXECUTE'))
		FROM pg_namespace n WHERE n.nspname = `+in)
	if err != nil {
		return err
	}
	switch {
	case row[0] != "":
		t.fail("rights", "the role %s lacks %s: an administrator runs %s", printable(role), row[0], grants)
	case row[1] != "":
		t.fail("rights", "the role %s may not execute %s: an administrator runs %s", printable(role), row[1], grants)
	case row[2] != "":
		t.fail("rights", "the role %s may not execute %s of PostgreSQL, which the functions of coord call", printable(role), row[2])
	default:
		t.fine("rights", "those on the tables and functions of %s", shown)
	}
	return nil
}

// findNotifications sends a connection a notification over another one.
func (t *tool) findNotifications(ctx context.Context, conn *pgconn.PgConn) error {
	pid, err := queryRow(ctx, conn, "SELECT pg_backend_pid()")
	if err != nil {
		return err
	}
	pooled := ""
	if pid[0] != strconv.FormatUint(uint64(conn.PID()), 10) {
		pooled = ", through a connection pooler"
	}
	listener, err := t.dialPostgres(ctx, nil)
	if err != nil {
		return err
	}
	defer closePostgres(listener)
	channel := identifier("coordctl-check-" + rand.Text())
	if _, err := listener.Exec(ctx, "LISTEN "+channel).ReadAll(); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "NOTIFY "+channel).ReadAll(); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	switch err := listener.WaitForNotification(wait); {
	case err == nil:
		t.fine("notify", "notifications arrive%s", pooled)
	case wait.Err() == nil || ctx.Err() != nil:
		return err
	default:
		t.fail("notify", "no notification arrived within %v, as through a connection pooler in transaction mode: use a connection string that leads to the server itself, or to a pool in session mode; only programs can poll instead", serverTimeout)
	}
	return nil
}

// findDurability looks at what a crash or a failover can take back.
func (t *tool) findDurability(ctx context.Context, conn *pgconn.PgConn) error {
	row, err := queryRow(ctx, conn, "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication)")
	if err != nil {
		return err
	}
	fsync, commit, names := row[0], row[1], row[2]
	standbys, err := strconv.Atoi(row[3])
	if err != nil {
		return err
	}
	const missing = "the last writes that were answered can be missing: sessions that have seen them end"
	switch {
	case fsync == "off":
		t.warn("durability", "fsync is off: after a crash of the machine the database can be broken")
	case commit == "off":
		t.fine("durability", "synchronous_commit is off for this role; coord sets it to on on its connections")
	case commit == "local" && names != "":
		t.warn("durability", "synchronous_commit is local for this role, so commits do not wait for %s: after a failover %s", printable(names), missing)
	default:
		t.fine("durability", "synchronous_commit is %s", commit)
	}
	switch {
	case names != "":
		t.fine("standbys", "%s connected, synchronous_standby_names is %s", strconv.Itoa(standbys), printable(names))
	case standbys > 0:
		t.warn("standbys", "%d connected and synchronous_standby_names is empty: after a failover %s, and while the old primary goes on a lock can have two holders", standbys, missing)
	default:
		t.fine("standbys", "none connected, and synchronous_standby_names is empty")
	}
	return nil
}

// findTimeouts names what is set for the role, which the backend overrides.
func (t *tool) findTimeouts(ctx context.Context, conn *pgconn.PgConn) error {
	row, err := queryRow(ctx, conn, "SELECT string_agg(name || ' ' || current_setting(name), ', ' ORDER BY name) FROM pg_settings WHERE setting <> '0'"+
		" AND name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout')")
	if err != nil {
		return err
	}
	if row[0] == "" {
		t.fine("timeouts", "none is set for this role")
	} else {
		t.fine("timeouts", "%s for this role; coord overrides them on its connections", row[0])
	}
	return nil
}

// findConnections compares the connections in use with their limits.
func (t *tool) findConnections(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, `SELECT 'the server', coalesce(sum(numbackends), 0), current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int - coalesce(current_setting('reserved_connections', true)::int, 0) FROM pg_stat_database
		UNION ALL SELECT 'the database', (SELECT numbackends FROM pg_stat_database s WHERE s.datid = d.oid), datconnlimit FROM pg_database d WHERE datname = current_database() AND datconnlimit >= 0
		UNION ALL SELECT 'the role', (SELECT count(*) FROM pg_stat_activity a WHERE a.usesysid = r.oid), rolconnlimit FROM pg_roles r WHERE rolname = current_user AND rolconnlimit >= 0`).ReadAll()
	if err != nil {
		return err
	}
	tight := false
	var parts []string
	for _, row := range results[0].Rows {
		used, err1 := strconv.Atoi(string(row[1]))
		most, err2 := strconv.Atoi(string(row[2]))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		tight = tight || used*10 >= most*9
		parts = append(parts, fmt.Sprintf("%d of %d of %s", used, most, row[0]))
	}
	t.find("connections", true, tight, "in use: %s; each client of coord has one", strings.Join(parts, ", "))
	return nil
}
