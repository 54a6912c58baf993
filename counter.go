package coord

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/internal/layout"
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
type Counter struct {
	cell
	turn chan struct{} // of capacity 1: full while a call is under way
}

// NewCounter returns the counter at path. It does no I/O; a bad path is reported by
// the first call.
func NewCounter(c *Client, path string) *Counter {
	return &Counter{cell: cell{c.core(), c.core().Path(path), layout.KindCounter}, turn: make(chan struct{}, 1)}
}

// Get reads the counter. The result can lag behind other clients. A missing counter
// is 0. If the data is not a number, the error matches ErrDecode.
func (n *Counter) Get(ctx context.Context) (int64, error) {
	if err := n.path.Check("get"); err != nil {
		return 0, err
	}
	st, err := core.OnSession(ctx, n.c, func(s *core.Session) (content, error) { return n.read(ctx, s) })
	if err != nil {
		return 0, core.OpError("get", n.path.Full(), err)
	}
	v, err := countOf(st.data)
	return v, core.OpError("get", n.path.Full(), err)
}

// Add adds delta, which may be negative, and returns the new value.
//
// Errors: ErrLimit if the sum is not an int64, and nothing changes; ErrDecode if
// the data is not a number; ErrNoChildren below an ephemeral node; ErrUncertain.
func (n *Counter) Add(ctx context.Context, delta int64) (int64, error) {
	core.NeedContext(ctx)
	return n.add(ctx, "add", delta)
}

// Reserve returns the first of count consecutive numbers, which are given to this
// call alone. It adds count to the counter: the counter's value is the last number
// given, so the very first number is 1, and Reserve of one is Add of one. The
// numbers of a caller that crashes, or that does not learn the outcome, are never
// given again. Numbers are unique as long as no client subtracts from the counter,
// and the node is not set or deleted by hand.
//
// Errors: ErrInvalid for a count below 1, and those of Add.
func (n *Counter) Reserve(ctx context.Context, count int64) (first int64, err error) {
	core.NeedContext(ctx)
	if err := n.path.Check("reserve"); err != nil {
		return 0, err
	}
	if count < 1 {
		return 0, core.OpError("reserve", n.path.Full(), fmt.Errorf("%w: count %d is less than 1", ErrInvalid, count))
	}
	last, err := n.add(ctx, "reserve", count)
	if err != nil {
		return 0, err
	}
	return last - count + 1, nil
}

func (n *Counter) add(ctx context.Context, op string, delta int64) (int64, error) {
	if err := n.path.Check(op); err != nil {
		return 0, err
	}
	if err := n.takeTurn(ctx); err != nil {
		return 0, core.OpError(op, n.path.Full(), err)
	}
	defer func() { <-n.turn }()
	var sum int64
	_, err := n.update(ctx, func(old content) ([]byte, error) {
		v, err := countOf(old.data)
		if err != nil {
			return nil, err
		}
		if delta > 0 && v > math.MaxInt64-delta || delta < 0 && v < math.MinInt64-delta {
			return nil, fmt.Errorf("%w: %d + %d overflows int64", ErrLimit, v, delta)
		}
		sum = v + delta
		return strconv.AppendInt(nil, sum, 10), nil
	})
	if err != nil {
		return 0, core.OpError(op, n.path.Full(), err)
	}
	return sum, nil
}

// takeTurn waits until no other call of this Counter is under way. When the client
// closes, the calls end one after the other.
func (n *Counter) takeTurn(ctx context.Context) error {
	select {
	case n.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return n.c.ContextError(ctx)
	}
}

// countOf returns the number that the data of a counter's node means.
func countOf(data []byte) (int64, error) {
	v, ok := layout.ParseCount(data)
	if !ok {
		return 0, fmt.Errorf("%w: the data of the counter (%d bytes) is not a decimal int64", ErrDecode, len(data))
	}
	return v, nil
}
