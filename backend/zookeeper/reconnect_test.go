package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkproxy"
)

// The zk client sleeps for a second when it has tried all servers of its list, which with one
// server is each time.
func TestOneServerIsDialledAgainWithoutASleep(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c := s.open(s.link)
	s.quick(5, 700*time.Millisecond, func() time.Duration {
		_, change := c.Status()
		start := time.Now()
		s.link.Proxies[0].Cut()
		s.await(change, "the suspension")
		s.phase(c, backend.PhaseConnected)
		if err := c.Sync(s.ctx, "/"); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	})
}

// A request that makes servers drop the connection must not make the session reconnect in a
// tight loop.
func TestContactThatBreaksAfterItsFirstReplyIsNotRetriedInATightLoop(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{SessionTimeout: 10 * time.Second})
	c := s.open(s.link)
	id := c.ID()
	s.link.Proxies[0].ResetCounts()
	const span = time.Second
	start := time.Now()
	for n := 0; n < 4 || time.Since(start) < span; n++ { // at least four, however busy the machine is
		if err := c.Sync(s.ctx, "/"); err != nil {
			t.Fatal(err)
		}
		_, change := c.Status()
		s.link.Proxies[0].Cut()
		s.await(change, "the suspension")
	}
	// The first attempt has no pause. The pauses before the sixth sum to at least 0.8 s, and
	// the session waits for one more.
	if n := s.link.Proxies[0].Count().Connections; n < 3 || n > 7 {
		t.Errorf("%d connections in %v", n, time.Since(start))
	} else {
		t.Logf("%d connections in %v", n, time.Since(start))
	}
	if s.phase(c, backend.PhaseConnected); c.ID() != id {
		t.Error("the session is another one")
	}
}

func TestNamesAreResolvedForEachConnection(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	second := s.service.ZooKeeper("b").Proxies[0]
	var address atomic.Value
	address.Store(s.link.Proxies[0].Addr())
	var asked sync.Map
	b := zookeeper.New([]string{"zookeeper.test"}, &zookeeper.Options{
		Dial: func(ctx context.Context, network, name string) (net.Conn, error) {
			asked.Store(network+" "+name, true)
			return new(net.Dialer).DialContext(ctx, network, address.Load().(string))
		},
	})
	c := s.open(b)
	id := c.ID()
	_, change := c.Status()
	address.Store(second.Addr()) // the server moves
	s.link.Partition()
	s.await(change, "the suspension")
	s.phase(c, backend.PhaseConnected)
	if err := c.Sync(s.ctx, "/"); err != nil || c.ID() != id {
		t.Errorf("after the move: %v, session %#x of %#x", err, c.ID(), id)
	}
	asked.Range(func(k, _ any) bool {
		if k != "tcp zookeeper.test:2181" {
			t.Errorf("dialled %v", k)
		}
		return true
	})
	if second.Count().Connections == 0 {
		t.Error("the new address was not used")
	}
}

// The zk client deadlocks when a write fails while it sends its credentials again.
func TestAFailedWriteOfCredentialsIsSurvived(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	var fail atomic.Bool
	var failed atomic.Int32
	b := zookeeper.New(s.link.Addrs(), &zookeeper.Options{
		Digest: "user:secret",
		ACL:    []zookeeper.ACL{{Scheme: "world", ID: "anyone", Perms: zookeeper.PermAll}},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil && fail.CompareAndSwap(true, false) {
				conn = &failingConn{Conn: conn, failed: &failed}
			}
			return conn, err
		},
	})
	c := s.open(b)
	for range 3 {
		_, change := c.Status()
		fail.Store(true)
		s.link.Proxies[0].Cut()
		s.await(change, "the suspension")
		s.phase(c, backend.PhaseConnected)
		if err := c.Sync(s.ctx, "/"); err != nil {
			t.Fatal(err)
		}
	}
	if failed.Load() != 3 {
		t.Errorf("%d writes failed, want 3", failed.Load())
	}
}

