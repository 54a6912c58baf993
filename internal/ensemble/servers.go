package ensemble

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

// Require skips a test if there are no servers on this machine.
func Require(t *testing.T) {
	t.Helper()
	if Elsewhere == nil {
		zktest.Require(t)
	}
}

// Backend returns a backend for servers, whose sessions lack some features. A margin of zero is the
// default.
func Backend(servers []string, timeout, margin time.Duration, without backend.Features) backend.Backend {
	if Elsewhere != nil {
		return Elsewhere.Backend(servers, timeout, margin, without)
	}
	return zookeeper.New(servers, &zookeeper.Options{SessionTimeout: timeout, LossMargin: margin, Without: without})
}

// NewLine returns a line to a server.
func NewLine(server string) (Line, error) {
	if Elsewhere != nil {
		return Elsewhere.Line(server)
	}
	p, err := zkproxy.New(server)
	return zkLine{p}, err
}

// zkLine is a proxy for ZooKeeper.
type zkLine struct{ *zkproxy.Proxy }

func (l zkLine) Drop(match func(zkproxy.Frame) bool, what zkproxy.DropWhat) Fault {
	return l.Proxy.Drop(match, what)
}

// Servers is three servers with one tree.
type Servers struct {
	ZooKeeper *zktest.Ensemble // nil elsewhere
	Other     Ensemble         // nil on ZooKeeper
}

// Addrs returns the addresses for clients.
func (e Servers) Addrs() []string {
	if e.Other != nil {
		return e.Other.Addrs()
	}
	return e.ZooKeeper.Addrs()
}

// All returns the servers in the order of Addrs.
func (e Servers) All() []Server {
	if e.Other != nil {
		return e.Other.Servers()
	}
	return as(e.ZooKeeper.Servers())
}

func as(servers []*zktest.Server) (all []Server) {
	for _, s := range servers {
		all = append(all, s)
	}
	return all
}

// Leader returns a server that leads and answers.
func (e Servers) Leader(ctx context.Context) (Server, error) {
	if e.Other != nil {
		return e.Other.Leader(ctx)
	}
	return e.ZooKeeper.Leader(ctx)
}

// Followers returns all servers but the leader once they follow it.
func (e Servers) Followers(ctx context.Context) ([]Server, error) {
	if e.Other != nil {
		leader, err := e.Other.Leader(ctx)
		return slices.DeleteFunc(slices.Clone(e.Other.Servers()), func(s Server) bool { return s == leader }), err
	}
	for ; ; time.Sleep(20 * time.Millisecond) { // between two looks at what nothing signals
		if followers := e.ZooKeeper.Followers(ctx); len(followers) == len(e.ZooKeeper.Servers())-1 {
			return as(followers), nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the servers do not follow one of them: %w", ctx.Err())
		}
	}
}

// Expire ends a session, as if it had timed out.
func (e Servers) Expire(ctx context.Context, session int64) error {
	if e.Other != nil {
		return e.Other.Expire(ctx, session)
	}
	leader, err := e.ZooKeeper.Leader(ctx) // any server that serves is suitable
	if err != nil {
		return err
	}
	return zktest.ExpireSession(ctx, leader.Addr(), session, nil)
}

// MarkEnd commits a transaction after all others, and returns its number.
func MarkEnd(ctx context.Context, b backend.Backend) (int64, error) {
	s, err := b.Open(ctx)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	res, err := s.Commit(ctx, backend.Create("/end-of-the-log", nil, backend.Ephemeral))
	if err != nil {
		return 0, err
	}
	return res[0].Stat.Czxid, nil
}
