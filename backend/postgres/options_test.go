package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// Open returns at once if an argument of New is invalid. Its error shows no password.
func TestOpen_RefusesInvalidOptions(t *testing.T) {
	t.Parallel()
	const good = "postgres://orders:sEcReT@127.0.0.1:1/orders"
	for _, test := range []struct {
		name, conn string
		o          postgres.Options
	}{
		{"the port", "postgres://orders:sEcReT@127.0.0.1:port/orders", postgres.Options{}},
		{"a URL whose password is not escaped", "postgres://orders:sEcReT%zz@127.0.0.1:1/orders", postgres.Options{}},
		{"keywords", "host=127.0.0.1 password='sEcReT", postgres.Options{}},
		{"keywords in capitals", "host=127.0.0.1 PASSWORD='sEcReT", postgres.Options{}},
		{"no connection string", "nothing of the kind", postgres.Options{}},
		{"the timeout", good, postgres.Options{SessionTimeout: time.Millisecond}},
		{"the margin", good, postgres.Options{SessionTimeout: 10 * time.Second, LossMargin: time.Millisecond}},
		{"a margin of the whole timeout", good, postgres.Options{SessionTimeout: 10 * time.Second, LossMargin: 10 * time.Second}},
		{"a schema of the server", good, postgres.Options{Schema: "pg_coord"}},
		{"a long schema", good, postgres.Options{Schema: strings.Repeat("s", 41)}},
		{"a schema with a control character", good, postgres.Options{Schema: "a\x00"}},
		{"a schema that ends a block", good, postgres.Options{Schema: "a$$b"}},
		{"a schema that is no text", good, postgres.Options{Schema: "a\xff"}},
		{"the interval of polls", good, postgres.Options{Poll: -1}},
		{"an interval of polls longer than the timeout", good, postgres.Options{Poll: time.Minute, SessionTimeout: time.Second}},
	} {
		b := postgres.New(test.conn, &test.o)
		s, err := b.Open(context.Background())
		if s != nil || !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", test.name, err)
		}
		if said := fmt.Sprint(err, b); strings.Contains(said, "EcR") {
			t.Errorf("%s: the password is in %s", test.name, said)
		}
	}
}

// The error of Open wraps the error of BeforeConnect. An attempt that had no time does not replace it.
func TestOpen_AnAttemptWithoutTimeSaysNothing(t *testing.T) {
	t.Parallel()
	var late atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	attempts := 0
	before := func(context.Context, *pgconn.Config) error {
		attempts++
		switch attempts {
		case 1:
			return errors.New("no password")
		case 2:
			late.Store(true)
		default:
			cancel()
		}
		return os.ErrDeadlineExceeded
	}
	_, err := postgres.New("postgres://orders@127.0.0.1:1/orders", &postgres.Options{BeforeConnect: before}).Open(coordtest.Overdue{Context: ctx, Late: &late})
	if attempts != 3 || !errors.Is(err, context.Canceled) || !strings.HasSuffix(err.Error(), "no password") {
		t.Errorf("after %d attempts: %v", attempts, err)
	}
}

// When the context of Open ends during a query, nothing asks the server to cancel it.
func TestOpen_CancelsNothing(t *testing.T) {
	t.Parallel()
	sh := newBareShop(t, newService(t, shared.Get(t).Addr(), postgres.Options{}), "15s")
	opened(t, sh.link("first")) // makes the schema
	tx, err := sh.conn().Begin(sh.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(sh.ctx, sh.sql("LOCK TABLE {s}.layout")); err != nil {
		t.Fatal(err)
	}
	var attempts, dials atomic.Int32
	o := sh.opts
	o.BeforeConnect = func(_ context.Context, c *pgconn.Config) error {
		attempts.Add(1)
		dial := c.DialFunc
		c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return dial(ctx, network, address)
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	opening := make(chan error, 1)
	go func() {
		_, err := postgres.New(pgtest.URL(sh.server, ""), &o).Open(ctx)
		opening <- err
	}()
	err = sh.eventually("the query of Open waits", func() (bool, error) {
		return ask[bool](sh, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%"{s}".layout%')`)
	})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-opening; !errors.Is(err, context.Canceled) {
		t.Errorf("Open: %v", err)
	}
	// The connection is closed by pgx on a goroutine of its own, after the request to cancel.
	err = sh.eventually("the connection is closed", func() (bool, error) {
		stacks := make([]byte, 1<<22)
		return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "asyncClose"), nil
	})
	if err != nil {
		t.Error(err)
	}
	if attempts.Load() != 1 || dials.Load() != 1 {
		t.Errorf("%d connections for %d attempts, want 1 for 1", dials.Load(), attempts.Load())
	}
	if err := tx.Rollback(sh.ctx); err != nil {
		t.Error(err)
	}
}
