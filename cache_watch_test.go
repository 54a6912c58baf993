package coord_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// 4. A watch that has fired before the reply that shows another node is entered again,
// and keeps that node, with its data, until the next reconnection.
func TestAFiredWatchIsNotKept(t *testing.T) {
	onMemory(t, func(w *world) {
		var before, after nth
		x := w.caching("/c", nil, &backendtest.Hooks{Before: before.before, After: after.after})
		data := make([]byte, 64<<10)
		x.create("/c")
		x.do(backend.Create("/c/e", data, backend.Ephemeral))
		x.run().synced()
		x.equal()
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		cycle := func() {
			before.arm(1, at("get", "/c/e"), func(context.Context, backendtest.Call, error) error {
				x.delete("/c/e")
				x.do(backend.Create("/c/e", data, backend.Ephemeral))
				time.Sleep(time.Millisecond)
				return nil
			})
			after.arm(1, at("get", "/c/e"), func(_ context.Context, _ backendtest.Call, err error) error {
				x.do(backend.SetData("/c/e", data, backend.AnyVersion))
				time.Sleep(time.Millisecond)
				return err
			})
			x.do(backend.SetData("/c/e", data, backend.AnyVersion))
			w.settle()
			time.Sleep(10 * time.Millisecond)
			x.equal()
		}
		for range 5 {
			cycle()
		}
		was := heap()
		for range 100 {
			cycle()
		}
		grown := heap() - was
		w.t.Logf("100 changes: heap grown by %d", grown)
		if grown > 1<<20 {
			w.t.Errorf("grown by %d", grown)
		}
	})
}
