//go:build linux

package chaos

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// copyOfTree is a cache of the churned tree, and the tree folded from its events.
type copyOfTree struct {
	c    *coord.Client
	k    *coord.Cache
	fold *coordtest.Fold

	mu  sync.Mutex
	err error
}

func newCopy(c *coord.Client) *copyOfTree {
	return &copyOfTree{c: c, k: coord.NewCache(c, treePath, nil), fold: coordtest.NewFold(treePath)}
}

// keep maintains the copy until ctx ends.
func (t *copyOfTree) keep(ctx context.Context) {
	s, err := t.c.Session(ctx)
	if err != nil {
		return // the client is closed
	}
	t.fold.AnyAge = true
	t.fold.Flash = coordtest.FlashNever
	if !s.Features().Has(backend.Trees) {
		t.fold.Flash = coordtest.FlashWithParent
	}
	var wg sync.WaitGroup
	wg.Go(func() { t.fold.Follow(ctx, t.k) })
	err = t.k.Run(ctx)
	if ctx.Err() == nil {
		t.mu.Lock()
		t.err = fmt.Errorf("the cache has ended: %w", err)
		t.mu.Unlock()
	}
	wg.Wait()
}

func (t *copyOfTree) report() report {
	r := report{Kind: "copy", Tree: coordtest.CopyOf(t.k, treePath)}
	r.Folded, r.Wrong = t.fold.Sum()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		r.Text = t.err.Error()
	}
	return r
}
