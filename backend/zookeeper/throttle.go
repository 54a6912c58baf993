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

// easeOff waits before a call's request that a server has throttled is sent again. times is
// how often that has happened. It returns early when the session ends, and with an error when
// ctx ends.
func (s *session) easeOff(ctx context.Context, times int) error {
	if err := sleep(ctx, s.done, growing(firstEase, mostEase, times)); err != nil {
		return fmt.Errorf("%w: the server throttles requests", err)
	}
	return nil
}

// growing returns the pause before the next attempt after so many have failed. It doubles
// each time up to most, with jitter.
func growing(first, most time.Duration, times int) time.Duration {
	d := most
	if times <= 8 {
		d = min(first<<(times-1), most)
	}
	return d/2 + rand.N(d/2)
}

// sleep waits for d, until over is closed or until ctx ends. The error is that of ctx.
func sleep(ctx context.Context, over <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-over:
	case <-ctx.Done():
	}
	return backend.ContextError(ctx)
}
