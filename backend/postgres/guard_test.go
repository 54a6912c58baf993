package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
}

// newShop returns a shop on the shared server. The tables are those of layout, or what the library makes if that is empty.
func newShop(t *testing.T, layout func(schema string) string) *shop {
	t.Helper()
	// No test waits for a session to expire: finish ends it.
	sh := &shop{newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: time.Minute}), t.Context()}
	if layout == nil {
		layout = postgres.Migration
	}
	if err := sh.exec("BEGIN; " + layout(sh.opts.Schema) + "; CREATE TABLE " + sh.opts.Schema + ".account (name text PRIMARY KEY, amount int); COMMIT"); err != nil {
		t.Fatal(err)
	}
	return sh
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

// ask returns the value of a query on a connection of its own.
func ask[T any](sh *shop, query string, args ...any) (v T, err error) {
	c, err := pgx.Connect(sh.ctx, pgtest.URL(sh.server, ""))
	if err != nil {
		return v, err
	}
	defer c.Close(context.Background())
	return v, c.QueryRow(sh.ctx, sh.sql(query), args...).Scan(&v)
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

// commit applies an operation in the name of a session, as its client would, and returns its status.
func (sh *shop) commit(session int64, op backend.Op) (string, error) {
	// No commit waits for a lock but the turn, which is soon free.
	return ask[string](sh, `SELECT c.status FROM set_config('lock_timeout', '20s', false), {s}.session s,
		LATERAL {s}.commit(s.id, s.epoch, ARRAY[$2::int], ARRAY[$3::text], ARRAY[$4::text], ARRAY[$5::bytea], ARRAY[$6::int], ARRAY[$7::int]) c WHERE s.id = $1`,
		session, int(op.Kind), op.Path, path.Dir(op.Path), op.Data, int(op.Mode), op.Version)
}

func (sh *shop) amount(name string) (int, error) {
	return ask[int](sh, "SELECT coalesce((SELECT amount FROM {s}.account WHERE name = $1), 0)", name)
}

// eventually waits for a condition that nothing but a broken library keeps from coming.
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

// play plays a scene and returns its outcome. An error means that the next holder overlapped with the transaction, or that something
// else did not do what it should.
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
		sh.link(lock + "a").bytes.Blackhole(true)
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

// What a guarded transaction does, and when the next holder is granted.
func TestGuard_Matrix(t *testing.T) {
	t.Parallel()
	sh := newShop(t, nil)
	var mu sync.Mutex
	lines := make(map[string]string)
	var order []string
	t.Run("each", func(t *testing.T) {
		for _, driver := range drivers {
			for _, level := range levels {
				for _, event := range []event{lives, ended, deleted, paused, dead} {
					for _, check := range []string{first, last} {
						c := scene{driver, level, event, check}
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
