package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// A deletion of a sequential node does not show its number, which is part of its path.
func TestATreeWatchTellsTheDeletionOfASequentialNode(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	for i := range 50 {
		n := commit(t, a, backend.Create("/d/n-", nil, backend.EphemeralSequential))[0].Path
		var trees []*backend.TreeWatch
		for _, top := range []string{n, "/d", "/"} {
			w := backend.NewTreeWatch(0)
			if err := b.WatchTree(t.Context(), top, w); err != nil {
				t.Fatal(err)
			}
			trees = append(trees, w)
		}
		commit(t, a, backend.Delete(n, 0))
		if err := b.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		for k, w := range trees {
			got, over := w.Take()
			if over || fmt.Sprint(got) != fmt.Sprint([]backend.TreeChange{{Path: n, Kind: backend.TreeDeleted, Zxid: got[0].Zxid}}) {
				t.Fatalf("round %d, tree %d: told %v, over %v", i, k, got, over)
			}
			w.Stop()
		}
	}
}

// One commit deletes a sequential node, and creates and writes another one of its path.
func TestATreeWatchTellsTheReplacementOfASequentialNode(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	for _, mode := range []backend.CreateMode{backend.PersistentSequential, backend.EphemeralSequential} {
		for range 20 { // the events of one commit come in any order
			n := commit(t, a, backend.Create("/d/n-", nil, mode))[0].Path
			tops := []string{"/d", "/", n}
			var trees []*backend.TreeWatch
			for _, top := range tops {
				w := backend.NewTreeWatch(0)
				if err := b.WatchTree(t.Context(), top, w); err != nil {
					t.Fatal(err)
				}
				trees = append(trees, w)
			}
			commit(t, a, backend.Delete(n, backend.AnyVersion), backend.Create(n, nil, backend.Persistent), backend.SetData(n, []byte("x"), 0), backend.Create(n+"/c", nil, backend.Persistent))
			if err := b.Sync(t.Context(), "/"); err != nil {
				t.Fatal(err)
			}
			want := []backend.TreeChange{{Path: n, Kind: backend.TreeDeleted}, {Path: n, Kind: backend.TreeCreated}, {Path: n + "/c", Kind: backend.TreeCreated}}
			for i, w := range trees {
				got, over := w.Take()
				for k := range got {
					got[k].Zxid = 0
				}
				if over || !slices.Equal(got, want) {
					t.Errorf("the tree watch of %s was told %v, over %v, want %v", tops[i], got, over, want)
				}
				w.Stop()
			}
		}
	}
}

// A commit that had to look first creates a node whose number is to come, and a sequential node gets it
// before.
func TestASequentialNodeWithTheNameOfANewOne(t *testing.T) {
	server, err := start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.stop)
	s := newService(t, server.addr, etcd.Options{})
	l := s.link("b")
	a, b := open(t, s.link("a")), open(t, l)
	next := commit(t, a, backend.Create("/d", nil, backend.Persistent))[0].Czxid + 1
	path := fmt.Sprintf("/d/n-%010d", next*128)
	l.before(puts, func() {
		if got := commit(t, a, backend.Create("/d/n-", nil, backend.EphemeralSequential))[0].Path; got != path {
			t.Errorf("the sequential node is %s, want %s", got, path)
		}
	})
	if _, err := b.Commit(t.Context(), backend.Create(path, nil, backend.Persistent), backend.SetData(path, nil, 0)); !errors.Is(err, backend.ErrExists) {
		t.Errorf("the creation of a node that exists: %v", err)
	}
}

