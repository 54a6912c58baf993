package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/fence"
	"github.com/go-coord/coord/fence/pgxfence"
)

// lock takes a lock at /p on a service of its own, and returns how to end its session.
func lock(t *testing.T) (h *coord.Hold, expire func()) {
	t.Helper()
	c, link := client(t, memory.New(nil), "a")
	h, err := coord.NewMutex(c, "/p", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h, func() { link.Expire(h.Session()) }
}

// insert returns a function for Tx that writes a token.
func (d *database) insert(token int64) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error { return d.write(ctx, tx, token) }
}

// wantFree fails the test if a transaction has raised the token, or still has its lock.
func (d *database) wantFree() {
	d.t.Helper()
	if err := d.f.Tx(context.Background(), d.db, tokenOf(1), func(context.Context, *sql.Tx) error { return nil }); err != nil {
		d.t.Errorf("the transaction has left something: %v", err)
	}
}

func TestTx_EndsWithItsHold(t *testing.T) {
	each(t, func(d *database) {
		h, expire := lock(d.t)
		err := d.f.Tx(d.t.Context(), d.db, fence.Of(h), func(ctx context.Context, tx *sql.Tx) error {
			if err := d.write(ctx, tx, h.Token()); err != nil {
				return err
			}
			expire()
			<-ctx.Done()
			return nil
		})
		wantErr(d.t, err, coord.ErrLost, context.Canceled)
		err = d.f.Tx(d.t.Context(), d.db, fence.Of(h), d.insert(1))
		wantErr(d.t, err, coord.ErrLost)
		if errors.Is(err, coord.ErrUncertain) {
			d.t.Errorf("nothing was sent: %v", err)
		}
		d.wantWritten()
		d.wantFree()
	})
}

// The error of a statement that the end of the hold has stopped says so.
func TestTx_WhoseStatementEndsWithItsHold(t *testing.T) {
	each(t, func(d *database) {
		if d.kind == "sqlite" {
			d.t.Skip("nothing shows that it waits")
		}
		h, expire := lock(d.t)
		other := d.begin(sql.LevelDefault)
		if err := d.f.Check(d.t.Context(), other, fence.Of(h)); err != nil {
			d.t.Fatal(err)
		}
		go func() {
			d.awaitBlocked(1)
			expire()
		}()
		wantErr(d.t, d.f.Tx(d.t.Context(), d.db, fence.Of(h), d.insert(1)), coord.ErrLost)
		other.Rollback()
		d.wantWritten()
	})
}

func TestTx_OfAReleasedHold(t *testing.T) {
	each(t, func(d *database) {
		h, _ := lock(d.t)
		token := fence.Of(h)
		if err := d.f.Tx(d.t.Context(), d.db, token, d.insert(h.Token())); err != nil {
			d.t.Fatal(err)
		}
		if err := h.Release(); err != nil {
			d.t.Fatal(err)
		}
		wantErr(d.t, d.f.Tx(d.t.Context(), d.db, token, d.insert(1)), coord.ErrReleased)
		wantErr(d.t, d.f.Check(d.t.Context(), d.begin(sql.LevelDefault), token), coord.ErrReleased)
		d.wantWritten(h.Token())
	})
}

func TestTx_WhoseFunctionDoesNotReturnNil(t *testing.T) {
	each(t, func(d *database) {
		mine := errors.New("mine")
		tx := func(end func() error) error {
			return d.f.Tx(context.Background(), d.db, tokenOf(5), func(ctx context.Context, tx *sql.Tx) error {
				if err := d.write(ctx, tx, 5); err != nil {
					d.t.Error(err)
				}
				return end()
			})
		}
		if err := tx(func() error { return mine }); err != mine {
			d.t.Errorf("error %v, want that of the function", err)
		}
		d.wantFree()
		func() {
			defer func() {
				if recover() != "boom" {
					d.t.Error("the panic was lost")
				}
			}()
			tx(func() error { panic("boom") })
		}()
		d.wantFree()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			tx(func() error { runtime.Goexit(); return nil })
		}()
		<-ended
		d.wantFree()
		d.wantWritten()
	})
}

