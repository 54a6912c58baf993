package etcd_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// A server is stopped and started again; the session outlives it.
func TestARestartOfTheServer(t *testing.T) {
	t.Parallel()
	addrs, err := free(1)
	if err != nil {
		t.Fatal(err)
	}
	dir, addr := t.TempDir(), addrs[0]
	srv, err := startAt(dir, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { srv.stop() }()
	s := newService(t, addr, etcd.Options{SessionTimeout: 20 * time.Second})
	a := open(t, s.link("a"))
	commit(t, a, backend.Create("/n", []byte("v"), backend.Ephemeral))
	w := backend.NewWatch()
	if _, _, err := a.Get(t.Context(), "/n", w); err != nil {
		t.Fatal(err)
	}
	_, changed := a.Status()
	srv.stop()
	await(t, changed, "the break of contact")
	if phase, _ := a.Status(); phase != backend.PhaseSuspended {
		t.Fatalf("phase %v without a server", phase)
	}
	if srv, err = startAt(dir, addr); err != nil {
		t.Fatal(err)
	}
	if err := a.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	if w.Kind() != backend.LookAgain {
		t.Errorf("the watch has kind %q after the restart", w.Kind())
	}
	_, stat, err := a.Get(t.Context(), "/n", nil)
	if err != nil || stat.EphemeralOwner != a.ID() {
		t.Errorf("the node has %+v, %v", stat, err)
	}
	commit(t, a, backend.SetData("/n", []byte("w"), 0))
}

// The history of the servers is compacted all the time, up to the latest revision. Watches, trees
// and reads continue; an Arm from a revision that is gone tells its caller to look again.
func TestCompaction(t *testing.T) {
	t.Parallel()
	srv, err := start(t.TempDir()) // of its own, since the compaction is of all its keys
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.stop)
	s := newService(t, srv.addr, etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	made := commit(t, b, backend.Create("/n", nil, backend.Persistent))[0].Czxid
	tree := backend.NewTreeWatch(0)
	if err := a.WatchTree(t.Context(), "/n", tree); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		data, kids := backend.NewWatch(), backend.NewWatch()
		if _, _, err := a.Get(t.Context(), "/n", data); err != nil {
			t.Fatal(err)
		}
		if _, _, err := a.Children(t.Context(), "/n", kids); err != nil {
			t.Fatal(err)
		}
		rev := commit(t, b, backend.SetData("/n", fmt.Append(nil, i), backend.AnyVersion), backend.Create("/n/c-", nil, backend.PersistentSequential))[1].Czxid
		if _, err := pb.NewKVClient(s.admin).Compact(t.Context(), &pb.CompactionRequest{Revision: rev, Physical: true}); err != nil && !strings.Contains(err.Error(), "compacted") {
			t.Fatal(err)
		}
		await(t, data.Fired(), "the watch for the data")
		await(t, kids.Fired(), "the watch for the children")
		names, stat, err := a.Children(t.Context(), "/n", nil)
		if err != nil || len(names) != i+1 || stat.Version != int32(i+1) {
			t.Fatalf("round %d: children %v, %+v, %v", i, names, stat, err)
		}
		late := backend.Target{Path: "/n", Children: true, Watch: backend.NewWatch()}
		if err := a.Arm(t.Context(), made, late); err != nil || late.Watch.Kind() != backend.LookAgain {
			t.Fatalf("an Arm from a compacted revision: %v, kind %q", err, late.Watch.Kind())
		}
		changes, over := tree.Take()
		if over || len(changes) != 2 {
			t.Fatalf("round %d: the tree watch told %v, over %v", i, changes, over)
		}
	}
}

// A request of a session whose lease has ended is refused by the server, even if the client does
// not know of the end.
func TestTheServerRefusesACommitOfAnEndedSession(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	s.link("a").bytes.SetDelay(0, time.Second) // no event reaches the client
	s.link("b").Expire(a.ID())
	_, err := a.Commit(t.Context(), backend.Create("/late-", nil, backend.PersistentSequential))
	s.link("a").bytes.SetDelay(0, 0)
	if !errors.Is(err, backend.ErrSessionLost) {
		t.Fatalf("a commit of an ended session: %v", err)
	}
	if err := b.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	names, _, err := b.Children(t.Context(), "/", nil)
	if err != nil || len(names) != 0 {
		t.Fatalf("children %v, %v", names, err)
	}
}

func await(t *testing.T, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(time.Minute):
		t.Fatalf("waited in vain for %s", what)
	}
}
