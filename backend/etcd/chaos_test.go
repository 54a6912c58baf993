//go:build linux

package etcd_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/zklog"
)

// All recipes at once in several processes, on three members that are killed, paused, cut off from
// each other, compacted and without space, over networks that fail: the run of internal/chaos, with its length.
func TestEveryRecipeStandsAllFaultsOnEtcd(t *testing.T) {
	t.Parallel()
	etcdModule.Pass(t, "internal/chaos", nil, []string{"TestEveryRecipeStandsAllFaults", "TestTheCheckOfHoldsFindsTwoHolders", "TestALostAcknowledgedWriteIsDetected"},
		"-timeout", "2h", "-run", "^(TestEveryRecipeStandsAllFaults|TestTheCheck.*|TestSettling.*|TestALostAcknowledgedWriteIsDetected)$")
}

// A commit that writes a node more than once is one put of its key. The record has each write, as the
// logs of ZooKeeper have.
func TestTheRecordHasEachWriteOfACommit(t *testing.T) {
	t.Parallel()
	srv, err := start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.stop)
	c := &cluster{members: []*member{{addr: srv.addr}}}
	e := record(t, c)
	s := open(t, etcd.New([]string{srv.addr}, &etcd.Options{Prefix: recordedPrefix}))
	set := func(data string) backend.Op { return backend.SetData("/n", []byte(data), backend.AnyVersion) }
	commit(t, s, backend.Create("/n", nil, backend.Persistent), set("a"))
	commit(t, s, set("b"), set("c"), set("d"))
	commit(t, s, set("e"))
	commit(t, s, backend.Delete("/n", backend.AnyVersion), backend.Create("/n", nil, backend.Persistent), set("f"), set("g"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	txns, err := e.Log(ctx)
	if err == nil {
		_, err = zklog.Replay(txns)
	}
	if err != nil {
		t.Fatal(err)
	}
	var versions []int32
	for _, x := range txns {
		for _, op := range x.Ops {
			if op.Path == "/n" && op.Type == zklog.SetData {
				versions = append(versions, op.Version)
			}
		}
	}
	if want := []int32{1, 2, 3, 4, 5, 1, 2}; !slices.Equal(versions, want) {
		t.Errorf("the writes have the versions %v, want %v", versions, want)
	}
}
