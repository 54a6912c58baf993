package recipetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// caching is a cache that runs, over the link "cache", and a session that changes
// the tree.
type caching struct {
	w    *world
	c    *coord.Client
	k    *coord.Cache
	s    backend.Session
	root string
	ctx  context.Context
	stop context.CancelFunc
	done chan struct{}
	err  error // of Run
}

func (w *world) caching(root string, o *coord.CacheOptions, hooks *backendtest.Hooks) *caching {
	w.T.Helper()
	c := w.Open("cache", hooks)
	x := &caching{w: w, c: c, k: coord.NewCache(c, root, o), s: w.Session("writer"), root: root, done: make(chan struct{})}
	x.ctx, x.stop = context.WithCancel(context.Background())
	return x
}

// run begins to keep the copy.
func (x *caching) run() *caching {
	go func() {
		defer close(x.done)
		x.err = x.k.Run(x.ctx)
	}()
	x.w.T.Cleanup(func() {
		x.stop()
		<-x.done
	})
	return x
}

// do commits operations on paths without the namespace.
func (x *caching) do(ops ...backend.Op) {
	x.w.T.Helper()
	ops = slices.Clone(ops)
	for i := range ops {
		ops[i].Path = x.w.Path(ops[i].Path)
	}
	if _, err := x.s.Commit(context.Background(), ops...); err != nil {
		x.w.T.Fatal(err)
	}
}

func (x *caching) create(paths ...string) {
	x.w.T.Helper()
	for _, p := range paths {
		x.do(backend.Create(p, []byte("data of "+p), backend.Persistent))
	}
}

func (x *caching) delete(paths ...string) {
	x.w.T.Helper()
	for _, p := range paths {
		x.do(backend.Delete(p, backend.AnyVersion))
	}
}

func (x *caching) synced() {
	x.w.T.Helper()
	select {
	case <-x.k.Synced():
	case <-time.After(coordtest.Limit):
		x.w.T.Fatal("never synced")
	}
}

func (x *caching) tree() map[string]coordtest.NodeState {
	return coordtest.TreeOf(x.w.T, x.s, x.w.Path(""), x.root)
}

// equal waits until the copy equals the tree, and so do the readers.
func (x *caching) equal(readers ...*coordtest.Fold) {
	x.w.T.Helper()
	tree := x.tree()
	x.w.Eventually(fmt.Sprintf("the copy equals the tree %v", tree), func() bool { return maps.Equal(coordtest.CopyOf(x.k, x.root), tree) })
	if n := x.k.Len(); n != len(tree) {
		x.w.T.Errorf("%d nodes, want %d", n, len(tree))
	}
	for _, f := range readers {
		x.w.Eventually("the events add up to the tree", func() bool { return f.Equals(tree) })
		f.Check(x.w.T)
	}
}

// reader follows the events until the test ends.
func (x *caching) reader(pace func()) *coordtest.Fold {
	f := coordtest.NewFold(x.root)
	f.Pace = pace
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		f.Follow(ctx, x.k)
	}()
	x.w.T.Cleanup(func() {
		cancel()
		<-done
		f.Check(x.w.T)
	})
	return f
}
