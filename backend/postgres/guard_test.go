package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// A shop has accounts in the database that has the nodes.
type shop struct {
	*service
	ctx context.Context
	db  *pgxpool.Pool // its statements wait for no lock but the turn, which is soon free
}

// newShop returns a shop on the shared server. layout returns the SQL that makes the schema; nil is that of the library.
func newShop(t *testing.T, layout func(schema string) string) *shop {
	t.Helper()
	// No test waits for a session to expire: finish ends it.
	patience := "1s" // with a defect
	if layout == nil {
		layout, patience = postgres.Migration, "15s"
	}
	sh := newBareShop(t, newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: time.Minute}), patience)
	if err := sh.exec("BEGIN; " + layout(sh.opts.Schema) + "; CREATE TABLE " + sh.opts.Schema + ".account (name text PRIMARY KEY, amount int); COMMIT"); err != nil {
		t.Fatal(err)
	}
	return sh
}

// newBareShop returns a shop without accounts, whose statements wait for a lock that long.
func newBareShop(t *testing.T, s *service, patience string) *shop {
	t.Helper()
	db, err := pgxpool.New(t.Context(), pgtest.URL(s.server, "")+"&lock_timeout="+patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return &shop{service: s, ctx: t.Context(), db: db}
}

// sql puts the schema into a statement.
func (sh *shop) sql(statement string) string {
	return strings.ReplaceAll(statement, "{s}", sh.opts.Schema)
}

func (sh *shop) conn() *pgx.Conn {
	c, err := pgx.Connect(sh.ctx, pgtest.URL(sh.server, ""))
	if err != nil {
		sh.tb.Fatal(err)
	}
	sh.tb.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// ask returns the value of a query.
func ask[T any](sh *shop, query string, args ...any) (v T, err error) {
	return v, sh.db.QueryRow(sh.ctx, sh.sql(query), args...).Scan(&v)
}

// client opens a client whose link has the name.
func (sh *shop) client(link string) *coord.Client {
	c, err := coord.Open(sh.ctx, sh.link(link), nil)
	if err != nil {
		sh.tb.Fatal(err)
	}
	sh.tb.Cleanup(func() { c.Close() })
	return c
}

// finish ends a session as the library does when it has expired. It reports whether its nodes are gone.
func (sh *shop) finish(session int64) (gone bool, err error) {
	return ask[bool](sh, "SELECT {s}.finish($1)", session)
}

// commit applies operations in the name of a session, as its client would, and returns the status.
func (sh *shop) commit(session int64, ops ...backend.Op) (string, error) {
	var kinds, modes, versions []int32
	var paths, dirs []string
	var datas [][]byte
	for _, op := range ops {
		kinds, modes, versions = append(kinds, int32(op.Kind)), append(modes, int32(op.Mode)), append(versions, op.Version)
		paths, dirs, datas = append(paths, op.Path), append(dirs, path.Dir(op.Path)), append(datas, op.Data)
	}
	return ask[string](sh, `SELECT c.status FROM {s}.session s,
		LATERAL {s}.commit(sid => s.id, ep => s.epoch, early => false, sizes => ARRAY[cardinality($2::int[])], kinds => $2, paths => $3, dirs => $4,
			datas => $5, modes => $6, versions => $7) c WHERE s.id = $1`, session, kinds, paths, dirs, datas, modes, versions)
}

func (sh *shop) amount(name string) (int, error) {
	return ask[int](sh, "SELECT coalesce((SELECT amount FROM {s}.account WHERE name = $1), 0)", name)
}

// eventually waits for a condition that becomes true unless the library is broken.
func (sh *shop) eventually(what string, cond func() (bool, error)) error {
	for end := time.Now().Add(time.Minute); ; {
		switch ok, err := cond(); {
		case err != nil:
			return fmt.Errorf("%s: %w", what, err)
		case ok:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("not within a minute: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A purchase is a transaction of a user.
type purchase interface {
	check(g coord.Guard, o *postgres.CheckOptions) error
	exec(statement string, args ...any) error
	Commit() error
	Rollback() error
}

type pgxPurchase struct {
	sh *shop
	tx pgx.Tx
}

func (p pgxPurchase) check(g coord.Guard, o *postgres.CheckOptions) error {
	return postgres.Check(p.sh.ctx, p.tx, g, p.sh.checkOptions(o))
}

func (p pgxPurchase) exec(statement string, args ...any) error {
	_, err := p.tx.Exec(p.sh.ctx, p.sh.sql(statement), args...)
	return err
}

func (p pgxPurchase) Commit() error   { return p.tx.Commit(p.sh.ctx) }
func (p pgxPurchase) Rollback() error { return p.tx.Rollback(p.sh.ctx) }

type sqlPurchase struct {
	sh *shop
	*sql.Tx
}

func (p sqlPurchase) check(g coord.Guard, o *postgres.CheckOptions) error {
	return postgres.CheckSQL(p.sh.ctx, p.Tx, g, p.sh.checkOptions(o))
}

func (p sqlPurchase) exec(statement string, args ...any) error {
	_, err := p.ExecContext(p.sh.ctx, p.sh.sql(statement), args...)
	return err
}

func (sh *shop) checkOptions(o *postgres.CheckOptions) *postgres.CheckOptions {
	if o == nil {
		o = new(postgres.CheckOptions)
	}
	return &postgres.CheckOptions{Schema: sh.opts.Schema, Idle: o.Idle}
}

var drivers = []string{"pgx", "database/sql"}

// begin begins a transaction on a connection of its own.
func (sh *shop) begin(driver string, level pgx.TxIsoLevel) purchase {
	if driver == "pgx" {
		tx, err := sh.conn().BeginTx(sh.ctx, pgx.TxOptions{IsoLevel: level})
		if err != nil {
			sh.tb.Fatal(err)
		}
		return pgxPurchase{sh, tx}
	}
	db, err := sql.Open("pgx", pgtest.URL(sh.server, ""))
	if err != nil {
		sh.tb.Fatal(err)
	}
	sh.tb.Cleanup(func() { db.Close() })
	levels := map[pgx.TxIsoLevel]sql.IsolationLevel{pgx.ReadCommitted: sql.LevelReadCommitted, pgx.RepeatableRead: sql.LevelRepeatableRead, pgx.Serializable: sql.LevelSerializable}
	tx, err := db.BeginTx(sh.ctx, &sql.TxOptions{Isolation: levels[level]})
	if err != nil {
		sh.tb.Fatal(err)
	}
	return sqlPurchase{sh, tx}
}

const payment = "INSERT INTO {s}.account VALUES ($1, 1)"

var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// event is what happens to the holder of a lock in the middle of its transaction.
type event string

const (
	lives   event = "holder lives"
	ended   event = "session ended" // and another transaction keeps the node, if this one does not
	deleted event = "node deleted"  // by another client
	paused  event = "holder paused" // so its session ends, and it does not know
	dead    event = "process dead"  // and the connection of its transaction stays open
	first         = "first"         // the call of Check in the transaction
	last          = "last"
)

// An outcome is what a transaction of a holder did.
type outcome struct {
	check, commit string
	granted       string // the next holder, judged by the order of events
}

func (o outcome) String() string {
	return fmt.Sprintf("check %-15s commit %-8s next holder granted %s", o.check, o.commit, o.granted)
}

// A scene is one transaction of a holder, and an event.
type scene struct {
	driver string
	level  pgx.TxIsoLevel
	event  event
	check  string
}

func (c scene) String() string {
	return fmt.Sprintf("%-12s %-15s %-13s check %-5s", c.driver, c.level, c.event, c.check)
}

// want returns what has to happen.
func (c scene) want() outcome {
	below := c.level == pgx.ReadCommitted
	switch {
	case c.event == dead:
		return outcome{"ok", "refused", "after"}
	case c.check == first || c.event == lives:
		return outcome{"ok", "ok", "after"}
	case c.event == ended && !below: // its snapshot shows the session alive; the node stays
		return outcome{"ok", "ok", "after"}
	case c.event == ended:
		return outcome{"fenced", "refused", "after"}
	case below:
		return outcome{"fenced", "refused", "before"}
	}
	return outcome{"40001", "refused", "before"}
}

// play plays a scene and returns its outcome. An error means that the next holder overlapped with the transaction, or that another
// step failed.
func (sh *shop) play(c scene, lock string) (out outcome, err error) {
	holder, next := sh.client(lock+"a"), sh.client(lock+"b")
	defer next.Close()
	defer holder.Close()
	defer sh.link(lock + "a").Heal()
	h, err := coord.NewMutex(holder, lock, nil).Lock(sh.ctx)
	if err != nil {
		return out, err
	}
	session := h.Session()
	ctx, cancel := context.WithTimeout(sh.ctx, time.Minute)
	defer cancel()
	type grant struct {
		saw int // of the transaction
		err error
	}
	granted := make(chan grant, 1)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() {
		h, err := coord.NewMutex(next, lock, nil).Lock(ctx)
		saw := 0
		if err == nil {
			saw, err = sh.amount(lock)
			err = errors.Join(err, h.Release())
		}
		granted <- grant{saw, err}
	})
	if err := sh.eventually("the next holder waits", func() (bool, error) {
		n, err := ask[int](sh, "SELECT count(*) FROM {s}.node WHERE parent = $1 AND owner <> 0", lock)
		return n == 2, err
	}); err != nil {
		return out, err
	}

	tx := sh.begin(c.driver, c.level)
	defer tx.Rollback()
	o := &postgres.CheckOptions{}
	if c.event == dead {
		o.Idle = 300 * time.Millisecond
	}
	check := func() error {
		err := tx.check(h.Guard(), o)
		var e *pgconn.PgError
		switch {
		case err == nil:
			out.check = "ok"
		case errors.Is(err, coord.ErrFenced) && errors.Is(err, backend.ErrNotFound):
			out.check = "fenced"
		case errors.As(err, &e) && e.Code == "40001":
			out.check = e.Code
		default:
			return err
		}
		return nil
	}
	if c.check == first {
		if err := check(); err != nil {
			return out, err
		}
	}
	if c.check == last || c.event == dead {
		if err := tx.exec(payment, lock); err != nil {
			return out, err
		}
	}
	if c.check == last && c.event == dead {
		if err := check(); err != nil {
			return out, err
		}
	}

	// The event. free: the node is not kept by a transaction.
	free := c.check == last && c.event != ended
	var keeper purchase
	end := func() (bool, error) { return true, nil } // the event, once more
	switch c.event {
	case ended:
		if c.check == last {
			keeper = sh.begin(c.driver, pgx.ReadCommitted)
			defer keeper.Rollback()
			if err := keeper.check(h.Guard(), nil); err != nil {
				return out, err
			}
		}
		end = func() (bool, error) { return sh.finish(session) }
	case deleted:
		end = func() (bool, error) {
			s, err := next.Session(ctx)
			if err != nil {
				return false, err
			}
			status, err := sh.commit(s.ID(), backend.Delete(h.Path(), backend.AnyVersion))
			if err == nil && status != "ok" && status != "busy" {
				err = fmt.Errorf("a deletion with the status %q", status)
			}
			return status == "ok", err
		}
	case paused, dead:
		sh.link(lock + "a").line.Blackhole(true)
		end = func() (bool, error) { return sh.finish(session) }
	}
	if c.event != lives {
		switch gone, err := end(); {
		case err != nil:
			return out, err
		case gone != free && c.event != dead: // the server may have ended that transaction already
			return out, fmt.Errorf("is the node gone: %t, want %t", gone, free)
		}
	}
	var g grant
	take := func(when string) error {
		g = <-granted
		out.granted = when
		return g.err
	}
	if free && c.event != lives && c.event != dead {
		if err := take("before"); err != nil {
			return out, err
		}
	}

	// The rest of the transaction.
	switch {
	case c.event == dead:
	case c.check == first:
		err = tx.exec(payment, lock)
	default:
		err = check()
	}
	if err != nil {
		return out, err
	}
	if c.event == dead { // nothing but the server ends the transaction
		if err := sh.eventually("the transaction is ended", end); err != nil {
			return out, err
		}
		if err := take("after"); err != nil {
			return out, err
		}
	}
	select {
	case g := <-granted:
		return out, fmt.Errorf("granted (%v) beside a guarded transaction", g)
	default:
	}
	if err := tx.Commit(); err == nil {
		out.commit = "ok"
	} else {
		out.commit = "refused"
	}
	paid := 0
	if out.commit == "ok" {
		paid = 1
	}
	if out.granted == "" {
		if keeper != nil {
			if err := keeper.Commit(); err != nil {
				return out, err
			}
		}
		if c.event == lives {
			err = h.Release()
		} else {
			err = sh.eventually("the node is deleted", func() (bool, error) {
				gone, err := end()
				// A deletion finds no node once the client of the event has deleted it.
				return gone, err
			})
		}
		if err := errors.Join(err, take("after")); err != nil {
			return out, err
		}
	}
	if g.saw != paid {
		return out, fmt.Errorf("the next holder saw %d of the payment, want %d", g.saw, paid)
	}
	if n, err := sh.amount(lock); err != nil || n != paid {
		return out, fmt.Errorf("the account has %d, want %d: %v", n, paid, err)
	}
	return out, nil
}

// Each scene has the expected outcome, and the next holder is granted at the expected time. The drivers take turns; with COORD_LONG=1
// each plays all scenes.
func TestGuard_Matrix(t *testing.T) {
	t.Parallel()
	sh := newShop(t, nil)
	var mu sync.Mutex
	lines := make(map[string]string)
	var order []string
	t.Run("each", func(t *testing.T) {
		for _, driver := range drivers {
			turn := 0
			for _, level := range levels {
				for _, event := range []event{lives, ended, deleted, paused, dead} {
					for _, check := range []string{first, last} {
						c := scene{driver, level, event, check}
						if turn++; os.Getenv("COORD_LONG") == "" && (turn+turn/2)%2 == 0 != (driver == drivers[0]) {
							continue // the other driver plays it
						}
						order = append(order, c.String())
						t.Run(strings.Join(strings.Fields(c.String()), " "), func(t *testing.T) {
							t.Parallel()
							out, err := sh.play(c, fmt.Sprintf("/lock%d", schemas.Add(1)))
							if err != nil {
								t.Error(err)
							}
							if out != c.want() {
								t.Errorf("%v, want %v", out, c.want())
							}
							mu.Lock()
							defer mu.Unlock()
							lines[c.String()] = out.String()
						})
					}
				}
			}
		}
	})
	for _, c := range order {
		t.Logf("figure: %s: %s", c, lines[c])
	}
}

// lock takes a lock and returns the hold.
func lock(t *testing.T, c *coord.Client, path string) *coord.Hold {
	t.Helper()
	h, err := coord.NewMutex(c, path, nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// must fails the test with an error of the test's own steps.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("error %v, want %v", err, w)
		}
	}
}

// Release waits for the holder's own transaction.
func TestGuard_ReleaseWaitsForTheTransaction(t *testing.T) {
	t.Parallel()
	sh := newShop(t, nil)
	c, other := sh.client("a"), sh.client("b")
	for _, driver := range drivers {
		name := "/" + driver
		h := lock(t, c, name)
		tx := sh.begin(driver, pgx.ReadCommitted)
		must(t, tx.check(h.Guard(), nil))
		must(t, tx.exec(payment, name))
		released := make(chan error, 1)
		go func() { released <- h.Release() }()
		<-h.Done()
		// Each request of the release is refused as this one is.
		s, err := other.Session(t.Context())
		must(t, err)
		if status, err := sh.commit(s.ID(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil || status != "busy" {
			t.Errorf("a deletion beside the transaction: %q, %v", status, err)
		}
		select {
		case err := <-released:
			t.Errorf("released (%v) before the end of the transaction", err)
		default:
		}
		must(t, tx.Commit())
		if err := <-released; err != nil {
			t.Error(err)
		}
		lock(t, other, name)
		if n, err := sh.amount(name); err != nil || n != 1 {
			t.Errorf("the next holder sees %d, %v", n, err)
		}
	}
}

// A session that expires in the middle of a transaction: the other sessions end it as soon as
// the transaction has ended, and do their own work meanwhile.
func TestGuard_AnExpiredSessionEndsAfterTheTransaction(t *testing.T) {
	t.Parallel()
	sh := newShop(t, nil)
	sh.opts.SessionTimeout = 6 * time.Second // of the next holder, which looks for sessions that have expired
	o := sh.opts
	o.SessionTimeout = 4 * time.Second
	l := sh.link("a")
	holder, err := coord.Open(t.Context(), postgres.New(pgtest.URL(l.line.Addr(), ""), &o), nil)
	must(t, err)
	t.Cleanup(func() {
		l.Heal()
		holder.Close()
	})
	next := sh.client("b")
	h := lock(t, holder, "/lock")
	tx := sh.begin("pgx", pgx.ReadCommitted)
	must(t, tx.check(h.Guard(), &postgres.CheckOptions{Idle: -1}))
	must(t, tx.exec(payment, "a"))
	l.line.Blackhole(true)
	granted := make(chan error, 1)
	go func() {
		_, err := coord.NewMutex(next, "/lock", nil).Lock(context.Background())
		granted <- err
	}()
	must(t, sh.eventually("the session is ended", func() (bool, error) {
		return ask[bool](sh, "SELECT ended FROM {s}.session WHERE id = $1", h.Session())
	}))
	for i := range 20 {
		if _, err := coord.NewTxn(next).Create(fmt.Sprint("/beside", i), nil, backend.Persistent).Commit(t.Context()); err != nil {
			t.Error(err)
		}
	}
	again := sh.begin("pgx", pgx.ReadCommitted)
	wantErr(t, again.check(h.Guard(), nil), coord.ErrFenced, coord.ErrNotFound)
	select {
	case err := <-granted:
		t.Errorf("granted (%v) beside the transaction", err)
	default:
	}
	must(t, tx.Commit())
	must(t, <-granted)
	if n, err := sh.amount("a"); err != nil || n != 1 {
		t.Errorf("the next holder sees %d, %v", n, err)
	}
}

// A check waits for a commit that deletes its node, and is refused if the commit is applied. A commit can also lock the node only to
// end the session, and leave it because another guard holds a node of the session.
func TestGuard_ACheckBesideTheDeletion(t *testing.T) {
	t.Parallel()
	sh := newShop(t, nil)
	for _, driver := range drivers {
		for _, err := range sh.besideTheDeletion(driver) {
			t.Errorf("%s: %v", driver, err)
		}
	}
}

func (sh *shop) besideTheDeletion(driver string) (failed []error) {
	for _, tc := range []struct {
		name   string
		kept   bool // another node of the session
		commit bool // of what ends the session
		fenced bool
	}{
		{"deleted", false, true, true},
		{"ended only", true, true, true},
		{"rolled back", false, false, false},
	} {
		err := func() error {
			c := sh.client("a")
			defer c.Close() // the other driver takes the same locks
			set, err := coord.LockAll(sh.ctx, coord.NewMutex(c, "/one"+tc.name, nil), coord.NewMutex(c, "/two"+tc.name, nil))
			if err != nil {
				return err
			}
			one, two := set.Holds()[0], set.Holds()[1]
			other := sh.begin(driver, pgx.ReadCommitted)
			defer other.Rollback()
			if tc.kept {
				if err := other.check(two.Guard(), nil); err != nil {
					return err
				}
			}
			end := sh.begin("pgx", pgx.ReadCommitted)
			defer end.Rollback()
			if err := end.exec("SELECT {s}.finish($1)", one.Session()); err != nil {
				return err
			}
			tx := sh.begin(driver, pgx.ReadCommitted)
			defer tx.Rollback()
			checked := make(chan error, 1)
			go func() { checked <- tx.check(one.Guard(), nil) }()
			if err := sh.eventually("the check waits", func() (bool, error) {
				return ask[bool](sh, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{s}%.guard($1%')")
			}); err != nil {
				return err
			}
			if tc.commit {
				err = end.Commit()
			} else {
				err = end.Rollback()
			}
			if err != nil {
				return err
			}
			switch err := <-checked; {
			case tc.fenced && !(errors.Is(err, coord.ErrFenced) && errors.Is(err, coord.ErrNotFound)):
				return fmt.Errorf("%v, want %w", err, coord.ErrFenced)
			case !tc.fenced && err != nil:
				return err
			}
			return nil
		}()
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", tc.name, err))
		}
	}
	return failed
}

// A guard is refused if its node has another version.
func TestGuard_AnotherVersion(t *testing.T) {
	t.Parallel()
	must(t, newShop(t, nil).otherVersion())
}

func (sh *shop) otherVersion() error {
	c := sh.client("a")
	if _, err := coord.NewTxn(c).Create("/node", nil, backend.Persistent).Set("/node", nil).Commit(sh.ctx); err != nil { // version 1
		return err
	}
	for version, code := range map[int]string{0: "CO012", 1: "", 2: "CO012"} {
		tx := sh.begin("pgx", pgx.ReadCommitted)
		err := tx.exec("SELECT {s}.guard(ARRAY['/node'], ARRAY[$1::int], -1)", version)
		var e *pgconn.PgError
		switch errors.As(err, &e); {
		case err == nil && code != "":
			return fmt.Errorf("a guard of version %d of a node of version 1 passed", version)
		case err != nil && (e == nil || e.Code != code):
			return fmt.Errorf("a guard of version %d of a node of version 1: %w", version, err)
		}
		if err := tx.Rollback(); err != nil {
			return err
		}
	}
	return nil
}

// A guard asks whether a session has ended, and not when it expires: a transaction at REPEATABLE READ sees the renewals
// up to its snapshot only.
func TestGuard_ASessionWhoseTimeoutIsOverInTheSnapshotHasNotEnded(t *testing.T) {
	t.Parallel()
	must(t, newShop(t, nil).expiredInTheSnapshot())
}

func (sh *shop) expiredInTheSnapshot() error {
	h, err := coord.NewMutex(sh.client("a"), "/lock", nil).Lock(sh.ctx)
	if err != nil {
		return err
	}
	reaper := sh.begin("pgx", pgx.ReadCommitted) // so that no other ends the session
	defer reaper.Rollback()
	tx := sh.begin("pgx", pgx.RepeatableRead)
	defer tx.Rollback()
	for _, exec := range []func() error{
		func() error {
			return reaper.exec("SELECT pg_advisory_xact_lock(hashtextextended($1, 7402))", sh.opts.Schema)
		},
		func() error { return sh.exec(sh.sql("UPDATE {s}.session SET expires = expires - interval '1 day'")) },
		func() error { return tx.exec("SELECT FROM {s}.account") },
		func() error { return sh.exec(sh.sql("UPDATE {s}.session SET expires = expires + interval '1 day'")) },
		reaper.Rollback,
		func() error { return tx.check(h.Guard(), nil) },
		tx.Commit,
	} {
		if err := exec(); err != nil {
			return err
		}
	}
	return nil
}

// Check bounds how long its transaction may be idle, and no later one.
func TestGuard_Idle(t *testing.T) {
	t.Parallel()
	must(t, newShop(t, nil).idleBounds())
}

func (sh *shop) idleBounds() error {
	h, err := coord.NewMutex(sh.client("a"), "/lock", nil).Lock(sh.ctx) // its session timeout is a minute
	if err != nil {
		return err
	}
	conn := sh.conn()
	show := func() (v string, err error) {
		return v, conn.QueryRow(sh.ctx, "SHOW idle_in_transaction_session_timeout").Scan(&v)
	}
	for _, tc := range []struct {
		present string
		idle    time.Duration
		want    string
	}{
		{"0", 0, "1min"},
		{"30s", 0, "30s"},
		{"2h", 0, "1min"},
		{"0", 90*time.Second + time.Nanosecond, "90001ms"},
		{"2min", 90 * time.Second, "90s"},
		{"80500ms", 90 * time.Second, "80500ms"},
		{"0", -1, "0"},
		{"2h", -time.Hour, "2h"},
		{"0", 1<<63 - 1, "2147483647ms"},
		{"1d", 1<<63 - 1, "1d"},
	} {
		if _, err := conn.Exec(sh.ctx, "SET idle_in_transaction_session_timeout = '"+tc.present+"'"); err != nil {
			return err
		}
		tx, err := conn.Begin(sh.ctx)
		if err != nil {
			return err
		}
		if err := postgres.Check(sh.ctx, tx, h.Guard(), &postgres.CheckOptions{Schema: sh.opts.Schema, Idle: tc.idle}); err != nil {
			return err
		}
		if got, err := show(); err != nil || got != tc.want {
			return fmt.Errorf("bound %v where %s is set: %q, %v, want %q", tc.idle, tc.present, got, err, tc.want)
		}
		if err := tx.Commit(sh.ctx); err != nil {
			return err
		}
		if got, err := show(); err != nil || got != tc.present {
			return fmt.Errorf("after a transaction with the bound %v: %q, %v, want %q", tc.idle, got, err, tc.present)
		}
	}
	return nil
}

// A role needs USAGE of the schema for Check, and can do nothing else with it.
func TestGuard_Role(t *testing.T) {
	t.Parallel()
	must(t, newShop(t, nil).roleCanCheckOnly())
}

func (sh *shop) roleCanCheckOnly() error {
	h, err := coord.NewMutex(sh.client("a"), "/lock", nil).Lock(sh.ctx)
	if err != nil {
		return err
	}
	role := "role_" + sh.opts.Schema
	if err := sh.exec("CREATE ROLE " + role + " LOGIN"); err != nil {
		return err
	}
	conn, err := pgx.Connect(sh.ctx, strings.Replace(pgtest.URL(sh.server, ""), "postgres@", role+"@", 1))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	check := func() error {
		tx, err := conn.Begin(sh.ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(sh.ctx)
		if err := postgres.Check(sh.ctx, tx, h.Guard(), sh.checkOptions(nil)); err != nil {
			return err
		}
		return tx.Commit(sh.ctx)
	}
	if err := check(); !errors.Is(err, backend.ErrDenied) {
		return fmt.Errorf("a role without rights: %v, want %w", err, backend.ErrDenied)
	}
	if err := sh.exec(sh.sql("GRANT USAGE ON SCHEMA {s} TO " + role)); err != nil {
		return err
	}
	// A type of the role's own, with the name of one that the function uses, runs no code of the role there.
	for _, statement := range []string{
		"CREATE TEMP TABLE ran (as_role text)",
		"GRANT ALL ON ran TO PUBLIC",
		`CREATE FUNCTION pg_temp.ran(pg_catalog.text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN INSERT INTO pg_temp.ran VALUES (current_user); RETURN true; END $$`,
		`CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (pg_temp.ran(VALUE))`,
	} {
		if _, err := conn.Exec(sh.ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	if err := check(); err != nil {
		return err
	}
	ran := 0
	if err := conn.QueryRow(sh.ctx, "SELECT count(*) FROM pg_temp.ran WHERE as_role <> current_user").Scan(&ran); err != nil || ran > 0 {
		return fmt.Errorf("code of the role ran %d times with the rights of the owner: %v", ran, err)
	}
	sessions, err := ask[int](sh, "SELECT count(*) FROM {s}.session")
	if err != nil || sessions == 0 {
		return fmt.Errorf("%d sessions, %v", sessions, err)
	}
	for _, statement := range []string{
		"SELECT FROM {s}.node", "SELECT FROM {s}.session", "SELECT FROM {s}.clock",
		"SELECT FROM {s}.node FOR KEY SHARE", "UPDATE {s}.session SET expires = now()", "DELETE FROM {s}.node", "TRUNCATE {s}.node",
		"INSERT INTO {s}.node VALUES ('/mine', '/', NULL, 0, 0, 0, 0, 0, 0, 0, false, 0, 0, 0)",
		"SELECT {s}.open(1, 60000, 20000, false)", "SELECT {s}.attach(1, 2, 0, gen_random_uuid())", "SELECT {s}.beat(1)", "SELECT {s}.finish(1)", "SELECT {s}.reap(0)", "SELECT {s}.collect(0)",
		"SELECT {s}.commit(1, 1, false, '{1}', '{3}', '{/lock}', '{/}', '{NULL}', '{0}', '{-1}')",
		"SELECT {s}.apply(1, 1, 1, 1, '{3}', '{/lock}', '{/}', '{NULL}', '{0}', '{-1}')",
		"CREATE TABLE {s}.mine ()",
	} {
		var e *pgconn.PgError
		if _, err := conn.Exec(sh.ctx, sh.sql(statement)); !errors.As(err, &e) || e.Code != "42501" {
			return fmt.Errorf("%s: %v, want 42501", statement, err)
		}
	}
	return nil
}

// A step is an action beside a guard, and the status that it must have.
type step struct {
	what string
	do   func() (string, error)
	want string
}

// besideGuards does everything that takes the turn while transactions hold guards, and returns an error if any of it has
// another outcome than it should, or waits for a transaction.
func (sh *shop) besideGuards() error {
	c := sh.client("a")
	s, err := c.Session(sh.ctx)
	if err != nil {
		return err
	}
	for _, g := range []struct {
		on      string
		version int
	}{{"hold", -1}, {"hold", 0}, {"dir", -1}, {"dir", 0}} {
		dir := fmt.Sprintf("/d%d", schemas.Add(1))
		owner := schemas.Add(1) // of the hold: a session without a client
		if _, err := ask[int64](sh, "SELECT z FROM {s}.open($1, 600000, 200000, false)", owner); err != nil {
			return err
		}
		commit := func(session int64, ops ...backend.Op) func() (string, error) {
			return func() (string, error) { return sh.commit(session, ops...) }
		}
		finish := func() (string, error) {
			gone, err := sh.finish(owner)
			return fmt.Sprint(gone), err
		}
		collect := func() (string, error) {
			n, err := ask[int](sh, "SELECT {s}.collect(-60000)")
			return fmt.Sprint(n), err
		}
		run := func(name string, steps []step) error {
			for _, st := range steps {
				if status, err := st.do(); err != nil || status != st.want {
					return fmt.Errorf("%s: %s: %q, %v, want %q", name, st.what, status, err, st.want)
				}
			}
			return nil
		}
		if err := run("setup", []step{
			{"create dir", commit(s.ID(), backend.Create(dir, nil, backend.Persistent)), "ok"},
			{"create hold", commit(owner, backend.Create(dir+"/hold", nil, backend.Ephemeral)), "ok"},
			{"create other", commit(s.ID(), backend.Create(dir+"/other", nil, backend.Persistent)), "ok"},
			{"create box", commit(s.ID(), backend.Create(dir+"/box", nil, backend.Container)), "ok"},
			{"create gone", commit(s.ID(), backend.Create(dir+"/gone", nil, backend.Persistent)), "ok"},
		}); err != nil {
			return err
		}
		// The snapshot of a transaction at REPEATABLE READ is older than the guarded version of the data.
		level := pgx.ReadCommitted
		if g.version < 0 {
			level = pgx.RepeatableRead
		}
		guarded := dir
		if g.on == "hold" {
			guarded += "/hold"
		}
		name := fmt.Sprintf("guard of %s, version %d", g.on, g.version)
		tx := sh.begin("pgx", level)
		defer tx.Rollback()
		if err := tx.exec("SELECT FROM {s}.account"); err != nil {
			return err
		}
		if level == pgx.RepeatableRead {
			if _, err := sh.commit(s.ID(), backend.SetData(guarded, []byte("before"), backend.AnyVersion)); err != nil {
				return err
			}
		}
		if err := tx.exec("SELECT {s}.guard(ARRAY[$1::text], ARRAY[$2::int], -1)", guarded, g.version); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		hold, below, gone := "ok", "ok", "false"
		switch {
		case g.on == "hold" && g.version >= 0:
			hold = "busy"
		case g.on == "dir" && g.version >= 0:
			below = "busy"
		case g.on == "dir":
			gone = "true"
		}
		set := step{"set " + g.on, commit(s.ID(), backend.SetData(guarded, []byte("x"), backend.AnyVersion)), "ok"}
		if g.version >= 0 {
			set.want = "busy"
		}
		removed := "busy"
		if g.on == "dir" {
			removed = "notempty"
		}
		collected := "0"
		if below == "ok" {
			collected = "1"
		}
		steps := []step{
			set,
			{"delete " + g.on, commit(s.ID(), backend.Delete(guarded, backend.AnyVersion)), removed},
			{"check hold", commit(s.ID(), backend.Check(dir+"/hold", backend.AnyVersion)), "ok"},
			{"set other", commit(s.ID(), backend.SetData(dir+"/other", []byte("x"), backend.AnyVersion)), "ok"},
			{"set hold", commit(s.ID(), backend.SetData(dir+"/hold", []byte("x"), backend.AnyVersion)), hold},
			{"create in dir", commit(s.ID(), backend.Create(dir+"/new", nil, backend.Persistent)), below},
			{"create below dir", commit(s.ID(), backend.Create(dir+"/other/new", nil, backend.Persistent)), "ok"},
			{"create beside dir", commit(s.ID(), backend.Create(dir+"beside", nil, backend.Persistent)), "ok"},
			{"delete beside dir", commit(s.ID(), backend.Delete(dir+"beside", backend.AnyVersion)), "ok"},
			{"delete in dir", commit(s.ID(), backend.Delete(dir+"/gone", backend.AnyVersion)), below},
			{"collect in dir", collect, collected},
			{"finish the holder", finish, gone},
			{"delete other", commit(s.ID(), backend.Delete(dir+"/other/new", backend.AnyVersion)), "ok"},
		}
		if g.on == "hold" { // also after the node has changed under the guard
			steps = append(steps, step{"delete hold", commit(s.ID(), backend.Delete(dir+"/hold", backend.AnyVersion)), "busy"}, step{"finish again", finish, "false"},
				step{"delete hold with others", commit(s.ID(), backend.Delete(dir+"/new", backend.AnyVersion), backend.Delete(dir+"/other", backend.AnyVersion),
					backend.Delete(dir+"/hold", backend.AnyVersion), backend.Delete(dir+"/missing", backend.AnyVersion)), "busy"})
		}
		if err := run(name, steps); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		if err := run(name+", over", []step{
			{"finish", finish, "true"},
			{"set dir", commit(s.ID(), backend.SetData(dir, []byte("x"), backend.AnyVersion)), "ok"},
			{"create in dir", commit(s.ID(), backend.Create(dir+"/last", nil, backend.Persistent)), "ok"},
		}); err != nil {
			return err
		}
	}
	return nil
}

// No transaction that has the turn waits for the transaction of a user, and a guard delays only conflicting commits.
func TestGuard_NothingWaitsUnderTheTurn(t *testing.T) {
	t.Parallel()
	must(t, newShop(t, nil).besideGuards())
}
