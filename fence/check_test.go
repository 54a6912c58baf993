package fence_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/fence"
	"github.com/go-coord/coord/internal/coordtest"
)

// A cell is one transaction of an old holder, and what happens to it.
type cell struct {
	*database
	level      sql.IsolationLevel
	order      string // of its steps
	old, young fence.Token
	seq        int64 // in the ledger
}

// The orders of the steps: c is Check, r a read, w a write.
var orders = []string{"crw", "rcw", "rwc"}

// step does one step of a transaction.
func (c *cell) step(tx *sql.Tx, t fence.Token, step byte) error {
	var n int
	switch step {
	case 'c':
		return c.f.Check(context.Background(), tx, t)
	case 'r':
		return tx.QueryRow("SELECT count(*) FROM " + c.tables.ItemTable).Scan(&n)
	}
	_, err := tx.Exec(fmt.Sprintf("INSERT INTO %s (seq, token) VALUES (%d, %d)", c.ledger(), c.seq+t.Number, t.Number))
	return err
}

func (c *cell) steps(tx *sql.Tx, t fence.Token, steps string) {
	c.t.Helper()
	for i := range len(steps) {
		if err := c.step(tx, t, steps[i]); err != nil {
			c.t.Fatalf("step %c of %s: %v", steps[i], c.order, err)
		}
	}
}

