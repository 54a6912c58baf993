package recipetest

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A server that lags may not show a barrier that is set already.
func TestBarrier_WaitSeesABarrierThatWasSetBefore(t *testing.T) {
	t.Parallel()
	onMemory(t, func(w *world) {
		synced := false
		hooks := &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			switch c.Op {
			case "sync":
				synced = true
			case "get":
				if !synced {
					w.T.Error("it looked before the server had caught up")
				}
			}
			return nil
		}}
		c := w.Open("a", hooks)
		w.must(coord.NewBarrier(c, "/b", nil).Wait(context.Background()))
		synctest.Wait()
	})
}

// A Set of a barrier that is set already leaves no watch behind.
func TestBarrier_ASetOfASetBarrierKeepsNoWatch(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		w.must(coord.NewBarrier(w.Open("a", nil), "/b", nil).Set(ctx))
		counter := &watchCounter{Backend: w.Link("b")}
		b := coord.NewBarrier(coordtest.Open(w.T, counter, &coord.Options{Namespace: w.Path("")}), "/b", nil)
		for range 3 {
			w.must(b.Set(ctx))
		}
		w.Settle()
		if n := counter.standing(); n != 0 {
			w.T.Errorf("%d watches are armed", n)
		}
	})
}
