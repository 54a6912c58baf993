// Workerpool is a pool of workers on a typed queue. One of them is killed in the middle of a
// job, and another one does the job.
//
//	go run ./examples/workerpool
//	go run ./examples/workerpool -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/workerpool -backend etcd -servers host1:2379,host2:2379
package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

func main() { service.Main("workerpool", story) }

// Job is the content of the queue, as JSON.
type Job struct{ Number int }

// work is a worker: it takes jobs and does them, until ctx ends. A job is delivered again if
// its worker died, so a job must be idempotent.
func work(ctx context.Context, q *coord.Queue[Job], do func(context.Context, *coord.Item[Job]) error) error {
	for item, err := range q.All(ctx) {
		if err != nil {
			return err // not temporary: the client is closed, or has no permission
		}
		// The context of the job ends when the claim is lost, because then another worker may
		// have the job.
		err := do(item.Context(ctx), item)
		switch {
		case err == nil:
			err = item.Ack() // the job is done and removed
		case ctx.Err() != nil:
			err = item.Release() // the worker stops: the job has not failed
		default:
			err = item.Nack(time.Second) // the job is retried later
		}
		if err != nil && !errors.Is(err, coord.ErrLost) { // lost: another worker does it
			return err
		}
	}
	return nil
}
