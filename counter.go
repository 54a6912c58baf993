package coord

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/go-coord/coord/backend"
)

// A Counter is a number that all clients of the same path add to. Each addition
// is applied exactly once or not at all, also when its reply was lost. Only when
// ctx or the session ends before the outcome is known, or somebody has deleted the
// library's own node that would tell, the error matches ErrUncertain: it may have
// been added then.
//
// The calls of one Counter wait for each other in the process, in order, so they
// do not get in each other's way; use one for all callers of a client. Those of
// others may, and whoever comes second reads and tries again after a short pause
// that grows. An addition that nobody gets in the way of costs two requests. A
// counter that many processes add to all the time is better served by Reserve of
// many numbers at once.
//
// A counter that was never added to, or was deleted, is 0. Do not delete one that
// is in use: its numbers begin anew. (An addition that just then is under way can
// fail with ErrConflict and have been written all the same; see Value.)
//
// Layout: the node at path, persistent, with the decimal digits of the number and
// nothing else, so that others can read it and set it by hand; spaces around it
// do not matter, and no digits are 0. What is missing above it is made as
// containers. Nothing is written to its parent or below it. As for a Value, other
// recipes must not stand under its path.
//
// A Counter is safe for concurrent use and holds no resources; there is nothing
// to close.
type Counter struct {
	cell
	turn chan struct{} // of capacity 1: full while a call is under way
}

// NewCounter returns the counter at path. It does no I/O; a bad path is reported
// by the first call.
func NewCounter(c *Client, path string) *Counter {
	return &Counter{cell: cell{c, c.recipePath(path), kindCounter}, turn: make(chan struct{}, 1)}
}

// Get reads the counter. It can be behind other clients. A missing one is 0; data
// that is no number is ErrDecode.
func (n *Counter) Get(ctx context.Context) (int64, error) {
	if err := n.path.check("get"); err != nil {
		return 0, err
	}
	st, err := onSession(ctx, n.c, func(s *session) (content, error) { return n.read(ctx, s) })
	if err != nil {
		return 0, opError("get", n.path.full, err)
	}
	v, err := parseCount(st.data)
	return v, opError("get", n.path.full, err)
}

// Add adds delta, which may be negative, and returns the value after it.
//
// Errors: ErrLimit if the sum is no int64, and nothing changes; ErrDecode if the
// data is no number; ErrNoChildren below an ephemeral node; ErrUncertain.
func (n *Counter) Add(ctx context.Context, delta int64) (int64, error) {
	return n.add(ctx, "add", delta)
}

// Reserve returns the first of count consecutive numbers, which this call alone
// is given. It adds count to the counter: its value is the number given last, so
// that the first number of all is 1, and Reserve of one is Add of one. Numbers of
// callers who crash or whose outcome is unknown are never given again. They are
// unique as long as nobody subtracts, or sets or deletes the node by hand.
//
// Errors: ErrInvalid for a count below 1, and those of Add.
func (n *Counter) Reserve(ctx context.Context, count int64) (first int64, err error) {
	if err := n.path.check("reserve"); err != nil {
		return 0, err
	}
	if count < 1 {
		return 0, opError("reserve", n.path.full, fmt.Errorf("%w: %d numbers", ErrInvalid, count))
	}
	last, err := n.add(ctx, "reserve", count)
	if err != nil {
		return 0, err
	}
	return last - count + 1, nil
}

func (n *Counter) add(ctx context.Context, op string, delta int64) (int64, error) {
	if err := n.path.check(op); err != nil {
		return 0, err
	}
	if err := n.takeTurn(ctx); err != nil {
		return 0, opError(op, n.path.full, err)
	}
	defer func() { <-n.turn }()
	var sum int64
	_, err := n.update(ctx, func(old content) ([]byte, error) {
		v, err := parseCount(old.data)
		if err != nil {
			return nil, err
		}
		if delta > 0 && v > math.MaxInt64-delta || delta < 0 && v < math.MinInt64-delta {
			return nil, fmt.Errorf("%w: %d and %d make no int64", ErrLimit, v, delta)
		}
		sum = v + delta
		return strconv.AppendInt(nil, sum, 10), nil
	})
	if err != nil {
		return 0, opError(op, n.path.full, err)
	}
	return sum, nil
}

// takeTurn waits until no other call of this Counter is under way. Close ends the
// calls one after the other.
func (n *Counter) takeTurn(ctx context.Context) error {
	select {
	case n.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return backend.ContextError(ctx)
	}
}
