package inspect_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestMain(m *testing.M) { coordtest.Main(m) }

// world is a fresh service, with what the tests of this package add to it.
type world struct{ *coordtest.World }

func onEach(t *testing.T, f func(w *world)) {
	coordtest.OnEach(t, func(w *coordtest.World) { f(&world{w}) })
}

// onAll is onEach and on memory without batches.
func onAll(t *testing.T, f func(w *world)) {
	onEach(t, f)
	coordtest.OnMemoryWithoutBatches(t, func(w *coordtest.World) { f(&world{w}) })
}

// batches reports whether the service of the client has batches.
func (w *world) batches(c *coord.Client) bool {
	w.T.Helper()
	s, err := c.Session(context.Background())
	if err != nil {
		w.T.Fatal(err)
	}
	return s.Features().Has(backend.Batches)
}

func onMemory(t *testing.T, f func(w *world)) {
	coordtest.OnMemory(t, func(w *coordtest.World) { f(&world{w}) })
}

func onServer(t *testing.T, o zookeeper.Options) *world { return &world{coordtest.OnServer(t, o)} }

// mustPut puts the numbers from first to last.
func mustPut(t *testing.T, q *coord.Queue[int], first, last int) {
	t.Helper()
	for n := first; n <= last; n++ {
		if _, err := q.Put(context.Background(), n); err != nil {
			t.Fatal(err)
		}
	}
}

// mustTake takes an item and checks which one it is.
func mustTake(t *testing.T, q *coord.Queue[int], want int) *coord.Item[int] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	it, err := q.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if it.Value != want {
		t.Fatalf("took %d, want %d", it.Value, want)
	}
	return it
}
