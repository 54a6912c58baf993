package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// A layout is the tables and functions of a schema. The table layout of the schema has its version, and the oldest version
// that a library must know to use it. A library updates an older schema step by step. A step that earlier versions of the
// library cannot use also sets oldest; then their next connection fails.
//
// Each commit updates the row of the clock and those of its parents, so a snapshot that stays open slows commits down. Alternatives
// were measured on PostgreSQL 15, in processor time of the server and in the rate beside a snapshot of 20 seconds. Positions from a
// sequence, or as the maximum of an insert-only table, with counts by count(*), cost the same and fell to 0.12 and 0.22 of their
// rate. Counters in a table with the position in its key fell to 0.85 only, but a commit took 1.15 times the processor time, and one
// with three deletions 1.6 times.

//go:embed schema.sql
var first string

// steps are the layouts: step i leads from version i to version i+1. A step is never changed after its release.
var steps = []string{first}

// Layout returns the version of the tables and functions that this version of the library uses, and that Migration
// makes. The row of the table layout of a schema has the version of that schema.
func Layout() int { return len(steps) }

// Migration returns the SQL that makes or updates a schema, from any version; "" means "coord". The SQL changes nothing in a schema
// that is not older than the library. If the role of the sessions may create a schema, Open does all this itself. Otherwise an
// administrator runs the SQL with psql in one transaction (-1), and then grants the role USAGE of the schema, and SELECT, INSERT,
// UPDATE and DELETE on all its tables.
func Migration(schema string) string {
	if schema == "" {
		schema = defaultSchema
	}
	tag := "$coord" // quotes text that contains the name
	for strings.Contains(schema, tag) {
		tag += "_"
	}
	block, text := tag+"_block$", tag+"_text$"
	var sql strings.Builder
	sql.WriteString(fill("SELECT pg_advisory_xact_lock(hashtextextended({l}, 7400));\n", schema))
	for i, step := range steps {
		// The server analyses a statement of a block when it executes it, so each step sees the tables of the earlier steps.
		old := fmt.Sprintf("(SELECT version FROM {s}.layout) < %d", i+1)
		if i == 0 {
			old = "to_regclass({t}) IS NULL"
		}
		sql.WriteString(fill("\nDO "+block+" BEGIN\nIF "+old+" THEN\nEXECUTE "+text+"\n"+step+"\n"+text+";\nEND IF;\nEND "+block+";\n", schema))
	}
	return sql.String()
}

// ensureLayout makes or updates the layout, if that is needed and create is true.
func (c *config) ensureLayout(ctx context.Context, conn *pgconn.PgConn, create bool) error {
	version, err := c.layout(ctx, conn)
	if err != nil || version == len(steps) {
		return err
	}
	if !create {
		return fmt.Errorf("postgres: schema %q has layout %d, the session needs %d", c.schema, version, len(steps))
	}
	if c.keep {
		return contact.Invalid("schema %q is missing or old, and Options.KeepSchema is set: have an administrator run `coordctl postgres migrate`, or the SQL of postgres.Migration", c.schema)
	}
	if err := c.migrate(ctx, conn); err != nil {
		conn.Exec(ctx, "ROLLBACK").Close()
		var e *pgconn.PgError
		if errors.As(err, &e) && e.Code == "42501" {
			return fmt.Errorf("%w: schema %q is missing or old, and the role may not change it: have an administrator run the SQL of postgres.Migration, or `coordctl postgres migrate`: %s", backend.ErrDenied, c.schema, e.Message)
		}
		if errors.As(err, &e) && slices.Contains([]string{"42P07", "42723", "42710"}, e.Code) { // a table, function or type exists
			return contact.Invalid("schema %q is not one of coord, it has something else of a name that coord needs: %s", c.schema, e.Message)
		}
		return err
	}
	return nil
}

// layout returns the version of the layout, or 0 if there is none.
func (c *config) layout(ctx context.Context, conn *pgconn.PgConn) (int, error) {
	results, err := conn.Exec(ctx, fill("SELECT version, oldest FROM {s}.layout", c.schema)).ReadAll()
	var e *pgconn.PgError
	switch {
	case errors.As(err, &e) && (e.Code == "42P01" || e.Code == "3F000"):
		return 0, nil
	case errors.As(err, &e) && e.Code == "42703":
		return 0, contact.Invalid("schema %q is not one of coord: its table layout is another one: %s", c.schema, e.Message)
	case err != nil:
		return 0, err
	case len(results) != 1 || len(results[0].Rows) != 1:
		return 0, contact.Invalid("schema %q is not one of coord: its table layout has no row", c.schema)
	}
	row := results[0].Rows[0]
	version, err1 := strconv.Atoi(string(row[0]))
	oldest, err2 := strconv.Atoi(string(row[1]))
	switch {
	case err1 != nil || err2 != nil || version < 1:
		return 0, contact.Invalid("schema %q is not one of coord: its table layout has %q", c.schema, row)
	case oldest > len(steps):
		return 0, contact.Invalid("schema %q has layout %d, this version of the library knows layout %d: update it", c.schema, version, len(steps))
	}
	return min(version, len(steps)), nil // a newer layout that this library can use needs no update
}

// migrate updates the layout to the version of the library, in one transaction, and one client at a time. The server waits for
// another client as long as the longest attempt of Open.
func (c *config) migrate(ctx context.Context, conn *pgconn.PgConn) error {
	if err := conn.Exec(ctx, fill("BEGIN; SET LOCAL lock_timeout = '10s'; SELECT pg_advisory_xact_lock(hashtextextended({l}, 7400))", c.schema)).Close(); err != nil {
		return err
	}
	there, err := conn.Exec(ctx, fill("SELECT to_regclass({t})", c.schema)).ReadAll()
	if err != nil {
		return err
	}
	version := 0
	if there[0].Rows[0][0] != nil {
		if version, err = c.layout(ctx, conn); err != nil {
			return err
		}
	}
	for _, step := range steps[version:] {
		if err := conn.Exec(ctx, fill(step, c.schema)).Close(); err != nil {
			return err
		}
	}
	return conn.Exec(ctx, "COMMIT").Close()
}
