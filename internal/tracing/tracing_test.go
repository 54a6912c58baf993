package tracing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/trace"
)

func TestSpan_WithoutTraceItCostsNothing(t *testing.T) {
	c, ctx, err := (*Tracer)(nil), context.Background(), errors.New("lost")
	if n := testing.AllocsPerRun(100, func() {
		x := c.Begin("mutex", "/l", "lock")
		x.Waiting(ctx, "/l/a", 1)
		x.Requeued(ctx, err)
		x.Over(ctx, err)
		x.Grant(ctx, "/l/a", 1, 1)
		x.Next("leave").Waiting(ctx, "/l/a", 1)
		x.Released("/l/a", 1, x.Held(), nil)
		x.Lost("/l/a", 1, err)
		Emit(ctx, c, trace.WaiterRequeued{Subject: trace.Subject{Recipe: "mutex", Path: "/l"}, Err: err})
		Emit(ctx, c, trace.ProposalDecided{Subject: trace.Subject{Recipe: "twophase", Path: "/tx"}, Proposal: "1"})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestReasonOf_EachLossHasItsReason(t *testing.T) {
	for err, want := range map[error]trace.Reason{
		&errs.Loss{Cause: backend.ErrSessionLost}: trace.ReasonSessionLost,
		&errs.Loss{Cause: errs.ErrDeleted}:        trace.ReasonDeleted,
		&errs.Loss{Cause: errs.ErrRevoked}:        trace.ReasonRevoked,
		&errs.Loss{Cause: errs.ErrSuspended}:      trace.ReasonSuspended,
		&errs.Loss{Cause: errs.ErrClaimTimeout}:   trace.ReasonTimeout,
		&errs.Loss{Cause: backend.ErrClosed}:      trace.ReasonClosed,
		&errs.Loss{Cause: errors.New("unknown")}:  trace.ReasonOther,
		errs.ErrGone:                              trace.ReasonDeleted,
		errs.ErrDrained:                           trace.ReasonOther,
	} {
		if got := ReasonOf(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

// A hold can be lost between its grant and the report of the grant.
func TestSpan_ALossBeforeTheReportOfTheGrantIsReportedAfterIt(t *testing.T) {
	var got []string
	var held time.Duration
	c := NewTracer(func(_ context.Context, e trace.Event) {
		got = append(got, fmt.Sprintf("%T", e))
		if lost, ok := e.(trace.HoldLost); ok {
			held = lost.Held
		}
	}, nil, 0)
	x := c.Begin("mutex", "/l", "lock")
	x.Lost("/l/a", 1, errors.New("lost"))
	x.Grant(context.Background(), "/l/a", 1, 1)
	if !c.Drain(time.Minute) {
		t.Fatal("no report")
	}
	if want := []string{"trace.HoldGranted", "trace.HoldLost"}; !slices.Equal(got, want) {
		t.Errorf("reported %v, want %v", got, want)
	}
	if held != 0 {
		t.Errorf("held for %v", held)
	}
}
