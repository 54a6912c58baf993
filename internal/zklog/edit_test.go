package zklog_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zklog"
	"github.com/go-coord/coord/internal/zktest"
)

// This is how ZooKeeper itself behaves at the end of its sequence numbers. The memory backend
// and the recipes' rule for the ceiling depend on it.
func TestAServerCountsOnFromTheNumberThatWasSet(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	e := zktest.Run(t, &zktest.Options{JavaArgs: []string{"-Dzookeeper.digest.enabled=false"}, MaxSessionTimeout: time.Minute})
	server := e.Servers()[0]
	open := func() backend.Session {
		t.Helper()
		s, err := zookeeper.New(e.Addrs(), &zookeeper.Options{SessionTimeout: time.Minute}).Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	for _, path := range []string{"/d", "/d/seed", "/other", "/other/seed"} {
		if _, err := s.Commit(ctx, backend.Create(path, nil, backend.Persistent)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if err := zklog.SetSequences(server.DataDir(), map[string]int32{"/d": math.MaxInt32 - 2}); err != nil {
		t.Fatal(err)
	}
	if err := zklog.SetSequences(server.DataDir(), map[string]int32{"/nowhere": 7}); err == nil {
		t.Error("no error for a directory without a creation")
	}
	if txns, err := zklog.Read(server.DataDir()); err != nil || len(txns) == 0 {
		t.Fatalf("the log after the change: %d transactions, %v", len(txns), err)
	}
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	s = open()
	defer s.Close()
	next := func(prefix, want string) {
		t.Helper()
		res, err := s.Commit(ctx, backend.Create(prefix, nil, backend.PersistentSequential))
		switch {
		case want == "" && !errors.Is(err, backend.ErrExists):
			t.Errorf("%v, %v, want ErrExists", res, err)
		case want != "" && (err != nil || res[0].Path != want):
			t.Errorf("%v, %v, want %s", res, err, want)
		}
	}
	next("/d/a-", "/d/a-2147483645")
	next("/d/a-", "/d/a-2147483646")
	next("/d/a-", "/d/a-2147483647")
	next("/d/a-", "") // the number stays, and that name exists
	next("/d/b-", "/d/b-2147483647")
	next("/d/c-", "/d/c-2147483647")
	// Two creations in one commit: the second number has wrapped.
	res, err := s.Commit(ctx, backend.Create("/d/m-", nil, backend.PersistentSequential), backend.Create("/d/m-", nil, backend.PersistentSequential))
	if err != nil || res[0].Path != "/d/m-2147483647" || res[1].Path != "/d/m--2147483648" {
		t.Errorf("two in one commit: %v, %v", res, err)
	}
	next("/other/a-", "/other/a-0000000001") // unchanged
}
