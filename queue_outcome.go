package coord

import (
	"time"

	"github.com/go-coord/coord/internal/queue"
)

// Bury returns the error with which a handler of Work says that its item can never succeed: Work moves the
// item to the dead letters at once, whatever MaxAttempts is. The dead letter has the reason "failed" and the
// text of the error that the handler has returned. [Consumer.Redrive] puts the item back.
//
// errors.Is and errors.As find err in the result. A handler may wrap the result with %w, or join it with other
// errors. If the error of a handler contains several results of Bury and RetryAfter, the one that errors.As
// finds first counts: the outermost, or the first of joined errors. Bury(nil) is an error too, without a cause.
//
// Only Work obeys the result. It has no effect if the handler has ended the claim itself, or if the claim was
// lost, and it is no failure if the handler gives up because Work ends: see [Consumer.Work]. If the service refuses the move, the
// item stays claimed, and the client retries in the background for as long as its session lives.
func Bury(err error) error { return queue.Bury(err) }

// RetryAfter returns the error with which a handler of Work says when its item is to be tried again: Work gives
// the item back as [Item.NackCause] does with the delay d. The attempt has failed, so an item that was taken as
// often as MaxAttempts allows is moved to the dead letters instead. If d is not positive, the item can be taken
// at once. RetryAfter comes before the RetryDelay of [QueueOptions], which is not called. RetryAfter(d, nil) is an error
// too. In all else it is as [Bury].
func RetryAfter(d time.Duration, err error) error { return queue.RetryAfter(d, err) }
