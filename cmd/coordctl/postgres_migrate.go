package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/go-coord/coord/backend/postgres"
)

// postgresCommand returns the verb postgres and that below it.
func (t *tool) postgresCommand() *cobra.Command {
	var show bool
	migrate := t.command(verb{
		name: "migrate", backend: "postgres", short: "make the schema, or update it for this version of the library",
		long: `
The schema is that of --schema, "coord" by default, in the database of --servers; see coordctl help
config. migrate changes nothing in a schema that is up to date. The role needs the right to create the
schema, or must own it. Programs that use an older version of the library continue, unless their
version cannot use the new layout: the notes of a release say so.

If the sessions of coord use another role, here coord, it needs rights of its own. A role whose
transactions only check guards or carry commits, here app, needs USAGE:

  GRANT USAGE ON SCHEMA coord TO coord, app;
  GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA coord TO coord;

With --print it prints the SQL instead, for psql -1, and needs no server. A program makes the schema
itself if its role may do that; the other verbs of coordctl never make or change it.`,
		example: `
coordctl postgres migrate --servers postgres://admin@db1/orders
coordctl postgres migrate --print --schema orders`,
		exits: []int{exitFailed, exitSignal},
		local: func(cmd *cobra.Command) error {
			if show {
				return t.await(cmd.Context(), func(ctx context.Context) error { return t.printMigration(ctx) })
			}
			return t.await(cmd.Context(), t.migrate)
		},
	})
	migrate.Flags().BoolVar(&show, "print", false, "print the SQL, and do nothing")
	return t.command(verb{
		name: "postgres", short: "make or update the schema of a PostgreSQL database",
		below: []*cobra.Command{migrate},
	})
}

// schemaName is that of --schema.
func (t *tool) schemaName() string { return cmp.Or(t.schema, "coord") }

// migrated is what migrate has done, as JSON.
type migrated struct {
	Schema string `json:"schema"`
	Layout int    `json:"layout"` // now
	Before int    `json:"before"` // 0: there was none
}

func (t *tool) printMigration(ctx context.Context) error {
	sql := postgres.Migration(t.schema)
	return t.print(ctx, struct {
		SQL string `json:"sql"`
	}{sql}, sql)
}

// migrate makes or updates the schema. A reply that is lost does no harm: a second call finds it made.
func (t *tool) migrate(ctx context.Context) error {
	limit := openLimit
	if t.wait > 0 {
		limit = t.wait
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %v", limit))
	defer cancel()
	conn, err := t.dialPostgres(ctx, nil)
	if err != nil {
		return err
	}
	defer closePostgres(conn)
	v := migrated{Schema: t.schemaName()}
	if v.Before, err = layoutOf(ctx, conn, v.Schema); err != nil {
		return err
	}
	const begin = "BEGIN READ WRITE; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; " // which can be set for the role
	if _, err := conn.Exec(ctx, begin+postgres.Migration(t.schema)+"COMMIT").ReadAll(); err != nil {
		return fmt.Errorf("the schema %s is not changed: %w", printable(v.Schema), err)
	}
	if v.Layout, err = layoutOf(ctx, conn, v.Schema); err != nil {
		return err
	}
	text := fmt.Sprintf("schema %s: layout %d, nothing to do\n", printable(v.Schema), v.Layout)
	switch {
	case v.Before == 0:
		text = fmt.Sprintf("schema %s: made with layout %d\n", printable(v.Schema), v.Layout)
	case v.Before < v.Layout:
		text = fmt.Sprintf("schema %s: updated from layout %d to %d\n", printable(v.Schema), v.Before, v.Layout)
	}
	return t.done(ctx, v, text, "", nil)
}

// layoutOf returns the version of the layout of a schema, or 0 if it has none.
func layoutOf(ctx context.Context, conn *pgconn.PgConn, schema string) (int, error) {
	results, err := conn.Exec(ctx, "SELECT version FROM "+identifier(schema)+".layout").ReadAll()
	var e *pgconn.PgError
	switch {
	case errors.As(err, &e) && (e.Code == "42P01" || e.Code == "3F000"): // no table, no schema
		return 0, nil
	case err != nil:
		return 0, err
	case len(results) != 1 || len(results[0].Rows) != 1:
		return 0, fmt.Errorf("the schema %s is not one of coord: its table layout has no row", printable(schema))
	}
	return strconv.Atoi(string(results[0].Rows[0][0]))
}
