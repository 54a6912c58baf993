// Rollout restarts all servers of a cluster, two at a time: a semaphore says whose
// turn it is.
//
//	go run ./examples/rollout
//	go run ./examples/rollout -backend zookeeper -servers host1:2181,host2:2181
package main

import (
	"context"
	"errors"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

func main() { service.Main("rollout", story) }

// limit is how many servers may be down at a time. It stands on the service: who
// comes with another one is refused with ErrLimit, so two versions of this program
// cannot exceed it together.
const limit = 2

// upgrade restarts a server when there is a permit for it.
func upgrade(ctx context.Context, c *coord.Client, name string, restart func(context.Context) error) error {
	permits := coord.NewSemaphore(c, "/restarts", limit, &coord.SemaphoreOptions{Data: []byte(name)})
	permit, err := permits.Acquire(ctx, 1)
	if err != nil {
		return err
	}
	// If the permit is lost, another server may go down, so do not begin a step
	// after that. It is the context that ends then.
	err = restart(permit.Context(ctx))
	return errors.Join(err, permit.Release())
}
