package zookeeper

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-coord/coord/backend"
)

const (
	firstEase = 10 * time.Millisecond
	mostEase  = time.Second
)

// easeOff waits after a server has throttled a call's request, before it is sent
// again. times is how often that was so. It ends early with the session, and with
// ctx; the error is that of ctx.
func (s *session) easeOff(ctx context.Context, times int) error {
	d := mostEase
	if times <= 7 {
		d = min(firstEase<<(times-1), mostEase)
	}
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.done:
	case <-ctx.Done():
	}
	if err := backend.ContextError(ctx); err != nil {
		return fmt.Errorf("%w: the server throttles requests", err)
	}
	return nil
}
