// Workerpool is a pool of workers on a typed queue. One of them is killed in the
// middle of a job, and another one does it.
//
//	go run ./examples/workerpool
//	go run ./examples/workerpool -backend zookeeper -servers host1:2181,host2:2181
package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

func main() { service.Main("workerpool", story) }

// Job is what the queue holds, as JSON.
type Job struct{ Number int }

// work is a worker: it takes jobs and does them, until ctx ends. A job comes again
// if the worker that had it died, so to do it twice must do no harm.
func work(ctx context.Context, q *coord.Queue[Job], do func(context.Context, *coord.Item[Job]) error) error {
	for item, err := range q.All(ctx) {
		if err != nil {
			return err // no passing trouble: the client is closed, or has no permission
		}
		// The context of the job ends when the claim on it is lost, for then
		// somebody else may have it.
		err := do(item.Context(ctx), item)
		switch {
		case err == nil:
			err = item.Ack() // the job is done, and gone for good
		case ctx.Err() != nil:
			err = item.Release() // we are told to stop: the job has not failed
		default:
			err = item.Nack(time.Second) // it is tried again, but not at once
		}
		if err != nil && !errors.Is(err, coord.ErrLost) { // lost: somebody else does it
			return err
		}
	}
	return nil
}
