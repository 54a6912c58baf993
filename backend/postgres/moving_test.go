package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// docs/moving.md contains the functions before the test, which internal/readme checks.

func advisoryBefore(ctx context.Context, pool *pgxpool.Pool, build func(context.Context) string) error {
	conn, err := pool.Acquire(ctx) // the lock belongs to this connection
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended('report', 0))"); err != nil {
		return err
	}
	defer conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(hashtextextended('report', 0))")
	report := build(ctx) // it does not learn that the connection, and so the lock, is lost
	_, err = pool.Exec(ctx, "UPDATE report SET body = $1", report)
	return err
}

func advisoryAfter(ctx context.Context, pool *pgxpool.Pool, c *coord.Client, build func(context.Context) string) error {
	return coord.NewMutex(c, "/locks/report", nil).Do(ctx, func(ctx context.Context, h *coord.Hold) error {
		report := build(ctx) // ctx ends when the lock is lost
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "UPDATE report SET body = $1", report); err != nil {
				return err
			}
			return postgres.Check(ctx, tx, h.Guard(), nil) // the commit fails if the lock is lost
		})
	})
}

func advisoryBoth(ctx context.Context, pool *pgxpool.Pool, c *coord.Client, build func(context.Context) string) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended('report', 0))"); err != nil {
		return err
	}
	defer conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(hashtextextended('report', 0))")
	return coord.NewMutex(c, "/locks/report", nil).Do(ctx, func(ctx context.Context, h *coord.Hold) error {
		report := build(ctx)
		// On the connection of the old lock: a transaction that commits there has not lost it.
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "UPDATE report SET body = $1", report); err != nil {
				return err
			}
			return postgres.Check(ctx, tx, h.Guard(), nil)
		})
	})
}

func TestMovingFromAdvisoryLocks(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"fsync": "off"}})
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "CREATE TABLE report (body text); INSERT INTO report VALUES ('')"); err != nil {
		t.Fatal(err)
	}
	c, err := coord.Open(ctx, postgres.New(s.URL(""), &postgres.Options{SessionTimeout: time.Minute}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	// These report whether other clients can get the locks while a report is built.
	oldFree := func() (free bool) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended('report', 0))").Scan(&free); err != nil {
			t.Fatal(err)
		}
		if free {
			if _, err := conn.Exec(ctx, "SELECT pg_advisory_unlock(hashtextextended('report', 0))"); err != nil {
				t.Fatal(err)
			}
		}
		return free
	}
	newFree := func() bool {
		h, err := coord.NewMutex(c, "/locks/report", nil).TryLock(ctx)
		if err == nil {
			h.Release()
		} else if !errors.Is(err, coord.ErrLocked) {
			t.Fatal(err)
		}
		return err == nil
	}
	for _, way := range []struct {
		name     string
		do       func(build func(context.Context) string) error
		old, new bool
	}{
		{"before", func(b func(context.Context) string) error { return advisoryBefore(ctx, pool, b) }, true, false},
		{"both", func(b func(context.Context) string) error { return advisoryBoth(ctx, pool, c, b) }, true, true},
		{"after", func(b func(context.Context) string) error { return advisoryAfter(ctx, pool, c, b) }, false, true},
	} {
		err := way.do(func(context.Context) string {
			if oldFree() == way.old || newFree() == way.new {
				t.Errorf("%s: the wrong locks are held", way.name)
			}
			return way.name
		})
		var body string
		if err := errors.Join(err, pool.QueryRow(ctx, "SELECT body FROM report").Scan(&body)); err != nil || body != way.name {
			t.Errorf("%s: the report is %q, %v", way.name, body, err)
		}
		if !oldFree() || !newFree() {
			t.Errorf("%s: a lock is left", way.name)
		}
	}

	// The write fails if the lock is lost.
	err = advisoryAfter(ctx, pool, c, func(lost context.Context) string {
		if _, err := pool.Exec(ctx, "SELECT coord.finish(id) FROM coord.session"); err != nil {
			t.Error(err)
		}
		<-lost.Done()
		return "late"
	})
	if !errors.Is(err, coord.ErrLost) {
		t.Errorf("under a lost lock: %v", err)
	}
}
