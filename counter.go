package coord

import (
	"context"

	"github.com/go-coord/coord/internal/cell"
)

// A Counter is a number to which all clients of the same path add. Each addition is
// applied exactly once or not at all, even if its reply was lost. The error matches
// ErrUncertain only if ctx or the session ends before the outcome is known, or if
// an outsider has deleted the library's own node that records the outcome: then the
// addition may have been applied.
//
// The calls of one Counter wait for each other in the process, in order, so they do
// not conflict; use one Counter for all callers of a client. Calls of other clients
// can conflict: the later call reads again and retries after a short, growing
// pause. An addition without a conflict costs two requests. If many processes add
// to a counter all the time, use Reserve to take many numbers at once.
//
// A counter that has never been added to, or was deleted, is 0. Do not delete a
// counter that is in use: its numbers begin again. (An addition that runs at that
// moment can fail with ErrConflict although it was written; see Value.)
//
// The node at path holds the decimal digits of the number and nothing else, so other
// programs can read and set it. Spaces around the digits do not matter, and no digits
// mean 0. Recipes of every kind can be used below the path. layout.md describes the
// nodes.
//
// A Counter is safe for concurrent use. It holds no resources and needs no closing.
type Counter struct{ n *cell.Counter }

// NewCounter returns the counter at path. It does no I/O; a bad path is reported by
// the first call.
func NewCounter(c *Client, path string) *Counter {
	return &Counter{cell.NewCounter(c.core(), path)}
}

// Get reads the counter. The result can lag behind other clients. A missing counter
// is 0. If the data is not a number, the error matches ErrDecode.
func (n *Counter) Get(ctx context.Context) (int64, error) { return n.n.Get(ctx) }

// Add adds delta, which may be negative, and returns the new value.
//
// Errors: ErrLimit if the sum is not an int64, and nothing changes; ErrDecode if
// the data is not a number; ErrNoChildren below an ephemeral node; ErrUncertain.
func (n *Counter) Add(ctx context.Context, delta int64) (int64, error) { return n.n.Add(ctx, delta) }

// Reserve returns the first of count consecutive numbers, which are given to this
// call alone. It adds count to the counter: the counter's value is the last number
// given, so the very first number is 1, and Reserve of one is Add of one. The
// numbers of a caller that crashes, or that does not learn the outcome, are never
// given again. Numbers are unique as long as no client subtracts from the counter,
// and the node is not set or deleted by hand.
//
// Errors: ErrInvalid for a count below 1, and those of Add.
func (n *Counter) Reserve(ctx context.Context, count int64) (first int64, err error) {
	return n.n.Reserve(ctx, count)
}
