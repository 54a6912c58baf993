package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
)

const (
	endLimit = 2 * time.Second
	endTurn  = 200 * time.Millisecond // how long one try waits for the turn to commit
)

// End ends the session of a ticket, whose process must have died. Its nodes are deleted at once, not after the session timeout,
// except nodes that the transaction of a user locks. The connection string, Schema and BeforeConnect are those of the caller, and its
// role needs the rights of one that opens sessions. End makes one connection, and returns after two seconds or when ctx ends. It returns nil if the
// session has ended, then or before. After an error the session lives for up to its timeout; an attempt does not renew it.
func End(ctx context.Context, connString string, o *Options, t backend.Ticket) error {
	cfg, err := newConfig(connString, o)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, endLimit)
		defer cancel()
		err = cfg.end(ctx, t.ID)
	}
	if err != nil {
		return &backend.Error{Op: "end", Err: fmt.Errorf("%v: %w", t, err)}
	}
	return nil
}

func (c *config) end(ctx context.Context, id int64) error {
	pg, err := c.connection(ctx)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, pg)
	if err != nil {
		return fmt.Errorf("%v: %w", c.target, err)
	}
	defer conn.Close(ctx)
	// One transaction, since a pool has no settings of the session.
	sql := fill(fmt.Sprintf("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = '%s'; SELECT {s}.finish(%d); COMMIT", lockTimeout(endTurn), id), c.schema)
	for {
		err := conn.Exec(ctx, sql).Close()
		var e *pgconn.PgError
		if err == nil || !errors.As(err, &e) || !transient(e) {
			return err
		}
		if err := conn.Exec(ctx, "ROLLBACK").Close(); err != nil {
			return err
		}
	}
}
