package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// An Execer is a transaction: a *sql.Tx, or the transaction of a library that has this method. See package pgxfence for pgx.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Tx begins a transaction, checks the token, calls fn, and commits if fn returns nil. The ctx of fn, and the transaction, end when
// ctx or the hold of the token ends; then nothing is applied. The check costs one statement.
//
// fn does not end the transaction, and sends no BEGIN, COMMIT or ROLLBACK as text. On MySQL and MariaDB it sends no statement with
// an implicit commit either, such as CREATE, ALTER, TRUNCATE or LOCK TABLES. Tx does not notice them, and its row is then not locked
// any more. fn returns the error of a statement that has failed: after a deadlock, MySQL and MariaDB have rolled the transaction back,
// and apply each further statement at once.
//
// If Tx returns nil, the transaction is applied, and no transaction of a later holder was before it. The error of fn is returned
// as it is, or with the reason for which ctx has ended. Other errors match
//
//   - coord.ErrFenced and coord.ErrConflict: a later holder has written. fn was not called.
//   - coord.ErrLost or coord.ErrReleased: the hold has ended, with ctx's own error if that was during the call;
//   - coord.ErrInvalid: the arguments are invalid (a path also matches coord.ErrBadPath), or fn has called Commit or Rollback of tx;
//   - coord.ErrUncertain: the commit failed in a way that does not tell whether it was applied. If fn calls [Fence.Once] with an ID of
//     the write, a repetition of Tx applies it once.
//
// or are errors of the driver, as those in the package comment that ask for another run. Except with ErrUncertain, nothing is
// applied, unless fn has committed. The transaction is rolled back too if fn panics or ends its goroutine.
func (f *Fence) Tx(ctx context.Context, db *sql.DB, t Token, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if err := f.ready(t); err != nil {
		return failed("tx", t.Path, err)
	}
	if db == nil || fn == nil {
		return failed("tx", t.Path, invalid("no database, or no function"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if t.hold != nil {
		ctx = t.hold.Context(ctx)
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: f.isolation})
	if err != nil {
		return failed("tx", t.Path, because(ctx, err))
	}
	defer tx.Rollback()
	if err := f.Check(ctx, tx, t); err != nil {
		return err
	}
	if err := fn(ctx, tx); err != nil {
		return because(ctx, err)
	}
	// From here on, an error of ctx can come from a driver whose server has the COMMIT already.
	if err := backend.ContextError(ctx); err != nil {
		return failed("tx", t.Path, err)
	}
	err = tx.Commit()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone):
		if ended := backend.ContextError(ctx); ended != nil {
			return failed("tx", t.Path, ended)
		}
		return failed("tx", t.Path, fmt.Errorf("%w: the function has ended the transaction: %w", coord.ErrInvalid, err))
	case refused(err):
		return failed("commit", t.Path, err)
	}
	return failed("commit", t.Path, backend.Uncertain(because(ctx, err)))
}

// Check makes a transaction depend on the token: it fails if a later holder has written under the path, and otherwise no later
// holder passes a Check before the transaction has ended. Call it before the first read and the first write of the transaction,
// which must be able to write. It is one statement.
//
// A refusal is a *coord.ConflictError with the Op "guard", which matches coord.ErrFenced. If the hold of the token is in this
// process and has ended, the error matches coord.ErrLost or coord.ErrReleased, and nothing is sent. Invalid arguments match
// coord.ErrInvalid, and a bad path coord.ErrBadPath too. Other errors are those of the driver. After any error, roll the transaction
// back: a commit can apply its other statements.
//
// A rollback to a savepoint before the call undoes it. The end of the hold during the transaction does not end the transaction,
// unless it was begun with a context of the hold.
func (f *Fence) Check(ctx context.Context, tx Execer, t Token) error {
	if err := f.ready(t); err != nil {
		return failed("check", t.Path, err)
	}
	args := []any{t.Path, t.Number}
	if f.dialect == MySQL {
		args = []any{[]byte(t.Path), t.Number, t.Number} // bytes, so that no character set applies
	}
	n, err := f.exec(ctx, tx, f.check, args)
	if err != nil {
		return failed("check", t.Path, err)
	}
	if f.dialect == MySQL && n > t.Number || f.dialect != MySQL && n == 0 {
		return &coord.ConflictError{Op: "guard", Path: t.Path, Err: fmt.Errorf("a holder with a token later than %d has written", t.Number)}
	}
	return nil
}

// ready reports whether the options and the token are valid.
func (f *Fence) ready(t Token) error {
	if err := f.valid(); err != nil {
		return err
	}
	return t.check()
}

// exec executes an insertion. It returns the value that MySQL found in the row before, or 0; for other databases the number of
// rows inserted or changed.
func (f *Fence) exec(ctx context.Context, tx Execer, query string, args []any) (int64, error) {
	if err := backend.ContextError(ctx); err != nil {
		return 0, err
	}
	switch x := tx.(type) {
	case nil:
		return 0, invalid("no transaction")
	case *sql.DB:
		return 0, invalid("a *sql.DB is not a transaction")
	case *sql.Tx:
		if x == nil {
			return 0, invalid("no transaction")
		}
	}
	res, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, because(ctx, err)
	}
	if f.dialect == MySQL {
		return res.LastInsertId()
	}
	return res.RowsAffected()
}

// because adds to err the cause for which ctx has ended, so that the error of a driver tells that a hold was lost.
func because(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// refused reports whether err, of a COMMIT, says that the transaction was rolled back: an error of PostgreSQL, except those that
// do not tell and those of a server that ends or fails, which can follow a commit; and SQLITE_BUSY from a driver that then
// rolls back. pgx has an error without a code for a COMMIT that PostgreSQL answers with ROLLBACK, since a statement has failed.
func refused(err error) bool {
	var lite interface{ Code() int }
	if errors.As(err, &lite) {
		return lite.Code()&0xff == 5
	}
	var coded interface{ SQLState() string }
	if !errors.As(err, &coded) {
		return strings.Contains(err.Error(), "commit unexpectedly resulted in rollback")
	}
	code := coded.SQLState()
	for _, unknown := range []string{"08", "40003", "57", "58", "XX"} {
		if strings.HasPrefix(code, unknown) {
			return false
		}
	}
	return true
}
