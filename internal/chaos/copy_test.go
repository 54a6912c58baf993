//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// nodeIs identifies the node at a path, and its data.
type nodeIs struct {
	Czxid, Mzxid int64
	Data         string
}

// copyOfTree is a cache of the churned tree, and the tree folded from its events.
type copyOfTree struct {
	k *coord.Cache

	mu     sync.Mutex
	folded map[string]nodeIs
	wrong  int
	err    error
}

func newCopy(c *coord.Client) *copyOfTree {
	return &copyOfTree{k: coord.NewCache(c, treePath, nil), folded: make(map[string]nodeIs)}
}

// keep maintains the copy until ctx ends.
func (t *copyOfTree) keep(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { t.fold(ctx) })
	err := t.k.Run(ctx)
	if ctx.Err() == nil {
		t.mu.Lock()
		t.err = fmt.Errorf("the cache has ended: %w", err)
		t.mu.Unlock()
	}
	wg.Wait()
}

func (t *copyOfTree) fold(ctx context.Context) {
	for batch, err := range t.k.Events(ctx) {
		if err != nil {
			return
		}
		t.mu.Lock()
		t.wrong += fold(t.folded, batch)
		t.mu.Unlock()
	}
}

// fold applies events to a tree, and returns the number of events that do not follow from its
// state.
func fold(tree map[string]nodeIs, batch []coord.CacheEvent) (wrong int) {
	for _, e := range batch {
		old, there := tree[e.Path]
		if there == (e.Kind == coord.NodeCreated) || e.Kind == coord.NodeChanged && old.Czxid != e.Node.Stat.Czxid {
			wrong++
		}
		if e.Kind == coord.NodeDeleted {
			delete(tree, e.Path)
			continue
		}
		tree[e.Path] = nodeIs{e.Node.Stat.Czxid, e.Node.Stat.Mzxid, string(e.Node.Data)}
	}
	return wrong
}

func (t *copyOfTree) report() report {
	r := report{Kind: "copy", Tree: make(map[string]nodeIs), Folded: make(map[string]nodeIs)}
	for path, n := range t.k.Walk(treePath) {
		r.Tree[path] = nodeIs{n.Stat.Czxid, n.Stat.Mzxid, string(n.Data)}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for path, n := range t.folded {
		r.Folded[path] = n
	}
	r.Wrong = t.wrong
	if t.err != nil {
		r.Text = t.err.Error()
	}
	return r
}

// differs describes how a copy differs from the tree, or returns "".
func differs(what string, copy, tree map[string]nodeIs) string {
	for path, n := range tree {
		if c, ok := copy[path]; !ok {
			return fmt.Sprintf("%s lacks %s", what, path)
		} else if c != n {
			return fmt.Sprintf("%s has %+v at %s, the tree %+v", what, c, path, n)
		}
	}
	for path := range copy {
		if _, ok := tree[path]; !ok {
			return fmt.Sprintf("%s has %s, which the tree does not have", what, path)
		}
	}
	return ""
}

// realTree reads the servers' tree without watches.
func realTree(ctx context.Context, s backend.Session, root string) (map[string]nodeIs, error) {
	if err := s.Sync(ctx, root); err != nil {
		return nil, err
	}
	all := make(map[string]nodeIs)
	var read func(path string) error
	read = func(path string) error {
		data, stat, err := s.Get(ctx, path, nil)
		if errors.Is(err, backend.ErrNotFound) {
			return nil // an ephemeral node of a session that expires only now
		} else if err != nil {
			return err
		}
		all[path] = nodeIs{stat.Czxid, stat.Mzxid, string(data)}
		names, _, err := s.Children(ctx, path, nil)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return err
		}
		for _, n := range names {
			if err := read(path + "/" + n); err != nil {
				return err
			}
		}
		return nil
	}
	return all, read(root)
}
