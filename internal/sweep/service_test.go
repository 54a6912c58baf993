package sweep

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zktest"
)

// The tests run on ZooKeeper, or on ensemble.Elsewhere.

func oneServer(t *testing.T) string {
	t.Helper()
	if ensemble.Elsewhere != nil {
		return ensemble.Elsewhere.One(t)
	}
	return server.Get(t).Addrs()[0]
}

func backendAt(addr string, timeout time.Duration, without backend.Features) backend.Backend {
	return ensemble.Backend([]string{addr}, timeout, 0, without)
}

func expire(ctx context.Context, addr string, session int64) error {
	if ensemble.Elsewhere != nil {
		return ensemble.Elsewhere.Expire(ctx, addr, session)
	}
	return zktest.ExpireSession(ctx, addr, session, nil)
}