func TestTx_WhoseFunctionEndsTheTransaction(t *testing.T) {
	each(t, func(d *database) {
		err := d.f.Tx(d.t.Context(), d.db, tokenOf(5), func(_ context.Context, tx *sql.Tx) error { return tx.Commit() })
		wantErr(d.t, err, coord.ErrInvalid, sql.ErrTxDone)
	})
}

func TestTx_WithAContextThatEnds(t *testing.T) {
	each(t, func(d *database) {
		ctx, cancel := context.WithCancel(d.t.Context())
		err := d.f.Tx(ctx, d.db, tokenOf(5), func(ctx context.Context, tx *sql.Tx) error {
			err := d.write(ctx, tx, 5)
			cancel()
			return err
		})
		wantErr(d.t, err, context.Canceled)
		if errors.Is(err, coord.ErrUncertain) {
			d.t.Errorf("nothing was sent: %v", err)
		}
		wantErr(d.t, d.f.Tx(ctx, d.db, tokenOf(5), d.insert(5)), context.Canceled)
		d.wantWritten()
		d.wantFree()
	})
}

// The server ends the connection, so that no reply to COMMIT comes.
func TestTx_WhoseCommitHasNoReply(t *testing.T) {
	each(t, func(d *database) {
		identity, end := "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%d)"
		switch d.kind {
		case "mariadb":
			identity, end = "SELECT connection_id()", "KILL %d"
		case "sqlite":
			d.t.Skip("it has no connection to lose")
		}
		err := d.f.Tx(d.t.Context(), d.db, tokenOf(5), func(ctx context.Context, tx *sql.Tx) error {
			var id int64
			if err := tx.QueryRowContext(ctx, identity).Scan(&id); err != nil {
				return err
			}
			d.exec(d.db, fmt.Sprintf(end, id))
			return nil
		})
		wantErr(d.t, err, coord.ErrUncertain)
	})
}

// A constraint that PostgreSQL checks at the commit refuses it: that is no doubt.
func TestTx_WhoseCommitIsRefused(t *testing.T) {
	d := newDatabase(t, "postgres")
	d.exec(d.db, "CREATE TABLE once_"+d.tables.Table+" (x int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	err := d.f.Tx(t.Context(), d.db, tokenOf(5), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO once_"+d.tables.Table+" VALUES (1), (1)")
		return err
	})
	if code(err) != "23505" || errors.Is(err, coord.ErrUncertain) {
		t.Errorf("error %v", err)
	}
	d.wantFree()
}

// After the error of a statement PostgreSQL answers COMMIT with a rollback: that is no doubt.
func TestTx_WhoseFunctionReturnsNilAfterAnError(t *testing.T) {
	d := newDatabase(t, "postgres")
	err := d.f.Tx(t.Context(), d.db, tokenOf(5), func(ctx context.Context, tx *sql.Tx) error {
		err := d.write(ctx, tx, 5)
		if _, refused := tx.ExecContext(ctx, "SELECT 1/0"); code(refused) != "22012" {
			t.Errorf("error %v", refused)
		}
		return err
	})
	if !errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, coord.ErrUncertain) {
		t.Errorf("error %v", err)
	}
	d.wantWritten()
	d.wantFree()
}

// Without WAL a reader of SQLite makes a COMMIT fail, and the driver rolls back. Nothing is in doubt.
func TestTx_WhoseCommitIsBusy(t *testing.T) {
	d := newDatabase(t, "sqlite")
	if err := d.db.Close(); err != nil {
		t.Fatal(err)
	}
	d.dsn = strings.Replace(d.dsn, "journal_mode(wal)", "journal_mode(delete)", 1)
	d.db = d.open("")
	reader := d.begin(sql.LevelDefault)
	var n int
	if err := reader.QueryRow("SELECT count(*) FROM " + d.ledger()).Scan(&n); err != nil {
		t.Fatal(err)
	}
	db := d.open("")
	db.SetMaxOpenConns(1)
	err := d.f.Tx(t.Context(), db, tokenOf(5), d.insert(5))
	if code(err) != "sqlite 5" || errors.Is(err, coord.ErrUncertain) {
		t.Errorf("error %v", err)
	}
	if err := reader.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := d.f.Tx(t.Context(), db, tokenOf(1), d.insert(1)); err != nil {
		t.Errorf("after it: %v", err)
	}
	d.wantWritten(1)
}

