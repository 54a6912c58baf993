package coord

import (
	"context"
	"errors"
	"testing"
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
		tell(ctx, c, Requeued{Where: Where{Recipe: "mutex", Path: "/l"}, Err: err})
		tell(ctx, c, ProposalDecided{Where: Where{Recipe: "twophase", Path: "/tx"}, Proposal: "1"})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
