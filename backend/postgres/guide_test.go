package postgres_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// guide returns the SQL blocks of docs/production.md.
func guide(t *testing.T) (roles, schema, watch, restore string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/production.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, b := range regexp.MustCompile("(?s)\n```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, b[1])
	}
	if len(blocks) != 4 || !strings.Contains(blocks[1], "\n\\i migration.sql\n") {
		t.Fatalf("the page has the SQL blocks %q", blocks)
	}
	return blocks[0], strings.Replace(blocks[1], "\\i migration.sql", postgres.Migration(""), 1), blocks[2], blocks[3]
}

// TestGuide runs the statements of docs/production.md.
func TestGuide(t *testing.T) {
	roles, schema, watch, restore := guide(t)
	// A server of its own, since roles belong to the whole server, and the database is copied.
	s := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"fsync": "off"}})
	ctx := t.Context()
	run := func(database, sql string) string {
		t.Helper()
		out, err := s.Exec(ctx, database, sql)
		if err != nil {
			t.Fatalf("%s\n%s: %v", sql, out, err)
		}
		return out
	}
	as := func(role string) string {
		return strings.Replace(s.URL("orders"), "postgres@", role+"@", 1)
	}
	lock := func(then func(h *coord.Hold)) int64 {
		t.Helper()
		c, err := coord.Open(ctx, postgres.New(as("coord"), &postgres.Options{SessionTimeout: time.Minute}), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		h, err := coord.NewMutex(c, "/lock", nil).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		then(h)
		return h.Token()
	}

	run("", "CREATE DATABASE orders")
	run("orders", roles)
	run("orders", schema)
	if owner := run("orders", "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'coord'"); strings.TrimSpace(owner) != "coord_owner" {
		t.Errorf("the tables belong to %q", owner)
	}
	lock(func(h *coord.Hold) {
		conn, err := pgx.Connect(ctx, as("app"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		tx, err := conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := postgres.Check(ctx, tx, h.Guard(), nil); err != nil {
			t.Error(err)
		}
		if err := tx.Commit(ctx); err != nil {
			t.Error(err)
		}
		if _, err := conn.Exec(ctx, "SELECT FROM coord.node"); err == nil {
			t.Error("the role of the application can read the nodes")
		}
		lines := strings.Split(run("orders", watch), "\n")
		if !strings.HasPrefix(lines[0], "1|") || lines[1] != "1|0" || lines[2] != "0" || !strings.Contains(strings.Join(lines, "\n"), "\nclock|") {
			t.Errorf("the queries show %q", lines)
		}
	})

	// A copy that is older than the latest tokens. A database is copied when no connection is left.
	alone := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); run("", "SELECT pid FROM pg_stat_activity WHERE datname = 'orders'") != ""; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the clients have closed, and their connections are still there")
			}
		}
	}
	alone()
	run("", "CREATE DATABASE backup TEMPLATE orders")
	latest := int64(0)
	for range 3 {
		latest = lock(func(*coord.Hold) {})
	}
	alone()
	run("", "DROP DATABASE orders")
	run("", "ALTER DATABASE backup RENAME TO orders")
	run("orders", restore)
	if token := lock(func(*coord.Hold) {}); token <= latest {
		t.Errorf("token %d after a restore, want more than %d", token, latest)
	}
}