// A node with the name of a sequential one, which was deleted, has another key than that one. A
// session that has seen the first node reads the second one, and its tree watch tells of it.
func TestANodeWithTheNameOfASequentialOne(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	n := commit(t, a, backend.Create("/n-", nil, backend.PersistentSequential))[0].Path
	if _, _, err := b.Get(t.Context(), n, nil); err != nil {
		t.Fatal(err)
	}
	tree := backend.NewTreeWatch(0)
	if err := b.WatchTree(t.Context(), n, tree); err != nil {
		t.Fatal(err)
	}
	commit(t, a, backend.Delete(n, 0))
	commit(t, a, backend.Create(n, []byte("second"), backend.Persistent), backend.Create(n+"/x", nil, backend.Persistent))
	if data, _, err := b.Get(t.Context(), n, backend.NewWatch()); err != nil || string(data) != "second" {
		t.Errorf("get with a watch: %q, %v", data, err)
	}
	if err := b.WatchTree(t.Context(), n, backend.NewTreeWatch(0)); err != nil {
		t.Error(err)
	}
	if err := b.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	var got []string
	changes, over := tree.Take()
	for _, c := range changes {
		got = append(got, fmt.Sprint(c.Kind, " ", c.Path))
	}
	if want := []string{"deleted " + n, "created " + n, "created " + n + "/x"}; over || !slices.Equal(got, want) {
		t.Errorf("told %q, over %v, want %q", got, over, want)
	}
}

// The server makes the watchers of a tree watch late, when the read beside them has been answered, and
// another node has the key of the tree's by then.
func TestATreeIsNotOlderThanItsWatchers(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("b")
	a, b := open(t, s.link("a")), open(t, l)
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	create := backend.Create("/d/n-", nil, backend.EphemeralSequential)
	first := commit(t, a, create)[0].Path
	if _, _, err := b.Children(t.Context(), "/d", nil); err != nil { // it learns the key
		t.Fatal(err)
	}
	h := l.holdNext(func(method string, body []byte) bool {
		var r pb.WatchRequest
		return method == "/etcdserverpb.Watch/Watch" && r.Unmarshal(body) == nil && r.GetCreateRequest() != nil
	})
	before := l.replied("/etcdserverpb.KV/Txn")
	tree := backend.NewTreeWatch(0)
	armed := make(chan error, 1)
	go func() { armed <- b.WatchTree(t.Context(), first, tree) }()
	await(t, h.hit, "the request of the watcher")
	for l.replied("/etcdserverpb.KV/Txn") == before {
		time.Sleep(5 * time.Millisecond)
	}
	commit(t, a, backend.Delete(first, backend.AnyVersion))
	next := commit(t, a, create)[0].Path
	close(h.release)
	if err := <-armed; err != nil {
		t.Fatal(err)
	}
	commit(t, a, backend.Delete(next, backend.AnyVersion))
	if err := b.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	if told, over := tree.Take(); len(told) > 0 || over {
		t.Errorf("the tree watch of %s was told %v of %s, over %v", first, told, next, over)
	}
}

// Two nodes can have one path: the name of the first looks as if it had the number of a later
// revision, in which an ephemeral sequential node is created. When the second one is deleted, a
// session that has seen it finds the first, which can have children.
func TestTheNodeThatAnEphemeralOneHasHidden(t *testing.T) {
	server, err := start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.stop)
	s := newService(t, server.addr, etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	later := commit(t, a, backend.Create("/d", nil, backend.Persistent))[0].Czxid + 2
	path := fmt.Sprintf("/d/n-%010d", later*128)
	commit(t, a, backend.Create(path, nil, backend.Persistent))
	if second := commit(t, a, backend.Create("/d/n-", nil, backend.EphemeralSequential))[0].Path; second != path {
		t.Fatalf("the second node is %s, want %s", second, path)
	}
	if _, _, err := b.Children(t.Context(), "/d", nil); err != nil {
		t.Fatal(err)
	}
	if stat, err := b.Exists(t.Context(), path, nil); err != nil || stat.EphemeralOwner != a.ID() {
		t.Fatalf("the owner %x, %v", stat.EphemeralOwner, err)
	}
	commit(t, a, backend.Delete(path, backend.AnyVersion))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := backend.NewWatch()
	if _, _, err := b.Children(ctx, path, w); err != nil {
		t.Fatal(err)
	}
	commit(t, a, backend.Create(path+"/child", nil, backend.Persistent))
	await(t, w.Fired(), "the creation of a child")
}

func open(t *testing.T, b backend.Backend) backend.Session {
	t.Helper()
	s, err := b.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func commit(t *testing.T, s backend.Session, ops ...backend.Op) []backend.Result {
	t.Helper()
	results, err := s.Commit(t.Context(), ops...)
	if err != nil {
		t.Fatal(err)
	}
	return results
}
