package recipetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A second proposer of a transaction may not create its node there. Propose returns that error, and does not
// try for ever.
func TestTwoPhase_AProposerThatMayNotJoinReturns(t *testing.T) {
	onMemory(t, func(w *world) {
		list := w.accounts("a")
		let := make(chan struct{})
		list[0].votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
		p := w.proposal("t1", "a")
		p.Deadline = time.Now().Add(time.Hour)
		first := proposeLater(coord.NewCoordinator[string](w.Open("first", nil), "/tx", nil), p)
		w.Settle()
		refused := 0
		second := w.Open("second", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "commit" && len(c.Ops) == 1 && strings.HasPrefix(c.Ops[0].Path, "/tx/tx/t1/live-") && coordtest.Creates(c) && refused < 100 {
				refused++
				return backend.ErrDenied
			}
			return nil
		}})
		got := receive(w, "the second Propose returns", proposeLater(coord.NewCoordinator[string](second, "/tx", nil), p))
		if !errors.Is(got.err, coord.ErrDenied) || refused != 1 {
			w.T.Errorf("%+v, %v after %d refusals", got.d, got.err, refused)
		}
		close(let)
		if got := receive(w, "the first Propose returns", first); got.err != nil || !got.d.Commit {
			w.T.Errorf("%+v, %v", got.d, got.err)
		}
		w.over("a")
	})
}
