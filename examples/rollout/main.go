// Rollout restarts all servers of a cluster, two at a time: a semaphore limits how many are
// down.
//
//	go run ./examples/rollout
//	go run ./examples/rollout -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/rollout -backend etcd -servers host1:2379,host2:2379
package main

import (
	"context"
	"errors"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

func main() { service.Main("rollout", story) }

// limit is the number of servers that may be down at a time. The service stores it: a client
// that uses another limit is refused with ErrLimit, so two versions of this program cannot
// exceed it together.
const limit = 2

// upgrade restarts a server when it has a permit.
func upgrade(ctx context.Context, c *coord.Client, name string, restart func(context.Context) error) error {
	permits := coord.NewSemaphore(c, "/restarts", limit, &coord.SemaphoreOptions{Data: []byte(name)})
	permit, err := permits.Acquire(ctx, 1)
	if err != nil {
		return err
	}
	// If the permit is lost, another server may go down, so this upgrade must not begin a
	// further step. The context ends then.
	err = restart(permit.Context(ctx))
	return errors.Join(err, permit.Release())
}
