package coord_test

import (
	"testing"

	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestMain(m *testing.M) { coordtest.Main(m) }

// world is a fresh service, with what the tests of recipes add to it.
type world struct{ *coordtest.World }

func onEach(t *testing.T, f func(w *world)) {
	coordtest.OnEach(t, func(w *coordtest.World) { f(&world{w}) })
}

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

// onAll is onMemories and on a real ZooKeeper.
func onAll(t *testing.T, f func(w *world)) {
	onEach(t, f)
	coordtest.OnMemoryWithoutBatches(t, func(w *coordtest.World) { f(&world{w}) })
	withoutTrees(t, f)
}

// onCounters is onMemory on a store whose numbers begin again in a new directory, for tests of
// names that come back.
func onCounters(t *testing.T, f func(w *world)) {
	coordtest.OnCounters(t, func(w *coordtest.World) { f(&world{w}) })
}

// onRevisions is onEach and on a store whose sequence numbers are high and have gaps.
func onRevisions(t *testing.T, f func(w *world)) {
	onEach(t, f)
	coordtest.OnRevisions(t, func(w *coordtest.World) { f(&world{w}) })
}

// onRevisionsOnly is onRevisions without the services whose sequence numbers count the children of
// a node, as those of ZooKeeper do.
func onRevisionsOnly(t *testing.T, f func(w *world)) {
	coordtest.OnRevisions(t, func(w *coordtest.World) { f(&world{w}) })
	if coordtest.Elsewhere != nil {
		t.Run("zookeeper", func(t *testing.T) {
			t.Parallel()
			f(onServer(t, zookeeper.Options{}))
		})
	}
}

func onServer(t *testing.T, o zookeeper.Options) *world { return &world{coordtest.OnServer(t, o)} }
