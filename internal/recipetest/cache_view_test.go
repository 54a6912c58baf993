package recipetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

func TestCache_AViewReportsWhatItCannotDecodeBesideTheOthers(t *testing.T) {
	onMemory(t, func(w *world) {
		k := coord.NewCache(w.Open("a", nil), "/config", nil)
		v := coord.NewCacheView(k, coord.Codec[settings]{})
		w.outsider(
			backend.Create("/config", nil, backend.Persistent),
			backend.Create("/config/bad", []byte("{"), backend.Persistent),
			backend.Create("/config/empty", nil, backend.Persistent),
			backend.Create("/config/good", []byte(`{"rate":1}`), backend.Persistent),
			backend.Create("/config/good/below", []byte(`{"rate":2}`), backend.Persistent),
		)
		defer w.goRun(k)()
		<-k.Synced()
		var seen []string
		for path, e := range v.All("/config") {
			var named *backend.Error
			if e.Err != nil && (!errors.Is(e.Err, coord.ErrDecode) || !errors.As(e.Err, &named) || named.Path != path || e.Czxid == 0) {
				w.T.Errorf("%s: %+v", path, e)
			}
			seen = append(seen, fmt.Sprint(path, " ", e.Value.Rate, " ", e.Err != nil))
		}
		if want := []string{"/config/bad 0 true", "/config/good 1 false", "/config/good/below 2 false"}; !slices.Equal(seen, want) {
			w.T.Errorf("saw %q, want %q", seen, want)
		}
		for _, path := range []string{"/config", "/config/empty"} {
			if e, ok := v.Get(path); ok || e != (coord.Versioned[settings]{}) {
				w.T.Errorf("the directory %s: %+v, %v", path, e, ok)
			}
		}
		for range v.All("/config") {
			break
		}
	})
}

// A loop that is slower than the changes sees the copy of its beginning, and does not make the
// view older.
func TestCache_ALoopOverAViewSeesOneMoment(t *testing.T) {
	onMemory(t, func(w *world) {
		var decodes atomic.Int64
		k := coord.NewCache(w.Open("a", nil), "/config", nil)
		v := coord.NewCacheView(k, counting(&decodes))
		other := w.Open("b", nil)
		a, b := coord.NewValue[settings](other, "/config/a", nil), coord.NewValue[settings](other, "/config/b", nil)
		setValue(w.T, a, settings{Rate: 1})
		old := setValue(w.T, b, settings{Rate: 1})
		defer w.goRun(k)()
		<-k.Synced()
		var now coord.Versioned[settings]
		for path, e := range v.All("/config") {
			switch path {
			case "/config/a":
				now = setValue(w.T, b, settings{Rate: 2})
				w.Settle()
				if got, _ := v.Get("/config/b"); got != now {
					w.T.Errorf("got %+v, want %+v", got, now)
				}
			case "/config/b":
				if e != old {
					w.T.Errorf("the loop sees %+v, want %+v", e, old)
				}
			}
		}
		before := decodes.Load()
		if got, _ := v.Get("/config/b"); got != now || decodes.Load() != before {
			w.T.Errorf("got %+v after the loop, want %+v, %d decoded", got, now, decodes.Load()-before)
		}
	})
}

func TestCache_ReadersOfAViewShareOneDecode(t *testing.T) {
	onMemory(t, func(w *world) {
		var decodes atomic.Int64
		k := coord.NewCache(w.Open("a", nil), "/config", nil)
		entered, goOn := make(chan struct{}, 8), make(chan struct{})
		codec := counting(&decodes)
		decode := codec.Decode
		codec.Decode = func(data []byte) (settings, error) {
			entered <- struct{}{}
			<-goOn
			return decode(data)
		}
		v := coord.NewCacheView(k, codec)
		want := setValue(w.T, coord.NewValue[settings](w.Open("b", nil), "/config/a", nil), settings{Rate: 1})
		defer w.goRun(k)()
		<-k.Synced()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if got, ok := v.Get("/config/a"); !ok || got != want {
					w.T.Errorf("got %+v, %v", got, ok)
				}
			})
		}
		<-entered
		if n := k.Len(); n != 2 { // the cache is not blocked
			w.T.Errorf("%d nodes", n)
		}
		close(goOn)
		all.Wait()
		if n := decodes.Load(); n != 1 {
			w.T.Errorf("%d were decoded", n)
		}
	})
}

func TestCache_APanicOfTheCodecReachesEachReaderOfAView(t *testing.T) {
	onMemory(t, func(w *world) {
		k := coord.NewCache(w.Open("a", nil), "/config", nil)
		v := coord.NewCacheView(k, coord.Codec[int]{Encode: func(int) ([]byte, error) { return nil, nil }, Decode: func([]byte) (int, error) { panic("no") }})
		w.outsider(backend.Create("/config", []byte("1"), backend.Persistent))
		defer w.goRun(k)()
		<-k.Synced()
		for range 2 {
			func() {
				defer func() {
					if recover() == nil {
						w.T.Error("no panic")
					}
				}()
				v.Get("/config")
			}()
		}
		if other, ok := coord.NewCacheView(k, coord.Codec[json.Number]{}).Get("/config"); !ok || other.Value != "1" {
			w.T.Errorf("another view: %+v, %v", other, ok)
		}
	})
}

// A node that was set again, or created again, has another value. A loop sees the values of its
// moment, also if newer ones were decoded since.
func TestCacheView_DecodedValueIsThatOfTheVersion(t *testing.T) {
	onMemory(t, func(w *world) {
		k := coord.NewCache(w.Open("a", nil), "/config", nil)
		v := coord.NewCacheView(k, coord.JSON[settings]())
		other := w.Open("b", nil)
		a, b := coord.NewValue[settings](other, "/config/a", nil), coord.NewValue[settings](other, "/config/b", nil)
		setValue(w.T, a, settings{Rate: 1})
		now := setValue(w.T, b, settings{Rate: 1})
		defer w.goRun(k)()
		check := func(what string) {
			w.T.Helper()
			w.Settle()
			if got, ok := v.Get("/config/b"); !ok || got != now {
				w.T.Errorf("%s: %+v, %v, want %+v", what, got, ok, now)
			}
			if got := maps.Collect(v.All("/config"))["/config/b"]; got != now {
				w.T.Errorf("%s: the loop has %+v, want %+v", what, got, now)
			}
		}
		check("at first")
		now = setValue(w.T, b, settings{Rate: 2})
		check("set again")
		if err := b.Delete(w.T.Context(), now); err != nil {
			w.T.Fatal(err)
		}
		setValue(w.T, b, settings{Rate: 3})
		now = setValue(w.T, b, settings{Rate: 4})
		check("created again")
		old, paths := now, 0
		for path, got := range v.All("/config") {
			paths++
			if path == "/config/a" {
				now = setValue(w.T, b, settings{Rate: 5})
				check("while a loop runs")
			} else if path == "/config/b" && got != old {
				w.T.Errorf("the loop that began before has %+v, want %+v", got, old)
			}
		}
		if paths != 2 {
			w.T.Errorf("%d paths, want 2", paths)
		}
	})
}
