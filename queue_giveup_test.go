package coord_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// marks reports whether a commit claims an item.
func marks(c backendtest.Call) bool {
	for _, op := range c.Ops {
		if op.Kind == backend.OpCreate && op.Mode == backend.Ephemeral && strings.HasPrefix(op.Path, "/q/items/b-") {
			return true
		}
	}
	return false
}

// A Take whose ctx ends while its item is handed over returns the item or leaves it to others.
func TestQueue_TakeThatEndsAsItIsAnsweredLeavesNoClaim(t *testing.T) {
	onMemory(t, func(w *world) {
		var cancel context.CancelFunc
		q := w.hookedQueue("a", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			if marks(c) {
				cancel()
			}
			return err
		}}, nil)
		b := w.queue("b", nil)
		mustPut(w.T, b, 1, 1)
		gaveUp := 0
		for range 200 {
			ctx, end := context.WithCancel(context.Background())
			cancel = end
			it, err := q.Take(ctx)
			end()
			if err == nil {
				w.must(it.Release())
				continue
			}
			if !errors.Is(err, context.Canceled) {
				w.T.Fatal(err)
			}
			gaveUp++
			within, over := context.WithTimeout(context.Background(), time.Second)
			it, err = b.Take(within)
			over()
			if err != nil {
				w.T.Fatalf("after %d calls: the item did not come back: %v", gaveUp, err)
			}
			if it.Attempt != 1 {
				w.T.Errorf("attempt %d", it.Attempt)
			}
			w.must(it.Release())
		}
		w.T.Logf("figure: %d of 200 calls gave up", gaveUp)
	})
}
