package coord

import (
	"context"

	"github.com/go-coord/coord/backend"
)

// OpenDrawing opens a client that takes its random numbers from draw. What they
// are for is told, so that goroutines that draw at the same moment do not shift
// each other's.
func OpenDrawing(ctx context.Context, b backend.Backend, o *Options, draw func(what string) uint64) (*Client, error) {
	return open(ctx, b, o, draw)
}
