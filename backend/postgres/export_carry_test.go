package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

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
