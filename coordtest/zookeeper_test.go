package coordtest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/coordtest"
)

func TestAnEnsembleLosesItsServers(t *testing.T) {
	t.Parallel()
	zk := coordtest.StartZooKeeper(t, &coordtest.ZooKeeperOptions{Servers: 3})
	s := zk.Service(t, &coordtest.Options{SessionTimeout: 30 * time.Second}) // which outlives any election
	c := s.Client("a", nil)
	h := must[*coord.Hold](t)(coord.NewMutex(c, "/lock", nil).Lock(t.Context()))
	n := coord.NewCounter(c, "/n")

	leader := zk.Leader()
	leader.Kill()
	want := must[int64](t)(n.Add(t.Context(), 1)) + 1
	if zk.Leader() == leader {
		t.Error("a dead server leads")
	}
	leader.Restart()
	if len(zk.Addrs()) != 3 || zk.Server(2).Addr() != zk.Addrs()[2] {
		t.Errorf("addresses %q", zk.Addrs())
	}

	// Two of three servers are no majority if one of them is paused.
	for i := range 3 {
		if zk.Server(i) != zk.Leader() {
			zk.Server(i).Pause()
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if n, err := n.Get(ctx); err == nil {
		if _, err := coord.NewCounter(c, "/other").Add(ctx, 1); err == nil {
			t.Errorf("a write without a majority; the counter is %d", n)
		}
	}
	for i := range 3 {
		zk.Server(i).Resume()
	}
	if got := must[int64](t)(n.Add(t.Context(), 1)); got != want {
		t.Errorf("the counter is %d, want %d", got, want)
	}
	if err := h.Err(); err != nil {
		t.Errorf("the hold ended with %v", err)
	}

	zk.Restart()
	if got := must[int64](t)(n.Get(t.Context())); got != want {
		t.Errorf("after a restart of all the counter is %d, want %d", got, want)
	}
}

func TestAServerThatEndsByItselfFailsTheTest(t *testing.T) {
	t.Parallel()
	r := watch(t, func(tb testing.TB) {
		zk := coordtest.StartZooKeeper(tb, nil)
		coordtest.KillByOthers(zk.Server(0))
	})
	if !strings.Contains(r.said(), "server 0 has ended by itself; the end of its log:\n") {
		t.Errorf("said %q", r.said())
	}
}

func TestWithoutZooKeeperATestIsSkippedOrFails(t *testing.T) {
	t.Setenv("JAVA_HOME", t.TempDir())
	for require, skipped := range map[string]bool{"": true, "1": false} {
		t.Setenv("COORD_REQUIRE_ZK", require)
		r := watch(t, func(tb testing.TB) { coordtest.StartZooKeeper(tb, nil) })
		if r.skipped != skipped || !strings.Contains(r.said(), "apt-get install zookeeper default-jre-headless") || !strings.Contains(r.said(), "ZOOKEEPER_HOME") {
			t.Errorf("COORD_REQUIRE_ZK=%q: skipped %v, said %q", require, r.skipped, r.said())
		}
	}
}
