package zookeeper

import (
	"context"
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

const (
	firstEase = 4 * time.Millisecond
	mostEase  = time.Second
)

// easeOff waits before a call's request that a server has throttled is sent again. times is
// how often that has happened. It returns early when the session ends, and with an error when
// ctx ends.
//
// The calls of a session take turns: one of them is sent again at a time, until it is answered. A
// server refuses a request that has waited for long, so many that come back together can make
// each other wait for so long that none is ever run. endTurn lets the next one continue.
func (s *session) easeOff(ctx context.Context, c *call, times int) error {
	if !c.turn {
		select {
		case s.turns <- struct{}{}:
			c.turn = true
		case <-s.done:
		case <-ctx.Done():
		}
	}
	contact.Sleep(ctx, s.done, contact.Growing(firstEase, mostEase, times))
	if err := backend.ContextError(ctx); err != nil {
		return fmt.Errorf("%w: the server throttles requests", err)
	}
	return nil
}

// endTurn ends the turn of a call, if it has one.
func (s *session) endTurn(c *call) {
	if c.turn {
		c.turn = false
		<-s.turns
	}
}
