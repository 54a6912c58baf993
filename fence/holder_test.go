package fence_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/fence"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/proc"
)

const holderRole = "fence holder"

// task is what a holder in a process of its own does: one transaction. At Stop it waits for a line on its standard input.
type task struct {
	Driver, DSN   string
	Dialect       fence.Dialect
	Tables        fence.Options
	Ledger, Token string
	Stop          string
}

const (
	beforeTx     = "before the transaction"
	beforeCommit = "before the commit"
)

// report is a place that the holder has reached, or the outcome of its transaction.
type report struct{ At, Outcome string }

func serveHolder(text []byte) {
	var x task
	if err := json.Unmarshal(text, &x); err != nil {
		panic(err)
	}
	var out proc.Output
	in := bufio.NewReader(os.Stdin)
	stop := func(at string) {
		if at == x.Stop {
			out.Report(report{At: at})
			in.ReadString('\n')
		}
	}
	err := func() error {
		t, err := fence.ParseToken(x.Token)
		if err != nil {
			return err
		}
		db, err := sql.Open(x.Driver, x.DSN)
		if err != nil {
			return err
		}
		defer db.Close()
		stop(beforeTx)
		return fence.New(x.Dialect, &x.Tables).Tx(context.Background(), db, t, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s (seq, token) VALUES (%d, %d)", x.Ledger, t.Number, t.Number)); err != nil {
				return err
			}
			stop(beforeCommit)
			return nil
		})
	}()
	switch {
	case err == nil:
		out.Report(report{Outcome: "committed"})
	case errors.Is(err, coord.ErrFenced):
		out.Report(report{Outcome: "fenced"})
	default:
		out.Report(report{Outcome: err.Error()})
	}
}

// stopped starts a holder with the token 5, and stops its process at a place.
func (d *database) stopped(at string) *proc.Worker[report] {
	d.t.Helper()
	w, err := proc.Start[report](holderRole, task{d.driver, d.dsn, d.dialect, d.tables, d.ledger(), tokenOf(5).String(), at}, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(w.Kill)
	if err := w.Await(coordtest.Limit, func(r []report) bool { return len(r) > 0 }); err != nil || w.Reports()[0].At != at {
		d.t.Fatalf("%v: %v\n%s", err, w.Reports(), w.Stderr())
	}
	if err := w.Signal(syscall.SIGSTOP); err != nil {
		d.t.Fatal(err)
	}
	for deadline := time.Now().Add(coordtest.Limit); !allStopped(d.t, w.Pid()); { // the signal takes its time
		if time.Now().After(deadline) {
			d.t.Fatal("the process runs after SIGSTOP")
		}
	}
	if err := w.Tell("go"); err != nil { // it would go on, if it were not stopped
		d.t.Fatal(err)
	}
	return w
}

// allStopped reports whether all threads of a process are stopped.
func allStopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Skip("only Linux shows whether a process is stopped")
	}
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err == nil && !strings.Contains(string(text), ") T ") { // an error means that the thread has ended
			return false
		}
	}
	return true
}

// resumes continues a holder, and returns the outcome of its transaction.
func (d *database) resumes(w *proc.Worker[report]) string {
	d.t.Helper()
	if err := w.Signal(syscall.SIGCONT); err != nil {
		d.t.Fatal(err)
	}
	if err := w.Await(coordtest.Limit, func(r []report) bool { return len(r) > 1 }); err != nil {
		d.t.Fatalf("%v\n%s", err, w.Stderr())
	}
	return w.Reports()[1].Outcome
}

// later commits a transaction of the token 9.
func (d *database) later() error {
	return d.f.Tx(context.Background(), d.db, tokenOf(9), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s (seq, token) VALUES (9, 9)", d.ledger()))
		return err
	})
}

func TestTx_InAProcessThatIsStopped(t *testing.T) {
	each(t, func(d *database) {
		w := d.stopped(beforeTx)
		if err := d.later(); err != nil {
			d.t.Fatal(err)
		}
		if got := d.resumes(w); got != "fenced" {
			d.t.Errorf("the transaction of the earlier holder: %s", got)
		}
		d.wantWritten(9)
	})
}

func TestTx_InAProcessThatIsStoppedBeforeTheCommit(t *testing.T) {
	each(t, func(d *database) {
		w := d.stopped(beforeCommit)
		later := make(chan error, 1)
		go func() { later <- d.later() }()
		if d.kind != "sqlite" { // its waiters ask again and again, and nothing shows them
			d.awaitBlocked(1)
		}
		if got := d.resumes(w); got != "committed" {
			d.t.Errorf("the transaction of the earlier holder: %s", got)
		}
		if err := <-later; err != nil {
			d.t.Error(err)
		}
		d.wantWritten(5, 9)
	})
}

func TestTx_InAProcessThatIsKilledBeforeTheCommit(t *testing.T) {
	each(t, func(d *database) {
		w := d.stopped(beforeCommit)
		w.Kill()
		if err := d.later(); err != nil {
			d.t.Error(err)
		}
		d.wantWritten(9)
		if got := w.Reports(); !slices.Equal(got, []report{{At: beforeCommit}}) {
			d.t.Errorf("the killed process has reported %v", got)
		}
	})
}

// The database ends the connection of a transaction that is idle for too long, so that the later holder waits no longer.
func TestTx_InAProcessThatIsStoppedForTooLong(t *testing.T) {
	each(t, func(d *database) {
		dsn := d.dsn
		switch d.kind {
		case "postgres":
			d.dsn += "&idle_in_transaction_session_timeout=300"
		case "mariadb":
			d.dsn += "?idle_transaction_timeout=1"
		case "sqlite":
			d.t.Skip("it has no server that could end a transaction")
		}
		w := d.stopped(beforeCommit)
		d.dsn = dsn
		if err := d.later(); err != nil {
			d.t.Fatal(err)
		}
		if got := d.resumes(w); got == "committed" || got == "fenced" {
			d.t.Errorf("the transaction of the earlier holder: %s", got)
		}
		d.wantWritten(9)
	})
}
