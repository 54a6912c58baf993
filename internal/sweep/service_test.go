package sweep

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zkproxy"
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
	if ensemble.Elsewhere != nil {
		return ensemble.Elsewhere.Backend([]string{addr}, timeout, 0, without)
	}
	return zookeeper.New([]string{addr}, &zookeeper.Options{SessionTimeout: timeout, Without: without})
}

func expire(ctx context.Context, addr string, session int64) error {
	if ensemble.Elsewhere != nil {
		return ensemble.Elsewhere.Expire(ctx, addr, session)
	}
	return zktest.ExpireSession(ctx, addr, session, nil)
}

func newLine(addr string) (ensemble.Line, error) {
	if ensemble.Elsewhere != nil {
		return ensemble.Elsewhere.Line(addr)
	}
	p, err := zkproxy.New(addr)
	return line{p}, err
}

type line struct{ *zkproxy.Proxy }

func (l line) Drop(match func(zkproxy.Frame) bool, what zkproxy.DropWhat) ensemble.Fault {
	return l.Proxy.Drop(match, what)
}
