// Package pgxfence lets package fence check a token in a transaction of pgx.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		if err := f.Check(ctx, pgxfence.Tx(tx), fence.Of(h)); err != nil {
//			return err
//		}
//		_, err := tx.Exec(ctx, "UPDATE report SET body = $1", body)
//		return err
//	})
package pgxfence

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord/fence"
)

// Tx returns a transaction of pgx for Check and Once of a fence.Fence of fence.PostgreSQL.
func Tx(tx pgx.Tx) fence.Execer {
	if tx == nil {
		return nil
	}
	return execer{tx}
}

type execer struct{ tx pgx.Tx }

func (x execer) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := x.tx.Exec(ctx, query, args...)
	return result(tag.RowsAffected()), err
}

type result int64

func (r result) RowsAffected() (int64, error) { return int64(r), nil }
func (r result) LastInsertId() (int64, error) {
	return 0, errors.New("PostgreSQL has no LastInsertId")
}
