package zklog_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zklog"
	"github.com/go-coord/coord/internal/zktest"
)

// The snapshots of a server have exactly the states that its transactions left.
func TestASnapshotHasTheStatesOfTheHistory(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	e := zktest.Run(t, &zktest.Options{Config: map[string]string{"snapCount": "20"}})
	s, err := zookeeper.New(e.Addrs(), &zookeeper.Options{SessionTimeout: time.Minute}).Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	commit := func(ops ...backend.Op) {
		t.Helper()
		if _, err := s.Commit(ctx, ops...); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(e.Servers()[0].DataDir(), "version-2")
	snapshots := func() []zklog.Snapshot {
		t.Helper()
		list, err := zklog.ReadSnapshots(filepath.Join(data, "snapshot.*"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	commit(backend.Create("/d", nil, backend.Persistent))
	commit(backend.Create("/d/set", []byte("x"), backend.Ephemeral), backend.Create("/d/gone", nil, backend.Persistent))
	commit(backend.Create("/d/stays", nil, backend.Container))
	commit(backend.Delete("/d/gone", backend.AnyVersion))
	commit(backend.Create("/d/gone", nil, backend.Persistent))
	commit(backend.Delete("/d/gone", backend.AnyVersion))
	begun := len(snapshots())
	for i := 0; len(snapshots()) < begun+3; i++ {
		commit(backend.SetData("/d/set", fmt.Append(nil, i), backend.AnyVersion))
	}
	log, err := zklog.Read(e.Servers()[0].DataDir())
	if err != nil {
		t.Fatal(err)
	}
	h, err := zklog.Replay(log)
	if err != nil {
		t.Fatal(err)
	}
	list := snapshots()
	for _, snapshot := range list {
		if wrong := h.Outdated(snapshot); wrong != "" {
			t.Error(wrong)
		}
		for path, is := range snapshot.Nodes {
			if strings.HasPrefix(path, "/d") && !h.Had(path, is) {
				t.Errorf("snapshot %#x: no transaction left %s as %+v", snapshot.Zxid, path, is)
			}
		}
	}
	last := slices.MaxFunc(list, func(a, b zklog.Snapshot) int { return cmp.Compare(a.Zxid, b.Zxid) })
	if len(last.Nodes) < 5 { // of these the root and two of the server
		t.Errorf("the last snapshot has the nodes %v", last.Nodes)
	}
	is := last.Nodes["/d/set"]
	if !h.Made("/d/set", is.Mzxid) || h.Made("/d/set", is.Mzxid+1<<32) || h.Made("/d", is.Mzxid) {
		t.Errorf("/d/set as of %#x was not made there, or elsewhere too", is.Mzxid)
	}

	// What a server that lost changes would have.
	first, gone := h["/d/set"][0].State, h["/d/gone"]
	for name, wrong := range map[string]struct {
		zxid int64
		path string
		is   zklog.State
	}{
		"old data":                        {h["/d/set"][0].Until, "/d/set", first},
		"a deleted node":                  {gone[1].Until, "/d/gone", gone[1].State},
		"the node that was deleted first": {last.Zxid, "/d/gone", gone[0].State},
		"a deleted node with later data":  {last.Zxid, "/d/gone", zklog.State{Czxid: gone[0].Czxid, Mzxid: gone[1].Mzxid}},
	} {
		if got := h.Outdated(zklog.Snapshot{Zxid: wrong.zxid, Nodes: map[string]zklog.State{wrong.path: wrong.is}}); !strings.Contains(got, wrong.path) {
			t.Errorf("%s: %q", name, got)
		}
	}
	// A snapshot from before the end of a state, and one that has transactions after its own.
	for name, right := range map[string]zklog.Snapshot{
		"before the deletion":   {Zxid: gone[0].Until - 1, Nodes: map[string]zklog.State{"/d/gone": gone[0].State}},
		"with later data":       {Zxid: first.Mzxid, Nodes: map[string]zklog.State{"/d/set": is}},
		"with a later creation": {Zxid: gone[0].Czxid, Nodes: map[string]zklog.State{"/d/gone": gone[1].State}},
		"what was given up":     {Zxid: last.Zxid, Nodes: map[string]zklog.State{"/d/none": {Czxid: 7, Mzxid: 7}}},
	} {
		if got := h.Outdated(right); got != "" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestASnapshotThatIsNotCompleteIsLeftOut(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const (
		header   = "ZKSN\x00\x00\x00\x02" + "database" + "\x00\x00\x00\x01" + "session!" + "time" + "\x00\x00\x00\x00"
		numbers  = "12345678" + "12345678" + "1234" + "1234" + "1234" + "12345678" + "12345678"
		root     = "\x00\x00\x00\x00" + "\xff\xff\xff\xff" + "12345678" + "\x00\x00\x00\x00\x00\x00\x00\x01" + "\x00\x00\x00\x00\x00\x00\x00\x02" + numbers
		complete = header + root + "\x00\x00\x00\x01/" + "checksum"
	)
	write("snapshot.ff", complete)
	for i := range len(complete) - len("checksum") {
		write(fmt.Sprintf("snapshot.%x", i), complete[:i])
	}
	write("snapshot.fe.tmp", complete[:len(header)])
	list, err := zklog.ReadSnapshots(filepath.Join(dir, "snapshot.*"))
	if err != nil || len(list) != 1 || list[0].Zxid != 0xff || len(list[0].Nodes) != 1 || list[0].Nodes[""] != (zklog.State{Czxid: 1, Mzxid: 2}) {
		t.Errorf("%+v, %v", list, err)
	}
	for name, text := range map[string]string{"snapshot.f0": strings.Repeat("another file", 9), "snapshot.x": complete} {
		write(name, text)
		if list, err := zklog.ReadSnapshots(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s: %+v", name, list)
		}
	}
}