// run runs the whole transaction of a holder.
func (c *cell) run(db *sql.DB, t fence.Token) error {
	tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: c.level})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for i := range len(c.order) {
		if err := c.step(tx, t, c.order[i]); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// snapshot reports whether a transaction of the cell reads the state at its begin.
func (c *cell) snapshot() bool {
	return c.kind == "postgres" && c.level != sql.LevelReadCommitted || c.kind == "sqlite"
}

// wantTokens checks the writes of the cell.
func (c *cell) wantTokens(want ...int64) {
	c.t.Helper()
	var got []int64
	for _, token := range []int64{c.old.Number, c.young.Number} {
		var n int
		if err := c.db.QueryRow(fmt.Sprintf("SELECT count(*) FROM %s WHERE seq = %d", c.ledger(), c.seq+token)).Scan(&n); err != nil {
			c.t.Fatal(err)
		}
		if n == 1 {
			got = append(got, token)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		c.t.Errorf("written: %v, want %v", got, want)
	}
}

// awaitBlocked returns when n transactions on the table of tokens, or on that of items, wait for a lock.
func (d *database) awaitBlocked(n int) {
	d.t.Helper()
	for deadline := time.Now().Add(coordtest.Limit); ; {
		blocked := d.blocked()
		if blocked == n {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("%d transactions wait, want %d", blocked, n)
		}
	}
}

func (d *database) blocked() (n int) {
	d.t.Helper()
	if d.kind == "postgres" {
		query := `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND (query LIKE '%%"%s"%%' OR query LIKE '%%"%s"%%')`
		if err := d.db.QueryRow(fmt.Sprintf(query, d.tables.Table, d.tables.ItemTable)).Scan(&n); err != nil {
			d.t.Fatal(err)
		}
		return n
	}
	// The table innodb_trx is a cache that is not renewed while it is read all the time.
	var kind, name, status string
	if err := d.db.QueryRow("SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err != nil {
		d.t.Fatal(err)
	}
	for _, tx := range strings.Split(status, "---TRANSACTION ")[1:] {
		if strings.Contains(tx, "LOCK WAIT") && (strings.Contains(tx, "`"+d.tables.Table+"`") || strings.Contains(tx, "`"+d.tables.ItemTable+"`")) {
			n++
		}
	}
	return n
}

// lives: nothing happens.
func (c *cell) lives() {
	if err := c.run(c.db, c.old); err != nil {
		c.t.Fatal(err)
	}
	c.wantTokens(5)
	if err := c.run(c.db, c.young); err != nil {
		c.t.Fatal(err)
	}
	c.wantTokens(5, 9)
}

// overtaken: the old holder is paused before Check, and a later one commits.
func (c *cell) overtaken() {
	before, _, _ := strings.Cut(c.order, "c")
	tx := c.begin(c.level)
	c.steps(tx, c.old, before)
	if c.kind == "sqlite" && before == "rw" { // a writer excludes all others
		if err := c.run(c.open(""), c.young); code(err) != "sqlite 5" {
			c.t.Fatalf("a second writer: %v", err)
		}
		c.steps(tx, c.old, "c")
		if err := tx.Commit(); err != nil {
			c.t.Fatal(err)
		}
		c.wantTokens(5)
		return
	}
	if err := c.run(c.db, c.young); err != nil {
		c.t.Fatal(err)
	}
	err := c.step(tx, c.old, 'c')
	if c.snapshot() && before != "" {
		if !again(err) {
			c.t.Errorf("a snapshot from before the later holder: %v", err)
		}
	} else {
		wantFenced(c.t, err)
	}
	tx.Rollback()
	wantFenced(c.t, c.run(c.db, c.old))
}

// waits: the old holder is paused between Check and its commit, and a later one comes.
func (c *cell) waits(kill bool) {
	tx := c.begin(c.level)
	c.steps(tx, c.old, c.order)
	if c.kind == "sqlite" {
		if err := c.run(c.open(""), c.young); code(err) != "sqlite 5" {
			c.t.Fatalf("a second writer: %v", err)
		}
		if err := tx.Commit(); err != nil {
			c.t.Fatal(err)
		}
	} else {
		var id int64
		if kill {
			query := "SELECT pg_backend_pid()"
			if c.kind == "mariadb" {
				query = "SELECT connection_id()"
			}
			if err := tx.QueryRow(query).Scan(&id); err != nil {
				c.t.Fatal(err)
			}
		}
		young := make(chan error, 1)
		go func() { young <- c.run(c.db, c.young) }()
		c.awaitBlocked(1)
		if kill {
			query := "SELECT pg_terminate_backend(%d)"
			if c.kind == "mariadb" {
				query = "KILL %d"
			}
			c.exec(c.db, fmt.Sprintf(query, id))
		} else if err := tx.Commit(); err != nil {
			c.t.Fatal(err)
		}
		err := <-young
		if kill {
			if tx.Commit() == nil {
				c.t.Error("a commit on a connection that was ended")
			}
			if err != nil {
				c.t.Fatal(err)
			}
			c.wantTokens(9)
			wantFenced(c.t, c.run(c.db, c.old))
			return
		}
		if !c.snapshot() {
			if err != nil {
				c.t.Fatal(err)
			}
			c.wantTokens(5, 9)
			return
		}
		if !again(err) {
			c.t.Errorf("a snapshot from before the commit: %v", err)
		}
	}
	c.wantTokens(5)
	if err := c.run(c.db, c.young); err != nil {
		c.t.Fatal(err)
	}
	c.wantTokens(5, 9)
}

func TestCheck_OverIsolationLevels(t *testing.T) {
	var cells atomic.Int64
	t.Cleanup(func() { t.Logf("figure: %d cells", cells.Load()) })
	each(t, func(d *database) {
		events := []struct {
			name string
			run  func(*cell)
		}{
			{"lives", (*cell).lives},
			{"overtaken", (*cell).overtaken},
			{"waits", func(c *cell) { c.waits(false) }},
			{"killed", func(c *cell) { c.waits(true) }},
		}
		for _, level := range d.levels {
			for _, order := range orders {
				for _, e := range events {
					if e.name == "killed" && d.kind == "sqlite" {
						continue // TestTx_InAProcessThatIsStopped kills a process
					}
					n := cells.Add(1)
					d.t.Run(fmt.Sprintf("%v/%s/%s", level, order, e.name), func(t *testing.T) {
						on := *d
						on.t = t
						path := fmt.Sprintf("/p%d", n)
						e.run(&cell{&on, level, order, fence.Token{Path: path, Number: 5}, fence.Token{Path: path, Number: 9}, n * 10})
					})
				}
			}
		}
	})
}

// With this setting, the default of newer versions, MariaDB refuses to change a row that is newer than the snapshot.
func TestCheck_WithSnapshotIsolationOfMariaDB(t *testing.T) {
	d := newDatabase(t, "mariadb")
	db := d.open("innodb_snapshot_isolation=1")
	for order, want := range map[string]string{"c": "", "rc": "1020"} {
		c := &cell{d, sql.LevelRepeatableRead, order, fence.Token{Path: "/" + order, Number: 5}, fence.Token{Path: "/" + order, Number: 9}, 0}
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: c.level})
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		before, _, _ := strings.Cut(order, "c")
		c.steps(tx, c.young, before)
		if err := c.run(d.db, c.old); err != nil {
			t.Fatal(err)
		}
		if err := c.step(tx, c.young, 'c'); code(err) != want {
			t.Errorf("%s: error %v, want the code %q", order, err, want)
		}
	}
}

// The locks of a set are checked one after the other, in one transaction.
func TestCheck_OfASetOfHolds(t *testing.T) {
	each(t, func(d *database) {
		c, _ := client(d.t, memory.New(nil), "a")
		a, b := coord.NewMutex(c, "/a", nil), coord.NewMutex(c, "/b", nil)
		var first []fence.Token
		for range 2 {
			set, err := coord.LockAll(d.t.Context(), b, a)
			if err != nil {
				d.t.Fatal(err)
			}
			tx := d.begin(sql.LevelDefault)
			for _, h := range set.Holds() {
				if err := d.f.Check(d.t.Context(), tx, fence.Of(h)); err != nil {
					d.t.Fatal(err)
				}
				first = append(first, fence.Token{Path: fence.Of(h).Path, Number: h.Token()})
			}
			if err := tx.Commit(); err != nil {
				d.t.Fatal(err)
			}
			if err := set.Release(); err != nil {
				d.t.Fatal(err)
			}
		}
		for _, late := range first[:2] {
			tx := d.begin(sql.LevelDefault)
			wantFenced(d.t, d.f.Check(d.t.Context(), tx, late))
			tx.Rollback()
		}
	})
}
