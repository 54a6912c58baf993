package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// carried is a service on which each commit is carried by a transaction of a user, except commits that create ephemeral nodes, and
// those that lose a request or reply.
type carried struct {
	*service
	conn    *pgx.Conn
	commits *atomic.Int64 // that were carried
}

// results makes apply keep the results of carried commits, which no caller gets otherwise.
const results = `ALTER FUNCTION {s}.apply RENAME TO apply_only;
CREATE TABLE {s}.result (z bigint, names text[], siblings int[], stats bigint[]);
CREATE FUNCTION {s}.apply(sid bigint, z bigint, first int, last int, kinds int[], paths text[], dirs text[], datas bytea[], modes int[], versions int[],
	OUT status text, OUT at int, OUT names text[], OUT siblings int[], OUT stats bigint[], OUT events text[])
LANGUAGE plpgsql AS $$
BEGIN
	SELECT a.* INTO status, at, names, siblings, stats, events FROM {s}.apply_only(sid, z, first, last, kinds, paths, dirs, datas, modes, versions) a;
	IF sid = 0 AND status = 'ok' THEN
		INSERT INTO {s}.result VALUES (CASE WHEN cardinality(events) = 0 THEN z - 1 ELSE z END, names, siblings, stats);
	END IF;
END $$`

func newCarried(t *testing.T, server *pgtest.Server, timeout time.Duration, commits *atomic.Int64) carried {
	s := newService(t, server.Addr(), postgres.Options{SessionTimeout: timeout})
	b := &books{service: s, t: t, schema: s.opts.Schema}
	b.must("BEGIN; " + postgres.Migration(s.opts.Schema) + "; " + b.sql(results) + "; COMMIT")
	return carried{s, b.connect(nil), commits}
}

func (s carried) Link(name string) backendtest.Link {
	return &carriedLink{Link: s.service.Link(name), s: s}
}

type carriedLink struct {
	backendtest.Link
	s     carried
	loses atomic.Bool // the next commit is not carried
}

func (l *carriedLink) DropNextRequest() { l.loses.Store(true); l.Link.DropNextRequest() }
func (l *carriedLink) DropNextReply()   { l.loses.Store(true); l.Link.DropNextReply() }

func (l *carriedLink) Open(ctx context.Context) (backend.Session, error) {
	s, err := l.Link.Open(ctx)
	if err != nil {
		return nil, err
	}
	return carriedSession{s, l}, nil
}

type carriedSession struct {
	backend.Session
	l *carriedLink
}

func (s carriedSession) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	ephemeral := slices.ContainsFunc(ops, func(op backend.Op) bool { return op.Kind == backend.OpCreate && op.Mode.Ephemeral() })
	if ephemeral || len(ops) == 0 || s.l.loses.Swap(false) {
		return s.Session.Commit(ctx, ops...)
	}
	tx, err := s.l.s.conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if err := postgres.StageIn(ctx, tx, s.Session, ops...); err != nil {
		if bad := tx.Rollback(ctx); bad != nil {
			return nil, bad
		}
		var e *pgconn.PgError
		if errors.As(err, &e) {
			return nil, err
		}
		return s.Session.Commit(ctx, ops...) // which returns the same error, as one of a commit
	}
	err = postgres.Refusal(tx.Commit(ctx))
	var c *coord.ConflictError
	if errors.As(err, &c) {
		return nil, c.Err
	}
	if err != nil {
		return nil, err
	}
	s.l.s.commits.Add(1)
	r := s.l.s.conn.PgConn().ExecParams(ctx, fmt.Sprintf(`DELETE FROM %q.result RETURNING 'ok'::text, -1, z, names, siblings, stats`, s.l.s.opts.Schema), nil, nil, nil, []int16{1}).Read()
	if r.Err != nil || len(r.Rows) != 1 {
		return nil, fmt.Errorf("%d results: %w", len(r.Rows), r.Err)
	}
	return postgres.ResultsOf(ops, r.Rows[0])
}

// A commit that a transaction of a user carries does the same as one of a session.
func TestDiffer_Carried(t *testing.T) {
	t.Parallel()
	const timeout = 20 * time.Second
	server := shared.Get(t)
	arm := "arm/(may) checks all of its nodes at one moment"
	for seed := range uint64(coordtest.Count(2, 20)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			var commits atomic.Int64
			steps := coordtest.Count(250, 2000)
			backendtest.Differ(t,
				likePostgreSQL(timeout),
				backendtest.Harness{SessionTimeout: timeout, Unlike: []string{arm}, New: func(t *testing.T) backendtest.Service {
					return newCarried(t, server, timeout, &commits)
				}}, 1000+seed, steps)
			if n := commits.Load(); n < int64(steps/20) {
				t.Errorf("only %d commits were carried", n)
			}
			t.Logf("figure: %d commits carried", commits.Load())
		})
	}
}
