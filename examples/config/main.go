// Config is a configuration that running programs follow: a change reaches all of
// them at once, a bad one changes nothing, and one that was missed is made up for.
//
//	go run ./examples/config
//	go run ./examples/config -backend zookeeper -servers host1:2181,host2:2181
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

func main() { service.Main("config", story) }

// Config is what the node holds, as JSON.
type Config struct {
	Level   string
	Workers int
}

// follow calls apply with the present configuration and then with every change,
// until ctx ends. What cannot be used leaves the configuration as it was; refused is
// told of it.
func follow(ctx context.Context, v *coord.Value[Config], apply func(Config), refused func(error)) error {
	for e := range v.Watch(ctx) {
		switch {
		case e.Err == nil && e.Value.Workers < 1: // what JSON cannot check
			refused(fmt.Errorf("%d workers", e.Value.Workers))
		case e.Err == nil:
			apply(e.Value)
		case errors.Is(e.Err, coord.ErrNotFound), errors.Is(e.Err, coord.ErrDecode):
			refused(e.Err) // none there, or somebody wrote nonsense; the watch goes on
		default:
			return e.Err // the last element: the watch has ended
		}
	}
	return ctx.Err()
}