// Two transactions of one hold follow each other.
func TestCheck_OfOneHoldTwiceAtOnce(t *testing.T) {
	each(t, func(d *database) {
		for _, level := range d.levels {
			first := d.begin(level)
			if err := d.f.Check(d.t.Context(), first, tokenOf(5)); err != nil {
				d.t.Fatal(err)
			}
			if err := d.f.Check(d.t.Context(), first, tokenOf(5)); err != nil {
				d.t.Errorf("twice in a transaction: %v", err)
			}
			second := make(chan error, 1)
			go func() { second <- d.at(level).Tx(context.Background(), d.db, tokenOf(5), d.insert(5)) }()
			if d.kind != "sqlite" {
				d.awaitBlocked(1)
			}
			if err := first.Commit(); err != nil {
				d.t.Fatal(err)
			}
			err := <-second
			if d.kind == "postgres" && level != sql.LevelReadCommitted {
				if code(err) != "40001" {
					d.t.Errorf("%v: %v", level, err)
				}
				err = d.at(level).Tx(context.Background(), d.db, tokenOf(5), d.insert(5))
			}
			if err != nil {
				d.t.Errorf("%v: %v", level, err)
			}
		}
	})
}

// The first transaction of a path is rolled back while others wait for it.
func TestCheck_OfTheFirstTransactionsOfAPath(t *testing.T) {
	each(t, func(d *database) {
		if d.kind == "sqlite" {
			d.t.Skip("nothing shows that they wait")
		}
		for _, level := range d.levels {
			first := d.begin(level)
			path := fmt.Sprintf("/first%d", level)
			if err := d.f.Check(d.t.Context(), first, fence.Token{Path: path, Number: 9}); err != nil {
				d.t.Fatal(err)
			}
			var all sync.WaitGroup
			for i := range 3 {
				all.Go(func() {
					for runs := 1; ; runs++ {
						err := d.at(level).Tx(context.Background(), d.db, fence.Token{Path: path, Number: int64(i + 1)}, func(context.Context, *sql.Tx) error { return nil })
						if err == nil || errors.Is(err, coord.ErrFenced) {
							if runs > 1 {
								d.t.Logf("figure: %s, %v: %d runs", d.kind, level, runs)
							}
							return
						}
						if !again(err) {
							d.t.Errorf("%v: %v", level, err)
							return
						}
					}
				})
			}
			d.awaitBlocked(3)
			if err := first.Rollback(); err != nil {
				d.t.Fatal(err)
			}
			all.Wait()
			err := d.f.Tx(d.t.Context(), d.db, fence.Token{Path: path, Number: 2}, d.insert(2))
			wantFenced(d.t, err)
		}
	})
}

func TestCheck_ComparesPathsByTheirBytes(t *testing.T) {
	each(t, func(d *database) {
		long := "/" + strings.Repeat("x", 1023)
		for i, path := range []string{"/a", "/A", "/a ", "/ä", "/a\u0308", "/ß", "/ss", "/%", "/'\\\"`", long, long[:1023] + "y"} {
			for _, n := range []int64{int64(20 - i), int64(20 - i), 1 << 62, 1<<63 - 1} {
				if err := d.f.Tx(d.t.Context(), d.db, fence.Token{Path: path, Number: n}, func(context.Context, *sql.Tx) error { return nil }); err != nil {
					d.t.Errorf("%q: %v", path, err)
				}
			}
			wantFenced(d.t, d.f.Tx(d.t.Context(), d.db, fence.Token{Path: path, Number: 1<<63 - 2}, d.insert(1)))
		}
	})
}

