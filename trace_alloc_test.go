package coord_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// traceCycles are what is done again and again by those who use the recipes.
var traceCycles = []struct {
	name string
	make func(t testing.TB, ctx context.Context, c *coord.Client) func() error
}{
	{"mutex", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		m := coord.NewMutex(c, "/mutex", nil)
		return func() error {
			h, err := m.Lock(ctx)
			if err != nil {
				return err
			}
			return h.Release()
		}
	}},
	{"reader", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		m := coord.NewRWMutex(c, "/rw", nil)
		return func() error {
			h, err := m.RLock(ctx)
			if err != nil {
				return err
			}
			return h.Release()
		}
	}},
	{"semaphore", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		s := coord.NewSemaphore(c, "/semaphore", 3, nil)
		return func() error {
			h, err := s.Acquire(ctx, 2)
			if err != nil {
				return err
			}
			return h.Release()
		}
	}},
	{"election", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		e := coord.NewElection(c, "/election", nil)
		return func() error {
			t, err := e.Campaign(ctx)
			if err != nil {
				return err
			}
			return t.Release()
		}
	}},
	{"double barrier", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		d := coord.NewDoubleBarrier(c, "/double", 1, nil)
		return func() error {
			e, err := d.Enter(ctx)
			if err != nil {
				return err
			}
			return e.Leave(ctx)
		}
	}},
	{"barrier", func(t testing.TB, ctx context.Context, c *coord.Client) func() error {
		b := coord.NewBarrier(c, "/barrier", nil)
		return func() error { return b.Wait(ctx) }
	}},
	{"queue", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		q := coord.NewQueue[int](c, "/queue", nil)
		return func() error {
			if _, err := q.Put(ctx, 1); err != nil {
				return err
			}
			it, err := q.Take(ctx)
			if err != nil {
				return err
			}
			return it.Ack()
		}
	}},
	{"member", func(_ testing.TB, ctx context.Context, c *coord.Client) func() error {
		g := coord.NewGroup[int](c, "/group", nil)
		return func() error {
			m, err := g.Join(ctx, "a", 1)
			if err != nil {
				return err
			}
			return m.Leave()
		}
	}},
}

// That a trail costs nothing where nobody traces is tested beside it. These are the
// figures of whole cycles, and the one that was promised.
func TestWithoutTraceAMutexAllocatesAsEver(t *testing.T) {
	const promised = 9 // a cycle of a mutex on memory
	measure := func(c *coord.Client, i int) float64 {
		cycle := traceCycles[i].make(t, t.Context(), c)
		return testing.AllocsPerRun(300, func() {
			if err := cycle(); err != nil {
				t.Fatal(err)
			}
		})
	}
	plain := open(t, memory.New(nil), nil)
	var told atomic.Int64
	traced := open(t, memory.New(nil), &coord.Options{Trace: func(context.Context, coord.Event) { told.Add(1) }})
	for i, cy := range traceCycles {
		without := measure(plain, i)
		for n := 0; n < 20 && cy.name == "mutex" && without > promised; n++ {
			// What goes on beside it counts too: a machine that is slow has more of that.
			without = min(without, measure(plain, i))
		}
		before := told.Load()
		t.Logf("figure: a cycle of a %s: %v allocations, traced %v", cy.name, without, measure(traced, i))
		if cy.name == "mutex" && without > promised && !raceDetector { // which allocates too
			t.Errorf("%s: %v allocations a cycle without Trace, want %v at most", cy.name, without, promised)
		}
		if cy.name == "barrier" {
			continue // nothing to tell
		}
		for n := 0; n < 5000 && told.Load()-before < 600; n++ {
			time.Sleep(time.Millisecond) // until what was told has arrived
		}
		if told.Load()-before < 600 {
			t.Errorf("%s: Trace was told of %d events", cy.name, told.Load()-before)
		}
	}
}
