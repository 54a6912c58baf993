//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/fence"
	"github.com/go-coord/coord/internal/zkservice"
	"github.com/go-coord/coord/internal/zktest"
)

// shardField are the shards of a test as resources that are fenced.
type shardField struct {
	t *testing.T
	n int

	registers []fence.Register

	mu     sync.Mutex
	owners []*coord.Shard
	who    []string
	writes int
	grants int
}

// work writes to the shard until it is to move.
func (f *shardField) work(name string) func(context.Context, *coord.Shard) error {
	return func(ctx context.Context, sh *coord.Shard) error {
		f.mu.Lock()
		f.grants++
		if other := f.owners[sh.Index]; other != nil && other.Err() == nil && sh.Err() == nil {
			f.t.Errorf("shard %d has two owners: %s and %s", sh.Index, f.who[sh.Index], name)
		}
		f.owners[sh.Index], f.who[sh.Index] = sh, name
		f.mu.Unlock()
		for ctx.Err() == nil {
			f.write(sh)
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		f.write(sh) // what it finishes
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.owners[sh.Index] == sh {
			f.owners[sh.Index] = nil
		}
		return nil
	}
}

func (f *shardField) write(sh *coord.Shard) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch w := f.registers[sh.Index].Write(sh.Token(), sh.Path()); {
	case w.Accepted:
		f.writes++
	case sh.Err() == nil:
		f.t.Errorf("shard %d: token %d of its owner is refused", sh.Index, sh.Token())
	}
}

// evenly waits until the members own all shards, in numbers that differ by at most one.
func (f *shardField) evenly(members ...string) time.Duration {
	f.t.Helper()
	began := time.Now()
	eventually(f.t, fmt.Sprint(members, " own all shards"), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		loads := make(map[string]int)
		for i, sh := range f.owners {
			if sh == nil || sh.Err() != nil {
				return false
			}
			loads[f.who[i]]++
		}
		for _, m := range members {
			if loads[m] < f.n/len(members) || loads[m] > (f.n+len(members)-1)/len(members) {
				return false
			}
		}
		return len(loads) == len(members)
	})
	return time.Since(began)
}

// Members of an ensemble of three servers come, leave and lose their sessions, and the leader of
// the servers dies: no shard has two owners, and the members that are there own all of them.
func TestShardsOnThreeServers(t *testing.T) {
	zktest.Require(t)
	e := zktest.Run(t, &zktest.Options{Servers: 3, TickTime: tick, SyncLimit: shortSync})
	service := zkservice.New(t, e, zookeeper.Options{SessionTimeout: killTimeout, LossMargin: shortMargin})
	f := &shardField{t: t, n: 64}
	f.registers, f.owners, f.who = make([]fence.Register, f.n), make([]*coord.Shard, f.n), make([]string, f.n)
	var all sync.WaitGroup
	t.Cleanup(all.Wait) // after the members are stopped
	type member struct {
		c    *coord.Client
		stop func()
	}
	start := func(name string) *member {
		c, err := coord.Open(t.Context(), service.ZooKeeper(name), nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		all.Go(func() {
			defer close(done)
			err := coord.NewShards(c, "/s", f.n, &coord.ShardsOptions{ID: name}).Run(ctx, f.work(name))
			if err != nil && !errors.Is(err, coord.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		})
		m := &member{c, func() {
			stop()
			<-done
			c.Close()
		}}
		t.Cleanup(m.stop)
		return m
	}
	moved := func(what string, change func(), members ...string) {
		t.Helper()
		f.mu.Lock()
		before := f.grants
		f.mu.Unlock()
		began := time.Now()
		change()
		f.evenly(members...)
		f.mu.Lock()
		defer f.mu.Unlock()
		t.Logf("figure: 64 shards on three servers: %s: %d grants, %d ms to full ownership", what, f.grants-before, time.Since(began).Milliseconds())
	}
	var a, c *member
	moved("a joins", func() { a = start("a") }, "a")
	moved("b joins", func() { start("b") }, "a", "b")
	moved("c joins", func() { c = start("c") }, "a", "b", "c")
	moved("b2 joins", func() { start("b2") }, "a", "b", "b2", "c")
	moved("c leaves", func() { c.stop() }, "a", "b", "b2")
	moved("the leader of the servers is killed", func() {
		leader := leaderOf(t, e)
		leader.Kill()
		restart(t, leader)
	}, "a", "b", "b2")
	moved("a loses its session", func() {
		session, err := a.c.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Its client knows of the loss before the servers: without that the next owner could come first.
		service.ZooKeeper("a").Partition()
		<-session.Done()
		service.ZooKeeper("a").Heal()
		eventually(t, "a has another session", func() bool {
			next, err := a.c.Session(t.Context())
			return err == nil && next.ID() != session.ID()
		})
	}, "a", "b", "b2")
	moved("a is closed", func() { a.c.Close() }, "b", "b2")
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writes < 1000 {
		t.Errorf("only %d fenced writes", f.writes)
	}
	t.Logf("figure: 64 shards on three servers: %d grants, %d fenced writes, none refused of an owner", f.grants, f.writes)
}
