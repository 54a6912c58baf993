// Package river runs the code of docs/moving.md for jobs in river.
package river

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// The declarations up to the test stand on the page as they are here, which internal/readme checks.

type mailArgs struct {
	To string `json:"to"`
}

func (mailArgs) Kind() string { return "mail" }

func placeBefore(ctx context.Context, pool *pgxpool.Pool, jobs *river.Client[pgx.Tx], order int, to string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", order); err != nil {
			return err
		}
		_, err := jobs.InsertTx(ctx, tx, mailArgs{to}, nil)
		return err
	})
}

type mailWorker struct {
	river.WorkerDefaults[mailArgs]
	pool *pgxpool.Pool
}

func (w *mailWorker) Work(ctx context.Context, job *river.Job[mailArgs]) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO sent VALUES ($1)", job.Args.To); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
}

func placeAfter(ctx context.Context, pool *pgxpool.Pool, c *coord.Client, jobs *coord.Queue[mailArgs], order int, to string) error {
	for {
		err := postgres.Refusal(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", order); err != nil {
				return err
			}
			return postgres.Commit(ctx, tx, coord.NewTxn(c).Add(jobs.PutOp(mailArgs{to})))
		}))
		if !errors.Is(err, coord.ErrConflict) || errors.Is(err, coord.ErrFenced) {
			return err
		}
		// The queue has changed since the plan of the put. Nothing is stored: again.
	}
}

func workAfter(ctx context.Context, pool *pgxpool.Pool, c *coord.Client, jobs *coord.Queue[mailArgs]) error {
	return jobs.Work(ctx, 8, func(ctx context.Context, job *coord.Item[mailArgs]) error {
		return postgres.Refusal(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO sent VALUES ($1)", job.Value.To); err != nil {
				return err
			}
			return postgres.Commit(ctx, tx, coord.NewTxn(c).Add(job.AckOp()))
		}))
	})
}

func TestMovingFromRiver(t *testing.T) {
	server := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"fsync": "off"}})
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "CREATE TABLE orders (number int PRIMARY KEY); CREATE TABLE sent (mail text)"); err != nil {
		t.Fatal(err)
	}
	driver, quiet := riverpgxv5.New(pool), slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &mailWorker{pool: pool})
	old, err := river.NewClient(driver, &river.Config{Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 8}}, Workers: workers, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	c, err := coord.Open(ctx, postgres.New(server.URL(""), &postgres.Options{SessionTimeout: time.Minute}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	jobs := coord.NewQueue[mailArgs](c, "/mails", nil)

	var twice *pgconn.PgError
	for name, place := range map[string]func(order int, to string) error{
		"before": func(order int, to string) error { return placeBefore(ctx, pool, old, order, to) },
		"after":  func(order int, to string) error { return placeAfter(ctx, pool, c, jobs, order, to) },
	} {
		if err := place(len(name), name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := place(len(name), name+" again"); !errors.As(err, &twice) || twice.Code != "23505" {
			t.Fatalf("%s: the second order of a number: %v", name, err)
		}
	}

	// Both work beside each other during the change.
	if err := old.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := old.Stop(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}()
	work, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- workAfter(work, pool, c, jobs) }()
	sent := ""
	for end := time.Now().Add(time.Minute); sent != "after before "; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("sent: %s", sent)
		}
		rows, err := pool.Query(ctx, "SELECT mail FROM sent ORDER BY mail")
		if err != nil {
			t.Fatal(err)
		}
		mails, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		sent = ""
		for _, m := range mails {
			sent += fmt.Sprint(m, " ")
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n, err := jobs.Len(ctx); err != nil || n != 0 {
		t.Errorf("the queue has %d jobs, %v", n, err)
	}
	// The query of the page, which says when no job is left.
	rows, err := pool.Query(ctx, "SELECT state, count(*) FROM river_job WHERE state NOT IN ('completed', 'cancelled', 'discarded') GROUP BY state")
	if err != nil {
		t.Fatal(err)
	}
	if rows.Next() || rows.Err() != nil {
		t.Errorf("river has jobs, %v", rows.Err())
	}
	rows.Close()
}
