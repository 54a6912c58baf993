package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
)

// ours is this library.
var ours = &contestant{who: byCoord, where: onZooKeeper, dial: dialCoord}

// goZK is go-zookeeper's own Lock. Its clients are also the raw clients.
var goZK = &contestant{who: byGoZK, where: onZooKeeper, dial: dialGoZK}

// leading is coord's election, used as a lock.
var leading = &contestant{who: byCoord + " election", where: onZooKeeper, dial: func(ctx context.Context, p *place, i int, timeout time.Duration) (connection, error) {
	c, err := dialCoord(ctx, p, i, timeout)
	if err != nil {
		return nil, err
	}
	return &electionConn{c.(*coordConn)}, nil
}}

// keeping is coord's lock, kept between holds.
var keeping = &contestant{who: byCoord + ", kept", where: onZooKeeper, dial: func(ctx context.Context, p *place, i int, timeout time.Duration) (connection, error) {
	c, err := dialCoord(ctx, p, i, timeout)
	if err != nil {
		return nil, err
	}
	c.(*coordConn).keep = time.Second
	return c, nil
}}

// coordConn is a client of coord.
type coordConn struct {
	c    *coord.Client
	root string
	keep time.Duration // of its locks
}

func dialCoord(ctx context.Context, p *place, i int, timeout time.Duration) (connection, error) {
	var b backend.Backend = p.store
	if p.store == nil {
		b = zookeeper.New(p.addrs[i%len(p.addrs):i%len(p.addrs)+1], &zookeeper.Options{SessionTimeout: timeout})
	}
	c, err := coord.Open(ctx, b, &coord.Options{Namespace: p.root})
	if err != nil {
		return nil, err
	}
	return &coordConn{c: c, root: p.root}, nil
}

func (x *coordConn) locker(_ context.Context, path string, _ int) (locker, error) {
	m := coord.NewMutex(x.c, path[len(x.root):], &coord.MutexOptions{Keep: x.keep})
	return func(ctx context.Context) (func() error, error) {
		h, err := m.Lock(ctx)
		if err != nil {
			return nil, err
		}
		return h.Release, nil
	}, nil
}

func (x *coordConn) Close() error { return x.c.Close() }

// electionConn is a client of coord that leads instead of locking.
type electionConn struct{ *coordConn }

func (x *electionConn) locker(_ context.Context, path string, _ int) (locker, error) {
	e := coord.NewElection(x.c, path[len(x.root):], nil)
	return func(ctx context.Context) (func() error, error) {
		t, err := e.Campaign(ctx)
		if err != nil {
			return nil, err
		}
		return t.Release, nil
	}, nil
}

// zkConn is a client of go-zookeeper.
type zkConn struct{ c *zk.Conn }

func dialGoZK(ctx context.Context, p *place, i int, timeout time.Duration) (connection, error) {
	if p.store != nil {
		return nil, fmt.Errorf("%s has no memory backend", byGoZK)
	}
	c, err := dialRaw(ctx, p.addrs[i%len(p.addrs):i%len(p.addrs)+1], timeout)
	if err != nil {
		return nil, err
	}
	return &zkConn{c}, nil
}

// dialRaw opens a client of go-zookeeper and waits for its session.
func dialRaw(ctx context.Context, addrs []string, timeout time.Duration) (*zk.Conn, error) {
	c, events, err := zk.Connect(addrs, timeout, zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return c, nil
			}
		case <-ctx.Done():
			c.Close()
			return nil, fmt.Errorf("connect to %v: %w", addrs, context.Cause(ctx))
		case <-time.After(30 * time.Second):
			c.Close()
			return nil, fmt.Errorf("connect to %v: no session after 30 s", addrs)
		}
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func (x *zkConn) locker(_ context.Context, path string, _ int) (locker, error) {
	l := zk.NewLock(x.c, path, zk.WorldACL(zk.PermAll))
	return func(ctx context.Context) (func() error, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := l.Lock(); err != nil {
			return nil, err
		}
		return l.Unlock, nil
	}, nil
}

func (x *zkConn) Close() error {
	x.c.Close()
	return nil
}
