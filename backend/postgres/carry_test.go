package postgres_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// books are a schema with the nodes, and with the table entry of a user beside them.
type books struct {
	*service
	t      *testing.T
	c      *coord.Client
	schema string // as an identifier
}

func newBooks(t *testing.T) *books { return newBooksOn(t, shared.Get(t)) }

func newBooksOn(t *testing.T, server *pgtest.Server) *books {
	t.Helper()
	// No test waits for the end of a session.
	s := newService(t, server.Addr(), postgres.Options{SessionTimeout: time.Minute})
	b := &books{service: s, t: t, schema: s.opts.Schema}
	b.must("BEGIN; " + b.migration() + "; COMMIT")
	b.c = b.open("a")
	b.must("CREATE TABLE {s}.entry (name text PRIMARY KEY)")
	return b
}

func (b *books) open(link string) *coord.Client {
	b.t.Helper()
	return coordtest.Open(b.t, b.link(link), nil)
}

// sql puts the schema into a statement.
func (b *books) sql(statement string) string {
	return strings.ReplaceAll(statement, "{s}", b.schema)
}

func (b *books) must(statement string, args ...any) {
	b.t.Helper()
	if err := b.exec(b.sql(statement), args...); err != nil {
		b.t.Fatal(err)
	}
}

// connect returns a connection to the server, through no link.
func (b *books) connect(change func(c *pgx.ConnConfig)) *pgx.Conn {
	b.t.Helper()
	cfg, err := pgx.ParseConfig(pgtest.URL(b.server, ""))
	if err != nil {
		b.t.Fatal(err)
	}
	if change != nil {
		change(cfg)
	}
	conn, err := pgx.ConnectConfig(context.Background(), cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func (b *books) begin() pgx.Tx { return b.beginAs(pgx.TxOptions{}) }

func (b *books) beginAs(o pgx.TxOptions) pgx.Tx {
	b.t.Helper()
	tx, err := b.connect(nil).BeginTx(context.Background(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	return tx
}

func (b *books) enter(tx pgx.Tx, name string) {
	b.t.Helper()
	if _, err := tx.Exec(context.Background(), b.sql("INSERT INTO {s}.entry VALUES ($1)"), name); err != nil {
		b.t.Fatal(err)
	}
}

func column[T any](b *books, query string, args ...any) []T {
	b.t.Helper()
	rows, err := b.connect(nil).Query(context.Background(), b.sql(query), args...)
	if err != nil {
		b.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

// entries returns the names of the entries of the user.
func (b *books) entries() []string { return column[string](b, "SELECT name FROM {s}.entry ORDER BY 1") }

// nodes returns the paths of the nodes below a path, in order.
func (b *books) nodes(top string) []string {
	return column[string](b, "SELECT path FROM {s}.node WHERE starts_with(path, $1) ORDER BY path", top+"/")
}

func (b *books) has(path string) bool {
	return column[bool](b, "SELECT EXISTS (SELECT FROM {s}.node WHERE path = $1)", path)[0]
}

// clean checks that no staged row has stayed.
func (b *books) clean() {
	b.t.Helper()
	if n := column[int](b, "SELECT count(*)::int FROM {s}.staged"); n[0] != 0 {
		b.t.Errorf("%d staged rows", n[0])
	}
}

// waiting waits until a statement whose text contains a word waits for a lock.
func (b *books) waiting(kind, word string) {
	b.t.Helper()
	b.until(kind+" "+word, func() bool {
		n := column[int](b, "SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = $1 AND query ILIKE '%' || $2 || '%' AND pid <> pg_backend_pid()", kind, word)
		return n[0] > 0
	})
}

func (b *books) until(what string, cond func() bool) {
	b.t.Helper()
	for end := time.Now().Add(coordtest.Limit); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("not within %v: %s", coordtest.Limit, what)
		}
	}
}

// A carrier is a transaction of a user, of either package.
type carrier interface {
	exec(statement string) error
	carry(txn *coord.Txn) error
	end(commit bool) error
}

type pgxCarrier struct{ pgx.Tx }

func (x pgxCarrier) exec(statement string) error {
	_, err := x.Exec(context.Background(), statement)
	return err
}

func (x pgxCarrier) carry(txn *coord.Txn) error {
	return postgres.Commit(context.Background(), x.Tx, txn)
}

func (x pgxCarrier) end(commit bool) error {
	if commit {
		return postgres.Refusal(x.Commit(context.Background()))
	}
	return x.Rollback(context.Background())
}

type sqlCarrier struct{ *sql.Tx }

func (x sqlCarrier) exec(statement string) error {
	_, err := x.Exec(statement)
	return err
}

func (x sqlCarrier) carry(txn *coord.Txn) error {
	return postgres.CommitSQL(context.Background(), x.Tx, txn)
}

func (x sqlCarrier) end(commit bool) error {
	if commit {
		return postgres.Refusal(x.Commit())
	}
	return x.Rollback()
}

// eachCarrier runs a test with the transactions of pgx and of database/sql.
func eachCarrier(t *testing.T, f func(b *books, begin func() carrier)) {
	t.Parallel()
	t.Run("pgx", func(t *testing.T) {
		t.Parallel()
		b := newBooks(t)
		f(b, func() carrier { return pgxCarrier{b.begin()} })
	})
	t.Run("sql", func(t *testing.T) {
		t.Parallel()
		b := newBooks(t)
		db, err := sql.Open("pgx", pgtest.URL(b.server, ""))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		f(b, func() carrier {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			return sqlCarrier{tx}
		})
	})
}

// mustCarry makes tx carry txn.
func mustCarry(t *testing.T, tx pgx.Tx, txn *coord.Txn) {
	t.Helper()
	if err := postgres.Commit(context.Background(), tx, txn); err != nil {
		t.Fatal(err)
	}
}

func mustCommitTx(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := postgres.Refusal(tx.Commit(context.Background())); err != nil {
		t.Fatal(err)
	}
}

// refused commits tx, which must be refused because of this part.
func refused(t *testing.T, tx pgx.Tx, op string, index int, path string, targets ...error) {
	t.Helper()
	err := postgres.Refusal(tx.Commit(context.Background()))
	var c *coord.ConflictError
	if !errors.As(err, &c) || c.Op != op || c.Index != index || c.Path != path {
		t.Fatalf("%v, want one of %s %d on %s", err, op, index, path)
	}
	coordtest.WantErr(t, err, append(targets, coord.ErrConflict)...)
}

func mustCreate(t *testing.T, c *coord.Client, path string, data string) {
	t.Helper()
	if _, err := coord.NewTxn(c).CreateAll(path, []byte(data), backend.Persistent).Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestCommit_IsAppliedWithItsTransaction(t *testing.T) {
	eachCarrier(t, func(b *books, begin func() carrier) {
		t, ctx := b.t, context.Background()
		mustCreate(t, b.c, "/set", "old")
		mustCreate(t, b.c, "/gone", "")
		q := coord.NewQueue[string](b.c, "/q", nil)
		odd := "/odd {\"'\\,} ü" // characters with a meaning in arrays
		big := strings.Repeat("\x00\\\"", 300_000)
		s, err := b.link("watcher").Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, commit := range []bool{false, true} {
			w := backend.NewTreeWatch(0)
			if err := s.WatchTree(ctx, "/", w); err != nil {
				t.Fatal(err)
			}
			tx := begin()
			if err := tx.exec(b.sql("INSERT INTO {s}.entry VALUES ('with it')")); err != nil {
				t.Fatal(err)
			}
			txn := coord.NewTxn(b.c).If(coord.IfVersion("/set", 0)).Create("/new", nil, backend.Persistent).Create(odd, []byte(big), backend.Persistent).
				Set("/set", []byte("\x00 new")).Delete("/gone").Add(q.PutOp("item"))
			if err := tx.carry(txn); err != nil {
				t.Fatal(err)
			}
			if err := s.Sync(ctx, "/"); err != nil {
				t.Fatal(err)
			}
			for _, e := range take(t, w) { // Commit has made the bucket
				if !strings.HasPrefix(e.Path, "/q") && !strings.HasPrefix(e.Path, "/_coord") {
					t.Errorf("an event before the end: %+v", e)
				}
			}
			if err := tx.end(commit); err != nil {
				t.Fatal(err)
			}
			if err := s.Sync(ctx, "/"); err != nil {
				t.Fatal(err)
			}
			var paths []string
			events := take(t, w)
			for _, e := range events {
				if e.Zxid != events[0].Zxid {
					t.Errorf("%+v, not all at once", events)
				}
				paths = append(paths, fmt.Sprintf("%v %s", e.Kind, e.Path))
			}
			w.Stop()
			n, err := q.Len(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if !commit {
				if len(events) > 0 || len(b.entries()) > 0 || n != 0 {
					t.Errorf("after the rollback: events %q, entries %q, %d items", paths, b.entries(), n)
				}
				continue
			}
			if want := []string{"created /new", "created " + odd, "changed /set", "deleted /gone"}; len(paths) != 5 || !slices.Equal(paths[:4], want) {
				t.Errorf("events %q, want %q and an item", paths, want)
			}
			if !slices.Equal(b.entries(), []string{"with it"}) || n != 1 {
				t.Errorf("entries %q, %d items", b.entries(), n)
			}
		}
		if data, stat, err := s.Get(ctx, "/set", nil); string(data) != "\x00 new" || stat.Version != 1 || err != nil {
			t.Errorf("%q, %+v, %v", data, stat, err)
		}
		if data, stat, err := s.Get(ctx, odd, nil); string(data) != big || stat.Czxid != stat.Mzxid || err != nil {
			t.Errorf("%d bytes, %+v, %v", len(data), stat, err)
		}
		if item, err := q.Pop(ctx); item != "item" || err != nil {
			t.Errorf("%q, %v", item, err)
		}
		b.clean()
	})
}

// take returns the changes that a watch has reported.
func take(t *testing.T, w *backend.TreeWatch) []backend.TreeChange {
	t.Helper()
	changes, over := w.Take()
	if over {
		t.Fatal("the watch is over")
	}
	return changes
}

func TestCommit_IsRefusedWithItsTransaction(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, test := range map[string]func(b *books) (txn *coord.Txn, meanwhile func(), check func(tx pgx.Tx)){
		"a condition": func(b *books) (*coord.Txn, func(), func(pgx.Tx)) {
			mustCreate(b.t, b.c, "/n", "")
			return coord.NewTxn(b.c).If(coord.IfExists("/n"), coord.IfVersion("/n", 0)),
				func() { b.must("UPDATE {s}.node SET version = 1 WHERE path = '/n'") },
				func(tx pgx.Tx) { refused(b.t, tx, "version", 1, "/n", backend.ErrBadVersion) }
		},
		"a guard": func(b *books) (*coord.Txn, func(), func(pgx.Tx)) {
			h := coordtest.MustLock(b.t, coord.NewMutex(b.c, "/l", nil))
			return coord.NewTxn(b.c).Under(h.Guard()),
				func() { coordtest.MustRelease(b.t, h) },
				func(tx pgx.Tx) { refused(b.t, tx, "guard", 0, h.Path(), coord.ErrFenced, backend.ErrNotFound) }
		},
		"an existing node": func(b *books) (*coord.Txn, func(), func(pgx.Tx)) {
			return coord.NewTxn(b.c).Create("/n", nil, backend.Persistent),
				func() { mustCreate(b.t, b.c, "/n", "") },
				func(tx pgx.Tx) { refused(b.t, tx, "create", 0, "/n", backend.ErrExists) }
		},
		"a parent that is gone": func(b *books) (*coord.Txn, func(), func(pgx.Tx)) {
			mustCreate(b.t, b.c, "/n", "")
			return coord.NewTxn(b.c).Create("/n/m", nil, backend.Persistent),
				func() { b.must("DELETE FROM {s}.node WHERE path = '/n'") },
				func(tx pgx.Tx) { refused(b.t, tx, "create", 0, "/n/m", backend.ErrNotFound) }
		},
		"a parent that is ephemeral": func(b *books) (*coord.Txn, func(), func(pgx.Tx)) {
			return coord.NewTxn(b.c).Create("/n/m", nil, backend.Persistent),
				func() {
					if _, err := coord.NewTxn(b.c).Create("/n", nil, backend.Ephemeral).Commit(ctx); err != nil {
						b.t.Fatal(err)
					}
				},
				func(tx pgx.Tx) { refused(b.t, tx, "create", 0, "/n/m", backend.ErrNoChildren) }
		},
		"a node with children": func(b *books) (*coord.Txn, func(), func(pgx.Tx)) {
			mustCreate(b.t, b.c, "/n", "")
			return coord.NewTxn(b.c).Delete("/n"),
				func() { mustCreate(b.t, b.c, "/n/m", "") },
				func(tx pgx.Tx) { refused(b.t, tx, "delete", 0, "/n", backend.ErrNotEmpty) }
		},
		"a claim that is lost": func(b *books) (*coord.Txn, func(), func(pgx.Tx)) {
			q := coord.NewQueue[int](b.c, "/q", nil)
			if _, err := q.Put(ctx, 1); err != nil {
				b.t.Fatal(err)
			}
			consumer := b.open("consumer")
			item, err := coord.NewQueue[int](consumer, "/q", nil).Take(ctx)
			if err != nil {
				b.t.Fatal(err)
			}
			bucket := item.Path()[:strings.LastIndexByte(item.Path(), '/')]
			var path string
			for _, n := range b.nodes(bucket) {
				if strings.HasPrefix(n, bucket+"/i-") {
					path = n
				}
			}
			return coord.NewTxn(consumer).Add(item.AckOp()),
				func() { b.link("consumer").Expire(item.Session()) },
				func(tx pgx.Tx) {
					refused(b.t, tx, "ack", 0, path, coord.ErrLost, backend.ErrNotFound)
					if again, err := q.Take(ctx); err != nil || again.Value != 1 || again.Ack() != nil {
						b.t.Errorf("%v, %v", again, err)
					}
				}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBooks(t)
			txn, meanwhile, check := test(b)
			tx := b.begin()
			b.enter(tx, "with it")
			mustCarry(t, tx, coord.NewTxn(b.c).Create("/before", nil, backend.Persistent))
			mustCarry(t, tx, txn)
			meanwhile()
			check(tx)
			if entries := b.entries(); len(entries) > 0 || b.has("/before") {
				t.Errorf("applied in part: entries %q, the first Commit %v", entries, b.has("/before"))
			}
			b.clean()
		})
	}
}

// A put whose bucket was closed meanwhile is refused. The next Commit finds another bucket.
func TestCommit_IsPlannedAgain(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	q := coord.NewQueue[int](b.c, "/q", nil)
	txn := coord.NewTxn(b.c).Add(q.PutOp(1))
	tx := b.begin()
	b.enter(tx, "with it")
	mustCarry(t, tx, txn)
	b.must("UPDATE {s}.node SET version = 1 WHERE starts_with(path, '/q/items/b-')")
	refused(t, tx, "put", 0, "/q", backend.ErrBadVersion)
	tx = b.begin()
	b.enter(tx, "with it")
	mustCarry(t, tx, txn)
	mustCommitTx(t, tx)
	if item, err := q.Pop(ctx); item != 1 || err != nil || !slices.Equal(b.entries(), []string{"with it"}) {
		t.Errorf("%d, %v, entries %q", item, err, b.entries())
	}
}

// A put whose key another item has is refused with ErrExists, whether that item was there at the plan or came later.
func TestCommit_RefusesAKeyInUse(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	q := coord.NewQueue[int](b.c, "/q", nil)
	put := func(key string, v int) *coord.Txn {
		return coord.NewTxn(b.c).Add(q.PutOpWith(v, &coord.PutOptions{Key: key, KeyFor: time.Hour}))
	}
	once := func(key string, v int) {
		if _, put, err := q.PutOnce(ctx, key, v); !put || err != nil {
			t.Fatalf("%t, %v", put, err)
		}
	}
	once("x", 1)
	tx := b.begin()
	coordtest.WantErr(t, postgres.Commit(ctx, tx, put("x", 2)), coord.ErrExists, coord.ErrConflict)
	tx.Rollback(ctx)
	tx = b.begin()
	mustCarry(t, tx, put("y", 3))
	once("y", 4)
	refused(t, tx, "put", 0, "/q", backend.ErrExists)
	tx = b.begin()
	mustCarry(t, tx, put("z", 5))
	mustCommitTx(t, tx)
	for _, want := range []int{1, 4, 5} {
		if item, err := q.Pop(ctx); item != want || err != nil {
			t.Errorf("%d, %v, want %d", item, err, want)
		}
	}
}

// A Set reads the node again: by now it can belong to a lock, and the commit of the user returns no result.
func TestCommit_ReadsWhatItSets(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	mustCreate(t, b.c, "/v", "")
	set := coord.NewTxn(b.c).Set("/v", []byte("new"))
	if _, err := set.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	other := b.open("other")
	if _, err := coord.NewTxn(other).Delete("/v").Commit(ctx); err != nil {
		t.Fatal(err)
	}
	h := coordtest.MustLock(t, coord.NewMutex(other, "/v", nil))
	defer coordtest.MustRelease(t, h)
	tx := b.begin()
	coordtest.WantErr(t, postgres.Commit(ctx, tx, set), coord.ErrKind)
	tx.Rollback(ctx)
}

// A payment is made exactly once, although its worker fails before and after its commit.
func TestCommit_PutsAndAcknowledgesOnce(t *testing.T) {
	eachCarrier(t, func(b *books, begin func() carrier) {
		t, ctx := b.t, context.Background()
		q := coord.NewQueue[string](b.c, "/orders", nil)
		for _, name := range []string{"one", "two"} {
			for _, commit := range []bool{false, true} {
				tx := begin()
				if err := cmp.Or(tx.exec(b.sql("INSERT INTO {s}.entry VALUES ('order "+name+"')")), tx.carry(coord.NewTxn(b.c).Add(q.PutOp(name))), tx.end(commit)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n, err := q.Len(ctx); n != 2 || err != nil {
			t.Fatalf("%d items, %v", n, err)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var paid atomic.Int32
		attempts := make(map[string]int)
		if err := q.Work(ctx, 1, func(_ context.Context, item *coord.Item[string]) error {
			attempts[item.Value]++
			tx := begin()
			err := cmp.Or(tx.exec(b.sql("INSERT INTO {s}.entry VALUES ('payment "+item.Value+"')")), tx.carry(coord.NewTxn(b.c).Under(item.Guard()).Add(item.AckOp())))
			if err != nil {
				t.Error(err)
				return errors.Join(err, tx.end(false))
			}
			if item.Attempt == 1 {
				return errors.Join(errors.New("rolled back"), tx.end(false))
			}
			if err := tx.end(true); err != nil {
				t.Error(err)
				return err
			}
			if paid.Add(1) == 2 {
				cancel()
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if want := []string{"order one", "order two", "payment one", "payment two"}; !slices.Equal(b.entries(), want) || attempts["one"] != 2 || attempts["two"] != 2 {
			t.Errorf("entries %q after %v", b.entries(), attempts)
		}
		if n, err := q.Len(context.Background()); n != 0 || err != nil {
			t.Errorf("%d items, %v", n, err)
		}
		b.clean()
	})
}

func TestCommit_SeveralInOneTransaction(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	tx := b.begin()
	mustCarry(t, tx, coord.NewTxn(b.c).Create("/n", nil, backend.Persistent))
	mustCarry(t, tx, coord.NewTxn(b.c).Create("/n/first", nil, backend.Persistent))
	save, err := tx.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	mustCarry(t, save, coord.NewTxn(b.c).Delete("/n/first"))
	mustCarry(t, save, coord.NewTxn(b.c).Create("/n/never", nil, backend.Persistent))
	if err := save.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if save, err = tx.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	mustCarry(t, save, coord.NewTxn(b.c).If(coord.IfVersion("/n", 0)).Create("/n/second", nil, backend.Persistent))
	if err := save.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if b.has("/n") {
		t.Error("applied before the end")
	}
	mustCommitTx(t, tx)
	if got := column[string](b, "SELECT path FROM {s}.node WHERE starts_with(path, '/n') ORDER BY czxid"); !slices.Equal(got, []string{"/n", "/n/first", "/n/second"}) {
		t.Errorf("%q", got)
	}
	if n := column[int](b, "SELECT count(DISTINCT czxid)::int FROM {s}.node WHERE starts_with(path, '/n')"); n[0] != 3 {
		t.Errorf("%d positions of three commits", n[0])
	}
	b.clean()
}

func TestCommit_RefusesWhatItCannotCarry(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	store := memory.New(nil)
	foreign := coordtest.Open(t, store, nil)
	closed := b.open("closed")
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	create := func(c *coord.Client, mode backend.CreateMode) *coord.Txn {
		return coord.NewTxn(c).Create("/n", nil, mode)
	}
	elsewhere := func(change func(c *pgx.ConnConfig)) pgx.Tx {
		tx, err := b.connect(change).Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	// The same schema in another database has the functions, and not the session.
	b.must("CREATE DATABASE " + b.schema)
	t.Cleanup(func() { b.must("DROP DATABASE " + b.schema + " WITH (FORCE)") })
	database := func(c *pgx.ConnConfig) { c.Database = b.schema }
	if _, err := b.connect(database).Exec(ctx, b.migration()); err != nil {
		t.Fatal(err)
	}
	set := func(statement string) pgx.Tx {
		tx := b.begin()
		if _, err := tx.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	for name, test := range map[string]struct {
		tx   pgx.Tx
		txn  *coord.Txn
		want error
	}{
		"repeatable read":           {b.beginAs(pgx.TxOptions{IsoLevel: pgx.RepeatableRead}), create(b.c, backend.Persistent), coord.ErrUnsupported},
		"serializable":              {b.beginAs(pgx.TxOptions{IsoLevel: pgx.Serializable}), create(b.c, backend.Persistent), coord.ErrUnsupported},
		"an ephemeral node":         {b.begin(), create(b.c, backend.Ephemeral), coord.ErrUnsupported},
		"a client of another kind":  {b.begin(), create(foreign, backend.Persistent), coord.ErrUnsupported},
		"triggers that do not run":  {set("SET LOCAL session_replication_role = replica"), create(b.c, backend.Persistent), coord.ErrUnsupported},
		"triggers that run at once": {set("SET CONSTRAINTS ALL IMMEDIATE"), create(b.c, backend.Persistent), coord.ErrUnsupported},
		"a path that is too long":   {b.begin(), coord.NewTxn(b.c).Create("/"+strings.Repeat("n", 2600), nil, backend.Persistent), coord.ErrTooLarge},
		"a closed client":           {b.begin(), create(closed, backend.Persistent), coord.ErrClosed},
		"an empty transaction":      {b.begin(), coord.NewTxn(b.c), coord.ErrInvalid},
		"another database":          {elsewhere(database), create(b.c, backend.Persistent), coord.ErrInvalid},
		"a database without coord":  {elsewhere(func(c *pgx.ConnConfig) { c.Database = "template1" }), create(b.c, backend.Persistent), coord.ErrInvalid},
		"a read-only transaction":   {b.beginAs(pgx.TxOptions{AccessMode: pgx.ReadOnly}), create(b.c, backend.Persistent), nil},
	} {
		err := postgres.Commit(ctx, test.tx, test.txn)
		if err == nil {
			t.Errorf("%s: no error", name)
		} else if test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		test.tx.Rollback(ctx)
	}
	if b.has("/n") {
		t.Error("applied")
	}
	b.clean()
	coordtest.WantErr(t, postgres.Commit(ctx, nil, create(b.c, backend.Persistent)), coord.ErrInvalid)
	coordtest.WantErr(t, postgres.CommitSQL(ctx, nil, create(b.c, backend.Persistent)), coord.ErrInvalid)
}

// A Commit after the end of the session returns ErrSessionLost, and the next session can carry it.
func TestCommit_AfterTheEndOfItsSession(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	// The client does not learn of the end before it asks.
	b.must("UPDATE {s}.session SET ended = true")
	tx := b.begin()
	err := postgres.Commit(ctx, tx, coord.NewTxn(b.c).Create("/n", nil, backend.Persistent))
	coordtest.WantErr(t, err, coord.ErrSessionLost)
	tx.Rollback(ctx)
	tx = b.begin()
	mustCarry(t, tx, coord.NewTxn(b.c).Create("/n", nil, backend.Persistent))
	mustCommitTx(t, tx)
}

func TestCommit_NeedsOnlyUsage(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	role := "r_" + b.schema
	b.must("CREATE ROLE " + role + " LOGIN")
	as := func(c *pgx.ConnConfig) { c.User = role }
	create := func(name string) *coord.Txn { return coord.NewTxn(b.c).Create("/"+name, nil, backend.Persistent) }
	tx, err := b.connect(as).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	coordtest.WantErr(t, postgres.Commit(ctx, tx, create("a")), coord.ErrDenied)
	tx.Rollback(ctx)
	b.must("GRANT USAGE ON SCHEMA {s} TO " + role)
	conn := b.connect(as)
	// The functions do not use objects that the role creates.
	for _, s := range []string{"CREATE TEMP TABLE node (path text)", "CREATE TEMP TABLE staged (id int)", "CREATE FUNCTION pg_temp.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'called'; END $$",
		"SET search_path = pg_temp, public"} {
		if _, err := conn.Exec(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	if tx, err = conn.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	mustCarry(t, tx, create("a"))
	mustCommitTx(t, tx)
	if tx, err = conn.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	mustCarry(t, tx, create("a"))
	refused(t, tx, "create", 0, "/a", backend.ErrExists)
	for _, statement := range []string{"SELECT * FROM {s}.node", "DELETE FROM {s}.staged", "SELECT {s}.finish(1)"} {
		var e *pgconn.PgError
		if _, err := conn.Exec(ctx, b.sql(statement)); !errors.As(err, &e) || e.Code != "42501" {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

// A prepared transaction would keep the turn: PREPARE TRANSACTION fails, whether the Txn changes a node or not.
func TestCommit_IsNotPrepared(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	mustCreate(t, b.c, "/n", "")
	for name, txn := range map[string]*coord.Txn{
		"with changes": coord.NewTxn(b.c).Create("/n/m", nil, backend.Persistent),
		"checks only":  coord.NewTxn(b.c).If(coord.IfExists("/n")),
	} {
		tx := b.begin()
		mustCarry(t, tx, txn)
		_, err := tx.Exec(ctx, "PREPARE TRANSACTION '"+b.schema+"'")
		var e *pgconn.PgError
		if !errors.As(err, &e) || e.Code != "0A000" {
			t.Errorf("%s: %v", name, err)
			b.must("ROLLBACK PREPARED '" + b.schema + "'")
		}
		tx.Rollback(ctx)
	}
	mustCreate(t, b.c, "/after", "")
}

// A transaction that waits for rows of the user does not have the turn yet, even if it waits in a deferred trigger that
// PostgreSQL runs after those of the Commit.
func TestCommit_WaitsForRowsWithoutTheTurn(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	b.must("CREATE TABLE {s}.line (entry text REFERENCES {s}.entry DEFERRABLE INITIALLY DEFERRED); INSERT INTO {s}.entry VALUES ('e')")
	locker, waiter := b.begin(), b.begin()
	if _, err := locker.Exec(ctx, b.sql("SELECT FROM {s}.entry WHERE name = 'e' FOR UPDATE")); err != nil {
		t.Fatal(err)
	}
	mustCarry(t, locker, coord.NewTxn(b.c).Create("/locker", nil, backend.Persistent))
	mustCarry(t, waiter, coord.NewTxn(b.c).Create("/waiter", nil, backend.Persistent))
	if _, err := waiter.Exec(ctx, b.sql("INSERT INTO {s}.line VALUES ('e')")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- postgres.Refusal(waiter.Commit(ctx)) }()
	b.waiting("transactionid", "commit")
	mustCreate(t, b.c, "/beside", "")
	mustCommitTx(t, locker) // which needs the turn
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := column[string](b, "SELECT path FROM {s}.node WHERE path IN ('/beside', '/locker', '/waiter') ORDER BY czxid"); !slices.Equal(got, []string{"/beside", "/locker", "/waiter"}) {
		t.Errorf("%q", got)
	}
}

// A transaction that takes the turn before its COMMIT can deadlock with one that waits for the turn. PostgreSQL ends
// one of them, and the other commits.
func TestCommit_PostgreSQLEndsADeadlock(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	b.must("INSERT INTO {s}.entry VALUES ('e')")
	early, late := b.begin(), b.begin()
	mustCarry(t, early, coord.NewTxn(b.c).Create("/early", nil, backend.Persistent))
	mustCarry(t, late, coord.NewTxn(b.c).Create("/late", nil, backend.Persistent))
	lock := b.sql("SELECT FROM {s}.entry WHERE name = 'e' FOR UPDATE")
	if _, err := late.Exec(ctx, lock); err != nil {
		t.Fatal(err)
	}
	if _, err := early.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- postgres.Refusal(late.Commit(ctx)) }()
	b.waiting("advisory", "commit")
	_, err := early.Exec(ctx, lock)
	if err == nil {
		err = early.Commit(ctx)
	} else {
		early.Rollback(ctx)
	}
	failed := 0
	for path, err := range map[string]error{"/early": err, "/late": <-done} {
		var e *pgconn.PgError
		switch {
		case err == nil:
		case errors.As(err, &e) && e.Code == "40P01":
			failed++
		default:
			t.Errorf("%s: %v", path, err)
		}
		if b.has(path) != (err == nil) {
			t.Errorf("%s: %v, and the node exists: %v", path, err, b.has(path))
		}
	}
	if failed != 1 {
		t.Errorf("%d of two transactions have failed", failed)
	}
}

// The COMMIT has the turn, so it does not wait for a guard of another transaction.
func TestCommit_IsBusyBesideAGuard(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	mustCreate(t, b.c, "/n", "")
	guard := b.begin()
	if _, err := guard.Exec(ctx, b.sql("SELECT FROM {s}.node WHERE path = '/n' FOR KEY SHARE")); err != nil {
		t.Fatal(err)
	}
	txn := coord.NewTxn(b.c).Create("/m", nil, backend.Persistent).Delete("/n")
	tx := b.begin()
	b.enter(tx, "with it")
	mustCarry(t, tx, txn)
	err := postgres.Refusal(tx.Commit(ctx))
	var e *backend.Error
	if coordtest.WantErr(t, err, postgres.ErrBusy); !errors.As(err, &e) || e.Op != "delete" || e.Path != "/n" || errors.Is(err, coord.ErrConflict) {
		t.Errorf("%+v", err)
	}
	if len(b.entries()) > 0 || b.has("/m") {
		t.Error("applied in part")
	}
	// The same transaction may hold it.
	mustCarry(t, guard, txn)
	mustCommitTx(t, guard)
	if b.has("/n") || !b.has("/m") {
		t.Error("not applied")
	}
}

// A carried commit can be the first on a promoted standby: it begins a new epoch, as a session does.
func TestCommit_BeginsTheEpochOfAnotherHistory(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	tx := b.begin()
	mustCarry(t, tx, coord.NewTxn(b.c).Create("/n", nil, backend.Persistent))
	b.must("UPDATE {s}.clock SET identity = 'another server'")
	before := column[int64](b, "SELECT zxid FROM {s}.clock")[0]
	mustCommitTx(t, tx)
	if got := column[int64](b, "SELECT czxid FROM {s}.node WHERE path = '/n'")[0]; got != (before>>40+1)<<40+1 {
		t.Errorf("position %#x after %#x", got, before)
	}
	// A session that knows a later epoch than the server belongs to another server.
	b.must("UPDATE {s}.session SET epoch = 0")
	tx = b.begin()
	coordtest.WantErr(t, postgres.Commit(context.Background(), tx, coord.NewTxn(b.c).Create("/m", nil, backend.Persistent)), coord.ErrInvalid)
	tx.Rollback(context.Background())
}

// counted counts the writes of a connection.
type counted struct {
	net.Conn
	writes *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

func TestCommit_IsOneRoundTrip(t *testing.T) {
	t.Parallel()
	b, ctx := newBooks(t), context.Background()
	var writes atomic.Int64
	tx, err := b.connect(func(c *pgx.ConnConfig) {
		c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return counted{conn, &writes}, err
		}
	}).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	before := writes.Load()
	mustCarry(t, tx, coord.NewTxn(b.c).Create("/n", nil, backend.Persistent).Create("/m", nil, backend.Persistent))
	if n := writes.Load() - before; n != 1 {
		t.Errorf("%d writes", n)
	}
	mustCommitTx(t, tx)
}

// A cut ends a connection at its COMMIT, before the server gets the request or when it answers.
type cut struct {
	net.Conn
	before bool
	armed  *atomic.Bool
	sent   atomic.Bool
}

func (c *cut) Write(b []byte) (int, error) {
	if c.armed.Load() && strings.Contains(string(b), "commit\x00") {
		if c.before {
			c.Close()
			return 0, net.ErrClosed
		}
		c.sent.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *cut) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.sent.Load() {
		c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func TestCommit_WithoutAReplyIsBothOrNeither(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"the request is lost": true, "the reply is lost": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, ctx := newBooks(t), context.Background()
			armed := new(atomic.Bool)
			conn := b.connect(func(c *pgx.ConnConfig) {
				c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
					return &cut{Conn: conn, before: before, armed: armed}, err
				}
			})
			tx, err := conn.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			b.enter(tx, "with it")
			mustCarry(t, tx, coord.NewTxn(b.c).Create("/n", nil, backend.Persistent))
			armed.Store(true)
			err = postgres.Refusal(tx.Commit(ctx))
			if e := (*pgconn.PgError)(nil); err == nil || errors.As(err, &e) {
				t.Fatalf("%v, want a broken connection", err)
			}
			pid := conn.PgConn().PID()
			b.until("the server ends the connection", func() bool {
				return !column[bool](b, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid)[0]
			})
			if row, node := len(b.entries()) == 1, b.has("/n"); row != node || node == before {
				t.Errorf("the row exists: %v, the node exists: %v", row, node)
			}
			b.clean()
		})
	}
}

// The server is killed while transactions commit. Afterwards each has both its row and its node, or neither, and those
// that were answered have both.
func TestCommit_IsRecoveredAsAWhole(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, nil)
	b := newBooksOn(t, server)
	q := coord.NewQueue[string](b.c, "/q", nil)
	answered := make(map[string]bool)
	var mu sync.Mutex
	rounds := coordtest.Count(2, 20)
	for round := range rounds {
		ctx, cancel := context.WithCancel(context.Background())
		var work sync.WaitGroup
		var done atomic.Int32
		for worker := range 3 {
			work.Go(func() {
				conn, err := pgx.Connect(ctx, pgtest.URL(b.server, ""))
				if err != nil {
					return // the others had enough commits, and the server was killed
				}
				defer conn.Close(context.Background())
				for i := 0; ; i++ {
					name := fmt.Sprintf("%d-%d-%d", round, worker, i)
					err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
						if _, err := tx.Exec(ctx, b.sql("INSERT INTO {s}.entry VALUES ($1)"), name); err != nil {
							return err
						}
						return postgres.Commit(ctx, tx, coord.NewTxn(b.c).Add(q.PutOp(name)))
					})
					switch err := postgres.Refusal(err); {
					case err == nil:
						mu.Lock()
						answered[name] = true
						mu.Unlock()
						done.Add(1)
					case errors.Is(err, coord.ErrConflict): // the bucket was full
					default:
						return // killed
					}
				}
			})
		}
		b.until("commits", func() bool { return done.Load() >= int32(10+7*round) })
		server.Kill()
		cancel()
		work.Wait()
		if err := server.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	rows := make(map[string]bool)
	for _, name := range b.entries() {
		rows[name] = true
	}
	items := make(map[string]bool)
	for _, data := range column[string](b, "SELECT convert_from(data, 'UTF8') FROM {s}.node WHERE path LIKE '/q/items/b-%/i-%'") {
		name := strings.Trim(data, `"`)
		if items[name] || !rows[name] {
			t.Errorf("item %s without a row, or twice", name)
		}
		items[name] = true
	}
	for name := range rows {
		if !items[name] {
			t.Errorf("row %s without an item", name)
		}
	}
	for name := range answered {
		if !rows[name] {
			t.Errorf("%s was committed, and is lost", name)
		}
	}
	t.Logf("figure: %d kills, %d transactions, %d answered", rounds, len(rows), len(answered))
	b.clean()
}
