package zookeeper

import (
	"context"
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

const (
	firstEase = 10 * time.Millisecond
	mostEase  = time.Second
)

// easeOff waits before a call's request that a server has throttled is sent again. times is
// how often that has happened. It returns early when the session ends, and with an error when
// ctx ends.
func (s *session) easeOff(ctx context.Context, times int) error {
	if err := sleep(ctx, s.done, contact.Growing(firstEase, mostEase, times)); err != nil {
		return fmt.Errorf("%w: the server throttles requests", err)
	}
	return nil
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
