// Config is a configuration that running programs follow. A change reaches all of them at
// once. A bad configuration changes nothing. A program that missed a change gets the latest
// configuration when it has contact again.
//
//	go run ./examples/config
//	go run ./examples/config -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/config -backend etcd -servers host1:2379,host2:2379
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

func main() { service.Main("config", story) }

// Config is the content of the node, as JSON.
type Config struct {
	Level   string
	Workers int
}

// follow calls apply with the present configuration and then with every change, until ctx
// ends. An unusable configuration changes nothing, and is reported to refused.
func follow(ctx context.Context, v *coord.Value[Config], apply func(Config), refused func(error)) error {
	for e := range v.Watch(ctx) {
		switch {
		case e.Err == nil && e.Value.Workers < 1: // JSON cannot check this
			refused(fmt.Errorf("%d workers", e.Value.Workers))
		case e.Err == nil:
			apply(e.Value)
		case errors.Is(e.Err, coord.ErrNotFound), errors.Is(e.Err, coord.ErrDecode):
			refused(e.Err) // the node is missing or invalid; the watch goes on
		default:
			return e.Err // the last element: the watch has ended
		}
	}
	return ctx.Err()
}
