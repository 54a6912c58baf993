package recipetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// However many writers wait, a release wakes one client.
func TestRWMutex_AWritersReleaseWakesOneClient(t *testing.T) {
	for _, n := range []int{5, 50} {
		t.Run(fmt.Sprint(n, " waiters"), func(t *testing.T) {
			onMemory(t, func(w *world) {
				holder, err := coord.NewRWMutex(w.Open("holder", nil), "/rw", nil).Lock(context.Background())
				h := must(w.T, holder, err)
				calls := make([]atomic.Int32, n)
				waiters := make([]*coordtest.Locking, n)
				for i := range n {
					c := w.Open(fmt.Sprint(i), &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error {
						calls[i].Add(1)
						return nil
					}})
					waiters[i] = w.side(coord.NewRWMutex(c, "/rw", nil).Lock)
				}
				for i := range n {
					before := make([]int32, n)
					for j := range n {
						before[j] = calls[j].Load()
					}
					coordtest.MustRelease(w.T, h)
					w.Settle()
					h = waiters[i].Hold()
					for j := i + 1; j < n; j++ {
						if calls[j].Load() != before[j] {
							w.T.Errorf("release %d woke waiter %d", i, j)
						}
					}
				}
				coordtest.MustRelease(w.T, h)
			})
		})
	}
}
