package shards

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/core"
)

// endingContext is a context that has ended, and whose end does not reach the contexts that derive from it.
type endingContext struct {
	context.Context
	done chan struct{}
}

func (c endingContext) Done() <-chan struct{} { return c.done }

// When Run ends, its member asks for its shards. The request can reach the context of a function before the
// end of the context of Run does. That end is the cause all the same.
func TestShards_TheCauseAtTheEndOfRunIsNoHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := core.Open(t.Context(), memory.New(nil), core.Config{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		reason, handOver := errors.New("the program ends"), errors.New("the shard moves")
		whole, cancel := context.WithCancelCause(t.Context())
		cancel(reason)
		var cause error
		w := &worker{Work: Work{
			Begin: func(h *core.Hold, _ int) func(context.Context) error {
				return func(ctx context.Context) error {
					h.Ask("", "the member leaves", false)
					<-ctx.Done()
					cause = context.Cause(ctx)
					return ctx.Err()
				}
			},
			HandOver: func(int, core.Revocation) error { return handOver },
		}}
		grants := All(t.Context(), New(c, "/s", 1, Config{}), "all", func(h *core.Hold, index int) grant { return grant{h, index} })
		for g, err := range grants {
			if err != nil {
				t.Fatal(err)
			}
			w.run(endingContext{whole, make(chan struct{})}, g)
			break
		}
		if cause != reason {
			t.Errorf("the cause is %v, want %v", cause, reason)
		}
	})
}
