package recipetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// Services are the services that a suite runs on.
type Services struct {
	Memory bool // in fake time

	// A real service: its name, and functions that return an unused part of it. A service of
	// Collecting removes empty containers soon, if it has containers.
	Name            string
	New, Collecting func(t *testing.T) backendtest.Service

	// Revisions says that the sequence numbers of the real service do not count the children of a node,
	// and Spares that it writes nothing for backend.Carry and backend.Absent.
	Revisions, Spares bool

	// Each run selects one in Share tests at random for the real service. Zero selects all.
	Share int
}

// run runs the exported methods of suites as subtests.
func (on Services) run(t *testing.T, suites ...any) {
	t.Parallel()
	for _, suite := range suites {
		v := reflect.ValueOf(suite)
		for i := range v.NumMethod() {
			t.Run(v.Type().Method(i).Name, v.Method(i).Interface().(func(*testing.T)))
		}
	}
}

// world is a fresh service, with what the tests of recipes add to it.
type world struct{ *coordtest.World }

func onMemory(t *testing.T, f func(w *world)) {
	coordtest.OnMemory(t, func(w *coordtest.World) { f(&world{w}) })
}

// onMemories is onMemory on a store with all features, one without batches, and one with
// neither trees nor batches.
func onMemories(t *testing.T, f func(w *world)) {
	onMemory(t, f)
	coordtest.OnMemoryWithoutBatches(t, func(w *coordtest.World) { f(&world{w}) })
	withoutTrees(t, f)
}

func withoutTrees(t *testing.T, f func(w *world)) {
	coordtest.OnMemoryWithoutTrees(t, func(w *coordtest.World) { f(&world{w}) })
}

// onCounters is onMemory on a store whose numbers begin again in a new directory, for tests of
// names that come back.
func onCounters(t *testing.T, f func(w *world)) {
	coordtest.OnCounters(t, func(w *coordtest.World) { f(&world{w}) })
}

// server returns a world on the real service.
func (on Services) server(t *testing.T) *world {
	return &world{coordtest.NewWorld(t, on.New(t), on.Revisions, on.Spares)}
}

// real runs f on the real service, beside other tests.
func (on Services) real(t *testing.T, f func(w *world)) { on.realOf(t, on.New, f) }

func (on Services) realOf(t *testing.T, service func(t *testing.T) backendtest.Service, f func(w *world)) {
	if service == nil || on.Share > 1 && rand.IntN(on.Share) > 0 {
		return
	}
	t.Run(on.Name, func(t *testing.T) {
		t.Parallel()
		f(&world{coordtest.NewWorld(t, service(t), on.Revisions, on.Spares)})
	})
}

// each runs f on memory, inside a synctest bubble, and on the real service.
func (on Services) each(t *testing.T, f func(w *world)) {
	t.Parallel()
	if on.Memory {
		onMemory(t, f)
	}
	on.real(t, f)
}

// all is each and on memory stores that lack some features.
func (on Services) all(t *testing.T, f func(w *world)) {
	on.each(t, f)
	if on.Memory {
		coordtest.OnMemoryWithoutBatches(t, func(w *coordtest.World) { f(&world{w}) })
		withoutTrees(t, f)
	}
}

// revisions is each and on a store whose sequence numbers are high and have gaps.
func (on Services) revisions(t *testing.T, f func(w *world)) {
	on.each(t, f)
	if on.Memory {
		coordtest.OnRevisions(t, func(w *coordtest.World) { f(&world{w}) })
	}
}

// sparing is revisions on the services that write nothing for a backend.Carry.
func (on Services) sparing(t *testing.T, f func(w *world)) {
	if on.Memory {
		coordtest.OnRevisions(t, func(w *coordtest.World) { f(&world{w}) })
	}
	if on.Spares {
		on.real(t, f)
	}
}

// countsChildren reports whether the service counts the changes of the children of a directory
// that had one (Cversion).
func (w *world) countsChildren(path string) bool {
	w.T.Helper()
	stat, err := w.stat(path)
	w.must(err)
	return stat.Cversion > 0
}

// dump returns all nodes at and below a path, as text.
func (w *world) dump(path string) string {
	w.T.Helper()
	s := w.Session("dump")
	defer s.Close()
	var text string
	var walk func(path string)
	walk = func(path string) {
		data, stat, err := s.Get(context.Background(), path, nil)
		if err != nil {
			return
		}
		text += fmt.Sprintf("%s %q version %d, %d children, created %d\n", path, data, stat.Version, stat.NumChildren, stat.Czxid)
		names, _, err := s.Children(context.Background(), path, nil)
		if err != nil && !errors.Is(err, backend.ErrNotFound) { // the service has collected it meanwhile
			w.T.Fatal(err)
		}
		for _, name := range names {
			walk(path + "/" + name)
		}
	}
	walk(w.Path(path))
	return text
}

// raze deletes all nodes at and below a path.
func (w *world) raze(path string) {
	w.T.Helper()
	s := w.Session("raze")
	defer s.Close()
	var walk func(path string)
	walk = func(path string) {
		names, _, err := s.Children(context.Background(), path, nil)
		for _, name := range names {
			walk(path + "/" + name)
		}
		if err == nil {
			_, err = s.Commit(context.Background(), backend.Delete(path, backend.AnyVersion))
		}
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			w.T.Fatal(err)
		}
	}
	walk(w.Path(path))
}

// onWarn is a slog.Handler that calls itself with each message of Warn and above.
type onWarn func(text string)

func (f onWarn) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (f onWarn) Handle(_ context.Context, r slog.Record) error {
	f(r.Message)
	return nil
}

func (f onWarn) WithAttrs([]slog.Attr) slog.Handler { return f }

func (f onWarn) WithGroup(string) slog.Handler { return f }
