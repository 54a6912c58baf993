package backendtest_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zklog"
	"github.com/go-coord/coord/internal/zkservice"
	"github.com/go-coord/coord/internal/zktest"
)

// A machine with other work loses shorter sessions.
const differTimeout = 40 * time.Second

// scripts returns short, or long if COORD_LONG is set.
func scripts(short, long uint64) uint64 {
	if os.Getenv("COORD_LONG") != "" {
		return long
	}
	return short
}

// realServer starts a server that does not remove containers, and logs its version.
func realServer(t *testing.T) *zktest.Ensemble {
	t.Helper()
	return realServerWith(t, 24*time.Hour)
}

// realServerWith is realServer with a server that looks for empty containers at intervals.
func realServerWith(t *testing.T, interval time.Duration) *zktest.Ensemble {
	t.Helper()
	e := zktest.Run(t, &zktest.Options{MaxSessionTimeout: differTimeout, JavaArgs: []string{
		fmt.Sprint("-Dznode.container.checkIntervalMs=", interval.Milliseconds()),
		"-Dzookeeper.digest.enabled=false", // allows the test to change the transaction log
	}})
	answer, err := e.Servers()[0].FourLetter(t.Context(), "srvr")
	if err != nil {
		t.Fatal(err)
	}
	version, _, _ := strings.Cut(answer, "\n")
	t.Logf("figure: compared with %s", version)
	return e
}

func realHarness(e *zktest.Ensemble) backendtest.Harness {
	return backendtest.Harness{
		SessionTimeout: differTimeout,
		New: func(t *testing.T) backendtest.Service {
			return zkservice.New(t, e, zookeeper.Options{SessionTimeout: differTimeout})
		},
	}
}

// Memory is the reference for ZooKeeper's behaviour: the same scripts return the same
// results, errors, Stats and events on both.
func TestMemoryAndZooKeeperAgree(t *testing.T) {
	e := realServer(t)
	real, model := realHarness(e), memoryHarness(differTimeout)
	model.New = func(t *testing.T) backendtest.Service {
		return store{memory.New(&memory.Options{SessionTimeout: differTimeout, ContainerInterval: -1}), "/"}
	}
	for seed := range scripts(2, 20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			backendtest.Differ(t, model, real, seed, int(scripts(400, 2000)))
		})
	}
	t.Run("in many short scripts", func(t *testing.T) {
		all, n := make(map[string]int), scripts(30, 1500)
		for seed := range n {
			add(all, backendtest.DifferWide(t, model, real, 1000+seed, 25))
		}
		t.Logf("figure: %d scripts of 25 steps, no difference; %s", n, backendtest.Tally(all))
	})
	t.Run("with every refusal at every place of a commit", func(t *testing.T) {
		n, counts := backendtest.DifferEverywhere(t, model, real, int(scripts(2, 3)))
		t.Logf("figure: %d steps, no difference; %s", n, backendtest.Tally(counts))
	})
}

// Containers that go do so at other moments on each service. Each is made, used and removed within one
// step, while all sessions watch, so both services tell the same of it.
func TestMemoryAndZooKeeperAgreeWhenContainersGo(t *testing.T) {
	real, model := realHarness(realServerWith(t, 100*time.Millisecond)), memoryHarness(differTimeout)
	model.New = func(t *testing.T) backendtest.Service {
		return store{memory.New(&memory.Options{SessionTimeout: differTimeout, ContainerInterval: 10 * time.Millisecond}), "/"}
	}
	all, n := make(map[string]int), scripts(8, 300)
	for seed := range n {
		add(all, backendtest.DifferCollecting(t, model, real, seed, 40))
	}
	t.Logf("figure: %d scripts of 40 steps with containers that go, no difference; %s", n, backendtest.Tally(all))
	if all["container collected"] == 0 {
		t.Error("no container has gone")
	}
}

func add(all, more map[string]int) {
	for what, n := range more {
		all[what] += n
	}
}

// nearService is a service with its own root, which contains the directories of
// backendtest.NearNames.
type nearService struct {
	backendtest.Service
	root string
}

func (s nearService) Root() string { return s.root }

// nearNumbers are the next sequence numbers of the directories.
var nearNumbers = []int32{math.MaxInt32 - 4, math.MaxInt32 - 1, math.MaxInt32}

// ZooKeeper counts the children of a node up to 2^31-1. Its behaviour after that has to be
// measured, and memory must behave the same, since the recipes' rule for the ceiling is
// tested on memory. The server gets there by a change of its transaction log.
func TestMemoryAndZooKeeperAgreeAtTheEndOfTheNumbers(t *testing.T) {
	e := realServer(t)
	n := scripts(30, 500)
	const spare = 150 // for the shortened scripts
	roots := nearRoots(t, e, int(n)+spare)
	real := realHarness(e)
	fresh := real.New
	real.New = func(t *testing.T) backendtest.Service {
		if len(roots) == 0 {
			t.Fatal("no directory is left")
		}
		s := nearService{fresh(t), roots[0]}
		roots = roots[1:]
		return s
	}
	model := memoryHarness(differTimeout)
	model.New = func(t *testing.T) backendtest.Service {
		st := memory.New(&memory.Options{SessionTimeout: differTimeout, ContainerInterval: -1})
		s, err := st.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		plantNear(t, s, "")
		for i, name := range backendtest.NearNames {
			if err := st.SetSequence("/"+name, int64(nearNumbers[i])); err != nil {
				t.Fatal(err)
			}
		}
		return store{st, "/"}
	}
	all := make(map[string]int)
	for seed := range n {
		add(all, backendtest.DifferNear(t, model, real, seed, 40))
	}
	t.Logf("figure: %d scripts of 40 steps at the end of the numbers, no difference; %s", n, backendtest.Tally(all))
	if all["last number"] == 0 || all["number past the end"] == 0 {
		t.Error("no script came to the end of the numbers")
	}
}

// plantNear makes the directories below root, each with a child that is deleted again.
func plantNear(t *testing.T, s backend.Session, root string) {
	t.Helper()
	for _, name := range backendtest.NearNames {
		mustCreate(t, s, root+"/"+name)
		mustCreate(t, s, root+"/"+name+"/seed")
		if _, err := s.Commit(t.Context(), backend.Delete(root+"/"+name+"/seed", backend.AnyVersion)); err != nil {
			t.Fatal(err)
		}
	}
}

// nearRoots makes roots with the directories on a server, and sets their counters near the
// end.
func nearRoots(t *testing.T, e *zktest.Ensemble, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := zookeeper.New(e.Addrs(), nil).Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var roots []string
	next := make(map[string]int32)
	for i := range n {
		root := fmt.Sprint("/near-", i)
		mustCreate(t, s, root)
		plantNear(t, s, root)
		for i, name := range backendtest.NearNames {
			next[root+"/"+name] = nearNumbers[i]
		}
		roots = append(roots, root)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	server := e.Servers()[0]
	server.Kill()
	if err := zklog.SetSequences(server.DataDir(), next); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	return roots
}
