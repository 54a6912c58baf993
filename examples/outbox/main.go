// Outbox books orders in a PostgreSQL database, and charges each of them exactly once, although its processes
// are killed at any time. The queue between the two programs is in the same database, so there is no outbox table to
// poll, and no record of what was handled before:
//
//   - The booking and its job are one transaction: there is no booking without a job, and no job without a booking.
//   - The charge and the acknowledgement of the job are one transaction: a job that is delivered again has charged nothing.
//
// Run both, as often as you like:
//
//	go run ./examples/outbox -db postgres://localhost/shop -serve localhost:8080
//	go run ./examples/outbox -db postgres://localhost/shop -work
//	curl -X PUT localhost:8080/bookings/17 -d '{"Card": "c-1", "Cents": 500}'
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/postgres"
)

func main() {
	log.SetFlags(0)
	db := flag.String("db", "", "the connection `string` of the database")
	serve := flag.String("serve", "", "take bookings at this `address`")
	work := flag.Bool("work", false, "charge bookings")
	session := flag.Duration("session", 10*time.Second, "how long the jobs of a worker that died stay with it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *db, *serve, *work, *session); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// schema has the tables of the shop. Those of the queue are in the schema coord, which the library makes.
const schema = `
BEGIN;
SELECT pg_advisory_xact_lock(1); -- programs that start at once
CREATE TABLE IF NOT EXISTS booking (id text PRIMARY KEY, card text NOT NULL, cents int NOT NULL);
CREATE TABLE IF NOT EXISTS ledger (card text NOT NULL, booking text NOT NULL, cents int NOT NULL);
COMMIT`

// run is one program, until ctx ends.
func run(ctx context.Context, db, serve string, work bool, session time.Duration) error {
	pool, err := pgxpool.New(ctx, db)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	c, err := coord.Open(ctx, postgres.New(db, &postgres.Options{SessionTimeout: session}), &coord.Options{Namespace: "/shop"})
	if err != nil {
		return err
	}
	defer c.Close()
	s := &shop{pool, c, coord.NewQueue[Charge](c, "/charges", nil)}
	switch {
	case work:
		return s.charges.Work(ctx, 4, s.charge)
	case serve != "":
		return s.serve(ctx, serve)
	}
	return errors.New("want -serve or -work")
}

// serve takes bookings until ctx ends.
func (s *shop) serve(ctx context.Context, address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /bookings/{id}", s.book)
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		late, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = server.Shutdown(late) // waits for the bookings under way
	})
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return err
	}
	<-stopped
	return nil
}