// The settings of a connection to MySQL change numbers of rows, cut what is too long, and send arguments in another way.
func TestCheck_WithEachSettingOfMySQL(t *testing.T) {
	for _, settings := range []string{"clientFoundRows=true", "interpolateParams=true", "interpolateParams=true&clientFoundRows=true", "sql_mode=''", "charset=latin1"} {
		t.Run(settings, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, "mariadb")
			d.db = d.open(settings)
			d.db.SetMaxOpenConns(1) // LAST_INSERT_ID lasts as long as a connection
			for _, x := range []struct {
				path   string
				token  int64
				fenced bool
			}{
				{"/a", 5, false}, {"/a", 5, false}, {"/a", 4, true}, {"/ä", 1, false}, {"/ä", 1, false}, {"/a", 9, false}, {"/b", 2, false}, {"/a", 8, true}, {"/ä", 3, false},
			} {
				err := d.f.Tx(t.Context(), d.db, fence.Token{Path: x.path, Number: x.token}, func(ctx context.Context, tx *sql.Tx) error {
					for _, first := range []bool{true, false} {
						if got, err := d.f.Once(ctx, tx, fmt.Sprint(x)); got != first || err != nil {
							t.Errorf("%v: once: %t, %v, want %t", x, got, err, first)
						}
					}
					return errors.New("undo")
				})
				if err.Error() == "undo" {
					err = d.f.Tx(t.Context(), d.db, fence.Token{Path: x.path, Number: x.token}, func(context.Context, *sql.Tx) error { return nil })
				}
				if errors.Is(err, coord.ErrFenced) != x.fenced || err != nil && !x.fenced {
					t.Errorf("%v: %v", x, err)
				}
			}
		})
	}
}

