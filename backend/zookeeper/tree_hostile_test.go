package zookeeper

import (
	"context"
	"errors"
	"math"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord/backend"
)

// inTrees is inBubble with a server that has trees.
func inTrees(t *testing.T, serve func(conn net.Conn, n int), test func(t *testing.T, s backend.Session)) {
	t.Helper()
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		b.(*service).cfg.abilities.has = backend.Trees
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		test(t, s)
	})
}

// found answers a request for a node, with success and a Stat.
func found(r []byte) []byte {
	return framed(reply(int32At(r, 0), 0, make([]byte, 4+statSize)...))
}

// watching returns all ways to arm a watch of a read.
func watching() map[string]func(ctx context.Context, s backend.Session, w *backend.Watch) error {
	return map[string]func(ctx context.Context, s backend.Session, w *backend.Watch) error{
		"get": func(ctx context.Context, s backend.Session, w *backend.Watch) error {
			_, _, err := s.Get(ctx, "/a", w)
			return err
		},
		"exists": func(ctx context.Context, s backend.Session, w *backend.Watch) error {
			_, err := s.Exists(ctx, "/a", w)
			return err
		},
		"children": func(ctx context.Context, s backend.Session, w *backend.Watch) error {
			_, _, err := s.Children(ctx, "/a", w)
			return err
		},
		"arm for data": func(ctx context.Context, s backend.Session, w *backend.Watch) error {
			return s.Arm(ctx, math.MaxInt64, backend.Target{Path: "/a", Watch: w})
		},
		"arm for children": func(ctx context.Context, s backend.Session, w *backend.Watch) error {
			return s.Arm(ctx, math.MaxInt64, backend.Target{Path: "/a", Children: true, Watch: w})
		},
	}
}

// The server arms the watch of a read and then removes it with the tree, before its answer to
// the read has arrived.
func TestAReadThatIsOvertakenByTheRemovalOfATree(t *testing.T) {
	t.Parallel()
	for name, read := range watching() {
		serve := func(conn net.Conn, _ int) {
			welcome(conn, 10_000)
			var held []byte
			for r := range requests(conn) {
				switch int32At(r, 4) {
				case opExists, opGetData, opChildren, opWatches:
					held = append(held, found(r)...)
					continue
				case opRemoveWatches:
					conn.Write(held)
				}
				conn.Write(found(r))
			}
		}
		inTrees(t, serve, func(t *testing.T, s backend.Session) {
			tree, w := backend.NewTreeWatch(0), backend.NewWatch()
			if err := s.WatchTree(t.Context(), "/a", tree); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- read(t.Context(), s, w) }()
			synctest.Wait()
			tree.Stop()
			if err := <-done; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if w.Kind() != backend.LookAgain || Interests(s) != 0 {
				t.Errorf("%s: no event can fire the watch any more, and it is %v; %d left", name, w.Kind(), Interests(s))
			}
		})
	}
}

// A read between two requests for a tree does not arm the server's watch. Then neither
// request is granted.
func TestAReadThatReliesOnATreeThatIsRefused(t *testing.T) {
	t.Parallel()
	serve := func(conn net.Conn, _ int) {
		welcome(conn, 10_000)
		var held [][]byte
		for r := range requests(conn) {
			switch int32At(r, 4) {
			case opAddWatch, opGetData:
				if held = append(held, r); len(held) < 3 {
					continue
				}
				for _, r := range held {
					if int32At(r, 4) == opAddWatch {
						conn.Write(framed(reply(int32At(r, 0), codeThrottled)))
					} else {
						conn.Write(found(r))
					}
				}
			default:
				conn.Write(found(r))
			}
		}
	}
	inTrees(t, serve, func(t *testing.T, s backend.Session) {
		ctx, cancel := context.WithCancel(t.Context())
		w := backend.NewWatch()
		done := make(chan error, 3)
		add := func() { done <- s.WatchTree(ctx, "/a", backend.NewTreeWatch(0)) }
		for _, call := range []func(){add, func() {
			_, _, err := s.Get(ctx, "/a", w)
			done <- err
		}, add} {
			go call()
			synctest.Wait()
		}
		// Both requests for the tree wait to be sent again.
		if w.Kind() != backend.LookAgain {
			t.Errorf("the server has no watch, and that of the read is %v", w.Kind())
		}
		cancel()
		for range 3 {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if n := Interests(s); n != 0 {
			t.Errorf("%d watches are left", n)
		}
	})
}

// The server keeps a tree when another request for it is refused, so it has to be removed.
func TestATreeOutlastsTheRefusalOfAnother(t *testing.T) {
	t.Parallel()
	var added, removed atomic.Int32
	serve := func(conn net.Conn, _ int) {
		welcome(conn, 10_000)
		for r := range requests(conn) {
			switch int32At(r, 4) {
			case opAddWatch:
				if added.Add(1) > 1 {
					conn.Write(framed(reply(int32At(r, 0), codeThrottled)))
					continue
				}
			case opRemoveWatches:
				removed.Add(1)
			}
			conn.Write(found(r))
		}
	}
	inTrees(t, serve, func(t *testing.T, s backend.Session) {
		first, w := backend.NewTreeWatch(0), backend.NewWatch()
		if err := s.WatchTree(t.Context(), "/a", first); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Get(t.Context(), "/a", w); err != nil {
			t.Fatal(err)
		}
		first.Stop() // the tree stays for the watch of the read
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.WatchTree(ctx, "/a", backend.NewTreeWatch(0)) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the second tree: %v", err)
		}
		if w.Kind() != 0 || removed.Load() != 0 {
			t.Errorf("the watch of the read is %v after %d removals", w.Kind(), removed.Load())
		}
		w.Stop()
		synctest.Wait()
		if removed.Load() != 1 || Interests(s) != 0 {
			t.Errorf("nothing needs the tree: %d removals, %d left", removed.Load(), Interests(s))
		}
	})
}

// A target of an Arm that reads node by node is stopped just after the read that relied on the
// tree.
func TestAStoppedTargetReleasesTheTree(t *testing.T) {
	h := newHub()
	var removed []string
	h.remove = func(t *tree) { removed = append(removed, t.path) }
	add := &call{op: opAddWatch, path: "/a", treeWatch: backend.NewTreeWatch(0)}
	h.sending(add)
	h.added(add.tree, add.treeWatch, true)
	read := &call{op: opExists, path: "/a", watch: backend.NewWatch(), frame: make([]byte, 1)}
	h.sending(read)
	key := watchKey{"/a", dataWatch}
	h.arm(key, read.watch, true, read.tree)
	add.treeWatch.Stop()
	if len(removed) != 0 {
		t.Errorf("a watch is armed, and removed is %v", removed)
	}
	stopped := backend.NewWatch()
	stopped.Stop()
	h.hand(key, read.watch, stopped)
	if len(removed) != 1 || len(h.armed) != 0 {
		t.Errorf("nothing is armed: removed %v, %d left", removed, len(h.armed))
	}
}
