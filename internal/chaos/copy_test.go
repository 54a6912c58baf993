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
	rec  *recorder
	k    *coord.Cache
	fold *coordtest.Fold

	mu  sync.Mutex
	err error
}

func newCopy(c *coord.Client, rec *recorder) *copyOfTree {
	return &copyOfTree{c: c, rec: rec, k: coord.NewCache(c, treePath, nil), fold: coordtest.NewFold(treePath)}
}

// keep maintains the copy until ctx ends.
func (t *copyOfTree) keep(ctx context.Context) {
	s, err := t.c.Session(ctx)
	if err != nil {
		return // the client is closed
	}
	t.fold.Older = t.older
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

// older records that the cache told of an older state than before.
func (t *copyOfTree) older(path string, is coordtest.NodeState, told int64) {
	t.rec.say(event{Kind: "older", Work: "cache", ID: path, Since: told, Num: is.Czxid, Token: is.Mzxid, Value: is.Data})
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
