package recipetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
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

// A Set that is refused leaves no watch behind: an ephemeral barrier where a persistent one is set.
func TestBarrier_ARefusedSetKeepsNoWatch(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		w.must(coord.NewBarrier(w.Open("a", nil), "/b", nil).Set(ctx))
		counter := &watchCounter{Backend: w.Link("b")}
		c := coordtest.Open(w.T, counter, &coord.Options{Namespace: w.Path("")})
		coordtest.WantErr(w.T, coord.NewBarrier(c, "/b", &coord.BarrierOptions{Ephemeral: true}).Set(ctx), coord.ErrExists)
		w.Settle()
		if n := counter.standing(); n != 0 {
			w.T.Errorf("%d watches are armed", n)
		}
	})
}

// Remove removes a barrier that the server of its session does not show yet.
func TestBarrier_RemoveSeesABarrierThatWasSetBefore(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		w.must(coord.NewBarrier(w.Open("a", nil), "/b", nil).Set(ctx))
		synced := false
		hooks := &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			switch {
			case c.Op == "sync":
				synced = true
			case c.Op == "get" && !synced:
				return &backend.Error{Op: c.Op, Path: c.Path, Err: backend.ErrNotFound}
			}
			return nil
		}}
		w.must(coord.NewBarrier(w.Open("b", hooks), "/b", nil).Remove(ctx))
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := coord.NewBarrier(w.Open("c", nil), "/b", nil).Wait(short); err != nil {
			w.T.Errorf("the barrier is still set: %v", err)
		}
	})
}
