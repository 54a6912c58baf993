package coordtest

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/zkservice"
)

// Ensured creates the persistent node at dir, and its parents, where they are missing.
func (w *World) Ensured(dir string) {
	w.T.Helper()
	s := w.Session("maker")
	for i := 1; i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		if _, err := s.Exists(context.Background(), w.Path(dir[:i]), nil); err == nil {
			continue
		}
		if _, err := s.Commit(context.Background(), backend.Create(w.Path(dir[:i]), nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
	}
}

// Used creates a directory that has had a child.
func (w *World) Used(dir string) {
	w.T.Helper()
	w.Ensured(dir + "/child")
	s := w.Session("maker")
	if _, err := s.Commit(context.Background(), backend.Delete(w.Path(dir+"/child"), backend.AnyVersion)); err != nil {
		w.T.Fatal(err)
	}
}

// Destroy deletes a node and the nodes below it, as far as no other client adds any.
func (w *World) Destroy(path string) {
	s, err := w.Link("vandal").Open(context.Background())
	if err != nil {
		w.T.Error(err)
		return
	}
	defer s.Close()
	paths := []string{path}
	for i := 0; i < len(paths); i++ {
		names, _, _ := s.Children(context.Background(), paths[i], nil)
		for _, name := range names {
			paths = append(paths, paths[i]+"/"+name)
		}
	}
	for _, p := range slices.Backward(paths) {
		_, _ = s.Commit(context.Background(), backend.Delete(p, backend.AnyVersion))
	}
}

// Counting opens a client that adds its calls to n.
func (w *World) Counting(name string, n *atomic.Int64) *coord.Client {
	w.T.Helper()
	return w.Open(name, &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
		n.Add(1)
		return nil
	}})
}

// Addrs returns the addresses to which clients of the link called name connect, on a
// real server.
func (w *World) Addrs(name string) []string { return w.Link(name).(*zkservice.Link).Addrs() }

// Raw opens a connection of another client library to the real server, which accepts
// names and ACLs that coord does not. The test closes it.
func (w *World) Raw() *zk.Conn {
	w.T.Helper()
	conn := dial(w.T, w.Addrs("raw"))
	w.T.Cleanup(conn.Close)
	return conn
}

// WithPermissions creates a node on the real server that grants every client perms only.
func WithPermissions(t *testing.T, path string, perms int32) {
	t.Helper()
	conn := dial(t, Server.Get(t).Addrs())
	defer conn.Close()
	if err := zkservice.Create(conn, path, zk.WorldACL(perms)); err != nil {
		t.Fatal(err)
	}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func dial(t *testing.T, addrs []string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect(addrs, 10*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
