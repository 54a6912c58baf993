package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/carry"
	"github.com/go-coord/coord/internal/errs"
)

// ErrBusy means that another transaction has checked a guard of a node that the commit would change, see Check, and has not
// ended. Nothing was applied. The same commit can succeed once that transaction has ended.
var ErrBusy = errors.New("another transaction holds the node")

// Commit makes the transaction tx carry txn: txn is applied if and only if tx commits, at the same moment. So an item can
// be put together with the rows that it is about, or acknowledged together with the result of its work:
//
//	tx, err := pool.Begin(ctx)
//	...
//	_, err = tx.Exec(ctx, "INSERT INTO booking ...")
//	...
//	err = postgres.Commit(ctx, tx, coord.NewTxn(c).Add(mails.PutOp(mail)))
//	...
//	err = postgres.Refusal(tx.Commit(ctx))
//
// Commit plans txn, and sends the plan to the server in one round trip of tx. The tree does not change and no
// lock of coord is held before the COMMIT of tx, which applies txn as it was planned, and sends the events to the
// watches. If the state of the service has changed so that txn is refused, the COMMIT fails, and
// all of tx is rolled back: Refusal returns the reason. Several Commits in one transaction are applied in their order, each
// to the state that the earlier ones leave. A rollback to a savepoint takes back the Commits after it.
//
// Commit checks no guard, condition or node: the COMMIT does. If Commit returns an error, roll tx back. An error of the server
// ends tx anyway. Commit returns a *coord.ConflictError only for a conflict that the client knows, such as the AckOp of an item
// that it has released. The error matches
//
//   - ErrInvalid if tx is nil, or is not on the database and the schema of txn's client,
//   - ErrUnsupported if tx has another isolation level than read committed, if the client is on another backend, or if
//     txn creates an ephemeral node,
//   - ErrSessionLost if the session of the client has ended. Commit does not try again.
//
// Empty directories and buckets of queues that txn needs are made by Commit itself, and stay if tx is rolled back.
//
// If the connection breaks during COMMIT, the outcome is unknown, but the same for txn and the rows of tx: look for the rows.
// A server that crashes recovers both or neither.
//
// The COMMIT waits for other commits of the schema, as each commit of coord does, and makes them wait until it is
// durable. While it waits, it keeps the row locks of tx. After it has waited, it waits for no other lock. The
// lock_timeout and the deadlock detection of the server apply to it. PREPARE TRANSACTION fails. Do not use SET
// CONSTRAINTS ALL IMMEDIATE after Commit: it applies txn at once, and all commits of the schema wait until tx ends.
//
// The user of tx needs USAGE of the schema, and nothing else. tx must not be used at the same time by another goroutine.
func Commit(ctx context.Context, tx pgx.Tx, txn *coord.Txn) error {
	if tx == nil {
		return errNoTransaction
	}
	return commitIn(ctx, txn, func(ctx context.Context, query string, args []any) error {
		// In this mode the server need not describe the statement first.
		_, err := tx.Exec(ctx, query, append([]any{pgx.QueryExecModeExec}, args...)...)
		return err
	})
}

