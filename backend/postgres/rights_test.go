package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// Open names the missing rights on the tables and functions of a session. Other objects in the schema do not matter.
func TestOpen_NamesTheRightsThatARoleLacks(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.Get(t).Addr(), postgres.Options{})
	schema := s.opts.Schema
	exec := func(sql string) {
		t.Helper()
		if err := s.exec(strings.ReplaceAll(sql, "{s}", schema)); err != nil {
			t.Fatal(err)
		}
	}
	exec(postgres.Migration(schema))
	exec("CREATE ROLE {s} LOGIN; GRANT USAGE ON SCHEMA {s} TO {s}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {s} TO {s};" +
		"CREATE TABLE {s}.other (); CREATE FUNCTION {s}.other() RETURNS int LANGUAGE sql AS 'SELECT 1'; REVOKE EXECUTE ON FUNCTION {s}.other() FROM PUBLIC")
	b := postgres.New(strings.Replace(pgtest.URL(s.server, ""), "postgres://postgres@", "postgres://"+schema+"@", 1), &s.opts)
	open := func() error {
		session, err := b.Open(t.Context())
		if err != nil {
			return err
		}
		return session.Close()
	}
	if err := open(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ revoke, lacks, grant string }{
		{"REVOKE DELETE ON {s}.node FROM {s}", "DELETE on table node", "GRANT DELETE ON {s}.node TO {s}"},
		{"REVOKE INSERT ON {s}.change FROM {s}", "INSERT on table change", "GRANT INSERT ON {s}.change TO {s}"},
		{"REVOKE EXECUTE ON FUNCTION {s}.reap FROM PUBLIC", "EXECUTE on function reap", "GRANT EXECUTE ON FUNCTION {s}.reap TO PUBLIC"},
	} {
		exec(test.revoke)
		if err := open(); !errors.Is(err, backend.ErrDenied) || !strings.Contains(err.Error(), test.lacks) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want ErrDenied and %q", test.revoke, err, test.lacks)
		}
		exec(test.grant)
	}
	if err := open(); err != nil {
		t.Error(err)
	}
}

// A schema that is dropped while Open checks the rights is an error, after which Open tries again.
func TestOpen_ASchemaDroppedMeanwhile(t *testing.T) {
	t.Parallel()
	conn, err := pgconn.Connect(t.Context(), shared.Get(t).URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := postgres.CheckRights(t.Context(), conn, "dropped"); err == nil || errors.Is(err, backend.ErrDenied) || errors.Is(err, backend.ErrInvalid) {
		t.Errorf("the rights in a schema that does not exist: %v", err)
	}
}

// Paths are UTF-8, so a database with another encoding is refused.
func TestOpen_RefusesAnotherEncoding(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	if _, err := server.Exec(t.Context(), "", "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"); err != nil {
		t.Fatal(err)
	}
	for _, poll := range []time.Duration{0, time.Second} {
		s, err := postgres.New(server.URL("latin"), &postgres.Options{Poll: poll}).Open(t.Context())
		if err == nil {
			s.Close()
		}
		if !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("Poll %v: %v, want ErrInvalid", poll, err)
		}
	}
}

// The time limits of a role do not bound the statements of its sessions, not even those of Open.
func TestOpen_DespiteTheTimeoutOfTheRole(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.Get(t).Addr(), postgres.Options{})
	if err := s.exec(strings.ReplaceAll("CREATE ROLE {s} LOGIN SUPERUSER; ALTER ROLE {s} SET statement_timeout = 1", "{s}", s.opts.Schema)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	session, err := postgres.New(strings.Replace(pgtest.URL(s.server, ""), "postgres@", s.opts.Schema+"@", 1), &s.opts).Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	session.Close()
}