// counted counts the statements of a transaction.
func TestTx_CostsOneStatement(t *testing.T) {
	d := newDatabase(t, "mariadb")
	db := d.open("interpolateParams=true")
	db.SetMaxOpenConns(1)
	questions := func() (n int) {
		var name string
		if err := db.QueryRow("SHOW SESSION STATUS LIKE 'Questions'").Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	tx := func(run func() error) int {
		from := questions()
		if err := run(); err != nil {
			t.Fatal(err)
		}
		return questions() - from - 1
	}
	plain := tx(func() error {
		tx, err := db.Begin()
		if err == nil {
			err = d.write(t.Context(), tx, 1)
		}
		if err == nil {
			err = tx.Commit()
		}
		return err
	})
	fenced := tx(func() error { return d.f.Tx(t.Context(), db, tokenOf(5), d.insert(5)) })
	if fenced != plain+1 {
		t.Errorf("%d statements, and %d without the fence", fenced, plain)
	}
	t.Logf("figure: %d statements, %d without the fence", fenced, plain)
}

func TestCheck_RefusesWhatHasNoToken(t *testing.T) {
	d := newDatabase(t, "sqlite")
	c, _ := client(t, memory.New(nil), "a")
	lockOf := func(l coord.Locker) fence.Token {
		h, err := l.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return fence.Of(h)
	}
	q := coord.NewQueue[string](c, "/q", nil)
	if _, err := q.Put(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	item, err := q.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	good := tokenOf(1)
	for name, x := range map[string]fence.Token{
		"nil":         fence.Of(nil),
		"never":       fence.Of(new(coord.Hold)),
		"reader":      lockOf(coord.NewRWMutex(c, "/rw", nil).RLocker()),
		"permit":      lockOf(coord.NewSemaphore(c, "/s", 2, nil).Locker(1)),
		"item":        fence.Of(item.Hold),
		"negative":    {Path: "/p", Number: -1},
		"no path":     {Number: 1},
		"relative":    {Path: "p", Number: 1},
		"long":        {Path: "/" + strings.Repeat("x", 1024), Number: 1},
		"not UTF-8":   {Path: "/\xff", Number: 1},
		"with a null": {Path: "/a\x00", Number: 1},
	} {
		tx := d.begin(sql.LevelDefault)
		for op, err := range map[string]error{
			"check": d.f.Check(t.Context(), tx, x),
			"tx":    d.f.Tx(t.Context(), d.db, x, d.insert(1)),
		} {
			if bad := slices.Contains([]string{"no path", "relative", "not UTF-8", "with a null"}, name); !errors.Is(err, coord.ErrInvalid) || errors.Is(err, coord.ErrBadPath) != bad {
				t.Errorf("%s of %s: %v", op, name, err)
			}
		}
		tx.Rollback()
	}
	for name, err := range map[string]error{
		"no function": d.f.Tx(t.Context(), d.db, good, nil),
		"no database": d.f.Tx(t.Context(), nil, good, d.insert(1)),
		"nil tx":      d.f.Check(t.Context(), (*sql.Tx)(nil), good),
		"nil":         d.f.Check(t.Context(), nil, good),
		"pgx nil":     d.f.Check(t.Context(), pgxfence.Tx(nil), good),
		"db":          d.f.Check(t.Context(), d.db, good),
		"dialect":     fence.New(7, nil).Tx(t.Context(), d.db, good, d.insert(1)),
		"table":       fence.New(fence.SQLite, &fence.Options{Table: `a";drop`}).Check(t.Context(), d.begin(sql.LevelDefault), good),
		"one table":   fence.New(fence.SQLite, &fence.Options{Table: "a", ItemTable: "A"}).Migrate(t.Context(), d.db),
	} {
		wantErr(t, err, coord.ErrInvalid)
		if name != "" && err != nil && !strings.HasPrefix(err.Error(), "coord: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	d.wantWritten()
}

func TestFence_ThatNewHasNotMade(t *testing.T) {
	d := newDatabase(t, "sqlite")
	for _, f := range []*fence.Fence{nil, new(fence.Fence)} {
		tx := d.begin(sql.LevelDefault)
		_, schema := f.Schema()
		_, once := f.Once(t.Context(), tx, "x")
		check := f.Check(t.Context(), tx, tokenOf(1))
		tx.Rollback()
		_, prune := f.Prune(t.Context(), d.db, time.Hour)
		for _, err := range []error{schema, once, check, prune, f.Migrate(t.Context(), d.db), f.Tx(t.Context(), d.db, tokenOf(1), d.insert(1))} {
			wantErr(t, err, coord.ErrInvalid)
		}
	}
	d.wantWritten()
}

func TestNew_WithNamesOfTables(t *testing.T) {
	long := strings.Repeat("x", 58)
	for name, want := range map[string]bool{"a": true, "_9": true, long: true, long + "." + long: true, "9a": false, long + "x": false, "a.b.c": false, "a-b": false, "a.": false, "é": false} {
		if _, err := fence.New(fence.PostgreSQL, &fence.Options{Table: name}).Schema(); errors.Is(err, coord.ErrInvalid) == want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOf_TakesTheHoldsOfLocks(t *testing.T) {
	store := memory.New(nil)
	c, err := coord.Open(t.Context(), store, &coord.Options{Namespace: "/app"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := coord.NewMutex(c, "/locks/a b", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := coord.NewRWMutex(c, "/rw", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	term := <-coord.NewElection(c, "/leader", nil).Leadership(ctx)
	for want, h := range map[string]*coord.Hold{"/app/locks/a b": m, "/app/rw": w, "/app/leader": term.Hold} {
		got := fence.Of(h)
		if got.Path != want || got.Number != h.Token() || h.Token() == 0 {
			t.Errorf("token %v, want the path %s and the number %d", got, want, h.Token())
		}
		back, err := fence.ParseToken(got.String())
		if err != nil || back.Path != got.Path || back.Number != got.Number {
			t.Errorf("%q is parsed as %v, %v", got, back, err)
		}
	}
	if err := term.Release(); err != nil {
		t.Error(err)
	}
}

func TestParseToken_RefusesTheRest(t *testing.T) {
	for _, s := range []string{"", " ", "5", "/p", "/p ", "/p x", "/p 0", "/p -5", "p 5", "/p 5 6", "/p  5", "/%zz 5", "/%00 5", "/p 9223372036854775808"} {
		x, err := fence.ParseToken(s)
		wantErr(t, err, coord.ErrInvalid)
		if err == nil {
			t.Errorf("%q is parsed as %v", s, x)
		}
	}
}

func TestMigrate_ByManyAtOnce(t *testing.T) {
	each(t, func(d *database) {
		o := fence.Options{Table: d.tables.Table + "m", ItemTable: d.tables.ItemTable + "m"}
		f := fence.New(d.dialect, &o)
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				if err := f.Migrate(context.Background(), d.db); err != nil {
					d.t.Error(err)
				}
			})
		}
		all.Wait()
		schema, err := f.Schema()
		if err != nil || strings.Count(schema, ";\n") < 2 {
			d.t.Errorf("%q, %v", schema, err)
		}
		for s := range strings.SplitSeq(strings.TrimSpace(schema), ";") {
			if s != "" {
				d.exec(d.db, s)
			}
		}
		if err := f.Tx(d.t.Context(), d.db, tokenOf(1), d.insert(1)); err != nil {
			d.t.Error(err)
		}
	})
}

// The tables can be in another schema of the database.
func TestMigrate_InAnotherSchema(t *testing.T) {
	each(t, func(d *database) {
		schema := "in_" + d.tables.Table
		if d.kind == "sqlite" {
			d.db.SetMaxOpenConns(1)
			d.exec(d.db, "ATTACH ':memory:' AS "+schema)
		} else {
			d.exec(d.db, "CREATE SCHEMA "+schema)
		}
		f := fence.New(d.dialect, &fence.Options{Table: schema + ".order", ItemTable: schema + ".group"}) // keywords
		if err := f.Migrate(d.t.Context(), d.db); err != nil {
			d.t.Fatal(err)
		}
		err := f.Tx(d.t.Context(), d.db, tokenOf(5), func(ctx context.Context, tx *sql.Tx) error {
			_, err := f.Once(ctx, tx, "a")
			return err
		})
		if err != nil {
			d.t.Fatal(err)
		}
		wantFenced(d.t, f.Tx(d.t.Context(), d.db, tokenOf(4), d.insert(4)))
	})
}

// A user of PostgreSQL may write with little.
func TestCheck_WithTheRightsThatItNeeds(t *testing.T) {
	d := newDatabase(t, "postgres")
	role := "writer_" + d.tables.Table
	d.exec(d.db, "CREATE ROLE "+role)
	for _, table := range []string{d.tables.Table, d.tables.ItemTable} {
		d.exec(d.db, "GRANT SELECT, INSERT, UPDATE ON "+table+" TO "+role)
	}
	for _, n := range []int64{5, 6} {
		tx := d.begin(sql.LevelDefault)
		d.exec(tx, "SET LOCAL ROLE "+role)
		if err := d.f.Check(t.Context(), tx, tokenOf(n)); err != nil {
			t.Error(err)
		}
		if _, err := d.f.Once(t.Context(), tx, "x"); err != nil {
			t.Error(err)
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	}
}

func TestCheck_InATransactionOfPgx(t *testing.T) {
	d := newDatabase(t, "postgres")
	conn, err := pgx.Connect(t.Context(), d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	firsts := 0
	write := func(token int64) error {
		return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			if err := d.f.Check(t.Context(), pgxfence.Tx(tx), tokenOf(token)); err != nil {
				return err
			}
			first, err := d.f.Once(t.Context(), pgxfence.Tx(tx), "x")
			if first {
				firsts++
			}
			return err
		})
	}
	for _, token := range []int64{5, 5, 7} {
		if err := write(token); err != nil {
			t.Errorf("token %d: %v", token, err)
		}
	}
	wantFenced(t, write(6))
	if firsts != 1 {
		t.Errorf("%d transactions were the first", firsts)
	}
}
