//go:build linux

package faulttest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

// servers is three servers with one tree: of ZooKeeper, or of ensemble.Elsewhere.
type servers struct {
	*zktest.Ensemble                   // nil elsewhere
	other            ensemble.Ensemble // nil on ZooKeeper
}

// A server is one of them.
type member interface {
	Launch() error
	Kill()
	Pause() error
	Resume() error
}

func elsewhere() bool { return ensemble.Elsewhere != nil }

// require skips a test if there are no servers.
func require(t *testing.T) {
	t.Helper()
	if !elsewhere() {
		zktest.Require(t)
	}
}

// startServers starts three servers. The arguments are for ZooKeeper's.
func startServers(t *testing.T, syncLimit int, args ...string) servers {
	t.Helper()
	if elsewhere() {
		return servers{other: ensemble.Elsewhere.Start(t)}
	}
	return servers{Ensemble: zktest.Run(t, &zktest.Options{Servers: 3, TickTime: tick, SyncLimit: syncLimit, JavaArgs: args})}
}

func (e servers) Addrs() []string {
	if e.other != nil {
		return e.other.Addrs()
	}
	return e.Ensemble.Addrs()
}

// members returns the servers in the order of Addrs.
func (e servers) members() (all []member) {
	if e.other != nil {
		for _, s := range e.other.Servers() {
			all = append(all, s)
		}
		return all
	}
	for _, s := range e.Ensemble.Servers() {
		all = append(all, s)
	}
	return all
}

func (e servers) leader(t *testing.T) member {
	t.Helper()
	if e.other == nil {
		return leaderOf(t, e.Ensemble)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	leader, err := e.other.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return leader
}

// followers returns all servers but the leader once they follow it.
func (e servers) followers(t *testing.T) (all []member) {
	t.Helper()
	if e.other == nil {
		for _, s := range followersOf(t, e.Ensemble) {
			all = append(all, s)
		}
		return all
	}
	leader := e.leader(t)
	return slices.DeleteFunc(e.members(), func(s member) bool { return s == leader })
}

// restart starts a server that was killed, and waits until it serves.
func (e servers) restart(t *testing.T, s member) {
	t.Helper()
	if e.other == nil {
		restart(t, s.(*zktest.Server))
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	killed := s.(ensemble.Server)
	if err := killed.Launch(); err != nil {
		t.Fatal(err)
	}
	if err := killed.Await(ctx); err != nil {
		t.Fatal(err)
	}
}

// expire ends a session, as if it had timed out.
func (e servers) expire(t *testing.T, session int64) {
	t.Helper()
	var err error
	if e.other != nil {
		err = e.other.Expire(t.Context(), session)
	} else {
		err = zktest.ExpireSession(t.Context(), e.Addrs()[0], session, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func backendAt(addrs []string, timeout, margin time.Duration) backend.Backend {
	return backendWithout(addrs, timeout, margin, 0)
}

// backendWithout returns a backend whose sessions lack some features.
func backendWithout(addrs []string, timeout, margin time.Duration, without backend.Features) backend.Backend {
	if elsewhere() {
		return ensemble.Elsewhere.Backend(addrs, timeout, margin, without)
	}
	return zookeeper.New(addrs, &zookeeper.Options{SessionTimeout: timeout, LossMargin: margin, Without: without})
}

// newLine returns a line to a server, which ends with the test.
func newLine(t *testing.T, addr string) ensemble.Line {
	t.Helper()
	var l ensemble.Line
	var err error
	if elsewhere() {
		l, err = ensemble.Elsewhere.Line(addr)
	} else {
		var p *zkproxy.Proxy
		p, err = zkproxy.New(addr)
		l = zkLine{p}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// zkLine is a proxy for ZooKeeper.
type zkLine struct{ *zkproxy.Proxy }

func (l zkLine) Drop(match func(zkproxy.Frame) bool, what zkproxy.DropWhat) ensemble.Fault {
	return l.Proxy.Drop(match, what)
}
