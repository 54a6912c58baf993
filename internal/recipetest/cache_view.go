package recipetest

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// counting returns a JSON codec that counts what it decodes.
func counting(n *atomic.Int64) coord.Codec[settings] {
	json := coord.JSON[settings]()
	decode := json.Decode
	json.Decode = func(data []byte) (settings, error) {
		n.Add(1)
		return decode(data)
	}
	return json
}

// goRun runs the cache, and returns a function that ends it.
func (w *world) goRun(k *coord.Cache) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.T.Errorf("the cache ended with %v", err)
		}
	}
}

// cacheViewTests are tests of Cache on each service.
type cacheViewTests struct{ Services }

func (on cacheViewTests) AViewDecodesEachVersionOnce(t *testing.T) {
	on.each(t, func(w *world) {
		var decodes atomic.Int64
		k := coord.NewCache(w.Open("a", nil), "/config", nil)
		v := coord.NewCacheView(k, counting(&decodes))
		if _, ok := v.Get("/config"); ok || len(maps.Collect(v.All("/config"))) > 0 {
			w.T.Error("something is there before Run")
		}
		defer w.goRun(k)()
		other := w.Open("b", nil)
		tenant := func(name string) *coord.Value[settings] { return coord.NewValue[settings](other, "/config/"+name, nil) }
		want := map[string]coord.Versioned[settings]{
			"/config/a": setValue(w.T, tenant("a"), settings{Rate: 1}),
			"/config/b": setValue(w.T, tenant("b"), settings{Rate: 2}),
		}
		check := func(decoded int64) {
			w.T.Helper()
			w.Eventually("the cache is current", func() bool {
				n := 0
				for path, want := range want {
					if got, ok := k.Get(path); ok && got.Stat.Mzxid == want.Mzxid {
						n++
					}
				}
				return n == len(want) && k.Len() == len(want)+1
			})
			before := decodes.Load()
			for range 10 {
				if got := maps.Collect(v.All("/config")); !maps.Equal(got, want) {
					w.T.Fatalf("the view has %+v, want %+v", got, want)
				}
				for path, want := range want {
					if got, ok := v.Get(path); !ok || got != want {
						w.T.Fatalf("%s: %+v, %v, want %+v", path, got, ok, want)
					}
				}
			}
			if n := decodes.Load() - before; n != decoded {
				w.T.Errorf("%d were decoded, want %d", n, decoded)
			}
		}
		check(2)
		check(0)
		want["/config/b"] = setValue(w.T, tenant("b"), settings{Rate: 3})
		check(1)
		// Made again at the same version, in one commit.
		w.outsider(backend.Delete(w.Path("/config/a"), 0), backend.Create(w.Path("/config/a"), []byte(`{"rate":4}`), backend.Persistent))
		want["/config/a"] = getValue(w.T, tenant("a"))
		check(1)
		if err := tenant("a").Delete(w.T.Context(), want["/config/a"]); err != nil {
			w.T.Fatal(err)
		}
		delete(want, "/config/a")
		check(0)
		if got, ok := v.Get("/config/a"); ok {
			w.T.Errorf("deleted: %+v", got)
		}
	})
}
