package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/postgres"
)

type shop struct {
	pool    *pgxpool.Pool
	c       *coord.Client
	charges *coord.Queue[Charge]
}

// Charge is the content of the queue, as JSON.
type Charge struct {
	Booking string
	Card    string
	Cents   int
}

// book books an order, once for each id: a caller that got no answer asks again, with the same id.
func (s *shop) book(w http.ResponseWriter, r *http.Request) {
	charge := Charge{}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 10_000)).Decode(&charge); err != nil || charge.Card == "" || charge.Cents <= 0 {
		http.Error(w, "want a card and cents", http.StatusBadRequest)
		return
	}
	charge.Booking = r.PathValue("id")
	for {
		err := pgx.BeginFunc(r.Context(), s.pool, func(tx pgx.Tx) error { return s.insert(r.Context(), tx, charge) })
		err = postgres.Refusal(err)
		switch {
		case err == nil:
			w.WriteHeader(http.StatusNoContent)
		case again(err) && r.Context().Err() == nil:
			continue // the queue has changed since the plan of the put, and nothing is booked
		default: // perhaps it is booked: the answer to the COMMIT can be lost
			log.Printf("booking %s: %v", charge.Booking, err)
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
		return
	}
}

// again reports whether a transaction that was refused can succeed with a new plan. It cannot if the hold of its guard has ended, or the
// claim of its job is lost.
func again(err error) bool {
	return errors.Is(err, coord.ErrConflict) && !errors.Is(err, coord.ErrFenced) && !errors.Is(err, coord.ErrLost)
}

// insert books the order and puts its charge into the queue, both or neither.
func (s *shop) insert(ctx context.Context, tx pgx.Tx, charge Charge) error {
	done, err := tx.Exec(ctx, "INSERT INTO booking VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", charge.Booking, charge.Card, charge.Cents)
	if err != nil || done.RowsAffected() == 0 { // it is booked already, and so it has its charge
		return err
	}
	return postgres.Commit(ctx, tx, coord.NewTxn(s.c).Add(s.charges.PutOp(charge)))
}

// charge is the handler of a job: it charges the card and acknowledges the job, both or neither. If it fails, the job is
// delivered again.
//
// That holds for what is in the database. A card that another company charges gets the id of the booking with
// the request, so that it refuses the second one.
func (s *shop) charge(ctx context.Context, job *coord.Item[Charge]) error {
	err := postgres.Refusal(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		charge := job.Value
		if _, err := tx.Exec(ctx, "INSERT INTO ledger VALUES ($1, $2, $3)", charge.Card, charge.Booking, charge.Cents); err != nil {
			return err
		}
		return postgres.Commit(ctx, tx, coord.NewTxn(s.c).Add(job.AckOp()))
	}))
	if err != nil {
		log.Printf("charge of booking %s, attempt %d: %v", job.Value.Booking, job.Attempt, err)
	}
	return err
}
