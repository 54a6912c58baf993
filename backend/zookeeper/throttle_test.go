package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

// The server handles one request at a time. Requests that waited longer than a millisecond
// are answered without being run.
func TestThrottledRequestsAreSentAgain(t *testing.T) {
	t.Parallel()
	e := zktest.Run(t, &zktest.Options{JavaArgs: []string{
		"-Dzookeeper.request_throttle_max_requests=1",
		"-Dzookeeper.request_throttle_stall_time=5",
		"-Dzookeeper.throttled_op_wait_time=1",
	}})
	p, err := zkproxy.New(e.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const throttledOp = -127
	var throttled, commits atomic.Int32
	p.OnFrame(func(f zkproxy.Frame) {
		if f.Dir == zkproxy.Down && f.Xid >= 0 && f.Err == throttledOp {
			throttled.Add(1)
			if f.Opcode == zkproxy.OpCreate || f.Opcode == zkproxy.OpMulti {
				commits.Add(1)
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, err := zookeeper.New([]string{p.Addr()}, nil).Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Commit(ctx, backend.Create("/single", nil, backend.Persistent), backend.Create("/multi", nil, backend.Persistent)); err != nil {
		t.Fatal(err)
	}

	const each = 100
	var wg sync.WaitGroup
	for i := range each {
		wg.Go(func() {
			if _, err := c.Commit(ctx, backend.Create("/single/n-", nil, backend.PersistentSequential)); err != nil {
				t.Errorf("create %d: %v", i, err)
			}
		})
		wg.Go(func() {
			if _, err := c.Commit(ctx, backend.Check("/multi", 0), backend.Create("/multi/n-", nil, backend.EphemeralSequential)); err != nil {
				t.Errorf("multi %d: %v", i, err)
			}
		})
		wg.Go(func() {
			w := backend.NewWatch()
			defer w.Stop()
			if _, _, err := c.Children(ctx, "/single", w); err != nil {
				t.Errorf("children %d: %v", i, err)
			}
		})
		wg.Go(func() {
			if _, _, err := c.Get(ctx, fmt.Sprint("/missing", i), nil); !errors.Is(err, backend.ErrNotFound) {
				t.Errorf("get %d: %v", i, err)
			}
		})
		wg.Go(func() {
			w, missing := backend.NewWatch(), backend.NewWatch()
			defer w.Stop()
			err := c.Arm(ctx, math.MaxInt64, backend.Target{Path: "/multi", Watch: w}, backend.Target{Path: fmt.Sprint("/missing", i), Watch: missing})
			if err != nil || w.Kind() != 0 || missing.Kind() != backend.LookAgain {
				t.Errorf("arm %d: %v, %v, %v", i, err, w.Kind(), missing.Kind())
			}
		})
		wg.Go(func() {
			if err := c.Sync(ctx, "/"); err != nil {
				t.Errorf("sync %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for _, parent := range []string{"/single", "/multi"} {
		_, stat, err := c.Children(ctx, parent, nil)
		if err != nil || stat.NumChildren != each || stat.Cversion != each {
			t.Errorf("%s: %d children after %d changes, %v; want %d", parent, stat.NumChildren, stat.Cversion, err, each)
		}
	}
	if throttled.Load() == 0 || commits.Load() == 0 {
		t.Error("nothing was throttled")
	}
	t.Logf("%d calls: %d requests, %d throttled, %d of them commits", 6*each, p.Count().Requests(), throttled.Load(), commits.Load())
}
