package recipetest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
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

// slowToEnd is a context whose end its caller notices a moment late.
type slowToEnd struct{ context.Context }

func (c slowToEnd) Done() <-chan struct{} {
	if c.Err() != nil {
		time.Sleep(time.Millisecond)
	}
	return c.Context.Done()
}

// A Take whose ctx ends while its item is handed over returns the item or leaves it to others.
func TestQueue_TakeThatEndsAsItIsAnsweredLeavesNoClaim(t *testing.T) {
	for _, answered := range []bool{false, true} { // before the caller has given up
		onMemory(t, func(w *world) {
			var cancel context.CancelFunc
			q := w.hookedQueue("a", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
				if marks(c) {
					if cancel(); !answered {
						time.Sleep(time.Millisecond)
					}
				}
				return err
			}}, nil)
			b := w.queue("b", nil)
			mustPut(w.T, b, 1, 1)
			for n := range 40 { // if both are there, a select chooses at random
				ctx, end := context.WithCancel(context.Background())
				if cancel = end; answered {
					ctx = slowToEnd{ctx}
				}
				it, err := q.Take(ctx)
				end()
				if answered {
					if err != nil {
						w.T.Fatalf("call %d: %v, and the item was handed over", n, err)
					}
					w.must(it.Release())
					continue
				}
				coordtest.WantErr(w.T, err, context.Canceled)
				within, over := context.WithTimeout(context.Background(), time.Second)
				it, err = b.Take(within)
				over()
				if err != nil {
					w.T.Fatalf("call %d: the item did not come back: %v", n, err)
				}
				if it.Attempt != 1 {
					w.T.Errorf("attempt %d", it.Attempt)
				}
				w.must(it.Release())
			}
		})
	}
}
