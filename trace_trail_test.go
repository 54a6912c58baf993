package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestWithoutTraceATrailCostsNothing(t *testing.T) {
	c, ctx, h, err := new(Client), context.Background(), new(Hold), errors.New("lost")
	if n := testing.AllocsPerRun(100, func() {
		x := c.trail("mutex", "/l", "lock")
		x.waiting(ctx, "/l/a", 1)
		x.requeued(ctx, err)
		x.over(ctx, err)
		x.grant(ctx, h, 1)
		x.next("leave").waiting(ctx, "/l/a", 1)
		x.released("/l/a", 1, x.held(), nil)
		x.lost("/l/a", 1, err)
		tell(ctx, c, WaiterRequeued{Subject: Subject{Recipe: "mutex", Path: "/l"}, Err: err})
		tell(ctx, c, ProposalDecided{Subject: Subject{Recipe: "twophase", Path: "/tx"}, Proposal: "1"})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A hold can be lost between its grant and the moment at which its caller tells of
// that.
func TestALossBeforeTheGrantWasToldIsToldAfterIt(t *testing.T) {
	var got []string
	var held time.Duration
	c := &Client{trace: newTrace(func(_ context.Context, e Event) {
		got = append(got, fmt.Sprintf("%T", e))
		if lost, ok := e.(HoldLost); ok {
			held = lost.Held
		}
	})}
	x := c.trail("mutex", "/l", "lock")
	x.lost("/l/a", 1, errors.New("lost"))
	x.grant(context.Background(), new(Hold), 1)
	if !c.trace.Drain(time.Minute) {
		t.Fatal("not told")
	}
	if want := []string{"coord.HoldGranted", "coord.HoldLost"}; !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	if held != 0 {
		t.Errorf("held for %v", held)
	}
}
