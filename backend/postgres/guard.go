package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// CheckOptions are the settings of Check and CheckSQL. The zero value of a field means its default, and so
// does a nil *CheckOptions.
type CheckOptions struct {
	// Schema is Options.Schema of the backend on which the hold was granted.
	Schema string

	// Idle is how long the transaction may be idle, waiting for its next statement, before the server ends its connection.
	// The next holder waits for the transaction, also for one whose process has died. Zero means the shortest session timeout of
	// the guard's holds. If it is negative, the transaction may be idle as long as the
	// settings of its connection allow. It counts in milliseconds, rounded up.
	Idle time.Duration
}

// Check makes a transaction of PostgreSQL depend on the hold of g: it succeeds only while the hold's node exists and its
// session has not ended, and then the node is not deleted before the transaction has ended. So the transaction commits
// before the next holder is granted, or it does not commit. This is exact even if the process was paused, or its session
// has ended. If the server fails over and loses the latest commits, the transaction is lost together with the hold.
//
// Begin the transaction after the grant: earlier reads may miss writes of the earlier holder. At REPEATABLE READ and
// SERIALIZABLE, Check refuses a transaction whose snapshot is older than the grant, with the error of a hold that has ended.
// If Check is the last statement, the next holder waits for little more than the commit. If it is the first, the next holder waits
// for the whole transaction, but a transaction that is refused does no work. In either case, a transaction that succeeds has not
// overlapped with a transaction of another holder.
//
// Check costs one round trip, whatever the number of holds. It waits for no write to disk, but locks rows, so that the commit
// of a transaction that only reads is written to disk. The schema must be in the database of the transaction, whose role needs
// USAGE of it, and nothing else. The transaction must be able to write: neither READ ONLY nor on a standby.
//
// A refusal is a *coord.ConflictError with the Op "guard", which matches coord.ErrFenced, and backend.ErrNotFound, or
// backend.ErrBadVersion for a guard with a version. PostgreSQL then aborts the transaction, back to a savepoint if there is one,
// so that the commit of a caller that ignores the error fails. At REPEATABLE READ and SERIALIZABLE, if the node was deleted or
// got another version after the snapshot of the transaction, the error is a *pgconn.PgError with the code 40001: run the
// transaction again, and Check reports whether the hold has ended. Other errors match backend.ErrInvalid if the arguments are
// invalid or the database has no such schema, and backend.ErrDenied if the role lacks USAGE, or are errors of pgx. If ctx ends
// during the call, pgx closes the connection, and the transaction is rolled back. After any error, roll it back.
//
// The guard ends with the transaction, or with a rollback to a savepoint before the call, which also undoes CheckOptions.Idle.
// Until then the hold's Release waits, and so does the deletion of the node by another client. If the session ends, all its
// nodes stay until then. Commits to other nodes are not delayed. The guard of a coord.Branch compares a version: it also delays
// writes to that node, and creations and deletions of its children. With coord.MutexOptions.Keep, Check counts as a use of
// Guard.Ops.
//
// CheckOptions.Idle does not bound a transaction that executes a statement, or whose server waits for the rest of a statement
// (COPY FROM STDIN), or that is prepared for two-phase commit. statement_timeout, transaction_timeout (from PostgreSQL 17 on)
// and tcp_keepalives_idle bound the first two.
//
// Check refuses a hold of another schema, database or backend, since it finds no such node. Holds of other namespaces and clients
// are accepted. A transaction may call Check several times, and several transactions may do so at once, also for the same hold.
func Check(ctx context.Context, tx pgx.Tx, g coord.Guard, o *CheckOptions) error {
	if tx == nil {
		return checkError(fmt.Errorf("%w: no transaction", backend.ErrInvalid))
	}
	return check(ctx, g, o, func(ctx context.Context, query string, args []any) error {
		// In this mode the server need not describe the statement first.
		_, err := tx.Exec(ctx, query, append([]any{pgx.QueryExecModeExec}, args...)...)
		return err
	})
}

// CheckSQL is Check for a transaction of package database/sql, with the driver of github.com/jackc/pgx/v5/stdlib. Another driver
// works if its errors have a method SQLState() string. The first CheckSQL of a connection takes one round trip more.
func CheckSQL(ctx context.Context, tx *sql.Tx, g coord.Guard, o *CheckOptions) error {
	if tx == nil {
		return checkError(fmt.Errorf("%w: no transaction", backend.ErrInvalid))
	}
	return check(ctx, g, o, func(ctx context.Context, query string, args []any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

// check checks a guard by one statement, which exec executes in the transaction.
func check(ctx context.Context, g coord.Guard, o *CheckOptions, exec execer) error {
	if err := backend.ContextError(ctx); err != nil {
		return checkError(err)
	}
	if o == nil {
		o = new(CheckOptions)
	}
	schema := o.Schema
	if schema == "" {
		schema = defaultSchema
	}
	ops := g.Ops()
	if len(ops) == 0 {
		return checkError(fmt.Errorf("%w: the Guard is the zero value", backend.ErrInvalid))
	}
	// The arguments are text, which each driver can send.
	paths, versions := make([]string, len(ops)), make([]string, len(ops))
	for i, op := range ops {
		if op.Kind != backend.OpCheck {
			return checkError(fmt.Errorf("%w: a guard with the operation %v", backend.ErrUnsupported, op.Kind))
		}
		paths[i], versions[i] = arrayQuoter.Replace(op.Path), strconv.Itoa(int(op.Version))
	}
	err := exec(ctx, fill("SELECT {s}.guard($1::text[], $2::int[], $3::int)", schema),
		[]any{`{"` + strings.Join(paths, `","`) + `"}`, "{" + strings.Join(versions, ",") + "}", strconv.Itoa(millis(o.Idle))})
	if err == nil {
		return nil
	}
	var coded interface{ SQLState() string }
	if !errors.As(err, &coded) {
		return checkError(err)
	}
	switch coded.SQLState() {
	case "CO010":
		return refusedGuard(ops, err, backend.ErrNotFound)
	case "CO011":
		return refusedGuard(ops, err, fmt.Errorf("%w: its session has ended, and another transaction keeps the node for a moment", backend.ErrNotFound))
	case "CO012":
		return refusedGuard(ops, err, backend.ErrBadVersion)
	case "40001":
		return checkError(fmt.Errorf("the node has changed since the snapshot of the transaction, run the transaction again: %w", err))
	case "3F000", "42883": // no schema, no function
		return checkError(fmt.Errorf("%w: the database of the transaction has no schema %q of coord: %w", backend.ErrInvalid, schema, err))
	case "42501":
		return checkError(fmt.Errorf("%w: the role needs USAGE of schema %q: %w", backend.ErrDenied, schema, err))
	}
	return checkError(err)
}

var arrayQuoter = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// millis rounds up to milliseconds.
func millis(d time.Duration) int {
	if d < 0 {
		return -1
	}
	n := d / time.Millisecond
	if d%time.Millisecond > 0 {
		n++
	}
	return int(min(n, math.MaxInt32))
}

func checkError(err error) error { return &backend.Error{Op: "check guard", Err: err} }

// refusedGuard returns the error of a guard that the function has refused with err.
func refusedGuard(ops []backend.Op, err, why error) error {
	path := ops[0].Path
	var e *pgconn.PgError
	if errors.As(err, &e) {
		path = e.Detail
	}
	return &coord.ConflictError{Op: "guard", Path: path, Err: why}
}
