package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// wantFenced fails the test unless err is the refusal of a guard because of the node at path.
func wantFenced(t *testing.T, err error, path string, why error) {
	t.Helper()
	wantErr(t, err, coord.ErrFenced, coord.ErrConflict, why)
	var e *coord.ConflictError
	if !errors.As(err, &e) || e.Op != "guard" || e.Index != 0 || e.Path != path {
		t.Errorf("refusal %#v, want one of the guard of %s", err, path)
	}
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("error %v, want one with the code %s", err, code)
	}
}

// A refusal and an error of the database undo the transaction, even if the caller ignores them.
func TestGuard_ARefusalAbortsTheTransaction(t *testing.T) {
	t.Parallel()
	sh := newShop(t, nil)
	c := sh.client("a")
	for _, driver := range drivers {
		h := lock(t, c, "/"+driver)
		must(t, h.Release())
		tx := sh.begin(driver, pgx.ReadCommitted)
		must(t, tx.exec(payment, driver))
		wantFenced(t, tx.check(h.Guard(), nil), h.Path(), backend.ErrNotFound)
		if err := tx.Commit(); err == nil {
			t.Errorf("%s: a refused transaction has committed", driver)
		}
		if n, err := sh.amount(driver); err != nil || n != 0 {
			t.Errorf("%s: it has paid %d, %v", driver, n, err)
		}
		// A savepoint limits that.
		tx = sh.begin(driver, pgx.ReadCommitted)
		must(t, tx.exec(payment, driver))
		must(t, tx.exec("SAVEPOINT s"))
		wantFenced(t, tx.check(h.Guard(), nil), h.Path(), backend.ErrNotFound)
		must(t, tx.exec("ROLLBACK TO s"))
		must(t, tx.Commit())
		if n, err := sh.amount(driver); err != nil || n != 1 {
			t.Errorf("%s: it has paid %d, %v", driver, n, err)
		}
	}
}

// A transaction whose snapshot is older than the grant is refused: it lacks the writes of the earlier holder.
func TestGuard_ASnapshotFromBeforeTheGrantIsRefused(t *testing.T) {
	t.Parallel()
	sh := newShop(t, nil)
	c := sh.client("a")
	for _, level := range levels[1:] {
		name := "/" + string(level)
		earlier := lock(t, c, name)
		tx := sh.begin("pgx", level)
		must(t, tx.exec("SELECT FROM {s}.account"))
		must(t, sh.exec(sh.sql(payment), name)) // of the earlier holder
		must(t, earlier.Release())
		h := lock(t, c, name)
		wantFenced(t, tx.check(h.Guard(), nil), h.Path(), backend.ErrNotFound)
		again := sh.begin("pgx", level)
		must(t, again.check(h.Guard(), nil))
		must(t, again.Commit())
	}
}

// Check accepts holds of every client and namespace, several at once, and nodes of any name.
func TestGuard_WhoseHold(t *testing.T) {
	t.Parallel()
	sh := newShop(t, nil)
	c := sh.client("a")
	spaced, err := coord.Open(t.Context(), sh.link("b"), &coord.Options{Namespace: "/space"})
	must(t, err)
	t.Cleanup(func() { spaced.Close() })
	strange := lock(t, spaced, `/a "quoted\" {name}, NULL, ä`)
	set, err := coord.LockAll(t.Context(), coord.NewMutex(c, "/one", nil), coord.NewMutex(c, "/two", nil))
	must(t, err)
	kept, err := coord.NewMutex(c, "/kept", &coord.MutexOptions{Keep: time.Hour}).Lock(t.Context())
	must(t, err)

	tx := sh.begin("pgx", pgx.ReadCommitted)
	for _, g := range []coord.Guard{strange.Guard(), set.Guard(), kept.Guard()} {
		counted := &counter{Tx: tx.(pgxPurchase).tx}
		if err := postgres.Check(t.Context(), counted, g, sh.checkOptions(nil)); err != nil || counted.n != 1 {
			t.Errorf("%d statements: %v", counted.n, err)
		}
	}
	must(t, tx.Commit())

	// One of several holds has ended.
	two := set.Holds()[1]
	must(t, two.Release())
	wantFenced(t, sh.begin("pgx", pgx.ReadCommitted).check(set.Guard(), nil), two.Path(), backend.ErrNotFound)
	// Check was a use of Guard.Ops, so the client does not keep the node.
	must(t, kept.Release())
	wantErr(t, sh.begin("pgx", pgx.ReadCommitted).check(kept.Guard(), nil), coord.ErrFenced)
	if there, err := ask[bool](sh, "SELECT EXISTS (SELECT FROM {s}.node WHERE path = $1)", kept.Path()); err != nil || there {
		t.Errorf("the node of a kept lock after Check and Release: %t, %v", there, err)
	}

	// Other schemas and backends have no such node.
	elsewhere, err := coord.Open(t.Context(), memory.New(nil), nil)
	must(t, err)
	t.Cleanup(func() { elsewhere.Close() })
	other := newShop(t, nil)
	for _, h := range []*coord.Hold{lock(t, elsewhere, "/one"), lock(t, other.client("a"), "/else")} {
		wantFenced(t, sh.begin("pgx", pgx.ReadCommitted).check(h.Guard(), nil), h.Path(), backend.ErrNotFound)
	}
}

// counter counts the statements of a transaction.
type counter struct {
	pgx.Tx
	n int
}

func (c *counter) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	c.n++
	return c.Tx.Exec(ctx, sql, args...)
}

