package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// queueOutcomeTests are tests of what the error of a handler of Work says about its item, on each service.
type queueOutcomeTests struct{ Services }

var errHandler = errors.New("failed")

// An item is buried at its first attempt, however the handler wraps the result of Bury.
func (on queueOutcomeTests) ABuriedItemIsADeadLetterAtOnce(t *testing.T) {
	on.each(t, func(w *world) {
		results := []struct {
			err  error
			text string
		}{
			{coord.Bury(errHandler), "failed"},
			{fmt.Errorf("order 1: %w", coord.Bury(errHandler)), "order 1: failed"},
			{errors.Join(errors.New("cannot close"), coord.Bury(errHandler)), "cannot close\nfailed"},
			{coord.Bury(nil), "the handler buried the item"},
			{coord.Bury(coord.RetryAfter(time.Hour, errHandler)), "failed"},
		}
		x, c := w.taped("a", nil)
		q := coord.NewQueue[int](c, "/q", nil) // no MaxAttempts
		mustPut(w.T, q, 1, len(results))
		wk := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error { return results[it.Value-1].err })
		w.Eventually("all are dead letters", func() bool { return len(letters(w.T, &q.Consumer)) == len(results) })
		wk.finish()
		var ids []string
		for i, d := range letters(w.T, &q.Consumer) {
			if d.Value != i+1 || d.Reason != trace.ReasonFailed || d.Error != results[i].text || d.Attempts != 1 || d.Session == 0 {
				w.T.Errorf("%+v, want the text %q", d, results[i].text)
			}
			ids = append(ids, d.ID)
		}
		settled := slices.DeleteFunc(eventsOf[trace.ItemSettled](x), func(e trace.ItemSettled) bool { return e.Outcome == trace.ItemReturned })
		if len(settled) != len(results) {
			w.T.Errorf("%d items are settled", len(settled))
		}
		for _, e := range settled {
			if e.Outcome != trace.ItemDead || e.Reason != trace.ReasonFailed || e.Delay != 0 || e.Err != nil || e.Attempt != 1 {
				w.T.Errorf("reported %+v", e)
			}
		}
		if n, err := q.Redrive(context.Background(), ids[0]); n != 1 || err != nil {
			w.T.Fatal(n, err)
		}
		if it := mustTake(w.T, q, 1); it.Attempt != 1 {
			w.T.Errorf("attempt %d", it.Attempt)
		} else {
			mustAck(w.T, it)
		}
		w.drained(&q.Consumer)
	})
}

// putOff returns the names of the nodes of the queue /q that put items off.
func (w *world) putOff() (names []string) {
	for _, b := range w.Children("/q/items") {
		for _, n := range w.Children("/q/items/" + b) {
			if strings.HasPrefix(n, "d-") {
				names = append(names, n)
			}
		}
	}
	return names
}

// An item comes back after the delay that the handler wants, as often as MaxAttempts allows.
func (on queueOutcomeTests) ARetryIsAnAttemptWithADelay(t *testing.T) {
	on.each(t, func(w *world) {
		x, c := w.taped("a", nil)
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxAttempts: 3, RetryDelay: func(int, error) time.Duration {
			w.T.Error("RetryDelay was asked")
			return time.Hour
		}})
		mustPut(w.T, q, 1, 1)
		results := []error{coord.RetryAfter(0, nil), fmt.Errorf("busy: %w", coord.RetryAfter(-time.Second, errHandler)), coord.RetryAfter(time.Hour, errHandler)}
		wk := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error { return results[it.Attempt-1] })
		w.Eventually("it is a dead letter", func() bool { return len(letters(w.T, &q.Consumer)) == 1 })
		if d := letters(w.T, &q.Consumer)[0]; d.Error != "failed" || d.Attempts != 3 {
			w.T.Errorf("%+v", d)
		}
		wk.finish()
		wk = w.work(q, 1, func(context.Context, *coord.Item[int]) error {
			return fmt.Errorf("busy: %w", coord.RetryAfter(time.Hour, coord.Bury(errHandler)))
		})
		mustPut(w.T, q, 2, 2)
		w.Eventually("it is put off", func() bool { return len(w.putOff()) == 1 })
		wk.finish()
		outcomes := []trace.ItemOutcome{trace.ItemNacked, trace.ItemNacked, trace.ItemDead, trace.ItemNacked}
		delays := []time.Duration{0, 0, 0, time.Hour}
		settled := slices.DeleteFunc(eventsOf[trace.ItemSettled](x), func(e trace.ItemSettled) bool { return e.Outcome == trace.ItemReturned })
		if len(settled) != len(outcomes) {
			w.T.Fatalf("reported %+v", settled)
		}
		for i, e := range settled {
			if e.Outcome != outcomes[i] || e.Delay != delays[i] {
				w.T.Errorf("reported %+v, want %s after %v", e, outcomes[i], delays[i])
			}
		}
		if st, err := q.Stats(context.Background()); st.Delayed != 1 || st.Dead != 1 || err != nil {
			w.T.Errorf("%+v, %v", st, err)
		}
		if n, err := q.Purge(context.Background()); n != 1 || err != nil {
			w.T.Error(n, err)
		}
		w.drained(&q.Consumer)
	})
}

// If the request or the reply of the move is lost, the item is a dead letter once. If the session is lost
// before, the item is delivered again.
func (on queueOutcomeTests) ABurialOfUnknownOutcomeIsResolved(t *testing.T) {
	on.each(t, func(w *world) {
		var x coordtest.Nth
		q := w.hookedQueue("a", &backendtest.Hooks{Before: x.Before, After: x.After}, nil)
		mustPut(w.T, q, 1, 3)
		wk := w.work(q, 1, func(ctx context.Context, it *coord.Item[int]) error {
			switch {
			case it.Value < 3:
				x.Arm(it.Value, func(c backendtest.Call) bool { // before the commit, and behind it
					return coordtest.Commits(c, backend.OpDelete) && strings.Contains(c.Ops[len(c.Ops)-1].Path+c.Ops[len(c.Ops)-2].Path, "/q/dead/")
				}, coordtest.Lose)
			case it.Attempt == 1:
				w.Link("a").Expire(it.Session())
				<-ctx.Done()
			}
			return coord.Bury(errHandler)
		})
		w.Eventually("all are dead letters", func() bool { return len(letters(w.T, &q.Consumer)) == 3 })
		wk.finish()
		for i, d := range letters(w.T, &q.Consumer) {
			if d.Value != i+1 || d.Attempts != 1+i/2 {
				w.T.Errorf("%+v", d)
			}
		}
		if !x.Idle() {
			w.T.Error("no request was lost")
		}
		w.drained(&q.Consumer)
	})
}
