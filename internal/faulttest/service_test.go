//go:build linux

package faulttest

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zktest"
)

// servers is three servers with one tree, of ZooKeeper or of ensemble.Elsewhere.
type servers struct{ ensemble.Servers }

func elsewhere() bool { return ensemble.Elsewhere != nil }

// startServers starts three servers. The arguments are for ZooKeeper's.
func startServers(t *testing.T, syncLimit int, args ...string) servers {
	t.Helper()
	if elsewhere() {
		return servers{ensemble.Servers{Other: ensemble.Elsewhere.Start(t)}}
	}
	return servers{ensemble.Servers{ZooKeeper: zktest.Run(t, &zktest.Options{Servers: 3, TickTime: tick, SyncLimit: syncLimit, JavaArgs: args})}}
}

func (e servers) leader(t *testing.T) ensemble.Server {
	t.Helper()
	return inTime(t, e.Leader)
}

// followers returns all servers but the leader once they follow it.
func (e servers) followers(t *testing.T) []ensemble.Server {
	t.Helper()
	return inTime(t, e.Followers)
}

// restart starts a server again, and waits until it serves.
func restart(t *testing.T, s ensemble.Server) {
	t.Helper()
	s.Kill()
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	inTime(t, func(ctx context.Context) (any, error) { return nil, s.Await(ctx) })
}

// expire ends a session, as if it had timed out.
func (e servers) expire(t *testing.T, session int64) {
	t.Helper()
	inTime(t, func(ctx context.Context) (any, error) { return nil, e.Expire(ctx, session) })
}

// inTime returns what the servers answer, which must not fail.
func inTime[T any](t *testing.T, ask func(ctx context.Context) (T, error)) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	v, err := ask(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func backendAt(addrs []string, timeout, margin time.Duration) backend.Backend {
	return ensemble.Backend(addrs, timeout, margin, 0)
}

// newLine returns a line to a server, which ends with the test.
func newLine(t *testing.T, addr string) ensemble.Line {
	t.Helper()
	l, err := ensemble.NewLine(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
