package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const riverDatabase = "river"

// riverQueue is the queue of river, in its own database of a PostgreSQL server.
type riverQueue struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx] // puts jobs
}

type riverArgs struct {
	Text string `json:"text"`
}

func (riverArgs) Kind() string { return "bench" }

// riverWorker does nothing. It tells when the first job arrives.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	first func()
}

func (w *riverWorker) Work(context.Context, *river.Job[riverArgs]) error {
	w.first()
	return nil
}

func openRiver(ctx context.Context, x *pgServer) (_ *riverQueue, err error) {
	// More connections than a test makes requests at a time.
	pool, err := pgxpool.New(ctx, x.URL(riverDatabase)+"&pool_max_conns=20")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			pool.Close()
		}
	}()
	driver := riverpgxv5.New(pool)
	m, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	if _, err := m.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, fmt.Errorf("migrate the tables of river: %w", err)
	}
	client, err := river.NewClient(driver, &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return &riverQueue{pool, client}, nil
}

func (x *riverQueue) close() { x.pool.Close() }

func (x *riverQueue) put(ctx context.Context) error {
	_, err := x.client.Insert(ctx, riverArgs{pgItem}, nil)
	return err
}

func manyRiver(n int) []river.InsertManyParams {
	return slices.Repeat([]river.InsertManyParams{{Args: riverArgs{pgItem}}}, n)
}

// clear removes all jobs.
func (x *riverQueue) clear(ctx context.Context) error {
	_, err := x.pool.Exec(ctx, "TRUNCATE river_job")
	return err
}

// work makes n workers process jobs until as many as were put are completed in the database, or the
// span is over. cooldown is the least time between two fetches of jobs, 0 for river's default.
func (x *riverQueue) work(ctx context.Context, n, jobs int, cooldown, span time.Duration) (_ sample, err error) {
	if _, err := x.client.InsertManyFast(ctx, manyRiver(jobs)); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.clear(context.WithoutCancel(ctx))) }()
	w := startWork(ctx)
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{first: sync.OnceFunc(w.first)})
	c, err := river.NewClient(riverpgxv5.New(x.pool), &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: n}},
		Workers: workers, FetchCooldown: cooldown, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	events, cancel := c.SubscribeConfig(&river.SubscribeConfig{ChanSize: jobs, Kinds: []river.EventKind{river.EventKindJobCompleted}})
	defer cancel()
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	completed := 0
	for w.running(completed, jobs, span) {
		select {
		case <-events:
			completed++
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), c.StopAndCancel(context.WithoutCancel(ctx)))
		}
	}
	s := w.sample(completed)
	return s, c.StopAndCancel(ctx)
}
