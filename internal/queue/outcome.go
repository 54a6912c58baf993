package queue

import (
	"errors"
	"time"

	"github.com/go-coord/coord/internal/usercode"
)

// The delays after which an item can be taken again whose handler has failed.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
)

// outcome is how Work ends the claim on the item of a handler that has returned. Its zero value stands for a
// handler that has failed and has not said what becomes of the item.
type outcome struct {
	verb  claimVerb
	delay time.Duration // of verbNack
}

// outcomeError is the error of a handler that says what becomes of the item.
type outcomeError struct {
	outcome
	cause error // may be nil
}

// Bury is Bury of package coord.
func Bury(err error) error { return &outcomeError{outcome{verb: verbBury}, err} }

// RetryAfter is RetryAfter of package coord.
func RetryAfter(d time.Duration, err error) error { return &outcomeError{outcome{verbNack, d}, err} }

func (e *outcomeError) Error() string {
	switch {
	case e.cause != nil:
		return e.cause.Error()
	case e.verb == verbBury:
		return "the handler buried the item"
	}
	return "the handler asked for another attempt"
}

func (e *outcomeError) Unwrap() error { return e.cause }

// outcomeOf returns the outcome of a handler that has returned err. It calls methods of the error, which can
// panic.
//
// The end of Work comes before Bury and RetryAfter: many handlers bury each error that they do not know, and
// must not bury the items that they have when their process ends.
func (x *crew) outcomeOf(err error) outcome {
	var said *outcomeError
	switch {
	case err == nil:
		return outcome{verb: verbAck}
	case x.endsWith(err):
		return outcome{verb: verbGiveBack}
	case errors.As(err, &said):
		return said.outcome
	}
	return outcome{}
}

// retryIn sets d to the delay after an attempt that has failed with err. RetryDelay can panic or end the
// goroutine: then d is the default.
func (cl *Claim) retryIn(d *time.Duration, err error) {
	*d = defaultRetry(cl.attempt)
	choose := cl.q.retryDelay
	if choose == nil || cl.failure() == verbBury || cl.hold.Err() != nil {
		return
	}
	var failed error
	defer func() {
		cl.q.c.LogFailure("RetryDelay", []any{"path", cl.e.Path(), "attempt", cl.attempt}, failed)
	}()
	usercode.Guard(&failed, func() error {
		*d = choose(cl.attempt, err)
		return nil
	})
}

// defaultRetry returns the delay after a failed attempt, counted from 1.
func defaultRetry(attempt int) time.Duration {
	return min(firstRetry<<min(attempt-1, 10), lastRetry)
}
