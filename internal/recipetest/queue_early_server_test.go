package recipetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/fakeclock"
	"github.com/go-coord/coord/internal/zktest"
)

// runOn starts servers with clocks that can be set.
func runOn(t *testing.T, clocks *fakeclock.Clocks, servers int) *zktest.Ensemble {
	t.Helper()
	for id := range servers {
		clocks.Set(t, id+1, 0)
	}
	return zktest.Run(t, &zktest.Options{Servers: servers, Env: clocks.Env})
}

// stampOf returns when an item was claimed, by the clock of the leader that made the commit.
func stampOf(t *testing.T, s backend.Session, it *coord.Item[int]) time.Time {
	t.Helper()
	stat, err := s.Exists(context.Background(), it.Path(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMilli(stat.Ctime)
}

// The clock of a ZooKeeper server is set back, and a leader is replaced by one with a slower clock.
func TestDelayQueue_NothingIsEarlyWhenAServersClockIsSetBack(t *testing.T) {
	t.Parallel()
	const back, delay = 6 * time.Second, 2 * time.Second
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprint(servers), func(t *testing.T) {
			t.Parallel()
			clocks := fakeclock.New(t)
			e := runOn(t, clocks, servers)
			ctx, cancel := context.WithTimeout(context.Background(), coordtest.Limit)
			defer cancel()
			b := zookeeper.New(e.Addrs(), nil)
			s, err := b.Open(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			q := coord.NewDelayQueue[int](coordtest.Open(t, b, nil), "/q", nil)
			due := time.Now().Add(delay)
			if _, err := q.Put(ctx, due, 1); err != nil { // the client learns the time
				t.Fatal(err)
			}
			set := func() {
				for id := range servers {
					clocks.Set(t, id+1, -back)
				}
			}
			if servers == 1 {
				set()
			} else {
				leader, err := e.Leader(ctx)
				if err != nil {
					t.Fatal(err)
				}
				set()
				leader.Kill()
			}
			time.Sleep(time.Until(due.Add(20 * time.Millisecond))) // the old clock shows that the item is due
			it, err := q.TryTake(ctx)
			if err != nil { // else the machine is slow: it was due by then, which is checked below
				coordtest.WantErr(t, err, coord.ErrEmpty)
				if it, err = q.Take(ctx); err != nil {
					t.Fatal(err)
				}
			}
			switch early := due.Sub(stampOf(t, s, it)); {
			case early > 0 || it.Attempt != 1:
				t.Errorf("taken %v before it was due, with attempt %d", early, it.Attempt)
			case time.Now().Before(due.Add(back)):
				t.Error("the clock of the server was not set back: the test shows nothing")
			}
			mustAck(t, it)
		})
	}
}
