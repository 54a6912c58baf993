package recipetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestCounter_CallsOfOneCounterWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		link := st.Link("a")
		link.SetLatency(time.Millisecond)
		var mu sync.Mutex
		calls := 0
		c := coordtest.Open(t, backendtest.Intercept(link, backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			calls++
			return nil
		}}), nil)
		n := coord.NewCounter(c, "/n")
		if _, err := n.Add(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		calls = 0
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for range 5 {
					if _, err := n.Add(t.Context(), 1); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		t.Logf("figure: 100 additions by 20 callers of one client: %d requests", calls)
		if calls != 200 {
			t.Errorf("%d requests for 100 additions, want 2 each", calls)
		}

		// A call that waits for its turn can give up, and is not counted.
		link.Partition()
		going := make(chan error)
		go func() { _, err := n.Add(t.Context(), 1); going <- err }()
		synctest.Wait()
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		waiting := make(chan error)
		go func() { _, err := n.Add(ctx, 1000); waiting <- err }()
		synctest.Wait()
		cancel(cause)
		coordtest.WantErr(t, <-waiting, context.Canceled, cause)
		link.Heal()
		if err := <-going; err != nil {
			t.Error(err)
		}
		if got, err := n.Get(t.Context()); err != nil || got != 101 {
			t.Errorf("%d, %v", got, err)
		}

		// Close also ends the calls that wait for their turn.
		link.Partition()
		for range 3 {
			go func() { _, err := n.Add(t.Context(), 1); going <- err }()
		}
		synctest.Wait()
		c.Close()
		for range 3 {
			coordtest.WantErr(t, <-going, coord.ErrClosed)
		}
	})
}
