package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/carry"
)

// StageIn makes tx carry operations of a session, as Commit does.
func StageIn(ctx context.Context, tx pgx.Tx, b backend.Session, ops ...backend.Op) error {
	return unwrap(b).(*session).stage(ctx, func(ctx context.Context, query string, args []any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}, ops, make([]carry.Part, len(ops)))
}

// ResultsOf decodes the results of operations, which are columns as those of the function commit.
func ResultsOf(ops []backend.Op, columns [][]byte) ([]backend.Result, error) {
	return decode(ops, columns)
}

// CommitTogether makes commits of a session in one transaction, as its link does with commits that wait for the same answer. It
// returns what the server answers to each.
func CommitTogether(ctx context.Context, conn *pgconn.PgConn, schema string, session int64, commits [][]backend.Op) ([][][]byte, error) {
	all := make([]*request, len(commits))
	for i, ops := range commits {
		all[i] = newRequest("c_commit", append([][]byte{int8(session), int4(1), bool1(false)}, encode(ops)...)...)
	}
	r := conn.ExecParams(ctx, fill(statements["c_commit"], schema), joined(all), nil, []int16{1}, []int16{1}).Read()
	return r.Rows, r.Err
}

// CheckRights is checkRights of a session in a schema.
func CheckRights(ctx context.Context, conn *pgconn.PgConn, schema string) error {
	return (&config{schema: schema}).checkRights(ctx, conn)
}