// failingConn fails all writes after the connect request.
type failingConn struct {
	net.Conn
	writes int
	failed *atomic.Int32
}

func (c *failingConn) Write(p []byte) (int, error) {
	c.writes++
	if c.writes > 1 {
		c.failed.Add(1)
		return 0, errors.New("the write fails")
	}
	return c.Conn.Write(p)
}

// The zk client loses events when it registers its watches again.
func TestEveryWatchFiresAfterAReconnect(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c, o := s.open(s.link), s.other()
	const n = 3000
	watches := make([]*backend.Watch, n)
	var wg sync.WaitGroup
	gate := make(chan struct{}, 32)
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			path := s.path(fmt.Sprint("n", i))
			if i%3 != 0 {
				if _, err := o.Commit(s.ctx, backend.Create(path, nil, backend.Persistent)); err != nil {
					t.Error(err)
				}
				if err := c.Sync(s.ctx, path); err != nil {
					t.Error(err)
				}
			}
			watches[i] = backend.NewWatch()
			var err error
			switch i % 3 {
			case 0:
				if _, err = c.Exists(s.ctx, path, watches[i]); errors.Is(err, backend.ErrNotFound) {
					err = nil
				}
			case 1:
				_, _, err = c.Get(s.ctx, path, watches[i])
			case 2:
				_, _, err = c.Children(s.ctx, path, watches[i])
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	before := s.link.Proxies[0].Count()
	_, change := c.Status()
	s.link.Partition()
	s.await(change, "the suspension")
	// Changes of every kind, deletions included, while this session receives no events.
	for i := 0; i < n; i += 60 {
		s.commit(o, backend.Create(s.path(fmt.Sprint("n", i)), nil, backend.Persistent),
			backend.SetData(s.path(fmt.Sprint("n", i+1)), nil, backend.AnyVersion),
			backend.Delete(s.path(fmt.Sprint("n", i+2)), backend.AnyVersion))
	}
	for i, w := range watches {
		if w.Kind() != 0 {
			t.Fatalf("watch %d fired without contact: %v", i, w.Kind())
		}
	}
	s.link.Heal()
	s.phase(c, backend.PhaseConnected)
	for i, w := range watches {
		if w.Kind() != backend.LookAgain {
			t.Fatalf("watch %d after the reconnect: %v", i, w.Kind())
		}
	}
	after := s.link.Proxies[0].Count()
	if after.Ops[zkproxy.OpSetWatches] != 0 || after.Requests() != before.Requests() {
		t.Errorf("the reconnect sent requests: before %v, after %v", before, after)
	}
}

func TestDeletedIsReportedOnTheConnectionThatArmedOnly(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c, o := s.open(s.link), s.other()
	arm := func(path string) (*backend.Watch, *backend.Watch, *backend.Watch) {
		t.Helper()
		get, exists, children := backend.NewWatch(), backend.NewWatch(), backend.NewWatch()
		if _, _, err := c.Get(s.ctx, path, get); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Exists(s.ctx, path, exists); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Children(s.ctx, path, children); err != nil {
			t.Fatal(err)
		}
		return get, exists, children
	}
	path := s.path("n")
	for _, reconnect := range []bool{false, true, false} {
		s.commit(o, backend.Create(path, nil, backend.Persistent))
		if err := c.Sync(s.ctx, path); err != nil {
			t.Fatal(err)
		}
		get, exists, children := arm(path)
		want := backend.Deleted
		if reconnect {
			want = backend.LookAgain
			_, change := c.Status()
			s.link.Partition()
			s.await(change, "the suspension")
		}
		s.commit(o, backend.Delete(path, 0))
		s.link.Heal()
		for _, w := range []*backend.Watch{get, exists, children} {
			s.await(w.Fired(), "a watch")
			if w.Kind() != want {
				t.Errorf("reconnect %v: %v, want %v", reconnect, w.Kind(), want)
			}
		}
	}
}
