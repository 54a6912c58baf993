package cell

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// A Counter is a number in a node. Its calls wait for each other in the process, in order, so that they
// do not conflict.
type Counter struct {
	n    *Node
	turn chan struct{} // of capacity 1: full while a call is under way
}

// NewCounter returns the counter at path.
func NewCounter(c *core.Client, path string) *Counter {
	return &Counter{New(c, path, layout.KindCounter), make(chan struct{}, 1)}
}

// Get reads the counter. A missing node is 0.
func (k *Counter) Get(ctx context.Context) (int64, error) {
	if err := k.n.Check("get"); err != nil {
		return 0, err
	}
	x, err := core.OnSession(ctx, k.n.c, func(s *core.Session) (Content, error) { return k.n.read(ctx, s) })
	if err != nil {
		return 0, errs.Op("get", k.n.path.Full(), err)
	}
	v, err := countOf(x.Data)
	return v, errs.Op("get", k.n.path.Full(), err)
}

// Add adds delta, and returns the sum.
func (k *Counter) Add(ctx context.Context, delta int64) (int64, error) {
	core.NeedContext(ctx)
	return k.add(ctx, "add", delta)
}

// Reserve adds count, and returns the first of the count numbers that end with the sum.
func (k *Counter) Reserve(ctx context.Context, count int64) (first int64, err error) {
	core.NeedContext(ctx)
	if err := k.n.Check("reserve"); err != nil {
		return 0, err
	}
	if count < 1 {
		return 0, errs.Op("reserve", k.n.path.Full(), fmt.Errorf("%w: count %d is less than 1", backend.ErrInvalid, count))
	}
	last, err := k.add(ctx, "reserve", count)
	if err != nil {
		return 0, err
	}
	return last - count + 1, nil
}

func (k *Counter) add(ctx context.Context, op string, delta int64) (int64, error) {
	if err := k.n.Check(op); err != nil {
		return 0, err
	}
	if err := k.takeTurn(ctx); err != nil {
		return 0, errs.Op(op, k.n.path.Full(), err)
	}
	defer func() { <-k.turn }()
	var sum int64
	_, err := k.n.update(ctx, func(old Content) ([]byte, error) {
		v, err := countOf(old.Data)
		if err != nil {
			return nil, err
		}
		if delta > 0 && v > math.MaxInt64-delta || delta < 0 && v < math.MinInt64-delta {
			return nil, fmt.Errorf("%w: %d + %d overflows int64", errs.ErrLimit, v, delta)
		}
		sum = v + delta
		return strconv.AppendInt(nil, sum, 10), nil
	})
	if err != nil {
		return 0, errs.Op(op, k.n.path.Full(), err)
	}
	return sum, nil
}

// takeTurn waits until no other call of this Counter is under way. When the client
// closes, the calls end one after the other.
func (k *Counter) takeTurn(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return k.n.c.ContextError(ctx)
	}
}

// countOf returns the number that the data of a counter's node means.
func countOf(data []byte) (int64, error) {
	v, ok := layout.ParseCount(data)
	if !ok {
		return 0, fmt.Errorf("%w: the data of the counter (%d bytes) is not a decimal int64", errs.ErrDecode, len(data))
	}
	return v, nil
}