// Check refuses invalid arguments locally, and the database refuses the rest.
func TestGuard_Errors(t *testing.T) {
	t.Parallel()
	sh := newShop(t, nil)
	h := lock(t, sh.client("a"), "/lock")
	ctx := t.Context()
	level := pgx.ReadCommitted
	o := sh.checkOptions(nil)

	tx := sh.begin("pgx", level).(pgxPurchase).tx
	wantErr(t, postgres.Check(ctx, tx, coord.Guard{}, o), backend.ErrInvalid)
	wantErr(t, postgres.Check(ctx, nil, h.Guard(), o), backend.ErrInvalid)
	wantErr(t, postgres.CheckSQL(ctx, nil, h.Guard(), o), backend.ErrInvalid)
	cause := errors.New("cause")
	over, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	wantErr(t, postgres.Check(over, tx, h.Guard(), o), context.Canceled, cause)
	must(t, postgres.Check(ctx, tx, h.Guard(), o)) // nothing was sent before
	must(t, tx.Commit(ctx))
	wantErr(t, postgres.Check(ctx, tx, h.Guard(), o), pgx.ErrTxClosed)
	old := sh.begin("database/sql", level).(sqlPurchase)
	must(t, old.Rollback())
	wantErr(t, old.check(h.Guard(), nil), sql.ErrTxDone)

	for _, schema := range []string{"", `no "such" schema`, "public"} {
		err := postgres.Check(ctx, sh.begin("pgx", level).(pgxPurchase).tx, h.Guard(), &postgres.CheckOptions{Schema: schema})
		wantErr(t, err, backend.ErrInvalid)
	}
	must(t, sh.exec("CREATE DATABASE "+sh.opts.Schema))
	conn, err := pgx.Connect(ctx, pgtest.URL(sh.server, sh.opts.Schema))
	must(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	otherDB, err := conn.Begin(ctx)
	must(t, err)
	wantErr(t, postgres.Check(ctx, otherDB, h.Guard(), o), backend.ErrInvalid)

	readOnly, err := sh.conn().BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	must(t, err)
	wantCode(t, postgres.Check(ctx, readOnly, h.Guard(), o), "25006")
	wantCode(t, postgres.Check(ctx, readOnly, h.Guard(), o), "25P02")
}

// Each way in which pgx sends statements, and a carried commit in the same transaction.
func TestGuard_QueryExecModes(t *testing.T) {
	t.Parallel()
	sh := newShop(t, nil)
	c := sh.client("a")
	h := lock(t, c, `/a 'quoted' "name\`)
	ctx := t.Context()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		url := pgtest.URL(sh.server, "") + "&default_query_exec_mode=" + mode
		db, err := sql.Open("pgx", url)
		must(t, err)
		t.Cleanup(func() { db.Close() })
		conn, err := pgx.Connect(ctx, url)
		must(t, err)
		t.Cleanup(func() { conn.Close(context.Background()) })
		tx, err := conn.Begin(ctx)
		must(t, err)
		sqlTx, err := db.BeginTx(ctx, nil)
		must(t, err)
		for range 2 {
			must(t, errors.Join(postgres.Check(ctx, tx, h.Guard(), sh.checkOptions(nil)), postgres.CheckSQL(ctx, sqlTx, h.Guard(), sh.checkOptions(nil))))
		}
		must(t, postgres.Commit(ctx, tx, coord.NewTxn(c).Under(h.Guard()).Create("/"+mode, nil, backend.Persistent)))
		must(t, tx.Commit(ctx))
		if there, err := ask[bool](sh, "SELECT EXISTS (SELECT FROM {s}.node WHERE path = $1)", "/"+mode); err != nil || !there {
			t.Errorf("%s: the carried commit was applied: %t, %v", mode, there, err)
		}
		must(t, sqlTx.Commit())
	}
}

// The guard of a Branch compares a version.
func TestGuard_OfABranch(t *testing.T) {
	t.Parallel()
	sh := newShop(t, nil)
	var prepared coord.Guard
	check := func(g coord.Guard) error {
		tx := sh.begin("pgx", pgx.ReadCommitted)
		return errors.Join(tx.check(g, nil), tx.Commit())
	}
	var inPrepare, inCommit, stale error
	site := coord.NewParticipant(sh.client("a"), "/tx", "a", coord.Handler[string]{
		Prepare: func(_ context.Context, b coord.Branch[string]) error {
			prepared = b.Guard()
			inPrepare = check(prepared)
			return inPrepare
		},
		Commit: func(_ context.Context, b coord.Branch[string]) error {
			inCommit = check(b.Guard())
			stale = sh.begin("pgx", pgx.ReadCommitted).check(prepared, nil)
			return nil
		},
		Abort: func(context.Context, coord.Branch[string]) error { return nil },
	})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- site.Serve(ctx) }()
	defer func() {
		cancel()
		<-served
	}()
	co := coord.NewCoordinator[string](sh.client("b"), "/tx", nil)
	must(t, sh.eventually("the site is served", func() (bool, error) {
		d, err := co.Propose(ctx, coord.Proposal[string]{ID: "t1", Sites: []string{"a"}})
		if errors.Is(err, coord.ErrNotFound) {
			return false, nil
		}
		if err == nil && !d.Commit {
			err = errors.New(d.Reason)
		}
		return true, err
	}))
	must(t, sh.eventually("the transaction is over", func() (bool, error) {
		_, err := co.Status(ctx, "t1")
		if errors.Is(err, coord.ErrNotFound) {
			return true, nil
		}
		return false, err
	}))
	cancel()
	served <- <-served // the handler has returned
	if inPrepare != nil || inCommit != nil {
		t.Errorf("in Prepare %v, in Commit %v", inPrepare, inCommit)
	}
	wantErr(t, stale, coord.ErrFenced, backend.ErrBadVersion)
}