// CommitSQL is Commit for a transaction of database/sql. Refusal and the errors of CommitSQL need the driver of
// pgx, github.com/jackc/pgx/v5/stdlib. The first CommitSQL of a connection takes one round trip more.
func CommitSQL(ctx context.Context, tx *sql.Tx, txn *coord.Txn) error {
	if tx == nil {
		return errNoTransaction
	}
	return commitIn(ctx, txn, func(ctx context.Context, query string, args []any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}

var errNoTransaction = &backend.Error{Op: "commit", Err: fmt.Errorf("%w: no transaction of the database", backend.ErrInvalid)}

// commitIn commits txn in the transaction in which exec executes a statement.
func commitIn(ctx context.Context, txn *coord.Txn, exec execer) error {
	_, err := txn.Commit(carry.With(ctx, func(ctx context.Context, b backend.Session, ops []backend.Op, parts []carry.Part) error {
		s, ok := unwrap(b).(*session)
		if !ok {
			return fmt.Errorf("%w: the client of the Txn is not on PostgreSQL", backend.ErrUnsupported)
		}
		return s.stage(ctx, exec, ops, parts)
	}))
	return err
}

// unwrap returns the innermost session of wrapped ones.
func unwrap(b backend.Session) backend.Session {
	for {
		w, ok := b.(interface{ Unwrap() backend.Session })
		if !ok {
			return b
		}
		b = w.Unwrap()
	}
}

// An execer executes a statement in the transaction of a user.
type execer func(ctx context.Context, query string, args []any) error

// The error codes of stage, carry and same_history, see schema.sql.
const (
	codeRefused   = "CO002"
	codeSettings  = "CO003"
	codeElsewhere = "CO004"
	codeHistory   = "CO005"
)

// stage makes the transaction of exec carry the operations.
func (s *session) stage(ctx context.Context, exec execer, ops []backend.Op, parts []carry.Part) error {
	if err := s.checkOps(ops); err != nil {
		return err
	}
	if err := s.Enter(); err != nil {
		return err
	}
	defer s.Leave()
	s.mu.Lock()
	epoch := s.epoch
	s.mu.Unlock()
	args, err := stageArgs(ops, parts)
	if err != nil {
		return err
	}
	err = exec(ctx, fill("SELECT {s}.stage($1::bigint, $2::int, $3::int[], $4::text[], $5::text[], $6::bytea[], $7::int[], $8::int[], $9::text[])", s.cfg.schema),
		append([]any{s.id, int64(epoch)}, args...))
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case codeSettings:
		return fmt.Errorf("%w: %s", backend.ErrUnsupported, e.Message)
	case codeElsewhere, "3F000", "42883": // or there is no such schema, or no such function in it
		return s.elsewhere(ctx)
	}
	return translate(e)
}

// elsewhere returns the error of a transaction whose database does not have the session.
func (s *session) elsewhere(ctx context.Context) error {
	l, _, err := s.contact(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout())
	defer cancel()
	// It has ended, or that is not known. After errMoved it lives, and attaches again.
	if err := s.renew(ctx, l, s.now()); err != nil && !errors.Is(err, errMoved) {
		return err
	}
	return fmt.Errorf("%w: the transaction is not on the database and the schema %q of the Txn's client", backend.ErrInvalid, s.cfg.schema)
}

// stageArgs encodes the operations as text, which every driver of database/sql can send.
func stageArgs(ops []backend.Op, parts []carry.Part) ([]any, error) {
	n := len(ops)
	kinds, modes, versions := make([]string, n), make([]string, n), make([]string, n)
	paths, dirs, datas, blames := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	for i, op := range ops {
		kinds[i], modes[i], versions[i] = strconv.Itoa(int(op.Kind)), strconv.Itoa(int(op.Mode)), strconv.Itoa(int(op.Version))
		paths[i], dirs[i] = element(op.Path), element(parent(op.Path))
		datas[i] = "NULL"
		if len(op.Data) > 0 {
			datas[i] = fmt.Sprintf(`"\\x%x"`, op.Data)
		}
		blame, err := json.Marshal(parts[i])
		if err != nil {
			return nil, err
		}
		blames[i] = element(string(blame))
	}
	var args []any
	for _, all := range [][]string{kinds, paths, dirs, datas, modes, versions, blames} {
		args = append(args, "{"+strings.Join(all, ",")+"}")
	}
	return args, nil
}

// element returns text as an element of an array in text form.
func element(text string) string { return `"` + arrayQuoter.Replace(text) + `"` }

// Refusal returns the reason why the COMMIT of a transaction with Commits has failed. err is what the COMMIT
// has returned. The transaction is rolled back. Refusal returns
//
//   - a *coord.ConflictError if the service has refused a Txn: it names the guard, condition or operation. It matches
//     ErrFenced for a guard, and ErrLost for an AckOp whose claim is lost.
//   - an error that matches ErrBusy if another transaction has checked a guard of a node that the Txn
//     deletes. The COMMIT does not wait for that transaction.
//   - err otherwise, and nil for nil.
//
// A recipe's operation can be refused because another client was faster, for instance a PutOp whose bucket was
// closed. The same holds for ErrBusy and for the SQLSTATEs 40001, 40P01 and 55P03 of the server. Then run the whole transaction
// again, with a new Commit, which makes a new plan. Do not repeat what matches ErrFenced or ErrLost, nor ErrExists of a
// PutOp whose Key is in use, nor a conflict of your own conditions: it ends the same way each time.
func Refusal(err error) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.Code != codeRefused {
		return err
	}
	var d struct {
		Status, Path string
		Index        int
		Kind         backend.OpKind
		Part         carry.Part
	}
	if bad := json.Unmarshal([]byte(e.Detail), &d); bad != nil || refusals[d.Status] == nil {
		return err
	}
	why := &backend.Error{Op: d.Kind.String(), Path: d.Path, Index: d.Index, Err: refusals[d.Status]}
	if errors.Is(why, ErrBusy) {
		return why
	}
	c := &coord.ConflictError{Op: d.Part.Op, Index: d.Part.Index, Path: d.Part.Path, Err: why}
	if c.Path == "" {
		c.Path = d.Path
	}
	if d.Part.Claim && errors.Is(why, backend.ErrNotFound) {
		c.Err = &errs.Loss{Path: d.Path, Cause: why}
	}
	return c
}
